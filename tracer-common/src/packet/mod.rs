//! The header parser that both halves run: from the first bytes of a frame to one [`Layer`] for every IP
//! header in it, through VLAN tags, IPv6 extension headers, VXLAN, Geneve and IP-in-IP.
//!
//! It owns the meaning of header bytes and nothing else: it neither reads kernel memory nor remembers a
//! packet. It is written so that the kernel's verifier accepts it: every read goes through a [`Reader`] that
//! answers `None` beyond the captured bytes, nothing can panic, nothing is recursive, and every loop is short.
//! What is hostile or cut short yields fewer fields, never wrong ones.

mod ip;
mod link;
mod options;
mod reader;
mod transport;
mod tunnel;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub use network_types::ip::IpProto;
pub use options::{TcpOptions, tcp_options};
pub use reader::{Reader, SCRATCH_BYTES, Scratch};
pub use tunnel::{TUNNEL_PORTS_MAX, Tunnel, TunnelPort, TunnelPorts};

use crate::event::{START_ETHERNET, START_IP};

/// The most IP headers that are followed: the innermost and two around it.
pub const LAYERS_MAX: usize = 3;

/// The most VLAN tags that are followed in one frame (802.1ad around 802.1Q).
pub const VLANS_MAX: usize = 2;

/// The FIN flag in [`Layer::tcp_flags`].
pub const TCP_FIN: u8 = 0x01;
/// The SYN flag in [`Layer::tcp_flags`].
pub const TCP_SYN: u8 = 0x02;
/// The RST flag in [`Layer::tcp_flags`].
pub const TCP_RST: u8 = 0x04;
/// The PSH flag in [`Layer::tcp_flags`].
pub const TCP_PSH: u8 = 0x08;
/// The ACK flag in [`Layer::tcp_flags`].
pub const TCP_ACK: u8 = 0x10;

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

/// The packet may not be fragmented: DF of IPv4, and every IPv6 packet.
pub const FLAG_DONT_FRAGMENT: u8 = 0x01;
/// The first of several fragments.
pub const FLAG_FIRST_FRAGMENT: u8 = 0x02;
/// A fragment that is not the first: it has no transport header, hence no ports.
pub const FLAG_LATER_FRAGMENT: u8 = 0x04;
/// The ports were read.
pub const FLAG_PORTS: u8 = 0x08;
/// The transport header was read completely: for TCP up to the urgent pointer, for UDP and ICMP all eight bytes.
pub const FLAG_TRANSPORT: u8 = 0x10;

/// One IP header and the transport header behind it. Integers are in host byte order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Layer {
    /// The source address in wire order; IPv4 in the first four bytes, the others zero.
    pub src: [u8; 16],
    /// The destination address, in the same form.
    pub dst: [u8; 16],
    /// The length of the IP packet, header included: the number that is compared with an MTU. For a packet
    /// that awaits segmentation it is the length of all segments together.
    pub packet_len: u32,
    /// The bytes behind the transport header, by the IP length; 0 where the transport header was not read.
    pub payload_len: u32,
    /// The TCP sequence number.
    pub seq: u32,
    /// The TCP acknowledgement number.
    pub ack: u32,
    /// The identification of IPv4 or of an IPv6 fragment header, else 0.
    pub ip_id: u32,
    /// Bytes 4 to 7 of an ICMP header; see [`Layer::echo_id`], [`Layer::echo_seq`] and [`Layer::next_hop_mtu`].
    pub icmp_rest: u32,
    /// The VNI of the tunnel that this layer carries, where `tunnel` has one.
    pub vni: u32,
    /// The TCP or UDP source port, valid with [`FLAG_PORTS`].
    pub src_port: u16,
    /// The TCP or UDP destination port, valid with [`FLAG_PORTS`].
    pub dst_port: u16,
    /// The TCP window, not scaled.
    pub window: u16,
    /// Where the IP header begins in the captured bytes.
    pub offset: u16,
    /// Where the transport header begins in the captured bytes (it may lie beyond their end).
    pub transport_offset: u16,
    /// 4 or 6.
    pub version: u8,
    /// The transport protocol: the IPv4 protocol, or the next header behind the IPv6 extension headers.
    pub protocol: u8,
    /// The TTL or hop limit.
    pub ttl: u8,
    /// The type of service or traffic class, DSCP and ECN together.
    pub tos: u8,
    /// `FLAG_*`.
    pub flags: u8,
    /// `TCP_*`, as on the wire.
    pub tcp_flags: u8,
    /// The ICMP or ICMPv6 type.
    pub icmp_type: u8,
    /// The ICMP or ICMPv6 code.
    pub icmp_code: u8,
    /// The tunnel whose payload is the next layer. It may be named although there is no next layer: the payload
    /// is then no IP (ARP, …) or was not captured.
    pub tunnel: Tunnel,
    /// Zero.
    pub reserved: u8,
}

impl Layer {
    /// A layer of which nothing was read.
    pub const EMPTY: Self = Self {
        src: [0; 16],
        dst: [0; 16],
        packet_len: 0,
        payload_len: 0,
        seq: 0,
        ack: 0,
        ip_id: 0,
        icmp_rest: 0,
        vni: 0,
        src_port: 0,
        dst_port: 0,
        window: 0,
        offset: 0,
        transport_offset: 0,
        version: 0,
        protocol: 0,
        ttl: 0,
        tos: 0,
        flags: 0,
        tcp_flags: 0,
        icmp_type: 0,
        icmp_code: 0,
        tunnel: Tunnel::None,
        reserved: 0,
    };

    /// The source address.
    pub fn src_addr(&self) -> IpAddr {
        address(self.version, self.src)
    }

    /// The destination address.
    pub fn dst_addr(&self) -> IpAddr {
        address(self.version, self.dst)
    }

    /// Whether `flag`, one of `FLAG_*`, is set.
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether the transport protocol is TCP and its header was read.
    pub const fn is_tcp(&self) -> bool {
        self.protocol == IpProto::Tcp as u8 && self.has(FLAG_TRANSPORT)
    }

    /// Whether the transport protocol is UDP and its header was read.
    pub const fn is_udp(&self) -> bool {
        self.protocol == IpProto::Udp as u8 && self.has(FLAG_TRANSPORT)
    }

    /// Whether the transport protocol is the ICMP of its IP version and its header was read.
    pub const fn is_icmp(&self) -> bool {
        let protocol = if self.version == 4 {
            IpProto::Icmp
        } else {
            IpProto::Ipv6Icmp
        };
        self.protocol == protocol as u8 && self.has(FLAG_TRANSPORT)
    }

    /// Whether this is an ICMP error, which quotes the packet that caused it.
    ///
    /// The types are those of `icmp_err_handling` (RFC 792: 3, 4, 5, 11, 12) and, for ICMPv6, all below 128
    /// (RFC 4443).
    pub const fn is_icmp_error(&self) -> bool {
        self.is_icmp()
            && if self.version == 4 {
                matches!(self.icmp_type, 3 | 4 | 5 | 11 | 12)
            } else {
                self.icmp_type < 128
            }
    }

    /// Whether this is an ICMP echo request.
    pub const fn is_echo_request(&self) -> bool {
        self.is_icmp() && self.icmp_type == if self.version == 4 { 8 } else { 128 }
    }

    /// Whether this is an ICMP echo reply.
    pub const fn is_echo_reply(&self) -> bool {
        self.is_icmp() && self.icmp_type == if self.version == 4 { 0 } else { 129 }
    }

    /// The identifier of an ICMP echo; meaningless in other ICMP messages.
    pub const fn echo_id(&self) -> u16 {
        (self.icmp_rest >> 16) as u16
    }

    /// The sequence number of an ICMP echo; meaningless in other ICMP messages.
    pub const fn echo_seq(&self) -> u16 {
        self.icmp_rest as u16
    }

    /// The MTU that an ICMP "fragmentation needed" (RFC 1191) or ICMPv6 "packet too big" (RFC 4443) tells the
    /// sender; `None` in any other packet.
    pub const fn next_hop_mtu(&self) -> Option<u32> {
        if !self.is_icmp() {
            None
        } else if self.version == 4 && self.icmp_type == 3 && self.icmp_code == 4 {
            Some(self.icmp_rest & 0xffff)
        } else if self.version == 6 && self.icmp_type == 2 {
            Some(self.icmp_rest)
        } else {
            None
        }
    }
}

fn address(version: u8, bytes: [u8; 16]) -> IpAddr {
    if version == 4 {
        let [a, b, c, d, ..] = bytes;
        IpAddr::V4(Ipv4Addr::new(a, b, c, d))
    } else {
        IpAddr::V6(Ipv6Addr::from(bytes))
    }
}

/// What was read of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Packet {
    /// The IP headers, outermost first; only the first `count` are valid.
    pub layers: [Layer; LAYERS_MAX],
    /// What an ICMP error quotes, valid where `has_quoted`. Its transport header is often cut after eight bytes.
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
        quote(reader, out);
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
        layer.begin(out.next_offset, out.next);
        let status = ip::parse(reader, len_bytes, layer);
        if layer.version == 0 {
            return status;
        }
        out.count = depth as u8 + 1;
        if !matches!(status, Status::Complete) {
            return status;
        }
        let Some(next) = tunnel::parse(reader, ports, layer) else {
            return Status::Truncated;
        };
        (out.next, out.next_offset) = next;
        if out.next == Next::Nothing {
            break;
        }
    }
    Status::Complete
}

/// Reads what an ICMP error quotes, where the innermost layer is one.
#[inline(always)]
fn quote<R: Reader>(reader: &R, out: &mut Packet) {
    let Some(error) = out.inner().filter(|layer| layer.is_icmp_error()) else {
        return;
    };
    let at = error.transport_offset + transport::ICMP_LEN as u16;
    let next = if error.version == 4 {
        Next::Ipv4
    } else {
        Next::Ipv6
    };
    out.quoted.begin(at, next);
    // A quote that is cut short is the rule, and no fault of the packet.
    ip::parse(reader, 0, &mut out.quoted);
    out.has_quoted = out.quoted.version != 0;
}

/// Makes the compiler read the bytes and `place` again instead of remembering in registers what it read or wrote.
///
/// The verifier forgets what it knows of a value that went through a map, so that all paths that meet here are one
/// state to it: this is what keeps the parser at a few thousand verified instructions.
#[inline(always)]
fn reload<'a, R, T>(reader: &'a R, place: &'a mut T) -> (&'a R, &'a mut T) {
    (core::hint::black_box(reader), core::hint::black_box(place))
}

impl Packet {
    /// A hash of the flow's five-tuple, the same for both directions: protocol, the two ends as an unordered pair,
    /// and the identifier of an ICMP echo. `seed` makes it unpredictable. 0 where there is no IP header.
    ///
    /// Flows may share a hash: it may decide what is a fair share, never what a packet belongs to.
    #[inline(always)]
    pub fn flow_hash(&self, seed: u64) -> u64 {
        let Some(layer) = self.flow() else {
            return 0;
        };
        let ends = end_hash(&layer.src, layer.src_port, seed).wrapping_add(end_hash(
            &layer.dst,
            layer.dst_port,
            seed,
        ));
        let echo = if layer.is_echo_request() || layer.is_echo_reply() {
            layer.echo_id()
        } else {
            0
        };
        mix(ends ^ u64::from(layer.protocol) << 16 ^ u64::from(echo))
    }
}

#[inline(always)]
fn end_hash(address: &[u8; 16], port: u16, seed: u64) -> u64 {
    let [high, low] = halves(address);
    mix(mix(high ^ seed) ^ low.wrapping_add(u64::from(port)))
}

/// An address as two words, since BPF has none of 128 bits.
#[inline(always)]
pub(crate) fn halves(address: &[u8; 16]) -> [u64; 2] {
    let (high, low) = address.split_at(8);
    [high, low].map(|half| {
        half.first_chunk()
            .map_or(0, |half| u64::from_ne_bytes(*half))
    })
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit changes half of the output bits.
#[inline(always)]
const fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
