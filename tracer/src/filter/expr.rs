//! An expression, as read.

use std::net::IpAddr;

use tracer_common::filter::{End, Subject, Term};

/// A condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expr {
    /// One comparison, never negated.
    Term(Term),
    /// Both.
    And(Box<Expr>, Box<Expr>),
    /// At least one.
    Or(Box<Expr>, Box<Expr>),
    /// The opposite, in both directions of the flow.
    Not(Box<Expr>),
}

impl Expr {
    pub(super) fn and(self, other: Self) -> Self {
        Self::And(Box::new(self), Box::new(other))
    }

    pub(super) fn or(self, other: Self) -> Self {
        Self::Or(Box::new(self), Box::new(other))
    }

    pub(super) fn negate(self) -> Self {
        Self::Not(Box::new(self))
    }
}

/// A network; a host is one of a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network {
    /// The address, with the bits of the hosts zero.
    pub(super) address: IpAddr,
    /// How many bits are the network's.
    pub(super) prefix_len: u8,
}

impl Network {
    /// How many bits an address of this version has.
    pub(super) fn address_bits(address: IpAddr) -> u8 {
        if address.is_ipv4() { 32 } else { 128 }
    }

    /// A single address.
    pub(super) fn host(address: IpAddr) -> Self {
        Self {
            address,
            prefix_len: Self::address_bits(address),
        }
    }

    /// The network of this length that the address is in.
    pub(super) fn containing(address: IpAddr, prefix_len: u8) -> Self {
        let (bytes, mask) = (wide(address), mask(prefix_len));
        let bytes: [u8; 16] = std::array::from_fn(|index| bytes[index] & mask[index]);
        let address = if address.is_ipv4() {
            let [a, b, c, d, ..] = bytes;
            IpAddr::from([a, b, c, d])
        } else {
            IpAddr::from(bytes)
        };
        Self {
            address,
            prefix_len,
        }
    }
}

/// The address in the form that headers have it in.
fn wide(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    }
}

fn mask(prefix_len: u8) -> [u8; 16] {
    let bits = u128::MAX
        .checked_shl(128 - u32::from(prefix_len))
        .unwrap_or(0);
    bits.to_be_bytes()
}

/// An IP version, 4 or 6.
pub(super) fn version(version: u8) -> Expr {
    Expr::Term(Term {
        subject: Subject::Version,
        low: version.into(),
        ..Term::UNUSED
    })
}

/// A transport protocol.
pub(super) fn protocol(protocol: u8) -> Expr {
    Expr::Term(Term {
        subject: Subject::Protocol,
        low: protocol.into(),
        ..Term::UNUSED
    })
}

/// An address in a network.
pub(super) fn network(network: Network, end: End) -> Expr {
    Expr::Term(Term {
        subject: Subject::Address,
        address: wide(network.address),
        mask: mask(network.prefix_len),
        low: if network.address.is_ipv4() { 4 } else { 6 },
        end,
        ..Term::UNUSED
    })
}

/// A TCP or UDP port.
pub(super) fn ports(low: u16, high: u16, end: End) -> Expr {
    Expr::Term(Term {
        subject: Subject::Port,
        low: low.into(),
        high: high.into(),
        end,
        ..Term::UNUSED
    })
}

/// A VNI.
pub(super) fn vni(vni: u32) -> Expr {
    Expr::Term(Term {
        subject: Subject::Vni,
        low: vni,
        ..Term::UNUSED
    })
}
