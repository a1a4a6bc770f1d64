//! Somebody said no: a RST or an ICMP error that answers the request.

use super::Scene;
use super::diagnosis::{Diagnosis, Evidence};
use super::finding::Finding;
use super::lost::{arrived_in_tcp, next_of};
use crate::codes::{CauseCode, Confidence, Stage, VerdictCode};
use crate::flow::copies::{End, Transmission};
use crate::flow::pairing::Flow;
use crate::flow::{Point, Sighting};

/// The request was answered with a RST, or with an ICMP error that says that the server cannot be reached. A client that
/// waits for a SYN-ACK gives up when it hears that the SYN went in circles; to a datagram that happens on purpose
/// (traceroute).
pub(super) fn refused<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Option<Finding<'a>> {
    let rst = flow.refusals.first().map(Transmission::first);
    let unreachable = flow.errors.iter().copied().find(|error| {
        error
            .icmp
            .is_some_and(|icmp| icmp.is_unreachable() || flow.is_tcp() && icmp.is_ttl_exceeded())
    });
    let answer = rst.or(unreachable)?;
    // The SYN that is refused is freed just before or just after the answer is made.
    let killer = flow
        .request
        .iter()
        .flat_map(|request| request.sightings().iter().copied())
        .filter_map(|sighting| Some((sighting, scene.diagnose(sighting)?)))
        .map(|(sighting, diagnosis)| (sighting, without_listener(sighting, diagnosis, answer)))
        .min_by_key(|(sighting, _)| sighting.time_ns.abs_diff(answer.time_ns));
    let is_elsewhere = killer.is_none();
    let (cause, at) = match killer {
        Some((dead, diagnosis)) if diagnosis.code == CauseCode::Netfilter => (
            Diagnosis {
                code: CauseCode::Rejected,
                ..diagnosis
            },
            dead,
        ),
        // That nobody listens on a UDP port is said by ICMP. Any other error only tells of a death that we saw better.
        Some((_, diagnosis)) if rst.is_none() && diagnosis.code != CauseCode::NoListener => {
            return None;
        }
        Some((dead, diagnosis)) => (diagnosis, dead),
        None => (refused_elsewhere(answer, flow, scene), answer),
    };
    let server = flow.server;
    let who = match (answer.icmp, cause.code) {
        (Some(icmp), CauseCode::Rejected) if at.icmp.is_none() => {
            format!(
                "a netfilter rule answers for {server} with ICMP ({})",
                icmp.words()
            )
        }
        (_, CauseCode::NoListener) => format!("nobody listens on {server}"),
        (Some(icmp), _) => format!("{} says by ICMP: {}", icmp.from, icmp.words()),
        (None, CauseCode::Rejected) => format!("a netfilter rule answers for {server} with a RST"),
        (None, _) => format!("{server} answers with a RST"),
    };
    let mut summary = format!("refused: {who} ({})", scene.place_words(at));
    let fates: Vec<End<'_>> = flow
        .refusals
        .iter()
        .map(|refusal| scene.end(refusal))
        .collect();
    if let Some(End::Died(dead)) = fates.last()
        && fates
            .iter()
            .all(|end| matches!(end, End::Died(dead) if !arrived_in_tcp(dead)))
    {
        let place = scene.place_words(dead);
        summary = format!("{summary}, and the RST died {place}, so the client sees a timeout");
    }
    let finding =
        Finding::new(VerdictCode::Refused, Confidence::Proven, summary).at(at, cause.stage);
    Some(Finding {
        next: if is_elsewhere {
            Some(elsewhere(answer, flow))
        } else {
            next_of(at, &cause, scene)
        },
        cause: Some(cause),
        ..finding
    })
}

/// Before Linux 5.17 nothing but the answer says why the transport layer freed a request: `tcp_v4_rcv` and
/// `__udp4_lib_rcv`, and their IPv6 twins, answer a packet for which they find no socket and free it there.
fn without_listener(dead: &Sighting, diagnosis: Diagnosis, answer: &Sighting) -> Diagnosis {
    let Point::Drop(death) = &dead.point else {
        return diagnosis;
    };
    let finds_sockets = match answer.icmp {
        None => ["tcp_v4_rcv", "tcp_v6_rcv"],
        Some(icmp) if icmp.is_port_unreachable() => ["__udp4_lib_rcv", "__udp6_lib_rcv"],
        Some(_) => return diagnosis,
    };
    if death.reason.is_some() || !finds_sockets.contains(&death.location.plain_name()) {
        return diagnosis;
    }
    Diagnosis {
        code: CauseCode::NoListener,
        phrase: format!("because no socket takes {}", dead.tuple.dst),
        ..diagnosis
    }
}

/// What to run where the answer was made.
fn elsewhere(answer: &Sighting, flow: &Flow<'_>) -> String {
    let tunnel = answer.tunnels.first().map(|tunnel| tunnel.outer_src);
    let host = tunnel.unwrap_or(answer.icmp.map_or(flow.server.ip(), |icmp| icmp.from));
    format!(
        "run `sudo tracer trace host {} and port {}` on {host}",
        flow.server.ip(),
        flow.server.port()
    )
}

/// A refusal whose reason lies outside the view.
fn refused_elsewhere(answer: &Sighting, flow: &Flow<'_>, scene: &Scene<'_>) -> Diagnosis {
    let place = scene.place_words(answer);
    let (code, what, detail) = match answer.icmp {
        Some(icmp) => (
            if !flow.is_tcp() && icmp.is_port_unreachable() && icmp.from == answer.tuple.dst.ip() {
                CauseCode::NoListener
            } else if icmp.is_ttl_exceeded() {
                CauseCode::Ttl
            } else if icmp.is_prohibited() {
                CauseCode::Rejected
            } else {
                CauseCode::Unknown
            },
            format!("ICMP {}", icmp.words()),
            format!("the ICMP error of {} was first seen {place}", icmp.from),
        ),
        None => (
            CauseCode::Unknown,
            "RST that acknowledges the SYN".to_owned(),
            format!(
                "the RST was first seen {place}: a closed port there, or a firewall on the way, sent it"
            ),
        ),
    };
    Diagnosis {
        code,
        stage: if answer.point == Point::Receive {
            Stage::Ingress
        } else {
            Stage::LocalOut
        },
        phrase: format!("by {what}"),
        detail: Some(detail),
        evidence: vec![Evidence::Event {
            time_ns: answer.time_ns,
            summary: what,
        }],
    }
}
