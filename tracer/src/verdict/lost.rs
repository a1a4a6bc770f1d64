//! A reply or a request that never took effect: where it died, left, or was seen last.

use super::diagnosis::{self, Diagnosis, Evidence};
use super::egress::Parting;
use super::finding::Finding;
use super::{Place, Scene, gave_up_at, losses, wireguard, words};
use crate::codes::{CauseCode, Confidence, PacketKind, Stage, VerdictCode};
use crate::event::{NetnsId, TcpState};
use crate::flow::copies::{End, Transmission};
use crate::flow::pairing::Flow;
use crate::flow::{Message, Point, Sighting};
use crate::record::Fact;

/// A reply existed, and the client never answered it.
pub(super) fn reply_lost<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Option<Finding<'a>> {
    let counts = |reply: &&Transmission<'_>| {
        let End::Died(dead) = scene.end(reply) else {
            return true;
        };
        losses::innocent_because(flow.reply_kind(), dead, flow).is_none()
    };
    let first = flow.reply.first()?.first();
    let replies: Vec<Transmission<'a>> = flow.reply.iter().filter(counts).cloned().collect();
    let Some(furthest) = scene.furthest(&replies) else {
        return Some(Finding::inconclusive(format!(
            "inconclusive: every {} came after the client had given up, so its death explains nothing",
            flow.reply_kind().name()
        )));
    };
    let end = scene.end(furthest);
    if let End::Died(dead) = end
        && arrived_in_tcp(dead)
        && dead.tuple.src != flow.asked()
    {
        return Some(untranslated(dead, flow, scene));
    }
    // A firewall that kills the SYN-ACK may send a RST in the client's name; else, whoever sends one has seen what it
    // rejects. A client that sends its SYN once more still waits, so that the RST was not its own.
    let killed_before = matches!(end, End::Died(dead) if !arrived_in_tcp(dead));
    let waits_since = |reset: &&Sighting| {
        let mut syns = flow.request.iter().map(Transmission::first);
        syns.any(|syn| syn.order() > reset.order())
    };
    let mut resets = flow.resets.iter().map(Transmission::first);
    // What comes after the client has given up, or could have, explains nothing that was lost before.
    let until_ns = gave_up_at(flow)
        .unwrap_or(u64::MAX)
        .min(Scene::deadline_ns(flow));
    let rejected = resets.find(|reset| {
        flow.is_from_client(reset) && reset.order() > first.order() && reset.time_ns < until_ns
    });
    let forged = rejected.filter(waits_since);
    if let Some(reset) = rejected.filter(|_| !killed_before && forged.is_none()) {
        let since_ns = reset
            .time_ns
            .saturating_sub(flow.request[0].first().time_ns);
        return Some(
            Finding::inconclusive(format!(
                "inconclusive: a RST in the name of {} answered the SYN-ACK, {} after its SYN: no socket waited for it any more, the SYN came from a raw socket, or something on the way rejects the reply",
                flow.client,
                words::duration(since_ns)
            ))
            .at(reset, Stage::LocalIn),
        );
    }
    Some(match end {
        End::Died(dead) if arrived_in_tcp(dead) && flow.client_state_at(TcpState::SynSent).is_none() => {
            Finding::inconclusive(format!(
                "inconclusive: the SYN-ACK reached {}, but no socket was seen to connect from there: the SYN came from a raw socket, or from before the trace",
                flow.client
            ))
            .at(dead, Stage::LocalIn)
        }
        End::Died(dead) => {
            let finding = death(VerdictCode::ReplyDropped, "reply dropped", flow.reply_kind(), dead, &replies, scene);
            astray_before(finding, flow, furthest, scene)
        }
        End::Left(at) if let Some(finding) = behind_a_new_tunnel(flow, at, scene) => finding,
        End::Left(at) => {
            let finding = Finding::new(
                VerdictCode::ReplyLeftNode,
                Confidence::Inferred,
                left(flow, at, forged.is_some(), scene),
            )
            .at(at, Stage::Egress);
            match Parting::of(flow, furthest, scene) {
                Some(parting) => {
                    let cause = parting.diagnose(flow, scene);
                    Finding {
                        summary: format!("{}, perhaps {}", finding.summary, cause.phrase),
                        next: parting.next(cause.code, scene),
                        cause: Some(cause),
                        ..finding
                    }
                }
                None => Finding {
                    next: Some(elsewhere(flow, at, scene)),
                    ..finding
                },
            }
        }
        End::Consumed(at) | End::Delivered(at) | End::Vanished(at) => vanished(
            VerdictCode::ReplyNotDelivered,
            format!(
                "reply lost: {} was last seen {}, no drop was seen, and it never reached the client",
                flow.reply_kind().name(),
                scene.place_words(at)
            ),
            at,
            scene,
        ),
    })
}

fn left(flow: &Flow<'_>, at: &Sighting, is_rejected: bool, scene: &Scene<'_>) -> String {
    let place = format!("{}{}", scene.place_words(at), wireguard::to_peer(at));
    let (request, reply) = (flow.request_kind().name(), flow.reply_kind().name());
    if is_rejected {
        format!(
            "reply lost: {reply} left this node {place} and no ACK ever came; the RST that came is not the client's, which goes on sending its {request}: something on the way rejects the reply"
        )
    } else if flow.is_tcp() {
        format!("reply lost: {reply} left this node {place} and no ACK ever came")
    } else {
        format!("reply lost: {reply} left this node {place}, and the {request} came again")
    }
}

/// A reply that died elsewhere may have gone the wrong way before: that is told as well, and what shows it.
fn astray_before<'a>(
    finding: Finding<'a>,
    flow: &Flow<'a>,
    reply: &Transmission<'a>,
    scene: &Scene<'_>,
) -> Finding<'a> {
    let Some(parting) = Parting::of(flow, reply, scene) else {
        return finding;
    };
    let Some(mut cause) = finding.cause.clone() else {
        return finding;
    };
    let before = parting.diagnose(flow, scene);
    let place = parting.netns().map_or_else(String::new, |netns| {
        format!(" in {}", scene.netns_words(netns))
    });
    let also = before
        .detail
        .map(|detail| format!("before that{place}, {detail}"));
    let told = [cause.detail.take(), also];
    cause.detail = Some(told.into_iter().flatten().collect::<Vec<_>>().join("; "));
    cause.evidence.extend(before.evidence);
    let next = [finding.next, parting.next(before.code, scene)];
    Finding {
        next: Some(next.into_iter().flatten().collect::<Vec<_>>().join("; ")),
        cause: Some(cause),
        ..finding
    }
}

/// The reply reached the client with an address that the client had not asked.
fn untranslated<'a>(dead: &'a Sighting, flow: &Flow<'a>, scene: &Scene<'_>) -> Finding<'a> {
    Finding {
        next: Some(
            "the reply must come back through the host that translated the request: compare the two paths above"
                .to_owned(),
        ),
        cause: scene.diagnose(dead),
        ..Finding::new(
            VerdictCode::ReplyDropped,
            Confidence::Proven,
            format!(
                "reply dropped: SYN-ACK reached the client from {}, but the client had asked {}: nothing translated it back",
                dead.tuple.src, flow.asked()
            ),
        )
        .at(dead, Stage::LocalIn)
    }
}

/// No reply ever existed.
pub(super) fn request_lost<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Finding<'a> {
    let Some(furthest) = scene.furthest(&flow.request) else {
        return Finding::inconclusive("inconclusive: no request was seen".to_owned());
    };
    match scene.end(furthest) {
        End::Died(dead) => death(
            VerdictCode::RequestDropped,
            "request dropped",
            flow.request_kind(),
            dead,
            &flow.request,
            scene,
        ),
        End::Left(at) if let Some(finding) = behind_a_new_tunnel(flow, at, scene) => finding,
        End::Left(at) => Finding {
            next: Some(elsewhere(flow, at, scene)),
            ..Finding::new(
                VerdictCode::RequestLeftNode,
                Confidence::Inferred,
                format!(
                    "no reply: {} left this node {}{} and nothing came back",
                    flow.request_kind().name(),
                    scene.place_words(at),
                    wireguard::to_peer(at)
                ),
            )
            .at(at, Stage::Egress)
        },
        End::Consumed(at) => not_answered("reached the listener", Stage::Listener, at, flow, scene),
        End::Delivered(at)
            if !at
                .device()
                .is_some_and(|id| scene.devices().hides_delivery(id)) =>
        {
            not_answered("arrived", Stage::LocalIn, at, flow, scene)
        }
        End::Delivered(at) | End::Vanished(at) => vanished(
            VerdictCode::RequestNotAnswered,
            format!(
                "no reply: {} was last seen {}, no drop was seen, and no {} was ever made",
                flow.request_kind().name(),
                scene.place_words(at),
                flow.reply_kind().name()
            ),
            at,
            scene,
        ),
    }
}

/// A packet left, and what answers it may have come back in a tunnel that was new: then it was not seen.
fn behind_a_new_tunnel<'a>(
    flow: &Flow<'_>,
    at: &'a Sighting,
    scene: &Scene<'_>,
) -> Option<Finding<'a>> {
    let until_ns = Scene::deadline_ns(flow);
    let tunnel = scene
        .devices()
        .tunnel_learned_between(at.time_ns, until_ns)?;
    Some(
        Finding::inconclusive(format!(
            "inconclusive: the packet left this node {}, and the tunnel {} was new: its UDP port was not known yet, so what came back in it was not seen",
            scene.place_words(at),
            tunnel.name
        ))
        .at(at, Stage::Egress),
    )
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
    let why = cause.as_ref().map_or_else(String::new, |cause| {
        format!(", perhaps because {}", cause.phrase)
    });
    let finding = Finding::new(
        VerdictCode::RequestNotAnswered,
        Confidence::Inferred,
        format!(
            "no reply: {} {arrival} {} and no {} was ever made{why}",
            flow.request_kind().name(),
            scene.place_words(at),
            flow.reply_kind().name()
        ),
    )
    .at(at, stage);
    let ns = scene.enter(Place {
        sighting: at,
        stage,
    });
    let next = match &cause {
        Some(cause) => next_of(at, cause, scene),
        None => Some(server_commands(
            flow.request_kind(),
            &ns,
            at.tuple.dst.port(),
        )),
    };
    Finding {
        next,
        cause,
        ..finding
    }
}

/// What shows why a server that has the request is silent.
fn server_commands(request: PacketKind, ns: &str, port: u16) -> String {
    match request {
        PacketKind::Syn => {
            format!("`{ns}ss -ltnp 'sport = {port}'`; `{ns}nstat -az | grep -i -e listen -e reqq`")
        }
        PacketKind::EchoRequest => format!(
            "`{ns}sysctl net.ipv4.icmp_echo_ignore_all net.ipv6.icmp.echo_ignore_all`; `{ns}ip route get` the client's address"
        ),
        _ => format!(
            "`{ns}ss -lunp 'sport = {port}'`: a Recv-Q that stays full is a process that does not read"
        ),
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
            "the reply has no route back",
        ),
        (
            "Ip6OutNoRoutes",
            CauseCode::NoRoute,
            "the reply has no route back",
        ),
    ];
    let meant = |(_, code, _): &(_, CauseCode, _)| flow.is_tcp() || *code == CauseCode::NoRoute;
    causes.into_iter().filter(meant).find_map(|(counter, code, phrase)| {
        let moved = |fact: &Fact| match fact {
            Fact::Counter { netns: of, name, before, after } => *of == netns && name == counter && after > before,
            _ => false,
        };
        let fact = scene.analysis.facts.iter().find(|fact| moved(fact))?;
        Some(Diagnosis {
            code,
            stage: Stage::Listener,
            phrase: match code {
                CauseCode::NoRoute => format!("{phrase} to {}", flow.client.ip()),
                _ => phrase.to_owned(),
            },
            detail: Some(format!("{counter} of that namespace rose during the trace; the counter does not tell which flow moved it")),
            evidence: vec![Evidence::Fact(fact.clone())],
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
    if let Some(cause) = scene.lost_in_wireguard(at) {
        return lost_in_wireguard(code, at, cause, scene);
    }
    if scene.is_in_unread_wireguard(at) {
        return Finding::inconclusive(format!(
            "inconclusive: the packet was last seen {}, whose port could not be read, so that its datagrams are not recognised",
            scene.place_words(at)
        ))
        .at(at, stage);
    }
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
    // A datagram that is given a tunnel's headroom goes on as a clone; translated as well, it is not known again.
    if at.point == Point::Receive && !matches!(at.message, Message::Tcp(_)) {
        return Finding::inconclusive(format!(
            "inconclusive: the packet was last seen {}, and no drop was seen; if it was translated there, it may have gone on unrecognised",
            scene.place_words(at)
        ))
        .at(at, stage);
    }
    let unlearned = |id| scene.devices().is_tunnel_before_learned(id, at.time_ns);
    if at.device().is_some_and(unlearned) {
        return Finding::inconclusive(format!(
            "inconclusive: the packet was last seen {}, a tunnel that was new: its UDP port was not known yet, so what it sent was not seen",
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

/// WireGuard has no event for what it lost; its own state says why it is lost.
fn lost_in_wireguard<'a>(
    code: VerdictCode,
    at: &'a Sighting,
    cause: Diagnosis,
    scene: &Scene<'_>,
) -> Finding<'a> {
    let (code, packet) = if code == VerdictCode::ReplyNotDelivered {
        (VerdictCode::ReplyDropped, "reply")
    } else {
        (VerdictCode::RequestDropped, "request")
    };
    let summary = format!(
        "{packet} lost: it was last seen {}, and {}",
        scene.place_words(at),
        cause.phrase
    );
    Finding {
        next: next_of(at, &cause, scene),
        ..Finding::new(code, Confidence::Inferred, summary).at(at, cause.stage)
    }
    .because(cause)
}

/// A packet died, and no other transmission of it came further.
pub(super) fn death<'a>(
    code: VerdictCode,
    headline: &str,
    packet: PacketKind,
    dead: &'a Sighting,
    transmissions: &[Transmission<'a>],
    scene: &Scene<'_>,
) -> Finding<'a> {
    let Some(cause) = scene.diagnose(dead) else {
        return Finding::inconclusive(format!(
            "inconclusive: {} ended without a cause",
            packet.name()
        ));
    };
    let died_twice = died_again(transmissions, scene);
    let (code, headline) = of_size(code, headline, packet, cause.code);
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

/// A packet that was too big is told as that, but for what opens a connection, which no path is too narrow for: there
/// something else is broken.
fn of_size(
    code: VerdictCode,
    headline: &str,
    packet: PacketKind,
    cause: CauseCode,
) -> (VerdictCode, &str) {
    let opens = matches!(
        packet,
        PacketKind::Syn | PacketKind::SynAck | PacketKind::Ack
    );
    if cause == CauseCode::Mtu && !opens {
        (VerdictCode::MtuDropped, "too big")
    } else {
        (code, headline)
    }
}

/// Whether the latest transmissions died, and one of them was sent because another had died: what goes out at once
/// together (an ACK and the data after it, the answers to a timer and to a repeated SYN) may die of one moment's fault.
fn died_again(transmissions: &[Transmission<'_>], scene: &Scene<'_>) -> bool {
    let mut dead = transmissions
        .iter()
        .rev()
        .take_while(|each| matches!(scene.end(each), End::Died(_)))
        .map(|each| each.first().time_ns);
    dead.next().is_some_and(|latest| {
        dead.any(|earlier| latest.saturating_sub(earlier) >= RETRANSMISSION_NS)
    })
}

/// Less than TCP ever waits before it sends again, or a querier does: `TCP_RTO_MIN` is 200 ms.
const RETRANSMISSION_NS: u64 = 150_000_000;

/// Freed by TCP itself: the packet arrived.
pub(super) fn arrived_in_tcp(dead: &Sighting) -> bool {
    matches!(&dead.point, Point::Drop(death) if losses::freed_in_tcp(death))
}

/// What to run where a packet died.
pub(super) fn next_of(at: &Sighting, cause: &Diagnosis, scene: &Scene<'_>) -> Option<String> {
    let ns = scene.enter(Place {
        sighting: at,
        stage: cause.stage,
    });
    diagnosis::next(cause.code, &ns, at, scene.device_name(at), cause.next_hop())
}

/// What to run where the packet went.
fn elsewhere(flow: &Flow<'_>, at: &Sighting, scene: &Scene<'_>) -> String {
    let host = at
        .tunnels
        .first()
        .map_or(at.tuple.dst.ip(), |tunnel| tunnel.outer_dst);
    let device = scene.device_name(at).unwrap_or("that device");
    let filter = match flow.request_kind() {
        PacketKind::EchoRequest => format!("host {}", flow.server.ip()),
        _ => format!("host {} and port {}", flow.server.ip(), flow.server.port()),
    };
    format!("run `sudo tracer trace {filter}` on {host}, or on the next hop behind {device}")
}
