//! Judges what an established TCP connection carries: bytes that die on every try (`data_dropped`, `mtu_dropped`), and
//! bytes that are sent again and again and never acknowledged (`stalled`).
//!
//! TCP loses segments by design, and sends them again: what was acknowledged in the end is no fault. So the question is
//! asked for the first byte that the other end has not acknowledged.

use super::diagnosis::Diagnosis;
use super::finding::Finding;
use super::lost::next_of;
use super::{Place, Scene, large, losses, mend, words};
use crate::codes::{CauseCode, Confidence, PacketKind, Stage, VerdictCode};
use crate::event::Again;
use crate::flow::copies::{End, Transmission, transmissions};
use crate::flow::pairing::Flow;
use crate::flow::{Point, Segment, Sighting, TcpFlags};

/// Bytes that were sent so often and for so long without an acknowledgement are stuck, not slow: TCP's first timeouts are
/// 0.2 s, 0.4 s and 0.8 s after each other where the way is short.
const STALLED_COPIES: usize = 3;
const STALLED_FOR_NS: u64 = 1_000_000_000;

/// A death that nothing followed is final after this time, as in a handshake.
const NOT_REPEATED_FOR_NS: u64 = super::ANSWER_AFTER_FIRST_NS;

/// What is wrong with the data of a connection, if something is.
pub(super) fn lost<'a>(flow: &Flow<'a>, scene: &Scene<'_>) -> Option<Finding<'a>> {
    let streams = [true, false].map(|from_client| Stream::new(flow, from_client));
    let died = streams.iter().find_map(|stream| stream.died(flow, scene));
    died.or_else(|| {
        streams
            .iter()
            .find_map(|stream| stream.stalled(flow, scene))
    })
}

/// What one end sends, and how much of it the other acknowledged.
struct Stream<'a> {
    from_client: bool,
    /// The segments with data, sent again or not. A FIN that is lost harms nobody.
    sent: Vec<Transmission<'a>>,
    /// The handshake's packet of this end, which the other end has.
    handshake: Option<&'a Sighting>,
    /// The segments of the other end.
    back: Vec<Transmission<'a>>,
    /// When the sender's socket sent what again. Never held back, unlike `sent`.
    again: Vec<(u64, Again)>,
}

impl<'a> Stream<'a> {
    fn new(flow: &Flow<'a>, from_client: bool) -> Self {
        // The SYN-ACK is the first that acknowledges something, and the ACK may carry the first data.
        let handshake = flow.reply.iter().chain(&flow.ack);
        let handshake = handshake.flat_map(Transmission::sightings).copied();
        let mut seen: Vec<&Sighting> = handshake.chain(flow.data.iter().copied()).collect();
        seen.retain(|sighting| sighting.icmp.is_none());
        seen.sort_by_key(|sighting| sighting.order());
        let (own, other): (Vec<&Sighting>, Vec<&Sighting>) = seen
            .into_iter()
            .partition(|sighting| flow.is_from_client(sighting) == from_client);
        let carries = |sighting: &&Sighting| sighting.segment().payload_len > 0;
        let opening = if from_client {
            &flow.request
        } else {
            &flow.reply
        };
        Self {
            from_client,
            handshake: opening.first().map(Transmission::first),
            sent: transmissions(own.into_iter().filter(carries), false),
            back: transmissions(other, false),
            again: flow
                .sockets
                .iter()
                .filter(|seen| flow.is_client(seen) == from_client)
                .filter_map(|seen| Some((seen.time_ns, seen.socket.again?)))
                .collect(),
        }
    }

    /// The first byte that the other end is not known to have, by the acknowledgements that did not die. `None` where
    /// none was seen: its packets may take another way.
    fn first_unacknowledged(&self, scene: &Scene<'_>) -> Option<u32> {
        let counts = |each: &&Transmission<'_>| {
            each.first().segment().flags.has(TcpFlags::ACK)
                && !matches!(scene.end(each), End::Died(at) if !losses::arrived(at))
        };
        let acks = self.back.iter().filter(counts);
        acks.map(|each| each.first().segment().ack)
            .chain(self.again.iter().map(|(_, again)| again.snd_una))
            .reduce(|known, new| if is_after(new, known) { new } else { known })
    }

    /// The transmissions that carry a byte.
    fn copies_of(&self, number: u32) -> Vec<&Transmission<'a>> {
        let covers = |each: &&Transmission<'_>| {
            let segment = each.first().segment();
            number.wrapping_sub(segment.seq) < segment.payload_len
        };
        let mut copies: Vec<_> = self.sent.iter().filter(covers).collect();
        // What was cut into segments on its way went on as those.
        let segments: Vec<&Transmission<'a>> = copies
            .iter()
            .copied()
            .filter(|each| !each.first().is_gso())
            .collect();
        copies.retain(|each| !segments.iter().any(|segment| is_cut_from(segment, each)));
        copies
    }

    /// Bytes of which every copy died here, or whose acknowledgements did.
    fn died(&self, flow: &Flow<'a>, scene: &Scene<'_>) -> Option<Finding<'a>> {
        let unacknowledged = self.first_unacknowledged(scene);
        let first_missing = self
            .sent
            .iter()
            .filter(|each| death_of(each, flow, scene).is_some())
            .map(|each| each.first().segment())
            .filter(|segment| {
                let end = segment.seq.wrapping_add(segment.payload_len);
                unacknowledged.is_none_or(|known| is_after(end, known))
            })
            .map(|segment| match unacknowledged {
                Some(known) if is_after(known, segment.seq) => known,
                _ => segment.seq,
            })
            .reduce(|first, other| if is_after(first, other) { other } else { first });
        let Some(number) = first_missing else {
            return self.acknowledgements_died(flow, scene);
        };
        let copies = self.copies_of(number);
        let deaths: Vec<&'a Sighting> = copies
            .iter()
            .filter_map(|each| death_of(each, flow, scene))
            .collect();
        let last = *deaths.last()?;
        // A copy that went on may have arrived.
        if deaths.len() < copies.len() || !self.is_proven(flow, number, &deaths, scene) {
            return None;
        }
        let what = format!(
            "{} bytes from the {}{}",
            last.segment().payload_len,
            self.sender(),
            self.position(last.segment(), flow)
        );
        finding(&what, copies.len(), last, scene)
    }

    /// Whether these deaths are all that became of a byte.
    ///
    /// Where packets that pass are not all kept, the sender's socket says whenever it has handed bytes to a device again
    /// (`tcp_retransmit_skb` is silent if the device refused them), and how far the other end was then. A byte that was lost
    /// for good dies again and again, on the way that the handshake took; a copy for somebody else does not.
    fn is_proven(
        &self,
        flow: &Flow<'_>,
        number: u32,
        deaths: &[&Sighting],
        scene: &Scene<'_>,
    ) -> bool {
        let [first, .., last] = deaths else {
            let unrepeated =
                |dead: &&Sighting| scene.now_ns.saturating_sub(dead.time_ns) >= NOT_REPEATED_FOR_NS;
            return flow.sampled_since_ns.is_none() && deaths.iter().all(unrepeated);
        };
        if flow.sampled_since_ns.is_none() {
            return true;
        }
        let may_carry = |(_, again): &&(u64, Again)| !is_after(again.seq, number);
        let last_again = self.again.last();
        let moved_on = last_again.is_some_and(|(_, again)| is_after(again.snd_una, number));
        self.sender_is_heard(scene)
            && !moved_on
            && deaths.len() >= STALLED_COPIES
            && last.time_ns.saturating_sub(first.time_ns) >= STALLED_FOR_NS
            && deaths.len() > self.again.iter().filter(may_carry).count()
            && scene.is_on_the_way(last, flow)
    }

    /// Whether the sender's socket is in view, so that it would tell of what it sends again.
    fn sender_is_heard(&self, scene: &Scene<'_>) -> bool {
        let begins_here = |at: &Sighting| {
            let netns = at.netns.filter(|_| at.point == Point::Xmit);
            netns.is_some_and(|netns| scene.devices().is_local(netns, at.tuple.src.ip()))
        };
        // Its data may be missing from the first packet on, the handshake never is.
        let sent = self.sent.iter().map(Transmission::first);
        scene.watches("tcp_retransmit_skb") && sent.chain(self.handshake).any(begins_here)
    }

    /// The data arrived, and every acknowledgement of it died on the way back.
    fn acknowledgements_died(&self, flow: &Flow<'a>, scene: &Scene<'_>) -> Option<Finding<'a>> {
        let known = self.first_unacknowledged(scene)?;
        let dead: Vec<&'a Sighting> = self
            .back
            .iter()
            .filter(|each| is_after(each.first().segment().ack, known))
            .filter(|each| each.first().segment().payload_len == 0)
            .filter_map(|each| death_of(each, flow, scene))
            .collect();
        let last = *dead.last()?;
        (dead.len() >= 2 && flow.sampled_since_ns.is_none())
            .then(|| {
                let what = format!("acknowledgements of what the {} sent", self.sender());
                finding(&what, dead.len(), last, scene)
            })
            .flatten()
    }

    /// Bytes that are sent again and again, go on, and are never acknowledged.
    fn stalled(&self, flow: &Flow<'a>, scene: &Scene<'_>) -> Option<Finding<'a>> {
        let number = self.first_unacknowledged(scene)?;
        if flow.sampled_since_ns.is_some() {
            return self.stalled_by_socket(number, flow, scene);
        }
        let copies = self.copies_of(number);
        let (first, last) = (copies.first()?, copies.last()?);
        let tried_for_ns = last.first().time_ns.saturating_sub(first.first().time_ns);
        if copies.len() < STALLED_COPIES || tried_for_ns < STALLED_FOR_NS || self.was_reset(flow) {
            return None;
        }
        let copies: Vec<Transmission<'a>> = copies.into_iter().cloned().collect();
        let end = scene.end(scene.furthest(&copies)?);
        let at = end.sighting();
        let (fate, stage) = match end {
            End::Left(_) => ("left this node", Stage::Egress),
            End::Consumed(_) | End::Delivered(_) => ("arrived", Stage::LocalIn),
            End::Vanished(_) => ("were last seen", Stage::Egress),
            // Some copies went on and others died: the furthest says where.
            End::Died(_) => ("died", Stage::Drop),
        };
        if let Some(finding) = self.too_big_elsewhere((at, stage, fate), number, flow, scene) {
            return Some(finding);
        }
        let place = Place {
            sighting: at,
            stage,
        };
        let is_dead = |copy: &&Transmission<'_>| matches!(scene.end(copy), End::Died(_));
        if let Some(passed) = self.only_large_are_lost(&copies, number)
            && !copies.iter().any(|copy| is_dead(&copy))
        {
            let summary = large::summary(
                place,
                self.sender(),
                fate,
                copies.len(),
                tried_for_ns,
                passed,
                scene,
            );
            return Some(
                Finding {
                    next: Some(mend::check(flow, place, scene)),
                    ..Finding::new(VerdictCode::LargePacketsLost, Confidence::Inferred, summary)
                        .at(at, stage)
                }
                .because(large::suspicion(at, stage, passed)),
            );
        }
        let summary = format!(
            "stalled: {} bytes from the {}{} {fate} {}, were sent {} in {} and never acknowledged",
            at.segment().payload_len,
            self.sender(),
            self.position(at.segment(), flow),
            scene.place_words(at),
            words::times(copies.len()),
            words::duration(tried_for_ns)
        );
        let finding =
            Finding::new(VerdictCode::Stalled, Confidence::Inferred, summary).at(at, stage);
        Some(match scene.diagnose(at) {
            Some(cause) => Finding {
                next: next_of(at, &cause, scene),
                ..finding
            }
            .because(cause),
            None => Finding {
                next: Some(format!(
                    "compare `ip -s -s link` along the way, and trace at {}: large segments that vanish while small ones pass are an MTU problem",
                    at.tuple.dst.ip()
                )),
                ..finding
            },
        })
    }

    /// A router that is not in view, or one whose drop has no event, says by ICMP that the bytes which are stuck were too
    /// big.
    fn too_big_elsewhere(
        &self,
        (at, stage, fate): (&'a Sighting, Stage, &str),
        number: u32,
        flow: &Flow<'a>,
        scene: &Scene<'_>,
    ) -> Option<Finding<'a>> {
        let quotes = |error: &&Sighting| {
            let quoted = error.segment().seq;
            self.copies_of(number)
                .iter()
                .any(|copy| copy.first().segment().seq == quoted)
        };
        let error = flow.too_big_errors(at).filter(quotes).last()?;
        let cause = large::said_by_icmp(error, stage)?;
        let summary = format!(
            "too big: {} bytes from the {}{} {fate} {}, and {}",
            at.segment().payload_len,
            self.sender(),
            self.position(at.segment(), flow),
            scene.place_words(at),
            cause.phrase
        );
        Some(
            Finding::new(VerdictCode::MtuDropped, Confidence::Proven, summary)
                .at(at, stage)
                .because(cause),
        )
    }

    /// How many bytes the largest packet had that was acknowledged, if all that carried these bytes were larger, and large.
    fn only_large_are_lost(&self, copies: &[Transmission<'a>], number: u32) -> Option<u32> {
        let len = |each: &Transmission<'_>| each.first().segment_len();
        let is_acknowledged = |each: &&Transmission<'a>| {
            let segment = each.first().segment();
            !is_after(segment.seq.wrapping_add(segment.payload_len), number)
        };
        let smallest_lost = copies.iter().map(len).min()?;
        let data = self.sent.iter().filter(is_acknowledged).map(len);
        let handshake = self.handshake.map(Sighting::segment_len);
        let passed = data.chain(handshake).max()?;
        (smallest_lost >= large::LARGE_BYTES && smallest_lost > passed).then_some(passed)
    }

    /// As the sender's socket tells it, of a connection whose packets are not all kept. Whether its last try arrived is
    /// known only when the next is due, twice as long after it as it came after the one before.
    fn stalled_by_socket(
        &self,
        number: u32,
        flow: &Flow<'a>,
        scene: &Scene<'_>,
    ) -> Option<Finding<'a>> {
        let waits = |(_, again): &&(u64, Again)| again.snd_una == number && again.seq == number;
        let again: Vec<u64> = self
            .again
            .iter()
            .rev()
            .take_while(waits)
            .map(|each| each.0)
            .collect();
        let [last_ns, before_ns, .., first_ns] = again.as_slice() else {
            return None;
        };
        let tried_for_ns = last_ns.saturating_sub(*first_ns);
        let next_due_ns = last_ns.saturating_add(3 * last_ns.saturating_sub(*before_ns));
        if tried_for_ns < STALLED_FOR_NS || scene.now_ns > next_due_ns || self.was_reset(flow) {
            return None;
        }
        let summary = format!(
            "stalled: the {} sent the same bytes again {} in {}, and they were not acknowledged in between; their way is not known, since this connection's packets are not all kept",
            self.sender(),
            words::times(again.len()),
            words::duration(tried_for_ns)
        );
        Some(Finding {
            next: Some("trace it alone with `--all-packets`".to_owned()),
            ..Finding::new(VerdictCode::Stalled, Confidence::Inferred, summary)
        })
    }

    /// Whether the other end has said that the connection is over.
    fn was_reset(&self, flow: &Flow<'_>) -> bool {
        let by_other =
            |reset: &Transmission<'_>| flow.is_from_client(reset.first()) != self.from_client;
        flow.resets.iter().any(by_other)
    }

    const fn sender(&self) -> &'static str {
        if self.from_client { "client" } else { "server" }
    }

    /// Which bytes of the stream they are, where its beginning was seen.
    fn position(&self, segment: Segment, flow: &Flow<'_>) -> String {
        let syn = if self.from_client {
            flow.request.first()
        } else {
            flow.reply.first()
        };
        let Some(syn) = syn.map(|syn| syn.first().segment()) else {
            return String::new();
        };
        let first = segment.seq.wrapping_sub(syn.seq);
        match segment.payload_len {
            1 => format!(" (byte {first})"),
            len => format!(" (bytes {first}–{})", first.wrapping_add(len - 1)),
        }
    }
}

fn finding<'a>(
    what: &str,
    copies: usize,
    last: &'a Sighting,
    scene: &Scene<'_>,
) -> Option<Finding<'a>> {
    let cause: Diagnosis = scene.diagnose(last)?;
    let (code, headline) = match cause.code {
        CauseCode::Mtu => (VerdictCode::MtuDropped, "too big"),
        _ => (VerdictCode::DataDropped, "data dropped"),
    };
    let summary = format!(
        "{headline}: {what} killed {} {}, {}",
        scene.place_words(last),
        cause.phrase,
        words::times(copies)
    );
    Some(
        Finding {
            next: next_of(last, &cause, scene),
            ..Finding::new(code, Confidence::Proven, summary).at(last, cause.stage)
        }
        .because(cause),
    )
}

/// Where a transmission died, if it did and that matters: not what TCP itself has no more use for, or refuses because
/// the connection is over.
fn death_of<'a>(
    transmission: &Transmission<'a>,
    flow: &Flow<'a>,
    scene: &Scene<'_>,
) -> Option<&'a Sighting> {
    let End::Died(at) = scene.end(transmission) else {
        return None;
    };
    let innocent = losses::innocent_because(PacketKind::Data, at, flow).is_some();
    (!innocent && !losses::is_refused_by_tcp(at)).then_some(at)
}

/// Cutting a packet into segments takes no longer.
const CUT_WITHIN_NS: u64 = 50_000_000;

/// Whether a segment was cut from a packet (GSO), which it is of one transmission with then.
fn is_cut_from(segment: &Transmission<'_>, whole: &Transmission<'_>) -> bool {
    let (segment, whole) = (segment.first(), whole.first());
    whole.is_gso()
        && whole.order() < segment.order()
        && whole.message.transmission() == segment.message.transmission()
        && segment.time_ns - whole.time_ns < CUT_WITHIN_NS
}

/// Whether one sequence number comes after another.
const fn is_after(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}
