//! A reply that leaves a namespace through another device than the one on which its request came in, and what the routing
//! rules say of that. What is there may not know the connection, or refuse the address; nothing dies where the ways part.
//!
//! A packet may be routed several times in one namespace: once for itself, then as what a tunnel has made of it. The two
//! ways are compared at the same depth of tunnels, the innermost first, since what is outside follows from it.

use std::net::SocketAddr;

use tracer_common::packet::IpProto;

use super::diagnosis::{Diagnosis, Evidence};
use super::explain::{answers, caution, is_default_rule};
use super::question::routed;
use super::{Place, Scene, words};
use crate::codes::{CauseCode, Stage};
use crate::devices::Devices;
use crate::event::{DeviceId, NetnsId};
use crate::fact::{Fact, Lookup, Route, RouteKind, Way};
use crate::flow::copies::Transmission;
use crate::flow::pairing::Flow;
use crate::flow::table::FlowTable;
use crate::flow::{Point, Sighting, Tunnel};

/// The most devices of which one lies on another.
const STACKED_MAX: usize = 8;

/// Less than any sender waits before it sends again.
const AGAIN_AFTER_NS: u64 = 150_000_000;

/// Within this time before or after a departure an answer is taken to be of the route that the packet met.
const SOON_NS: u64 = 2_000_000_000;

/// What to ask about a reply that leaves, if its request came in on another device; to be called before the sighting is
/// filed. Many a network has two ways that is healthy, so it is asked only of what is sent again: the handshake's
/// and a query's answer. An echo is not, whoever waits for it.
pub(super) fn question(
    left: &Sighting,
    flows: &FlowTable,
    devices: &Devices,
) -> Option<(Lookup, u32)> {
    let is_reply = left.segment().is_syn_ack() || left.message.is_answer() == Some(true);
    if left.point != Point::Xmit || !is_reply || left.icmp.is_some() {
        return None;
    }
    let seen = flows.sightings(left.tuple.key());
    let requests = seen
        .iter()
        .rev()
        .filter(|seen| seen.tuple == left.tuple.reversed() && seen.tuple != left.tuple);
    let entered = entered(left, requests, devices)?;
    let is_echo = ![IpProto::Tcp as u8, IpProto::Udp as u8].contains(&left.tuple.protocol);
    let is_the_same = |earlier: &&Sighting| {
        earlier.point == Point::Xmit
            && earlier.device() == left.device()
            && earlier.message.content() == left.message.content()
            && left.time_ns.saturating_sub(earlier.time_ns) >= AGAIN_AFTER_NS
    };
    if !is_echo && !seen.iter().rev().any(|earlier| is_the_same(&earlier)) {
        return None;
    }
    let lookup = lookup(left, flows.received_as(left), devices)?;
    Some((lookup, entered.ifindex?))
}

/// Where the request came in that such a reply answers, latest first among `requests`; `None` if that is not known, or the
/// reply leaves there.
fn entered<'s>(
    left: &Sighting,
    mut requests: impl Iterator<Item = &'s Sighting>,
    devices: &Devices,
) -> Option<&'s Sighting> {
    let entered = requests.find(|seen| {
        seen.point == Point::Receive
            && seen.netns == left.netns
            && seen.order() < left.order()
            && mirrors(&seen.tunnels, &left.tunnels)
    })?;
    (wire(entered.device()?, devices) != wire(left.device()?, devices)).then_some(entered)
}

/// Whether a request in these tunnels is answered in those. The answer's own address may be another one: it is chosen by
/// the route.
fn mirrors(there: &[Tunnel], back: &[Tunnel]) -> bool {
    there.len() == back.len()
        && there.iter().zip(back).all(|(there, back)| {
            (there.kind, there.vni, there.outer_src) == (back.kind, back.vni, back.outer_dst)
        })
}

/// The device that stands for all that share its wire: what lies on a device is that device, a port its bridge or bond.
/// Packets are routed into a VRF's ports one by one.
fn wire(id: DeviceId, devices: &Devices) -> DeviceId {
    let mut wire = id;
    for _ in 0..STACKED_MAX {
        let Some(device) = devices.get(wire) else {
            break;
        };
        let master = device.master_ifindex.map(|ifindex| DeviceId {
            netns: wire.netns,
            ifindex,
        });
        let joins = |master: &DeviceId| {
            devices
                .get(*master)
                .is_none_or(|master| master.kind != "vrf")
        };
        let below = device
            .underlay()
            .filter(|below| below.netns == wire.netns && !devices.is_tunnel(wire));
        match below.or(master.filter(joins)) {
            Some(next) => wire = next,
            None => break,
        }
    }
    wire
}

/// How a packet that leaves was routed: `received` says how it had come into the namespace, if it was forwarded there.
/// `None` where that is not known.
fn lookup(
    left: &Sighting,
    received: Option<(u32, SocketAddr)>,
    devices: &Devices,
) -> Option<Lookup> {
    let (mut src, dst, protocol) = routed(left);
    let way = match received {
        Some((_, was)) => {
            // It is only now that the sender is translated. An echo has its identifier where others have ports.
            if left.tunnels.is_empty() {
                src.set_ip(was.ip());
                if src.port() != 0 {
                    src.set_port(was.port());
                }
            }
            Way::Input
        }
        None if devices.is_local(left.netns?, src.ip()) => Way::Output,
        None => return None,
    };
    Some(Lookup {
        way,
        ifindex: received.map(|(ifindex, _)| ifindex),
        protocol,
        src,
        dst,
        mark: left.mark,
    })
}

/// Where the way of a reply parts from that of its request.
pub(super) struct Parting<'a> {
    left: &'a Sighting,
    entered: &'a Sighting,
    lookup: Option<Lookup>,
}

impl<'a> Parting<'a> {
    /// The first place where the ways part.
    pub(super) fn of(flow: &Flow<'a>, reply: &Transmission<'a>, scene: &Scene<'_>) -> Option<Self> {
        let mut requests: Vec<&'a Sighting> = flow
            .request
            .iter()
            .flat_map(Transmission::sightings)
            .copied()
            .collect();
        requests.sort_by_key(|seen| std::cmp::Reverse(seen.order()));
        let sightings = reply.sightings();
        let mut places = Vec::new();
        for (index, left) in sightings.iter().copied().enumerate() {
            let place = (left.netns, &left.tunnels);
            // Of devices that lie on each other the packet was routed to the first.
            if left.point != Point::Xmit || places.contains(&place) {
                continue;
            }
            places.push(place);
            let Some(entered) = entered(left, requests.iter().copied(), scene.devices()) else {
                continue;
            };
            let before = sightings[..index].iter().rfind(|seen| seen.skb == left.skb);
            let received = before
                .filter(|seen| seen.point == Point::Receive && seen.netns == left.netns)
                .and_then(|seen| Some((seen.ifindex?, seen.tuple.src)));
            return Some(Self {
                left,
                entered,
                lookup: lookup(left, received, scene.devices()),
            });
        }
        None
    }

    /// Where the ways part.
    pub(super) const fn netns(&self) -> Option<NetnsId> {
        self.left.netns
    }

    /// Says where the ways part, and which rule and route did it, where the kernel was asked.
    pub(super) fn diagnose(&self, flow: &Flow<'_>, scene: &Scene<'_>) -> Diagnosis {
        let (request, reply) = (flow.request_kind().name(), flow.reply_kind().name());
        let there = scene.device_name(self.entered).unwrap_or("another device");
        let back = scene.device_name(self.left).unwrap_or("that device");
        let outer = self
            .left
            .tunnels
            .first()
            .map_or_else(String::new, |tunnel| {
                format!(" (as a tunnel's packet to {})", tunnel.outer_dst)
            });
        let mut diagnosis = Diagnosis {
            code: CauseCode::AsymmetricEgress,
            stage: Stage::Egress,
            phrase: format!("because the {request} had come in on {there}"),
            detail: None,
            evidence: vec![
                Evidence::Event {
                    time_ns: self.entered.time_ns,
                    summary: format!("the {request} came in on {there}"),
                },
                Evidence::Event {
                    time_ns: self.left.time_ns,
                    summary: format!("the {reply} went out on {back}{}", marked(self.left.mark)),
                },
            ],
        };
        let mut detail =
            format!("the {request} came in on {there}, the {reply} went out on {back}{outer}");
        if let Some(routes) = self.routes(scene) {
            for fact in routes.facts() {
                diagnosis.evidence.push(Evidence::Fact(fact.clone()));
            }
            self.by_routes(&routes, reply, &mut diagnosis, &mut detail, scene);
        }
        diagnosis.detail = Some(detail);
        diagnosis
    }

    fn by_routes(
        &self,
        routes: &Routes<'_>,
        reply: &str,
        diagnosis: &mut Diagnosis,
        detail: &mut String,
        scene: &Scene<'_>,
    ) {
        let there = scene.device_name(self.entered).unwrap_or("another device");
        let taken = routes.taken.1;
        let found = scene.route_words(taken);
        if !leads(taken, self.left, scene) {
            let gap = words::duration(taken.asked_ns.abs_diff(self.left.time_ns));
            let when = if taken.asked_ns < self.left.time_ns {
                "before"
            } else {
                "after"
            };
            *detail = format!("{detail}; {gap} {when} that its route was another: {found}");
            return;
        }
        *detail = format!("{detail} by the route {found}{}", caution(taken));
        let rule = taken.rule.zip(taken.rule_selector.as_ref());
        let mark = taken.lookup.mark;
        let soon = taken.asked_ns.abs_diff(self.left.time_ns) <= SOON_NS;
        let by_mark = routes.unmarked.filter(|(_, unmarked)| {
            soon && !leads(taken, self.entered, scene) && leads(unmarked, self.entered, scene)
        });
        if let Some((_, unmarked)) = by_mark {
            diagnosis.code = CauseCode::MarkConflict;
            let met = rule.map_or_else(
                || format!("of its mark {mark:#x}"),
                |(priority, selector)| {
                    format!("its mark {mark:#x} met rule {priority} ({selector})")
                },
            );
            diagnosis.phrase = format!(
                "because {met}: without the mark it would have left on {there}, where its request had come in"
            );
            *detail = format!(
                "{detail}; without the mark it would take {}{}",
                scene.route_words(unmarked),
                caution(unmarked)
            );
        } else if let Some((_, unreached)) = routes.unreached {
            let table = words::table(unreached.table.unwrap_or_default());
            diagnosis.phrase = format!(
                "{}, and no routing rule leads the {reply} to table {table}, which has a route through {there}",
                diagnosis.phrase
            );
            *detail = format!("{detail}; {}", scene.route_words(unreached));
        } else if let Some((priority, selector)) = rule
            && !is_default_rule(priority)
        {
            diagnosis.phrase = format!(
                "{}, and rule {priority} ({selector}) sends the {reply} elsewhere",
                diagnosis.phrase
            );
        }
    }

    /// The answers that were given the nearest to the departure.
    fn routes<'s>(&self, scene: &'s Scene<'_>) -> Option<Routes<'s>> {
        let lookup = self.lookup?;
        let nearest = |lookup: Lookup, unreached: bool| {
            let of = |fact: &'s Fact| match fact {
                Fact::Route(route)
                    if Some(route.netns) == self.left.netns
                        && route.unreached == unreached
                        && answers(route, &lookup) =>
                {
                    Some((fact, &**route))
                }
                _ => None,
            };
            let all = scene.analysis.answers.iter().filter_map(of);
            all.min_by_key(|(_, route)| route.asked_ns.abs_diff(self.left.time_ns))
        };
        let taken = nearest(lookup, false)?;
        let with_it = |other: &(&Fact, &Route)| other.1.asked_ns == taken.1.asked_ns;
        let unmarked = Lookup { mark: 0, ..lookup };
        let has_mark = lookup.mark != 0;
        Some(Routes {
            taken,
            unmarked: nearest(unmarked, false).filter(|other| has_mark && with_it(other)),
            unreached: nearest(lookup, true).filter(with_it),
        })
    }

    /// The commands that show how the reply is routed.
    pub(super) fn next(&self, code: CauseCode, scene: &Scene<'_>) -> Option<String> {
        let ns = scene.enter(Place {
            sighting: self.left,
            stage: Stage::Egress,
        });
        let Some(lookup) = self.lookup else {
            let (_, dst, _) = routed(self.left);
            return Some(format!("`{ns}ip route get {}`; `{ns}ip rule`", dst.ip()));
        };
        let mut get = format!(
            "{ns}ip route get {} from {}",
            lookup.dst.ip(),
            lookup.src.ip()
        );
        if let Some(ifindex) = lookup.ifindex {
            let id = DeviceId {
                netns: self.left.netns?,
                ifindex,
            };
            let device = scene.devices().get(id)?;
            if words::is_plain(&device.name) {
                get = format!("{get} iif {}", device.name);
            }
        }
        let get_marked = match lookup.mark {
            0 => get,
            mark => format!("{get} mark {mark:#x}"),
        };
        let rules = if lookup.dst.is_ipv4() {
            format!("{ns}ip rule")
        } else {
            format!("{ns}ip -6 rule")
        };
        Some(match code {
            CauseCode::MarkConflict => format!(
                "`{get_marked}`, and the same without the mark; `{rules}`; `{ns}nft list ruleset` or `{ns}iptables-save -t mangle` may tell who sets the mark"
            ),
            _ => format!("`{get_marked}`; `{rules}`"),
        })
    }
}

/// Whether a route leads through the device of a sighting, or one that shares its wire.
fn leads(route: &Route, to: &Sighting, scene: &Scene<'_>) -> bool {
    let Some(device) = to.device() else {
        return false;
    };
    let wanted = wire(device, scene.devices());
    route.found == RouteKind::Unicast
        && route.hops.iter().any(|hop| {
            let id = DeviceId {
                netns: route.netns,
                ifindex: hop.ifindex,
            };
            wire(id, scene.devices()) == wanted
        })
}

/// " with mark 0x1", or nothing where there is none.
fn marked(mark: u32) -> String {
    match mark {
        0 => String::new(),
        mark => format!(" with mark {mark:#x}"),
    }
}

/// What the kernel answered about one departure, with the facts that say so.
struct Routes<'s> {
    taken: (&'s Fact, &'s Route),
    unmarked: Option<(&'s Fact, &'s Route)>,
    unreached: Option<(&'s Fact, &'s Route)>,
}

impl<'s> Routes<'s> {
    fn facts(&self) -> impl Iterator<Item = &'s Fact> {
        let more = self.unmarked.into_iter().chain(self.unreached);
        std::iter::once(self.taken)
            .chain(more)
            .map(|(fact, _)| fact)
    }
}
