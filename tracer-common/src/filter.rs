//! The filter, compiled to a bounded program that both halves evaluate.
//!
//! A program is an alternative of clauses, each a conjunction of terms. It owns what a term means:
//!
//! - A clause needs **one** IP header of the packet (an outer one, the innermost, or the one that an ICMP error
//!   quotes) on which all of its positive terms hold together: `host A and port 80` is not satisfied by an outer
//!   A and an inner port 80.
//! - A VNI belongs to the packet, not to a header: `vni N` holds if any of its tunnels carries N, and its negation
//!   if none does.
//! - A negated term is judged on the header of the flow alone ([`Packet::flow`]): `not port 22` hides a tunnelled
//!   SSH connection, and `not port 4789` hides nothing that travels inside a tunnel.
//! - A filter selects flows, so a packet matches if the program holds on it as it is, or on it with source and
//!   destination exchanged in every header; see [`matches_either_direction`].

use crate::packet::{FLAG_PORTS, Layer, Packet, halves};

/// The most clauses of a program.
pub const CLAUSES_MAX: usize = 16;

/// The most terms of a clause.
pub const TERMS_MAX: usize = 12;

/// Which end of a header a term looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::IntoBytes, zerocopy::Immutable))]
#[repr(u8)]
pub enum End {
    /// Either end.
    Either = 0,
    /// The source.
    Source = 1,
    /// The destination.
    Destination = 2,
}

/// What a term compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::IntoBytes, zerocopy::Immutable))]
#[repr(u8)]
pub enum Subject {
    /// The IP version with `low`.
    Version = 0,
    /// The transport protocol with `low`.
    Protocol = 1,
    /// An address with `address` under `mask`; the IP version is `low`.
    Address = 2,
    /// A TCP or UDP port with `low` to `high`.
    Port = 3,
    /// The VNI with `low`.
    Vni = 4,
}

/// One comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::IntoBytes, zerocopy::Immutable))]
#[repr(C, align(8))]
pub struct Term {
    /// The network, in the form of [`Layer::src`], with the bits outside `mask` zero.
    pub address: [u8; 16],
    /// The bits of the address that are compared.
    pub mask: [u8; 16],
    /// What the subject is compared with.
    pub low: u32,
    /// The upper end of a range of ports, itself included.
    pub high: u32,
    /// What is compared.
    pub subject: Subject,
    /// The end of the header whose address or port is compared.
    pub end: End,
    /// Whether the term must not hold.
    pub negated: bool,
    /// Zero.
    pub reserved: [u8; 5],
}

impl Term {
    /// The term in an unused place.
    pub const UNUSED: Self = Self {
        address: [0; 16],
        mask: [0; 16],
        low: 0,
        high: 0,
        subject: Subject::Version,
        end: End::Either,
        negated: false,
        reserved: [0; 5],
    };
}

/// A conjunction of terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::IntoBytes, zerocopy::Immutable))]
#[repr(C)]
pub struct Clause {
    /// The terms; only the first `len` count.
    pub terms: [Term; TERMS_MAX],
    /// How many terms there are.
    pub len: u32,
    /// Zero.
    pub reserved: u32,
}

impl Clause {
    /// The clause in an unused place.
    pub const UNUSED: Self = Self {
        terms: [Term::UNUSED; TERMS_MAX],
        len: 0,
        reserved: 0,
    };
}

/// A compiled filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(zerocopy::IntoBytes, zerocopy::Immutable))]
#[repr(C)]
pub struct FilterProgram {
    /// The clauses; only the first `len` count.
    pub clauses: [Clause; CLAUSES_MAX],
    /// How many clauses there are; a program without any matches every packet.
    pub len: u32,
    /// 1 where a term looks at one end only, so that the two directions can differ, else 0.
    pub directed: u32,
}

impl FilterProgram {
    /// The program that matches every packet.
    pub const ALL: Self = Self {
        clauses: [Clause::UNUSED; CLAUSES_MAX],
        len: 0,
        directed: 0,
    };

    /// Whether every packet matches.
    #[inline(always)]
    pub const fn matches_all(&self) -> bool {
        self.len == 0
    }
}

/// Whether the flow of this packet is selected: the program holds on the packet as it is, or with source and
/// destination exchanged in every header.
#[inline(always)]
pub fn matches_either_direction(program: &FilterProgram, packet: &Packet) -> bool {
    matches(program, packet, false) || (program.directed != 0 && matches(program, packet, true))
}

/// Whether the program holds on the packet in one direction, `turned` where source and destination are exchanged.
#[inline(always)]
pub fn matches(program: &FilterProgram, packet: &Packet, turned: bool) -> bool {
    if program.matches_all() {
        return true;
    }
    for (index, clause) in program.clauses.iter().enumerate() {
        if index as u32 >= program.len {
            break;
        }
        if clause_holds(clause, packet, turned) {
            return true;
        }
    }
    false
}

#[inline(never)]
fn clause_holds(clause: &Clause, packet: &Packet, turned: bool) -> bool {
    let mut needs_header = false;
    for (index, term) in clause.terms.iter().enumerate() {
        if index as u32 >= clause.len {
            break;
        }
        if matches!(term.subject, Subject::Vni) {
            if carries_vni(packet, term.low) == term.negated {
                return false;
            }
        } else if !term.negated {
            needs_header = true;
        } else if packet
            .flow()
            .is_some_and(|layer| term_holds(term, layer, turned))
        {
            return false;
        }
    }
    if !needs_header {
        return true;
    }
    // Not over the slice of valid layers, whose end the verifier could not follow.
    for (index, layer) in packet.layers.iter().enumerate() {
        if index >= usize::from(packet.count) {
            break;
        }
        if header_holds(clause, layer, turned) {
            return true;
        }
    }
    packet
        .quoted()
        .is_some_and(|layer| header_holds(clause, layer, turned))
}

/// Whether all positive terms of the clause hold on one header.
#[inline(always)]
fn header_holds(clause: &Clause, layer: &Layer, turned: bool) -> bool {
    for (index, term) in clause.terms.iter().enumerate() {
        if index as u32 >= clause.len {
            break;
        }
        if !term.negated
            && !matches!(term.subject, Subject::Vni)
            && !term_holds(term, layer, turned)
        {
            return false;
        }
    }
    true
}

#[inline(always)]
fn carries_vni(packet: &Packet, vni: u32) -> bool {
    for (index, layer) in packet.layers.iter().enumerate() {
        if index >= usize::from(packet.count) {
            break;
        }
        if layer.tunnel.has_vni() && layer.vni == vni {
            return true;
        }
    }
    false
}

#[inline(always)]
fn term_holds(term: &Term, layer: &Layer, turned: bool) -> bool {
    let at_source = match term.end {
        End::Either => true,
        End::Source => !turned,
        End::Destination => turned,
    };
    let at_destination = !at_source || matches!(term.end, End::Either);
    match term.subject {
        Subject::Version => u32::from(layer.version) == term.low,
        Subject::Protocol => u32::from(layer.protocol) == term.low,
        Subject::Address => {
            u32::from(layer.version) == term.low
                && (at_source && in_network(&layer.src, term)
                    || at_destination && in_network(&layer.dst, term))
        }
        Subject::Port => {
            layer.has(FLAG_PORTS)
                && (at_source && in_range(layer.src_port, term)
                    || at_destination && in_range(layer.dst_port, term))
        }
        Subject::Vni => false,
    }
}

#[inline(always)]
fn in_network(address: &[u8; 16], term: &Term) -> bool {
    let (address, mask, network) = (halves(address), halves(&term.mask), halves(&term.address));
    address[0] & mask[0] == network[0] && address[1] & mask[1] == network[1]
}

#[inline(always)]
fn in_range(port: u16, term: &Term) -> bool {
    u32::from(port) >= term.low && u32::from(port) <= term.high
}
