//! Reads the part that all TCP sockets share (`sock_common`), request and time-wait sockets included.

use core::ffi::c_void;

use aya_ebpf::helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid};
use tracer_common::{
    event::{COMM_LEN, Kind, SocketRecord},
    packet::{FLAG_PORTS, FLAG_TRANSPORT, IpProto, Layer, Packet, Status, Tunnel},
};

use crate::{
    config::config,
    emit::{emit, header, with_scratch},
    filter::{selects, watches},
    skb::{Place, load, load_pointer},
};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

const TCP_SYN_SENT: u8 = 2;
const TCP_LISTEN: u8 = 10;

/// The second half of an IPv4-mapped address up to its IPv4 part: `::ffff:0:0/96`.
const MAPPED: [u8; 4] = [0, 0, 0xff, 0xff];

/// A `struct sock`, or another structure that begins with `sock_common`.
#[derive(Clone, Copy)]
pub struct Sock(*const c_void);

/// A socket's two ends and state.
#[derive(Clone, Copy)]
pub struct Ends {
    pub local_addr: [u8; 16],
    pub remote_addr: [u8; 16],
    pub local_port: u16,
    pub remote_port: u16,
    pub family: u16,
}

impl Sock {
    /// The argument of a tracepoint.
    pub const fn new(sock: *const c_void) -> Self {
        Self(sock)
    }

    /// Whether there is one.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Whether it is a TCP socket; only for a full socket.
    #[inline(always)]
    pub fn is_tcp(self) -> bool {
        let protocol: u16 = load(self.0, config!(offsets.sock_protocol));
        protocol == IpProto::Tcp as u16
    }

    /// `skc_state`.
    #[inline(always)]
    pub fn state(self) -> u8 {
        load(self.0, config!(offsets.sock_state))
    }

    /// Its namespace.
    #[inline(always)]
    pub fn place(self) -> Place {
        Place::of_net(load_pointer(self.0, config!(offsets.sock_net)))
    }

    /// Its two ends. A dual-stack socket that speaks IPv4 is told as IPv4, as its packets are.
    #[inline(always)]
    pub fn ends(self) -> Ends {
        let mut ends = Ends {
            local_addr: [0; 16],
            remote_addr: [0; 16],
            local_port: load(self.0, config!(offsets.sock_num)),
            remote_port: u16::from_be(load(self.0, config!(offsets.sock_dport))),
            family: load(self.0, config!(offsets.sock_family)),
        };
        let mut is_ipv4 = ends.family == AF_INET;
        if ends.family == AF_INET6 {
            let remote: [u64; 2] = self.address(config!(offsets.sock_v6_daddr));
            let local: [u64; 2] = self.address(config!(offsets.sock_v6_rcv_saddr));
            ends.remote_addr = bytes(remote);
            ends.local_addr = bytes(local);
            is_ipv4 = remote[0] == 0 && ends.remote_addr[8..12] == MAPPED;
        }
        if is_ipv4 {
            ends.family = AF_INET;
            ends.remote_addr = v4(load(self.0, config!(offsets.sock_daddr)));
            ends.local_addr = v4(load(self.0, config!(offsets.sock_rcv_saddr)));
        }
        ends
    }

    #[inline(always)]
    fn address(self, offset: u32) -> [u64; 2] {
        if offset == tracer_common::config::MISSING {
            return [0; 2];
        }
        [load(self.0, offset), load(self.0, offset + 8)]
    }
}

#[inline(always)]
fn bytes(halves: [u64; 2]) -> [u8; 16] {
    // SAFETY: both are 16 bytes without padding.
    unsafe { core::mem::transmute(halves) }
}

#[inline(always)]
fn v4(address: u32) -> [u8; 16] {
    bytes([u64::from(address), 0])
}

/// The ends of the socket that would have received a packet.
#[inline(always)]
pub fn receiver(layer: &Layer) -> Ends {
    Ends {
        local_addr: layer.dst,
        remote_addr: layer.src,
        local_port: layer.dst_port,
        remote_port: layer.src_port,
        family: if layer.version == 4 {
            AF_INET
        } else {
            AF_INET6
        },
    }
}

/// Reports what a socket said, if the filter selects its flow.
#[inline(always)]
pub fn report(kind: Kind, place: &Place, ends: &Ends, old_state: u8, new_state: u8) {
    if !watches(place) {
        return;
    }
    with_scratch(|scratch| {
        as_packet(ends, &mut scratch.packet);
        if !selects(&scratch.packet) {
            return;
        }
        // These states are entered in the owner's own connect() and listen().
        let in_owner_context = matches!(kind, Kind::SockState)
            && (new_state == TCP_SYN_SENT || new_state == TCP_LISTEN);
        emit(&SocketRecord {
            header: header(kind, place),
            local_addr: ends.local_addr,
            remote_addr: ends.remote_addr,
            local_port: ends.local_port,
            remote_port: ends.remote_port,
            family: ends.family,
            old_state,
            new_state,
            pid: (bpf_get_current_pid_tgid() >> 32) as u32,
            in_owner_context: u32::from(in_owner_context),
            comm: if in_owner_context {
                bpf_get_current_comm().unwrap_or([0; COMM_LEN])
            } else {
                [0; COMM_LEN]
            },
        });
    });
}

/// The packet that this socket would send, as far as a filter looks at it.
#[inline(always)]
fn as_packet(ends: &Ends, packet: &mut Packet) {
    packet.count = 1;
    packet.has_quoted = false;
    packet.status = Status::Complete;
    let layer = &mut packet.layers[0];
    layer.src = ends.local_addr;
    layer.dst = ends.remote_addr;
    layer.src_port = ends.local_port;
    layer.dst_port = ends.remote_port;
    layer.version = if ends.family == AF_INET { 4 } else { 6 };
    layer.protocol = IpProto::Tcp as u8;
    layer.flags = FLAG_PORTS | FLAG_TRANSPORT;
    layer.tunnel = Tunnel::None;
}
