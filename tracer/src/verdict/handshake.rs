//! Judges a TCP handshake.
//!
//! The order of the questions is the order in which an answer ends the matter: was it answered, was it refused
//! (`refusal`), did the reply exist, how far did the request come (`lost`). The transmission that came furthest speaks
//! for its packet.

use super::finding::{Finding, conclude, doubt, in_doubt, weigh};
use super::losses::{self, Loss};
use super::lost::{death, next_of, reply_lost, request_lost};
use super::refusal::refused;
use super::{Judgement, Scene, data, words};
use crate::codes::{Confidence, PacketKind, Stage, VerdictCode};
use crate::event::TcpState;
use crate::flow::copies::{End, Transmission};
use crate::flow::pairing::Flow;
use crate::flow::{Point, Sighting, TcpFlags};

/// Judges a TCP connection attempt.
pub(super) fn judge<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Judgement<'a> {
    let losses = losses::of(flow, scene);
    if flow.request.is_empty() {
        let finding = data::lost(flow, scene).unwrap_or_else(|| unseen(flow));
        let doubt = doubt(flow, &finding, scene)
            .filter(|_| finding.confidence == Confidence::Inferred || finding.code.is_fault());
        return match doubt {
            Some(doubt) => conclude(in_doubt(&doubt, finding), losses, true),
            None => conclude(finding, losses, true),
        };
    }
    if let Some(finding) = answered(flow, &losses, scene) {
        let Some(fault) = data::lost(flow, scene) else {
            return conclude(finding, losses, true);
        };
        let fault = match doubt(flow, &fault, scene) {
            Some(doubt) => in_doubt(&doubt, fault),
            None => fault,
        };
        return conclude(fault, losses, true);
    }
    if let Some(finding) = refused(flow, scene) {
        return conclude(finding, losses, true);
    }
    let finding = ack_dropped(flow, scene)
        .or_else(|| reply_lost(flow, scene))
        .unwrap_or_else(|| request_lost(flow, scene));
    weigh(flow, finding, losses, scene)
}

/// The request was not seen, since it came before the trace or had other addresses: nothing about the handshake can be
/// proven.
fn unseen<'a>(flow: &Flow<'a>) -> Finding<'a> {
    let answers = |end: u32, later: &Sighting| {
        later.segment().flags.has(TcpFlags::ACK)
            && later.segment().ack.wrapping_sub(end).cast_signed() >= 0
    };
    // A SYN-ACK counts as one byte of data.
    let syn_acks = flow.reply.iter().map(|reply| (reply.first(), 1));
    let data = flow
        .data
        .iter()
        .filter(|sighting| sighting.segment().payload_len > 0);
    let acknowledged = syn_acks
        .chain(data.map(|sighting| (*sighting, sighting.segment().payload_len)))
        .any(|(sent, len)| {
            let end = sent.segment().seq.wrapping_add(len);
            flow.data.iter().any(|later| {
                later.tuple.src == sent.tuple.dst
                    && later.order() > sent.order()
                    && answers(end, later)
            })
        });
    if acknowledged {
        return Finding::new(
            VerdictCode::Answered,
            Confidence::Inferred,
            "answered: the request was not seen, but what the connection carries is acknowledged"
                .to_owned(),
        );
    }
    Finding {
        next: Some("start the trace before the client connects".to_owned()),
        ..Finding::inconclusive(
            "inconclusive: the request was not seen, and nothing seen since answers it".to_owned(),
        )
    }
}

/// The client has the reply: it acknowledged it, sent what only a connected client sends, or its socket says so.
fn answered<'a>(flow: &Flow<'a>, losses: &[Loss<'a>], scene: &Scene<'_>) -> Option<Finding<'a>> {
    let went_on = |transmission: &Transmission<'_>| match scene.end(transmission) {
        End::Died(dead) => losses::innocent_because(PacketKind::Ack, dead, flow).is_some(),
        _ => true,
    };
    let acknowledged = flow.ack.iter().any(went_on);
    let client_data = flow
        .data
        .iter()
        .any(|sighting| flow.follows_request(sighting) && !died(sighting, flow));
    if !acknowledged && !client_data && !flow.server_established() {
        // The client's own word does not help if every ACK died on the way.
        let connected = flow.client_state_at(TcpState::Established).is_some();
        if !connected || !flow.ack.is_empty() {
            return None;
        }
    }
    let request = flow.request[0].first();
    let reply = flow.reply.iter().map(Transmission::first).next();
    let took = reply.map(|reply| reply.time_ns.saturating_sub(request.time_ns));
    let lost: Vec<&Loss<'_>> = losses
        .iter()
        .filter(|loss| {
            !loss.innocent
                && matches!(
                    loss.packet,
                    PacketKind::Syn | PacketKind::SynAck | PacketKind::Ack
                )
        })
        .collect();
    let mut summary = "answered".to_owned();
    if let Some(established) = established_at(flow)
        && flow.request.len() > 1
    {
        summary = format!(
            "answered, but slowly: {} after the first SYN, which was sent {}",
            words::duration(established.saturating_sub(request.time_ns)),
            words::times(flow.request.len())
        );
    } else if let Some(took) = took {
        summary = format!("answered in {}", words::duration(took));
    }
    if let Some(loss) = lost.first() {
        summary = format!(
            "{summary}; one {} was killed {} {}",
            loss.packet.name(),
            scene.place_words(loss.sighting),
            loss.diagnosis.phrase
        );
    }
    let finding = Finding::new(VerdictCode::Answered, Confidence::Proven, summary);
    Some(match lost.first() {
        Some(loss) => Finding {
            cause: Some(loss.diagnosis.clone()),
            next: next_of(loss.sighting, &loss.diagnosis, scene),
            ..finding.at(loss.sighting, loss.diagnosis.stage)
        },
        None => finding,
    })
}

fn died(sighting: &Sighting, flow: &Flow<'_>) -> bool {
    flow.data
        .iter()
        .any(|other| matches!(other.point, Point::Drop(_)) && other.segment() == sighting.segment())
}

/// When the client acknowledged the reply.
fn established_at(flow: &Flow<'_>) -> Option<u64> {
    flow.ack
        .first()
        .map(|ack| ack.first().time_ns)
        .or_else(|| flow.client_state_at(TcpState::Established))
}

/// The client answered the reply, and every ACK died.
fn ack_dropped<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Option<Finding<'a>> {
    let furthest = scene.furthest(&flow.ack)?;
    let End::Died(dead) = scene.end(furthest) else {
        return None;
    };
    // TCP frees what it puts aside like what it rejects, but only what it rejects with a reason.
    if let Point::Drop(free) = &dead.point
        && losses::freed_in_tcp(free)
        && !free.has_reason()
    {
        return Some(Finding::inconclusive(format!(
            "inconclusive: the ACK reached {}, whose TCP put it aside without a reason (a listener with TCP_DEFER_ACCEPT waits for data)",
            flow.server
        ))
        .at(dead, Stage::LocalIn));
    }
    Some(death(
        VerdictCode::AckDropped,
        "handshake incomplete",
        PacketKind::Ack,
        dead,
        &flow.ack,
        scene,
    ))
}
