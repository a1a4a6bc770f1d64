//! Chooses what is to be broken, for a network that does not exist yet.

use tracer::lab::Family;

use crate::fault::{Carrier, Hook, Kind, Packet, Route, Scope, What};
use crate::rng::Rng;
use crate::shape::{Direction, Nat, Shape, Spot, Table, Target};

/// A drop by netfilter, anywhere.
pub fn choose_rule(rng: &mut Rng, shape: Shape, port: u16) -> Kind {
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
pub fn choose_other(rng: &mut Rng, shape: Shape) -> Kind {
    loop {
        let direction = rng.pick(&[Direction::Request, Direction::Reply]);
        let way = shape.way(direction);
        let last = way.len() - 1;
        // Where packets are forwarded, outside a tunnel or before and behind it.
        let forwarding = || match (shape.tunnel, shape.routers) {
            (true, _) => vec![way[1], way[last - 1]],
            (false, _) => way[1..last].to_vec(),
        };
        let kind = match rng.between(1, 19) {
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
            18 | 19 => choose_program(rng, shape),
            _ => continue,
        };
        return kind;
    }
}

/// A program on a device, wherever packets outside a tunnel have their Ethernet header.
fn choose_program(rng: &mut Rng, shape: Shape) -> Kind {
    let packet = rng.pick(&[Packet::Syn, Packet::SynAck]);
    let spots = shape.spots(packet.direction());
    let mut places = Vec::new();
    for spot in spots.iter().filter(|spot| !spot.is_outer) {
        let Table::Netdev(device) = spot.table else {
            continue;
        };
        let hooks: &[Hook] = match spot.hook {
            "egress" => &[Hook::TcxEgress],
            _ => &[Hook::TcxIngress, Hook::Xdp],
        };
        places.extend(hooks.iter().map(|hook| (spot.netns, device, *hook)));
    }
    let (netns, device, hook) = rng.pick(&places);
    Kind::Program {
        netns,
        device,
        hook,
        packet,
    }
}
