//! Who is behind an end of a flow: which sockets, processes and tun devices there is something to ask about, by what was
//! seen, and what was answered. Reads nothing but events and facts.
//!
//! A client that connects during the trace is named by its own event. Everything else (a listener, a datagram's socket, a
//! connection from before) is asked for once a packet of its shows it, while it is there.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::net::SocketAddr;

use tracer_common::packet::IpProto;

use crate::devices::Devices;
use crate::event::{DeviceId, NetnsId, Process};
use crate::fact::{Container, Fact, Owner, SocketOwner};
use crate::flow::{Point, Sighting, SocketSighting, TcpFlags};
use crate::record::Device;

/// An answer is used for what was seen at most so much earlier or later, and then asked for again.
const VALID_NS: u64 = 10_000_000_000;

/// The most questions that wait.
const WAITING_MAX: usize = 1_024;

/// The most questions that are remembered; beyond that all are forgotten, and asked again.
const REMEMBERED_MAX: usize = 8_192;

/// The most answers of a kind that are kept; beyond that the oldest are forgotten.
const ANSWERS_MAX: usize = 8_192;

/// A socket, by the packets that it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SocketId {
    /// The namespace.
    pub netns: NetnsId,
    /// The IP protocol number.
    pub protocol: u8,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
}

/// What there is to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Whom {
    /// Who has a socket, and the ifindex of the device where a packet of its was seen.
    Socket(SocketId, u32),
    /// In which container a process runs.
    Process(u32),
    /// Who holds a tun device.
    Tun(DeviceId),
}

/// Answers in the order in which they came, the oldest forgotten first.
#[derive(Debug)]
struct Answers<K, V> {
    by_key: HashMap<K, VecDeque<V>>,
    order: VecDeque<K>,
}

impl<K, V> Default for Answers<K, V> {
    fn default() -> Self {
        Self {
            by_key: HashMap::new(),
            order: VecDeque::new(),
        }
    }
}

impl<K: Copy + Eq + Hash, V> Answers<K, V> {
    fn push(&mut self, key: K, value: V) {
        if self.order.len() >= ANSWERS_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some(values) = self.by_key.get_mut(&oldest)
        {
            values.pop_front();
            if values.is_empty() {
                self.by_key.remove(&oldest);
            }
        }
        self.order.push_back(key);
        self.by_key.entry(key).or_default().push_back(value);
    }

    fn of(&self, key: K) -> impl Iterator<Item = &V> {
        self.by_key.get(&key).into_iter().flatten()
    }
}

/// A socket as its own namespace knows it.
type LocalEnd = (NetnsId, u8, SocketAddr);

/// A question that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    whom: Whom,
    /// When it was raised.
    time_ns: u64,
    /// Whether a listener would be an answer as well.
    begins: bool,
}

/// The questions and the answers.
#[derive(Debug, Default)]
pub struct Owners {
    waiting: VecDeque<Waiting>,
    /// When each question was raised last.
    raised: HashMap<Whom, u64>,
    /// The sockets that need no question, and since when.
    settled: HashMap<SocketId, u64>,
    sockets: Answers<LocalEnd, SocketOwner>,
    processes: Answers<u32, (u64, Owner)>,
    tuns: Answers<DeviceId, (u64, Owner)>,
}

impl Owners {
    /// Notes whose packet it is, where it is one of a socket in the namespace where it was seen, and through which tun
    /// device it left.
    pub fn note(&mut self, sighting: &Sighting, devices: &Devices) {
        let (Some(netns), Some(ifindex)) = (sighting.netns, sighting.ifindex) else {
            return;
        };
        let tuple = sighting.tuple;
        let question = |whom, begins| Waiting {
            whom,
            time_ns: sighting.time_ns,
            begins,
        };
        let device = DeviceId { netns, ifindex };
        if sighting.point == Point::Xmit && devices.get(device).is_some_and(is_tun) {
            self.raise(question(Whom::Tun(device), false));
        }
        // What is in a tunnel is not at a socket, and what an ICMP error quotes is not there at all.
        let is_udp = tuple.protocol == IpProto::Udp as u8;
        let has_socket = sighting.icmp.is_none()
            && sighting.tunnels.is_empty()
            && (is_udp || tuple.protocol == IpProto::Tcp as u8);
        if !has_socket {
            return;
        }
        let begins = is_udp || sighting.segment().flags.has(TcpFlags::SYN);
        for (local, remote) in [(tuple.src, tuple.dst), (tuple.dst, tuple.src)] {
            // A socket that is bound to every address would be found for any address.
            if local.ip().is_loopback() || devices.is_local(netns, local.ip()) {
                let socket = SocketId {
                    netns,
                    protocol: tuple.protocol,
                    local,
                    remote,
                };
                self.raise(question(Whom::Socket(socket, ifindex), begins));
            }
        }
    }

    /// Notes that a socket has told its own process; where that runs is not known by that.
    pub fn note_socket(&mut self, seen: &SocketSighting) {
        let (Some(netns), Some(process)) = (seen.netns, &seen.socket.process) else {
            return;
        };
        let tuple = seen.tuple();
        let socket = SocketId {
            netns,
            protocol: tuple.protocol,
            local: tuple.src,
            remote: tuple.dst,
        };
        self.settle(socket, seen.time_ns);
        self.raise(Waiting {
            whom: Whom::Process(process.pid),
            time_ns: seen.time_ns,
            begins: false,
        });
    }

    /// Remembers a question, unless it was raised a moment ago or needs no asking.
    fn raise(&mut self, question: Waiting) {
        let again = self.raised.get(&question.whom);
        let fresh = again.is_none_or(|last| question.time_ns.abs_diff(*last) >= VALID_NS);
        if !fresh || self.waiting.len() >= WAITING_MAX || !self.is_open(&question) {
            return;
        }
        if self.raised.len() >= REMEMBERED_MAX {
            self.raised.clear();
        }
        self.raised.insert(question.whom, question.time_ns);
        self.waiting.push_back(question);
    }

    /// Whether nothing answers a question yet. Many connections begin at one listener.
    fn is_open(&mut self, question: &Waiting) -> bool {
        let Whom::Socket(socket, _) = question.whom else {
            return true;
        };
        let time_ns = question.time_ns;
        let near = |other_ns: u64| other_ns.abs_diff(time_ns) < VALID_NS;
        if self.settled.get(&socket).copied().is_some_and(near) {
            return false;
        }
        let by_listener = |answer: &SocketOwner| answer.remote.is_none() && near(answer.asked_ns);
        let is_known = question.begins && self.sockets.of(local_end(&socket)).any(by_listener);
        if is_known {
            // Nor do the packets that follow raise it.
            self.settle(socket, time_ns);
        }
        !is_known
    }

    fn settle(&mut self, socket: SocketId, time_ns: u64) {
        if self.settled.len() >= REMEMBERED_MAX {
            self.settled.clear();
        }
        self.settled.insert(socket, time_ns);
    }

    /// Takes an answer; whether the fact is one.
    pub fn learn(&mut self, fact: &Fact) -> bool {
        match fact {
            Fact::Socket(socket) => {
                let socket = SocketOwner::clone(socket);
                self.sockets
                    .push((socket.netns, socket.protocol, socket.local), socket);
            }
            Fact::Process { asked_ns, owner } => {
                self.processes
                    .push(owner.process.pid, (*asked_ns, owner.clone()));
            }
            Fact::Tun {
                device,
                asked_ns,
                owner,
            } => self.tuns.push(*device, (*asked_ns, owner.clone())),
            _ => return false,
        }
        true
    }

    /// The question that waits longest, and that nothing has answered meanwhile.
    pub fn take(&mut self) -> Option<Whom> {
        while let Some(question) = self.waiting.pop_front() {
            if self.is_open(&question) {
                return Some(question.whom);
            }
        }
        None
    }

    /// Who had the socket with these ends while something was seen of it.
    pub fn of_socket(&self, socket: &SocketId, during_ns: (u64, u64)) -> Option<&SocketOwner> {
        self.sockets
            .of(local_end(socket))
            .filter(|answer| answer.remote.is_none_or(|remote| remote == socket.remote))
            .map(|answer| (answer, distance_ns(answer.asked_ns, during_ns)))
            .filter(|(_, distance_ns)| *distance_ns <= VALID_NS)
            .min_by_key(|(answer, distance_ns)| (answer.remote.is_none(), *distance_ns))
            .map(|(answer, _)| answer)
    }

    /// Where a process ran that an event named.
    pub fn container_of(&self, process: &Process, during_ns: (u64, u64)) -> Option<&Container> {
        // Ids are used again, for processes with other names mostly.
        let same = self.processes.of(process.pid);
        let same = same.filter(|(_, owner)| owner.process.comm == process.comm);
        let (_, owner) = nearest(same, during_ns)?;
        owner.container.as_ref()
    }

    /// Who held a tun device, and when that was asked.
    pub fn of_tun(&self, device: DeviceId, during_ns: (u64, u64)) -> Option<(u64, &Owner)> {
        nearest(self.tuns.of(device), during_ns)
    }
}

fn is_tun(device: &Device) -> bool {
    device.kind == "tun"
}

const fn local_end(socket: &SocketId) -> LocalEnd {
    (socket.netns, socket.protocol, socket.local)
}

fn nearest<'a>(
    answers: impl Iterator<Item = &'a (u64, Owner)>,
    during_ns: (u64, u64),
) -> Option<(u64, &'a Owner)> {
    answers
        .map(|(asked_ns, owner)| (*asked_ns, owner))
        .filter(|(asked_ns, _)| distance_ns(*asked_ns, during_ns) <= VALID_NS)
        .min_by_key(|(asked_ns, _)| distance_ns(*asked_ns, during_ns))
}

/// How far a moment is from a span of time.
const fn distance_ns(moment_ns: u64, (first_ns, last_ns): (u64, u64)) -> u64 {
    first_ns
        .saturating_sub(moment_ns)
        .saturating_add(moment_ns.saturating_sub(last_ns))
}

#[cfg(test)]
#[path = "owners_tests.rs"]
mod tests;
