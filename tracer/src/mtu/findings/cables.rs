//! The two ends of a veth. `veth_xmit()` hands a packet to `__dev_forward_skb()`, which drops what is larger than the
//! receiving end's MTU and four bytes (net/core/dev.c); no IP layer has seen it there, so no ICMP is sent. GSO packets
//! are not measured.

use std::collections::BTreeMap;

use super::{Finding, FindingCode, above, sizes, some_of};
use crate::event::{DeviceId, NetnsId};
use crate::mtu::model::{Device, Network};
use crate::mtu::paths::{Fate, VLAN_SLACK};

/// The most devices that a sentence names.
const NAMED: usize = 3;

/// The two ends of a cable: who sends, and who takes.
type Cable<'a> = (&'a Device, &'a Device);

/// What cables of one finding have in common: the node, whether they lead to it, what is sent, what is taken.
type Sizes = (NetnsId, bool, u32, u32);

/// One finding for all cables that join the same two sizes and end in one namespace, or begin in one.
pub(super) fn find(network: &Network) -> Vec<Finding> {
    let mut cables: BTreeMap<Sizes, Vec<Cable<'_>>> = BTreeMap::new();
    for from in network.devices.values() {
        let to = from.peer.and_then(|peer| network.devices.get(&peer));
        // netkit does not measure what it hands over.
        let Some(to) = to.filter(|to| from.kind == "veth" && from.up && to.up) else {
            continue;
        };
        let sent = sends(network, from);
        if sent > to.mtu + VLAN_SLACK {
            // The namespace with the default route is the pod, and the other the node.
            let to_node = network.use_of(from.id).is_default();
            let node = if to_node { to.id.netns } else { from.id.netns };
            let group = (node, to_node, sent, to.mtu);
            cables.entry(group).or_default().push((from, to));
        }
    }
    cables
        .into_iter()
        .filter_map(|((_, _, sent, takes), cables)| lost(network, sent, takes, &cables))
        .collect()
}

fn lost(network: &Network, sent: u32, takes: u32, cables: &[Cable<'_>]) -> Option<Finding> {
    let passes = takes + VLAN_SLACK;
    let affected = above(passes, sent)?;
    let names = |end: fn(&Cable<'_>) -> DeviceId| {
        let names = cables.iter().map(|cable| network.name(end(cable)));
        let mut names: Vec<String> = names.collect();
        names.sort();
        some_of(names, NAMED)
    };
    let (from, to) = (names(|cable| cable.0.id), names(|cable| cable.1.id));
    let plural = if cables.len() == 1 { "s" } else { "" };
    let summary = format!(
        "{from} send{plural} up to {sent} bytes and {to} take{plural} {takes}: packets of {} bytes die between them, \
         and no ICMP says so",
        sizes(&affected),
    );
    let mend = cables
        .iter()
        .filter_map(|(from, _)| network.set_mtu(from, takes));
    Some(Finding {
        code: FindingCode::VethMismatch,
        summary,
        devices: cables
            .iter()
            .flat_map(|(from, to)| [from.id, to.id])
            .collect(),
        affected: Some(affected),
        largest_passing: Some(passes),
        fate: Some(Fate::Lost),
        notes: vec![format!(
            "{} to {passes} bytes still pass the veth, since the kernel leaves four for a VLAN tag; GSO packets are \
             not measured, so bulk TCP may work while single full segments and UDP vanish",
            takes + 1
        )],
        mend: mend.collect(),
    })
}

/// The largest packet that leaves through an end: what the namespace's routes allow, or what a bridge forwards.
fn sends(network: &Network, device: &Device) -> u32 {
    if device.master.is_some() {
        device.mtu
    } else {
        network.sends(device)
    }
}
