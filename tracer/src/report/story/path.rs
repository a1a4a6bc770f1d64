//! The way of a packet as a row of devices, tunnels and ends.

use super::{Item, Row, Tone};
use crate::report::{Hop, Stage};

/// A namespace by its name and number.
pub(super) fn netns(name: Option<&str>, inum: Option<u32>) -> Option<String> {
    match (name, inum) {
        (Some(name), Some(inum)) => Some(format!("netns {name} ({inum})")),
        (Some(name), None) => Some(format!("netns {name}")),
        (None, Some(inum)) => Some(format!("netns {inum}")),
        (None, None) => None,
    }
}

/// The line of a packet that was seen.
pub(super) fn row(label: &str, path: &[Hop], count: u64) -> Row {
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
        items.extend(end(hop));
        before = Some(hop);
    }
    if path.is_empty() {
        items.push(Item::new("seen, its path is not known", Tone::Weak));
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
    let mut text = hop.device.clone()?;
    if before.is_none_or(|before| before.netns != hop.netns) {
        let name = hop
            .netns_name
            .clone()
            .or(hop.netns.map(|inum| inum.to_string()));
        if let Some(name) = name {
            text = format!("{text} (netns {name})");
        }
    }
    let wire = match hop.outer {
        Some(outer) if arrival => format!(" ← {}", outer.src),
        Some(outer) if departure => format!(" → {}", outer.dst),
        _ => String::new(),
    };
    text += &wire;
    Some(Item::new(text, Tone::Plain))
}

/// What happened at a hop beyond passing a device.
fn end(hop: &Hop) -> Option<Item> {
    let (text, tone) = match hop.stage {
        Stage::Listener => ("listener ✓".to_owned(), Tone::Good),
        Stage::Socket => ("socket ✓".to_owned(), Tone::Good),
        Stage::Drop => {
            let function = hop.function.as_deref().unwrap_or("the kernel");
            (format!("✗ {function}"), Tone::Bad)
        }
        Stage::LocalOut if hop.device.is_none() => ("local stack".to_owned(), Tone::Plain),
        Stage::Forward => ("forwarded".to_owned(), Tone::Weak),
        Stage::Nat => ("translated".to_owned(), Tone::Plain),
        _ => return None,
    };
    Some(Item::new(text, tone))
}
