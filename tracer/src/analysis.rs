//! Takes the record stream, one record after another, and holds all that a report is made of. It reads no clock:
//! the times are in the records.

use std::collections::VecDeque;
use std::net::SocketAddr;

use tracer_common::packet::{IpProto, TunnelPorts};

use crate::decode;
use crate::devices::Devices;
use crate::event::{Event, What};
use crate::flow::table::{FlowTable, Refusal};
use crate::flow::{FiveTuple, SocketSighting};
use crate::owners::Owners;
use crate::record::{ClockPair, Fact, Header, Ledger, Record, StoppedBy, Trailer};
use crate::verdict::question::Questions;

/// The most ledger records that are kept: one for each time that something was lost, and the latest.
const LEDGERS_MAX: usize = 4_096;

/// The most answers that are kept; a live view asks for days.
const ANSWERS_MAX: usize = 2_048;

/// Everything that the records said.
#[derive(Debug)]
pub struct Analysis {
    /// Who watched what.
    pub header: Header,
    /// The devices.
    pub devices: Devices,
    /// The flows.
    pub flows: FlowTable,
    /// The ledger whenever something was lost since the one before, and the latest, oldest first.
    pub ledgers: Vec<Ledger>,
    /// The counters that moved.
    pub facts: Vec<Fact>,
    /// What the kernel answered, oldest first.
    pub answers: VecDeque<Fact>,
    /// What there is to ask it, while it can be asked.
    pub questions: Questions,
    /// Who is behind the ends of the flows.
    pub owners: Owners,
    /// Clock pairs, oldest first.
    pub clocks: Vec<ClockPair>,
    /// The end, once it is known.
    pub trailer: Option<Trailer>,
    /// Records that a capture held and that could not be read.
    pub unreadable_records: u64,
    ports: TunnelPorts,
    last_event_ns: u64,
}

impl Analysis {
    /// Begins with the header of the stream.
    pub fn new(header: Header) -> Self {
        Self {
            devices: Devices::watched_at(&header.tc_devices),
            header,
            flows: FlowTable::default(),
            ledgers: Vec::new(),
            facts: Vec::new(),
            answers: VecDeque::new(),
            questions: Questions::default(),
            owners: Owners::default(),
            clocks: Vec::new(),
            trailer: None,
            unreadable_records: 0,
            ports: TunnelPorts::NONE,
            last_event_ns: 0,
        }
    }

    /// Takes the next record. A second header is ignored.
    pub fn push(&mut self, record: &Record) {
        match record {
            Record::Header(_) => {}
            Record::Device(device) => {
                if let Some((port, tunnel)) = crate::devices::tunnel_port(device)
                    && self.ports.lookup(port) != tunnel
                {
                    self.ports.declare(port, tunnel);
                    self.devices.learn_tunnel(device.id, self.last_event_ns);
                }
                self.devices.push(device);
            }
            Record::Event(event) => self.push_event(event),
            Record::Fact(fact @ (Fact::Counter { .. } | Fact::DeviceCounter { .. })) => {
                self.facts.push(fact.clone());
            }
            Record::Fact(fact) if self.owners.learn(fact) => {}
            Record::Fact(answer) => {
                if self.answers.len() >= ANSWERS_MAX {
                    self.answers.pop_front();
                }
                self.answers.push_back(answer.clone());
            }
            Record::Ledger(ledger) => self.push_ledger(*ledger),
            Record::Clock(pair) => self.clocks.push(*pair),
            Record::Trailer(trailer) => self.trailer = Some(*trailer),
        }
    }

    /// Whether a VXLAN or Geneve device receives on this UDP port. A datagram tells whether it is WireGuard's.
    pub fn is_tunnel_port(&self, port: u16) -> bool {
        self.ports.lookup(port).has_vni()
    }

    /// When the window ended, and why: by the trailer, or where the stream was cut, by its last event.
    pub fn end(&self) -> Trailer {
        self.trailer.unwrap_or(Trailer {
            end_ns: self.last_event_ns.max(self.header.start_ns),
            stopped_by: StoppedBy::Cut,
        })
    }

    /// The ledger as of the end, with what was lost on this side added.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = self.ledgers.last().copied().unwrap_or_default();
        ledger.table_full = ledger.table_full.saturating_add(self.flows.table_full());
        ledger.rate_limited = ledger
            .rate_limited
            .saturating_add(self.flows.rate_limited());
        ledger.undecodable = ledger.undecodable.saturating_add(self.unreadable_records);
        ledger
    }

    fn push_event(&mut self, event: &Event) {
        self.last_event_ns = self.last_event_ns.max(event.time_ns);
        match &event.what {
            What::Xmit { skb }
            | What::Receive { skb }
            | What::Consume { skb }
            | What::Drop { skb, .. } => {
                if let Some(sighting) = decode::sighting(event, &self.ports) {
                    let watched = sighting
                        .netns
                        .is_some_and(|netns| self.header.view.contains(netns));
                    if watched {
                        self.questions.note(&sighting, &self.flows, &self.devices);
                        self.owners.note(&sighting, &self.devices);
                    }
                    let (key, time_ns) = (sighting.tuple.key(), sighting.time_ns);
                    self.flows.push(sighting);
                    if skb.budget_spent {
                        self.flows.note_sampled(key, time_ns);
                    }
                }
            }
            What::XmitFailed {
                skb,
                result,
                len_bytes,
            } => self.flows.push_refusal(&Refusal {
                time_ns: event.time_ns,
                cpu: event.cpu,
                sequence: event.sequence,
                netns: event.netns,
                ifindex: event.ifindex,
                skb: *skb,
                len_bytes: *len_bytes,
                result: *result,
            }),
            What::Socket { hook, socket } => {
                let tuple = FiveTuple {
                    protocol: IpProto::Tcp as u8,
                    src: SocketAddr::new(socket.local_addr, socket.local_port),
                    dst: SocketAddr::new(socket.remote_addr, socket.remote_port),
                };
                if socket.remote_port != 0 {
                    let seen = SocketSighting {
                        time_ns: event.time_ns,
                        cpu: event.cpu,
                        sequence: event.sequence,
                        netns: event.netns,
                        hook: *hook,
                        socket: socket.clone(),
                    };
                    self.owners.note_socket(&seen);
                    self.flows.push_socket(tuple.key(), seen);
                }
            }
        }
    }

    fn push_ledger(&mut self, ledger: Ledger) {
        // The one before the last is needed only if something was lost between it and this one.
        if let [.., before, last] = self.ledgers.as_slice()
            && (before.lost() == last.lost() || self.ledgers.len() >= LEDGERS_MAX)
        {
            self.ledgers.pop();
        }
        self.ledgers.push(ledger);
    }

    /// Whether a ledger says more of what was lost than the last one did, or is the first.
    pub fn is_news(&self, ledger: &Ledger) -> bool {
        self.ledgers
            .last()
            .is_none_or(|last| last.lost() != ledger.lost())
    }

    /// Whether something was lost that could have been an event of the time from `since_ns` to `until_ns`.
    pub fn lost_between(&self, since_ns: u64, until_ns: u64) -> bool {
        let mut before = Ledger {
            time_ns: self.header.start_ns,
            ..Ledger::default()
        };
        for ledger in &self.ledgers {
            if ledger.lost() > before.lost()
                && before.time_ns <= until_ns
                && ledger.time_ns >= since_ns
            {
                return true;
            }
            before = *ledger;
        }
        self.unreadable_records > 0
    }
}
