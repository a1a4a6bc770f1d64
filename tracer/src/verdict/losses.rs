//! The packets of a flow that died, and which of those deaths explain nothing. Innocence follows from the flow's
//! state, not from a place: one address in `tcp_v4_rcv` frees a repeated SYN, a late SYN-ACK, a RST and a refused SYN.

use super::diagnosis::Diagnosis;
use super::{Scene, gave_up_at};
use crate::codes::PacketKind;
use crate::event::{Death, Symbol};
use crate::flow::copies::{End, Transmission, is_bystander, was_asked, was_queued};
use crate::flow::pairing::Flow;
use crate::flow::{Point, Segment, Sighting, TcpFlags};

/// A packet that died.
#[derive(Debug)]
pub struct Loss<'a> {
    /// Which packet.
    pub packet: PacketKind,
    /// Its death.
    pub sighting: &'a Sighting,
    /// Why.
    pub diagnosis: Diagnosis,
    /// Its absence explains nothing.
    pub innocent: bool,
    /// Why it is innocent, or what its loss did.
    pub why: String,
}

/// The reasons with which TCP frees what it has no more use for.
const SPENT: [&str; 6] = [
    "SOCKET_CLOSE",
    "TCP_RESET",
    "TCP_CLOSE",
    "TCP_OLD_DATA",
    "TCP_OLD_ACK",
    "TCP_OFOMERGE",
];

/// Every death in a flow, in the order of time.
pub fn of<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Vec<Loss<'a>> {
    let parts = [
        (flow.request_kind(), &flow.request),
        (flow.reply_kind(), &flow.reply),
        (PacketKind::Ack, &flow.ack),
        (PacketKind::Rst, &flow.refusals),
        (PacketKind::Rst, &flow.resets),
    ];
    let handshake = parts.into_iter().flat_map(|(packet, transmissions)| {
        transmissions.iter().flat_map(move |transmission| {
            let went_on = !matches!(scene.end(transmission), End::Died(_));
            let sightings = transmission.sightings().iter().copied();
            sightings.map(move |sighting| (packet, sighting, went_on))
        })
    });
    let data = flow
        .data
        .iter()
        .map(|sighting| (PacketKind::Data, *sighting, false));
    let errors = flow.errors.iter().chain(&flow.errors_back);
    let errors = errors.map(|sighting| (PacketKind::IcmpError, *sighting, false));
    let mut losses: Vec<Loss<'a>> = handshake
        .chain(data)
        .chain(errors)
        .filter_map(|(packet, sighting, went_on)| {
            let diagnosis = scene.diagnose(sighting)?;
            let innocent = innocent_because(packet, sighting, flow)
                .or_else(|| went_on.then_some("a copy of a packet that went on"));
            let why = innocent.map_or_else(|| effect(packet, sighting, flow), str::to_owned);
            Some(Loss {
                packet,
                sighting,
                diagnosis,
                innocent: innocent.is_some(),
                why,
            })
        })
        .collect();
    losses.sort_by_key(|loss| loss.sighting.order());
    losses
}

/// Why a death explains nothing, if so.
pub fn innocent_because(
    packet: PacketKind,
    sighting: &Sighting,
    flow: &Flow<'_>,
) -> Option<&'static str> {
    let Point::Drop(death) = &sighting.point else {
        return None;
    };
    let reason = death.reason.as_deref().unwrap_or_default();
    // What a host has to do with an error it does before it frees it (icmp_rcv, icmpv6_rcv).
    if packet == PacketKind::IcmpError && is_icmps_own(sighting) {
        return Some("the host has read it");
    }
    let in_tcp = freed_in_tcp(death);
    let since = |transmissions: &[Transmission<'_>]| {
        transmissions
            .first()
            .is_some_and(|first| first.first().time_ns < sighting.time_ns)
    };
    match packet {
        PacketKind::Syn if in_tcp && since(&flow.reply) => {
            Some("a repeated SYN that met the pending request: the listener has it")
        }
        PacketKind::SynAck
            if in_tcp && gave_up_at(flow).is_some_and(|at| at <= sighting.time_ns) =>
        {
            Some("it came after the client had given up")
        }
        PacketKind::SynAck if in_tcp && since(&flow.ack) => {
            Some("a repeated SYN-ACK: the client has answered already")
        }
        PacketKind::Ack if in_tcp && flow.client_reset_before(sighting) => {
            Some("the RST with which the client ended the connection overtook it")
        }
        PacketKind::Ack if is_superfluous(death) && flow.server_established() => {
            Some("another ACK had completed the connection, or was about to")
        }
        PacketKind::EchoReply if is_icmps_own(sighting) => {
            Some("the host has it: ping listens to a copy")
        }
        PacketKind::EchoRequest if was_asked(sighting) => {
            Some("the host has read it, and could not answer")
        }
        PacketKind::Answer | PacketKind::DatagramBack if is_unwanted(death) => {
            Some("it came after the client had closed its socket")
        }
        PacketKind::Rst if in_tcp => Some("a RST has no more to do once TCP has seen it"),
        PacketKind::Data if in_tcp && !death.has_reason() && is_read(&sighting.segment()) => {
            Some("it carries no data, and TCP has read the rest")
        }
        _ if is_spent(death) && flow.is_tcp() => Some("TCP had no more use for it"),
        _ if was_queued(sighting) => Some("its socket was closed before it was read"),
        _ if reason == "OTHERHOST" && has_twin(sighting, flow) => {
            Some("a copy that a bridge flooded to a host it was not meant for")
        }
        _ if reason != "OTHERHOST" && is_bystander(sighting) => {
            Some("a copy for a sniffer, which could not take it")
        }
        _ => None,
    }
}

/// An ACK that comes to a connection, and is not one that it waits for (`tcp_validate_incoming`), or that comes to the
/// listener while another CPU makes the connection of the ACK before it (`tcp_rcv_state_process`, Linux 6.18).
fn is_superfluous(death: &Death) -> bool {
    let is_validating = std::iter::once(&death.location)
        .chain(death.own_callers())
        .any(|symbol| symbol.plain_name() == "tcp_validate_incoming");
    is_validating || freed_in_tcp(death) && death.reason.as_deref() == Some("TCP_FLAGS")
}

/// While a connection closes, `tcp_rcv_state_process` frees every ACK that it has read, without a reason.
fn is_read(segment: &Segment) -> bool {
    segment.payload_len == 0 && !segment.flags.has(TcpFlags::FIN)
}

/// Freed by TCP's own receive path: the packet arrived.
pub fn freed_in_tcp(death: &Death) -> bool {
    let function = death.location.function.as_str();
    [
        "tcp_v4_",
        "tcp_v6_",
        "tcp_rcv_",
        "tcp_check_req",
        "tcp_validate_incoming",
    ]
    .iter()
    .any(|prefix| function.starts_with(prefix))
}

/// Freed by ICMP itself: the echo reply arrived. A raw socket, as `ping` mostly has, gets a copy before; the original
/// finds no socket (`ping_rcv`, Linux 6.18).
pub(super) fn is_icmps_own(sighting: &Sighting) -> bool {
    let by_icmp = |death: &Death| {
        ["icmp_rcv", "icmpv6_rcv", "ping_rcv"].contains(&death.location.plain_name())
            && !["ICMP_CSUM"].contains(&death.reason.as_deref().unwrap_or_default())
    };
    matches!(&sighting.point, Point::Drop(death) if by_icmp(death))
}

/// Freed by UDP because no socket takes it.
fn is_unwanted(death: &Death) -> bool {
    let function = death.location.plain_name();
    let in_udp = function.starts_with("__udp4_lib_rcv") || function.starts_with("__udp6_lib_rcv");
    in_udp && (!death.has_reason() || death.reason.as_deref() == Some("NO_SOCKET"))
}

/// Freed by TCP's own receive path, whatever it said: the packet arrived.
pub(super) fn arrived(sighting: &Sighting) -> bool {
    matches!(&sighting.point, Point::Drop(death) if freed_in_tcp(death))
}

/// Freed by TCP because the connection is over for the receiver: what follows is a RST, which says so.
pub(super) fn is_refused_by_tcp(sighting: &Sighting) -> bool {
    let over = |death: &Death| {
        let reason = death.reason.as_deref().unwrap_or_default();
        freed_in_tcp(death)
            && (!death.has_reason()
                || reason == "NO_SOCKET"
                || reason == "TCP_CLOSE"
                || reason.starts_with("TCP_ABORT_ON"))
    };
    matches!(&sighting.point, Point::Drop(death) if over(death))
}

/// Whether TCP, or a socket, freed what it has no more use for. A neighbour or a device empties its queue with the reason
/// of a socket's, and kills what nobody has read.
fn is_spent(death: &Death) -> bool {
    let of_socket = |function: &str| {
        ["tcp_", "inet_", "inet6_", "sk_", "__sk_"]
            .iter()
            .any(|prefix| function.starts_with(prefix))
    };
    // The owner of the queue is who has it emptied.
    let owner = std::iter::once(&death.location)
        .chain(death.own_callers())
        .map(Symbol::plain_name)
        .find(|function| !function.contains("queue_purge"));
    let reason = death.reason.as_deref().unwrap_or_default();
    SPENT.contains(&reason) || reason == "QUEUE_PURGE" && owner.is_some_and(of_socket)
}

/// Whether the same packet went on as another skb after this one died.
fn has_twin(dead: &Sighting, flow: &Flow<'_>) -> bool {
    flow.sightings().any(|other| {
        other.message == dead.message
            && other.tuple == dead.tuple
            && other.skb != dead.skb
            && other.netns != dead.netns
            && (dead.message.transmission().is_some()
                || other.time_ns.abs_diff(dead.time_ns) < TWIN_WITHIN_NS)
            && matches!(other.point, Point::Receive | Point::Consume)
    })
}

/// Flooded copies travel together, though on a busy machine one may wait for its turn. What its sender marks needs no
/// bound: a packet that is sent again has another mark.
const TWIN_WITHIN_NS: u64 = 100_000_000;

fn effect(packet: PacketKind, sighting: &Sighting, flow: &Flow<'_>) -> String {
    let next = |transmissions: &[Transmission<'_>]| {
        transmissions
            .iter()
            .map(|transmission| transmission.first().time_ns)
            .find(|time_ns| *time_ns > sighting.time_ns)
    };
    let (what, again) = match packet {
        PacketKind::Ack => ("ACK", next(&flow.ack)),
        PacketKind::Rst => {
            return "the other end never learns that the connection is gone".to_owned();
        }
        PacketKind::Data => return "TCP has to send it again".to_owned(),
        PacketKind::IcmpError => return "its receiver is not told".to_owned(),
        _ if packet == flow.request_kind() => (packet.name(), next(&flow.request)),
        _ => (packet.name(), next(&flow.reply)),
    };
    match again {
        Some(time_ns) => format!(
            "the next {what} came {} later",
            super::words::duration(time_ns - sighting.time_ns)
        ),
        None => format!("no other {what} came after it"),
    }
}
