//! The places where a fault kills, and what may be said of the packets that die there.

use tracer::lab::Family;

use crate::fault::{Carrier, Effect, FOREVER, Hook, Killer, Kind, Packet, Route, Scope, What};
use crate::shape::{Direction, Shape, Target};

impl Kind {
    /// All of a fault with this number.
    pub fn killers(&self, number: usize, shape: Shape) -> Vec<Killer> {
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
            Self::Program {
                netns,
                device,
                hook,
                packet,
            } => {
                let causes: &[&str] = match hook {
                    Hook::Xdp => &["xdp_program"],
                    Hook::TcxIngress | Hook::TcxEgress => &["tc_program"],
                };
                vec![Killer {
                    takes_resets: false,
                    ..kill(packet.direction(), *netns, &[device], causes)
                }]
            }
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
