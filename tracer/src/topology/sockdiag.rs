//! Which socket of a namespace takes a packet, as the kernel itself would look it up (`NETLINK_SOCK_DIAG`, by
//! `inet_diag_find_one_icsk()` in net/ipv4/inet_diag.c and `udp_dump_one()` in net/ipv4/udp_diag.c): a listener that is
//! bound to every address is found, and one of IPv6 that takes IPv4 as well. Asking needs no privilege.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, Parseable as _};
use netlink_packet_sock_diag::{
    SockDiagMessage,
    constants::{AF_INET, AF_INET6, TCP_LISTEN},
    inet::{ExtensionFlags, InetRequest, InetResponseHeader, SocketId, StateFlags},
};
use nix::{errno::Errno, sys::socket::SockProtocol};
use tracer_common::packet::IpProto;

use super::netlink::Netlink;

/// `INET_DIAG_NOCOOKIE`: whichever socket it is.
const ANY_COOKIE: [u8; 8] = [0xff; 8];

/// A socket, by the packets that it sends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ends {
    /// The IP protocol number: TCP or UDP.
    pub protocol: u8,
    pub local: SocketAddr,
    pub remote: SocketAddr,
    /// The device of the packet: a socket may be bound to one.
    pub ifindex: u32,
}

/// A socket that a process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Its inode number, which `/proc/PID/fd` shows as well.
    pub inode: u32,
    /// It has another end, the one that was asked for.
    pub connected: bool,
}

/// The socket to ask with.
#[derive(Debug)]
pub(super) struct DiagSocket(Netlink);

impl DiagSocket {
    /// Opens one in the namespace of the calling thread.
    pub(super) fn open() -> Result<Self, Errno> {
        Netlink::open(SockProtocol::NetlinkSockDiag, 0).map(Self)
    }

    /// Takes over one that another process has opened like [`DiagSocket::open`].
    pub(super) fn adopt(fd: OwnedFd) -> Result<Self, Errno> {
        Netlink::adopt(fd).map(Self)
    }

    /// Whether this kernel has what answers for a protocol (the modules tcp_diag and udp_diag): it says of sockets that it
    /// cannot look up, as of those that are not there, that they are not found. So it is asked to list the sockets that are in no
    /// state at all.
    pub(super) fn answers_for(&mut self, protocol: IpProto, buffer: &mut [u8]) -> bool {
        let anybody = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let none = InetRequest {
            states: StateFlags::empty(),
            ..request(Ends {
                protocol: protocol as u8,
                local: anybody,
                remote: anybody,
                ifindex: 0,
            })
        };
        let flags = NLM_F_REQUEST | NLM_F_DUMP;
        let sent = self.0.send(SockDiagMessage::InetRequest(none), flags);
        sent.and_then(|sequence| self.0.answers(sequence, buffer, &mut |_| {}))
            .is_ok()
    }

    /// The socket that has these ends or, where a process has none open, the listener that the connection belongs to: until it
    /// is accepted, it is nobody else's.
    pub(super) fn find(&mut self, ends: Ends, buffer: &mut [u8]) -> Result<Option<Found>, Errno> {
        let Some(answer) = self.ask(ends, buffer)? else {
            return Ok(None);
        };
        // A connection that is not accepted yet, or is over, has no inode.
        if answer.inode != 0 || ends.protocol != IpProto::Tcp as u8 {
            return Ok(found(&answer));
        }
        let anybody = SocketAddr::new(unspecified(ends.local.ip()), 0);
        let listener = self.ask(
            Ends {
                remote: anybody,
                ..ends
            },
            buffer,
        )?;
        Ok(listener
            .filter(|answer| answer.state == TCP_LISTEN)
            .and_then(|answer| found(&answer)))
    }

    fn ask(&mut self, ends: Ends, buffer: &mut [u8]) -> Result<Option<InetResponseHeader>, Errno> {
        let sequence = self
            .0
            .send(SockDiagMessage::InetRequest(request(ends)), NLM_F_REQUEST)?;
        let mut answer = None;
        let answered = self.0.answers(sequence, buffer, &mut |message| {
            answer = answer
                .take()
                .or_else(|| InetResponseHeader::parse(message.payload).ok());
        });
        match answered {
            Ok(_) => Ok(answer.filter(|answer| answer.socket_id.source_port == ends.local.port())),
            // Also where this kernel has no module that could answer.
            Err(Errno::ENOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

impl AsFd for DiagSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn found(answer: &InetResponseHeader) -> Option<Found> {
    (answer.inode != 0).then_some(Found {
        inode: answer.inode,
        connected: answer.socket_id.destination_port != 0,
    })
}

fn request(ends: Ends) -> InetRequest {
    // A UDP socket is looked up as the packet's receiver, so that the packet's source is the other end; for TCP the source is
    // the socket's own end.
    let (source, destination) = if ends.protocol == IpProto::Udp as u8 {
        (ends.remote, ends.local)
    } else {
        (ends.local, ends.remote)
    };
    InetRequest {
        family: if ends.local.is_ipv4() {
            AF_INET
        } else {
            AF_INET6
        },
        protocol: ends.protocol,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::all(),
        socket_id: SocketId {
            source_port: source.port(),
            destination_port: destination.port(),
            source_address: source.ip(),
            destination_address: destination.ip(),
            interface_id: ends.ifindex,
            cookie: ANY_COOKIE,
        },
    }
}

const fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    use super::*;
    use crate::topology::netlink::BUFFER_BYTES;

    const LOOPBACK: u32 = 1;

    fn find(protocol: IpProto, local: SocketAddr, remote: SocketAddr) -> Option<Found> {
        let mut socket = DiagSocket::open().unwrap();
        let ends = Ends {
            protocol: protocol as u8,
            local,
            remote,
            ifindex: LOOPBACK,
        };
        socket.find(ends, &mut vec![0; BUFFER_BYTES]).unwrap()
    }

    fn found(socket: impl AsFd, connected: bool) -> Found {
        let inode = nix::sys::stat::fstat(socket).unwrap().st_ino;
        let inode = u32::try_from(inode).unwrap();
        Found { inode, connected }
    }

    #[test]
    fn a_listener_has_its_connection_until_it_is_accepted() {
        for host in ["127.0.0.1", "::1"] {
            let host: IpAddr = host.parse().unwrap();
            let listener = TcpListener::bind((host, 0)).unwrap();
            let server = listener.local_addr().unwrap();
            let client = TcpStream::connect(server).unwrap();
            let client_addr = client.local_addr().unwrap();
            let tcp = |local, remote| find(IpProto::Tcp, local, remote);
            assert_eq!(tcp(client_addr, server), Some(found(&client, true)));
            assert_eq!(tcp(server, client_addr), Some(found(&listener, false)));
            let (accepted, _) = listener.accept().unwrap();
            assert_eq!(tcp(server, client_addr), Some(found(&accepted, true)));
            let nobody = SocketAddr::new(host, 1);
            assert_eq!(tcp(nobody, server), None);
        }
    }

    #[test]
    fn a_protocol_of_which_the_kernel_tells_nothing_is_noticed() {
        let mut socket = DiagSocket::open().unwrap();
        let mut answers = |protocol| socket.answers_for(protocol, &mut vec![0; BUFFER_BYTES]);
        assert!(answers(IpProto::Tcp) && answers(IpProto::Udp));
        // Those are no sockets of `inet_diag` in any kernel.
        assert!(!answers(IpProto::Ipv6Icmp));
    }

    #[test]
    fn whoever_takes_every_address_of_both_versions_is_found() {
        // Rust makes no dual-stack socket deaf to IPv4.
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["127.0.0.1", "::1"] {
            let host: IpAddr = host.parse().unwrap();
            let (local, remote) = (SocketAddr::new(host, port), SocketAddr::new(host, 9));
            assert_eq!(
                find(IpProto::Tcp, local, remote),
                Some(found(&listener, false))
            );
        }
    }

    #[test]
    fn a_datagram_goes_to_the_socket_that_is_connected_to_its_sender() {
        for host in ["127.0.0.1", "::1"] {
            let host: IpAddr = host.parse().unwrap();
            let server = UdpSocket::bind((host, 0)).unwrap();
            let server_addr = server.local_addr().unwrap();
            let client = UdpSocket::bind((host, 0)).unwrap();
            client.connect(server_addr).unwrap();
            let client_addr = client.local_addr().unwrap();
            let udp = |local, remote| find(IpProto::Udp, local, remote);
            assert_eq!(udp(client_addr, server_addr), Some(found(&client, true)));
            assert_eq!(udp(server_addr, client_addr), Some(found(&server, false)));
            // Connected to somebody else.
            assert_eq!(udp(client_addr, SocketAddr::new(host, 9)), None);
        }
    }
}
