//! Sorts what was seen of one five-tuple, and of those that it was translated into, into connection attempts, and the
//! packets of an attempt into the parts that they play in a handshake.

use std::net::SocketAddr;

use super::copies::{Transmission, split};
use super::table::FlowGroup;
use super::{FiveTuple, Sighting, SocketSighting, TcpFlags};
use crate::event::{SocketHook, TcpState};

/// One connection attempt.
#[derive(Debug)]
pub struct Flow<'a> {
    /// Who asked, as at the first place that saw it.
    pub client: SocketAddr,
    /// Who was asked, as at the first place that saw it.
    pub server: SocketAddr,
    /// The addresses that the client's packets had, as they were translated on their way; the first are `client` and
    /// `server`.
    pub forward: Vec<FiveTuple>,
    /// The SYN. Empty where the trace began after it.
    pub request: Vec<Transmission<'a>>,
    /// The SYN-ACK.
    pub reply: Vec<Transmission<'a>>,
    /// The client's first acknowledgement, or the data that carries it.
    pub ack: Vec<Transmission<'a>>,
    /// Resets by the server that answer the SYN.
    pub refusals: Vec<Transmission<'a>>,
    /// Every other reset.
    pub resets: Vec<Transmission<'a>>,
    /// ICMP errors about packets of the client, in the order of time.
    pub errors: Vec<&'a Sighting>,
    /// Everything else, in the order of time.
    pub data: Vec<&'a Sighting>,
    /// What the sockets said.
    pub sockets: Vec<&'a SocketSighting>,
    /// Whether something of these five-tuples did not fit into the table.
    pub left_out: bool,
}

impl<'a> Flow<'a> {
    /// Every sighting of every part, in no order.
    pub fn sightings(&self) -> impl Iterator<Item = &'a Sighting> {
        [
            &self.request,
            &self.reply,
            &self.ack,
            &self.refusals,
            &self.resets,
        ]
        .into_iter()
        .flatten()
        .flat_map(|transmission| transmission.sightings().iter().copied())
        .chain(self.errors.iter().copied())
        .chain(self.data.iter().copied())
    }

    /// When the first packet was seen.
    pub fn first_ns(&self) -> u64 {
        self.sightings()
            .map(|sighting| sighting.time_ns)
            .min()
            .unwrap_or(0)
    }

    /// When the last packet was seen.
    pub fn last_ns(&self) -> u64 {
        self.sightings()
            .map(|sighting| sighting.time_ns)
            .max()
            .unwrap_or(0)
    }

    /// When the client's socket entered a state, or left it for [`TcpState::Close`].
    pub fn client_state_at(&self, state: TcpState) -> Option<u64> {
        self.sockets
            .iter()
            .find(|seen| self.is_client(seen) && seen.socket.new_state == Some(state))
            .map(|seen| seen.time_ns)
    }

    /// Whether the server's own socket reached `TCP_ESTABLISHED`.
    pub fn server_established(&self) -> bool {
        self.sockets.iter().any(|seen| {
            !self.is_client(seen)
                && seen.hook == SocketHook::State
                && seen.socket.new_state == Some(TcpState::Established)
        })
    }

    /// Whether a packet goes the client's way, whatever its addresses were translated to.
    pub fn is_from_client(&self, sighting: &Sighting) -> bool {
        self.forward.contains(&sighting.tuple)
    }

    /// Whether a socket message is by the client's socket.
    pub fn is_client(&self, seen: &SocketSighting) -> bool {
        (seen.socket.local_addr, seen.socket.local_port) == (self.client.ip(), self.client.port())
    }
}

/// An attempt while its packets are being sorted.
struct Attempt<'a> {
    /// As in [`Flow`].
    forward: Vec<FiveTuple>,
    /// The client's initial sequence number; `None` where the SYN was not seen.
    isn: Option<u32>,
    start_ns: u64,
    syns: Vec<&'a Sighting>,
    syn_acks: Vec<&'a Sighting>,
    acks: Vec<&'a Sighting>,
    refusals: Vec<&'a Sighting>,
    resets: Vec<&'a Sighting>,
    errors: Vec<&'a Sighting>,
    data: Vec<&'a Sighting>,
    sockets: Vec<&'a SocketSighting>,
}

impl<'a> Attempt<'a> {
    fn new(first: FiveTuple, isn: Option<u32>, start_ns: u64) -> Self {
        Self {
            forward: vec![first],
            isn,
            start_ns,
            syns: Vec::new(),
            syn_acks: Vec::new(),
            acks: Vec::new(),
            refusals: Vec::new(),
            resets: Vec::new(),
            errors: Vec::new(),
            data: Vec::new(),
            sockets: Vec::new(),
        }
    }

    /// Files a SYN: what addresses it has here, the client's other packets will have too.
    fn push_syn(&mut self, sighting: &'a Sighting) {
        if !self.forward.contains(&sighting.tuple) {
            self.forward.push(sighting.tuple);
        }
        self.syns.push(sighting);
    }

    /// Files any other packet.
    fn push(&mut self, sighting: &'a Sighting) {
        let segment = sighting.segment;
        let from_client = self.forward.contains(&sighting.tuple);
        let after_syn = self.isn.map(|isn| isn.wrapping_add(1));
        if sighting.icmp.is_some() {
            if from_client {
                self.errors.push(sighting);
            }
            return;
        }
        if segment.is_syn_ack() {
            self.syn_acks.push(sighting);
        } else if segment.is_reset() {
            let answers_syn =
                !from_client && segment.flags.has(TcpFlags::ACK) && after_syn == Some(segment.ack);
            if answers_syn {
                &mut self.refusals
            } else {
                &mut self.resets
            }
            .push(sighting);
        } else if from_client && segment.flags.has(TcpFlags::ACK) && Some(segment.seq) == after_syn
        {
            // Whatever way the SYN-ACK took: a client that sends this has received one.
            self.acks.push(sighting);
        } else {
            self.data.push(sighting);
        }
    }

    /// Whether packets of the attempt had these addresses, in either direction.
    fn knows(&self, tuple: FiveTuple) -> bool {
        self.forward.contains(&tuple) || self.forward.contains(&tuple.reversed())
    }

    /// How far a packet lies from the attempt's SYN, in bytes of the client's sequence. Initial sequence numbers are
    /// random, so of several attempts with one five-tuple (a port used again, the same addresses in two namespaces)
    /// the right one is by far the nearest.
    fn distance(&self, sighting: &Sighting) -> u32 {
        let Some(isn) = self.isn else {
            return u32::MAX / 2;
        };
        let position = if self.forward.contains(&sighting.tuple) {
            sighting.segment.seq
        } else {
            sighting.segment.ack
        };
        position.wrapping_sub(isn)
    }

    fn finish(self, group: &FlowGroup<'a>) -> Flow<'a> {
        Flow {
            client: self.forward[0].src,
            server: self.forward[0].dst,
            forward: self.forward,
            request: split(self.syns),
            reply: split_by_sequence(self.syn_acks),
            ack: split_by_sequence(self.acks),
            refusals: split_by_sequence(self.refusals),
            resets: split_by_sequence(self.resets),
            errors: self.errors,
            data: self.data,
            sockets: self.sockets,
            left_out: group.left_out(),
        }
    }
}

/// The connection attempts of a group of five-tuples, oldest first.
///
/// Each initial sequence number of a SYN is an attempt. What came before the first SYN is an attempt whose
/// request was not seen.
pub fn attempts<'a>(group: &FlowGroup<'a>) -> Vec<Flow<'a>> {
    let mut sightings: Vec<&Sighting> = group.sightings().collect();
    sightings.sort_by_key(|sighting| sighting.order());

    let mut attempts: Vec<Attempt<'_>> = Vec::new();
    let opens = |sighting: &&&Sighting| sighting.segment.is_syn() && sighting.icmp.is_none();
    for sighting in sightings.iter().filter(opens) {
        let isn = Some(sighting.segment.seq);
        let known = attempts.iter().position(|attempt| attempt.isn == isn);
        let index = known.unwrap_or_else(|| {
            attempts.push(Attempt::new(sighting.tuple, isn, sighting.time_ns));
            attempts.len() - 1
        });
        attempts[index].push_syn(sighting);
    }
    for sighting in sightings.iter().filter(|sighting| !opens(sighting)) {
        let index = attempt_of(sighting, &attempts).unwrap_or_else(|| {
            let first = guess_forward(sighting.tuple, &sightings);
            attempts.insert(0, Attempt::new(first, None, sighting.time_ns));
            0
        });
        attempts[index].push(sighting);
    }
    attempts.sort_by_key(|attempt| attempt.start_ns);
    let mut sockets: Vec<&SocketSighting> = group.sockets().collect();
    sockets.sort_by_key(|seen| (seen.time_ns, seen.cpu, seen.sequence));
    for seen in sockets {
        // A connecting socket enters SYN_SENT just before its SYN is seen.
        let begun = |attempt: &Attempt<'_>| attempt.start_ns <= seen.time_ns + SYN_SENT_LEAD_NS;
        let knows = |attempt: &Attempt<'_>| attempt.knows(seen.tuple());
        let index = attempts
            .iter()
            .rposition(|attempt| knows(attempt) && begun(attempt))
            .or_else(|| attempts.iter().position(knows));
        if let Some(index) = index {
            attempts[index].sockets.push(seen);
        }
    }
    attempts
        .into_iter()
        .map(|attempt| attempt.finish(group))
        .collect()
}

/// How long before its SYN is seen a socket may say that it connects.
const SYN_SENT_LEAD_NS: u64 = 1_000_000;

/// The attempt that a packet other than a SYN belongs to, or `None` if it came before every one of them.
fn attempt_of(sighting: &Sighting, attempts: &[Attempt<'_>]) -> Option<usize> {
    let segment = sighting.segment;
    let answers = |attempt: &Attempt<'_>| {
        sighting.icmp.is_none()
            && (segment.is_syn_ack() || segment.is_reset())
            && attempt.forward.contains(&sighting.tuple.reversed())
            && attempt
                .isn
                .is_some_and(|isn| segment.ack == isn.wrapping_add(1))
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
    if let Some(index) = attempts
        .iter()
        .rposition(|attempt| answers(attempt) || quotes(attempt))
    {
        return Some(index);
    }
    if segment.is_syn_ack() {
        return attempts.iter().position(unseen);
    }
    let earlier = attempts
        .iter()
        .enumerate()
        .filter(|(_, attempt)| earlier(attempt));
    let (index, _) = earlier
        .min_by_key(|(index, attempt)| (attempt.distance(sighting), std::cmp::Reverse(*index)))?;
    Some(index)
}

/// Which way is the client's, where the SYN was not seen: towards the sender of a SYN-ACK; else towards the lower port,
/// since ephemeral ports are high (`ip_local_port_range` begins at 32768) and services are low.
fn guess_forward(tuple: FiveTuple, sightings: &[&Sighting]) -> FiveTuple {
    let is_syn_ack = |sighting: &&&Sighting| {
        sighting.segment.is_syn_ack() && sighting.tuple.key() == tuple.key()
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

/// Packets of different sequence or acknowledgement numbers are different packets.
fn split_by_sequence(sightings: Vec<&Sighting>) -> Vec<Transmission<'_>> {
    let identity = |sighting: &Sighting| {
        let segment = sighting.segment;
        (
            segment.seq,
            segment.ack,
            segment.payload_len,
            segment.flags.0,
        )
    };
    let mut groups: Vec<(_, Vec<&Sighting>)> = Vec::new();
    for sighting in sightings {
        let id = identity(sighting);
        match groups.iter_mut().find(|(known, _)| *known == id) {
            Some((_, group)) => group.push(sighting),
            None => groups.push((id, vec![sighting])),
        }
    }
    let mut transmissions: Vec<Transmission<'_>> = groups
        .into_iter()
        .flat_map(|(_, group)| split(group))
        .collect();
    transmissions.sort_by_key(|transmission| transmission.first().order());
    transmissions
}
