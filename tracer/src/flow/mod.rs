//! Joins events into flows. A flow is one connection attempt, seen from as many places as the view has; what
//! happened to it is for `verdict` to say.
//!
//! No I/O and no clock here: the same records give the same flows.
//!
//! # How a packet is recognised, and where that goes wrong
//!
//! An skb's address is reused the moment it is freed, so it joins two sightings only beside an invariant that
//! both carry: the innermost five-tuple and what the packet says there (for TCP, the sequence and acknowledgement
//! numbers; for UDP, lengths and the DNS identifier; for ICMP echo, the sequence number). Those alone join
//! sightings of one packet in skbs that differ (a clone, another node, a copy made by a driver). What they
//! cannot tell apart is a packet and its retransmission: there the TCP timestamp or the IP identification decides, and
//! where a sender has none, time and the repetition of a hop do (`copies.rs`). Two connections that have one five-tuple in
//! different namespaces at the same time, with the same initial sequence number, would be taken for one: the
//! sequence number is 32 random bits.

pub mod copies;
mod message;
pub mod pairing;
pub mod table;

use std::net::{IpAddr, SocketAddr};

use tracer_common::packet::IpProto;

use crate::event::{Death, DeviceId, NetnsId, SkbId, Socket, SocketHook};

pub use message::{Datagram, Dns, Echo, Message, Segment, TcpFlags};

/// A packet's addresses as they were on the wire at one place. An ICMP echo has its identifier for both ports, so that
/// its two directions are each other's reverse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FiveTuple {
    /// The IP protocol number.
    pub protocol: u8,
    /// Where it comes from.
    pub src: SocketAddr,
    /// Where it goes to.
    pub dst: SocketAddr,
}

impl FiveTuple {
    /// The other direction.
    #[must_use]
    pub const fn reversed(self) -> Self {
        Self {
            protocol: self.protocol,
            src: self.dst,
            dst: self.src,
        }
    }

    /// The same for both directions.
    pub fn key(self) -> FlowKey {
        let (low, high) = if self.src <= self.dst {
            (self.src, self.dst)
        } else {
            (self.dst, self.src)
        };
        FlowKey {
            protocol: self.protocol,
            low,
            high,
        }
    }
}

/// What the two directions of a flow share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowKey {
    /// The IP protocol number.
    pub protocol: u8,
    low: SocketAddr,
    high: SocketAddr,
}

/// An ICMP or ICMPv6 error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IcmpError {
    /// 4 for ICMP, 6 for ICMPv6.
    pub version: u8,
    /// The type.
    pub kind: u8,
    /// The code.
    pub code: u8,
    /// Who sent it.
    pub from: IpAddr,
    /// Whom it tells.
    pub to: IpAddr,
    /// How many bytes the way on takes, where it says so: only an error that says "too big" does.
    pub mtu: Option<u32>,
}

impl IcmpError {
    /// Whether it says that the destination cannot be reached, for another reason than the packet's size.
    pub const fn is_unreachable(self) -> bool {
        match self.version {
            4 => self.kind == 3 && self.code != 4,
            _ => self.kind == 1,
        }
    }

    /// Whether it says that the packet had passed as many routers as it may.
    pub const fn is_ttl_exceeded(self) -> bool {
        matches!((self.version, self.kind, self.code), (4, 11, 0) | (6, 3, 0))
    }

    /// Whether it says that a packet was too big for the way on.
    pub const fn is_too_big(self) -> bool {
        matches!((self.version, self.kind, self.code), (4, 3, 4) | (6, 2, _))
    }

    /// Whether it says that nothing takes what is sent to that port.
    pub const fn is_port_unreachable(self) -> bool {
        matches!((self.version, self.kind, self.code), (4, 3, 3) | (6, 1, 4))
    }

    /// Whether somebody decided so, rather than that something failed: port unreachable is what a firewall's REJECT says
    /// to TCP by default, since a host without a listener answers with a RST.
    pub const fn is_prohibited(self) -> bool {
        match self.version {
            4 => self.kind == 3 && matches!(self.code, 3 | 9 | 10 | 13),
            _ => self.kind == 1 && matches!(self.code, 1 | 4 | 5 | 6),
        }
    }

    /// What it says, in the words of RFC 792, RFC 1812 and RFC 4443.
    pub const fn words(self) -> &'static str {
        match (self.version, self.kind, self.code) {
            (4, 3, 0) => "network unreachable",
            (4, 3, 1) | (6, 1, 3) => "host unreachable",
            (4, 3, 3) | (6, 1, 4) => "port unreachable",
            (4, 3, 9 | 10 | 13) | (6, 1, 1) => "administratively prohibited",
            (6, 1, 0) => "no route to destination",
            (6, 1, 5) => "source address failed policy",
            (6, 1, 6) => "route rejected",
            (4, 11, 0) => "time to live exceeded",
            (6, 3, 0) => "hop limit exceeded",
            (4, 3, 4) => "fragmentation needed",
            (6, 2, _) => "packet too big",
            _ => "destination unreachable",
        }
    }
}

/// A tunnel header around the flow's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tunnel {
    /// Which protocol.
    pub kind: TunnelKind,
    /// The network identifier, 24 bits; `None` where this kind of tunnel has none.
    pub vni: Option<u32>,
    /// The outer source address.
    pub outer_src: IpAddr,
    /// The outer destination address.
    pub outer_dst: IpAddr,
    /// The outer UDP source port of WireGuard, whose ends each have one; others choose it by what is inside.
    pub udp_src_port: Option<u16>,
    /// The outer UDP destination port; `None` for IP in IP.
    pub udp_port: Option<u16>,
}

/// The tunnels whose inside this tracer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TunnelKind {
    /// RFC 7348.
    Vxlan,
    /// RFC 8926.
    Geneve,
    /// RFC 2003 and RFC 4213.
    IpInIp,
    /// WireGuard; what is inside was read before it was encrypted, or after it was decrypted.
    Wireguard,
}

/// What happened to the packet at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Point {
    /// Handed to a device's driver.
    Xmit,
    /// Entered the receive path of a device.
    Receive,
    /// Taken by the TCP state machine.
    Consume,
    /// Refused by a device's driver, with its result.
    Refused(i32),
    /// Freed as dropped.
    Drop(Box<Death>),
}

/// One packet of a flow at one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The CPU that saw it.
    pub cpu: u16,
    /// Orders what one CPU saw.
    pub sequence: u32,
    /// The namespace, where it is known.
    pub netns: Option<NetnsId>,
    /// The device, where there is one.
    pub ifindex: Option<u32>,
    /// The skb.
    pub skb: SkbId,
    /// What happened.
    pub point: Point,
    /// Bytes of the outermost IP packet.
    pub packet_len: u32,
    /// Bytes of the flow's own IP packet, which tunnels do not change.
    pub inner_len: u32,
    /// `skb->len`.
    pub skb_len: u32,
    /// Bytes of payload in each of the segments that it is to be cut into, or 0.
    pub gso_size: u32,
    /// The outermost IP packet may not be fragmented.
    pub dont_fragment: bool,
    /// `skb->mark`.
    pub mark: u32,
    /// The TTL or hop limit of the flow's own IP header; for an ICMP error, of the one that it quotes.
    pub hop_limit: u8,
    /// The addresses here; for an ICMP error, those that it quotes.
    pub tuple: FiveTuple,
    /// What the packet says; for an ICMP error, what the one says that it quotes.
    pub message: Message,
    /// The ICMP error that this is, about `message` on its way from `tuple.src` to `tuple.dst`.
    pub icmp: Option<IcmpError>,
    /// The tunnel headers around it here, outermost first.
    pub tunnels: Vec<Tunnel>,
    /// The destination of the Ethernet frame around all of that, where there is one.
    pub dst_mac: Option<[u8; 6]>,
}

impl Sighting {
    /// The device, if both its parts are known.
    pub fn device(&self) -> Option<DeviceId> {
        Some(DeviceId {
            netns: self.netns?,
            ifindex: self.ifindex?,
        })
    }

    /// Whether it is to be cut into segments (GSO), or was put together from some (GRO).
    pub const fn is_gso(&self) -> bool {
        self.gso_size > 0
    }

    /// Bytes of the largest IP packet that this one travels as, tunnels around it included: a device's MTU is compared with
    /// this one, whatever the length of a packet that is still to be cut.
    pub const fn wire_len(&self) -> u32 {
        self.packet_len.saturating_sub(self.cut_away())
    }

    /// The same of the flow's own packet.
    pub const fn segment_len(&self) -> u32 {
        self.inner_len.saturating_sub(self.cut_away())
    }

    /// The payload that goes into other segments than the first.
    const fn cut_away(&self) -> u32 {
        let payload_len = match self.message {
            Message::Tcp(segment) => segment.payload_len,
            // Eight bytes are the UDP header.
            Message::Udp(datagram) => (datagram.udp_len as u32).saturating_sub(8),
            Message::Echo(_) => 0,
        };
        if self.is_gso() {
            payload_len.saturating_sub(self.gso_size)
        } else {
            0
        }
    }

    /// Sorts by time; what one CPU saw keeps its order.
    pub fn order(&self) -> (u64, u16, u32) {
        (self.time_ns, self.cpu, self.sequence)
    }

    /// The TCP segment: [`Segment::NONE`] for what is of another protocol.
    pub const fn segment(&self) -> Segment {
        match self.message {
            Message::Tcp(segment) => segment,
            Message::Udp(_) | Message::Echo(_) => Segment::NONE,
        }
    }
}

/// One message of a socket of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketSighting {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The CPU that saw it.
    pub cpu: u16,
    /// Orders what one CPU saw.
    pub sequence: u32,
    /// The socket's namespace.
    pub netns: Option<NetnsId>,
    /// Which hook.
    pub hook: SocketHook,
    /// The socket.
    pub socket: Socket,
}

impl SocketSighting {
    /// The addresses of what the socket sends.
    pub const fn tuple(&self) -> FiveTuple {
        FiveTuple {
            protocol: IpProto::Tcp as u8,
            src: SocketAddr::new(self.socket.local_addr, self.socket.local_port),
            dst: SocketAddr::new(self.socket.remote_addr, self.socket.remote_port),
        }
    }
}
