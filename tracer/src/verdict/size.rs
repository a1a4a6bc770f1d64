//! Packets that were too big: where Linux measures them, and what they were too big for.
//!
//! It measures at two kinds of places. Where a packet is **handed over** below IP, a device compares the whole frame with
//! its MTU plus four bytes for a VLAN tag, lets pass unmeasured what is still to be cut into segments, and tells nobody:
//! `__is_skb_forwardable()` (include/linux/netdevice.h from 5.12 on; `is_skb_forwardable()` in net/core/dev.c before), called
//! by `__dev_forward_skb()` for a veth's and a macvlan's other end and by `br_dev_queue_push_xmit()` for a bridge's port. Up to
//! 5.11 `bpf_redirect()` into a device is measured likewise, from 5.12 on it is not (`dev_forward_skb_nomtu()`).
//! Where a packet is **routed**, its segments count, and the sender is told by ICMP, unless there is no way to tell:
//! `ip_forward()` and `ip_fragment()` for what may not be fragmented, `ip6_forward()` and `ip6_fragment()`. Their ICMP errors
//! are exempt from every rate limit of the kernel's own (`icmpv4_mask_allow()`, `icmpv6_mask_allow()`).
//! All of them are the same in 5.10, 6.1, 6.12 and 6.18, but for that exception.

use super::diagnosis::Trace;
use crate::devices::Devices;
use crate::event::DeviceId;
use crate::flow::pairing::Flow;
use crate::flow::{Point, Sighting};
use crate::record::Device;

/// Where packets are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Check {
    /// Below IP, where nobody is told.
    Link,
    /// Where IP routes.
    Ip,
}

/// What a packet was too big for.
#[derive(Clone, Copy, Debug)]
pub struct TooBig<'d> {
    /// Who measured it.
    pub check: Check,
    /// The device that it was too big for, where the death tells it.
    pub narrow: Option<&'d Device>,
}

/// Hand a packet to another device.
const FORWARDS: [&str; 4] = [
    "__dev_forward_skb2",
    "__dev_forward_skb",
    "____dev_forward_skb",
    "veth_xmit",
];

/// With `br_netfilter`, a bridge compares the IP packet with its port's MTU itself, and frees one that must not be fragmented;
/// others, and those of IPv6, it fragments (net/bridge/br_netfilter_hooks.c).
const BRIDGE_NETFILTER: [&str; 2] = ["br_nf_dev_queue_xmit", "br_nf_ip_fragment"];

/// `VLAN_HLEN`
const VLAN_LEN: u32 = 4;

/// The least that an IPv6 router takes for its next hop's MTU (`IPV6_MIN_MTU`).
const IPV6_MTU_MIN: u32 = 1280;

/// Whether a packet died of its size, and what it was too big for. A function alone is no proof below IP: devices that are
/// down refuse packets in the same place.
pub fn too_big<'d>(sighting: &Sighting, devices: &'d Devices) -> Option<TooBig<'d>> {
    let Point::Drop(death) = &sighting.point else {
        return None;
    };
    let trace = Trace(death);
    let own = sighting.device().and_then(|id| devices.get(id));
    if let Some(receiver) = receiver(&trace, own, devices) {
        let room = if trace.freed_in(&BRIDGE_NETFILTER) {
            0
        } else {
            VLAN_LEN
        };
        let is_too_long =
            !sighting.is_gso() && sighting.packet_len > receiver.mtu.saturating_add(room);
        return is_too_long.then_some(TooBig {
            check: Check::Link,
            narrow: Some(receiver),
        });
    }
    let at_ip = trace.reason() == "PKT_TOO_BIG"
        || trace.freed_in(&["ip_fragment"]) && sighting.dont_fragment
        || trace.freed_in(&["ip6_fragment"]) && sighting.wire_len() > IPV6_MTU_MIN;
    // `ip_forward` frees a packet before it has the device to leave through; the others, after.
    let out = own.filter(|_| !trace.freed_in(&["ip_forward"]));
    at_ip.then(|| TooBig {
        check: Check::Ip,
        // Else a route or a path has the smaller MTU.
        narrow: out.filter(|device| sighting.wire_len() > device.mtu),
    })
}

/// The device that was to take a packet over where it died, if it died being handed over and that device is known.
fn receiver<'d>(
    trace: &Trace<'_>,
    own: Option<&'d Device>,
    devices: &'d Devices,
) -> Option<&'d Device> {
    let own = own?;
    if trace.freed_in(&["br_dev_queue_push_xmit"]) || trace.freed_in(&BRIDGE_NETFILTER) {
        return Some(own);
    }
    if !trace.freed_in(&FORWARDS) || trace.has(&["skb_do_redirect", "__bpf_redirect"]) {
        return None;
    }
    let receiver = match own.kind.as_str() {
        "macvlan" | "macvtap" => own.underlay(),
        _ => own.peer,
    };
    receiver.and_then(|id| devices.get(id))
}

/// How large the packets were that a device saw of one direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopSizes {
    /// The device.
    pub device: DeviceId,
    /// Bytes of the largest that came to it or left through it, as the flow's own packet and with segments cut.
    pub seen: u32,
    /// Bytes of the smallest that died of its size there.
    pub died: Option<u32>,
}

/// Which sizes came how far, device by device in the order of the way, for the direction of one packet.
pub fn by_hop(flow: &Flow<'_>, packet: &Sighting, devices: &Devices) -> Vec<HopSizes> {
    let from_client = flow.is_from_client(packet);
    let mut sightings: Vec<&Sighting> = flow
        .sightings()
        .filter(|seen| seen.icmp.is_none() && flow.is_from_client(seen) == from_client)
        .collect();
    sightings.sort_by_key(|seen| seen.order());
    let mut hops: Vec<HopSizes> = Vec::new();
    for seen in sightings {
        let Some(device) = seen.device() else {
            continue;
        };
        let index = hops
            .iter()
            .position(|hop| hop.device == device)
            .unwrap_or_else(|| {
                hops.push(HopSizes {
                    device,
                    seen: 0,
                    died: None,
                });
                hops.len() - 1
            });
        let (hop, len) = (&mut hops[index], seen.segment_len());
        match seen.point {
            Point::Drop(_) if too_big(seen, devices).is_some() => {
                hop.died = Some(hop.died.map_or(len, |died| died.min(len)));
            }
            Point::Drop(_) | Point::Refused(_) => {}
            _ => hop.seen = hop.seen.max(len),
        }
    }
    if flow.sampled_since_ns.is_some() {
        // What passed was not all seen, and what died was.
        hops.retain(|hop| hop.died.is_some());
    }
    hops
}

/// What killed it, to follow "data killed …", as far as the death tells it.
pub(super) fn phrase(sighting: &Sighting, narrow: Option<&Device>) -> String {
    match narrow {
        Some(device) => too_many(sighting, &device.name, device.mtu),
        None => format!("{} for the way on", are_too_many(sighting)),
    }
}

/// The same for what has this MTU.
pub(super) fn too_many(sighting: &Sighting, what: &str, mtu: u32) -> String {
    format!("{} for {what}, whose MTU is {mtu}", are_too_many(sighting))
}

fn are_too_many(sighting: &Sighting) -> String {
    let len = sighting.wire_len();
    if sighting.is_gso() {
        format!("because it would be cut into packets of {len} bytes, too many")
    } else {
        format!("because its {len} bytes are too many")
    }
}
