//! What one rtnetlink message says about a route, and nothing else: no socket, no state.

use std::net::IpAddr;

use netlink_packet_route::{
    AddressFamily,
    route::{RouteHeader, RouteType},
};

use crate::fact::{NextHop, Prefix, RouteKind};

use super::{
    links::{attributes, ifindex, ip, number},
    netlink::Message,
};

/// `sizeof(struct rtmsg)`
const HEADER_BYTES: usize = 12;

/// `sizeof(struct rtnexthop)`
const NEXT_HOP_BYTES: usize = 8;

/// `RTA_VIA` (include/uapi/linux/rtnetlink.h): a gateway of the other IP version.
const RTA_VIA: u16 = 18;

/// `RTAX_MTU` and `RTAX_ADVMSS` (include/uapi/linux/rtnetlink.h).
const RTAX_MTU: u16 = 2;
const RTAX_ADVMSS: u16 = 8;

/// The ticks of a second in what the kernel tells (`USER_HZ`).
const USER_HZ: u32 = 100;

/// The most next hops of one route that are kept.
const HOPS_MAX: usize = 16;

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub kind: RouteKind,
    pub dst: Prefix,
    /// IPv6 routes may be for some sources only.
    pub src: Option<Prefix>,
    pub table: u32,
    pub hops: Vec<NextHop>,
    pub metrics: Metrics,
    /// Seconds until a path MTU that ICMP has told is forgotten.
    pub expires_s: Option<u32>,
}

/// What a route says about sizes, or what ICMP has told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Metrics {
    /// The route's own metric, by which it is preferred.
    pub priority: Option<u32>,
    pub mtu: Option<u32>,
    pub advmss: Option<u32>,
}

impl Entry {
    /// Whether the route is for a packet with these addresses.
    pub(super) fn takes(&self, src: IpAddr, dst: IpAddr) -> bool {
        contains(self.dst, dst) && self.src.is_none_or(|prefix| contains(prefix, src))
    }
}

/// Whether an address lies in a network.
pub(super) fn contains(prefix: Prefix, addr: IpAddr) -> bool {
    let beyond = |bits: u32| bits.saturating_sub(prefix.len.into());
    match (prefix.addr, addr) {
        (IpAddr::V4(net), IpAddr::V4(addr)) => {
            let differ = u32::from(net) ^ u32::from(addr);
            differ.checked_shr(beyond(32)).unwrap_or(0) == 0
        }
        (IpAddr::V6(net), IpAddr::V6(addr)) => {
            let differ = u128::from(net) ^ u128::from(addr);
            differ.checked_shr(beyond(128)).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// Reads a message; `None` for one that is about something else.
pub(super) fn parse(message: Message<'_>) -> Option<Entry> {
    if message.kind != libc::RTM_NEWROUTE {
        return None;
    }
    let header = RouteHeader::parse(message.payload).ok()?;
    let unspecified = match header.address_family {
        AddressFamily::Inet => IpAddr::from([0; 4]),
        AddressFamily::Inet6 => IpAddr::from([0; 16]),
        _ => return None,
    };
    let family = u8::from(header.address_family);
    let mut route = Entry {
        kind: kind(header.kind),
        dst: Prefix {
            addr: unspecified,
            len: header.destination_prefix_length,
        },
        src: None,
        table: header.table.into(),
        hops: Vec::new(),
        metrics: Metrics::default(),
        expires_s: None,
    };
    let mut hop = NextHop {
        gateway: None,
        ifindex: 0,
    };
    for attribute in attributes(message.payload.get(HEADER_BYTES..)?) {
        let value = attribute.value();
        match attribute.kind() {
            libc::RTA_DST => route.dst.addr = ip(family, value)?,
            libc::RTA_SRC => {
                route.src = Some(Prefix {
                    addr: ip(family, value)?,
                    len: header.source_prefix_length,
                });
            }
            libc::RTA_TABLE => route.table = number(value)?,
            libc::RTA_OIF => hop.ifindex = ifindex(value)?,
            libc::RTA_MULTIPATH => route.hops = next_hops(family, value),
            libc::RTA_METRICS => metrics(value, &mut route.metrics),
            libc::RTA_PRIORITY => route.metrics.priority = number(value),
            libc::RTA_CACHEINFO => route.expires_s = expires_s(value),
            kind => hop.gateway = hop.gateway.or_else(|| gateway(family, kind, value)),
        }
    }
    if hop.ifindex != 0 && route.hops.is_empty() {
        route.hops.push(hop);
    }
    Some(route)
}

const fn kind(kind: RouteType) -> RouteKind {
    match kind {
        RouteType::Unicast => RouteKind::Unicast,
        RouteType::Local | RouteType::Anycast => RouteKind::Local,
        RouteType::Broadcast | RouteType::Multicast => RouteKind::Broadcast,
        RouteType::BlackHole => RouteKind::Blackhole,
        RouteType::Unreachable => RouteKind::Unreachable,
        RouteType::Prohibit => RouteKind::Prohibit,
        _ => RouteKind::Other,
    }
}

fn metrics(value: &[u8], metrics: &mut Metrics) {
    let find = |kind| {
        let metric = attributes(value).find(|attribute| attribute.kind() == kind)?;
        number(metric.value()).filter(|value| *value != 0)
    };
    metrics.mtu = find(RTAX_MTU);
    metrics.advmss = find(RTAX_ADVMSS);
}

/// `rta_expires` of `struct rta_cacheinfo`, which follows two other numbers.
fn expires_s(value: &[u8]) -> Option<u32> {
    let ticks = u32::from_ne_bytes(*value.get(8..)?.first_chunk()?);
    (ticks != 0).then_some(ticks / USER_HZ)
}

/// The gateway, of the route's own IP version (`RTA_GATEWAY`) or of the other (`RTA_VIA`).
fn gateway(family: u8, kind: u16, value: &[u8]) -> Option<IpAddr> {
    match kind {
        libc::RTA_GATEWAY => ip(family, value),
        RTA_VIA => {
            // struct rtvia: a family and an address.
            let (family, addr) = value.split_first_chunk()?;
            ip(u8::try_from(u16::from_ne_bytes(*family)).ok()?, addr)
        }
        _ => None,
    }
}

/// The list of `struct rtnexthop`, each with attributes of its own, up to the first that does not fit.
fn next_hops(family: u8, mut list: &[u8]) -> Vec<NextHop> {
    let mut hops = Vec::new();
    while hops.len() < HOPS_MAX
        && let Some(&[len_low, len_high, _, _, index @ ..]) = list.first_chunk::<NEXT_HOP_BYTES>()
    {
        let len = usize::from(u16::from_ne_bytes([len_low, len_high]));
        let Some(own) = list.get(NEXT_HOP_BYTES..len) else {
            break;
        };
        hops.push(NextHop {
            gateway: attributes(own)
                .find_map(|attribute| gateway(family, attribute.kind(), attribute.value())),
            ifindex: u32::from_ne_bytes(index),
        });
        list = list.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    hops
}

/// The devices that a route to everywhere leaves through, in any table; none for every other route.
pub(super) fn default_route_devices(message: Message<'_>) -> Vec<u32> {
    // The header is looked at first: a node may have a million routes, of which a few have no prefix.
    let is_default = RouteHeader::parse(message.payload).is_ok_and(|header| {
        header.destination_prefix_length == 0 && header.kind == RouteType::Unicast
    });
    if !is_default {
        return Vec::new();
    }
    let hops = parse(message).map_or_else(Vec::new, |route| route.hops);
    hops.into_iter().map(|hop| hop.ifindex).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(payload: &[u8]) -> Message<'_> {
        Message {
            kind: libc::RTM_NEWROUTE,
            payload,
        }
    }

    fn prefix(addr: &str, len: u8) -> Prefix {
        let addr = addr.parse().expect("an address");
        Prefix { addr, len }
    }

    /// `blackhole 10.9.0.0/24`, as Linux 6.18 dumps it: family 2, /24, table 254, protocol boot, scope universe, type 6;
    /// RTA_TABLE and RTA_DST.
    const BLACKHOLE: [u8; 28] = [
        2, 24, 0, 0, 254, 3, 0, 6, 0, 0, 0, 0, 8, 0, 15, 0, 254, 0, 0, 0, 8, 0, 1, 0, 10, 9, 0, 0,
    ];

    /// `default` over two gateways: RTA_TABLE, and RTA_MULTIPATH with two `struct rtnexthop`, each with an RTA_GATEWAY.
    const MULTIPATH: [u8; 56] = [
        2, 0, 0, 0, 254, 3, 0, 1, 0, 0, 0, 0, 8, 0, 15, 0, 254, 0, 0, 0, 36, 0, 9, 0, 16, 0, 0, 0,
        2, 0, 0, 0, 8, 0, 5, 0, 10, 1, 0, 3, 16, 0, 0, 0, 3, 0, 0, 0, 8, 0, 5, 0, 10, 2, 0, 3,
    ];

    #[test]
    fn a_route_that_rejects_has_no_hops() {
        assert_eq!(
            parse(message(&BLACKHOLE)),
            Some(Entry {
                kind: RouteKind::Blackhole,
                dst: prefix("10.9.0.0", 24),
                src: None,
                table: 254,
                hops: Vec::new(),
                metrics: Metrics::default(),
                expires_s: None,
            })
        );
    }

    #[test]
    fn every_next_hop_of_a_route_is_read() {
        let route = parse(message(&MULTIPATH)).expect("a route");
        let hop = |gateway: [u8; 4], ifindex| NextHop {
            gateway: Some(gateway.into()),
            ifindex,
        };
        assert_eq!(
            (route.kind, route.dst),
            (RouteKind::Unicast, prefix("0.0.0.0", 0))
        );
        assert_eq!(route.hops, [hop([10, 1, 0, 3], 2), hop([10, 2, 0, 3], 3)]);
        assert_eq!(default_route_devices(message(&MULTIPATH)), [2, 3]);
        assert!(default_route_devices(message(&BLACKHOLE)).is_empty());
    }

    #[test]
    fn what_a_route_says_about_sizes_is_read() {
        // `10.9.0.0/24 dev 2 mtu 1380 advmss 1340`, that expires in 12 s: RTA_OIF, RTA_METRICS, RTA_CACHEINFO.
        let mut bytes = BLACKHOLE[..12].to_vec();
        bytes[7] = 1;
        bytes.extend([8, 0, 4, 0, 2, 0, 0, 0]);
        bytes.extend([20, 0, 8, 0, 8, 0, 2, 0]);
        bytes.extend(1380_u32.to_ne_bytes());
        bytes.extend([8, 0, 8, 0]);
        bytes.extend(1340_u32.to_ne_bytes());
        bytes.extend([36, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(1234_u32.to_ne_bytes());
        bytes.extend([0; 20]);
        let route = parse(message(&bytes)).expect("a route");
        let metrics = Metrics {
            priority: None,
            mtu: Some(1380),
            advmss: Some(1340),
        };
        assert_eq!((route.metrics, route.expires_s), (metrics, Some(12)));
    }

    #[test]
    fn a_network_holds_its_addresses_and_no_others() {
        let check = |net, len, addr: &str, holds| {
            let addr = addr.parse().expect("an address");
            assert_eq!(
                contains(prefix(net, len), addr),
                holds,
                "{net}/{len} {addr}"
            );
        };
        check("10.9.0.0", 24, "10.9.0.255", true);
        check("10.9.0.0", 24, "10.9.1.0", false);
        check("10.9.0.5", 32, "10.9.0.5", true);
        check("10.9.0.5", 32, "10.9.0.4", false);
        check("0.0.0.0", 0, "255.255.255.255", true);
        check("0.0.0.0", 0, "::", false);
        check("::", 0, "ffff::1", true);
        check("fd09::", 32, "fd09:0:1::", true);
        check("fd09::", 32, "fd09:1::", false);
    }

    proptest! {
        #[test]
        fn no_message_stops_the_parser(
            family in prop_oneof![Just(2_u8), Just(10), any::<u8>()],
            rest in proptest::collection::vec(any::<u8>(), 0..120),
            cut in 0_usize..56,
        ) {
            let payload = [&[family], rest.as_slice()].concat();
            let _ = parse(message(&payload));
            let _ = parse(message(&MULTIPATH[..cut]));
        }
    }
}
