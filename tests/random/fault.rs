//! The ways in which a network is broken, and what must be said of the packets that die of it.
//!
//! A fault is chosen before its network exists; `breaking` applies it.

use std::fmt;

use crate::choice::{choose_other, choose_rule};
use crate::rng::Rng;
use crate::shape::{Direction, Shape, Spot, Target};

/// A part of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    Syn,
    SynAck,
    Ack,
}

impl Packet {
    pub fn direction(self) -> Direction {
        match self {
            Self::Syn | Self::Ack => Direction::Request,
            Self::SynAck => Direction::Reply,
        }
    }
}

/// Which packets a rule takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Only(Packet),
    /// Everything that one side sends over TCP.
    AllFrom(Direction),
    /// DNS queries, or their answers.
    Datagrams(Direction),
    /// ICMP echo requests, or their replies.
    Echoes(Direction),
}

/// What a connection or an exchange is made of, and what a fault takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Tcp,
    Udp,
    Echo,
    /// All of them.
    Any,
}

impl What {
    pub fn carrier(self) -> Carrier {
        match self {
            Self::Only(_) | Self::AllFrom(_) => Carrier::Tcp,
            Self::Datagrams(_) => Carrier::Udp,
            Self::Echoes(_) => Carrier::Echo,
        }
    }

    pub fn direction(self) -> Direction {
        match self {
            Self::Only(packet) => packet.direction(),
            Self::AllFrom(direction) | Self::Datagrams(direction) | Self::Echoes(direction) => {
                direction
            }
        }
    }
}

/// Whose packets a fault takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Everybody,
    /// Those who ask this.
    Asking(Target),
    /// Who comes from this port.
    From(u16),
}

/// What becomes of a packet that meets a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It dies, and its sender may be told by ICMP.
    Dies,
    /// It dies, and is answered with a RST or an ICMP error in the server's place.
    Rejected,
    /// The server's host answers with a RST.
    NoListener,
    /// It arrives, and nothing ever answers.
    Ignored,
}

/// A place where packets die.
#[derive(Clone, Debug)]
pub struct Killer {
    /// What it takes; of what is not TCP, a request stands for the SYN and a reply for the SYN-ACK.
    pub packet: Packet,
    pub carrier: Carrier,
    pub effect: Effect,
    pub scope: Scope,
    pub netns: usize,
    /// The devices that the packet may be said to be on; `null` is none, and no entry is any.
    pub devices: Vec<&'static str>,
    pub causes: &'static [&'static str],
    /// It takes the server's RSTs too, not only its SYN-ACKs.
    pub takes_resets: bool,
    /// A rule counts what it takes: the fault's number.
    pub counted: Option<usize>,
    /// It lies behind the counter of what arrives in a pod.
    pub behind_counter: bool,
    /// When it is there, in milliseconds since the faults began.
    pub from_ms: u64,
    pub until_ms: u64,
}

/// Where a program is attached to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    TcxIngress,
    TcxEgress,
    Xdp,
}

/// How a route is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    Blackhole,
    Unreachable,
    Prohibit,
    Missing,
    /// Through a neighbour that does not exist.
    Nobody,
}

/// What is broken.
#[derive(Clone, Debug)]
pub enum Kind {
    Drop {
        spot: Spot,
        what: What,
        scope: Scope,
        percent: Option<u64>,
    },
    Reject {
        spot: Spot,
        with: &'static str,
        scope: Scope,
    },
    /// A program drops the SYNs or the SYN-ACKs.
    Program {
        netns: usize,
        device: &'static str,
        hook: Hook,
        packet: Packet,
    },
    Route {
        netns: usize,
        direction: Direction,
        route: Route,
    },
    /// The tunnel's own packets go to a neighbour that does not exist.
    TunnelNeighbour(Direction),
    /// The packets come in on one device, and the way back leaves through another.
    RpFilter {
        netns: usize,
    },
    ForwardingOff {
        netns: usize,
    },
    /// The other node does not know the VNI.
    WrongVni(Direction),
    /// No tunnel of the other node has the UDP port.
    WrongUdpPort(Direction),
    WrongMac {
        netns: usize,
        direction: Direction,
        inside_tunnel: bool,
    },
    /// A router's device towards the server.
    RouterDown {
        netns: usize,
    },
    ServerPodDown,
    /// The tunnel of the node where packets of a direction begin.
    TunnelDown(Direction),
    /// Packets begin with too few hops.
    HopLimit {
        direction: Direction,
        hops: usize,
    },
    NoListener,
    QueueFull,
    NobodyThere,
    NoRouteBack,
}

/// A fault, and when it is there.
#[derive(Clone, Debug)]
pub struct Fault {
    pub kind: Kind,
    pub from_ms: u64,
    pub until_ms: u64,
}

/// Faults come and go here: after the first packet, before its first retransmission.
pub const CHANGE_MS: u64 = 450;
/// A fault that does not heal.
pub const FOREVER: u64 = u64::MAX;

impl Fault {
    /// Any. A rule may be about the connection that comes from `port` alone.
    pub fn choose(rng: &mut Rng, shape: Shape, port: u16) -> Self {
        let kind = if rng.chance(50) {
            choose_rule(rng, shape, port)
        } else {
            choose_other(rng, shape)
        };
        let may_heal = matches!(
            kind,
            Kind::Drop { percent: None, .. } | Kind::Route { .. } | Kind::ForwardingOff { .. }
        );
        let heals = may_heal && rng.chance(20);
        Self {
            kind,
            from_ms: 0,
            until_ms: if heals { CHANGE_MS } else { FOREVER },
        }
    }

    /// A rule beside another fault, or in its place once that has healed.
    pub fn choose_second(rng: &mut Rng, shape: Shape, port: u16, first: &Self) -> Self {
        let follows = first.until_ms == CHANGE_MS && rng.chance(50);
        Self {
            kind: choose_rule(rng, shape, port),
            from_ms: if follows { CHANGE_MS } else { 0 },
            until_ms: FOREVER,
        }
    }

    /// Whom the connections that are to suffer must ask.
    pub fn target(&self) -> Target {
        match self.kind {
            Kind::NoListener => Target::Closed,
            Kind::QueueFull => Target::Full,
            Kind::NobodyThere => Target::Nobody,
            _ => Target::Main,
        }
    }

    /// What it is about.
    pub fn carrier(&self) -> Carrier {
        match &self.kind {
            Kind::Drop { what, .. } => what.carrier(),
            Kind::Reject { .. }
            | Kind::Program { .. }
            | Kind::NoListener
            | Kind::QueueFull
            | Kind::NobodyThere => Carrier::Tcp,
            _ => Carrier::Any,
        }
    }

    /// Its row in the table.
    pub fn label(&self) -> &'static str {
        let row = self.kind.label();
        if self.until_ms == FOREVER {
            row
        } else {
            match self.kind {
                Kind::Drop { .. } => "rule that goes away",
                _ => "route or forwarding that heals",
            }
        }
    }

    /// Every place where it kills.
    pub fn killers(&self, number: usize, shape: Shape) -> Vec<Killer> {
        let mut killers = self.kind.killers(number, shape);
        for killer in &mut killers {
            killer.carrier = self.carrier();
            killer.from_ms = self.from_ms;
            killer.until_ms = self.until_ms;
        }
        killers
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)?;
        if self.from_ms > 0 {
            write!(f, " after {} ms", self.from_ms)?;
        }
        if self.until_ms != FOREVER {
            write!(f, " until {} ms", self.until_ms)?;
        }
        Ok(())
    }
}

impl Kind {
    fn label(&self) -> &'static str {
        match self {
            Self::Drop {
                percent: Some(_), ..
            } => "rule that drops some",
            Self::Drop {
                what: What::Only(Packet::Syn),
                ..
            } => "rule drops SYN",
            Self::Drop {
                what: What::Only(Packet::SynAck),
                ..
            } => "rule drops SYN-ACK",
            Self::Drop {
                what: What::Only(Packet::Ack),
                ..
            } => "rule drops ACK",
            Self::Drop {
                what: What::AllFrom(Direction::Request),
                ..
            } => "rule drops all from the client",
            Self::Drop {
                what: What::AllFrom(Direction::Reply),
                ..
            } => "rule drops all from the server",
            Self::Drop {
                what: What::Datagrams(_),
                ..
            } => "rule drops DNS",
            Self::Drop {
                what: What::Echoes(_),
                ..
            } => "rule drops echoes",
            Self::Reject { .. } => "rule rejects SYN",
            Self::Program {
                hook: Hook::Xdp, ..
            } => "XDP program",
            Self::Program { .. } => "tc program",
            Self::Route {
                route: Route::Nobody,
                ..
            }
            | Self::TunnelNeighbour(_)
            | Self::NobodyThere => "neighbour unresolved",
            Self::Route { .. } => "route",
            Self::RpFilter { .. } => "rp_filter",
            Self::ForwardingOff { .. } => "forwarding off",
            Self::WrongVni(_) | Self::WrongUdpPort(_) => "wrong VNI or UDP port",
            Self::WrongMac { .. } => "wrong MAC",
            Self::RouterDown { .. } | Self::ServerPodDown | Self::TunnelDown(_) => "device down",
            Self::HopLimit { .. } => "hop limit",
            Self::NoListener => "no listener",
            Self::QueueFull => "accept queue full",
            Self::NoRouteBack => "no route back",
        }
    }
}
