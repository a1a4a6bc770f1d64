//! What a packet must pass before it costs a record: the namespaces, the filter, the budget of its flow.

use tracer_common::{
    budget::{Allowance, Ruling, Spending},
    event::Kind,
    filter::matches_either_direction,
    ledger::Counter,
    packet::{FLAG_PORTS, Frame, Packet, Status, parse},
};

use crate::{
    config::{config, filter},
    emit::{Scratch, now_ns},
    maps::{FLOWS, NETNS_SET, TUNNEL_PORTS, count},
    skb::{Place, SkBuff, Window},
    translation::{follow, is_followed},
    wireguard,
};

/// Whether the namespace is watched. What has none may belong to any, so it is.
#[inline(always)]
pub fn watches(place: &Place) -> bool {
    if config!(netns_restricted) == 0 || place.netns_inum == 0 {
        return true;
    }
    // SAFETY: only the presence of the key is used.
    unsafe { NETNS_SET.get(place.netns_inum) }.is_some()
}

/// What becomes of a packet at a hook.
#[derive(Clone, Copy)]
pub enum Admission {
    /// It is not wanted.
    Refused,
    /// It is to be reported.
    Granted,
    /// It is to be remembered: what it carries is not known yet.
    Postponed,
}

/// Reads and parses the packet into the scratch space, and says whether it is wanted. The namespace is 0 where it is not
/// known yet.
#[inline(always)]
pub fn admits(
    scratch: &mut Scratch,
    kind: Kind,
    skb: SkBuff,
    window: &Window,
    netns_inum: u32,
) -> Admission {
    if !parse_window(scratch, window) {
        return Admission::Refused;
    }
    scratch.budget_spent = 0;
    scratch.sealed_len = 0;
    if wireguard::is_datagram(scratch) {
        // Its packet was within the budget, or is yet to be weighed.
        return match wireguard::rule(scratch, skb.address_of(), kind) {
            wireguard::Ruling::Ignore => Admission::Refused,
            wireguard::Ruling::Report => Admission::Granted,
            wireguard::Ruling::Remember => Admission::Postponed,
        };
    }
    let packet = &scratch.packet;
    let dies = matches!(kind, Kind::Drop | Kind::Consume);
    let program = filter();
    if !program.matches_all()
        && !follow(
            packet,
            skb.address_of(),
            matches_either_direction(program, packet),
            kind,
            netns_inum,
        )
    {
        if matches!(packet.status, Status::Truncated | Status::TooDeep)
            && packet.inner().is_some_and(|layer| !layer.has(FLAG_PORTS))
        {
            count(Counter::Unreadable);
        }
        return Admission::Refused;
    }
    scratch.header_len = packet.headers_len(scratch.captured.len as u32);
    if dies || within_budget(scratch) {
        Admission::Granted
    } else {
        Admission::Refused
    }
}

/// Whether the flow of what a socket says is selected.
#[inline(always)]
pub fn selects(packet: &Packet) -> bool {
    let program = filter();
    program.matches_all() || matches_either_direction(program, packet) || is_followed(packet)
}

/// Reads and parses the packet; `false` where it is no IP packet, or none that can be read, which is counted.
#[inline(always)]
pub fn parse_window(scratch: &mut Scratch, window: &Window) -> bool {
    if !scratch.fill(window) {
        count(Counter::Unreadable);
        return false;
    }
    let Some(ports) = TUNNEL_PORTS.get(0) else {
        return false;
    };
    let frame = Frame {
        start: window.start,
        len_bytes: window.len_bytes,
    };
    let status = parse(&scratch.captured, frame, ports, &mut scratch.packet);
    if scratch.packet.count == 0 {
        if !matches!(status, Status::NotIp) {
            count(Counter::Unreadable);
        }
        return false;
    }
    true
}

/// Whether the flow's budget allows for one more sighting; notes in the scratch space if it was the last one.
#[inline(always)]
fn within_budget(scratch: &mut Scratch) -> bool {
    let allowance = Allowance::of(&scratch.packet, config!(budget), config!(budget_per_second));
    if allowance.sightings == 0 {
        return true;
    }
    let flow = scratch.packet.flow_hash(config!(flow_seed));
    let Some(spending) = FLOWS.get_ptr_mut(flow) else {
        if FLOWS.insert(flow, Spending::begin(now_ns()), 0).is_err() {
            count(Counter::TableFull);
        }
        return true;
    };
    // SAFETY: the value stays readable while this program runs; two CPUs may count one sighting between them.
    match unsafe { &mut *spending }.take(allowance, now_ns) {
        Ruling::HandOver => true,
        Ruling::HandOverMarked => {
            scratch.budget_spent = 1;
            true
        }
        Ruling::HoldBack => {
            count(Counter::RateLimited);
            false
        }
    }
}
