//! Judges a TCP handshake.
//!
//! The order of the questions is the order in which an answer ends the matter: was it answered, was it refused,
//! did the reply exist, how far did the request come. The transmission that came furthest speaks for its packet.

use super::diagnosis::{self, Diagnosis, Evidence};
use super::losses::{self, Loss};
use super::{Judgement, Place, Scene, words};
use crate::event::{NetnsId, TcpState};
use crate::flow::copies::{End, Transmission};
use crate::flow::pairing::Flow;
use crate::flow::{IcmpError, Point, Sighting, TcpFlags};
use crate::record::Fact;
use crate::report::{CauseCode, Confidence, PacketKind, Stage, VerdictCode};

/// What the handshake rules conclude, before the ledger and the clock have had their say.
struct Finding<'a> {
    code: VerdictCode,
    confidence: Confidence,
    summary: String,
    next: Option<String>,
    at: Option<Place<'a>>,
    cause: Option<Diagnosis>,
    /// It rests on the deaths of the two latest transmissions of its packet: waiting changes nothing.
    died_twice: bool,
}

impl<'a> Finding<'a> {
    fn new(code: VerdictCode, confidence: Confidence, summary: String) -> Self {
        Self {
            code,
            confidence,
            summary,
            next: None,
            at: None,
            cause: None,
            died_twice: false,
        }
    }

    fn inconclusive(summary: String) -> Self {
        Self::new(VerdictCode::Inconclusive, Confidence::Inconclusive, summary)
    }

    fn at(self, sighting: &'a Sighting, stage: Stage) -> Self {
        Self {
            at: Some(Place { sighting, stage }),
            ..self
        }
    }
}

/// Judges a flow.
pub fn judge<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Judgement<'a> {
    let losses = losses::of(flow, scene);
    if flow.request.is_empty() {
        let finding = unseen(flow);
        let doubt =
            doubt(flow, &finding, scene).filter(|_| finding.confidence == Confidence::Inferred);
        return match doubt {
            Some(doubt) => conclude(in_doubt(&doubt, finding), losses, true),
            None => conclude(finding, losses, true),
        };
    }
    if let Some(finding) = answered(flow, &losses, scene).or_else(|| refused(flow, scene)) {
        return conclude(finding, losses, true);
    }
    let finding = ack_dropped(flow, scene)
        .or_else(|| reply_lost(flow, scene))
        .unwrap_or_else(|| request_lost(flow, scene));
    let is_final = scene.now_ns >= Scene::deadline_ns(flow) || finding.died_twice;
    let finding = if finding.code == VerdictCode::Inconclusive {
        finding
    } else if let Some(doubt) = doubt(flow, &finding, scene) {
        in_doubt(&doubt, finding)
    } else if is_final {
        finding
    } else {
        too_early(flow, finding, scene)
    };
    conclude(finding, losses, is_final)
}

fn conclude<'a>(finding: Finding<'a>, losses: Vec<Loss<'a>>, is_final: bool) -> Judgement<'a> {
    Judgement {
        code: finding.code,
        confidence: finding.confidence,
        summary: finding.summary,
        next: finding.next,
        at: finding.at,
        cause: finding.cause,
        losses,
        is_final,
    }
}

/// Why the finding cannot be trusted: something that could have changed it was lost or never watched.
fn doubt(flow: &Flow<'_>, finding: &Finding<'_>, scene: &Scene<'_>) -> Option<String> {
    if flow.first_ns() < scene.analysis.header.start_ns {
        return Some("it began while the hooks were still being attached".to_owned());
    }
    if scene.analysis.lost_between(flow.first_ns(), scene.now_ns) {
        return Some("events were lost while this flow was watched (see the ledger)".to_owned());
    }
    if flow.left_out {
        return Some("this flow had more packets than are kept".to_owned());
    }
    let missing = scene
        .missing_hook()
        .filter(|_| finding.confidence == Confidence::Inferred)?;
    Some(format!(
        "{missing} is not watched on this kernel, so absence proves nothing"
    ))
}

fn in_doubt<'a>(doubt: &str, finding: Finding<'a>) -> Finding<'a> {
    Finding {
        code: VerdictCode::Inconclusive,
        confidence: Confidence::Inconclusive,
        summary: format!(
            "inconclusive: {doubt}; it looks like this: {}",
            finding.summary
        ),
        next: Some("trace again with a narrower filter".to_owned()),
        ..finding
    }
}

fn too_early<'a>(flow: &Flow<'_>, finding: Finding<'a>, scene: &Scene<'_>) -> Finding<'a> {
    let since = scene.now_ns.saturating_sub(flow.request[0].first().time_ns);
    Finding {
        code: VerdictCode::Inconclusive,
        confidence: Confidence::Inconclusive,
        summary: format!(
            "inconclusive: window closed {} ms after the request; so far it looks like this: {}",
            since / 1_000_000,
            finding.summary
        ),
        next: Some(
            "trace for longer (`--for 30s`), or until there is a verdict (`--until-verdict`)"
                .to_owned(),
        ),
        ..finding
    }
}

/// The request came before the trace: nothing about the handshake can be proven.
fn unseen<'a>(flow: &Flow<'a>) -> Finding<'a> {
    let answers = |end: u32, later: &Sighting| {
        later.segment.flags.has(TcpFlags::ACK)
            && later.segment.ack.wrapping_sub(end).cast_signed() >= 0
    };
    // A SYN-ACK counts as one byte of data.
    let syn_acks = flow.reply.iter().map(|reply| (reply.first(), 1));
    let data = flow
        .data
        .iter()
        .filter(|sighting| sighting.segment.payload_len > 0);
    let acknowledged = syn_acks
        .chain(data.map(|sighting| (*sighting, sighting.segment.payload_len)))
        .any(|(sent, len)| {
            let end = sent.segment.seq.wrapping_add(len);
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
            "answered: the connection was there before the trace, and its data is acknowledged"
                .to_owned(),
        );
    }
    Finding {
        next: Some("start the trace before the client connects".to_owned()),
        ..Finding::inconclusive(
            "inconclusive: the request came before the trace, and nothing seen since answers it"
                .to_owned(),
        )
    }
}

/// The client has the reply: it acknowledged it, sent what only a connected client sends, or its socket says so.
fn answered<'a>(flow: &Flow<'a>, losses: &[Loss<'a>], scene: &Scene<'_>) -> Option<Finding<'a>> {
    let went_on =
        |transmission: &Transmission<'_>| !matches!(scene.end(transmission), End::Died(_));
    let acknowledged = flow.ack.iter().any(went_on);
    let client_data = flow
        .data
        .iter()
        .any(|sighting| flow.is_from_client(sighting) && !died(sighting, flow));
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
        .any(|other| matches!(other.point, Point::Drop(_)) && other.segment == sighting.segment)
}

/// When the client acknowledged the reply.
fn established_at(flow: &Flow<'_>) -> Option<u64> {
    flow.ack
        .first()
        .map(|ack| ack.first().time_ns)
        .or_else(|| flow.client_state_at(TcpState::Established))
}

/// The SYN was answered with a RST, or with an ICMP error that says that the server cannot be reached.
fn refused<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Option<Finding<'a>> {
    let rst = flow.refusals.first().map(Transmission::first);
    let unreachable = flow
        .errors
        .iter()
        .copied()
        .find(|error| error.icmp.is_some_and(IcmpError::is_unreachable));
    let answer = rst.or(unreachable)?;
    // The SYN that is refused is freed just before or just after the answer is made.
    let killer = flow
        .request
        .iter()
        .flat_map(|request| request.sightings().iter().copied())
        .filter_map(|sighting| Some((sighting, diagnosis::of(sighting, scene.devices())?)))
        .min_by_key(|(sighting, _)| sighting.time_ns.abs_diff(answer.time_ns));
    let (cause, at) = match killer {
        Some((dead, diagnosis)) if diagnosis.code == CauseCode::Netfilter => (
            Diagnosis {
                code: CauseCode::Rejected,
                ..diagnosis
            },
            dead,
        ),
        // The ICMP error only tells of a death that we saw better.
        Some(_) if rst.is_none() => return None,
        Some((dead, diagnosis)) => (diagnosis, dead),
        None => (refused_elsewhere(answer, scene), answer),
    };
    let server = flow.server;
    let who = match (answer.icmp, cause.code) {
        (Some(icmp), CauseCode::Rejected) if at.icmp.is_none() => {
            format!(
                "a netfilter rule answers for {server} with ICMP ({})",
                icmp.words()
            )
        }
        (Some(icmp), _) => format!("{} says by ICMP: {}", icmp.from, icmp.words()),
        (None, CauseCode::NoListener) => format!("nobody listens on {server}"),
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
        next: next_of(at, &cause, scene),
        cause: Some(cause),
        ..finding
    })
}

fn arrived_in_tcp(dead: &Sighting) -> bool {
    matches!(&dead.point, Point::Drop(death) if losses::freed_in_tcp(death))
}

/// A refusal whose reason lies outside the view.
fn refused_elsewhere(answer: &Sighting, scene: &Scene<'_>) -> Diagnosis {
    let place = scene.place_words(answer);
    let (code, what, detail) = match answer.icmp {
        Some(icmp) => (
            if icmp.is_prohibited() {
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

/// The client answered the reply, and every ACK died.
fn ack_dropped<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Option<Finding<'a>> {
    let furthest = scene.furthest(&flow.ack)?;
    let End::Died(dead) = scene.end(furthest) else {
        return None;
    };
    Some(death(
        VerdictCode::AckDropped,
        "handshake incomplete",
        PacketKind::Ack,
        dead,
        &flow.ack,
        scene,
    ))
}

/// A reply existed, and the client never answered it.
fn reply_lost<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Option<Finding<'a>> {
    let counts = |reply: &&Transmission<'_>| {
        let End::Died(dead) = scene.end(reply) else {
            return true;
        };
        losses::innocent_because(PacketKind::SynAck, dead, flow).is_none()
    };
    if flow.reply.is_empty() {
        return None;
    }
    let replies: Vec<Transmission<'a>> = flow.reply.iter().filter(counts).cloned().collect();
    let Some(furthest) = scene.furthest(&replies) else {
        return Some(Finding::inconclusive(
            "inconclusive: every SYN-ACK came after the client had given up, so its death explains nothing".to_owned(),
        ));
    };
    Some(match scene.end(furthest) {
        End::Died(dead) if arrived_in_tcp(dead) && flow.client_state_at(TcpState::SynSent).is_none() => {
            Finding::inconclusive(format!(
                "inconclusive: the SYN-ACK reached {}, but no socket was seen to connect from there: the SYN came from a raw socket, or from before the trace",
                flow.client
            ))
            .at(dead, Stage::LocalIn)
        }
        End::Died(dead) if arrived_in_tcp(dead) && dead.tuple.src != flow.server => {
            untranslated(dead, flow, scene)
        }
        End::Died(dead) => death(VerdictCode::ReplyDropped, "reply dropped", PacketKind::SynAck, dead, &replies, scene),
        End::Left(at) => Finding {
            next: Some(elsewhere(flow, at, scene)),
            ..Finding::new(
                VerdictCode::ReplyLeftNode,
                Confidence::Inferred,
                format!("reply lost: SYN-ACK left this node {} and no ACK ever came", scene.place_words(at)),
            )
            .at(at, Stage::Egress)
        },
        End::Consumed(at) | End::Delivered(at) if !flow.resets.is_empty() => Finding::inconclusive(format!(
            "inconclusive: the SYN-ACK arrived {} and the client answered with a RST: no socket waited for it",
            scene.place_words(at)
        ))
        .at(at, Stage::LocalIn),
        End::Consumed(at) | End::Delivered(at) | End::Vanished(at) => vanished(
            VerdictCode::ReplyNotDelivered,
            format!("reply lost: SYN-ACK was last seen {}, no drop was seen, and it never reached the client's socket", scene.place_words(at)),
            at,
            scene,
        ),
    })
}

/// The reply reached the client with an address that the client had not asked.
fn untranslated<'a>(dead: &'a Sighting, flow: &Flow<'a>, scene: &Scene<'_>) -> Finding<'a> {
    Finding {
        next: Some(
            "the reply must come back through the host that translated the request: compare the two paths above"
                .to_owned(),
        ),
        cause: diagnosis::of(dead, scene.devices()),
        ..Finding::new(
            VerdictCode::ReplyDropped,
            Confidence::Proven,
            format!(
                "reply dropped: SYN-ACK reached the client from {}, but the client had asked {}: nothing translated it back",
                dead.tuple.src, flow.server
            ),
        )
        .at(dead, Stage::LocalIn)
    }
}

/// No reply ever existed.
fn request_lost<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Finding<'a> {
    let Some(furthest) = scene.furthest(&flow.request) else {
        return Finding::inconclusive("inconclusive: no request was seen".to_owned());
    };
    match scene.end(furthest) {
        End::Died(dead) => death(
            VerdictCode::RequestDropped,
            "request dropped",
            PacketKind::Syn,
            dead,
            &flow.request,
            scene,
        ),
        End::Left(at) => Finding {
            next: Some(elsewhere(flow, at, scene)),
            ..Finding::new(
                VerdictCode::RequestLeftNode,
                Confidence::Inferred,
                format!(
                    "no reply: SYN left this node {} and nothing came back",
                    scene.place_words(at)
                ),
            )
            .at(at, Stage::Egress)
        },
        End::Consumed(at) => {
            not_answered("SYN reached the listener", Stage::Listener, at, flow, scene)
        }
        End::Delivered(at)
            if !at
                .device()
                .is_some_and(|id| scene.devices().hides_delivery(id)) =>
        {
            not_answered("SYN arrived", Stage::LocalIn, at, flow, scene)
        }
        End::Delivered(at) | End::Vanished(at) => vanished(
            VerdictCode::RequestNotAnswered,
            format!(
                "no reply: SYN was last seen {}, no drop was seen, and no SYN-ACK was ever made",
                scene.place_words(at)
            ),
            at,
            scene,
        ),
    }
}

/// The request arrived and the host made no reply. The host's counters say why, if they moved.
fn not_answered<'a>(
    arrival: &str,
    stage: Stage,
    at: &'a Sighting,
    flow: &Flow<'_>,
    scene: &Scene<'_>,
) -> Finding<'a> {
    let cause = at.netns.and_then(|netns| silent_cause(netns, flow, scene));
    let why = cause
        .as_ref()
        .map_or_else(String::new, |cause| format!(": {}", cause.phrase));
    let finding = Finding::new(
        VerdictCode::RequestNotAnswered,
        Confidence::Inferred,
        format!(
            "no reply: {arrival} {} and no SYN-ACK was ever made{why}",
            scene.place_words(at)
        ),
    )
    .at(at, stage);
    let ns = scene.enter(Place {
        sighting: at,
        stage,
    });
    let next = match &cause {
        Some(cause) => next_of(at, cause, scene),
        None => Some(format!(
            "`{ns}ss -ltnp 'sport = {}'`; `{ns}nstat -az | grep -i -e listen -e reqq`",
            flow.server.port()
        )),
    };
    Finding {
        next,
        cause,
        ..finding
    }
}

/// A cause that has no drop event, by the counters of the server's namespace.
fn silent_cause(netns: NetnsId, flow: &Flow<'_>, scene: &Scene<'_>) -> Option<Diagnosis> {
    let causes = [
        (
            "TcpExtListenOverflows",
            CauseCode::AcceptQueueFull,
            "the listener's accept queue is full",
        ),
        (
            "TcpExtTCPReqQFullDrop",
            CauseCode::SynQueueFull,
            "the listener's SYN queue is full and SYN cookies are off",
        ),
        (
            "IpOutNoRoutes",
            CauseCode::NoRoute,
            "the SYN-ACK has no route back",
        ),
        (
            "Ip6OutNoRoutes",
            CauseCode::NoRoute,
            "the SYN-ACK has no route back",
        ),
    ];
    causes.into_iter().find_map(|(counter, code, phrase)| {
        let moved = |fact: &Fact| match fact {
            Fact::Counter { netns: of, name, before, after } => *of == netns && name == counter && after > before,
        };
        let index = scene.analysis.facts.iter().position(moved)?;
        Some(Diagnosis {
            code,
            stage: Stage::Listener,
            phrase: match code {
                CauseCode::NoRoute => format!("{phrase} to {}", flow.client.ip()),
                _ => phrase.to_owned(),
            },
            detail: Some(format!("{counter} of that namespace rose during the trace; the counter does not tell which flow moved it")),
            evidence: vec![Evidence::Fact(index)],
        })
    })
}

/// Last seen inside the view, and nothing after it. Where the kernel may pass packets on unseen, that proves nothing.
fn vanished<'a>(
    code: VerdictCode,
    summary: String,
    at: &'a Sighting,
    scene: &Scene<'_>,
) -> Finding<'a> {
    let stage = match at.point {
        Point::Xmit if at.device().is_some_and(|id| scene.devices().is_tunnel(id)) => Stage::Encap,
        Point::Xmit => Stage::Egress,
        _ => Stage::Ingress,
    };
    if at
        .device()
        .is_none_or(|id| scene.devices().hides_delivery(id))
    {
        return Finding::inconclusive(format!(
            "inconclusive: the packet was last seen {}, behind which packets pass unseen on this kernel",
            scene.place_words(at)
        ))
        .at(at, stage);
    }
    let device = scene.device_name(at).unwrap_or("DEV");
    let ns = scene.enter(Place {
        sighting: at,
        stage,
    });
    Finding {
        next: Some(format!(
            "`{ns}ip -s -s link show {device}`: errors and drops there have no event"
        )),
        ..Finding::new(code, Confidence::Inferred, summary).at(at, stage)
    }
}

/// A packet died, and no other transmission of it came further.
fn death<'a>(
    code: VerdictCode,
    headline: &str,
    packet: PacketKind,
    dead: &'a Sighting,
    transmissions: &[Transmission<'a>],
    scene: &Scene<'_>,
) -> Finding<'a> {
    let Some(cause) = diagnosis::of(dead, scene.devices()) else {
        return Finding::inconclusive(format!(
            "inconclusive: {} ended without a cause",
            packet.name()
        ));
    };
    let latest_two = transmissions.iter().rev().take(2);
    let died_twice = transmissions.len() >= 2
        && latest_two
            .map(|each| scene.end(each))
            .all(|end| matches!(end, End::Died(_)));
    let summary = format!(
        "{headline}: {} killed {} {}",
        packet.name(),
        scene.place_words(dead),
        cause.phrase
    );
    let finding = Finding::new(code, Confidence::Proven, summary).at(dead, cause.stage);
    Finding {
        next: next_of(dead, &cause, scene),
        cause: Some(cause),
        died_twice,
        ..finding
    }
}

fn next_of(at: &Sighting, cause: &Diagnosis, scene: &Scene<'_>) -> Option<String> {
    let ns = scene.enter(Place {
        sighting: at,
        stage: cause.stage,
    });
    diagnosis::next(cause.code, &ns, at, scene.device_name(at))
}

/// What to run where the packet went.
fn elsewhere(flow: &Flow<'_>, at: &Sighting, scene: &Scene<'_>) -> String {
    let host = at
        .tunnels
        .first()
        .map_or(at.tuple.dst.ip(), |tunnel| tunnel.outer_dst);
    let device = scene.device_name(at).unwrap_or("that device");
    format!(
        "run `sudo tracer trace host {} and port {}` on {host}, or on the next hop behind {device}",
        flow.server.ip(),
        flow.server.port()
    )
}
