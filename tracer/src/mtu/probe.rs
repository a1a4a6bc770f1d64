//! `--probe ADDR`: what really passes on the way to an address that the user names, found by packets that must not be
//! fragmented, of bisected sizes. An echo tells of the way there, since its answer may come back in fragments; where the
//! other end is on this node too, datagrams tell of both ways.
//!
//! Bounded: at most some forty sizes, each tried [`TRIES`] times, with a pause before each packet.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    self, AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use super::model::Network;
use super::report::Probe;
use crate::echo;
use crate::event::NetnsId;
use crate::topology::Topology;

/// How often a size is tried before it counts as too large.
const TRIES: u32 = 2;
/// How long a packet may take, there and back.
const PATIENCE: Duration = Duration::from_millis(300);
/// The pause before each packet: at most a hundred a second.
const PAUSE: Duration = Duration::from_millis(10);
/// How long a waiting socket sleeps at a time.
const POLL_MS: i64 = 20;

/// The smallest size that is tried, and the largest packet that there is.
const SMALLEST: u32 = 88;
const LARGEST: u32 = 65_535;

const UDP_HEADER_BYTES: u32 = 8;

/// Sockets that never fragment, and care for the device's MTU only.
mod discover {
    use nix::{setsockopt_impl, sockopt_impl};

    sockopt_impl!(
        /// `IP_MTU_DISCOVER`
        V4,
        SetOnly,
        libc::IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        i32
    );
    sockopt_impl!(
        /// `IPV6_MTU_DISCOVER`
        V6,
        SetOnly,
        libc::IPPROTO_IPV6,
        libc::IPV6_MTU_DISCOVER,
        i32
    );
    sockopt_impl!(
        /// `IPV6_DONTFRAG`
        DontFragment,
        SetOnly,
        libc::IPPROTO_IPV6,
        libc::IPV6_DONTFRAG,
        bool
    );
}

/// Probes from a namespace.
pub(super) fn probe(
    topology: &Topology,
    network: &Network,
    from: NetnsId,
    target: IpAddr,
) -> io::Result<Probe> {
    let inside = |netns, work: &(dyn Fn() -> io::Result<(Option<u32>, u32)> + Sync)| {
        let entered = topology.inside(netns, work);
        entered.unwrap_or_else(|errno| Err(errno.into()))
    };
    let (answered, mut packets) = inside(from, &|| echoes(target))?;
    let local = network.devices.values().find(|device| {
        device.id.netns != from && device.kind != "loopback" && device.addrs.contains(&target)
    });
    let (mut there, mut back) = (None, None);
    if let Some(other) = local.map(|device| device.id.netns) {
        let socket = |netns, addr| {
            let bound = topology.inside(netns, || UdpSocket::bind(SocketAddr::new(addr, 0)));
            bound.unwrap_or_else(|errno| Err(errno.into()))
        };
        let far = socket(other, target)?;
        let any = if target.is_ipv4() {
            IpAddr::from([0; 4])
        } else {
            IpAddr::from([0; 16])
        };
        // The address from which the kernel would send there.
        let source = socket(from, any)?;
        source.connect(far.local_addr()?)?;
        let near = socket(from, source.local_addr()?.ip())?;
        let (size, sent) = datagrams(&near, &far)?;
        (there, packets) = (size, packets + sent);
        let (size, sent) = datagrams(&far, &near)?;
        (back, packets) = (size, packets + sent);
    }
    let netns = network.namespaces.get(&from);
    Ok(Probe {
        target,
        netns: from.inum,
        netns_name: netns.and_then(|netns| netns.name.clone()),
        largest_answered: answered,
        target_is_local: local.is_some(),
        largest_there: there,
        largest_back: back,
        packets,
    })
}

/// The largest size that `passes`, if the smallest does.
fn bisect(mut passes: impl FnMut(u32) -> io::Result<bool>) -> io::Result<Option<u32>> {
    if !passes(SMALLEST)? {
        return Ok(None);
    }
    let (mut good, mut bad) = (SMALLEST, LARGEST + 1);
    while bad - good > 1 {
        let middle = good.midpoint(bad);
        if passes(middle)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    Ok(Some(good))
}

/// Sets a socket to send whole packets only.
fn never_fragment(socket: &impl AsFd, ipv6: bool) -> nix::Result<()> {
    if ipv6 {
        socket::setsockopt(socket, discover::V6, &libc::IPV6_PMTUDISC_PROBE)?;
        socket::setsockopt(socket, discover::DontFragment, &true)
    } else {
        socket::setsockopt(socket, discover::V4, &libc::IP_PMTUDISC_PROBE)
    }
}

fn ip_header_bytes(ipv6: bool) -> u32 {
    if ipv6 { 40 } else { 20 }
}

/// Whether an error of sending says that the packet is too large here, instead of that nothing can be sent.
fn is_too_large(errno: i32) -> bool {
    errno == libc::EMSGSIZE
}

/// The largest echo that is answered, and how many were sent.
fn echoes(target: IpAddr) -> io::Result<(Option<u32>, u32)> {
    let ipv6 = target.is_ipv6();
    let (family, protocol) = if ipv6 {
        (AddressFamily::Inet6, SockProtocol::IcmpV6)
    } else {
        (AddressFamily::Inet, SockProtocol::Icmp)
    };
    let socket: OwnedFd = socket::socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    never_fragment(&socket, ipv6)?;
    socket::setsockopt(
        &socket,
        sockopt::ReceiveTimeout,
        &TimeVal::milliseconds(POLL_MS),
    )?;
    let address = SockaddrStorage::from(SocketAddr::new(target, 0));
    let [high, low, ..] = std::process::id().to_le_bytes();
    let id = u16::from_be_bytes([high, low]);
    let mut sent: u16 = 0;
    let headers = ip_header_bytes(ipv6) as usize + echo::HEADER_BYTES;
    let size = bisect(|size| {
        for _ in 0..TRIES {
            sent += 1;
            let message = echo::request(ipv6, id, sent, size as usize - headers);
            thread::sleep(PAUSE);
            match socket::sendto(socket.as_raw_fd(), &message, &address, MsgFlags::empty()) {
                Ok(_) => {}
                Err(errno) if is_too_large(errno as i32) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
            let deadline = Instant::now() + PATIENCE;
            let mut bytes = [0; 128];
            while Instant::now() < deadline {
                let received = socket::recv(socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_TRUNC);
                let heard = received.map_or(0, |length| length.min(bytes.len()));
                if echo::is_reply(ipv6, &bytes[..heard], id, sent) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    })?;
    Ok((size, u32::from(sent)))
}

/// The largest datagram that comes from one socket to another, and how many were sent.
fn datagrams(from: &UdpSocket, to: &UdpSocket) -> io::Result<(Option<u32>, u32)> {
    let address = to.local_addr()?;
    let ipv6 = address.is_ipv6();
    never_fragment(from, ipv6)?;
    to.set_read_timeout(Some(PATIENCE))?;
    let headers = ip_header_bytes(ipv6) + UDP_HEADER_BYTES;
    let mut sent: u32 = 0;
    let size = bisect(|size| {
        for _ in 0..TRIES {
            sent += 1;
            let mut data = vec![0; (size - headers) as usize];
            data[..4].copy_from_slice(&sent.to_ne_bytes());
            thread::sleep(PAUSE);
            match from.send_to(&data, address) {
                Ok(_) => {}
                Err(error) if error.raw_os_error().is_some_and(is_too_large) => return Ok(false),
                Err(error) => return Err(error),
            }
            let mut mark = [0; 4];
            // One that is late is not this one.
            while to.recv(&mut mark).is_ok() {
                if mark == sent.to_ne_bytes() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    })?;
    Ok((size, sent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_size_is_found_in_few_steps() {
        for largest in [SMALLEST, 1280, 1384, 1500, 9000, LARGEST] {
            let mut steps = 0;
            let found = bisect(|size| {
                steps += 1;
                Ok(size <= largest)
            });
            assert_eq!(found.expect("no I/O"), Some(largest));
            assert!(steps <= 18, "{steps}");
        }
        assert_eq!(bisect(|_| Ok(false)).expect("no I/O"), None);
    }

    #[test]
    fn loopback_takes_all_that_there_is() {
        let loopback = |addr: IpAddr| UdpSocket::bind(SocketAddr::new(addr, 0)).expect("a socket");
        let addr = IpAddr::from([127, 0, 0, 1]);
        let (from, to) = (loopback(addr), loopback(addr));
        let (size, sent) = datagrams(&from, &to).expect("loopback");
        assert_eq!(size, Some(LARGEST));
        assert!(sent <= 40);
    }
}
