//! Sorts what has no connections into requests and what answers them: DNS by its identifier, ICMP echo by its sequence
//! number, any other UDP by its ports alone.

use std::collections::HashMap;

use super::{Flow, is_forward, nearest_to_client};
use crate::flow::copies::transmissions;
use crate::flow::table::FlowGroup;
use crate::flow::{Datagram, Echo, FiveTuple, Message, Sighting};

/// Services have ports below this one, and what asks them seldom has.
const PRIVILEGED_PORTS: u16 = 1024;

/// An exchange while its packets are being sorted.
struct Exchange<'a> {
    number: Option<u32>,
    start_ns: u64,
    /// As in [`Flow`].
    forward: Vec<FiveTuple>,
    requests: Vec<&'a Sighting>,
    replies: Vec<&'a Sighting>,
    errors: Vec<&'a Sighting>,
    errors_back: Vec<&'a Sighting>,
}

impl<'a> Exchange<'a> {
    fn new(number: Option<u32>, first: &Sighting, group: &FlowGroup<'a>) -> Self {
        // An ICMP error comes back to who asked, and quotes what was asked.
        let answers = first.icmp.is_none() && is_answer(first);
        let mut forward = vec![if answers {
            first.tuple.reversed()
        } else {
            first.tuple
        }];
        group.spread(&mut forward);
        Self {
            number,
            start_ns: first.time_ns,
            forward,
            requests: Vec::new(),
            replies: Vec::new(),
            errors: Vec::new(),
            errors_back: Vec::new(),
        }
    }

    fn push(&mut self, sighting: &'a Sighting) {
        let from_client = is_forward(sighting, &self.forward);
        match (sighting.icmp.is_some(), from_client) {
            (false, true) => &mut self.requests,
            (false, false) => &mut self.replies,
            (true, true) => &mut self.errors,
            (true, false) => &mut self.errors_back,
        }
        .push(sighting);
    }

    fn finish(self, group: &FlowGroup<'a>) -> Flow<'a> {
        let sampled_since_ns = group.sampled_since_ns();
        let sampled = sampled_since_ns.is_some();
        let request = transmissions(self.requests, sampled);
        let reply = transmissions(self.replies, sampled);
        let nearest = nearest_to_client(&request, reply.iter()).unwrap_or(self.forward[0]);
        Flow {
            protocol: nearest.protocol,
            number: self.number,
            client: nearest.src,
            server: nearest.dst,
            forward: self.forward,
            request,
            reply,
            ack: Vec::new(),
            refusals: Vec::new(),
            resets: Vec::new(),
            errors: self.errors,
            errors_back: self.errors_back,
            data: Vec::new(),
            sockets: Vec::new(),
            left_out: group.left_out(),
            sampled_since_ns,
        }
    }
}

/// The exchanges of a group of five-tuples, oldest first.
pub(super) fn exchanges<'a>(group: &FlowGroup<'a>) -> Vec<Flow<'a>> {
    let mut sightings: Vec<&Sighting> = group.sightings().collect();
    sightings.sort_by_key(|sighting| sighting.order());

    let mut known: HashMap<Option<u32>, usize> = HashMap::new();
    let mut exchanges: Vec<Exchange<'_>> = Vec::new();
    let (errors, packets): (Vec<&Sighting>, Vec<&Sighting>) = sightings
        .into_iter()
        .partition(|sighting| sighting.icmp.is_some());
    for sighting in packets {
        let number = number(sighting.message);
        let index = *known.entry(number).or_insert(exchanges.len());
        if index == exchanges.len() {
            exchanges.push(Exchange::new(number, sighting, group));
        }
        exchanges[index].push(sighting);
    }
    for error in errors {
        let number = number(error.message);
        // What is quoted may be cut before the number: then it is the latest that can be meant.
        let meant = known.get(&number).copied().or_else(|| {
            exchanges
                .iter()
                .rposition(|exchange| number.is_none() && exchange.start_ns <= error.time_ns)
        });
        let index = meant.unwrap_or_else(|| {
            known.insert(number, exchanges.len());
            exchanges.push(Exchange::new(number, error, group));
            exchanges.len() - 1
        });
        exchanges[index].push(error);
    }
    exchanges.sort_by_key(|exchange| exchange.start_ns);
    exchanges
        .into_iter()
        .map(|exchange| exchange.finish(group))
        .collect()
}

fn number(message: Message) -> Option<u32> {
    match message {
        Message::Udp(Datagram { dns, .. }) => dns.map(|dns| u32::from(dns.id)),
        Message::Echo(Echo { seq, .. }) => Some(u32::from(seq)),
        Message::Tcp(_) => None,
    }
}

/// Whether the packet says, itself or by its ports, that it goes back to who asked. Where nothing tells, whoever is
/// seen first has asked.
fn is_answer(sighting: &Sighting) -> bool {
    sighting.message.is_answer().unwrap_or_else(|| {
        let (src, dst) = (sighting.tuple.src.port(), sighting.tuple.dst.port());
        src < PRIVILEGED_PORTS && dst >= PRIVILEGED_PORTS
    })
}
