//! What may be said of a connection. It follows from what was broken, from the client's outcome and from the counters
//! of the rules and the pods, and never from what a tracer says.

use std::time::{Duration, Instant};

use crate::breaking::{ByPort, Counted};
use crate::exchange::Exchange;
use crate::fault::{Carrier, Effect, Killer, Packet, Scope, What};
use crate::load::{Connection, End};
use crate::shape::{Direction, Shape};

/// A fault may be told once two transmissions of a packet have died: not before the first retransmission.
const TWO_DEATHS: Duration = Duration::from_millis(900);
/// Data is sent again much sooner than a SYN.
const TWO_ACKS: Duration = Duration::from_millis(190);
/// How long it takes at most until a fault is gone.
const HEALED_WITHIN: Duration = Duration::from_millis(500);
/// What is inferred may be told at the answer deadline, 3.5 s after the first request, measured with some error.
const DEADLINE: Duration = Duration::from_millis(3400);
/// When the deadline is surely over: so long after the first request, and so long after the client sent its last.
const SURELY_AFTER_FIRST: Duration = Duration::from_millis(3700);
const SURELY_AFTER_LAST: Duration = Duration::from_millis(650);

/// A verdict that is true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    pub code: &'static str,
    /// Events may prove it; else it is inferred.
    pub may_be_proven: bool,
    /// The namespaces where it may be; none is any.
    pub netns: Vec<&'static str>,
    /// As in [`Killer`].
    pub devices: Vec<&'static str>,
    /// The causes that are true, where one is told; none is any, and `null` is none.
    pub causes: Vec<&'static str>,
}

/// All that may be said.
#[derive(Clone, Debug, Default)]
pub struct Truth {
    pub accepted: Vec<Accepted>,
    /// No packet came into the view.
    pub is_unseen: bool,
    /// The window may have closed before it was seen.
    pub may_be_missing: bool,
    /// The window was long enough for a verdict.
    pub is_over: bool,
    /// The places where packets of the handshake died: those of which losses may be told.
    pub deaths: Vec<(Packet, &'static str, Vec<&'static str>)>,
}

/// What is known of a run.
pub struct Facts<'a> {
    pub shape: Shape,
    pub killers: &'a [Killer],
    /// What the rule of each fault took.
    pub taken: &'a [ByPort],
    pub counted: &'a Counted,
    pub faults_began: Instant,
}

/// The namespaces of a view, and when its window closed, at the earliest and at the latest.
#[derive(Clone, Copy)]
pub struct Seen {
    pub range: (usize, usize),
    pub closed: (Instant, Instant),
}

/// What a killer did to a connection.
#[derive(Clone)]
struct Fate<'a> {
    killer: &'a Killer,
    /// How many packets died of it; `None`: perhaps some.
    count: Option<u64>,
}

impl Facts<'_> {
    /// Whether a connection may have met a fault.
    pub fn concerns(&self, connection: &Connection) -> bool {
        !self.relevant(connection).is_empty()
    }

    /// The killers that this connection may have met.
    fn relevant(&self, connection: &Connection) -> Vec<&Killer> {
        if connection.is_before_faults {
            return Vec::new();
        }
        let met = |killer: &&Killer| {
            let in_scope = match killer.scope {
                Scope::Everybody => true,
                Scope::Asking(target) => target == connection.target,
                Scope::From(port) => port == connection.port,
            };
            // Where a rule counts, it is known what it took, and when does not matter.
            let since = |ms| self.faults_began.checked_add(Duration::from_millis(ms));
            let is_over = since(killer.until_ms)
                .is_some_and(|until| until + HEALED_WITHIN < connection.began);
            let is_carried = matches!(killer.carrier, Carrier::Tcp | Carrier::Any);
            is_carried && in_scope && (killer.counted.is_some() || !is_over)
        };
        self.killers.iter().filter(met).collect()
    }

    /// What became of the packets of a kind.
    fn fates<'k>(&self, what: What, relevant: &[&'k Killer], client: u16) -> Vec<Fate<'k>> {
        let packet = match what {
            What::Only(packet) => packet,
            _ if what.direction() == Direction::Request => Packet::Syn,
            _ => Packet::SynAck,
        };
        let taken = |number: usize| self.taken[number].get(&client).copied().unwrap_or(0);
        let mine = |killer: &&&Killer| {
            killer.packet == packet && matches!(killer.effect, Effect::Dies | Effect::Rejected)
        };
        let mine: Vec<&Killer> = relevant.iter().filter(mine).copied().collect();
        let (sent, arrived) = self.counted.of(what, client);
        let lost = sent.saturating_sub(arrived);
        let explained: u64 = mine
            .iter()
            .filter(|killer| !killer.behind_counter)
            .filter_map(|killer| killer.counted.map(taken))
            .sum();
        let left = lost.saturating_sub(explained);
        let uncounted = mine
            .iter()
            .filter(|killer| killer.counted.is_none())
            .count();
        let fate = |killer: &&'k Killer| Fate {
            killer,
            count: match killer.counted {
                Some(number) => Some(taken(number)),
                None if left == 0 => Some(0),
                None if uncounted == 1 => Some(left),
                None => None,
            },
        };
        let fates = mine.iter().map(fate);
        fates.filter(|fate| fate.count != Some(0)).collect()
    }

    /// How many packets of a kind got past everything.
    fn passed(&self, what: What, fates: &[Fate<'_>], client: u16) -> u64 {
        let behind: u64 = fates
            .iter()
            .filter(|fate| fate.killer.behind_counter)
            .filter_map(|fate| fate.count)
            .sum();
        let (_, arrived) = self.counted.of(what, client);
        arrived.saturating_sub(behind)
    }

    /// The killers that an exchange may have met.
    fn relevant_to(&self, exchange: &Exchange) -> Vec<&Killer> {
        let met = |killer: &&Killer| {
            let is_carried = killer.carrier == exchange.carrier || killer.carrier == Carrier::Any;
            is_carried && killer.scope == Scope::Everybody
        };
        self.killers.iter().filter(met).collect()
    }

    /// Whether an exchange may have met a fault.
    pub fn concerns_exchange(&self, exchange: &Exchange) -> bool {
        !self.relevant_to(exchange).is_empty()
    }

    /// What may be said of an exchange by those who saw this much.
    pub fn truth_of_exchange(&self, exchange: &Exchange, seen: Seen) -> Truth {
        let since = |at: Instant| at.saturating_duration_since(exchange.began);
        let (at_least, at_most) = (since(seen.closed.0), since(seen.closed.1));
        let (what, back) = (
            exchange.what(Direction::Request),
            exchange.what(Direction::Reply),
        );
        let client = exchange.client;
        let relevant = self.relevant_to(exchange);
        let requests = self.fates(what, &relevant, client);
        let replies = self.fates(back, &relevant, client);
        let (low, _) = seen.range;
        let (sent, arrived) = self.counted.of(what, client);
        let deadline = exchange.deadline();
        let mut truth = Truth {
            is_over: at_least >= deadline + Duration::from_millis(200)
                || (exchange.is_answered && seen.closed.0 > exchange.ended),
            may_be_missing: at_least < Duration::from_millis(100) || sent == 0,
            ..Truth::default()
        };
        if arrived == 0
            && !requests.is_empty()
            && requests.iter().all(|fate| fate.killer.netns < low)
        {
            truth.is_unseen = true;
            return truth;
        }
        // A reply that left the view is taken to have arrived, since nothing asks again.
        let left = Accepted {
            may_be_proven: false,
            ..answered()
        };
        let mut accepted = if exchange.is_answered && low > 0 {
            vec![left]
        } else if exchange.is_answered {
            vec![answered()]
        } else if self.counted.of(back, client).0 > 0 {
            let away = replies.iter().any(|fate| fate.killer.netns < low);
            if away {
                vec![left]
            } else {
                self.lost(Packet::SynAck, &replies, seen)
            }
        } else if self.passed(what, &requests, client) > 0 {
            let ignored = relevant
                .iter()
                .find(|killer| killer.effect == Effect::Ignored);
            ignored
                .map(|killer| self.not_answered(killer, seen))
                .into_iter()
                .collect()
        } else {
            self.lost(Packet::Syn, &requests, seen)
        };
        let too_early = deadline.saturating_sub(Duration::from_millis(150));
        accepted.retain(|accepted| {
            ["answered", "refused"].contains(&accepted.code) || at_most >= too_early
        });
        truth.accepted = accepted;
        truth
    }

    /// What may be said of a connection by those who saw this much.
    pub fn truth(&self, connection: &Connection, seen: Seen) -> Truth {
        let since = |at: Instant| at.saturating_duration_since(connection.began);
        let (at_least, at_most) = (since(seen.closed.0), since(seen.closed.1));
        let port = connection.port;
        let relevant = self.relevant(connection);
        let syns = self.fates(What::Only(Packet::Syn), &relevant, port);
        let syn_acks = self.fates(What::Only(Packet::SynAck), &relevant, port);
        let acks = self.fates(What::Only(Packet::Ack), &relevant, port);
        let reached = self.passed(What::Only(Packet::Syn), &syns, port);
        let ack_passed = self.passed(What::Only(Packet::Ack), &acks, port) > 0;
        let is_answered = connection.end == End::Connected && (ack_passed || acks.is_empty());
        let is_over = (at_least >= SURELY_AFTER_FIRST
            && seen.closed.0 >= connection.ended + SURELY_AFTER_LAST)
            || (is_answered && seen.closed.0 > connection.ended);
        let mut truth = Truth {
            is_over,
            may_be_missing: at_least < Duration::from_millis(100)
                || self.counted.of(What::Only(Packet::Syn), port).0 == 0,
            ..Truth::default()
        };
        for (packet, fates) in [
            (Packet::Syn, &syns),
            (Packet::SynAck, &syn_acks),
            (Packet::Ack, &acks),
        ] {
            for fate in fates {
                let mut causes = fate.killer.causes.to_vec();
                if fate.killer.effect == Effect::Rejected {
                    causes.push("netfilter");
                }
                let netns = self.shape.name(fate.killer.netns);
                truth.deaths.push((packet, netns, causes));
            }
        }
        for killer in &relevant {
            if matches!(killer.effect, Effect::NoListener | Effect::Ignored) {
                let netns = self.shape.name(killer.netns);
                truth
                    .deaths
                    .push((Packet::Syn, netns, killer.causes.to_vec()));
            }
        }
        let (low, _) = seen.range;
        // The SYNs that came further may have done so when the window had closed.
        let died_before = syns.iter().any(|fate| fate.killer.netns < low);
        truth.may_be_missing |= died_before && !is_over;
        let all_died_before = self.counted.of(What::Only(Packet::Syn), port).1 == 0
            && !syns.is_empty()
            && syns.iter().all(|fate| fate.killer.netns < low);
        if all_died_before {
            truth.is_unseen = true;
            return truth;
        }
        let mut accepted = Vec::new();
        if is_answered {
            accepted.push(answered());
            for killer in relevant.iter().filter(|killer| killer.counted.is_some()) {
                accepted.extend(self.data_lost(killer, seen));
            }
            if !acks.is_empty() && at_least < SURELY_AFTER_FIRST {
                // The ACK that passed may have done so when the window had closed.
                for fate in &acks {
                    accepted.extend(self.lost(Packet::Ack, std::slice::from_ref(fate), seen));
                }
            }
        } else if connection.end == End::Connected {
            accepted.extend(self.lost(Packet::Ack, &acks, seen));
        } else {
            accepted
                .extend(self.unanswered(&relevant, &syns, &syn_acks, reached, connection, seen));
        }
        // A window that closed early knows only the beginning, of which each of these may be the whole truth.
        if !is_over || seen.closed.0 < connection.ended {
            for (packet, fates) in [(Packet::Syn, &syns), (Packet::SynAck, &syn_acks)] {
                for fate in fates {
                    accepted.extend(self.lost(packet, std::slice::from_ref(fate), seen));
                }
            }
        }
        accepted.retain(|accepted| match accepted.code {
            // Data that is sent again has its own clock.
            "answered" | "refused" | "data_dropped" | "stalled" => true,
            "ack_dropped" => at_most >= TWO_ACKS,
            _ if accepted.may_be_proven => at_most >= TWO_DEATHS,
            _ => at_most >= DEADLINE,
        });
        truth.accepted = accepted;
        truth
    }

    /// Of a connection that was never established.
    fn unanswered(
        &self,
        relevant: &[&Killer],
        syns: &[Fate<'_>],
        syn_acks: &[Fate<'_>],
        reached: u64,
        connection: &Connection,
        seen: Seen,
    ) -> Vec<Accepted> {
        let port = connection.port;
        let is_silent = connection.end == End::GaveUp;
        let mut accepted = Vec::new();
        let effect = |effect| relevant.iter().find(|killer| killer.effect == effect);
        let rejected: Vec<&Fate<'_>> = syns
            .iter()
            .filter(|fate| fate.killer.effect == Effect::Rejected)
            .collect();
        for fate in &rejected {
            accepted.extend(self.refused(fate.killer, relevant, seen));
            // ICMP errors are rate limited: a rejected SYN may die without a word.
            let silent = Killer {
                causes: &["netfilter", "rejected"],
                ..fate.killer.clone()
            };
            if is_silent {
                accepted.extend(self.lost_at(Packet::Syn, &silent, seen));
            }
        }
        if !rejected.is_empty() {
            return accepted;
        }
        if self.counted.of(What::Only(Packet::SynAck), port).0 > 0 {
            return self.lost(Packet::SynAck, syn_acks, seen);
        }
        if reached > 0
            && let Some(killer) = effect(Effect::NoListener)
        {
            return self.refused(killer, relevant, seen);
        }
        if reached > 0
            && let Some(killer) = effect(Effect::Ignored)
        {
            return vec![self.not_answered(killer, seen)];
        }
        self.lost(Packet::Syn, syns, seen)
    }

    /// The packet that came furthest died here; of several candidates each may have been it.
    fn lost(&self, packet: Packet, fates: &[Fate<'_>], seen: Seen) -> Vec<Accepted> {
        let step = |fate: &Fate<'_>| match packet.direction() {
            Direction::Request => fate.killer.netns,
            Direction::Reply => self.shape.last() - fate.killer.netns,
        };
        let Some(furthest) = fates.iter().max_by_key(|fate| step(fate)) else {
            return Vec::new();
        };
        let candidates = fates
            .iter()
            .filter(|fate| step(fate) == step(furthest) || furthest.count.is_none());
        candidates
            .flat_map(|fate| self.lost_at(packet, fate.killer, seen))
            .collect()
    }

    fn lost_at(&self, packet: Packet, killer: &Killer, seen: Seen) -> Vec<Accepted> {
        let (low, high) = seen.range;
        let netns = killer.netns;
        let dropped = |code| Accepted {
            code,
            may_be_proven: true,
            netns: vec![self.shape.name(netns)],
            devices: killer.devices.clone(),
            causes: killer.causes.to_vec(),
        };
        let left = |code, netns, direction| Accepted {
            code,
            may_be_proven: false,
            netns: vec![self.shape.name(netns)],
            devices: vec![self.shape.exit(netns, direction)],
            causes: vec!["null"],
        };
        let request_left = left("request_left_node", high, Direction::Request);
        match packet {
            Packet::Syn if netns < low => Vec::new(),
            Packet::Syn if netns > high => {
                // An ICMP error may tell of it.
                let told = Accepted {
                    code: "refused",
                    may_be_proven: true,
                    netns: self.names(seen),
                    devices: Vec::new(),
                    // Only "time exceeded" says itself what it was.
                    causes: if killer.causes.contains(&"ttl") {
                        vec!["ttl"]
                    } else {
                        vec!["unknown", "rejected"]
                    },
                };
                let tells = ["no_route", "neighbour_unresolved", "no_listener", "ttl"];
                let is_told = killer.causes.iter().any(|cause| tells.contains(cause));
                let mut accepted = vec![request_left];
                accepted.extend(is_told.then_some(told));
                accepted
            }
            Packet::Syn => {
                // What an unreachable route does is both: the packet dies, and ICMP refuses it.
                let is_route = killer.causes.contains(&"no_route");
                let refused = Accepted {
                    devices: Vec::new(),
                    causes: [killer.causes, &["rejected", "unknown"]].concat(),
                    ..dropped("refused")
                };
                let mut accepted = vec![dropped("request_dropped")];
                accepted.extend(is_route.then_some(refused));
                accepted
            }
            Packet::SynAck if netns > high => vec![request_left],
            Packet::SynAck if netns < low => {
                let mut lost = left("reply_left_node", low, Direction::Reply);
                // The node sends it into another tunnel than the one out of which the SYN came.
                let other_tunnel = ["unknown_vni", "no_listener"];
                if killer
                    .causes
                    .iter()
                    .any(|cause| other_tunnel.contains(cause))
                {
                    lost.causes.push("asymmetric_egress");
                }
                vec![lost]
            }
            Packet::SynAck => vec![dropped("reply_dropped")],
            // What carries data after the handshake is taken as well.
            Packet::Ack if netns > high => {
                vec![answered(), left("stalled", high, Direction::Request)]
            }
            Packet::Ack if netns < low => vec![left("reply_left_node", low, Direction::Reply)],
            Packet::Ack => vec![dropped("ack_dropped")],
        }
    }

    /// A rule takes what one side sends on an established connection.
    fn data_lost(&self, killer: &Killer, seen: Seen) -> Option<Accepted> {
        let (low, high) = seen.range;
        let takes_data = killer.packet == Packet::Ack || killer.takes_resets;
        if !takes_data {
            return None;
        }
        let here = (low..=high).contains(&killer.netns);
        Some(Accepted {
            code: if here { "data_dropped" } else { "stalled" },
            may_be_proven: here,
            netns: if here {
                vec![self.shape.name(killer.netns)]
            } else {
                self.names(seen)
            },
            devices: if here {
                killer.devices.clone()
            } else {
                Vec::new()
            },
            causes: if here {
                killer.causes.to_vec()
            } else {
                vec!["null"]
            },
        })
    }

    fn refused(&self, killer: &Killer, relevant: &[&Killer], seen: Seen) -> Vec<Accepted> {
        let (low, high) = seen.range;
        let refused = |netns, devices: &[&'static str], causes: &[&'static str]| Accepted {
            code: "refused",
            may_be_proven: true,
            netns,
            devices: devices.to_vec(),
            causes: causes.to_vec(),
        };
        if (low..=high).contains(&killer.netns) {
            let here = vec![self.shape.name(killer.netns)];
            return vec![refused(here, &killer.devices, killer.causes)];
        }
        let is_netfilter = killer.effect == Effect::Rejected;
        let causes: &[&str] = if is_netfilter {
            &["unknown", "rejected"]
        } else {
            &["unknown", "no_listener"]
        };
        let told = refused(self.names(seen), &[], causes);
        let left = || Accepted {
            code: "request_left_node",
            may_be_proven: false,
            netns: vec![self.shape.name(high)],
            devices: vec![self.shape.exit(high, Direction::Request)],
            causes: vec!["null"],
        };
        // The refusal may die on its way back, before this view or in it.
        let mut takers = relevant.iter().filter(|killer| killer.takes_resets);
        if takers.any(|taker| taker.netns > high) {
            vec![told, left()]
        } else {
            vec![told]
        }
    }

    fn not_answered(&self, killer: &Killer, seen: Seen) -> Accepted {
        let (_, high) = seen.range;
        if high == killer.netns {
            Accepted {
                code: "request_not_answered",
                may_be_proven: false,
                netns: vec![self.shape.name(killer.netns)],
                devices: killer.devices.clone(),
                causes: killer.causes.to_vec(),
            }
        } else {
            Accepted {
                code: "request_left_node",
                may_be_proven: false,
                netns: vec![self.shape.name(high)],
                devices: vec![self.shape.exit(high, Direction::Request)],
                causes: vec!["null"],
            }
        }
    }

    fn names(&self, seen: Seen) -> Vec<&'static str> {
        let (low, high) = seen.range;
        (low..=high).map(|netns| self.shape.name(netns)).collect()
    }
}

fn answered() -> Accepted {
    Accepted {
        code: "answered",
        may_be_proven: true,
        netns: Vec::new(),
        devices: Vec::new(),
        causes: Vec::new(),
    }
}
