//! Sorts what was seen of one five-tuple into connection attempts, and the packets of an attempt into the parts
//! that they play in a handshake.

use std::net::SocketAddr;

use super::copies::{Transmission, split};
use super::table::FlowEvents;
use super::{Sighting, SocketSighting, TcpFlags};
use crate::event::{SocketHook, TcpState};

/// One connection attempt.
#[derive(Debug)]
pub struct Flow<'a> {
    /// Who asked.
    pub client: SocketAddr,
    /// Who was asked.
    pub server: SocketAddr,
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
    /// Whether something of this five-tuple did not fit into the table.
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

    /// Whether a socket message is by the client's socket.
    pub fn is_client(&self, seen: &SocketSighting) -> bool {
        (seen.socket.local_addr, seen.socket.local_port) == (self.client.ip(), self.client.port())
    }
}

/// An attempt while its packets are being sorted.
struct Attempt<'a> {
    client: SocketAddr,
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
}

impl<'a> Attempt<'a> {
    fn new(client: SocketAddr, isn: Option<u32>, start_ns: u64) -> Self {
        Self {
            client,
            isn,
            start_ns,
            syns: Vec::new(),
            syn_acks: Vec::new(),
            acks: Vec::new(),
            refusals: Vec::new(),
            resets: Vec::new(),
            errors: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Files a packet that is not a SYN.
    fn push(&mut self, sighting: &'a Sighting) {
        let segment = sighting.segment;
        let from_client = sighting.tuple.src == self.client;
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
}

/// The connection attempts of one five-tuple, oldest first.
///
/// Each initial sequence number of a SYN is an attempt. What came before the first SYN is an attempt whose
/// request was not seen.
pub fn attempts(events: &FlowEvents) -> Vec<Flow<'_>> {
    let mut sightings: Vec<&Sighting> = events.sightings.iter().collect();
    sightings.sort_by_key(|sighting| sighting.order());

    let mut attempts: Vec<Attempt<'_>> = Vec::new();
    let opens = |sighting: &&&Sighting| sighting.segment.is_syn() && sighting.icmp.is_none();
    for sighting in sightings.iter().filter(opens) {
        let (client, isn) = (sighting.tuple.src, Some(sighting.segment.seq));
        let known = attempts
            .iter()
            .position(|attempt| attempt.client == client && attempt.isn == isn);
        let index = known.unwrap_or_else(|| {
            attempts.push(Attempt::new(client, isn, sighting.time_ns));
            attempts.len() - 1
        });
        attempts[index].syns.push(sighting);
    }
    for sighting in sightings.iter().filter(|sighting| !opens(sighting)) {
        let index = attempt_of(sighting, &attempts).unwrap_or_else(|| {
            attempts.insert(
                0,
                Attempt::new(guess_client(&sightings), None, sighting.time_ns),
            );
            0
        });
        attempts[index].push(sighting);
    }
    finish(attempts, events)
}

/// The attempt that a packet other than a SYN belongs to, or `None` if it came before every one of them.
fn attempt_of(sighting: &Sighting, attempts: &[Attempt<'_>]) -> Option<usize> {
    let segment = sighting.segment;
    let answers = |attempt: &Attempt<'_>| {
        let syn_answered = sighting.icmp.is_none() && (segment.is_syn_ack() || segment.is_reset());
        syn_answered
            && sighting.tuple.src != attempt.client
            && attempt
                .isn
                .is_some_and(|isn| segment.ack == isn.wrapping_add(1))
    };
    let quotes = |attempt: &Attempt<'_>| {
        sighting.icmp.is_some()
            && segment.is_syn()
            && sighting.tuple.src == attempt.client
            && attempt.isn == Some(segment.seq)
    };
    let earlier =
        |attempt: &Attempt<'_>| attempt.start_ns <= sighting.time_ns || attempt.isn.is_none();
    attempts
        .iter()
        .rposition(|attempt| answers(attempt) || quotes(attempt))
        .or_else(|| {
            // A SYN-ACK that acknowledges no SYN of ours answers one that was not seen.
            let unseen = |attempt: &Attempt<'_>| attempt.isn.is_none();
            if segment.is_syn_ack() {
                attempts.iter().position(unseen)
            } else {
                attempts.iter().rposition(earlier)
            }
        })
}

/// Who asked, where the SYN was not seen: the receiver of a SYN-ACK; else the side with the higher port, since
/// ephemeral ports are high (`ip_local_port_range` begins at 32768) and services are low.
fn guess_client(sightings: &[&Sighting]) -> SocketAddr {
    if let Some(syn_ack) = sightings
        .iter()
        .find(|sighting| sighting.segment.is_syn_ack())
    {
        return syn_ack.tuple.dst;
    }
    let tuple = sightings[0].tuple;
    if tuple.src.port() >= tuple.dst.port() {
        tuple.src
    } else {
        tuple.dst
    }
}

fn finish<'a>(attempts: Vec<Attempt<'a>>, events: &'a FlowEvents) -> Vec<Flow<'a>> {
    let starts: Vec<u64> = attempts.iter().map(|attempt| attempt.start_ns).collect();
    let mut sockets: Vec<&SocketSighting> = events.sockets.iter().collect();
    sockets.sort_by_key(|seen| (seen.time_ns, seen.cpu, seen.sequence));
    let mut flows = Vec::with_capacity(attempts.len());
    for (index, attempt) in attempts.into_iter().enumerate() {
        let server = peer_of(attempt.client, &attempt);
        // A connecting socket enters SYN_SENT just before its SYN is seen, so a message belongs to the attempt
        // whose start is the last before it, with that much grace.
        let until = starts.get(index + 1).copied();
        let mine = |seen: &&&SocketSighting| {
            let since = if index == 0 {
                0
            } else {
                starts[index].saturating_sub(SYN_SENT_LEAD_NS)
            };
            seen.time_ns >= since
                && until.is_none_or(|until| seen.time_ns < until.saturating_sub(SYN_SENT_LEAD_NS))
        };
        flows.push(Flow {
            client: attempt.client,
            server,
            request: split(attempt.syns),
            reply: split_by_sequence(attempt.syn_acks),
            ack: split_by_sequence(attempt.acks),
            refusals: split_by_sequence(attempt.refusals),
            resets: split_by_sequence(attempt.resets),
            errors: attempt.errors,
            data: attempt.data,
            sockets: sockets.iter().filter(mine).copied().collect(),
            left_out: events.left_out > 0,
        });
    }
    flows
}

/// How long before its SYN is seen a socket may say that it connects.
const SYN_SENT_LEAD_NS: u64 = 1_000_000;

fn peer_of(client: SocketAddr, attempt: &Attempt<'_>) -> SocketAddr {
    let parts = [
        &attempt.syns,
        &attempt.syn_acks,
        &attempt.acks,
        &attempt.refusals,
        &attempt.resets,
        &attempt.errors,
        &attempt.data,
    ];
    let tuple = parts
        .into_iter()
        .find_map(|part| part.first())
        .map(|sighting| sighting.tuple);
    tuple.map_or(client, |tuple| {
        if tuple.src == client {
            tuple.dst
        } else {
            tuple.src
        }
    })
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
