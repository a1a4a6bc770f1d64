//! Follows the flows that the filter selects through address translation: what it names may be on the wire at two
//! of ten hops.
//!
//! A handshake packet keeps its skb and its sequence numbers while its addresses are replaced. So if one skb shows
//! a selected flow and then other addresses, or the other way round, those are the same flow, which is selected from
//! then on in both directions. Which addresses that are is never forgotten while the trace runs: a later connection
//! that happens to have them is reported too, unasked.
//!
//! Nothing of this runs where no filter is set.

use tracer_common::{
    ledger::Counter,
    packet::{Packet, TCP_ACK, TCP_RST, TCP_SYN},
};

use crate::{
    config::config,
    maps::{HANDSHAKES, TRANSLATED, TRANSLATIONS, count},
};

/// A SYN or SYN-ACK, by the skb that carries it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Handshake {
    /// [`Packet::flow_hash`] of the addresses that it had last.
    flow: u64,
    seq: u32,
    ack: u32,
    tcp_flags: u32,
    selected: u32,
}

/// Whether the flow is selected under other addresses than these.
#[inline(always)]
pub fn is_followed(packet: &Packet) -> bool {
    any_translation() && is_translated(packet.flow_hash(config!(flow_seed)))
}

/// Whether the flow of the packet in this skb is selected, by the filter (`matches`) or under other addresses; learns
/// what the packet teaches. `dies` says that this skb is not seen again.
///
/// Not inlined, so that the verifier walks it apart from what its caller knows of the packet.
#[inline(never)]
pub fn follow(packet: &Packet, skb: u64, matches: bool, dies: bool) -> bool {
    let Some(layer) = packet.inner() else {
        return matches;
    };
    if !layer.is_tcp() || layer.tcp_flags & (TCP_SYN | TCP_RST) != TCP_SYN {
        return matches || is_followed(packet);
    }
    let flow = packet.flow_hash(config!(flow_seed));
    let mut now = Handshake {
        flow,
        seq: layer.seq,
        ack: layer.ack,
        tcp_flags: u32::from(layer.tcp_flags & (TCP_SYN | TCP_ACK)),
        selected: u32::from(matches || any_translation() && is_translated(flow)),
    };
    // SAFETY: the value is copied at once.
    let before = unsafe { HANDSHAKES.get(skb) }.copied();
    if let Some(before) = before
        && before.flow != flow
        && before.seq == now.seq
        && before.ack == now.ack
        && before.tcp_flags == now.tcp_flags
        && before.selected != now.selected
    {
        translate(if now.selected == 0 { flow } else { before.flow });
        now.selected = 1;
    }
    if dies {
        // Absent where this is the only place at which it was seen.
        let _ = HANDSHAKES.remove(skb);
    } else if HANDSHAKES.insert(skb, now, 0).is_err() {
        count(Counter::TableFull);
    }
    now.selected != 0
}

#[inline(always)]
fn any_translation() -> bool {
    TRANSLATIONS.get(0).is_some_and(|any| *any != 0)
}

#[inline(always)]
fn is_translated(flow: u64) -> bool {
    // SAFETY: only the presence of the key is used.
    unsafe { TRANSLATED.get(flow) }.is_some()
}

/// Selects the flow from now on.
#[inline(always)]
fn translate(flow: u64) {
    if TRANSLATED.insert(flow, 1u8, 0).is_err() {
        count(Counter::TableFull);
    }
    if let Some(any) = TRANSLATIONS.get_ptr_mut(0) {
        // SAFETY: the pointer is that of a map's value; whoever writes it writes the same.
        unsafe { any.write_volatile(1) };
    }
}
