//! The words in front of a value.

use std::net::IpAddr;

use tracer_common::filter::End;
use tracer_common::packet::IpProto;

use super::expr::{self, Expr};

/// What kind of value follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Host,
    Net,
    Port,
    PortRange,
    Vni,
}

impl Kind {
    pub(super) fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "host" => Self::Host,
            "net" => Self::Net,
            "port" => Self::Port,
            "portrange" => Self::PortRange,
            "vni" => Self::Vni,
            _ => return None,
        })
    }

    /// What its value is.
    pub(super) fn value(self) -> &'static str {
        match self {
            Self::Host => "an IPv4 or IPv6 address",
            Self::Net => "a network, like 10.0.0.0/8",
            Self::Port => "a port number",
            Self::PortRange => "two port numbers, like 8000-8080",
            Self::Vni => "a VNI, from 0 to 16777215",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    One(End),
    /// `src and dst`: both ends.
    Both,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Ip,
    Ip6,
    Tcp,
    Udp,
    Icmp,
    Icmp6,
}

impl Protocol {
    pub(super) fn of_word(word: &str) -> Option<Self> {
        Some(match word {
            "ip" => Self::Ip,
            "ip6" => Self::Ip6,
            "tcp" => Self::Tcp,
            "udp" => Self::Udp,
            "icmp" => Self::Icmp,
            "icmp6" => Self::Icmp6,
            _ => return None,
        })
    }

    pub(super) fn expr(self) -> Expr {
        match self {
            Self::Ip => expr::version(4),
            Self::Ip6 => expr::version(6),
            Self::Tcp => expr::protocol(IpProto::Tcp as u8),
            Self::Udp => expr::protocol(IpProto::Udp as u8),
            Self::Icmp => expr::protocol(IpProto::Icmp as u8),
            Self::Icmp6 => expr::protocol(IpProto::Ipv6Icmp as u8),
        }
    }

    /// Whether a header of this protocol can have such an address.
    pub(super) fn carries(self, address: IpAddr) -> bool {
        match self {
            Self::Ip | Self::Icmp => address.is_ipv4(),
            Self::Ip6 | Self::Icmp6 => address.is_ipv6(),
            Self::Tcp | Self::Udp => true,
        }
    }
}

/// The words in front of a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Qualifiers {
    pub(super) protocol: Option<Protocol>,
    pub(super) direction: Option<Direction>,
    pub(super) kind: Option<Kind>,
}

impl Qualifiers {
    /// The condition that the qualified ends satisfy `at`.
    pub(super) fn at_ends(self, at: impl Fn(End) -> Expr) -> Expr {
        match self.direction {
            None => at(End::Either),
            Some(Direction::One(end)) => at(end),
            Some(Direction::Both) => at(End::Source).and(at(End::Destination)),
        }
    }

    /// The condition and the qualified protocol.
    pub(super) fn of_protocol(self, condition: Expr) -> Expr {
        match self.protocol {
            Some(protocol) => protocol.expr().and(condition),
            None => condition,
        }
    }
}
