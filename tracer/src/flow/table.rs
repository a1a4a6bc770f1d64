//! Files sightings by flow, within bounds, and learns which five-tuples are one flow under translation. What does not fit is counted, never silently left out.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;

use super::{FiveTuple, FlowKey, Message, Point, Sighting, SocketSighting};
use crate::event::{NetnsId, SkbId};

/// The most flows that are kept at once.
pub const FLOWS_MAX: usize = 65_536;
/// The most sightings of passing data that one flow keeps in each direction, so that the first of either is seen.
pub const PASSING_MAX: usize = 512;
/// The most sightings that one flow keeps: what opens, refuses or ends it, and deaths, have room beside the data.
pub const SIGHTINGS_MAX: usize = 4 * PASSING_MAX;
/// The most sightings that all flows keep together (about 200 bytes each).
pub const SIGHTINGS_TOTAL_MAX: usize = 2_000_000;
/// The most addresses that one connection's packets are known by: each translator adds one or two.
const TUPLES_MAX: usize = 64;
/// How many skbs are remembered while they may still be translated.
const ALIVE_MAX: usize = 16_384;
/// How long a TCP segment may wait between two sightings and still be the same packet: in a queue, or for a neighbour that
/// never answers, three seconds by default (`mcast_solicit` probes, `retrans_time_ms` apart; `neigh_timer_handler()`).
const SEGMENT_WAITS_NS: u64 = 10_000_000_000;
/// How long a datagram may. Others say the same, and its skb may have been freed unseen.
const DATAGRAM_WAITS_NS: u64 = 1_000_000_000;
/// Routing takes microseconds.
const CLONED_WITHIN_NS: u64 = 1_000_000;
/// A driver answers within its own run, however long the CPU was taken from it.
const REFUSED_WITHIN_NS: u64 = 10_000_000;
/// How many transmissions back on one CPU a driver's refusal is looked for: a tunnel's own and those nested in it.
const XMITS_REMEMBERED: usize = 8;

/// All that was seen of one five-tuple, in order of arrival.
#[derive(Debug, Default)]
pub struct FlowEvents {
    /// Its packets, and the ICMP errors about them.
    pub sightings: Vec<Sighting>,
    /// What its sockets said.
    pub sockets: Vec<SocketSighting>,
    /// How many sightings did not fit.
    pub left_out: u64,
    /// From when on packets that merely passed are missing.
    pub sampled_since_ns: Option<u64>,
    /// How many of `sightings` are of passing data, by direction.
    passing: [usize; 2],
}

/// The five-tuples of one flow: one, or those that it was translated into as well.
#[derive(Debug)]
pub struct FlowGroup<'a> {
    key: FlowKey,
    events: Vec<&'a FlowEvents>,
    translations: HashMap<FiveTuple, Vec<FiveTuple>>,
}

impl<'a> FlowGroup<'a> {
    /// What [`FlowTable::forget`] knows it by.
    pub const fn key(&self) -> FlowKey {
        self.key
    }

    /// Every packet, in no order.
    pub fn sightings(&self) -> impl Iterator<Item = &'a Sighting> {
        self.events.iter().flat_map(|events| &events.sightings)
    }

    /// What every socket said, in no order.
    pub fn sockets(&self) -> impl Iterator<Item = &'a SocketSighting> {
        self.events.iter().flat_map(|events| &events.sockets)
    }

    /// Adds to some addresses of packets all that packets of the same direction were translated to or from, as far as
    /// [`TUPLES_MAX`].
    pub fn spread(&self, tuples: &mut Vec<FiveTuple>) {
        let mut next = 0;
        while let Some(known) = tuples.get(next).copied() {
            next += 1;
            let there = self.translations.get(&known).into_iter().flatten();
            let back = self.translations.get(&known.reversed());
            let back = back.into_iter().flatten().map(|tuple| tuple.reversed());
            for new in there.copied().chain(back) {
                if tuples.len() >= TUPLES_MAX {
                    return;
                }
                if !tuples.contains(&new) {
                    tuples.push(new);
                }
            }
        }
    }

    /// Whether something did not fit.
    pub fn left_out(&self) -> bool {
        self.events.iter().any(|events| events.left_out > 0)
    }

    /// From when on packets that merely passed may be missing.
    pub fn sampled_since_ns(&self) -> Option<u64> {
        let since = self.events.iter().filter_map(|each| each.sampled_since_ns);
        since.min()
    }
}

/// A packet in an skb that is still alive.
#[derive(Debug)]
struct Alive {
    tuple: FiveTuple,
    message: Message,
    time_ns: u64,
    hop_limit: u8,
    /// Where it was received, if that is what was seen of it last.
    received_in: Option<NetnsId>,
    ifindex: Option<u32>,
}

impl Alive {
    fn of(sighting: &Sighting) -> Self {
        Self {
            tuple: sighting.tuple,
            message: sighting.message,
            time_ns: sighting.time_ns,
            hop_limit: sighting.hop_limit,
            received_in: sighting.netns.filter(|_| sighting.point == Point::Receive),
            ifindex: sighting.ifindex,
        }
    }

    /// Whether the packet is this one, under other addresses. That the skb and what it says are the same is enough for TCP,
    /// whose sequence numbers are random. Datagrams of equal length say the same, and the skb of one that was delivered
    /// is the next that a process of the same namespace fills; so these must have been routed in between, or have kept
    /// the address of a sender elsewhere.
    fn became(&self, sighting: &Sighting) -> bool {
        let is_tcp = matches!(sighting.message, Message::Tcp(_));
        let waits_ns = if is_tcp {
            SEGMENT_WAITS_NS
        } else {
            DATAGRAM_WAITS_NS
        };
        if self.tuple == sighting.tuple
            || self.message != sighting.message
            || sighting.time_ns.abs_diff(self.time_ns) >= waits_ns
        {
            return false;
        }
        if is_tcp {
            return true;
        }
        let came_in_here = self.received_in.is_some() && self.received_in == sighting.netns;
        let arrives = sighting.point == Point::Receive;
        // What was routed leaves: that which arrives a hop shorter is another packet, in the skb of one that was cloned for
        // the room of a tunnel's header and freed.
        let routed = !arrives && self.hop_limit.checked_sub(1) == Some(sighting.hop_limit);
        let dies = matches!(sighting.point, Point::Drop(_));
        // A bridge that calls PREROUTING itself (br_netfilter) hands on what was translated as its own.
        let handed_on = arrives && self.ifindex != sighting.ifindex;
        came_in_here && (routed || (dies || handed_on) && self.tuple.src == sighting.tuple.src)
    }
}

/// A driver that refused a packet.
#[derive(Debug)]
pub struct Refusal {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The CPU that saw it.
    pub cpu: u16,
    /// Orders what one CPU saw.
    pub sequence: u32,
    /// The namespace of the device.
    pub netns: Option<NetnsId>,
    /// The device.
    pub ifindex: Option<u32>,
    /// The skb.
    pub skb: SkbId,
    /// The skb's length as it was handed over.
    pub len_bytes: Option<u32>,
    /// What the driver returned.
    pub result: i32,
}

impl Refusal {
    /// Whether it is the driver's answer to this transmission, seen on the same CPU. The transmission of another packet
    /// in the same skb may be remembered instead, if this one's was not selected or was held back.
    fn answers(&self, xmit: &Sighting) -> bool {
        xmit.skb == self.skb
            && xmit.ifindex == self.ifindex
            && xmit.netns == self.netns
            && self.len_bytes.is_none_or(|len| len == xmit.skb_len)
            && self.time_ns.abs_diff(xmit.time_ns) < REFUSED_WITHIN_NS
    }
}

impl Alive {
    /// Whether the packet is this one, routed, under other addresses and in another skb: where there is no room for the
    /// header of a tunnel, `skb_expand_head` clones what has no socket. TCP leaves
    /// room enough. To be called with the last that the CPU saw.
    fn was_cloned_into(&self, sighting: &Sighting) -> bool {
        let (one, other) = (self.tuple, sighting.tuple);
        let keeps_a_port = one.src.port() == other.src.port() || one.dst.port() == other.dst.port();
        keeps_a_port && self.just_preceded(sighting) && self.became(sighting)
    }

    /// Whether it is this packet that a device is handed, or that dies before, as it was. Its skb may be a clone, at the
    /// address of one that is remembered and was freed.
    fn goes_on_as(&self, sighting: &Sighting) -> bool {
        self.tuple == sighting.tuple
            && self.message == sighting.message
            && self.just_preceded(sighting)
    }

    fn just_preceded(&self, sighting: &Sighting) -> bool {
        matches!(sighting.point, Point::Xmit | Point::Drop(_))
            && !matches!(sighting.message, Message::Tcp(_))
            && self.time_ns <= sighting.time_ns
            && sighting.time_ns - self.time_ns < CLONED_WITHIN_NS
    }
}

/// The flows.
#[derive(Debug, Default)]
pub struct FlowTable {
    flows: BTreeMap<FlowKey, FlowEvents>,
    /// Five-tuples that are one flow: each names another of it, but for one that names none.
    same_flow: HashMap<FlowKey, FlowKey>,
    /// The addresses of one packet before and after, for each two five-tuples that were joined.
    translations: Vec<(FiveTuple, FiveTuple)>,
    /// Where packets were seen last, and the skbs in the order in which they came.
    alive: HashMap<SkbId, Alive>,
    alive_order: VecDeque<SkbId>,
    /// What each CPU saw last.
    last_on: HashMap<u16, Alive>,
    sightings: usize,
    /// Flows and sightings that did not fit.
    table_full: u64,
    /// Packets of busy flows that were seen passing and not kept.
    rate_limited: u64,
    last_xmits: HashMap<u16, VecDeque<(FlowKey, Sighting)>>,
}

impl FlowTable {
    /// Files a packet.
    pub fn push(&mut self, sighting: Sighting) {
        let key = sighting.tuple.key();
        if sighting.point == Point::Xmit {
            let recent = self.last_xmits.entry(sighting.cpu).or_default();
            if recent.len() == XMITS_REMEMBERED {
                recent.pop_front();
            }
            recent.push_back((key, sighting.clone()));
        }
        // Also what an ICMP error quotes: that is translated with the error's own addresses.
        self.follow_translation(key, &sighting);
        self.insert(key, sighting);
    }

    /// Joins two five-tuples if the packet was seen with the other one just before, in the same skb.
    fn follow_translation(&mut self, key: FlowKey, sighting: &Sighting) {
        let last = self.last_on.get(&sighting.cpu);
        let same_skb = self.alive.get(&sighting.skb);
        let before = if last.is_some_and(|last| last.goes_on_as(sighting)) {
            None
        } else {
            last.filter(|last| last.was_cloned_into(sighting))
                .or_else(|| same_skb.filter(|before| before.became(sighting)))
                .map(|before| before.tuple)
        };
        self.last_on.insert(sighting.cpu, Alive::of(sighting));
        if let Some(before) = before {
            let (one, other) = (self.root_of(before.key()), self.root_of(key));
            if one != other {
                self.translations.push((before, sighting.tuple));
                self.same_flow.insert(one.max(other), one.min(other));
            }
        }
        if matches!(sighting.point, Point::Drop(_) | Point::Consume) {
            // The address is free now, and will be another packet's.
            self.alive.remove(&sighting.skb);
            return;
        }
        if self
            .alive
            .insert(sighting.skb, Alive::of(sighting))
            .is_none()
        {
            self.alive_order.push_back(sighting.skb);
            if self.alive_order.len() > ALIVE_MAX
                && let Some(oldest) = self.alive_order.pop_front()
            {
                self.alive.remove(&oldest);
            }
        }
    }

    /// The smallest key of the flow. What was asked is remembered, so that no chain is walked twice.
    fn root_of(&mut self, key: FlowKey) -> FlowKey {
        let mut root = key;
        // Each step leads to a smaller key, so it ends.
        while let Some(other) = self.same_flow.get(&root) {
            root = *other;
        }
        if root != key {
            self.same_flow.insert(key, root);
        }
        root
    }

    /// Notes that from now on the kernel half may hold back what passes of a flow, as [`tracer_common::budget`] says.
    pub fn note_sampled(&mut self, key: FlowKey, time_ns: u64) {
        if let Some(flow) = self.flows.get_mut(&key) {
            flow.sampled_since_ns.get_or_insert(time_ns);
        }
    }

    /// Files a driver's refusal with the transmission that it answers; a refusal of a packet that was not selected is nobody's.
    pub fn push_refusal(&mut self, refusal: &Refusal) {
        let Some(recent) = self.last_xmits.get(&refusal.cpu) else {
            return;
        };
        let Some((key, xmit)) = recent.iter().rev().find(|(_, xmit)| refusal.answers(xmit)) else {
            return;
        };
        let (key, mut refused) = (*key, xmit.clone());
        self.note_result(key, &refused, refusal.result);
        refused.time_ns = refusal.time_ns;
        refused.sequence = refusal.sequence;
        refused.point = Point::Refused(refusal.result);
        self.insert(key, refused);
    }

    /// The packets of one five-tuple that were kept, in the order of arrival.
    pub fn sightings(&self, key: FlowKey) -> &[Sighting] {
        self.flows.get(&key).map_or(&[], |flow| &flow.sightings)
    }

    /// On which device a packet came into the namespace that it now leaves, and which sender it had there, if it is
    /// forwarded; to be called before the departure is filed.
    pub fn received_as(&self, left: &Sighting) -> Option<(u32, SocketAddr)> {
        let before = self.alive.get(&left.skb)?;
        let is_this = before.message == left.message && before.received_in == Some(left.netns?);
        Some((before.ifindex?, before.tuple.src)).filter(|_| is_this)
    }

    /// Tells the free that a refusal led to what the driver returned.
    fn note_result(&mut self, key: FlowKey, xmit: &Sighting, result: i32) {
        let Some(flow) = self.flows.get_mut(&key) else {
            return;
        };
        let since = flow.sightings.iter_mut().rev();
        let mut since = since.take_while(|seen| seen.time_ns >= xmit.time_ns);
        let dead = since.find_map(|seen| match &mut seen.point {
            Point::Drop(death) if seen.skb == xmit.skb => Some(death),
            _ => None,
        });
        if let Some(death) = dead {
            death.result.get_or_insert(result);
        }
    }

    /// Files what a socket said, if its flow is one that is watched already or one that begins here.
    pub fn push_socket(&mut self, key: FlowKey, socket: SocketSighting) {
        if self.is_full_for(key) {
            self.table_full += 1;
            return;
        }
        let flow = self.flows.entry(key).or_default();
        if flow.sockets.len() < SIGHTINGS_MAX {
            flow.sockets.push(socket);
        } else {
            flow.left_out += 1;
            self.table_full += 1;
        }
    }

    /// Flows and sightings that did not fit.
    pub const fn table_full(&self) -> u64 {
        self.table_full
    }

    /// Sightings of passing packets beyond what a flow keeps of them.
    pub const fn rate_limited(&self) -> u64 {
        self.rate_limited
    }

    /// How many flows there are.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Every flow with all its five-tuples, in a fixed order.
    pub fn groups(&self) -> impl Iterator<Item = FlowGroup<'_>> {
        let mut roots: HashMap<FlowKey, FlowKey> = HashMap::new();
        let mut groups: BTreeMap<FlowKey, FlowGroup<'_>> = BTreeMap::new();
        for (key, events) in &self.flows {
            // Smaller keys came before, and know their root.
            let mut root = *key;
            while let Some(other) = self.same_flow.get(&root) {
                root = *other;
                if let Some(known) = roots.get(&root) {
                    root = *known;
                    break;
                }
            }
            roots.insert(*key, root);
            let group = groups.entry(root).or_insert_with(|| FlowGroup {
                key: root,
                events: Vec::new(),
                translations: HashMap::new(),
            });
            group.events.push(events);
        }
        for (one, other) in &self.translations {
            // What was translated while the table was full has no group.
            let root = roots.get(&one.key());
            if let Some(group) = root.and_then(|root| groups.get_mut(root)) {
                let known = &mut group.translations;
                known.entry(*one).or_default().push(*other);
                known.entry(*other).or_default().push(*one);
            }
        }
        groups.into_values()
    }

    /// Forgets these flows with all their five-tuples: what a live view has no more use for.
    pub fn forget(&mut self, groups: &BTreeSet<FlowKey>) {
        let keys: Vec<FlowKey> = self.flows.keys().copied().collect();
        let gone: Vec<FlowKey> = keys
            .into_iter()
            .filter(|key| groups.contains(&self.root_of(*key)))
            .collect();
        for key in gone {
            if let Some(events) = self.flows.remove(&key) {
                self.sightings -= events.sightings.len();
            }
            self.same_flow.remove(&key);
        }
        let flows = &self.flows;
        self.translations
            .retain(|(one, _)| flows.contains_key(&one.key()));
    }

    fn is_full_for(&self, key: FlowKey) -> bool {
        self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&key)
    }

    fn insert(&mut self, key: FlowKey, sighting: Sighting) {
        if self.sightings >= SIGHTINGS_TOTAL_MAX || self.is_full_for(key) {
            self.table_full += 1;
            return;
        }
        let decides = sighting.segment().is_syn()
            || sighting.segment().is_syn_ack()
            || sighting.segment().is_reset()
            || sighting.icmp.is_some()
            || !matches!(sighting.point, Point::Xmit | Point::Receive);
        let flow = self.flows.entry(key).or_default();
        let passing = &mut flow.passing[usize::from(sighting.tuple.src <= sighting.tuple.dst)];
        if !decides && *passing >= PASSING_MAX {
            flow.sampled_since_ns.get_or_insert(sighting.time_ns);
            self.rate_limited += 1;
        } else if flow.sightings.len() >= SIGHTINGS_MAX {
            flow.left_out += 1;
            self.table_full += 1;
        } else {
            *passing += usize::from(!decides);
            flow.sightings.push(sighting);
            self.sightings += 1;
        }
    }
}
