//! Devices on top of devices: the ports of a bridge, the members of a bond, what lies below a VLAN or a macvlan.

use super::{Finding, FindingCode, above, sizes, some_of};
use crate::mtu::model::{Device, Network};
use crate::mtu::paths::{Fate, VLAN_SLACK};

/// What IPv6 needs of a link (RFC 8200); below it `addrconf_notify()` takes IPv6 off a device.
const IPV6_MIN_MTU: u32 = 1280;

pub(super) fn find(network: &Network) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in network.devices.values().filter(|device| device.up) {
        match device.kind.as_str() {
            "bridge" => {
                findings.extend(small_port(network, device));
                findings.extend(small_bridge(network, device));
            }
            "bond" | "team" => findings.extend(
                network
                    .ports(device.id)
                    .filter_map(|member| lower(network, device, member)),
            ),
            "vlan" | "macvlan" | "macvtap" | "ipvlan" | "ipvtap" => {
                let below = device.below.and_then(|below| network.devices.get(&below));
                findings.extend(below.and_then(|below| lower(network, device, below)));
            }
            _ => {}
        }
        findings.extend(without_ipv6(network, device));
    }
    findings
}

/// The largest frame that comes in through a port: what the other end of its cable sends.
fn comes_in(network: &Network, port: &Device) -> u32 {
    let peer = port.peer.and_then(|peer| network.devices.get(&peer));
    let sent = peer.map_or(port.mtu, |peer| network.sends(peer));
    sent.min(port.mtu + VLAN_SLACK)
}

/// A port that is given more than it takes (`br_dev_queue_push_xmit()` in net/bridge/br_forward.c measures as a veth does).
fn small_port(network: &Network, bridge: &Device) -> Option<Finding> {
    let ports: Vec<&Device> = network.ports(bridge.id).collect();
    let smallest = ports.iter().min_by_key(|port| port.mtu)?;
    let passes = smallest.mtu + VLAN_SLACK;
    let others = ports.iter().filter(|port| port.id != smallest.id);
    let from_ports = others.clone().map(|port| comes_in(network, port)).max();
    let own = network
        .use_of(bridge.id)
        .is_routed()
        .then(|| network.sends(bridge));
    let sent = from_ports.max(own)?;
    let affected = above(passes, sent)?;
    let mut larger: Vec<&Device> = others
        .filter(|port| comes_in(network, port) > passes)
        .copied()
        .collect();
    if own > Some(passes) {
        larger.push(bridge);
    }
    // The ends of the cables as well, lest each becomes a mismatch of its own.
    let peers = larger
        .iter()
        .filter_map(|port| network.devices.get(&port.peer?));
    let to_mend = peers.chain(larger.iter().copied());
    let mend = to_mend
        .filter_map(|device| network.set_mtu(device, smallest.mtu))
        .collect();
    Some(Finding {
        code: FindingCode::BridgePortBelow,
        summary: format!(
            "{} takes {}, and {} bring{} up to {sent} bytes for it through {}: frames with packets of {} bytes die \
             there, and no ICMP says so",
            network.name(smallest.id),
            smallest.mtu,
            some_of(larger.iter().map(|port| port.name.clone()).collect(), 3),
            if larger.len() == 1 { "s" } else { "" },
            network.name(bridge.id),
            sizes(&affected),
        ),
        devices: larger
            .iter()
            .map(|port| port.id)
            .chain([smallest.id, bridge.id])
            .collect(),
        affected: Some(affected),
        largest_passing: Some(passes),
        fate: Some(Fate::Lost),
        notes: Vec::new(),
        mend,
    })
}

/// A bridge whose own MTU is below that of all its ports, and that its namespace sends through.
fn small_bridge(network: &Network, bridge: &Device) -> Option<Finding> {
    let smallest_port = network.ports(bridge.id).map(|port| port.mtu).min()?;
    let sends = network.sends(bridge);
    let affected = above(bridge.mtu, smallest_port)?;
    if !network.use_of(bridge.id).is_routed() || sends < bridge.mtu {
        return None;
    }
    Some(Finding {
        code: FindingCode::BridgeBelowPorts,
        summary: format!(
            "{} has an MTU of {} and each of its ports at least {smallest_port}: what comes for them with {} bytes \
             must be cut by ICMP, though it would fit",
            network.name(bridge.id),
            bridge.mtu,
            sizes(&affected),
        ),
        devices: vec![bridge.id],
        affected: Some(affected),
        largest_passing: Some(bridge.mtu),
        fate: Some(Fate::TooBig),
        notes: Vec::new(),
        mend: network.set_mtu(bridge, smallest_port).into_iter().collect(),
    })
}

/// A device that hands more to the one below than that takes.
fn lower(network: &Network, upper: &Device, lower: &Device) -> Option<Finding> {
    let affected = above(lower.mtu, network.sends(upper))?;
    Some(Finding {
        code: FindingCode::LowerDeviceBelow,
        summary: format!(
            "{} sends up to {} bytes through {}, which takes {}: packets of {} bytes die there, and no ICMP says so",
            network.name(upper.id),
            affected.end(),
            network.name(lower.id),
            lower.mtu,
            sizes(&affected),
        ),
        devices: vec![upper.id, lower.id],
        affected: Some(affected),
        largest_passing: Some(lower.mtu),
        fate: Some(Fate::Lost),
        notes: Vec::new(),
        mend: network.set_mtu(upper, lower.mtu).into_iter().collect(),
    })
}

/// A device that is too small for IPv6 in a namespace that speaks it.
fn without_ipv6(network: &Network, device: &Device) -> Option<Finding> {
    if device.mtu >= IPV6_MIN_MTU || device.kind == "loopback" {
        return None;
    }
    let speaks = |device: &Device| {
        let used = network.use_of(device.id);
        used.v6 || used.default_v6
    };
    let others = network.devices_of(device.id.netns);
    // One that carries nothing, or that only a bridge sends through, loses no IPv6.
    let routed = network.use_of(device.id).is_routed();
    let mut others = others.filter(|other| other.up && other.id != device.id);
    if !routed || !others.any(speaks) {
        return None;
    }
    Some(Finding {
        code: FindingCode::BelowIpv6Minimum,
        summary: format!(
            "{} has an MTU of {}: IPv6 needs {IPV6_MIN_MTU}, so the kernel has turned it off there",
            network.name(device.id),
            device.mtu,
        ),
        devices: vec![device.id],
        affected: None,
        largest_passing: Some(device.mtu),
        fate: None,
        notes: vec![
            "its IPv6 addresses and routes are gone and do not come back by themselves".to_owned(),
        ],
        mend: network.set_mtu(device, IPV6_MIN_MTU).into_iter().collect(),
    })
}
