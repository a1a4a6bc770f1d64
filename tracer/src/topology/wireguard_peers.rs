//! What WireGuard devices tell about themselves and their peers (`WG_CMD_GET_DEVICE` of generic netlink, Linux 5.6). The
//! kernel asks for CAP_NET_ADMIN at each request, which tracer itself has given up by then: a process of its own keeps
//! it. That process enters the namespace of which we hand it the handle, reads, and answers without any key but the first
//! letters of public ones; it dies with us.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::process::CommandExt as _,
    },
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use caps::Capability;
use nix::{
    errno::Errno,
    sys::{
        prctl,
        signal::Signal,
        socket::{
            AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, setsockopt, socketpair,
            sockopt,
        },
        time::{TimeVal, TimeValLike as _},
    },
};
use serde::{Deserialize, Serialize};

use crate::{
    clock,
    event::{DeviceId, NetnsId},
    fact::{Fact, Prefix, Wireguard, WireguardPeer},
    privilege,
};

use super::{
    Netns, Topology,
    links::{attributes, ip, number},
    netlink::{BUFFER_BYTES, Netlink},
    netns::in_each,
    scout::{MESSAGE_BYTES_MAX, receive, send},
    wireguard::{HEADER_BYTES, TYPE_MASK, ask_device, family},
};

/// The first argument of the process that reads.
pub const WIREGUARD_HELPER: &str = "tracer-wireguard";

/// Entering a namespace, and asking about its WireGuard devices.
const KEPT: [Capability; 2] = [Capability::CAP_SYS_ADMIN, Capability::CAP_NET_ADMIN];

/// Where the kernel says that it knows WireGuard. Asking generic netlink instead would load the module.
const MODULE: &str = "/sys/module/wireguard";

/// How long an answer may take. A dump of thousands of peers takes milliseconds; but on a machine that has other things to do,
/// the process has to be started first.
const ANSWER_WITHIN: Duration = Duration::from_secs(15);

/// The most peers that are told of one device, and the most prefixes of all of them together: an answer is one datagram.
const PEERS_MAX: usize = 256;
const PREFIXES_MAX: usize = 2048;

/// The letters of a public key that are told, of 44.
const KEY_LETTERS: usize = 10;

/// The kind of a WireGuard device.
const KIND: &str = "wireguard";

/// include/uapi/linux/wireguard.h
mod device {
    pub(super) const LISTEN_PORT: u16 = 6;
    pub(super) const FWMARK: u16 = 7;
    pub(super) const PEERS: u16 = 8;
}
mod peer {
    pub(super) const PUBLIC_KEY: u16 = 1;
    pub(super) const ENDPOINT: u16 = 4;
    pub(super) const KEEPALIVE: u16 = 5;
    pub(super) const LAST_HANDSHAKE: u16 = 6;
    pub(super) const RX_BYTES: u16 = 7;
    pub(super) const TX_BYTES: u16 = 8;
    pub(super) const ALLOWED_IPS: u16 = 9;
}
mod allowed_ip {
    pub(super) const FAMILY: u16 = 1;
    pub(super) const ADDRESS: u16 = 2;
    pub(super) const PREFIX_LEN: u16 = 3;
}

/// What to read: these devices of the namespace whose handle comes with the question.
#[derive(Debug, Serialize, Deserialize)]
struct Question {
    netns: NetnsId,
    ifindexes: Vec<u32>,
}

/// What was read, or an errno.
type Answer = Result<Vec<Wireguard>, i32>;

/// The process that reads.
#[derive(Debug)]
pub(super) struct Reader {
    child: Child,
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl Reader {
    fn start(tracer: &Path) -> io::Result<Self> {
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        let within =
            TimeVal::milliseconds(i64::try_from(ANSWER_WITHIN.as_millis()).unwrap_or(i64::MAX));
        setsockopt(&ours, sockopt::ReceiveTimeout, &within)?;
        let child = Command::new(tracer)
            .arg0(WIREGUARD_HELPER)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .env_clear()
            // Ctrl-C is meant for us: the devices are read once more then.
            .process_group(0)
            .spawn()?;
        Ok(Self {
            child,
            socket: ours,
            buffer: vec![0; MESSAGE_BYTES_MAX],
        })
    }

    fn ask(&mut self, netns: &Netns, ifindexes: Vec<u32>) -> io::Result<Answer> {
        let question = Question {
            netns: netns.id,
            ifindexes,
        };
        let handle = [netns.handle.as_raw_fd()];
        send(self.socket.as_fd(), &question, &handle, MsgFlags::empty())?;
        let (answer, _) = receive(self.socket.as_fd(), &mut self.buffer, MsgFlags::empty())?;
        Ok(answer)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It has nothing to tidy up. Where it is dead already, this only collects it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Topology {
    /// Starts the process that reads WireGuard devices, if the kernel knows WireGuard, which must be before the privilege is
    /// dropped, and reads them. `tracer` is a program that calls [`serve`] where its name is [`WIREGUARD_HELPER`].
    pub fn know_wireguard(&mut self, tracer: &Path) -> Vec<Fact> {
        if Path::new(MODULE).exists() {
            self.wireguard = Reader::start(tracer).ok();
        }
        let read = self.wireguard();
        // What is there now is not a change.
        self.table.changes();
        read
    }

    /// The WireGuard devices, by their ids.
    pub fn wireguard_devices(&self) -> Vec<DeviceId> {
        self.table.of_kind(KIND)
    }

    /// Reads every WireGuard device, and notes the ports that they listen on.
    pub fn wireguard(&mut self) -> Vec<Fact> {
        let mut by_netns: BTreeMap<NetnsId, Vec<u32>> = BTreeMap::new();
        for id in self.wireguard_devices() {
            by_netns.entry(id.netns).or_default().push(id.ifindex);
        }
        let mut read = Vec::new();
        for netns in &self.namespaces {
            let Some(ifindexes) = by_netns.remove(&netns.id) else {
                continue;
            };
            let Some(reader) = &mut self.wireguard else {
                break;
            };
            match reader.ask(netns, ifindexes) {
                Ok(Ok(devices)) => read.extend(devices),
                // The namespace or its devices are going away.
                Ok(Err(_)) => {}
                // An answer that comes too late would be taken for that to the next question.
                Err(_) => self.wireguard = None,
            }
        }
        for device in &read {
            self.table.listens(device.device, device.listen_port);
        }
        read.into_iter()
            .map(|device| Fact::Wireguard(Box::new(device)))
            .collect()
    }
}

/// The process itself: answers until nobody asks any more.
pub fn serve() -> anyhow::Result<()> {
    // Should we be killed, our end of the socket closes too; this also ends a helper that is busy just then.
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    privilege::drop_in_this_thread(&KEPT)?;
    let stdin = io::stdin();
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    loop {
        let received = receive::<Question>(stdin.as_fd(), &mut buffer, MsgFlags::empty());
        let (question, handles) = match received {
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let mut answers = in_each(
            &handles[..handles.len().min(1)],
            |handle| handle.as_fd(),
            |_| read(&question),
        );
        let answer = answers.pop().unwrap_or(Err(Errno::EBADF));
        let answer: Answer = answer.and_then(|read| read).map_err(|errno| errno as i32);
        send(stdin.as_fd(), &answer, &[], MsgFlags::empty())?;
    }
}

/// Reads devices of the namespace that the calling thread is in. One that is gone meanwhile is left out.
fn read(question: &Question) -> Result<Vec<Wireguard>, Errno> {
    let mut socket = Netlink::open(SockProtocol::NetlinkGeneric, 0)?;
    let mut buffer = vec![0; BUFFER_BYTES];
    let family = family(&mut socket, &mut buffer)?;
    let mut devices = Vec::new();
    for ifindex in &question.ifindexes {
        let clocks = clock::read().map_err(|_| Errno::EINVAL)?;
        let mut device = Wireguard {
            device: DeviceId {
                netns: question.netns,
                ifindex: *ifindex,
            },
            asked_ns: clocks.monotonic_ns,
            listen_port: 0,
            fwmark: 0,
            peers: Vec::new(),
            truncated: false,
        };
        let result = ask_device(&mut socket, family, *ifindex, &mut buffer, &mut |message| {
            let attributes = message.payload.get(HEADER_BYTES..).unwrap_or_default();
            add_message(&mut device, attributes, clocks.realtime_ns);
        });
        // There were keys in it.
        buffer.fill(0);
        std::hint::black_box(&buffer);
        match result {
            Ok(()) => devices.push(device),
            Err(Errno::ENODEV | Errno::EOPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(devices)
}

/// Adds what one message says of a device: the kernel spreads a large one over several.
fn add_message(device: &mut Wireguard, attributes_of_it: &[u8], realtime_ns: u64) {
    for attribute in attributes(attributes_of_it) {
        let value = attribute.value();
        match attribute.kind() & TYPE_MASK {
            device::LISTEN_PORT => device.listen_port = short(value).unwrap_or(0),
            device::FWMARK => device.fwmark = number(value).unwrap_or(0),
            device::PEERS => {
                for peer in attributes(value) {
                    add_peer(device, peer.value(), realtime_ns);
                }
            }
            _ => {}
        }
    }
}

fn add_peer(device: &mut Wireguard, attributes_of_it: &[u8], realtime_ns: u64) {
    let mut peer = WireguardPeer {
        public_key: String::new(),
        endpoint: None,
        allowed_ips: Vec::new(),
        latest_handshake_ns: None,
        rx_bytes: 0,
        tx_bytes: 0,
        keepalive_s: 0,
    };
    for attribute in attributes(attributes_of_it) {
        let value = attribute.value();
        match attribute.kind() & TYPE_MASK {
            peer::PUBLIC_KEY => peer.public_key = beginning_of_key(value),
            peer::ENDPOINT => peer.endpoint = endpoint(value),
            peer::KEEPALIVE => peer.keepalive_s = short(value).unwrap_or(0),
            peer::LAST_HANDSHAKE => {
                let age_ns = age_ns(value, realtime_ns);
                peer.latest_handshake_ns =
                    age_ns.map(|age_ns| device.asked_ns.saturating_sub(age_ns));
            }
            peer::RX_BYTES => peer.rx_bytes = long(value).unwrap_or(0),
            peer::TX_BYTES => peer.tx_bytes = long(value).unwrap_or(0),
            peer::ALLOWED_IPS => {
                peer.allowed_ips = attributes(value)
                    .filter_map(|prefix| prefix_of(prefix.value()))
                    .collect();
            }
            _ => {}
        }
    }
    let known: usize = device.peers.iter().map(|peer| peer.allowed_ips.len()).sum();
    let room = PREFIXES_MAX.saturating_sub(known);
    if peer.allowed_ips.len() > room {
        peer.allowed_ips.truncate(room);
        device.truncated = true;
    }
    // A peer whose prefixes did not fit goes on in the next message, which has nothing else of it.
    if let Some(last) = device.peers.last_mut()
        && last.public_key == peer.public_key
    {
        last.allowed_ips.append(&mut peer.allowed_ips);
    } else if device.peers.len() < PEERS_MAX {
        device.peers.push(peer);
    } else {
        device.truncated = true;
    }
}

fn prefix_of(attributes_of_it: &[u8]) -> Option<Prefix> {
    let (mut family, mut address, mut len) = (None, None, None);
    let all: Vec<_> = attributes(attributes_of_it).collect();
    for attribute in &all {
        let value = attribute.value();
        match attribute.kind() & TYPE_MASK {
            allowed_ip::FAMILY => family = short(value),
            allowed_ip::ADDRESS => address = Some(value),
            allowed_ip::PREFIX_LEN => len = value.first().copied(),
            _ => {}
        }
    }
    Some(Prefix {
        addr: ip(u8::try_from(family?).ok()?, address?)?,
        len: len?,
    })
}

/// How long ago a `struct __kernel_timespec` was; `None` for never.
fn age_ns(value: &[u8], realtime_ns: u64) -> Option<u64> {
    let seconds = long(value.get(..8)?)?;
    let nanoseconds = long(value.get(8..16)?)?;
    let at_ns = seconds
        .checked_mul(1_000_000_000)?
        .checked_add(nanoseconds)?;
    (at_ns > 0).then(|| realtime_ns.saturating_sub(at_ns))
}

/// A `struct sockaddr_in` or `struct sockaddr_in6`.
fn endpoint(value: &[u8]) -> Option<SocketAddr> {
    let family = u8::try_from(short(value.get(..2)?)?).ok()?;
    let port = u16::from_be_bytes(value.get(2..4)?.try_into().ok()?);
    let address = if i32::from(family) == libc::AF_INET {
        value.get(4..8)?
    } else {
        value.get(8..24)?
    };
    Some(match ip(family, address)? {
        IpAddr::V4(address) => SocketAddr::new(address.into(), port),
        IpAddr::V6(address) => v6(address, port, value),
    })
}

fn v6(address: Ipv6Addr, port: u16, value: &[u8]) -> SocketAddr {
    let scope = value.get(24..28).and_then(number).unwrap_or(0);
    SocketAddrV6::new(address, port, 0, scope).into()
}

fn short(value: &[u8]) -> Option<u16> {
    value.try_into().ok().map(u16::from_ne_bytes)
}

fn long(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_ne_bytes)
}

/// The first letters of a key as `wg` writes it (base64, RFC 4648): three bytes are four letters.
fn beginning_of_key(key: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let group = |bytes: &[u8]| {
        let number = bytes
            .iter()
            .fold(0_usize, |number, byte| number << 8 | usize::from(*byte));
        [18, 12, 6, 0].map(|shift| char::from(LETTERS[number >> shift & 63]))
    };
    key.chunks_exact(3)
        .flat_map(group)
        .take(KEY_LETTERS)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(value.len() + 4).unwrap();
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend_from_slice(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn empty() -> Wireguard {
        Wireguard {
            device: DeviceId {
                netns: NetnsId { inum: 1, cookie: 1 },
                ifindex: 2,
            },
            asked_ns: 100_000_000_000,
            listen_port: 0,
            fwmark: 0,
            peers: Vec::new(),
            truncated: false,
        }
    }

    fn prefix(octets: [u8; 4], len: u8) -> Vec<u8> {
        let of_it = [
            attribute(allowed_ip::FAMILY, &2_u16.to_ne_bytes()),
            attribute(allowed_ip::ADDRESS, &octets),
            attribute(allowed_ip::PREFIX_LEN, &[len]),
        ];
        attribute(0, &of_it.concat())
    }

    fn peer_with(prefixes: &[Vec<u8>], more: &[Vec<u8>]) -> Vec<u8> {
        let of_it = [
            attribute(peer::PUBLIC_KEY, &[7; 32]),
            attribute(peer::ALLOWED_IPS, &prefixes.concat()),
            more.concat(),
        ];
        attribute(device::PEERS, &attribute(0, &of_it.concat()))
    }

    #[test]
    fn a_device_with_a_peer_is_read_and_no_key_of_it_is_kept() {
        let sockaddr = [2, 0, 0xca, 0x6c, 192, 0, 2, 7, 0, 0, 0, 0, 0, 0, 0, 0];
        let handshake = [40_u64.to_ne_bytes(), 5_u64.to_ne_bytes()].concat();
        let message = [
            attribute(3, &[9; 32]),
            attribute(device::LISTEN_PORT, &51_871_u16.to_ne_bytes()),
            attribute(device::FWMARK, &0xe00_u32.to_ne_bytes()),
            peer_with(
                &[prefix([10, 0, 0, 0], 8)],
                &[
                    attribute(2, &[8; 32]),
                    attribute(peer::ENDPOINT, &sockaddr),
                    attribute(peer::LAST_HANDSHAKE, &handshake),
                    attribute(peer::RX_BYTES, &148_u64.to_ne_bytes()),
                ],
            ),
        ];
        let mut device = empty();
        add_message(&mut device, &message.concat(), 70_000_000_005);
        assert_eq!((device.listen_port, device.fwmark), (51_871, 0xe00));
        assert_eq!(
            device.peers,
            [WireguardPeer {
                public_key: "BwcHBwcHBw".to_owned(),
                endpoint: Some("192.0.2.7:51820".parse().unwrap()),
                allowed_ips: vec![Prefix {
                    addr: [10, 0, 0, 0].into(),
                    len: 8
                }],
                latest_handshake_ns: Some(70_000_000_000),
                rx_bytes: 148,
                tx_bytes: 0,
                keepalive_s: 0,
            }]
        );
    }

    #[test]
    fn a_peer_that_goes_on_in_the_next_message_is_one_peer() {
        let mut device = empty();
        for number in 1..=3 {
            add_message(
                &mut device,
                &peer_with(&[prefix([10, 0, 0, number], 32)], &[]),
                1,
            );
        }
        assert_eq!(device.peers.len(), 1);
        assert_eq!(device.peers[0].allowed_ips.len(), 3);
        assert!(!device.truncated);
    }

    #[test]
    fn what_does_not_fit_is_said_to_be_missing() {
        let mut device = empty();
        let prefixes = vec![prefix([10, 0, 0, 0], 8); 1500];
        for _ in 0..2 {
            add_message(&mut device, &peer_with(&prefixes, &[]), 1);
        }
        assert_eq!(device.peers[0].allowed_ips.len(), PREFIXES_MAX);
        assert!(device.truncated);
    }

    proptest! {
        #[test]
        fn no_message_stops_the_reader(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut device = empty();
            add_message(&mut device, &bytes, 1);
            add_message(&mut device, &attribute(device::PEERS, &attribute(0, &bytes)), 1);
        }
    }
}
