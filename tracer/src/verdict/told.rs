//! Whether the sender of a packet that was too big was told so: an ICMP error tied to the packet that caused it, followed
//! to the sender and to what the sender did then; or, where there was none, why.

use super::Scene;
use super::question::lookup_back;
use super::size::{self, Check};
use crate::codes::IcmpFate;
use crate::devices::FarEnd;
use crate::fact::{Fact, Route};
use crate::flow::copies::{Transmission, transmissions};
use crate::flow::pairing::Flow;
use crate::flow::{IcmpError, Message, Point, Sighting};

use super::losses;

/// A sender that still sends as much this long after it was told does not act upon it: what it had handed to a queue
/// before has left by then.
const ACTS_WITHIN_NS: u64 = 100_000_000;

/// What the sender of a packet was told.
#[derive(Debug)]
pub struct Told<'a> {
    /// What became of the errors: of the one that came furthest, the latest where several did.
    pub fate: IcmpFate,
    /// How many bytes the way on takes, as far as anything says it: the error, the device, the route.
    pub mtu: Option<u32>,
    /// Where that error was seen first, and last.
    pub seen: Option<(&'a Sighting, &'a Sighting)>,
    /// How many errors there were.
    pub count: usize,
}

impl<'a> Told<'a> {
    /// What the sender of a packet was told. The packet is one that died of its size, or an error that says so of it.
    pub fn of(flow: &Flow<'a>, packet: &Sighting, scene: &Scene<'_>) -> Self {
        let errors = about(flow, packet);
        let furthest = errors
            .iter()
            .map(|error| (fate(error, flow, scene), error))
            .max_by_key(|((fate, at), _)| (rank(*fate), at.order()));
        let mtu = mtu(packet, &errors, scene);
        match furthest {
            Some(((fate, at), error)) => Self {
                fate,
                mtu,
                seen: Some((error.first(), at)),
                count: errors.len(),
            },
            None => Self {
                fate: why_none(packet, scene),
                mtu,
                seen: None,
                count: 0,
            },
        }
    }
}

/// The errors about a packet or about what was sent as part of it; else all that were sent about packets of its direction.
fn about<'a>(flow: &Flow<'a>, packet: &Sighting) -> Vec<Transmission<'a>> {
    let quotes = |error: &&'a Sighting| match (error.message, packet.message) {
        (Message::Tcp(quoted), Message::Tcp(segment)) => {
            quoted.seq.wrapping_sub(segment.seq) < segment.payload_len.max(1)
        }
        (quoted, message) => quoted.content() == message.content(),
    };
    let all: Vec<&'a Sighting> = flow.too_big_errors(packet).collect();
    let own: Vec<&'a Sighting> = all.iter().copied().filter(quotes).collect();
    transmissions(if own.is_empty() { all } else { own }, false)
}

fn fate<'a>(
    error: &Transmission<'a>,
    flow: &Flow<'a>,
    scene: &Scene<'_>,
) -> (IcmpFate, &'a Sighting) {
    let sightings = error.sightings();
    let died = |seen: &&&Sighting| {
        matches!(seen.point, Point::Drop(_) | Point::Refused(_)) && !losses::is_icmps_own(seen)
    };
    let arrived = |seen: &&&Sighting| {
        let to = seen.icmp.map(|icmp| icmp.to).zip(seen.netns);
        seen.point != Point::Xmit
            && to.is_some_and(|(to, netns)| scene.devices().is_local(netns, to))
    };
    if let Some(dead) = sightings.iter().rfind(died) {
        return (IcmpFate::Dropped, dead);
    }
    if let Some(at) = sightings.iter().rfind(arrived) {
        return (reaction(at, flow), at);
    }
    let last = error.last();
    let left = last.point == Point::Xmit
        && last
            .device()
            .is_some_and(|id| scene.devices().far_end(id, scene.view()) == FarEnd::Outside);
    let fate = if left {
        IcmpFate::LeftNode
    } else {
        IcmpFate::NotDelivered
    };
    (fate, last)
}

/// What a sender does that was told: whether it sends the bytes again in smaller packets, or others that are as large.
fn reaction(told: &Sighting, flow: &Flow<'_>) -> IcmpFate {
    let Some(mtu) = told.icmp.and_then(|icmp| icmp.mtu) else {
        return IcmpFate::Delivered;
    };
    let from_client = flow.is_from_client(told);
    let mut sent: Vec<&Sighting> = flow
        .sightings()
        .filter(|seen| seen.icmp.is_none() && flow.is_from_client(seen) == from_client)
        .collect();
    sent.sort_by_key(|seen| seen.order());
    let sent = transmissions(sent, false);
    let later = |after_ns: u64| {
        let since_ns = told.time_ns.saturating_add(after_ns);
        sent.iter()
            .map(Transmission::first)
            .filter(move |seen| seen.time_ns > since_ns)
    };
    if later(ACTS_WITHIN_NS).any(|seen| seen.segment_len() > mtu) {
        return IcmpFate::Ignored;
    }
    let carries = |seen: &Sighting| {
        let segment = seen.segment();
        told.segment().seq.wrapping_sub(segment.seq) < segment.payload_len
    };
    if later(0).any(|seen| carries(seen) && seen.segment_len() <= mtu) {
        return IcmpFate::ActedUpon;
    }
    IcmpFate::Delivered
}

/// How far an error came.
const fn rank(fate: IcmpFate) -> u8 {
    match fate {
        IcmpFate::ActedUpon | IcmpFate::Ignored | IcmpFate::Delivered => 3,
        IcmpFate::Dropped => 2,
        IcmpFate::LeftNode | IcmpFate::NotDelivered => 1,
        _ => 0,
    }
}

/// Why nobody told the sender.
fn why_none(packet: &Sighting, scene: &Scene<'_>) -> IcmpFate {
    let Some(too_big) = size::too_big(packet, scene.devices()) else {
        return IcmpFate::NotSent;
    };
    if too_big.check == Check::Link {
        return IcmpFate::LinkLayer;
    }
    let is_senders = |outer: &crate::flow::Tunnel| outer.outer_src == packet.tuple.src.ip();
    if packet
        .tunnels
        .first()
        .is_some_and(|outer| !is_senders(outer))
    {
        return IcmpFate::TunnelEnd;
    }
    match route_back(packet, scene) {
        Some(route) if route.hops.is_empty() => IcmpFate::NoRouteBack,
        _ => IcmpFate::NotSent,
    }
}

/// What the kernel answered about the way of an error to the sender of a packet.
pub(super) fn route_back<'a>(packet: &Sighting, scene: &Scene<'a>) -> Option<&'a Route> {
    let wanted = lookup_back(packet);
    let answers = scene.analysis.answers.iter().filter_map(|fact| match fact {
        Fact::Route(route) => Some(route.as_ref()),
        _ => None,
    });
    answers
        .filter(|route| {
            Some(route.netns) == packet.netns && route.lookup == wanted && !route.unreached
        })
        .min_by_key(|route| route.asked_ns.abs_diff(packet.time_ns))
}

/// How many bytes the way on takes. The kernel's own word comes first; a device below IP says nothing, but is known.
fn mtu(packet: &Sighting, errors: &[Transmission<'_>], scene: &Scene<'_>) -> Option<u32> {
    let told = errors
        .iter()
        .rev()
        .find_map(|error| error.first().icmp.and_then(|icmp: IcmpError| icmp.mtu));
    told.or_else(|| {
        let narrow = size::too_big(packet, scene.devices())?.narrow?;
        Some(narrow.mtu)
    })
    .or_else(|| scene.route_mtu(packet))
}
