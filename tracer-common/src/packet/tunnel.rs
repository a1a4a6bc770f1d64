//! VXLAN, Geneve and WireGuard at the UDP ports that devices declare, and IP in IP.

use network_types::{
    geneve::GeneveHdr,
    ip::IpProto,
    udp::UdpHdr,
    vxlan::{VXLAN_I_FLAG_MASK, VxlanHdr},
};

use super::{
    FLAG_LATER_FRAGMENT, Layer, Next, Reader,
    link::{IPV4, IPV6},
};

/// The most UDP ports that can be declared.
pub const TUNNEL_PORTS_MAX: usize = 8;

/// Geneve's protocol type of an Ethernet frame ("transparent Ethernet bridging", RFC 8926).
const TRANSPARENT_ETHERNET: u16 = 0x6558;

const IPV4_IN_IP: u8 = IpProto::Ipv4 as u8;
const IPV6_IN_IP: u8 = IpProto::Ipv6 as u8;

/// The tunnel that a layer carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::IntoBytes, zerocopy::Immutable))]
#[repr(u8)]
pub enum Tunnel {
    /// None that this parser reads.
    None = 0,
    /// VXLAN (RFC 7348).
    Vxlan = 1,
    /// Geneve (RFC 8926).
    Geneve = 2,
    /// An IPv4 or IPv6 packet directly in an IP packet (RFC 2003, RFC 4213); it has no VNI.
    IpInIp = 3,
    /// A datagram from or to the port of a WireGuard device, whatever is in it: that is encrypted.
    Wireguard = 4,
}

impl Tunnel {
    /// Whether this kind of tunnel has a VNI.
    pub const fn has_vni(self) -> bool {
        matches!(self, Self::Vxlan | Self::Geneve)
    }
}

/// A UDP port to which a tunnel device listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::IntoBytes, zerocopy::Immutable))]
#[repr(C)]
pub struct TunnelPort {
    /// The UDP destination port in host order; 0 in an unused entry.
    pub port: u16,
    /// What a datagram to this port carries.
    pub tunnel: Tunnel,
    /// Zero.
    pub reserved: u8,
}

/// The UDP ports that carry tunnels: only what a device declares is read as a tunnel, since a port number alone
/// proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::IntoBytes, zerocopy::Immutable))]
#[repr(C)]
pub struct TunnelPorts {
    entries: [TunnelPort; TUNNEL_PORTS_MAX],
}

impl TunnelPorts {
    /// No tunnels over UDP.
    pub const NONE: Self = Self {
        entries: [TunnelPort {
            port: 0,
            tunnel: Tunnel::None,
            reserved: 0,
        }; TUNNEL_PORTS_MAX],
    };

    /// Declares that `port` carries `tunnel`, replacing what it was declared as; `false` where the table is full
    /// or the port is 0.
    pub fn declare(&mut self, port: u16, tunnel: Tunnel) -> bool {
        if port == 0 {
            return false;
        }
        for entry in &mut self.entries {
            if entry.port == port || entry.port == 0 {
                *entry = TunnelPort {
                    port,
                    tunnel,
                    reserved: 0,
                };
                return true;
            }
        }
        false
    }

    /// What a datagram to `port` carries.
    #[inline(always)]
    pub fn lookup(&self, port: u16) -> Tunnel {
        for entry in &self.entries {
            if entry.port == 0 {
                break;
            }
            if entry.port == port {
                return entry.tunnel;
            }
        }
        Tunnel::None
    }
}

/// Reads the tunnel header behind a complete layer, whose transport header is at `at`, and names the tunnel in it.
/// Says what it carries, and puts into `next_offset` where; `None` if the captured bytes end in the tunnel header.
///
/// Not inlined, since the table of ports would be kept in registers for every packet, tunnelled or not. For the
/// number of arguments see [`super::ip::parse`].
#[inline(never)]
pub(super) fn parse<R: Reader>(
    reader: &R,
    ports: &TunnelPorts,
    layer: &mut Layer,
    at: u16,
    next_offset: &mut u16,
) -> Option<Next> {
    *next_offset = at;
    if layer.has(FLAG_LATER_FRAGMENT) {
        return Some(Next::Nothing);
    }
    if layer.protocol == IPV4_IN_IP || layer.protocol == IPV6_IN_IP {
        layer.tunnel = Tunnel::IpInIp;
        return Some(if layer.protocol == IPV4_IN_IP {
            Next::Ipv4
        } else {
            Next::Ipv6
        });
    }
    // VXLAN and Geneve headers have the same length.
    if !layer.is_udp() || layer.payload_len < VxlanHdr::LEN as u32 {
        return Some(Next::Nothing);
    }
    let tunnel = ports.lookup(layer.dst_port);
    if !tunnel.has_vni() {
        // A WireGuard device sends from the port that it listens on; its peer may listen on another. Either may be a port
        // that others use elsewhere (53, 443), so the message must be one of WireGuard's.
        if (matches!(tunnel, Tunnel::Wireguard)
            || matches!(ports.lookup(layer.src_port), Tunnel::Wireguard))
            && matches!(
                reader.bytes(usize::from(at) + UdpHdr::LEN),
                Some([1..=4, 0, 0, 0])
            )
        {
            layer.tunnel = Tunnel::Wireguard;
        }
        return Some(Next::Nothing);
    }
    let at = usize::from(at) + UdpHdr::LEN;
    let header = reader.bytes::<{ VxlanHdr::LEN }>(at)?;
    let mut end = at + VxlanHdr::LEN;
    let next = if tunnel == Tunnel::Vxlan {
        // `vxlan_rcv` drops a datagram without a valid VNI.
        if header[0] & VXLAN_I_FLAG_MASK == 0 {
            return Some(Next::Nothing);
        }
        Next::Ethernet
    } else {
        // `geneve_udp_encap_recv` drops any version but 0.
        if header[0] >> 6 != 0 {
            return Some(Next::Nothing);
        }
        end += usize::from(header[0] & 0x3f) * 4;
        match u16::from_be_bytes([header[2], header[3]]) {
            TRANSPARENT_ETHERNET => Next::Ethernet,
            IPV4 => Next::Ipv4,
            IPV6 => Next::Ipv6,
            _ => Next::Nothing,
        }
    };
    layer.tunnel = tunnel;
    layer.vni = u32::from_be_bytes([0, header[4], header[5], header[6]]);
    *next_offset = end as u16;
    Some(next)
}

const _: () = assert!(VxlanHdr::LEN == GeneveHdr::LEN);
