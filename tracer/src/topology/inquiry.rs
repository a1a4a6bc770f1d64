//! Asks the kernel about a packet that has just died or gone astray: how its namespace routes it, what it knows of the next hop, which
//! sysctls let it pass. The sockets were opened while that was allowed; asking needs no privilege.
//!
//! A question takes some tens of microseconds. One about a route that rejects takes a walk through the routing tables as
//! well, since the kernel does not tell which route that was: 15 ms for 100,000 routes. So questions are paced ([`Pace`]),
//! and walks take at most a small part of the time.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourMessage},
    route::{RouteAttribute, RouteFlags, RouteMessage, RouteType},
};
use nix::errno::Errno;
use tracer_common::packet::IpProto;

use crate::{
    event::{DeviceId, NetnsId},
    fact::{About, Fact, Lookup, NextHop, Question, Route, RouteKind, Way, sysctl_name},
};

use super::{
    Netns, Topology, links, neighbours,
    netlink::Message,
    routes,
    rtnetlink::Dump,
    rules::{self, Decision, Packet, Rule},
};

/// The least time between two questions: 16 a second.
const PAUSE: Duration = Duration::from_micros(62_500);

/// The most questions in one go, which a long run earns again, one every [`EARNS_EVERY`].
const QUESTIONS_MAX: u32 = 256;

/// See [`QUESTIONS_MAX`].
const EARNS_EVERY: Duration = Duration::from_secs(10);

/// The most rules that are kept; a node with more of them gets no answer about routes.
const RULES_MAX: usize = 4_096;

/// The most routes of a walk that are kept, likewise.
const WALKED_ROUTES_MAX: usize = 65_536;

/// Of all the time, walks through the routing tables take at most one part in this many.
const WALK_PAUSE: u32 = 20;

/// The most next hops whose neighbour entries are looked at.
const NEIGHBOURS_MAX: usize = 4;

/// Says when the next question may be asked.
#[derive(Debug)]
pub struct Pace {
    next: Instant,
    left: u32,
    earned: Instant,
}

impl Pace {
    /// Begins now.
    pub fn new(now: Instant) -> Self {
        Self {
            next: now,
            left: QUESTIONS_MAX,
            earned: now,
        }
    }

    /// Whether a question may be asked.
    pub fn allows(&mut self, now: Instant) -> bool {
        while self.left < QUESTIONS_MAX && now.duration_since(self.earned) >= EARNS_EVERY {
            self.left += 1;
            self.earned += EARNS_EVERY;
        }
        if self.left == QUESTIONS_MAX {
            self.earned = now;
        }
        self.left > 0 && now >= self.next
    }

    /// Notes that one was asked.
    pub fn asked(&mut self, now: Instant) {
        self.left = self.left.saturating_sub(1);
        self.next = now + PAUSE;
    }
}

impl Topology {
    /// Asks, as of `now_ns` (CLOCK_MONOTONIC). What the kernel does not answer, or what its answer leaves open, is no
    /// fact. Nothing is asked of a namespace that is not open.
    pub fn ask(&mut self, question: &Question, now_ns: u64) -> Vec<Fact> {
        let Some(index) = self
            .namespaces
            .iter()
            .position(|netns| netns.id == question.netns)
        else {
            return Vec::new();
        };
        let mut inquiry = Inquiry {
            netns: question.netns,
            now_ns,
            index,
            topology: self,
            facts: Vec::new(),
        };
        inquiry.ask(question.about);
        inquiry.facts
    }
}

/// One question being answered.
struct Inquiry<'a> {
    netns: NetnsId,
    now_ns: u64,
    index: usize,
    topology: &'a mut Topology,
    facts: Vec<Fact>,
}

impl Inquiry<'_> {
    fn ask(&mut self, about: About) {
        match about {
            About::Route(lookup) => {
                self.route(lookup);
            }
            About::ReversePath(lookup) => {
                let device = lookup.ifindex;
                self.sysctl(false, device, "rp_filter");
                // Only where this is set does the check look at the mark (`fib_validate_source()`).
                let by_mark =
                    lookup.mark != 0 && self.sysctl(false, device, "src_valid_mark").contains(&1);
                let asked = if by_mark { lookup.mark } else { 0 };
                self.route_with_mark(lookup, asked);
            }
            About::Forwarding { ifindex, ipv6 } => {
                self.sysctl(ipv6, Some(ifindex), "forwarding");
            }
            About::Neighbour(lookup) => {
                for hop in self.route(lookup) {
                    self.neighbour(hop.gateway.unwrap_or(lookup.dst.ip()), hop.ifindex);
                }
            }
            About::Egress { lookup, entered } => self.egress(lookup, entered),
            About::TooBig { onward, back } => {
                for lookup in [onward, back] {
                    self.route(lookup);
                }
            }
            About::Source { ifindex } => {
                for name in ["accept_local", "route_localnet", "rp_filter"] {
                    self.sysctl(false, Some(ifindex), name);
                }
            }
        }
    }

    /// The values for `all` and for a device, as far as they can be read.
    fn sysctl(&mut self, ipv6: bool, ifindex: Option<u32>, name: &str) -> Vec<i64> {
        let device = ifindex.and_then(|ifindex| self.device_name(ifindex));
        let mut values = Vec::new();
        for device in ["all"].into_iter().chain(device.as_deref()) {
            let sysctls = &self.topology.namespaces[self.index].sysctls;
            let Some(value) = sysctls.read(ipv6, device, name) else {
                continue;
            };
            values.push(value);
            self.facts.push(Fact::Sysctl {
                netns: self.netns,
                asked_ns: self.now_ns,
                name: sysctl_name(ipv6, device, name),
                value,
            });
        }
        values
    }

    fn device_name(&self, ifindex: u32) -> Option<String> {
        let id = DeviceId {
            netns: self.netns,
            ifindex,
        };
        self.topology.table.device_name(id).map(str::to_owned)
    }

    fn neighbour(&mut self, addr: IpAddr, ifindex: u32) {
        let mut request = NeighbourMessage::default();
        request.header.family = family(addr);
        request.header.ifindex = ifindex;
        let destination = match addr {
            IpAddr::V4(addr) => NeighbourAddress::Inet(addr),
            IpAddr::V6(addr) => NeighbourAddress::Inet6(addr),
        };
        request
            .attributes
            .push(netlink_packet_route::neighbour::NeighbourAttribute::Destination(destination));
        let mut found = None;
        let answer = self.request(RouteNetlinkMessage::GetNeighbour(request), &mut |message| {
            found = found.or(neighbours::parse(message));
        });
        let (state, mac) = match (answer, found) {
            (Ok(()), Some(neighbour)) => match neighbour.state {
                Some(state) => (Some(state), neighbour.mac),
                None => return,
            },
            (Err(Errno::ENOENT), _) => (None, None),
            _ => return,
        };
        self.facts.push(Fact::Neighbour {
            netns: self.netns,
            asked_ns: self.now_ns,
            ifindex,
            addr,
            state,
            mac,
        });
    }

    /// The way of a reply with its mark and without, and, where neither leads through the device on which its request had
    /// come in, the route that would.
    fn egress(&mut self, lookup: Lookup, entered: u32) {
        let unmarked = Lookup { mark: 0, ..lookup };
        let mut hops = self.route(lookup);
        if lookup != unmarked {
            hops.extend(self.route(unmarked));
        }
        if hops.iter().any(|hop| hop.ifindex == entered) {
            return;
        }
        if let Some(route) = self.unreached(lookup, entered) {
            self.facts.push(Fact::Route(Box::new(route)));
        }
    }

    /// A route through a device that would take a packet, but to whose table no rule leads it.
    fn unreached(&mut self, lookup: Lookup, ifindex: u32) -> Option<Route> {
        let routes = self.walk(
            Dump::RoutesThrough(family(lookup.target()), ifindex),
            |entry| entry.kind == RouteKind::Unicast,
        )?;
        let rules = self.rules(lookup.target())?;
        let device = lookup.ifindex.and_then(|index| self.device_name(index));
        let packet = self.packet(&lookup, lookup.mark, device.as_deref())?;
        let entry = rules::unreached(&rules, &routes, &packet)?;
        Some(Route {
            netns: self.netns,
            asked_ns: self.now_ns,
            lookup,
            found: entry.kind,
            prefix: Some(entry.dst),
            table: Some(entry.table),
            rule: None,
            rule_selector: None,
            by_rule: false,
            hops: entry.hops.clone(),
            mtu: entry.metrics.mtu,
            ports_matter: rules::look_at_ports(&rules),
            uncertain: false,
            unreached: true,
        })
    }

    /// Asks for a route, and returns where it leads.
    fn route(&mut self, lookup: Lookup) -> Vec<NextHop> {
        self.route_with_mark(lookup, lookup.mark)
    }

    fn route_with_mark(&mut self, lookup: Lookup, mark: u32) -> Vec<NextHop> {
        let Some(route) = self.find_route(lookup, mark) else {
            return Vec::new();
        };
        let hops = route.hops.iter().take(NEIGHBOURS_MAX).copied().collect();
        self.facts.push(Fact::Route(Box::new(route)));
        hops
    }

    /// The packet as the rules see it; `device` is the name of the lookup's.
    fn packet<'p>(
        &self,
        lookup: &Lookup,
        mark: u32,
        device: Option<&'p str>,
    ) -> Option<Packet<'p>> {
        let (from, to) = match lookup.way {
            Way::Input | Way::Output => (lookup.src, lookup.dst),
            Way::Reverse => (lookup.dst, lookup.src),
        };
        // For a packet that comes in the kernel takes any source, for one that it sends only its own.
        let src_unasked =
            lookup.way != Way::Input && !self.topology.table.has_address(self.netns, from.ip());
        Some(Packet {
            src: from.ip(),
            src_unasked,
            dst: to.ip(),
            iif: match lookup.way {
                Way::Input => device?,
                Way::Output | Way::Reverse => "lo",
            },
            oif: device.filter(|_| lookup.way == Way::Output),
            mark,
            protocol: lookup.protocol,
            src_port: from.port(),
            dst_port: to.port(),
        })
    }

    fn find_route(&mut self, lookup: Lookup, mark: u32) -> Option<Route> {
        let device = lookup.ifindex.and_then(|index| self.device_name(index));
        let packet = self.packet(&lookup, mark, device.as_deref())?;
        let mut found = None;
        let answer = self.request(
            RouteNetlinkMessage::GetRoute(request(&lookup, &packet)),
            &mut |message| {
                found = found.take().or_else(|| routes::parse(message));
            },
        );
        let rules = self.rules(packet.dst)?;
        let mut route = Route {
            netns: self.netns,
            asked_ns: self.now_ns,
            lookup,
            found: RouteKind::None,
            prefix: None,
            table: None,
            rule: None,
            rule_selector: None,
            by_rule: false,
            hops: Vec::new(),
            mtu: None,
            ports_matter: rules::look_at_ports(&rules),
            uncertain: rules::are_uncertain(&rules, &packet),
            unreached: false,
        };
        let rule;
        match answer {
            Ok(()) => {
                let entry = found?;
                route.found = entry.kind;
                route.prefix = Some(entry.dst);
                // While there are no rules of one's own, IPv4 keeps the tables local and main in one and calls both main.
                rule = if matches!(entry.kind, RouteKind::Unicast | RouteKind::Other) {
                    route.table = Some(entry.table);
                    rules::leading_to(&rules, &packet, entry.dst, entry.table)
                } else {
                    None
                };
                route.hops = entry.hops;
                route.mtu = entry.metrics.mtu;
            }
            Err(errno) => {
                let (kind, decision) = self.rejected(errno, &lookup, &rules, &packet)?;
                route.found = kind;
                route.prefix = decision.prefix;
                route.table = decision.table;
                route.by_rule = decision.by_rule;
                rule = decision.rule;
            }
        }
        route.rule = rule.map(Rule::priority);
        route.rule_selector = rule.map(Rule::selector);
        Some(route)
    }

    /// What an error of the kernel means (`fib_props` in net/ipv4/fib_semantics.c, `ip6_rt_init_dst_reject()` in
    /// net/ipv6/route.c), where something in the tables confirms it: each error has other meanings as well.
    fn rejected<'r>(
        &mut self,
        errno: Errno,
        lookup: &Lookup,
        rules: &'r [Rule],
        packet: &Packet<'_>,
    ) -> Option<(RouteKind, Decision<'r>)> {
        let kind = match errno {
            // A rule that says unreachable gives this, too (`fib4_rule_action()` in net/ipv4/fib_rules.c).
            Errno::ENETUNREACH => {
                let by_rule = rules::rejecting(rules, &[], RouteKind::Unreachable, packet);
                return Some(by_rule.map_or_else(
                    || (RouteKind::None, Decision::default()),
                    |decision| (RouteKind::Unreachable, decision),
                ));
            }
            Errno::EINVAL => RouteKind::Blackhole,
            Errno::EACCES => RouteKind::Prohibit,
            // Where forwarding is off, IPv4 says this of every packet that it would forward (`ip_route_input_slow()`).
            Errno::EHOSTUNREACH if !self.is_forwarding_off(lookup) => RouteKind::Unreachable,
            _ => return None,
        };
        let routes = self.rejecting_routes(packet.dst, kind)?;
        rules::rejecting(rules, &routes, kind, packet).map(|decision| (kind, decision))
    }

    fn is_forwarding_off(&self, lookup: &Lookup) -> bool {
        let device = lookup.ifindex.and_then(|ifindex| self.device_name(ifindex));
        let sysctls = &self.topology.namespaces[self.index].sysctls;
        lookup.way == Way::Input
            && lookup.dst.is_ipv4()
            && device.is_none_or(|device| sysctls.read(false, &device, "forwarding") != Some(1))
    }

    fn rules(&mut self, addr: IpAddr) -> Option<Vec<Rule>> {
        let mut rules = Vec::new();
        self.dump(Dump::Rules(family(addr)), &mut |message| {
            if rules.len() <= RULES_MAX {
                rules.extend(rules::parse(message));
            }
        })
        .ok()?;
        (rules.len() <= RULES_MAX).then_some(rules)
    }

    fn rejecting_routes(&mut self, addr: IpAddr, kind: RouteKind) -> Option<Vec<routes::Entry>> {
        let of_kind = match kind {
            RouteKind::Blackhole => RouteType::BlackHole,
            RouteKind::Unreachable => RouteType::Unreachable,
            RouteKind::Prohibit => RouteType::Prohibit,
            _ => return None,
        };
        self.walk(Dump::RoutesOf(family(addr), of_kind), |entry| {
            entry.kind == kind
        })
    }

    /// Lists routes of every table; `None` where it is too early for another walk, or there are too many.
    fn walk(
        &mut self,
        what: Dump,
        is_wanted: impl Fn(&routes::Entry) -> bool,
    ) -> Option<Vec<routes::Entry>> {
        let begin = Instant::now();
        if begin < self.topology.walk_after {
            return None;
        }
        let mut entries = Vec::new();
        let walked = self.dump(what, &mut |message| {
            if entries.len() <= WALKED_ROUTES_MAX {
                entries.extend(routes::parse(message).filter(|entry| is_wanted(entry)));
            }
        });
        self.topology.walk_after = begin + WALK_PAUSE * begin.elapsed();
        walked.ok()?;
        (entries.len() <= WALKED_ROUTES_MAX).then_some(entries)
    }

    fn request(
        &mut self,
        request: RouteNetlinkMessage,
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<(), Errno> {
        self.with_socket(each, |netns, buffer, each| {
            netns.socket.request(request, buffer, each)
        })
    }

    fn dump(&mut self, what: Dump, each: &mut dyn FnMut(Message<'_>)) -> Result<(), Errno> {
        self.with_socket(each, |netns, buffer, each| {
            netns.socket.dump(what, buffer, each)
        })
    }

    /// Hands the answers to `each`, and the notifications among them to the table.
    fn with_socket(
        &mut self,
        each: &mut dyn FnMut(Message<'_>),
        ask: impl FnOnce(&mut Netns, &mut [u8], &mut dyn FnMut(Message<'_>)) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Topology {
            namespaces,
            table,
            buffer,
            incomplete,
            ..
        } = &mut *self.topology;
        let id = self.netns;
        let answer = ask(
            &mut namespaces[self.index],
            buffer,
            &mut |message| match links::parse(message) {
                Some(change) => table.apply(id, change),
                None => each(message),
            },
        );
        if answer == Err(Errno::ENOBUFS) {
            // Notifications were lost: the next poll lists the devices anew.
            incomplete.insert(id, Errno::ENOBUFS);
        }
        answer
    }
}

fn family(addr: IpAddr) -> AddressFamily {
    match addr {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    }
}

/// The request for the route itself (`RTM_F_FIB_MATCH`), not for what follows from it for this packet, and for its table
/// (`RTM_F_LOOKUP_TABLE`).
fn request(lookup: &Lookup, packet: &Packet<'_>) -> RouteMessage {
    let bits = |addr: IpAddr| if addr.is_ipv4() { 32 } else { 128 };
    let mut message = RouteMessage::default();
    message.header.address_family = family(packet.dst);
    message.header.destination_prefix_length = bits(packet.dst);
    // Without the second, IPv4 calls every table main.
    message.header.flags = RouteFlags::FibMatch | RouteFlags::LookupTable;
    let attributes = &mut message.attributes;
    attributes.push(RouteAttribute::Destination(packet.dst.into()));
    if !packet.src_unasked {
        message.header.source_prefix_length = bits(packet.src);
        attributes.push(RouteAttribute::Source(packet.src.into()));
    }
    match (lookup.way, lookup.ifindex) {
        (Way::Input, Some(ifindex)) => attributes.push(RouteAttribute::Iif(ifindex)),
        (Way::Output, Some(ifindex)) => attributes.push(RouteAttribute::Oif(ifindex)),
        _ => {}
    }
    if packet.mark != 0 {
        attributes.push(RouteAttribute::Mark(packet.mark));
    }
    if [IpProto::Tcp as u8, IpProto::Udp as u8].contains(&packet.protocol) {
        attributes.push(RouteAttribute::IpProto(packet.protocol));
        // A port of 0 is none, which the kernel refuses to hear.
        if packet.src_port != 0 {
            attributes.push(RouteAttribute::Sport(packet.src_port));
        }
        if packet.dst_port != 0 {
            attributes.push(RouteAttribute::Dport(packet.dst_port));
        }
    }
    message
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    #[test]
    fn questions_are_paced_and_earned_again() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        let mut now = begin;
        let mut asked = 0;
        while pace.allows(now) {
            pace.asked(now);
            assert!(!pace.allows(now));
            asked += 1;
            now += PAUSE;
        }
        // 256 at 16 a second take 16 s, in which one more is earned.
        assert_eq!(asked, QUESTIONS_MAX + 1);
        now += EARNS_EVERY;
        assert!(pace.allows(now));
        pace.asked(now);
        assert!(!pace.allows(now + PAUSE));
    }

    #[test]
    fn a_quiet_hour_earns_no_more_than_one_go() {
        let begin = Instant::now();
        let mut pace = Pace::new(begin);
        let later = begin + Duration::from_hours(1);
        assert!(pace.allows(later));
        pace.asked(later);
        assert!(!pace.allows(later));
        assert_eq!(pace.left, QUESTIONS_MAX - 1);
    }

    #[test]
    fn the_running_kernel_answers_in_our_own_namespace() {
        let mut topology = Topology::open().unwrap();
        let netns = topology.own();
        let local = SocketAddr::from(([127, 0, 0, 1], 0));
        let question = |about| Question { netns, about };
        let lookup = Lookup {
            way: Way::Output,
            ifindex: None,
            protocol: 0,
            src: local,
            dst: local,
            mark: 0,
        };
        let facts = topology.ask(&question(About::Route(lookup)), 5);
        let [Fact::Route(route)] = facts.as_slice() else {
            panic!("{facts:?}");
        };
        assert_eq!((route.found, route.table), (RouteKind::Local, None));
        assert_eq!((route.asked_ns, route.lookup), (5, lookup));
        let about = About::Forwarding {
            ifindex: 1,
            ipv6: false,
        };
        let facts = topology.ask(&question(about), 5);
        let names: Vec<&str> = facts
            .iter()
            .map(|fact| match fact {
                Fact::Sysctl { name, .. } => name.as_str(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(
            names,
            [
                "net.ipv4.conf.all.forwarding",
                "net.ipv4.conf.lo.forwarding"
            ]
        );
        let elsewhere = Question {
            netns: NetnsId { inum: 1, cookie: 1 },
            about,
        };
        assert!(topology.ask(&elsewhere, 5).is_empty());
    }
}
