//! Says more about a cause: what the kernel answered when it was asked about the packet ([`Fact`]), and what the devices
//! around it are like.
//!
//! The death is proven by its event, and the event alone decides the cause's code. An answer is of a later moment: it is
//! evidence, and where it does not fit the death, the words say so.

use super::diagnosis::{self, Diagnosis, Evidence, Trace};
use super::question::{self, routed};
use super::size;
use super::{Scene, words};
use crate::codes::CauseCode;
use crate::event::{Death, DeviceId, NetnsId};
use crate::fact::{About, Fact, Lookup, Question, Route, RouteKind, mac_words, sysctl_name};
use crate::flow::{Point, Sighting};

/// Within this time after a death the answer is taken to be of the route that the packet met.
const SOON_NS: u64 = 2_000_000_000;

/// The most devices or tunnels that a sentence names.
const NAMED_MAX: usize = 4;

/// The functions that go through rules.
const RULES: [&str; 5] = [
    "nft_do_chain",
    "ipt_do_table",
    "ip6t_do_table",
    "arpt_do_table",
    "ebt_do_table",
];

/// The counters of packets that conntrack itself dropped.
const CONNTRACK_LOSSES: [&str; 3] = [
    "conntrack_drop",
    "conntrack_early_drop",
    "conntrack_insert_failed",
];

impl Scene<'_> {
    /// Says why the packet of a sighting died. `None` if it did not.
    pub(super) fn diagnose(&self, sighting: &Sighting) -> Option<Diagnosis> {
        let diagnosis = diagnosis::of(sighting, self.devices())?;
        let Point::Drop(death) = &sighting.point else {
            return Some(diagnosis);
        };
        let dead = Dead {
            scene: self,
            sighting,
            death,
            question: question::of(sighting, self.devices()),
        };
        Some(dead.explain(diagnosis))
    }

    /// How many bytes the route takes that a packet was to be sent on by, as far as the kernel answered when it was asked.
    pub(super) fn route_mtu(&self, sighting: &Sighting) -> Option<u32> {
        let Point::Drop(death) = &sighting.point else {
            return None;
        };
        let question = question::of(sighting, self.devices());
        let Some(About::TooBig { onward, .. }) = question.map(|question| question.about) else {
            return None;
        };
        let dead = Dead {
            scene: self,
            sighting,
            death,
            question,
        };
        let (_, route) = dead.route(&onward)?;
        let devices = route.hops.iter().filter_map(|hop| {
            let id = DeviceId {
                netns: route.netns,
                ifindex: hop.ifindex,
            };
            Some(self.devices().get(id)?.mtu)
        });
        let mtu = route.mtu.or_else(|| devices.min())?;
        // One that the packet fits into is not what it met.
        (sighting.wire_len() > mtu).then_some(mtu)
    }

    /// `eth0`, or its number where it has no name.
    fn ifindex_words(&self, netns: NetnsId, ifindex: u32) -> String {
        match self.devices().get(DeviceId { netns, ifindex }) {
            Some(device) => device.name.clone(),
            None => format!("device {ifindex}"),
        }
    }

    /// What was found, in the words of `ip route`: "blackhole 10.9.0.0/24 in table main".
    pub(crate) fn route_words(&self, route: &Route) -> String {
        let kind = route.found.name();
        let selector = match &route.rule_selector {
            Some(selector) => format!(" ({selector})"),
            None => String::new(),
        };
        let rule = route.rule.filter(|priority| !is_default_rule(*priority));
        if route.found == RouteKind::None {
            return "no route: every rule was tried".to_owned();
        }
        if route.by_rule {
            return match route.rule {
                Some(priority) => format!("{kind}, says rule {priority}{selector}"),
                None => format!("{kind}, says a rule"),
            };
        }
        let Some(prefix) = route.prefix else {
            return format!(
                "{kind}: there are several such routes to {}",
                route.lookup.target()
            );
        };
        let kind = if route.found == RouteKind::Unicast {
            String::new()
        } else {
            format!("{kind} ")
        };
        let hops: Vec<String> = route
            .hops
            .iter()
            .take(NAMED_MAX)
            .filter(|_| !route.found.rejects())
            .map(|hop| {
                let device = self.ifindex_words(route.netns, hop.ifindex);
                hop.gateway.map_or_else(
                    || format!(" dev {device}"),
                    |gateway| format!(" via {gateway} dev {device}"),
                )
            })
            .collect();
        let by = match rule {
            _ if route.unreached => ", to which no rule leads it".to_owned(),
            Some(priority) => format!(", by rule {priority}{selector}"),
            None => String::new(),
        };
        let table = route.table.map_or_else(String::new, |table| {
            format!(" in table {}", words::table(table))
        });
        format!("{kind}{prefix}{}{table}{by}", hops.join(","))
    }
}

/// The priorities of the rules that every namespace has.
const DEFAULT_RULES: [u32; 3] = [0, 32_766, 32_767];

/// Whether every namespace has a rule with this priority, so that it goes without saying.
pub(super) fn is_default_rule(priority: u32) -> bool {
    DEFAULT_RULES.contains(&priority)
}

/// A packet that died.
struct Dead<'a> {
    scene: &'a Scene<'a>,
    sighting: &'a Sighting,
    death: &'a Death,
    question: Option<Question>,
}

impl<'a> Dead<'a> {
    fn explain(&self, mut diagnosis: Diagnosis) -> Diagnosis {
        match (diagnosis.code, self.question.map(|question| question.about)) {
            (code, Some(About::Route(lookup))) => {
                if code == CauseCode::Unknown {
                    self.name_by_route(&lookup, &mut diagnosis);
                }
                self.by_route(&lookup, &mut diagnosis);
            }
            (_, Some(About::ReversePath(lookup))) => self.by_reverse_path(&lookup, &mut diagnosis),
            (_, Some(About::Forwarding { ipv6, .. })) => self.by_forwarding(ipv6, &mut diagnosis),
            (_, Some(About::Neighbour(lookup))) => self.by_neighbour(&lookup, &mut diagnosis),
            (_, Some(About::Source { .. })) => self.by_source(&mut diagnosis),
            (CauseCode::Mtu, Some(About::TooBig { onward, .. })) => {
                self.by_size(&onward, &mut diagnosis);
            }
            (CauseCode::UnknownVni, _) => self.by_vni(&mut diagnosis),
            (CauseCode::WrongMac, _) => self.by_mac(&mut diagnosis),
            (CauseCode::Netfilter, _) => self.by_conntrack(&mut diagnosis),
            (
                CauseCode::WireguardAllowedIps
                | CauseCode::WireguardNoPeer
                | CauseCode::WireguardNoSession,
                _,
            ) => self.scene.explain_wireguard(self.sighting, &mut diagnosis),
            _ => {}
        }
        diagnosis
    }

    /// Names a death that only the routes can tell apart. What was asked later, or may be wrong, names nothing.
    fn name_by_route(&self, lookup: &Lookup, diagnosis: &mut Diagnosis) {
        let Some((_, route)) = self.route(lookup) else {
            return;
        };
        let soon = route.asked_ns.abs_diff(self.sighting.time_ns) <= SOON_NS;
        if !soon || route.uncertain {
            return;
        }
        diagnosis.code = match route.found {
            RouteKind::None => CauseCode::NoRoute,
            // IPv6 has one answer for an unreachable route and for none.
            RouteKind::Unreachable if lookup.target().is_ipv6() => CauseCode::NoRoute,
            RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Prohibit => {
                CauseCode::BlackholeRoute
            }
            _ => return,
        };
        diagnosis.phrase = format!("because there is no route to {}", lookup.target());
    }

    fn by_route(&self, lookup: &Lookup, diagnosis: &mut Diagnosis) {
        let Some((fact, route)) = self.route(lookup) else {
            return;
        };
        let dst = lookup.target();
        let found = self.scene.route_words(route);
        let soon = route.asked_ns.abs_diff(self.sighting.time_ns) <= SOON_NS;
        if soon && self.fits(route.found) {
            if route.found.rejects() {
                let article = if route.found == RouteKind::Unreachable {
                    "an"
                } else {
                    "a"
                };
                let what = if route.by_rule {
                    "routing rule"
                } else {
                    "route"
                };
                diagnosis.phrase = format!("by {article} {} {what} to {dst}", route.found.name());
            }
            diagnosis.detail = Some(found);
        } else if self.fits(route.found) {
            diagnosis.detail = Some(format!("{}: {found}", self.since(route.asked_ns)));
        } else {
            let asked = format!("(asked {})", self.since(route.asked_ns));
            diagnosis.detail = Some(match (route.found, route.uncertain) {
                (RouteKind::None, _) => format!("there is no such route any more {asked}"),
                (_, false) => {
                    format!("a route exists by now, which came after the drop: {found} {asked}")
                }
                (_, true) => format!(
                    "a route exists by now: {found} {asked}; it came after the drop, or a rule looked at what could not be asked"
                ),
            });
        }
        diagnosis.evidence.push(Evidence::Fact(fact.clone()));
    }

    /// Whether a packet that met such a route dies like this (`ip_error()` in net/ipv4/route.c, `ip6_pkt_drop()` in
    /// net/ipv6/route.c).
    fn fits(&self, found: RouteKind) -> bool {
        if Trace(self.death).is_unrouted_for_no_reason() {
            return found == RouteKind::None || found.rejects();
        }
        let ipv6 = routed(self.sighting).1.is_ipv6();
        let no_route = matches!(
            self.death.reason.as_deref(),
            Some("IP_INNOROUTES" | "IP_OUTNOROUTES")
        );
        let freed_in = self.death.location.plain_name();
        let in_prohibit = freed_in.starts_with("ip6_pkt_prohibit");
        match found {
            _ if freed_in.starts_with("dst_discard") => found == RouteKind::Blackhole,
            RouteKind::None => no_route && !in_prohibit,
            RouteKind::Prohibit if ipv6 => in_prohibit,
            // IPv6 drops alike where there is no route and where there is one that says unreachable.
            RouteKind::Unreachable if ipv6 => no_route && !in_prohibit,
            RouteKind::Blackhole | RouteKind::Unreachable | RouteKind::Prohibit => !no_route,
            _ => false,
        }
    }

    fn by_reverse_path(&self, lookup: &Lookup, diagnosis: &mut Diagnosis) {
        let filter = self.sysctl(false, "rp_filter", diagnosis);
        let device = self.device_name();
        let source = lookup.target();
        let route = self.route(lookup).map(|(fact, route)| {
            diagnosis.evidence.push(Evidence::Fact(fact.clone()));
            let through = |ifindex| route.hops.iter().any(|hop| Some(hop.ifindex) == ifindex);
            match route.found {
                RouteKind::None => format!("there is no route back to {source}"),
                RouteKind::Unicast if through(self.sighting.ifindex) => format!(
                    "{} the route back to {source} leaves through {device} all right ({})",
                    self.since(route.asked_ns),
                    self.scene.route_words(route)
                ),
                RouteKind::Unicast => {
                    let devices: Vec<String> = route
                        .hops
                        .iter()
                        .take(NAMED_MAX)
                        .map(|hop| self.scene.ifindex_words(route.netns, hop.ifindex))
                        .collect();
                    format!(
                        "the route back to {source} leaves through {} ({}){}",
                        devices.join(" and "),
                        self.scene.route_words(route),
                        caution(route)
                    )
                }
                _ => format!(
                    "the route back to {source} is {}",
                    self.scene.route_words(route)
                ),
            }
        });
        let filter = filter.map(|Sysctl { all, own }| {
            format!(
                "rp_filter is {} on {device} (all={all}, {device}={own})",
                all.max(own)
            )
        });
        diagnosis.detail = match (filter, route) {
            (Some(filter), Some(route)) => Some(format!("{filter}, and {route}")),
            (Some(only), None) | (None, Some(only)) => Some(only),
            (None, None) => diagnosis.detail.take(),
        };
    }

    /// IPv4 asks the device on which a packet came in, IPv6 the whole namespace.
    fn by_forwarding(&self, ipv6: bool, diagnosis: &mut Diagnosis) {
        let device = self.device_name();
        let Some(Sysctl { all, own }) = self.sysctl(ipv6, "forwarding", diagnosis) else {
            return;
        };
        let (decides, value, other) = if ipv6 {
            ("all", all, format!("{device}={own}"))
        } else {
            (device, own, format!("all={all}"))
        };
        let name = sysctl_name(ipv6, decides, "forwarding");
        diagnosis.detail = Some(if value == 0 {
            format!("{name} is 0 ({other})")
        } else {
            format!("{name} has become {value} since ({other})")
        });
    }

    fn by_neighbour(&self, lookup: &Lookup, diagnosis: &mut Diagnosis) {
        let device = self.device_name();
        let mut caveat = "";
        let next_hop = self.route(lookup).map(|(fact, route)| {
            diagnosis.evidence.push(Evidence::Fact(fact.clone()));
            caveat = caution(route);
            let on_device = route
                .hops
                .iter()
                .find(|hop| Some(hop.ifindex) == lookup.ifindex);
            on_device.and_then(|hop| hop.gateway)
        });
        let Some(gateway) = next_hop else {
            return;
        };
        let addr = gateway.unwrap_or(lookup.target());
        let neighbour = self.answer(|fact| match fact {
            Fact::Neighbour {
                netns,
                ifindex,
                addr: of,
                ..
            } => {
                Some(*netns) == self.sighting.netns
                    && Some(*ifindex) == lookup.ifindex
                    && *of == addr
            }
            _ => false,
        });
        let what = match gateway {
            Some(_) => format!(
                "the next hop to {} is the gateway {addr}{caveat}",
                lookup.target()
            ),
            None => format!("the next hop is {addr} itself{caveat}"),
        };
        let state = neighbour.map(|fact| {
            diagnosis.evidence.push(Evidence::Fact(fact.clone()));
            match fact {
                Fact::Neighbour {
                    state: Some(state),
                    asked_ns,
                    ..
                } if state.is_resolved() => {
                    format!(
                        "{} its entry on {device} was {}",
                        self.since(*asked_ns),
                        state.name()
                    )
                }
                Fact::Neighbour {
                    state: Some(state), ..
                } => {
                    format!("its entry on {device} is {}", state.name())
                }
                _ => format!("it has no entry on {device}"),
            }
        });
        diagnosis.detail = Some(match state {
            Some(state) => format!("{what}, and {state}"),
            None => what,
        });
    }

    fn by_source(&self, diagnosis: &mut Diagnosis) {
        let source = routed(self.sighting).0.ip();
        let device = self.device_name();
        let (name, why) = match self.death.reason.as_deref() {
            Some("IP_LOCAL_SOURCE") => (
                "accept_local",
                format!("{source} is an address of this very namespace"),
            ),
            Some("IP_LOCALNET") => (
                "route_localnet",
                "addresses of 127.0.0.0/8 do not come from outside".to_owned(),
            ),
            _ => return,
        };
        let value = self
            .sysctl(false, name, diagnosis)
            .map(|Sysctl { all, own }| {
                format!(
                    ", and {name} is {} on {device} (all={all}, {device}={own})",
                    all.max(own)
                )
            });
        diagnosis.detail = Some(format!("{why}{}", value.unwrap_or_default()));
    }

    /// The route or the device that a packet was too big for, where the death does not tell it.
    fn by_size(&self, onward: &Lookup, diagnosis: &mut Diagnosis) {
        let Some((fact, route)) = self.route(onward) else {
            return;
        };
        diagnosis.evidence.push(Evidence::Fact(fact.clone()));
        let Some(mtu) = self.scene.route_mtu(self.sighting) else {
            return;
        };
        let what = match (route.mtu, route.hops.as_slice()) {
            (Some(_), _) => format!("the route {}", self.scene.route_words(route)),
            (None, [hop]) => self.scene.ifindex_words(route.netns, hop.ifindex),
            (None, _) => return,
        };
        diagnosis.phrase = size::too_many(self.sighting, &what, mtu);
    }

    fn by_vni(&self, diagnosis: &mut Diagnosis) {
        let tunnels: Vec<String> = self
            .scene
            .devices()
            .iter()
            .filter(|device| Some(device.id.netns) == self.sighting.netns && !device.removed)
            .filter_map(|device| Some(format!("{} ({})", device.vni?, device.name)))
            .collect();
        let known = match tunnels.as_slice() {
            [] => "no tunnel device there has a VNI of its own".to_owned(),
            [only] => format!("the only VNI there is {only}"),
            several => {
                let more = match several.len().saturating_sub(NAMED_MAX) {
                    0 => String::new(),
                    more => format!(" and {more} more"),
                };
                let shown: Vec<String> = several.iter().take(NAMED_MAX).cloned().collect();
                format!("the VNIs there are {}{more}", shown.join(", "))
            }
        };
        diagnosis.detail = Some(match diagnosis.detail.take() {
            Some(detail) => format!("{detail}; {known}"),
            None => known,
        });
    }

    fn by_mac(&self, diagnosis: &mut Diagnosis) {
        let devices = self.scene.devices();
        let device = self.sighting.device().and_then(|id| devices.get(id));
        let Some((wanted, device)) = self.sighting.dst_mac.zip(device) else {
            return;
        };
        let own = match device.mac {
            Some(mac) => format!("{} has {}", device.name, mac_words(mac)),
            None => format!("{} has none", device.name),
        };
        let owners: Vec<String> = devices
            .iter()
            .filter(|other| other.mac == Some(wanted) && !other.removed)
            .take(NAMED_MAX)
            .map(|other| {
                let netns = self.scene.netns_words(other.id.netns);
                format!("{} in {netns}", other.name)
            })
            .collect();
        let whose = if owners.is_empty() {
            "no device that is known has it".to_owned()
        } else {
            format!("it is that of {}", owners.join(", "))
        };
        let wanted = mac_words(wanted);
        diagnosis.detail = Some(format!("it was sent to {wanted}, and {own}; {whose}"));
    }

    /// Where no rule is on the stack, it was netfilter itself.
    fn by_conntrack(&self, diagnosis: &mut Diagnosis) {
        if Trace(self.death).has(&RULES) {
            return;
        }
        let facts = self.scene.analysis.facts.iter();
        let moved: Vec<&Fact> = facts
            .filter(|fact| match fact {
                Fact::Counter { netns, name, .. } => {
                    Some(*netns) == self.sighting.netns && CONNTRACK_LOSSES.contains(&name.as_str())
                }
                _ => false,
            })
            .collect();
        if moved.is_empty() {
            return;
        }
        let evidence = moved.into_iter().map(|fact| Evidence::Fact(fact.clone()));
        diagnosis.evidence.extend(evidence);
        diagnosis.detail = Some(
            "no rule is on the stack, and conntrack dropped packets during the trace, perhaps this one: its table is full, or two entries clashed"
                .to_owned(),
        );
    }

    fn device_name(&self) -> &'a str {
        self.scene
            .device_name(self.sighting)
            .unwrap_or("that device")
    }

    /// "12 ms after the drop".
    fn since(&self, asked_ns: u64) -> String {
        let gap = words::duration(asked_ns.abs_diff(self.sighting.time_ns));
        if asked_ns >= self.sighting.time_ns {
            format!("{gap} after the drop")
        } else {
            format!("{gap} before the drop")
        }
    }

    /// The answer that was given the nearest to the death.
    fn answer(&self, is_it: impl Fn(&Fact) -> bool) -> Option<&'a Fact> {
        let answers = self.scene.analysis.answers.iter();
        answers.filter(|fact| is_it(fact)).min_by_key(|fact| {
            let asked_ns = fact.asked_ns().unwrap_or_default();
            asked_ns.abs_diff(self.sighting.time_ns)
        })
    }

    fn route(&self, lookup: &Lookup) -> Option<(&'a Fact, &'a Route)> {
        let fact = self.answer(|fact| match fact {
            Fact::Route(route) => {
                Some(route.netns) == self.sighting.netns
                    && !route.unreached
                    && answers(route, lookup)
            }
            _ => false,
        })?;
        match fact {
            Fact::Route(route) => Some((fact, route)),
            _ => None,
        }
    }

    /// The values of a sysctl for `all` and for the device; they become evidence.
    fn sysctl(&self, ipv6: bool, name: &str, diagnosis: &mut Diagnosis) -> Option<Sysctl> {
        let mut value = |device: &str| {
            let wanted = sysctl_name(ipv6, device, name);
            let fact = self.answer(|fact| match fact {
                Fact::Sysctl { netns, name, .. } => {
                    Some(*netns) == self.sighting.netns && *name == wanted
                }
                _ => false,
            })?;
            diagnosis.evidence.push(Evidence::Fact(fact.clone()));
            match fact {
                Fact::Sysctl { value, .. } => Some(*value),
                _ => None,
            }
        };
        let all = value("all")?;
        let own = value(self.device_name())?;
        Some(Sysctl { all, own })
    }
}

/// A sysctl's two values.
struct Sysctl {
    all: i64,
    own: i64,
}

/// What is to be said where the packet itself may have been routed otherwise.
pub(super) const fn caution(route: &Route) -> &'static str {
    if route.uncertain {
        ", unless a rule looked at what could not be asked"
    } else {
        ""
    }
}

/// Whether an answer is about this packet, too.
pub(super) fn answers(route: &Route, lookup: &Lookup) -> bool {
    let [mut asked, mut wanted] = [route.lookup, *lookup];
    if !route.ports_matter {
        asked.forget_ports();
        wanted.forget_ports();
    }
    asked == wanted
}
