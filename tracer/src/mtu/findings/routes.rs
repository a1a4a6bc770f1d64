//! What routes say about sizes, and where forwarding cuts what senders send.

use super::{Finding, FindingCode, above, dev, sizes, some_of};
use crate::event::NetnsId;
use crate::mtu::model::{Clamping, Device, Network, RouteMetrics, TCP_V4};
use crate::mtu::paths::{Fate, Narrow, Paths};

/// TCP's and IPv6's headers without options.
const TCP_V6: u32 = 60;

pub(super) fn find(network: &Network, paths: &Paths) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (id, netns) in &network.namespaces {
        for route in &netns.metrics {
            let device = network
                .device(*id, route.ifindex)
                .filter(|device| device.up);
            if let Some(device) = device {
                findings.extend(lying_mtu(network, *id, route, device));
                findings.extend(lying_mss(network, *id, route, device));
            }
        }
    }
    for (id, narrow) in &paths.narrows {
        let device = network.devices.get(id);
        findings.extend(device.and_then(|device| unclamped(network, device, narrow)));
    }
    findings
}

/// The kernel believes a route's MTU and does not hold it against the device (`ip_dst_mtu_maybe_forward()`,
/// include/net/ip.h).
fn lying_mtu(
    network: &Network,
    netns: NetnsId,
    route: &RouteMetrics,
    device: &Device,
) -> Option<Finding> {
    let affected = above(device.mtu, route.mtu?)?;
    Some(Finding {
        code: FindingCode::RouteMtuAboveDevice,
        summary: format!(
            "the route to {} in {} says an MTU of {} and leads through {}, which takes {}: packets of {} bytes die \
             there or behind it, and no ICMP says so",
            route.dst,
            network.netns_name(netns),
            affected.end(),
            network.name(device.id),
            device.mtu,
            sizes(&affected),
        ),
        devices: vec![device.id],
        affected: Some(affected),
        largest_passing: Some(device.mtu),
        fate: Some(Fate::Lost),
        notes: Vec::new(),
        mend: change(
            network,
            netns,
            route,
            device,
            Some(device.mtu),
            route.advmss,
        ),
    })
}

fn lying_mss(
    network: &Network,
    netns: NetnsId,
    route: &RouteMetrics,
    device: &Device,
) -> Option<Finding> {
    let headers = if is_ipv6(route) { TCP_V6 } else { TCP_V4 };
    let mtu = route.mtu.map_or(device.mtu, |mtu| mtu.min(device.mtu));
    let advmss = route.advmss?;
    let affected = above(mtu, advmss.saturating_add(headers))?;
    let right = mtu.saturating_sub(headers);
    Some(Finding {
        code: FindingCode::AdvmssAboveMtu,
        summary: format!(
            "the route to {} in {} tells peers an MSS of {advmss}, and {} takes {mtu}: what they send back has up to \
             {} bytes",
            route.dst,
            network.netns_name(netns),
            network.name(device.id),
            affected.end(),
        ),
        devices: vec![device.id],
        affected: Some(affected),
        largest_passing: Some(mtu),
        fate: Some(Fate::TooBig),
        notes: Vec::new(),
        mend: change(network, netns, route, device, route.mtu, Some(right)),
    })
}

fn is_ipv6(route: &RouteMetrics) -> bool {
    route.dst.contains(':')
}

/// The command that gives a route other metrics.
fn change(
    network: &Network,
    netns: NetnsId,
    route: &RouteMetrics,
    device: &Device,
    mtu: Option<u32>,
    advmss: Option<u32>,
) -> Vec<String> {
    let word = |name: &str, value: Option<u32>| {
        value.map_or_else(String::new, |value| format!(" {name} {value}"))
    };
    let version = if is_ipv6(route) { "-6 " } else { "" };
    let gateway = route
        .gateway
        .map_or_else(String::new, |gateway| format!(" via {gateway}"));
    let command = format!(
        "{version}route change {}{gateway} dev {}{} table {}{}{}",
        route.dst,
        dev(device),
        word("metric", route.priority),
        route.table,
        word("mtu", mtu),
        word("advmss", advmss),
    );
    network.ip(netns, &command).into_iter().collect()
}

/// Forwarding that cuts what senders send, without a rule that tells TCP.
fn unclamped(network: &Network, device: &Device, narrow: &Narrow) -> Option<Finding> {
    let half = match network.clamping(device, narrow.limit) {
        // Where the rules could not be read, a blind spot says so.
        Clamping::Whole | Clamping::Unknown => return None,
        Clamping::OtherDirection(chain) => Some(chain),
        Clamping::None => None,
    };
    let sent = *narrow.senders.values().max()?;
    let affected = above(narrow.limit, sent)?;
    let mut senders: Vec<String> = narrow.senders.keys().map(|id| network.name(*id)).collect();
    senders.sort();
    let mut notes = vec![format!(
        "TCP would heal by a rule that clamps its MSS; UDP only by senders that send less: `mtu {}` at their routes or \
         devices",
        narrow.limit
    )];
    if let Some(chain) = half {
        notes.push(format!(
            "the rule in {chain} is only for SYNs that leave through {}: the answers, which say how much may be sent \
             this way, come in through it",
            device.name
        ));
    }
    let probing = narrow.senders.keys().all(|id| {
        let sender = network.namespaces.get(&id.netns);
        sender.is_some_and(|sender| sender.tcp_mtu_probing > Some(0))
    });
    if probing {
        notes.push(
            "tcp_mtu_probing is on at the senders: TCP finds out by itself, after it has lost some"
                .to_owned(),
        );
    }
    let nft = "nft 'add table inet mss; \
               add chain inet mss forward { type filter hook forward priority mangle; }; \
               add rule inet mss forward tcp flags syn tcp option maxseg size set rt mtu'";
    Some(Finding {
        code: FindingCode::MissingMssClamp,
        summary: format!(
            "{} send{} up to {sent} bytes, and {} takes {} on the way: packets of {} bytes pass only if ICMP reaches \
             their sender, and no rule clamps TCP's MSS",
            some_of(senders.clone(), 3),
            if senders.len() == 1 { "s" } else { "" },
            network.name(device.id),
            narrow.limit,
            sizes(&affected),
        ),
        devices: narrow.senders.keys().copied().chain([device.id]).collect(),
        affected: Some(affected),
        largest_passing: Some(narrow.limit),
        fate: Some(Fate::TooBig),
        notes,
        mend: network.run(device.id.netns, nft).into_iter().collect(),
    })
}
