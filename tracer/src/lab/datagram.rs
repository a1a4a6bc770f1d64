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
use crate::echo;

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
        .run(|| echo_once(remote, id, seq, patience))?
        .map_err(LabError::system(format!(
            "pinging {remote} from netns {}",
            netns.name()
        )))
}

fn echo_once(remote: IpAddr, id: u16, seq: u16, patience: Duration) -> io::Result<bool> {
    let (family, protocol) = match remote {
        IpAddr::V4(_) => (AddressFamily::Inet, SockProtocol::Icmp),
        IpAddr::V6(_) => (AddressFamily::Inet6, SockProtocol::IcmpV6),
    };
    let socket: OwnedFd = socket::socket(family, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
    let wait = TimeVal::milliseconds(20);
    socket::setsockopt(&socket, socket::sockopt::ReceiveTimeout, &wait)?;
    let message = echo::request(remote.is_ipv6(), id, seq, 56);
    let address = SockaddrStorage::from(SocketAddr::new(remote, 0));
    socket::sendto(socket.as_raw_fd(), &message, &address, MsgFlags::empty())?;

    let deadline = Instant::now() + patience;
    let mut bytes = [0; 256];
    while Instant::now() < deadline {
        let Ok(len) = socket::recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) else {
            continue;
        };
        if echo::is_reply(remote.is_ipv6(), &bytes[..len], id, seq) {
            return Ok(true);
        }
    }
    Ok(false)
}
