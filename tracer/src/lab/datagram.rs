//! UDP and ICMP echo inside a namespace.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::socket::{
    self, AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use super::{LabError, Netns};

/// How often a waiting server looks whether it is to end.
const POLL: Duration = Duration::from_millis(20);

/// A UDP socket in `netns`, bound to `local`.
pub fn udp_socket(netns: &Netns, local: SocketAddr) -> Result<UdpSocket, LabError> {
    netns
        .run(|| UdpSocket::bind(local))?
        .map_err(LabError::system(format!(
            "binding UDP {local} in netns {}",
            netns.name()
        )))
}

/// A UDP server that sends each datagram back with `answer` applied to it, until it is dropped.
#[derive(Debug)]
pub struct UdpServer {
    ends: Arc<AtomicBool>,
    answerer: Option<JoinHandle<()>>,
}

impl UdpServer {
    /// Starts it at `address` in `netns`.
    pub fn start(
        netns: &Netns,
        address: SocketAddr,
        answer: fn(&mut [u8]),
    ) -> Result<Self, LabError> {
        let socket = udp_socket(netns, address)?;
        socket
            .set_read_timeout(Some(POLL))
            .map_err(LabError::system("giving a UDP server its time"))?;
        let ends = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&ends);
        let answerer = thread::spawn(move || {
            let mut bytes = [0; 2048];
            while !is_over.load(Ordering::Relaxed) {
                // What cannot be received or sent is a scenario's intention, not this server's failure.
                if let Ok((len, from)) = socket.recv_from(&mut bytes) {
                    answer(&mut bytes[..len]);
                    let _ = socket.send_to(&bytes[..len], from);
                }
            }
        });
        Ok(Self {
            ends,
            answerer: Some(answerer),
        })
    }
}

impl Drop for UdpServer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(answerer) = self.answerer.take() {
            let _ = answerer.join();
        }
    }
}

/// The head and question of a DNS query for the root's name servers.
pub const fn dns_query(id: u16) -> [u8; 17] {
    let [high, low] = id.to_be_bytes();
    [high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1]
}

/// Makes a DNS query its own answer.
pub fn answer_dns(message: &mut [u8]) {
    if let Some(flags) = message.get_mut(2) {
        *flags |= 0x80;
    }
}

/// Sends one ICMP or ICMPv6 echo request from `netns` and says whether its reply came within `patience`.
pub fn ping(
    netns: &Netns,
    remote: IpAddr,
    id: u16,
    seq: u16,
    patience: Duration,
) -> Result<bool, LabError> {
    netns
        .run(|| echo(remote, id, seq, patience))?
        .map_err(LabError::system(format!(
            "pinging {remote} from netns {}",
            netns.name()
        )))
}

fn echo(remote: IpAddr, id: u16, seq: u16, patience: Duration) -> io::Result<bool> {
    let (family, protocol, request, reply) = match remote {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp, 8, 0),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6, 128, 129),
    };
    let socket: OwnedFd = socket::socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    let wait = TimeVal::milliseconds(20);
    socket::setsockopt(&socket, socket::sockopt::ReceiveTimeout, &wait)?;
    let [id_high, id_low] = id.to_be_bytes();
    let [seq_high, seq_low] = seq.to_be_bytes();
    let mut message = [0; 64];
    message[0] = request;
    message[4..8].copy_from_slice(&[id_high, id_low, seq_high, seq_low]);
    // For ICMPv6 the kernel overwrites it with the right one.
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let address = SockaddrStorage::from(SocketAddr::new(remote, 0));
    socket::sendto(socket.as_raw_fd(), &message, &address, MsgFlags::empty())?;

    let deadline = Instant::now() + patience;
    let mut bytes = [0; 256];
    while Instant::now() < deadline {
        let Ok(len) = socket::recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) else {
            continue;
        };
        // A raw IPv4 socket gets the IP header as well.
        let header_len = match remote {
            IpAddr::V4(_) => usize::from(bytes[0] & 15) * 4,
            IpAddr::V6(_) => 0,
        };
        let answer = bytes.get(header_len..len).unwrap_or_default();
        if answer.first() == Some(&reply) && answer.get(4..8) == Some(&message[4..8]) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// RFC 1071.
fn checksum(message: &[u8]) -> u16 {
    let words = message.chunks(2).map(|pair| {
        let [high, low] = [pair[0], pair.get(1).copied().unwrap_or(0)];
        u32::from(u16::from_be_bytes([high, low]))
    });
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(u16::MAX)
}
