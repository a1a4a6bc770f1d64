//! The way of a packet as a row of devices, tunnels and ends.

use std::net::{IpAddr, SocketAddr};

use super::{Item, Row, Tone};
use crate::report::{Hop, Loss, Stage};
use crate::verdict::duration;

/// A hop that took at least this long is told, since it is where the time went.
const SLOW_NS: u64 = 1_000_000;

/// A namespace by its name and number.
pub(super) fn netns(name: Option<&str>, inum: Option<u32>) -> Option<String> {
    match (name, inum) {
        (Some(name), Some(inum)) => Some(format!("netns {name} ({inum})")),
        (Some(name), None) => Some(format!("netns {name}")),
        (None, Some(inum)) => Some(format!("netns {inum}")),
        (None, None) => None,
    }
}

/// The line of a packet that was seen. A death that is among the innocent of `losses` is not shown as one.
pub(super) fn row(label: &str, path: &[Hop], count: u64, losses: &[Loss]) -> Row {
    let mut items = Vec::new();
    let mut before: Option<&Hop> = None;
    for (index, hop) in path.iter().enumerate() {
        let arrival = index == 0 && hop.stage == Stage::Ingress;
        let departure = index + 1 == path.len() && hop.stage == Stage::Egress;
        let tunnel = tunnel_entered(before, hop);
        if !arrival {
            items.extend(tunnel.clone());
        }
        if tunnel.is_some() || departure || !is_same_place(before, hop) {
            items.extend(device(before, hop, arrival, departure));
        }
        if arrival {
            items.extend(tunnel);
        }
        items.extend(end(before, hop, losses));
        if let Some(delay_ns) = hop.delay_ns.filter(|delay_ns| *delay_ns >= SLOW_NS)
            && let Some(last) = items.last_mut()
        {
            last.text = format!("{} +{}", last.text, duration(delay_ns));
        }
        before = Some(hop);
    }
    if path.is_empty() {
        items.push(Item::new("seen, its path is not known", Tone::Weak));
    }
    let took_ns: u64 = path.iter().filter_map(|hop| hop.delay_ns).sum();
    if took_ns > 0 {
        items.push(Item::new(format!("took {}", duration(took_ns)), Tone::Weak));
    }
    if count > 1 {
        items.push(Item::new(format!("{count} times"), Tone::Weak));
    }
    Row {
        label: label.to_owned(),
        items,
        apart: false,
    }
}

fn is_same_place(before: Option<&Hop>, hop: &Hop) -> bool {
    before.is_some_and(|before| (before.netns, before.ifindex) == (hop.netns, hop.ifindex))
}

/// The tunnel, where the packet was not in it a hop before.
fn tunnel_entered(before: Option<&Hop>, hop: &Hop) -> Option<Item> {
    let tunnel = hop.tunnel?;
    if before.is_some_and(|before| before.tunnel == Some(tunnel)) {
        return None;
    }
    let vni = tunnel
        .vni
        .map(|vni| format!(" vni {vni}"))
        .unwrap_or_default();
    Some(Item::new(
        format!("{}{vni}", tunnel.kind.name()),
        Tone::Plain,
    ))
}

/// The device, with its namespace where the packet was not in it a hop before, and the other end of the wire.
fn device(before: Option<&Hop>, hop: &Hop, arrival: bool, departure: bool) -> Option<Item> {
    let name = hop.device.as_deref()?;
    let netns = netns_entered(before, hop);
    let wire = match hop.outer {
        Some(outer) if arrival => format!(" ← {}", end_of_wire(outer.src, outer.src_port)),
        Some(outer) if departure => format!(" → {}", end_of_wire(outer.dst, outer.dst_port)),
        _ => String::new(),
    };
    Some(Item::new(format!("{name}{netns}{wire}"), Tone::Plain))
}

fn end_of_wire(addr: IpAddr, port: Option<u16>) -> String {
    port.map_or_else(
        || addr.to_string(),
        |port| SocketAddr::new(addr, port).to_string(),
    )
}

/// What happened at a hop beyond passing a device.
fn end(before: Option<&Hop>, hop: &Hop, losses: &[Loss]) -> Option<Item> {
    let innocent = |loss: &Loss| loss.innocent && loss.time.is_some() && loss.time == hop.time;
    let (mut text, tone) = match hop.stage {
        Stage::Listener => ("listener ✓".to_owned(), Tone::Good),
        Stage::Socket => ("socket ✓".to_owned(), Tone::Good),
        Stage::Drop => {
            let function = hop.function.as_deref().unwrap_or("the kernel");
            if losses.iter().any(innocent) {
                (format!("ended in {function}"), Tone::Weak)
            } else {
                (format!("✗ {function}"), Tone::Bad)
            }
        }
        Stage::LocalOut if hop.device.is_none() => ("local stack".to_owned(), Tone::Plain),
        Stage::Forward => ("forwarded".to_owned(), Tone::Weak),
        Stage::Nat => ("translated".to_owned(), Tone::Plain),
        _ => return None,
    };
    if hop.device.is_none() {
        text += &netns_entered(before, hop);
    }
    Some(Item::new(text, tone))
}

/// The namespace in parentheses, where the packet was not in it a hop before.
fn netns_entered(before: Option<&Hop>, hop: &Hop) -> String {
    if before.is_some_and(|before| before.netns == hop.netns) {
        return String::new();
    }
    let name = hop
        .netns_name
        .clone()
        .or(hop.netns.map(|inum| inum.to_string()));
    name.map(|name| format!(" (netns {name})"))
        .unwrap_or_default()
}
