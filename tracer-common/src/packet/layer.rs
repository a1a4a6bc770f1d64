//! One IP header and the transport header behind it.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use network_types::ip::IpProto;

use super::Tunnel;

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

    /// Whether this is an ICMP error, which quotes the packet that caused it. A redirect quotes one too, but says nothing of
    /// its fate.
    ///
    /// The types are 3, 4, 11 and 12 (RFC 792) and, for ICMPv6, all below 128 (RFC 4443).
    pub const fn is_icmp_error(&self) -> bool {
        self.is_icmp()
            && if self.version == 4 {
                matches!(self.icmp_type, 3 | 4 | 11 | 12)
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
