//! Sorts the packets of a TCP five-tuple, and of those that it was translated into, into connection attempts, and the
//! packets of an attempt into the parts that they play in a handshake.

use std::cmp::Reverse;

use super::{Flow, NEAR_BYTES, nearest_to_client};
use crate::event::{NetnsId, TcpState};
use crate::flow::copies::{split, transmissions};
use crate::flow::table::FlowGroup;
use crate::flow::{FiveTuple, Sighting, SocketSighting, TcpFlags};

/// An attempt while its packets are being sorted.
struct Attempt<'a> {
    /// As in [`Flow`].
    forward: Vec<FiveTuple>,
    /// The client's initial sequence number; `None` where the SYN was not seen.
    isn: Option<u32>,
    /// The other end's own, where both opened the connection at once.
    crossing: Option<u32>,
    /// How much data its SYN carries (TCP Fast Open).
    syn_len: u32,
    start_ns: u64,
    syns: Vec<&'a Sighting>,
    syn_acks: Vec<&'a Sighting>,
    acks: Vec<&'a Sighting>,
    refusals: Vec<&'a Sighting>,
    resets: Vec<&'a Sighting>,
    errors: Vec<&'a Sighting>,
    errors_back: Vec<&'a Sighting>,
    data: Vec<&'a Sighting>,
    sockets: Vec<&'a SocketSighting>,
    /// The namespaces that its packets passed; `None` is one that could not be told.
    netns: Vec<Option<NetnsId>>,
}

impl<'a> Attempt<'a> {
    fn new(first: FiveTuple, isn: Option<u32>, start_ns: u64) -> Self {
        Self {
            forward: vec![first],
            isn,
            crossing: None,
            syn_len: 0,
            start_ns,
            syns: Vec::new(),
            syn_acks: Vec::new(),
            acks: Vec::new(),
            refusals: Vec::new(),
            resets: Vec::new(),
            errors: Vec::new(),
            errors_back: Vec::new(),
            data: Vec::new(),
            sockets: Vec::new(),
            netns: Vec::new(),
        }
    }

    /// Files a SYN: what addresses it has here, the client's other packets will have too.
    fn push_syn(&mut self, sighting: &'a Sighting) {
        if !self.forward.contains(&sighting.tuple) {
            self.forward.push(sighting.tuple);
        }
        self.syn_len = self.syn_len.max(sighting.segment().payload_len);
        self.visit(sighting);
        self.syns.push(sighting);
    }

    fn visit(&mut self, sighting: &Sighting) {
        if !self.netns.contains(&sighting.netns) {
            self.netns.push(sighting.netns);
        }
    }

    /// Whether a socket message can be about this attempt. Only the one that announces a SYN comes before it; and
    /// what happens in a namespace that none of the packets passed is another connection's, with the same addresses.
    fn may_own(&self, seen: &SocketSighting) -> bool {
        let lead = if seen.socket.new_state == Some(TcpState::SynSent) {
            SYN_SENT_LEAD_NS
        } else {
            0
        };
        let in_view =
            seen.netns.is_none() || self.netns.contains(&None) || self.netns.contains(&seen.netns);
        let in_time = self.isn.is_none() || self.start_ns <= seen.time_ns.saturating_add(lead);
        in_view && in_time && self.knows(seen.tuple())
    }

    /// Files any other packet.
    fn push(&mut self, sighting: &'a Sighting) {
        self.visit(sighting);
        let segment = sighting.segment();
        let from_client = self.forward.contains(&sighting.tuple);
        if sighting.icmp.is_some() {
            if from_client {
                self.errors.push(sighting);
            } else {
                self.errors_back.push(sighting);
            }
            return;
        }
        if segment.is_syn_ack() && from_client && self.crossing.is_some() {
            // It answers the other's SYN, and says nothing of whether this end's was answered.
            self.data.push(sighting);
        } else if segment.is_syn_ack() {
            self.syn_acks.push(sighting);
        } else if segment.is_reset() {
            let answers_syn =
                !from_client && segment.flags.has(TcpFlags::ACK) && self.is_after_syn(segment.ack);
            if answers_syn {
                &mut self.refusals
            } else {
                &mut self.resets
            }
            .push(sighting);
        } else if from_client && segment.flags.has(TcpFlags::ACK) && self.is_after_syn(segment.seq)
        {
            // Whatever way the SYN-ACK took: a client that sends this has received one.
            self.acks.push(sighting);
        } else {
            self.data.push(sighting);
        }
    }

    /// Whether a sequence number follows the SYN, with or without the data that it carries.
    fn is_after_syn(&self, number: u32) -> bool {
        self.isn
            .is_some_and(|isn| number.wrapping_sub(isn.wrapping_add(1)) <= self.syn_len)
    }

    /// Whether a SYN-ACK of this end answers the SYN of the other, which crossed this one's.
    fn answers_crossing(&self, sighting: &Sighting) -> bool {
        let segment = sighting.segment();
        segment.is_syn_ack()
            && self.forward.contains(&sighting.tuple)
            && self.crossing == Some(segment.ack.wrapping_sub(1))
    }

    /// How far a segment is from the SYN, in bytes that the client sent; `None` where that cannot be told.
    fn bytes_since_syn(&self, sighting: &Sighting) -> Option<u32> {
        let segment = sighting.segment();
        let number = if self.forward.contains(&sighting.tuple) {
            segment.seq
        } else if segment.flags.has(TcpFlags::ACK) {
            segment.ack
        } else {
            return None;
        };
        Some(number.wrapping_sub(self.isn?))
    }

    /// Whether packets of the attempt had these addresses, in either direction.
    fn knows(&self, tuple: FiveTuple) -> bool {
        self.forward.contains(&tuple) || self.forward.contains(&tuple.reversed())
    }

    fn finish(self, group: &FlowGroup<'a>) -> Flow<'a> {
        let request = split(self.syns, false);
        let reply = transmissions(self.syn_acks, false);
        let refusals = transmissions(self.refusals, false);
        let answers = reply.iter().chain(&refusals);
        let nearest = nearest_to_client(&request, answers).unwrap_or(self.forward[0]);
        Flow {
            protocol: nearest.protocol,
            number: self.isn,
            client: nearest.src,
            server: nearest.dst,
            forward: self.forward,
            request,
            reply,
            ack: transmissions(self.acks, false),
            refusals,
            resets: transmissions(self.resets, false),
            errors: self.errors,
            errors_back: self.errors_back,
            data: self.data,
            sockets: self.sockets,
            left_out: group.left_out(),
            sampled_since_ns: group.sampled_since_ns(),
        }
    }
}

/// The connection attempts of a group of five-tuples, oldest first.
///
/// Each initial sequence number of a SYN is an attempt. What came before the first SYN is an attempt whose
/// request was not seen.
pub(super) fn attempts<'a>(group: &FlowGroup<'a>) -> Vec<Flow<'a>> {
    let mut sightings: Vec<&Sighting> = group.sightings().collect();
    sightings.sort_by_key(|sighting| sighting.order());

    let mut attempts: Vec<Attempt<'_>> = Vec::new();
    let opens = |sighting: &&&Sighting| sighting.segment().is_syn() && sighting.icmp.is_none();
    for sighting in sightings.iter().filter(opens) {
        let isn = Some(sighting.segment().seq);
        let known = attempts.iter().position(|attempt| attempt.isn == isn);
        let index = known.unwrap_or_else(|| {
            attempts.push(Attempt::new(sighting.tuple, isn, sighting.time_ns));
            attempts.len() - 1
        });
        attempts[index].push_syn(sighting);
    }
    for attempt in &mut attempts {
        group.spread(&mut attempt.forward);
    }
    join_crossing(&mut attempts, &sightings);
    for sighting in sightings.iter().filter(|sighting| !opens(sighting)) {
        let index = attempt_of(sighting, &attempts).unwrap_or_else(|| {
            let first = guess_forward(sighting.tuple, &sightings);
            let mut unseen = Attempt::new(first, None, sighting.time_ns);
            group.spread(&mut unseen.forward);
            attempts.insert(0, unseen);
            0
        });
        attempts[index].push(sighting);
    }
    attempts.sort_by_key(|attempt| attempt.start_ns);
    let mut sockets: Vec<&SocketSighting> = group.sockets().collect();
    sockets.sort_by_key(|seen| (seen.time_ns, seen.cpu, seen.sequence));
    for seen in sockets {
        let index = attempts.iter().rposition(|attempt| attempt.may_own(seen));
        if let Some(index) = index {
            attempts[index].sockets.push(seen);
        }
    }
    attempts
        .into_iter()
        .map(|attempt| attempt.finish(group))
        .collect()
}

/// Makes one attempt of two whose SYNs crossed (RFC 9293, 3.5): a SYN-ACK acknowledges the one with the number of the other.
/// The one that was seen first stays, and the other's SYNs are something that its server sent.
fn join_crossing(attempts: &mut Vec<Attempt<'_>>, sightings: &[&Sighting]) {
    let is_syn_ack = |seen: &&&Sighting| seen.segment().is_syn_ack() && seen.icmp.is_none();
    for syn_ack in sightings.iter().filter(is_syn_ack) {
        let (segment, tuple) = (syn_ack.segment(), syn_ack.tuple);
        let of = |isn: u32, tuple: FiveTuple| {
            attempts
                .iter()
                .position(|attempt| attempt.isn == Some(isn) && attempt.forward.contains(&tuple))
        };
        let answered = of(segment.ack.wrapping_sub(1), tuple.reversed());
        let (Some(one), Some(other)) = (answered, of(segment.seq, tuple)) else {
            continue;
        };
        let (stays, goes) = if attempts[one].start_ns <= attempts[other].start_ns {
            (one, other)
        } else {
            (other, one)
        };
        let crossing = std::mem::take(&mut attempts[goes].syns);
        attempts[stays].crossing = attempts[goes].isn;
        attempts[stays].data.extend(crossing);
        attempts.remove(goes);
    }
}

/// A connecting socket enters `SYN_SENT` just before its SYN is seen: at most this long.
const SYN_SENT_LEAD_NS: u64 = 1_000_000;

/// The attempt that a packet other than a SYN belongs to, or `None` if it came before every one of them.
fn attempt_of(sighting: &Sighting, attempts: &[Attempt<'_>]) -> Option<usize> {
    let segment = sighting.segment();
    // Or an ICMP error that quotes an answer.
    let answers = |attempt: &Attempt<'_>| {
        (segment.is_syn_ack() || segment.is_reset())
            && attempt.forward.contains(&sighting.tuple.reversed())
            && attempt.is_after_syn(segment.ack)
    };
    let quotes = |attempt: &Attempt<'_>| {
        sighting.icmp.is_some()
            && segment.is_syn()
            && attempt.forward.contains(&sighting.tuple)
            && attempt.isn == Some(segment.seq)
    };
    let earlier = |attempt: &Attempt<'_>| {
        attempt.knows(sighting.tuple)
            && (attempt.start_ns <= sighting.time_ns || attempt.isn.is_none())
    };
    // A SYN-ACK that acknowledges no SYN of ours answers one that was not seen.
    let unseen = |attempt: &Attempt<'_>| attempt.knows(sighting.tuple) && attempt.isn.is_none();
    if let Some(index) = attempts.iter().rposition(|attempt| {
        answers(attempt) || quotes(attempt) || attempt.answers_crossing(sighting)
    }) {
        return Some(index);
    }
    if segment.is_syn_ack() {
        return attempts.iter().position(unseen);
    }
    // The addresses do not tell two attempts apart that happen at once (two namespaces may have the same); the sequence
    // numbers do, since those of two connections are random to each other.
    let distance = |attempt: &Attempt<'_>| attempt.bytes_since_syn(sighting).unwrap_or(u32::MAX);
    let (nearest, _) = attempts
        .iter()
        .enumerate()
        .filter(|(_, attempt)| earlier(attempt))
        .min_by_key(|(index, attempt)| (distance(attempt), Reverse(*index)))?;
    if distance(&attempts[nearest]) < NEAR_BYTES {
        return Some(nearest);
    }
    // Too far to be known by its numbers: of a connection from before the trace, or of one that is long.
    Some(attempts.iter().position(unseen).unwrap_or(nearest))
}

/// Which way is the client's, where the SYN was not seen: towards the sender of a SYN-ACK; else towards the lower port,
/// since ephemeral ports are high (`ip_local_port_range` begins at 32768) and services are low.
fn guess_forward(tuple: FiveTuple, sightings: &[&Sighting]) -> FiveTuple {
    let is_syn_ack = |sighting: &&&Sighting| {
        sighting.segment().is_syn_ack() && sighting.tuple.key() == tuple.key()
    };
    if let Some(syn_ack) = sightings.iter().find(is_syn_ack) {
        return syn_ack.tuple.reversed();
    }
    if tuple.src.port() >= tuple.dst.port() {
        tuple
    } else {
        tuple.reversed()
    }
}
