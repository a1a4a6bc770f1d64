//! Files sightings by flow, within bounds. What does not fit is counted, never silently left out.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::{FlowKey, Point, Sighting, SocketSighting};
use crate::event::SkbId;

/// The most flows that are kept at once.
pub const FLOWS_MAX: usize = 65_536;
/// The most sightings of data that one flow keeps; what opens, refuses or ends it is kept up to twice as many.
pub const SIGHTINGS_MAX: usize = 1_024;
/// The most sightings that all flows keep together (about 200 bytes each).
pub const SIGHTINGS_TOTAL_MAX: usize = 2_000_000;
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
}

/// The flows.
#[derive(Debug, Default)]
pub struct FlowTable {
    flows: BTreeMap<FlowKey, FlowEvents>,
    sightings: usize,
    /// Flows and sightings that did not fit.
    table_full: u64,
    last_xmits: HashMap<u16, VecDeque<(SkbId, FlowKey, Sighting)>>,
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
            recent.push_back((sighting.skb, key, sighting.clone()));
        }
        self.insert(key, sighting);
    }

    /// Files a driver's refusal with the transmission that it answers; a refusal of a packet that was not selected is nobody's.
    pub fn push_refusal(
        &mut self,
        time_ns: u64,
        cpu: u16,
        sequence: u32,
        ifindex: Option<u32>,
        skb: SkbId,
        result: i32,
    ) {
        let Some(recent) = self.last_xmits.get(&cpu) else {
            return;
        };
        let Some((_, key, xmit)) = recent
            .iter()
            .rev()
            .find(|(id, _, xmit)| *id == skb && xmit.ifindex == ifindex)
        else {
            return;
        };
        let (key, mut refused) = (*key, xmit.clone());
        refused.time_ns = time_ns;
        refused.sequence = sequence;
        refused.point = Point::Refused(result);
        self.insert(key, refused);
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

    /// How many flows there are.
    pub fn len(&self) -> usize {
        self.flows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Every flow, in the order of its key.
    pub fn iter(&self) -> impl Iterator<Item = (&FlowKey, &FlowEvents)> {
        self.flows.iter()
    }

    fn is_full_for(&self, key: FlowKey) -> bool {
        self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&key)
    }

    fn insert(&mut self, key: FlowKey, sighting: Sighting) {
        if self.sightings >= SIGHTINGS_TOTAL_MAX || self.is_full_for(key) {
            self.table_full += 1;
            return;
        }
        let decides = sighting.segment.is_syn()
            || sighting.segment.is_syn_ack()
            || sighting.segment.is_reset()
            || sighting.icmp.is_some()
            || !matches!(sighting.point, Point::Xmit | Point::Receive);
        let flow = self.flows.entry(key).or_default();
        let room = if decides {
            2 * SIGHTINGS_MAX
        } else {
            SIGHTINGS_MAX
        };
        if flow.sightings.len() < room {
            flow.sightings.push(sighting);
            self.sightings += 1;
        } else if decides {
            flow.left_out += 1;
            self.table_full += 1;
        }
        // Data beyond the bound is not a loss: a handshake's verdict never looks that far.
    }
}
