//! Tunnels and what carries them.

use super::{Finding, FindingCode, above, sizes};
use crate::mtu::ipsec::room;
use crate::mtu::model::{Device, Network};
use crate::mtu::overhead::{Outer, is_tunnel, overhead};
use crate::mtu::paths::{Fate, facing, fate_of_outer, underlays};

pub(super) fn find(network: &Network) -> Vec<Finding> {
    let tunnels = network.devices.values().filter(|device| device.up);
    tunnels
        .filter_map(|tunnel| {
            too_large(network, tunnel).or_else(|| ipsec_too_large(network, tunnel))
        })
        .collect()
}

/// An xfrm device that sends more than one of its associations carries (`xfrmi_xmit2()` then tells by ICMP).
fn ipsec_too_large(network: &Network, device: &Device) -> Option<Finding> {
    if device.kind != "xfrm" {
        return None;
    }
    let if_id = device.encap.as_ref()?.if_id?;
    let tunnels = &network.namespaces.get(&device.id.netns)?.ipsec;
    let own = tunnels
        .iter()
        .filter(|tunnel| tunnel.association.if_id == Some(if_id));
    let rooms = own.filter_map(|tunnel| Some((tunnel, room(network, tunnel)?)));
    let (tunnel, (underlay, limit, passes)) = rooms.min_by_key(|(_, (_, _, inside))| *inside)?;
    let affected = above(passes, network.sends(device))?;
    Some(Finding {
        code: FindingCode::TunnelAboveUnderlay,
        summary: format!(
            "{} sends up to {} bytes in ESP by {}, and {} takes {limit}, which leaves {passes}: packets of {} bytes do \
             not pass unless ICMP tells their sender",
            network.name(device.id),
            affected.end(),
            tunnel.association.algorithm,
            network.name(underlay.id),
            sizes(&affected),
        ),
        devices: vec![device.id, underlay.id],
        affected: Some(affected),
        largest_passing: Some(passes),
        fate: Some(Fate::TooBig),
        notes: Vec::new(),
        mend: network.set_mtu(device, passes).into_iter().collect(),
    })
}

/// The worst of a tunnel's underlays, if any takes less than the tunnel sends.
fn too_large(network: &Network, tunnel: &Device) -> Option<Finding> {
    let sent = sends(network, tunnel)?;
    let found = underlays(network, tunnel);
    let (underlay, outer, bytes, limit) = found
        .into_iter()
        .filter_map(|(underlay, outer, told)| {
            let bytes = overhead(tunnel, outer)?;
            let limit = told.map_or(underlay.mtu, |told| told.min(underlay.mtu));
            Some((underlay, outer, bytes, limit))
        })
        .min_by_key(|(_, _, bytes, limit)| limit.saturating_sub(*bytes))?;
    let passes = limit.saturating_sub(bytes);
    let affected = above(passes, sent)?;
    let nested = is_tunnel(underlay);
    let fate = fate_of_outer(tunnel);
    let becomes = match fate {
        Fate::Fragmented => "leave in two fragments, and are lost wherever fragments are dropped",
        Fate::TooBig => "do not pass unless ICMP tells their sender",
        Fate::Lost => "die there, and no ICMP says so",
    };
    let summary = format!(
        "{} sends up to {sent} bytes in {bytes} of {}{}, and {} takes {limit}: packets of {} bytes {becomes}",
        network.name(tunnel.id),
        tunnel.kind,
        match outer {
            Outer::V4 => " over IPv4",
            Outer::V6 => " over IPv6",
            Outer::Fixed | Outer::Unknown => "",
        },
        network.name(underlay.id),
        sizes(&affected),
    );
    let mut notes = Vec::new();
    if outer == Outer::Unknown {
        let six = overhead(tunnel, Outer::V6).unwrap_or(bytes);
        notes.push(format!(
            "it is not known over which IP version it runs: over IPv6 {six} bytes are around each packet"
        ));
    }
    if tunnel.kind == "geneve" {
        notes.push("options of Geneve come on top".to_owned());
    }
    Some(Finding {
        code: if nested {
            FindingCode::NestedOverlays
        } else {
            FindingCode::TunnelAboveUnderlay
        },
        summary,
        devices: vec![tunnel.id, underlay.id],
        affected: Some(affected),
        largest_passing: Some(passes),
        fate: Some(fate),
        notes,
        mend: network.set_mtu(tunnel, passes).into_iter().collect(),
    })
}

/// The largest packet that goes into a tunnel. One that takes what BPF programs send it, without a route, has an MTU that
/// nobody heeds: what counts is what the pods send.
fn sends(network: &Network, tunnel: &Device) -> Option<u32> {
    let external = tunnel.encap.as_ref().is_some_and(|encap| encap.external);
    if !external || network.use_of(tunnel.id).is_routed() || tunnel.master.is_some() {
        return Some(network.sends(tunnel));
    }
    let pods = facing(network);
    let pods = pods
        .iter()
        .filter(|(near, _)| near.netns == tunnel.id.netns)
        .filter_map(|(_, pod)| network.devices.get(pod));
    pods.map(|pod| network.sends(pod)).max()
}
