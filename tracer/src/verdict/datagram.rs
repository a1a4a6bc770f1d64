//! Judges what has no connections: a DNS query, an ICMP echo, the datagrams between two UDP ports.
//!
//! Nothing says here that a reply was wanted, so silence alone is a fault only where the protocol answers, or where the
//! server answered before. Nor does anything say that a reply was read: one that arrived in the client's namespace and
//! did not die there has been delivered.

use std::net::IpAddr;

use super::finding::{Finding, conclude, doubt, weigh};
use super::losses::{self, Loss};
use super::lost::{next_of, reply_lost, request_lost};
use super::refusal::refused;
use super::{Judgement, Scene, large, words};
use crate::codes::{CauseCode, Confidence, PacketKind, Stage, VerdictCode};
use crate::flow::copies::{End, Transmission};
use crate::flow::pairing::Flow;
use crate::flow::{Message, Sighting};

/// The port of DNS, which answers every query; what is no query there is a tunnel's, and need not be answered.
const DNS_PORT: u16 = 53;

/// The port of NTP, which answers whatever it is asked. DHCP's answers are mostly sent to other addresses than its requests
/// came from, so that nothing pairs them.
const NTP_PORT: u16 = 123;

/// Judges an exchange.
pub(super) fn judge<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Judgement<'a> {
    let losses = losses::of(flow, scene);
    if flow.request.is_empty() {
        return conclude(unseen(), losses, true);
    }
    let Some(received_ns) = last_received_ns(flow, scene) else {
        return match unanswered(flow, must_answer(flow), scene) {
            Verdict::Final(finding) => conclude(finding, losses, true),
            Verdict::Open(finding) => weigh(flow, finding, losses, scene),
        };
    };
    let tail = flow.since(received_ns);
    // One answer is enough for a query or an echo.
    if flow.number.is_none() && !tail.request.is_empty() {
        let before = "answered before, but not since: ";
        match unanswered(&tail, true, scene) {
            Verdict::Final(finding) if finding.code.is_fault() => {
                return conclude(finding.after(before), losses, true);
            }
            Verdict::Open(finding) if is_fault_after_answers(&finding, &tail) => {
                return weigh(&tail, finding.after(before), losses, scene);
            }
            _ => {}
        }
    }
    let finding = answered(flow, &losses, scene);
    conclude(finding, losses, true)
}

/// A finding, and whether time can still change it.
enum Verdict<'a> {
    Final(Finding<'a>),
    Open(Finding<'a>),
}

/// Nothing was delivered to the client. Why? `is_awaited` says that a reply should have come.
fn unanswered<'a>(flow: &Flow<'a>, is_awaited: bool, scene: &Scene<'_>) -> Verdict<'a> {
    if let Some(finding) = refused(flow, scene) {
        return Verdict::Final(finding);
    }
    if let Some(finding) = answer_left(flow, scene) {
        return Verdict::Final(finding);
    }
    if let Some(finding) = too_big_elsewhere(flow, scene) {
        return Verdict::Open(finding);
    }
    if let Some(finding) = reply_lost(flow, scene) {
        return Verdict::Open(finding);
    }
    if let Some(finding) = stream_loses(flow, scene) {
        return Verdict::Open(finding);
    }
    let finding = request_lost(flow, scene);
    if finding.code == VerdictCode::RequestNotAnswered && flow.request.iter().any(is_fragmented) {
        return Verdict::Open(Finding::inconclusive(format!(
            "inconclusive: the first fragment of the {} arrived; the others have no ports and are not followed, and nothing came back",
            flow.request_kind().name()
        )));
    }
    if finding.confidence == Confidence::Proven || is_awaited {
        return Verdict::Open(finding);
    }
    Verdict::Final(one_way(flow, scene))
}

/// The latest request or reply did not die here, and a router says by ICMP that it was too big.
fn too_big_elsewhere<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Option<Finding<'a>> {
    let parts = [
        (flow.reply_kind(), &flow.reply),
        (flow.request_kind(), &flow.request),
    ];
    parts.into_iter().find_map(|(kind, part)| {
        let latest = part.last()?;
        let at = match scene.end(latest) {
            End::Died(_) => return None,
            end => end.sighting(),
        };
        let quotes = |error: &&Sighting| error.message.content() == at.message.content();
        let error = flow.too_big_errors(at).filter(quotes).last()?;
        let cause = large::said_by_icmp(error, Stage::Egress)?;
        let summary = format!(
            "too big: the {} was last seen {}, and {}",
            kind.name(),
            scene.place_words(at),
            cause.phrase
        );
        Some(
            Finding::new(VerdictCode::MtuDropped, Confidence::Proven, summary)
                .at(at, Stage::Egress)
                .because(cause),
        )
    })
}

/// A reply left the view and the client did not ask again: whoever waits outside has it.
fn answer_left<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Option<Finding<'a>> {
    let left = flow.reply.iter().find_map(|reply| match scene.end(reply) {
        End::Left(at) => Some(at),
        _ => None,
    })?;
    let asked_again = |request: &Transmission<'_>| request.first().order() > left.order();
    // Datagrams without a number may all be questions of their own.
    if flow.number.is_some() && flow.request.iter().any(asked_again) {
        return None;
    }
    let took = left.time_ns.saturating_sub(flow.request[0].first().time_ns);
    Some(Finding::new(
        VerdictCode::Answered,
        Confidence::Inferred,
        format!(
            "answered in {}: the {} left this node {}, and the {} did not come again",
            words::duration(took),
            flow.reply_kind().name(),
            scene.place_words(left),
            flow.request_kind().name()
        ),
    ))
}

/// Some datagrams of a stream came through, and later ones died.
fn stream_loses<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Option<Finding<'a>> {
    if flow.number.is_some() {
        return None;
    }
    let went_on = |end: &End<'_>| !matches!(end, End::Died(_));
    let ends: Vec<End<'a>> = flow.request.iter().map(|each| scene.end(each)).collect();
    let first_through = ends.iter().position(went_on)?;
    let dead: Vec<&'a Sighting> = ends[first_through..]
        .iter()
        .filter(|end| !went_on(end))
        .map(|end| end.sighting())
        .filter(|dead| losses::innocent_because(PacketKind::Datagram, dead, flow).is_none())
        .collect();
    let last = *dead.last()?;
    let cause = scene.diagnose(last)?;
    let how_many = if flow.sampled_since_ns.is_some() {
        format!("at least {} datagrams", dead.len())
    } else {
        format!("{} of {} datagrams", dead.len(), flow.request.len())
    };
    let (code, what) = match cause.code {
        CauseCode::Mtu => (VerdictCode::MtuDropped, "too big: "),
        _ => (VerdictCode::DataDropped, ""),
    };
    let summary = format!(
        "{what}{how_many} dropped {} {}",
        scene.place_words(last),
        cause.phrase
    );
    Some(Finding {
        next: next_of(last, &cause, scene),
        // No later datagram changes that this one died.
        died_twice: true,
        ..Finding::new(code, Confidence::Proven, summary)
            .at(last, cause.stage)
            .because(cause)
    })
}

/// The client has a reply.
fn answered<'a>(flow: &Flow<'a>, losses: &[Loss<'a>], scene: &Scene<'_>) -> Finding<'a> {
    let request = flow.request[0].first();
    let took = flow
        .reply
        .iter()
        .filter(|reply| received(reply, scene).is_some())
        .map(Transmission::first)
        .next()
        .map(|reply| reply.time_ns.saturating_sub(request.time_ns));
    let mut summary = match took {
        Some(took) => format!("answered in {}", words::duration(took)),
        None => "answered".to_owned(),
    };
    if flow.number.is_some() && flow.request.len() > 1 {
        summary = format!(
            "{summary}, to a {} that was sent {}",
            flow.request_kind().name(),
            words::times(flow.request.len())
        );
    }
    let lost = losses.iter().find(|loss| !loss.innocent);
    if let Some(loss) = lost {
        summary = format!(
            "{summary}; one {} was killed {} {}",
            loss.packet.name(),
            scene.place_words(loss.sighting),
            loss.diagnosis.phrase
        );
    }
    let finding = Finding::new(VerdictCode::Answered, Confidence::Proven, summary);
    // Only that no death was seen says that the client could read it.
    let confidence = match doubt(flow, &finding, scene) {
        Some(_) => Confidence::Inferred,
        None => Confidence::Proven,
    };
    let finding = Finding {
        confidence,
        ..finding
    };
    match lost {
        Some(loss) => Finding {
            cause: Some(loss.diagnosis.clone()),
            next: next_of(loss.sighting, &loss.diagnosis, scene),
            ..finding.at(loss.sighting, loss.diagnosis.stage)
        },
        None => finding,
    }
}

fn one_way<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Finding<'a> {
    let count = flow.request.len();
    let furthest = scene.furthest(&flow.request).map(|each| scene.end(each));
    let fate = match furthest {
        Some(End::Delivered(at) | End::Consumed(at)) => {
            format!("arrived {}", scene.place_words(at))
        }
        Some(End::Left(at)) => format!("left this node {}", scene.place_words(at)),
        Some(end) => format!("last seen {}", scene.place_words(end.sighting())),
        None => "not seen to go anywhere".to_owned(),
    };
    let what = match count {
        1 => "one datagram".to_owned(),
        _ => format!("{count} datagrams"),
    };
    let finding = Finding::new(
        VerdictCode::OneWay,
        Confidence::Inferred,
        format!("one way: {what} {fate}, and none came back"),
    );
    match furthest {
        Some(end) => finding.at(
            end.sighting(),
            match end {
                End::Delivered(_) | End::Consumed(_) => Stage::LocalIn,
                _ => Stage::Egress,
            },
        ),
        None => finding,
    }
}

fn unseen<'a>() -> Finding<'a> {
    Finding {
        next: Some("start the trace before the client asks".to_owned()),
        ..Finding::inconclusive(
            "inconclusive: the request was not seen, so nothing says what it waits for".to_owned(),
        )
    }
}

/// Silence after answers is a fault once the client has asked again; a death is one by itself.
fn is_fault_after_answers(finding: &Finding<'_>, tail: &Flow<'_>) -> bool {
    finding.code.is_fault() && (finding.confidence == Confidence::Proven || tail.request.len() >= 2)
}

/// Whether only the first of several fragments was followed.
fn is_fragmented(transmission: &Transmission<'_>) -> bool {
    let mut sightings = transmission.sightings().iter();
    sightings.any(|seen| matches!(seen.message, Message::Udp(datagram) if datagram.fragmented))
}

/// Whether silence is a fault by itself: somebody was asked who answers.
fn must_answer(flow: &Flow<'_>) -> bool {
    let answers = match flow.request_kind() {
        PacketKind::Datagram => flow.server.port() == NTP_PORT,
        PacketKind::Query => flow.server.port() == DNS_PORT,
        _ => true,
    };
    answers && is_one_host(flow.server.ip())
}

/// Whether an address is that of one host. The broadcast address of a network looks like a host's.
fn is_one_host(addr: IpAddr) -> bool {
    match addr {
        IpAddr::V4(addr) => !addr.is_multicast() && !addr.is_broadcast(),
        IpAddr::V6(addr) => !addr.is_multicast(),
    }
}

/// When the last reply was seen that reached the client.
fn last_received_ns(flow: &Flow<'_>, scene: &Scene<'_>) -> Option<u64> {
    flow.reply
        .iter()
        .filter_map(|reply| received(reply, scene))
        .map(|at| at.time_ns)
        .max()
}

/// Where a reply reached the client, if it did.
fn received<'a>(reply: &Transmission<'a>, scene: &Scene<'_>) -> Option<&'a Sighting> {
    match scene.end(reply) {
        End::Delivered(at) | End::Consumed(at) => Some(at),
        End::Died(at) if losses::is_icmps_own(at) => Some(at),
        _ => None,
    }
}
