//! How many bytes each kind of tunnel puts around an IP packet: the length of the outer IP packet less that of the
//! inner one. Only arithmetic.

use std::net::IpAddr;

use super::model::{Device, Encap};

/// An IPv4 header without options, and an IPv6 header.
const IPV4: u32 = 20;
const IPV6: u32 = 40;
const UDP: u32 = 8;
const ETHERNET: u32 = 14;
/// VXLAN's header, and Geneve's without options.
const VXLAN: u32 = 8;
/// Type, receiver and counter, and Poly1305's tag (`struct message_data`, `noise_encrypted_len()` in
/// drivers/net/wireguard/messages.h). Its padding never makes a packet larger than the MTU does.
const WIREGUARD: u32 = 16 + 16;
/// An IPv6 destination options header with the tunnel encapsulation limit (RFC 2473).
const ENCAP_LIMIT: u32 = 8;
/// `GRE_HEADER_SECTION` (include/net/gre.h).
const GRE_SECTION: u32 = 4;
/// SecTAG with SCI (`MACSEC_TAG_LEN` and `MACSEC_SCI_LEN`).
const MACSEC: u32 = 8 + 8;
/// GUE's header without private data.
const GUE: u32 = 4;

/// What one outer IP version costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outer {
    /// There is no outer IP header, or the tunnel's kind has only one.
    Fixed,
    V4,
    V6,
    /// Not known: the smaller of the two is certain.
    Unknown,
}

impl Outer {
    pub(super) fn of(remote: Option<IpAddr>) -> Self {
        match remote {
            Some(IpAddr::V4(_)) => Self::V4,
            Some(IpAddr::V6(_)) => Self::V6,
            None => Self::Unknown,
        }
    }

    const fn header(self) -> u32 {
        match self {
            Self::V6 => IPV6,
            _ => IPV4,
        }
    }
}

/// The bytes around each packet, or `None` for a device that is no tunnel or whose overhead is not ours to know (a tun
/// device belongs to a process).
pub(super) fn overhead(device: &Device, outer: Outer) -> Option<u32> {
    let none = Encap::default();
    let encap = device.encap.as_ref().unwrap_or(&none);
    let ethernet = if encap.without_ethernet { 0 } else { ETHERNET };
    let udp_around = match encap.udp_kind {
        1 => UDP,
        2 => UDP + GUE,
        _ => 0,
    };
    let limit = if encap.encap_limit { ENCAP_LIMIT } else { 0 };
    Some(match device.kind.as_str() {
        "vxlan" | "geneve" => outer.header() + UDP + VXLAN + ethernet,
        "wireguard" => outer.header() + UDP + WIREGUARD,
        "ipip" | "sit" => IPV4 + udp_around,
        "ip6tnl" => IPV6 + limit + udp_around,
        "gre" => IPV4 + gre(encap) + udp_around,
        "gretap" => IPV4 + gre(encap) + udp_around + ETHERNET,
        "ip6gre" => IPV6 + limit + gre(encap) + udp_around,
        "ip6gretap" => IPV6 + limit + gre(encap) + udp_around + ETHERNET,
        "erspan" => IPV4 + erspan(encap) + ETHERNET,
        "ip6erspan" => IPV6 + limit + erspan(encap) + ETHERNET,
        "macsec" => MACSEC + u32::from(encap.icv_bytes),
        _ => return None,
    })
}

/// The outer IP version that a kind is bound to.
pub(super) fn outer_of_kind(kind: &str) -> Option<Outer> {
    Some(match kind {
        "ipip" | "sit" | "gre" | "gretap" | "erspan" => Outer::V4,
        "ip6tnl" | "ip6gre" | "ip6gretap" | "ip6erspan" => Outer::V6,
        "macsec" => Outer::Fixed,
        _ => return None,
    })
}

/// GRE's header with the sections that are sent.
fn gre(encap: &Encap) -> u32 {
    let sections = (encap.gre_flags & 0xb000).count_ones();
    GRE_SECTION * (1 + sections)
}

/// ERSPAN: GRE with a sequence number, and its own header of version 1 or 2 (`erspan_hdr_len()`), for version 0 none.
fn erspan(encap: &Encap) -> u32 {
    match encap.erspan_version {
        0 => GRE_SECTION,
        1 => 8 + 8,
        _ => 8 + 12,
    }
}

/// Whether a device wraps packets into others.
pub(super) fn is_tunnel(device: &Device) -> bool {
    overhead(device, Outer::Unknown).is_some() || is_userspace_tunnel(device)
}

/// A tun device is the kernel's end of a process that wraps packets: Tailscale, `wireguard-go`, OpenVPN.
pub(super) fn is_userspace_tunnel(device: &Device) -> bool {
    device.kind == "tun"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mtu::tests::device;

    #[track_caller]
    fn check(kind: &str, encap: Encap, outer: Outer, bytes: u32) {
        let mut tunnel = device(1, 2, "t0", kind, 1500);
        tunnel.encap = Some(encap);
        assert_eq!(overhead(&tunnel, outer), Some(bytes), "{kind} {outer:?}");
    }

    #[test]
    fn every_kind_costs_what_its_headers_are_long() {
        let plain = Encap::default;
        check("vxlan", plain(), Outer::V4, 50);
        check("vxlan", plain(), Outer::V6, 70);
        check("geneve", plain(), Outer::V4, 50);
        check("geneve", plain(), Outer::V6, 70);
        check("wireguard", plain(), Outer::V4, 60);
        check("wireguard", plain(), Outer::V6, 80);
        check("ipip", plain(), Outer::V4, 20);
        check("sit", plain(), Outer::V4, 20);
        check("ip6tnl", plain(), Outer::V6, 40);
        check("gre", plain(), Outer::V4, 24);
        check("gretap", plain(), Outer::V4, 38);
        check("ip6gre", plain(), Outer::V6, 44);
        check("ip6gretap", plain(), Outer::V6, 58);
        let gpe = Encap {
            without_ethernet: true,
            ..plain()
        };
        check("vxlan", gpe.clone(), Outer::V4, 36);
        check("geneve", gpe, Outer::V6, 56);
    }

    #[test]
    fn optional_headers_count() {
        let gre = |gre_flags| Encap {
            gre_flags,
            ..Encap::default()
        };
        check("gre", gre(0x2000), Outer::V4, 28);
        check("gre", gre(0x8000), Outer::V4, 28);
        check("gre", gre(0xb000), Outer::V4, 36);
        check("gretap", gre(0x1000), Outer::V4, 42);
        let limited = Encap {
            encap_limit: true,
            ..Encap::default()
        };
        check("ip6tnl", limited.clone(), Outer::V6, 48);
        check("ip6gre", limited, Outer::V6, 52);
        for (udp_kind, bytes) in [(1, 28), (2, 32)] {
            let encap = Encap {
                udp_kind,
                ..Encap::default()
            };
            check("ipip", encap, Outer::V4, bytes);
        }
        for (erspan_version, bytes) in [(0, 38), (1, 50), (2, 54)] {
            let encap = Encap {
                erspan_version,
                ..Encap::default()
            };
            check("erspan", encap, Outer::V4, bytes);
        }
        let encap = Encap {
            icv_bytes: 16,
            ..Encap::default()
        };
        check("macsec", encap, Outer::Fixed, 32);
    }

    #[test]
    fn what_is_no_tunnel_costs_nothing() {
        for kind in ["veth", "bridge", "physical", "vlan", "macvlan", "bond"] {
            assert_eq!(overhead(&device(1, 2, "d", kind, 1500), Outer::V4), None);
        }
        assert_eq!(overhead(&device(1, 2, "t", "tun", 1500), Outer::V4), None);
    }
}
