//! The ways in which a network is broken, and what must be said of the packets that die of it.
//!
//! A fault is chosen before its network exists; `breaking` applies it.

use std::fmt;

use tracer::lab::Family;

use crate::rng::Rng;
use crate::shape::{Direction, Nat, Shape, Spot, Table, Target};

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
const FOREVER: u64 = u64::MAX;

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
            Kind::Reject { .. } | Kind::NoListener | Kind::QueueFull | Kind::NobodyThere => {
                Carrier::Tcp
            }
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

/// A drop by netfilter, anywhere.
fn choose_rule(rng: &mut Rng, shape: Shape, port: u16) -> Kind {
    let what = rng.pick(&[
        What::Only(Packet::Syn),
        What::Only(Packet::Syn),
        What::Only(Packet::SynAck),
        What::Only(Packet::SynAck),
        What::Only(Packet::SynAck),
        What::Only(Packet::Ack),
        What::AllFrom(Direction::Request),
        What::AllFrom(Direction::Reply),
        What::Datagrams(Direction::Request),
        What::Datagrams(Direction::Reply),
        What::Echoes(Direction::Request),
        What::Echoes(Direction::Reply),
    ]);
    let mut spots = shape.spots(what.direction());
    // Inside a tunnel only ports are told apart.
    spots.retain(|spot| !spot.is_outer || what.carrier() != Carrier::Echo);
    Kind::Drop {
        spot: rng.pick(&spots),
        what,
        scope: match what.carrier() {
            Carrier::Tcp => choose_scope(rng, port),
            _ => Scope::Everybody,
        },
        percent: rng.chance(20).then(|| rng.between(30, 80)),
    }
}

fn choose_scope(rng: &mut Rng, port: u16) -> Scope {
    rng.pick(&[
        Scope::Everybody,
        Scope::Asking(Target::Main),
        Scope::Asking(Target::Main),
        Scope::From(port),
    ])
}

/// Anything but a drop by netfilter.
fn choose_other(rng: &mut Rng, shape: Shape) -> Kind {
    loop {
        let direction = rng.pick(&[Direction::Request, Direction::Reply]);
        let way = shape.way(direction);
        let last = way.len() - 1;
        // Where packets are forwarded, outside a tunnel or before and behind it.
        let forwarding = || match (shape.tunnel, shape.routers) {
            (true, _) => vec![way[1], way[last - 1]],
            (false, _) => way[1..last].to_vec(),
        };
        let kind = match rng.between(1, 17) {
            1 | 2 => {
                let rejecting = |spot: &Spot| {
                    spot.table == Table::Inet
                        && !spot.is_outer
                        && ["input", "forward", "output"].contains(&spot.hook)
                };
                let spots = shape.spots(Direction::Request);
                let spots: Vec<Spot> = spots.into_iter().filter(rejecting).collect();
                Kind::Reject {
                    spot: rng.pick(&spots),
                    with: rng.pick(&[
                        "tcp reset",
                        "icmpx admin-prohibited",
                        "icmpx port-unreachable",
                    ]),
                    scope: Scope::Asking(Target::Main),
                }
            }
            3..=5 => {
                let netns = rng.pick(&forwarding());
                let route = rng.pick(&[
                    Route::Blackhole,
                    Route::Unreachable,
                    Route::Prohibit,
                    Route::Missing,
                    Route::Nobody,
                ]);
                // A pod's own link cannot be missing alone, and a node's address in the underlay neither.
                let is_last = netns == way[last - 1];
                let is_translated = shape.nat == Nat::Both && direction == Direction::Reply;
                if route == Route::Missing && (is_last || is_translated) {
                    continue;
                }
                Kind::Route {
                    netns,
                    direction,
                    route,
                }
            }
            6 if shape.tunnel => Kind::TunnelNeighbour(direction),
            7 if shape.family == Family::V4 && shape.nat != Nat::Both => Kind::RpFilter {
                netns: rng.between(1, shape.last() as u64 - 1) as usize,
            },
            8 => Kind::ForwardingOff {
                netns: rng.between(1, shape.last() as u64 - 1) as usize,
            },
            9 if shape.tunnel => Kind::WrongVni(direction),
            10 if shape.tunnel => Kind::WrongUdpPort(direction),
            11 => {
                let inside_tunnel = shape.tunnel && rng.chance(50);
                let netns = if inside_tunnel {
                    way[1]
                } else {
                    way[rng.between(0, last as u64 - 1) as usize]
                };
                // A bridge floods what it does not know.
                let is_bridged = shape.bridge && (netns == way[0] || netns == way[last - 1]);
                if is_bridged {
                    continue;
                }
                Kind::WrongMac {
                    netns,
                    direction,
                    inside_tunnel,
                }
            }
            12 if rng.chance(50) => Kind::ServerPodDown,
            12 => Kind::RouterDown {
                netns: rng.between(2, shape.routers as u64 + 1) as usize,
            },
            13 if shape.tunnel => Kind::TunnelDown(direction),
            14 => Kind::HopLimit {
                direction,
                hops: rng.between(1, forwarding().len() as u64) as usize,
            },
            15 => Kind::NoListener,
            16 => rng.pick(&[Kind::QueueFull, Kind::NoRouteBack]),
            17 => Kind::NobodyThere,
            _ => continue,
        };
        return kind;
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

    fn killers(&self, number: usize, shape: Shape) -> Vec<Killer> {
        let netfilter = &["netfilter"];
        let kill = |direction, netns, devices: &[&'static str], causes| Killer {
            packet: match direction {
                Direction::Request => Packet::Syn,
                Direction::Reply => Packet::SynAck,
            },
            carrier: Carrier::Any,
            effect: Effect::Dies,
            scope: Scope::Everybody,
            netns,
            devices: devices.to_vec(),
            causes,
            takes_resets: direction == Direction::Reply,
            counted: None,
            behind_counter: false,
            from_ms: 0,
            until_ms: FOREVER,
        };
        let into = |netns, direction| shape.in_device(netns, direction);
        // Where packets leave the tunnel, IP sees them come in on it.
        let into_inner = |netns: usize, direction: Direction| {
            let way = shape.way(direction);
            if shape.tunnel && netns == way[way.len() - 2] {
                "vx0"
            } else {
                into(netns, direction)
            }
        };
        let after = |netns: usize, direction| match direction {
            Direction::Request => netns + 1,
            Direction::Reply => netns - 1,
        };
        let last = shape.last();
        match self {
            Self::Drop {
                spot, what, scope, ..
            } => {
                let killer = Killer {
                    scope: *scope,
                    counted: Some(number),
                    behind_counter: ["prerouting", "input"].contains(&spot.hook)
                        && (spot.netns == 0 || spot.netns == last),
                    takes_resets: *what == What::AllFrom(Direction::Reply),
                    ..kill(what.direction(), spot.netns, &spot.devices, netfilter)
                };
                let packets: &[Packet] = match what {
                    What::Only(packet) => &[*packet],
                    What::AllFrom(Direction::Request) => &[Packet::Syn, Packet::Ack],
                    What::Datagrams(Direction::Request) | What::Echoes(Direction::Request) => {
                        &[Packet::Syn]
                    }
                    What::AllFrom(Direction::Reply)
                    | What::Datagrams(Direction::Reply)
                    | What::Echoes(Direction::Reply) => &[Packet::SynAck],
                };
                packets
                    .iter()
                    .map(|packet| Killer {
                        packet: *packet,
                        ..killer.clone()
                    })
                    .collect()
            }
            Self::Reject { spot, scope, .. } => vec![Killer {
                scope: *scope,
                effect: Effect::Rejected,
                counted: Some(number),
                behind_counter: spot.hook == "input",
                ..kill(Direction::Request, spot.netns, &[], &["rejected"])
            }],
            Self::Route {
                netns,
                direction,
                route: Route::Nobody,
            } => {
                let way = shape.way(*direction);
                let device = if shape.tunnel && *netns == way[1] {
                    "vx0"
                } else {
                    shape.out_device(*netns, *direction)
                };
                vec![kill(
                    *direction,
                    *netns,
                    &[device],
                    &["neighbour_unresolved"],
                )]
            }
            Self::Route {
                netns,
                direction,
                route,
            } => {
                let causes: &[&str] = match route {
                    Route::Blackhole => &["blackhole_route", "no_route"],
                    Route::Prohibit => &["blackhole_route", "no_route", "rejected"],
                    _ => &["no_route", "blackhole_route"],
                };
                let device = into_inner(*netns, *direction);
                vec![kill(*direction, *netns, &[device], causes)]
            }
            Self::TunnelNeighbour(direction) => {
                let node = shape.way(*direction)[1];
                vec![kill(*direction, node, &["ens0"], &["neighbour_unresolved"])]
            }
            Self::RpFilter { netns } => {
                let device = into_inner(*netns, Direction::Request);
                vec![kill(Direction::Request, *netns, &[device], &["rp_filter"])]
            }
            Self::ForwardingOff { netns } => {
                // IPv6 gives no reason for it.
                let causes: &[&str] = match shape.family {
                    Family::V4 => &["forwarding_off"],
                    Family::V6 => &["forwarding_off", "unknown"],
                };
                [Direction::Request, Direction::Reply]
                    .into_iter()
                    .map(|direction| {
                        let device = into_inner(*netns, direction);
                        kill(direction, *netns, &[device], causes)
                    })
                    .collect()
            }
            Self::WrongVni(direction) => {
                let way = shape.way(*direction);
                let node = way[way.len() - 2];
                vec![kill(*direction, node, &["ens0"], &["unknown_vni"])]
            }
            Self::WrongUdpPort(direction) => {
                let way = shape.way(*direction);
                let node = way[way.len() - 2];
                vec![kill(*direction, node, &["ens0"], &["no_listener"])]
            }
            Self::WrongMac {
                netns,
                direction,
                inside_tunnel,
            } => {
                let way = shape.way(*direction);
                let (receiver, device) = if *inside_tunnel {
                    (way[way.len() - 2], "vx0")
                } else {
                    let receiver = after(*netns, *direction);
                    (receiver, into(receiver, *direction))
                };
                vec![kill(*direction, receiver, &[device], &["wrong_mac"])]
            }
            Self::RouterDown { netns } => {
                let device = into(*netns, Direction::Request);
                let causes = &["no_route", "device_down"];
                vec![kill(Direction::Request, *netns, &[device], causes)]
            }
            // The node's device has lost its carrier: what dies of that first depends on the moment.
            Self::ServerPodDown => vec![kill(
                Direction::Request,
                last - 1,
                &[],
                &[
                    "device_down",
                    "qdisc",
                    "no_route",
                    "neighbour_unresolved",
                    "unknown",
                ],
            )],
            Self::TunnelDown(direction) => {
                let node = shape.way(*direction)[1];
                let without_route = kill(
                    *direction,
                    node,
                    &[into(node, *direction)],
                    &["no_route", "tunnel_down", "device_down"],
                );
                let without_socket = Killer {
                    devices: vec!["ens0"],
                    causes: &["no_listener", "tunnel_down", "device_down", "unknown_vni"],
                    ..without_route.clone()
                };
                vec![match direction {
                    Direction::Request => without_route,
                    // The node of the replies is where requests leave the tunnel.
                    Direction::Reply => Killer {
                        packet: Packet::Syn,
                        takes_resets: false,
                        ..without_socket
                    },
                }]
            }
            Self::HopLimit { direction, hops } => {
                let way = shape.way(*direction);
                let forwarding = if shape.tunnel {
                    vec![way[1], way[way.len() - 2]]
                } else {
                    way[1..way.len() - 1].to_vec()
                };
                let netns = forwarding[hops - 1];
                let device = into_inner(netns, *direction);
                vec![kill(*direction, netns, &[device], &["ttl"])]
            }
            Self::NoListener => vec![Killer {
                effect: Effect::NoListener,
                scope: Scope::Asking(Target::Closed),
                ..kill(Direction::Request, last, &["eth0"], &["no_listener"])
            }],
            Self::QueueFull => vec![Killer {
                effect: Effect::Ignored,
                scope: Scope::Asking(Target::Full),
                ..kill(
                    Direction::Request,
                    last,
                    &["eth0", "null"],
                    &["accept_queue_full", "unknown", "null"],
                )
            }],
            Self::NoRouteBack => vec![Killer {
                effect: Effect::Ignored,
                ..kill(
                    Direction::Request,
                    last,
                    &["eth0", "null"],
                    &["no_route", "unknown", "null"],
                )
            }],
            Self::NobodyThere => vec![Killer {
                scope: Scope::Asking(Target::Nobody),
                ..kill(
                    Direction::Request,
                    last - 1,
                    &[shape.out_device(last - 1, Direction::Request)],
                    &["neighbour_unresolved"],
                )
            }],
        }
    }
}
