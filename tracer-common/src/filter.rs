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
//! - Behind the first fragment there are no ports: a later fragment matches `host`, `net` and the protocol, not `port`, as in
//!   tcpdump, and `not port` does not hide it.
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
    /// Zero.
    pub reserved: u32,
}

impl FilterProgram {
    /// The program that matches every packet.
    pub const ALL: Self = Self {
        clauses: [Clause::UNUSED; CLAUSES_MAX],
        len: 0,
        reserved: 0,
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
    if program.matches_all() {
        return true;
    }
    for (index, clause) in program.clauses.iter().enumerate() {
        if index as u32 >= program.len {
            break;
        }
        if clause_holds(clause, packet) {
            return true;
        }
    }
    false
}

/// By how much something misses, on the packet as it is and with source and destination exchanged: zero where it
/// holds.
///
/// What is computed so has no branch that depends on the packet, so that the verifier walks a program once and not
/// once for every combination of its outcomes. A miss has 32 bits, so that a product of two is zero only if one is.
#[derive(Clone, Copy)]
struct Miss {
    as_is: u64,
    turned: u64,
}

impl Miss {
    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Self {
            as_is: self.as_is | other.as_is,
            turned: self.turned | other.turned,
        }
    }

    /// Misses where this holds.
    #[inline(always)]
    fn not(self) -> Self {
        Self {
            as_is: self.as_is.wrapping_sub(1) >> 63,
            turned: self.turned.wrapping_sub(1) >> 63,
        }
    }

    #[inline(always)]
    fn holds_either_way(self) -> bool {
        self.as_is * self.turned == 0
    }
}

#[inline(never)]
fn clause_holds(clause: &Clause, packet: &Packet) -> bool {
    let mut miss = Miss {
        as_is: 0,
        turned: 0,
    };
    let mut needs_header = false;
    let flow = packet.flow();
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
        } else if let Some(layer) = flow {
            miss = miss.or(term_miss(term, layer).not());
        }
    }
    if !needs_header {
        return miss.holds_either_way();
    }
    // Not over the slice of valid layers, whose end the verifier could not follow.
    for (index, layer) in packet.layers.iter().enumerate() {
        if index >= usize::from(packet.count) {
            break;
        }
        if header_miss(clause, layer).or(miss).holds_either_way() {
            return true;
        }
    }
    packet
        .quoted()
        .is_some_and(|layer| header_miss(clause, layer).or(miss).holds_either_way())
}

/// By how much one header misses the positive terms of the clause.
#[inline(always)]
fn header_miss(clause: &Clause, layer: &Layer) -> Miss {
    let mut miss = Miss {
        as_is: 0,
        turned: 0,
    };
    for (index, term) in clause.terms.iter().enumerate() {
        if index as u32 >= clause.len {
            break;
        }
        if !term.negated {
            miss = miss.or(term_miss(term, layer));
        }
    }
    miss
}

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
fn term_miss(term: &Term, layer: &Layer) -> Miss {
    // Otherwise the compiler loads every field in front of the loop over the terms and keeps them on the stack, of
    // which all frames of a program together have 512 bytes.
    let layer = core::hint::black_box(layer);
    let (source, destination) = match term.subject {
        Subject::Version => return number_miss(layer.version, term),
        Subject::Protocol => return number_miss(layer.protocol, term),
        Subject::Address => {
            let version = u64::from(u32::from(layer.version) ^ term.low);
            (
                version | network_miss(&layer.src, term),
                version | network_miss(&layer.dst, term),
            )
        }
        Subject::Port => {
            let ports = u64::from(!layer.flags & FLAG_PORTS);
            (
                ports | range_miss(layer.src_port, term),
                ports | range_miss(layer.dst_port, term),
            )
        }
        // A VNI belongs to the packet.
        Subject::Vni => {
            return Miss {
                as_is: 0,
                turned: 0,
            };
        }
    };
    match term.end {
        End::Either => {
            let miss = fold(source * destination);
            Miss {
                as_is: miss,
                turned: miss,
            }
        }
        End::Source => Miss {
            as_is: source,
            turned: destination,
        },
        End::Destination => Miss {
            as_is: destination,
            turned: source,
        },
    }
}

#[inline(always)]
fn number_miss(number: u8, term: &Term) -> Miss {
    let miss = u64::from(u32::from(number) ^ term.low);
    Miss {
        as_is: miss,
        turned: miss,
    }
}

#[inline(always)]
fn network_miss(address: &[u8; 16], term: &Term) -> u64 {
    let (address, mask, network) = (halves(address), halves(&term.mask), halves(&term.address));
    fold((address[0] & mask[0] ^ network[0]) | (address[1] & mask[1] ^ network[1]))
}

/// The sign of either difference.
#[inline(always)]
fn range_miss(port: u16, term: &Term) -> u64 {
    let port = u64::from(port);
    (port.wrapping_sub(u64::from(term.low)) | u64::from(term.high).wrapping_sub(port)) >> 63
}

/// 32 bits that are zero only if the 64 bits are.
#[inline(always)]
const fn fold(miss: u64) -> u64 {
    miss >> 32 | miss & 0xffff_ffff
}
