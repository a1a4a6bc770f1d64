//! What a node's pods and its tunnels tell about its past: pods that are older than its MTU, and the ratchet.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, FindingCode, above, some_of};
use crate::event::{DeviceId, NetnsId};
use crate::mtu::model::{Device, Network};
use crate::mtu::overhead::{Outer, is_tunnel, is_userspace_tunnel, overhead};
use crate::mtu::paths::{Fate, Paths, VLAN_SLACK, facing};

/// The most names that a sentence lists.
const NAMED: usize = 3;

pub(super) fn find(network: &Network, paths: &Paths) -> Vec<Finding> {
    let mut by_node: BTreeMap<NetnsId, Vec<(&Device, &Device)>> = BTreeMap::new();
    for (near, pod) in facing(network) {
        let ends = (network.devices.get(&near), network.devices.get(&pod));
        if let (Some(near), Some(pod)) = ends {
            by_node.entry(near.id.netns).or_default().push((near, pod));
        }
    }
    let mut findings = Vec::new();
    for (node, pods) in &by_node {
        findings.extend(older(network, *node, pods, paths));
    }
    for tunnel in network.devices.values().filter(|device| device.up) {
        let none = Vec::new();
        let pods = by_node.get(&tunnel.id.netns).unwrap_or(&none);
        findings.extend(ratchet(network, tunnel, pods));
    }
    findings
}

/// Pods that send more than the newest pod of their node, and more than is carried for them.
fn older(
    network: &Network,
    node: NetnsId,
    pods: &[(&Device, &Device)],
    paths: &Paths,
) -> Option<Finding> {
    // An ifindex is never given twice, so the largest is the youngest.
    let (_, newest) = pods.iter().max_by_key(|(near, _)| near.id.ifindex)?;
    let now = network.sends(newest);
    let narrowed: BTreeSet<DeviceId> = paths
        .narrows
        .values()
        .flat_map(|narrow| narrow.senders.keys().copied())
        .collect();
    let mut old: Vec<&Device> = pods
        .iter()
        .filter(|(near, pod)| {
            let sent = network.sends(pod);
            let suffers = sent > near.mtu + VLAN_SLACK || narrowed.contains(&pod.id);
            sent > now && suffers
        })
        .map(|(_, pod)| *pod)
        .collect();
    old.sort_by_key(|pod| {
        (
            Reverse(network.sends(pod)),
            network.netns_name(pod.id.netns),
        )
    });
    let largest = old.iter().map(|pod| network.sends(pod)).max()?;
    let sent: BTreeSet<u32> = old.iter().map(|pod| network.sends(pod)).collect();
    let generations: Vec<String> = sent.iter().rev().map(u32::to_string).collect();
    let names: Vec<String> = old
        .iter()
        .map(|pod| network.netns_name(pod.id.netns))
        .collect();
    Some(Finding {
        code: FindingCode::PodsOlderThanMtu,
        summary: format!(
            "{} of the {} pods of {} were made when its MTU was larger: {} send{} up to {}, and the newest pod {now}",
            old.len(),
            pods.len(),
            network.netns_name(node),
            some_of(names, NAMED),
            if old.len() == 1 { "s" } else { "" },
            some_of(generations, NAMED),
        ),
        devices: old.iter().map(|pod| pod.id).collect(),
        affected: above(now, largest),
        largest_passing: Some(now),
        fate: None,
        notes: vec!["making the pods anew mends it for good".to_owned()],
        mend: old
            .iter()
            .filter_map(|pod| network.set_mtu(pod, now))
            .collect(),
    })
}

/// A WireGuard device (or what a process makes of a tun device) that is several times its overhead below its underlay,
/// with other devices on the steps between: whoever sets it takes the last result for the new base.
fn ratchet(network: &Network, tunnel: &Device, pods: &[(&Device, &Device)]) -> Option<Finding> {
    if tunnel.kind != "wireguard" && !is_userspace_tunnel(tunnel) {
        return None;
    }
    let node = tunnel.id.netns;
    let underlay = network
        .devices_of(node)
        .filter(|device| device.up && !is_tunnel(device) && device.kind != "loopback")
        .find(|device| network.use_of(device.id).is_default())?;
    let wireguard = Device {
        kind: "wireguard".to_owned(),
        ..tunnel.clone()
    };
    [Outer::V6, Outer::V4].into_iter().find_map(|outer| {
        let step = overhead(&wireguard, outer)?;
        let below = underlay.mtu.checked_sub(tunnel.mtu)?;
        if below % step != 0 || below / step < 2 {
            return None;
        }
        let between = |device: &Device| {
            let below = underlay.mtu.saturating_sub(device.mtu);
            device.mtu > tunnel.mtu && below > 0 && below % step == 0
        };
        let near = network.devices_of(node).filter(|device| device.up);
        let marks: Vec<&Device> = near
            .chain(pods.iter().map(|(_, pod)| *pod))
            .filter(|device| device.id != tunnel.id && between(device))
            .collect();
        let steps: BTreeSet<u32> = marks.iter().map(|device| device.mtu).collect();
        if steps.is_empty() {
            return None;
        }
        let first = underlay.mtu - step;
        let mut stairs = vec![underlay.mtu.to_string()];
        stairs.extend(steps.iter().rev().map(u32::to_string));
        stairs.push(tunnel.mtu.to_string());
        Some(Finding {
            code: FindingCode::MtuRatchet,
            summary: format!(
                "{} has fallen to {}, {} times the {step} bytes of WireGuard below {}: {} is a staircase, and each \
                 restart of what sets it takes one more step down",
                network.name(tunnel.id),
                tunnel.mtu,
                below / step,
                network.name(underlay.id),
                stairs.join(" → "),
            ),
            devices: [underlay.id]
                .into_iter()
                .chain(marks.iter().map(|device| device.id))
                .chain([tunnel.id])
                .collect(),
            affected: above(tunnel.mtu, first),
            largest_passing: Some(tunnel.mtu),
            fate: None::<Fate>,
            notes: vec![format!(
                "what sets it reads its own last result as the base; give it the MTU of {} instead",
                underlay.name
            )],
            mend: network.set_mtu(tunnel, first).into_iter().collect(),
        })
    })
}
