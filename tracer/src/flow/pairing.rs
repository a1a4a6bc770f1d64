//! Sorts what was seen of one five-tuple, and of those that it was translated into, into flows: requests with what
//! answers them. `handshake` knows TCP, `exchange` what has no connections.

mod exchange;
mod handshake;

use std::net::SocketAddr;

use tracer_common::packet::IpProto;

use super::copies::Transmission;
use super::table::FlowGroup;
use super::{FiveTuple, IcmpError, Sighting, SocketSighting, TcpFlags};
use crate::codes::PacketKind;
use crate::event::{SocketHook, TcpState};

/// One request with what answers it: a TCP connection attempt, a DNS query or an ICMP echo with its repetitions, or
/// all datagrams between two UDP ports.
#[derive(Debug)]
pub struct Flow<'a> {
    /// The IP protocol number.
    pub protocol: u8,
    /// What tells the flow from others with its addresses: the SYN's sequence number, the DNS identifier, the echo's
    /// sequence number; `None` where the request was not seen, or nothing tells them apart.
    pub number: Option<u32>,
    /// Who asked, as at the place nearest to the client that was seen.
    pub client: SocketAddr,
    /// Who was asked, as at the same place.
    pub server: SocketAddr,
    /// The addresses that the client's packets had, as they were translated on their way; `client` and `server` are
    /// among them.
    pub forward: Vec<FiveTuple>,
    /// The SYN, the query, the echo request; every datagram of the client where those cannot be told apart. Empty where
    /// the trace began after it.
    pub request: Vec<Transmission<'a>>,
    /// The SYN-ACK, the answer, the echo reply; every datagram of the server.
    pub reply: Vec<Transmission<'a>>,
    /// The client's first acknowledgement, or the data that carries it.
    pub ack: Vec<Transmission<'a>>,
    /// Resets by the server that answer the SYN.
    pub refusals: Vec<Transmission<'a>>,
    /// Every other reset.
    pub resets: Vec<Transmission<'a>>,
    /// ICMP errors about packets of the client, in the order of time.
    pub errors: Vec<&'a Sighting>,
    /// ICMP errors about packets of the server.
    pub errors_back: Vec<&'a Sighting>,
    /// Everything else, in the order of time.
    pub data: Vec<&'a Sighting>,
    /// What the sockets said.
    pub sockets: Vec<&'a SocketSighting>,
    /// Whether something of these five-tuples did not fit into the table.
    pub left_out: bool,
    /// From when on packets that merely passed may be missing, since there were too many of them.
    pub sampled_since_ns: Option<u64>,
}

impl<'a> Flow<'a> {
    /// Whether it is a TCP connection.
    pub const fn is_tcp(&self) -> bool {
        self.protocol == IpProto::Tcp as u8
    }

    /// What its requests are.
    pub const fn request_kind(&self) -> PacketKind {
        match (self.protocol, self.number) {
            (TCP, _) => PacketKind::Syn,
            (UDP, Some(_)) => PacketKind::Query,
            (UDP, None) => PacketKind::Datagram,
            _ => PacketKind::EchoRequest,
        }
    }

    /// What answers them.
    pub const fn reply_kind(&self) -> PacketKind {
        match (self.protocol, self.number) {
            (TCP, _) => PacketKind::SynAck,
            (UDP, Some(_)) => PacketKind::Answer,
            (UDP, None) => PacketKind::DatagramBack,
            _ => PacketKind::EchoReply,
        }
    }

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
        .chain(self.errors_back.iter().copied())
        .chain(self.data.iter().copied())
    }

    /// The part of an exchange that came after a moment.
    #[must_use]
    pub fn since(&self, time_ns: u64) -> Self {
        let later = |transmissions: &[Transmission<'a>]| {
            let is_later = |each: &&Transmission<'a>| each.first().time_ns > time_ns;
            transmissions.iter().filter(is_later).cloned().collect()
        };
        let later_sightings = |sightings: &[&'a Sighting]| {
            let is_later = |each: &&&'a Sighting| each.time_ns > time_ns;
            sightings.iter().filter(is_later).copied().collect()
        };
        Self {
            request: later(&self.request),
            reply: later(&self.reply),
            ack: later(&self.ack),
            refusals: later(&self.refusals),
            resets: later(&self.resets),
            errors: later_sightings(&self.errors),
            errors_back: later_sightings(&self.errors_back),
            data: later_sightings(&self.data),
            sockets: self.sockets.clone(),
            forward: self.forward.clone(),
            ..*self
        }
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

    /// Whom the client asked: as its socket says, or as the first place saw it.
    pub fn asked(&self) -> SocketAddr {
        // Where no socket waits, a RST is sent in the name of one that has the packet's addresses.
        let own =
            |seen: &&&SocketSighting| self.is_client(seen) && seen.hook != SocketHook::ResetSent;
        let own = self.sockets.iter().find(own);
        own.map_or(self.server, |seen| seen.tuple().dst)
    }

    /// Whether a packet is one of the client's that only a client with the reply sends, soon after its SYN: its sequence
    /// number is near the SYN's, which that of another connection with the same addresses is not.
    pub fn follows_request(&self, sighting: &Sighting) -> bool {
        let isn = self.request.first().map(|syn| syn.first().segment().seq);
        self.is_from_client(sighting)
            && sighting.segment().flags.has(TcpFlags::ACK)
            && isn.is_some_and(|isn| sighting.segment().seq.wrapping_sub(isn) < NEAR_BYTES)
    }

    /// Whether a packet goes the client's way, whatever its addresses were translated to.
    pub fn is_from_client(&self, sighting: &Sighting) -> bool {
        is_forward(sighting, &self.forward)
    }

    /// Whether the client had reset the connection when something was seen.
    pub fn client_reset_before(&self, sighting: &Sighting) -> bool {
        self.resets
            .iter()
            .map(Transmission::first)
            .any(|reset| self.is_from_client(reset) && reset.order() < sighting.order())
    }

    /// The ICMP errors that tell the sender of a packet that such packets are too big.
    pub fn too_big_errors(&self, packet: &Sighting) -> impl Iterator<Item = &'a Sighting> {
        let errors = if self.is_from_client(packet) {
            &self.errors
        } else {
            &self.errors_back
        };
        let too_big = |error: &&'a Sighting| error.icmp.is_some_and(IcmpError::is_too_big);
        errors.iter().copied().filter(too_big)
    }

    /// Whether a socket message is by the client's socket.
    pub fn is_client(&self, seen: &SocketSighting) -> bool {
        self.forward.contains(&seen.tuple())
    }
}

/// What is further from a SYN than this is not shown by its sequence number to belong to it.
const NEAR_BYTES: u32 = 1 << 26;

/// Whether a packet goes the client's way. Whoever pings itself has the same addresses in both directions, so what the
/// packet itself says of it comes first.
fn is_forward(sighting: &Sighting, forward: &[FiveTuple]) -> bool {
    match sighting.message.is_answer() {
        Some(is_answer) => !is_answer,
        None => forward.contains(&sighting.tuple),
    }
}

const TCP: u8 = IpProto::Tcp as u8;
const UDP: u8 = IpProto::Udp as u8;

/// The flows of a group of five-tuples, oldest first.
pub fn flows<'a>(group: &FlowGroup<'a>) -> Vec<Flow<'a>> {
    if group.key().protocol == TCP {
        handshake::attempts(group)
    } else {
        exchange::exchanges(group)
    }
}

/// The addresses of the client's packets before anybody translated them: those with which a SYN began that was seen
/// to be translated, or to which an answer was translated back. `None` where no translation was seen.
fn nearest_to_client<'t>(
    request: &[Transmission<'_>],
    mut answers: impl Iterator<Item = &'t Transmission<'t>>,
) -> Option<FiveTuple> {
    let translated = |each: &&Transmission<'_>| each.first().tuple != each.last().tuple;
    let begun = request.iter().find(translated);
    begun
        .map(|syn| syn.first().tuple)
        .or_else(|| Some(answers.find(translated)?.last().tuple.reversed()))
}
