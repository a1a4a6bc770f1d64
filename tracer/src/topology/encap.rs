//! What the link attributes of a tunnel device say about the headers that it puts around each packet. It does no I/O.

use std::net::IpAddr;

use crate::mtu::model::Encap;

use super::links::{attributes, ip, number};

/// `IFLA_VXLAN_*`, `IFLA_GENEVE_*`, `IFLA_IPTUN_*`, `IFLA_GRE_*` (include/uapi/linux/if_link.h and if_tunnel.h): the number
/// of each attribute that is read; 0 for one that the kind does not have.
struct Numbers {
    local: [u16; 2],
    remote: [u16; 2],
    external: u16,
    without_ethernet: u16,
    /// `df` of VXLAN and Geneve, where 1 is set and 2 is inherit.
    df: u16,
    /// `pmtudisc` of IP tunnels, where 1 is on.
    pmtudisc: u16,
    gre_flags: u16,
    erspan_version: u16,
    udp_kind: u16,
    encap_limit: u16,
    /// `IFLA_IPTUN_FLAGS`, which may say that there is no limit after all.
    flags: u16,
}

const NONE: Numbers = Numbers {
    local: [0; 2],
    remote: [0; 2],
    external: 0,
    without_ethernet: 0,
    df: 0,
    pmtudisc: 0,
    gre_flags: 0,
    erspan_version: 0,
    udp_kind: 0,
    encap_limit: 0,
    flags: 0,
};

const VXLAN: Numbers = Numbers {
    local: [4, 17],
    remote: [2, 16],
    external: 25,
    without_ethernet: 27,
    df: 29,
    ..NONE
};

const GENEVE: Numbers = Numbers {
    remote: [2, 7],
    external: 6,
    without_ethernet: 14,
    df: 13,
    ..NONE
};

const IP_TUNNEL: Numbers = Numbers {
    local: [2, 2],
    remote: [3, 3],
    external: 19,
    pmtudisc: 10,
    udp_kind: 15,
    encap_limit: 6,
    flags: 8,
    ..NONE
};

const GRE: Numbers = Numbers {
    local: [6, 6],
    remote: [7, 7],
    external: 18,
    pmtudisc: 10,
    gre_flags: 3,
    erspan_version: 22,
    udp_kind: 14,
    encap_limit: 11,
    flags: 13,
    ..NONE
};

/// `IFLA_XFRM_IF_ID`
const XFRM_IF_ID: u16 = 2;

/// `IFLA_MACSEC_ICV_LEN`
const MACSEC_ICV_LEN: u16 = 3;

/// `IP6_TNL_F_IGN_ENCAP_LIMIT` (include/uapi/linux/ip6_tunnel.h)
const IGNORE_ENCAP_LIMIT: u32 = 1;

/// Reads `IFLA_INFO_DATA`; `None` for a device that is no tunnel.
pub(super) fn parse(kind: &str, data: &[u8]) -> Option<Encap> {
    let numbers = match kind {
        "vxlan" => VXLAN,
        "geneve" => GENEVE,
        "ipip" | "sit" | "ip6tnl" => IP_TUNNEL,
        "gre" | "gretap" | "ip6gre" | "ip6gretap" | "erspan" | "ip6erspan" => GRE,
        "macsec" | "xfrm" => NONE,
        _ => return None,
    };
    let mut encap = Encap::default();
    let mut limit = 0;
    let mut flags = 0;
    for attribute in attributes(data) {
        let (number, value) = (attribute.kind(), attribute.value());
        if numbers.local.contains(&number) {
            encap.local = address(value).or(encap.local);
        } else if numbers.remote.contains(&number) {
            encap.remotes.extend(address(value));
        } else if number == numbers.external {
            // A flag of Geneve and IP tunnels, a number of VXLAN.
            encap.external = value.first().is_none_or(|on| *on != 0);
        } else if number == numbers.without_ethernet {
            encap.without_ethernet = true;
        } else if number == numbers.df {
            encap.dont_fragment |= value.first() == Some(&1);
        } else if number == numbers.pmtudisc {
            encap.dont_fragment = value.first() == Some(&1);
        } else if number == numbers.gre_flags {
            encap.gre_flags = value.try_into().map_or(0, u16::from_be_bytes);
        } else if number == numbers.erspan_version {
            encap.erspan_version = value.first().copied().unwrap_or(0);
        } else if number == numbers.udp_kind {
            encap.udp_kind = value.try_into().map_or(0, u16::from_ne_bytes);
        } else if number == numbers.encap_limit {
            limit = value.first().copied().unwrap_or(0);
        } else if number == numbers.flags {
            flags = value.try_into().map_or(0, u32::from_ne_bytes);
        } else if kind == "xfrm" && number == XFRM_IF_ID {
            encap.if_id = value.try_into().ok().map(u32::from_ne_bytes);
        } else if kind == "macsec" && number == MACSEC_ICV_LEN {
            encap.icv_bytes = value.first().copied().unwrap_or(0);
        }
    }
    // IPv6's tunnels write the option unless they are told not to; IPv4's ignore both numbers.
    let is_ipv6 = kind.starts_with("ip6");
    encap.encap_limit = is_ipv6 && limit != 0 && flags & IGNORE_ENCAP_LIMIT == 0;
    // Of the numbers of an IPv6 tunnel that no attribute tells, one is certain: nobody fragments it on the way.
    encap.dont_fragment |= is_ipv6;
    Some(encap)
}

/// Where a forwarding entry sends a VXLAN's packets (`RTM_NEWNEIGH` of `AF_BRIDGE`): the ifindex, and the outer destination.
pub(super) fn forwarding_entry(payload: &[u8]) -> Option<(u32, IpAddr)> {
    // struct ndmsg: family, padding (three bytes), ifindex, state, flags, type.
    let ifindex = number(payload.get(4..8)?)?;
    let dst = attributes(payload.get(12..)?).find(|attribute| attribute.kind() == libc::NDA_DST)?;
    Some((ifindex, address(dst.value())?))
}

/// An address of either version, unless it stands for none.
fn address(value: &[u8]) -> Option<IpAddr> {
    let family = match value.len() {
        4 => libc::AF_INET,
        16 => libc::AF_INET6,
        _ => return None,
    };
    ip(u8::try_from(family).ok()?, value).filter(|addr| !addr.is_unspecified())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute(number: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(4 + value.len()).expect("a short value");
        let mut bytes = len.to_ne_bytes().to_vec();
        bytes.extend(number.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn parsed(kind: &str, list: &[(u16, &[u8])]) -> Encap {
        let data: Vec<u8> = list
            .iter()
            .flat_map(|(number, value)| attribute(*number, value))
            .collect();
        parse(kind, &data).expect("a tunnel")
    }

    #[test]
    fn a_vxlan_tells_its_ends_and_what_it_leaves_out() {
        let encap = parsed(
            "vxlan",
            &[
                (4, &[10, 0, 0, 1]),
                (2, &[10, 0, 0, 2]),
                (25, &[0]),
                (27, &[]),
                (29, &[1]),
            ],
        );
        assert_eq!(encap.local, Some([10, 0, 0, 1].into()));
        assert_eq!(encap.remotes, [IpAddr::from([10, 0, 0, 2])]);
        assert!(encap.without_ethernet && encap.dont_fragment && !encap.external);
        assert!(parsed("vxlan", &[(25, &[1])]).external);
    }

    #[test]
    fn a_geneve_that_is_external_has_no_remote() {
        let encap = parsed("geneve", &[(6, &[]), (2, &[0; 4]), (7, &[0; 16])]);
        assert!(encap.external && encap.remotes.is_empty() && !encap.dont_fragment);
        let six = parsed("geneve", &[(7, &[1; 16]), (13, &[2]), (14, &[])]);
        assert_eq!(six.remotes, [IpAddr::from([1; 16])]);
        assert!(six.without_ethernet && !six.dont_fragment);
    }

    #[test]
    fn ip_tunnels_tell_their_optional_headers() {
        let ipip = parsed("ipip", &[(10, &[1]), (15, &2_u16.to_ne_bytes()), (6, &[4])]);
        assert!(ipip.dont_fragment && !ipip.encap_limit);
        assert_eq!(ipip.udp_kind, 2);
        assert!(!parsed("ipip", &[(10, &[0])]).dont_fragment);
        assert!(parsed("ip6tnl", &[(6, &[4])]).encap_limit);
        assert!(!parsed("ip6tnl", &[(6, &[4]), (8, &1_u32.to_ne_bytes())]).encap_limit);
        let gre = parsed("gre", &[(3, &[0x20, 0]), (10, &[1])]);
        assert_eq!(gre.gre_flags, 0x2000);
        assert_eq!(parsed("erspan", &[(22, &[2])]).erspan_version, 2);
        assert_eq!(parsed("macsec", &[(3, &[16])]).icv_bytes, 16);
        let xfrm = parsed("xfrm", &[(2, &42_u32.to_ne_bytes())]);
        assert_eq!(xfrm.if_id, Some(42));
        assert_eq!(parse("veth", &[]), None);
    }

    #[test]
    fn a_forwarding_entry_tells_where_it_leads() {
        let mut bytes = vec![7, 0, 0, 0, 9, 0, 0, 0, 0x80, 0, 2, 0];
        bytes.extend(attribute(2, &[2, 0, 0, 0, 0, 1]));
        assert_eq!(forwarding_entry(&bytes), None);
        bytes.extend(attribute(1, &[10, 0, 0, 2]));
        assert_eq!(forwarding_entry(&bytes), Some((9, [10, 0, 0, 2].into())));
    }

    proptest! {
        #[test]
        fn no_attribute_stops_the_parser(
            kind in prop_oneof![Just("vxlan"), Just("geneve"), Just("ip6tnl"), Just("gre"), Just("macsec")],
            data in proptest::collection::vec(any::<u8>(), 0..120),
        ) {
            let _ = parse(kind, &data);
            let _ = forwarding_entry(&data);
        }
    }
}
