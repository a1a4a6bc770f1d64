//! Reads the part that all TCP sockets share (`sock_common`), request and time-wait sockets included.

use core::ffi::c_void;

use aya_ebpf::helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid, bpf_probe_read_kernel};
use tracer_common::{
    config::MISSING,
    event::{COMM_LEN, Kind, SOCKET_HAS_OWNER, SOCKET_SENDS_AGAIN, SocketRecord},
    ledger::Counter,
    packet::{FLAG_PORTS, FLAG_TRANSPORT, IpProto, Layer, Packet, Status, Tunnel},
};

use crate::{
    config::config,
    emit::{header, with_scratch},
    filter::{selects, watches},
    maps::{OWNERS, count},
    skb::{Place, load, load_pointer, probe},
};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

const TCP_SYN_SENT: u8 = 2;
pub const TCP_CLOSE: u8 = 7;
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

    /// Its address, which names it until it is closed.
    pub fn address_of(self) -> u64 {
        self.0 as u64
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

    /// `tcp_sock.snd_una`; only for a full TCP socket. The verifier knows the pointer as one to the smaller `struct sock`,
    /// so this field takes a helper.
    #[inline(always)]
    pub fn snd_una(self) -> Option<u32> {
        let offset = config!(offsets.tcp_snd_una);
        if offset == MISSING {
            return None;
        }
        // SAFETY: the helper checks the address.
        unsafe { bpf_probe_read_kernel(self.0.byte_add(offset as usize).cast::<u32>()) }.ok()
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

    /// The port that the socket had until it was closed. `__inet_put_port` clears `skc_num` of a socket that was not bound
    /// before `tcp_set_state` tells of `TCP_CLOSE`, and leaves `inet_sport` as it was:
    /// <https://github.com/torvalds/linux/blob/v6.18/net/ipv4/inet_hashtables.c>,
    /// <https://github.com/torvalds/linux/blob/v6.18/net/ipv4/tcp.c>.
    #[inline(always)]
    pub fn port_before_close(self) -> u16 {
        // The verifier knows the tracepoint's argument as a `struct sock`, which ends in front of this field.
        u16::from_be(probe(self.address_of(), config!(offsets.inet_sport)).unwrap_or(0))
    }

    #[inline(always)]
    fn address(self, offset: u32) -> [u64; 2] {
        if offset == MISSING {
            return [0; 2];
        }
        [load(self.0, offset), load(self.0, offset + 8)]
    }
}

/// An address from its two words.
#[inline(always)]
pub fn bytes(halves: [u64; 2]) -> [u8; 16] {
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

/// Who opened a socket.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Owner {
    pid: u32,
    comm: [u8; COMM_LEN],
}

impl Owner {
    const NOBODY: Self = Self {
        pid: 0,
        comm: [0; COMM_LEN],
    };

    #[inline(always)]
    fn current() -> Self {
        Self {
            pid: (bpf_get_current_pid_tgid() >> 32) as u32,
            comm: bpf_get_current_comm().unwrap_or([0; COMM_LEN]),
        }
    }
}

/// What a socket said.
pub struct Statement {
    pub kind: Kind,
    pub place: Place,
    pub ends: Ends,
    pub old_state: u8,
    pub new_state: u8,
    /// The socket whose owner it is, or 0.
    pub owned: u64,
}

/// Reports what a socket said, if the filter selects its flow.
#[inline(always)]
pub fn report(statement: &Statement) {
    report_with(statement, || None);
}

/// What a socket sends again.
pub struct Again {
    /// The first number that the other end has not acknowledged.
    pub snd_una: u32,
    /// The first number of the segment.
    pub seq: u32,
}

/// Reports what a socket said, with what it sends again.
#[inline(always)]
pub fn report_with(statement: &Statement, again: impl FnOnce() -> Option<Again>) {
    let &Statement {
        kind,
        ref place,
        ref ends,
        old_state,
        new_state,
        owned,
    } = statement;
    let changes_state = matches!(kind, Kind::SockState);
    // These states are entered in the owner's own connect() and listen(), the first before the socket has a local
    // port: so the owner is remembered, and told with whatever the socket says later.
    let opens = changes_state && (new_state == TCP_SYN_SENT || new_state == TCP_LISTEN);
    if opens && OWNERS.insert(owned, Owner::current(), 0).is_err() {
        count(Counter::TableFull);
    }
    if watches(place) {
        with_scratch(|scratch| {
            as_packet(ends, &mut scratch.packet);
            if !selects(&scratch.packet) {
                return;
            }
            // SAFETY: the value is copied at once.
            let owner = unsafe { OWNERS.get(owned) }.copied();
            let Owner { pid, comm } = owner.unwrap_or(Owner::NOBODY);
            let (snd_una, seq, sends_again) = again().map_or((0, 0, 0), |again| {
                (again.snd_una, again.seq, SOCKET_SENDS_AGAIN)
            });
            let record = SocketRecord {
                header: header(kind, place),
                local_addr: ends.local_addr,
                remote_addr: ends.remote_addr,
                local_port: ends.local_port,
                remote_port: ends.remote_port,
                family: ends.family,
                old_state,
                new_state,
                pid,
                known: sends_again | (u32::from(owner.is_some()) * SOCKET_HAS_OWNER),
                comm,
                snd_una,
                seq,
            };
            // SAFETY: the record lies in the scratch space, which is ours.
            unsafe { scratch.record::<SocketRecord>().write(record) };
            scratch.emit::<SocketRecord>(0);
        });
    }
    if changes_state && new_state == TCP_CLOSE {
        // Absent where the socket was open already when the trace began.
        let _ = OWNERS.remove(owned);
    }
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
