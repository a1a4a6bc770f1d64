//! The header parser that both halves run: from the first bytes of a frame to one [`Layer`] for every IP
//! header in it, through VLAN tags, IPv6 extension headers, VXLAN, Geneve and IP-in-IP.
//!
//! It owns the meaning of header bytes and nothing else: it neither reads kernel memory nor remembers a
//! packet. It is written so that the kernel's verifier accepts it: every read goes through a [`Reader`] that
//! answers `None` beyond the captured bytes, nothing can panic, nothing is recursive, and every loop is short.
//! What is hostile or cut short yields fewer fields, never wrong ones.

mod dns;
mod extent;
mod hash;
mod ip;
mod layer;
mod link;
mod options;
mod reader;
mod transport;
mod tunnel;

pub use dns::{DnsHeader, dns_header, is_dns};
pub use hash::{flow_echo_id, flow_hash, halves};
pub use layer::{
    FLAG_DONT_FRAGMENT, FLAG_FIRST_FRAGMENT, FLAG_LATER_FRAGMENT, FLAG_PORTS, FLAG_TRANSPORT,
    Layer, TCP_ACK, TCP_FIN, TCP_PSH, TCP_RST, TCP_SYN,
};
pub use network_types::ip::IpProto;
pub use options::{TcpOptions, tcp_options};
pub use reader::{Reader, SCRATCH_BYTES, Scratch};
pub use tunnel::{TUNNEL_PORTS_MAX, Tunnel, TunnelPort, TunnelPorts};

use crate::event::{START_ETHERNET, START_IP};

/// The most IP headers that are followed: the innermost and two around it.
pub const LAYERS_MAX: usize = 3;

/// The most VLAN tags that are followed in one frame (802.1ad around 802.1Q).
pub const VLANS_MAX: usize = 2;

/// What the captured bytes begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Start {
    /// An Ethernet header.
    Ethernet = START_ETHERNET,
    /// An IPv4 or IPv6 header.
    Ip = START_IP,
}

impl Start {
    /// The start with this number in a record, or `None` for a number that no hook writes.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            START_ETHERNET => Some(Self::Ethernet),
            START_IP => Some(Self::Ip),
            _ => None,
        }
    }
}

/// What is known of a frame beside its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What the bytes begin with.
    pub start: Start,
    /// The length of the whole frame from its first captured byte on (`skb->len`), of which the bytes are a
    /// prefix. It stands in for an IP length of zero, which is how the kernel writes a packet beyond 64 KiB
    /// (BIG TCP).
    pub len_bytes: u32,
}

/// How far the parser came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Every header that this parser knows was read.
    Complete = 0,
    /// The outermost frame carries no IP (ARP, LLDP, …); there is no layer.
    NotIp = 1,
    /// The captured bytes end inside a header; the layers before it are complete.
    Truncated = 2,
    /// A header contradicts itself (an IPv4 header shorter than 20 bytes, …); the layers before it are complete.
    Malformed = 3,
    /// More VLAN tags, IPv6 extension headers or tunnels are nested than this parser follows; the layers that
    /// were read are right, but the innermost of them is not the packet's innermost.
    TooDeep = 4,
}

/// What was read of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Packet {
    /// The IP headers, outermost first; only the first `count` are valid.
    pub layers: [Layer; LAYERS_MAX],
    /// What an ICMP error quotes, valid where `has_quoted`. Its transport header is often cut after eight bytes. A tunnel
    /// that it carries is named, but not entered.
    pub quoted: Layer,
    /// The EtherType behind the VLAN tags of the innermost link header, or that of the IP version where the
    /// bytes begin with an IP header.
    pub ethertype: u16,
    /// The VLAN tags (TCI) in the outermost frame, outermost first; only the first `vlan_count` are valid.
    pub vlan_tci: [u16; VLANS_MAX],
    /// How many VLAN tags the outermost frame has.
    pub vlan_count: u8,
    /// How many layers were read.
    pub count: u8,
    /// Whether the innermost layer is an ICMP error whose quoted IP header was read.
    pub has_quoted: bool,
    /// How far the parser came.
    pub status: Status,
    /// What the parser reads next; of no meaning afterwards.
    next: Next,
    /// Where that begins.
    next_offset: u16,
}

impl Packet {
    /// A packet of which nothing was read.
    pub const EMPTY: Self = Self {
        layers: [Layer::EMPTY; LAYERS_MAX],
        quoted: Layer::EMPTY,
        ethertype: 0,
        vlan_tci: [0; VLANS_MAX],
        vlan_count: 0,
        count: 0,
        has_quoted: false,
        status: Status::NotIp,
        next: Next::Nothing,
        next_offset: 0,
    };

    /// Parses one frame into a new packet. The kernel half, whose stack is too small for that, uses [`parse`].
    pub fn parse(bytes: &[u8], frame: Frame, ports: &TunnelPorts) -> Self {
        let mut packet = Self::EMPTY;
        parse(&bytes, frame, ports, &mut packet);
        packet
    }

    /// The innermost IP header, which is the flow's own.
    pub fn inner(&self) -> Option<&Layer> {
        self.layers.get(usize::from(self.count).wrapping_sub(1))
    }

    /// The outermost IP header, which the underlay routes by.
    pub fn outer(&self) -> Option<&Layer> {
        if self.count == 0 {
            None
        } else {
            self.layers.first()
        }
    }

    /// What an ICMP error quotes.
    pub fn quoted(&self) -> Option<&Layer> {
        if self.has_quoted {
            Some(&self.quoted)
        } else {
            None
        }
    }

    /// The header of the flow that this packet belongs to: what an ICMP error quotes, else the innermost.
    pub fn flow(&self) -> Option<&Layer> {
        if self.has_quoted {
            Some(&self.quoted)
        } else {
            self.inner()
        }
    }

    /// The layers that were read, outermost first.
    pub fn layers(&self) -> &[Layer] {
        self.layers
            .get(..usize::from(self.count))
            .unwrap_or(&self.layers)
    }
}

/// The header that comes next in the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Next {
    /// None that this parser follows.
    Nothing = 0,
    /// An Ethernet header.
    Ethernet = 1,
    /// An IP header whose version only the header itself tells.
    Ip = 2,
    /// An IPv4 header.
    Ipv4 = 4,
    /// An IPv6 header.
    Ipv6 = 6,
}

/// Parses one frame into `out`, whose former content does not matter, and says how far it came.
///
/// The layers are those up to the first header that could not be read.
#[inline(always)]
pub fn parse<R: Reader>(reader: &R, frame: Frame, ports: &TunnelPorts, out: &mut Packet) -> Status {
    out.count = 0;
    out.vlan_count = 0;
    out.ethertype = 0;
    out.has_quoted = false;
    out.next_offset = 0;
    out.next = match frame.start {
        Start::Ethernet => Next::Ethernet,
        Start::Ip => Next::Ip,
    };
    let mut status = walk(reader, frame.len_bytes, ports, out);
    let (reader, out) = reload(reader, out);
    if matches!(status, Status::Complete) && out.next == Next::Nothing {
        quote(reader, ports, out);
    } else if matches!(status, Status::Complete) {
        status = Status::TooDeep;
    }
    out.status = status;
    status
}

/// Follows the headers inwards; `out.next` is [`Next::Nothing`] if the innermost was reached.
#[inline(always)]
fn walk<R: Reader>(reader: &R, len_bytes: u32, ports: &TunnelPorts, out: &mut Packet) -> Status {
    for depth in 0..LAYERS_MAX {
        let (reader, out) = reload(reader, &mut *out);
        if out.next == Next::Ethernet {
            let status = link::parse(reader, depth == 0, out);
            if !matches!(status, Status::Complete) {
                return status;
            }
        }
        let (reader, out) = reload(reader, out);
        if out.next == Next::Nothing {
            return if depth == 0 {
                Status::NotIp
            } else {
                Status::Complete
            };
        }
        let Some(layer) = out.layers.get_mut(depth) else {
            return Status::TooDeep;
        };
        let status = ip::parse(reader, len_bytes, out.next_offset, out.next, layer);
        if layer.version == 0 {
            return status;
        }
        out.count = depth as u8 + 1;
        if !matches!(status, Status::Complete) {
            return status;
        }
        let at = layer.transport_offset;
        let Some(next) = tunnel::parse(reader, ports, layer, at, &mut out.next_offset) else {
            return Status::Truncated;
        };
        out.next = next;
        if next == Next::Nothing {
            break;
        }
    }
    Status::Complete
}

/// Reads what an ICMP error quotes, where the innermost layer is one.
#[inline(always)]
fn quote<R: Reader>(reader: &R, ports: &TunnelPorts, out: &mut Packet) {
    let Some(error) = out.inner().filter(|layer| layer.is_icmp_error()) else {
        return;
    };
    let next = if error.version == 4 {
        Next::Ipv4
    } else {
        Next::Ipv6
    };
    out.next_offset = error.transport_offset + transport::ICMP_LEN as u16;
    out.next = next;
    let (reader, out) = reload(reader, out);
    // A quote that is cut short is the rule, and no fault of the packet.
    let status = ip::parse(reader, 0, out.next_offset, out.next, &mut out.quoted);
    out.has_quoted = out.quoted.version != 0;
    let (reader, out) = reload(reader, out);
    if matches!(status, Status::Complete) {
        let at = out.quoted.transport_offset;
        tunnel::parse(reader, ports, &mut out.quoted, at, &mut out.next_offset);
    }
}

/// Makes the compiler read the bytes and `place` again instead of remembering in registers what it read or wrote.
///
/// The verifier forgets what it knows of a value that went through a map, so that all paths that meet here are one
/// state to it: this is what keeps the parser at a few thousand verified instructions.
#[inline(always)]
fn reload<'a, R, T>(reader: &'a R, place: &'a mut T) -> (&'a R, &'a mut T) {
    (core::hint::black_box(reader), core::hint::black_box(place))
}
