//! Follows the flows that the filter selects through address translation: what it names may be on the wire at two
//! of ten hops.
//!
//! A packet keeps its skb while its addresses are replaced. So if one skb shows a selected flow and then other
//! addresses, or the other way round, and what it says is the same, those are the same flow, which is selected from then on in
//! both directions. Which addresses that are is never forgotten while the trace runs: a later connection that happens
//! to have them is reported too, unasked.
//!
//! - **TCP** is followed by its handshake, whose sequence numbers nobody else has.
//! - **Datagrams and echoes** say little: an skb that was delivered is soon another packet's, often of the same length.
//!   So only one that was received and goes on in the same namespace with a hop less, as what is forwarded does, is the
//!   same packet under other addresses; or one that dies there. One end of it must be as it was, unless this CPU
//!   received nothing else in between. Those that are selected are remembered by their skb; of all others, which
//!   must pay next to nothing, the last that this CPU received, since a packet is mostly forwarded at once. That one is
//!   also found where the kernel puts the packet into another skb on the way (`skb_expand_head`, for want of
//!   headroom).
//!   Fragments are not followed: those behind the first have no ports, and conntrack puts all of them together.
//!
//! `tracer/src/flow/table.rs` joins the five-tuples by the same rules. Nothing of this runs where no filter is set.

use tracer_common::{
    event::Kind,
    ledger::Counter,
    packet::{Layer, Packet, TCP_ACK, TCP_RST, TCP_SYN, flow_echo_id, flow_hash, halves},
};

use crate::{
    config::config,
    maps::{FOLLOWING, LAST_RECEIVED, PASSING, TRANSLATED, count},
    socket::bytes,
};

/// In [`FOLLOWING`]: whether any flow was translated.
const TRANSLATION: u32 = 0;
/// In [`FOLLOWING`]: whether any datagram was remembered.
const DATAGRAM: u32 = 1;

/// A packet that may still be translated.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Passing {
    skb: u64,
    /// What it says, which no translation changes.
    says: u64,
    /// The addresses that it had last, as words.
    src: [u64; 2],
    dst: [u64; 2],
    src_port: u16,
    dst_port: u16,
    echo_id: u16,
    protocol: u8,
    /// The TCP flags, or the ICMP type.
    what: u8,
    netns_inum: u32,
    hop_limit: u16,
    selected: u16,
}

/// Whether the flow is selected under other addresses than these.
#[inline(always)]
pub fn is_followed(packet: &Packet) -> bool {
    is_any(TRANSLATION) && is_translated(packet.flow_hash(config!(flow_seed)))
}

/// Whether the flow of the packet in this skb is selected, by the filter (`matches`) or under other addresses; learns
/// what the packet teaches. The skb is not seen again after [`Kind::Drop`] and [`Kind::Consume`], of which the namespace
/// is not known yet (0).
///
/// Not inlined, so that the verifier walks it apart from what its caller knows of the packet.
#[inline(never)]
pub fn follow(packet: &Packet, skb: u64, matches: bool, kind: Kind, netns_inum: u32) -> bool {
    let Some(layer) = packet.inner() else {
        return matches;
    };
    let echo = layer.is_echo_request() || layer.is_echo_reply();
    if layer.is_tcp() {
        if layer.tcp_flags & (TCP_SYN | TCP_RST) == TCP_SYN {
            return handshake(packet, layer, skb, matches, kind);
        }
    } else if layer.is_udp() || echo {
        return datagram(packet, layer, skb, matches, kind, netns_inum);
    }
    matches || is_followed(packet)
}

#[inline(always)]
fn handshake(packet: &Packet, layer: &Layer, skb: u64, matches: bool, kind: Kind) -> bool {
    let now = &mut Passing::of(packet, layer, skb, matches, 0);
    // SAFETY: the value is copied at once.
    let before = unsafe { PASSING.get(skb) }.copied();
    if let Some(before) = before
        && is_translated_to(&before, now)
    {
        learn(&before, now);
    }
    if dies(kind) {
        // Absent where this is the only place at which it was seen.
        let _ = PASSING.remove(skb);
    } else if PASSING.insert(skb, *now, 0).is_err() {
        count(Counter::TableFull);
    }
    now.selected != 0
}

#[inline(always)]
fn datagram(
    packet: &Packet,
    layer: &Layer,
    skb: u64,
    matches: bool,
    kind: Kind,
    netns_inum: u32,
) -> bool {
    let now = &mut Passing::of(packet, layer, skb, matches, netns_inum);
    if matches!(kind, Kind::Receive) {
        if now.selected == 0 {
            // What was remembered of this skb is another packet's.
            if is_any(DATAGRAM) {
                let _ = PASSING.remove(skb);
            }
        } else {
            if PASSING.insert(skb, *now, 0).is_err() {
                count(Counter::TableFull);
            }
            note(DATAGRAM);
        }
        if let Some(last) = LAST_RECEIVED.get_ptr_mut(0) {
            // SAFETY: the pointer is this CPU's map value; a hook that interrupts this one leaves a packet that passed, too.
            unsafe { last.write(*now) };
        }
        return now.selected != 0;
    }
    let Some(last) = LAST_RECEIVED.get_ptr(0) else {
        return now.selected != 0;
    };
    // SAFETY: the value stays readable while this program runs.
    let last = unsafe { &*last };
    let came_at_once = last.skb == skb;
    let known = if !came_at_once && is_any(DATAGRAM) {
        PASSING.get_ptr(skb)
    } else {
        None
    };
    // SAFETY: as above.
    let before = known.map_or(last, |known| unsafe { &*known });
    let hops = before.hop_limit.wrapping_sub(now.hop_limit);
    let goes_on = if dies(kind) {
        hops <= 1
    } else {
        hops == 1 && before.netns_inum == netns_inum
    };
    let keeps_an_end = is_same_src(before, now) || is_same_dst(before, now);
    // The skb alone proves nothing: where the kernel copies a packet on its way, the skb that came is free at once, and
    // the next packet's.
    let is_same = keeps_an_end || came_at_once && !dies(kind);
    if goes_on && is_same && is_translated_to(before, now) {
        learn(before, now);
    }
    now.selected != 0
}

/// Whether two sightings show one packet with other addresses, only one of which are selected.
#[inline(always)]
fn is_translated_to(before: &Passing, now: &Passing) -> bool {
    before.selected != now.selected
        && before.says == now.says
        && before.what == now.what
        && before.protocol == now.protocol
        && !(is_same_src(before, now) && is_same_dst(before, now))
}

/// Who asks an echo is known by its identifier as well, which stands for a port.
#[inline(always)]
fn is_same_src(before: &Passing, now: &Passing) -> bool {
    before.src_port == now.src_port && before.echo_id == now.echo_id && before.src == now.src
}

#[inline(always)]
fn is_same_dst(before: &Passing, now: &Passing) -> bool {
    before.dst_port == now.dst_port && before.dst == now.dst
}

/// Selects the flow that is not selected yet.
#[inline(always)]
fn learn(before: &Passing, now: &mut Passing) {
    let flow = if now.selected == 0 {
        now.flow_hash()
    } else {
        before.flow_hash()
    };
    if TRANSLATED.insert(flow, 1u8, 0).is_err() {
        count(Counter::TableFull);
    }
    note(TRANSLATION);
    now.selected = 1;
}

impl Passing {
    /// What is remembered of a packet that passes; it is selected if it `matches`, or under other addresses.
    #[inline(always)]
    fn of(packet: &Packet, layer: &Layer, skb: u64, matches: bool, netns_inum: u32) -> Self {
        let (says, what) = if layer.is_tcp() {
            (
                u64::from(layer.seq) << 32 | u64::from(layer.ack),
                layer.tcp_flags & (TCP_SYN | TCP_ACK),
            )
        } else {
            // Of an echo the sequence number; the identifier is translated as a port is.
            let number = u64::from(layer.icmp_rest as u16);
            (
                u64::from(layer.payload_len) << 32 | u64::from(layer.ip_id as u16) << 16 | number,
                layer.icmp_type,
            )
        };
        Self {
            skb,
            says,
            src: halves(&layer.src),
            dst: halves(&layer.dst),
            src_port: layer.src_port,
            dst_port: layer.dst_port,
            echo_id: flow_echo_id(layer),
            protocol: layer.protocol,
            what,
            netns_inum,
            hop_limit: u16::from(layer.ttl),
            selected: u16::from(matches || is_followed(packet)),
        }
    }

    /// [`Packet::flow_hash`] of the addresses that it had last: it takes longer than all the rest, and is seldom asked for.
    #[inline(always)]
    fn flow_hash(&self) -> u64 {
        flow_hash(
            (&bytes(self.src), self.src_port),
            (&bytes(self.dst), self.dst_port),
            self.protocol,
            self.echo_id,
            config!(flow_seed),
        )
    }
}

#[inline(always)]
fn dies(kind: Kind) -> bool {
    matches!(kind, Kind::Drop | Kind::Consume)
}

/// Whether something was [`note`]d.
#[inline(always)]
fn is_any(what: u32) -> bool {
    FOLLOWING.get(what).is_some_and(|any| *any != 0)
}

#[inline(always)]
fn note(what: u32) {
    if let Some(any) = FOLLOWING.get_ptr_mut(what) {
        // SAFETY: the pointer is that of a map's value; whoever writes it writes the same.
        unsafe { any.write_volatile(1) };
    }
}

#[inline(always)]
fn is_translated(flow: u64) -> bool {
    // SAFETY: only the presence of the key is used.
    unsafe { TRANSLATED.get(flow) }.is_some()
}
