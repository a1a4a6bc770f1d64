//! Which process holds a socket or the other end of a tun device. The kernel is asked at once which socket it is, while the
//! socket is there; the helper is asked who holds it, which takes it up to seconds, and answers in its own time.

use std::{
    collections::{BTreeMap, HashMap},
    mem,
    time::{Duration, Instant},
};

use tracer_common::packet::IpProto;

use crate::{
    event::DeviceId,
    fact::{Fact, Owner, SocketOwner},
    owners::{SocketId, Whom},
};

use super::{
    Topology,
    processes::{self, Holders, Search, TunHolder, WANTED_MAX},
    sockdiag::Ends,
};

/// The most sockets whose holders are not known yet.
const WAITING_MAX: usize = 1_024;

/// How long it is believed that a process still holds a socket that it held.
const HELD_FOR: Duration = Duration::from_secs(5);

/// The most holders that are remembered; beyond that all are forgotten, and asked for again.
const HELD_MAX: usize = 1_024;

/// Of all the time, the helper searches for at most one part in this many.
const SEARCH_PAUSE: u32 = 10;

/// A socket that was found, and its owner was not yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ownerless {
    asked_ns: u64,
    socket: SocketId,
    connected: bool,
}

impl Ownerless {
    fn owned_by(self, owner: Owner) -> Fact {
        let SocketId {
            netns,
            protocol,
            local,
            remote,
        } = self.socket;
        Fact::Socket(Box::new(SocketOwner {
            netns,
            asked_ns: self.asked_ns,
            protocol,
            local,
            remote: self.connected.then_some(remote),
            owner,
        }))
    }
}

/// What is looked for.
#[derive(Debug, Default)]
struct Wanted {
    /// By inode number.
    sockets: BTreeMap<u32, Vec<Ownerless>>,
    /// And when it was asked for (CLOCK_MONOTONIC).
    pids: BTreeMap<u32, u64>,
    tuns: BTreeMap<DeviceId, u64>,
}

impl Wanted {
    fn is_empty(&self) -> bool {
        self.sockets.is_empty() && self.pids.is_empty() && self.tuns.is_empty()
    }
}

/// The holders that are known, and those that are looked for.
#[derive(Debug)]
pub(super) struct Holding {
    /// Not asked for yet.
    wanted: Wanted,
    /// What the helper is looking for.
    sought: Wanted,
    /// By the socket's inode number, and when that was.
    held: HashMap<u32, (Instant, Owner)>,
    found: Vec<Fact>,
    begun: Instant,
    not_before: Instant,
}

impl Holding {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            wanted: Wanted::default(),
            sought: Wanted::default(),
            held: HashMap::new(),
            found: Vec::new(),
            begun: now,
            not_before: now,
        }
    }

    /// What the helper is to be asked now, if anything.
    pub(super) fn search(&mut self, now: Instant) -> Option<Search> {
        if self.wanted.is_empty() || now < self.not_before {
            return None;
        }
        self.begun = now;
        self.sought = Wanted {
            sockets: take_first(&mut self.wanted.sockets),
            pids: take_first(&mut self.wanted.pids),
            tuns: mem::take(&mut self.wanted.tuns),
        };
        let netns = |waiting: &[Ownerless]| waiting.first().map_or(0, |one| one.socket.netns.inum);
        Some(Search {
            sockets: self
                .sought
                .sockets
                .iter()
                .map(|(inode, waiting)| (*inode, netns(waiting)))
                .collect(),
            pids: self.sought.pids.keys().copied().collect(),
            tuns: !self.sought.tuns.is_empty(),
        })
    }

    /// Waits for the holder of a socket, or knows it.
    fn want(&mut self, inode: u32, socket: Ownerless, now: Instant) -> Option<Fact> {
        if let Some((since, owner)) = self.held.get(&inode)
            && now.duration_since(*since) < HELD_FOR
        {
            return Some(socket.owned_by(owner.clone()));
        }
        let waiting: usize = self.wanted.sockets.values().map(Vec::len).sum();
        if waiting < WAITING_MAX {
            let of_socket = self.wanted.sockets.entry(inode).or_default();
            let same =
                |other: &&Ownerless| !socket.connected && other.socket.local == socket.socket.local;
            if !of_socket.iter().any(|other| same(&other)) {
                of_socket.push(socket);
            }
        }
        None
    }
}

/// As many as one search takes.
fn take_first<K: Ord + Clone, V>(wanted: &mut BTreeMap<K, V>) -> BTreeMap<K, V> {
    let rest = match wanted.keys().nth(WANTED_MAX).cloned() {
        Some(first) => wanted.split_off(&first),
        None => BTreeMap::new(),
    };
    mem::replace(wanted, rest)
}

/// Why it is not known who has a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unnamed {
    /// There, processes have other numbers.
    OwnPidNamespace,
    NoHelper,
    /// Of TCP, of UDP or of both.
    NoSockDiag,
}

impl Unnamed {
    pub(super) const fn words(self) -> &'static str {
        match self {
            Self::OwnPidNamespace => "tracer runs in a process namespace of its own",
            Self::NoHelper => "its helper could not be started",
            Self::NoSockDiag => "this kernel cannot be asked for sockets (tcp_diag, udp_diag)",
        }
    }
}

impl Topology {
    /// Why it is not known who has a socket, where that is so.
    pub(super) fn why_unnamed(&mut self) -> Option<Unnamed> {
        if !processes::are_all_visible() {
            return Some(Unnamed::OwnPidNamespace);
        }
        if self.scout.is_none() {
            return Some(Unnamed::NoHelper);
        }
        let buffer = &mut self.buffer;
        let diag = self.namespaces.first_mut()?.diag.as_mut();
        let answers = diag.is_some_and(|diag| {
            [IpProto::Tcp, IpProto::Udp]
                .into_iter()
                .all(|protocol| diag.answers_for(protocol, buffer))
        });
        (!answers).then_some(Unnamed::NoSockDiag)
    }

    /// Asks who is behind something, as of `now_ns` (CLOCK_MONOTONIC). What is known by heart is returned; what is not
    /// comes later, by [`Topology::take_holders`], or never, where a socket is gone or nobody holds it.
    pub fn ask_who(&mut self, whom: Whom, now_ns: u64) -> Option<Fact> {
        if self.scout.is_none() || self.unnamed == Some(Unnamed::OwnPidNamespace) {
            return None;
        }
        match whom {
            Whom::Socket(socket, ifindex) => self.ask_for_socket(socket, ifindex, now_ns),
            Whom::Process(pid) => {
                let pids = &mut self.holding.wanted.pids;
                if pids.len() < WAITING_MAX {
                    pids.entry(pid).or_insert(now_ns);
                }
                None
            }
            Whom::Tun(device) => {
                let tuns = &mut self.holding.wanted.tuns;
                if tuns.len() < WAITING_MAX {
                    tuns.entry(device).or_insert(now_ns);
                }
                None
            }
        }
    }

    fn ask_for_socket(&mut self, socket: SocketId, ifindex: u32, now_ns: u64) -> Option<Fact> {
        let mut namespaces = self.namespaces.iter_mut();
        let netns = namespaces.find(|netns| netns.id == socket.netns)?;
        let ends = Ends {
            protocol: socket.protocol,
            local: socket.local,
            remote: socket.remote,
            ifindex,
        };
        // What the kernel cannot tell is not known.
        let found = netns.diag.as_mut()?.find(ends, &mut self.buffer).ok()??;
        let ownerless = Ownerless {
            asked_ns: now_ns,
            socket,
            connected: found.connected,
        };
        self.holding.want(found.inode, ownerless, Instant::now())
    }

    /// The holders that the helper has found since the last call.
    pub fn take_holders(&mut self) -> Vec<Fact> {
        mem::take(&mut self.holding.found)
    }

    /// Whether there is a helper that may still find some.
    pub fn awaits_holders(&self) -> bool {
        let Holding { wanted, sought, .. } = &self.holding;
        self.scout.is_some() && !(wanted.is_empty() && sought.is_empty())
    }

    /// Waits for the helper, at most so long, and takes over what it says. It is asked for the rest at once.
    pub fn await_holders(&mut self, at_most: Duration) {
        self.holding.not_before = Instant::now();
        self.consult();
        if let Some(scout) = &self.scout
            && scout.wait(at_most).is_ok()
        {
            self.consult();
        }
    }

    /// Takes over what the helper has found.
    pub(super) fn learn_holders(&mut self, holders: Holders) {
        let now = Instant::now();
        let holding = &mut self.holding;
        holding.not_before = now + SEARCH_PAUSE * now.duration_since(holding.begun);
        let sought = mem::take(&mut holding.sought);
        if holding.held.len() + holders.sockets.len() > HELD_MAX {
            holding.held.clear();
        }
        for (inode, owner) in holders.sockets {
            let waiting = sought.sockets.get(&inode).into_iter().flatten();
            let facts = waiting.map(|socket| socket.owned_by(owner.clone()));
            holding.found.extend(facts);
            holding.held.insert(inode, (now, owner));
        }
        for owner in holders.processes {
            if let Some(asked_ns) = sought.pids.get(&owner.process.pid).copied() {
                holding.found.push(Fact::Process { asked_ns, owner });
            }
        }
        for (device, asked_ns) in sought.tuns {
            if let Some(owner) = self.holder_of(device, &holders.tuns).cloned() {
                self.holding.found.push(Fact::Tun {
                    device,
                    asked_ns,
                    owner,
                });
            }
        }
    }

    /// Who holds a tun device, of those that hold one with its name. The kernel does not tell in which namespace the
    /// device is: where there are several, or may be, only a process of the same namespace is believed.
    fn holder_of<'a>(&self, device: DeviceId, holders: &'a [TunHolder]) -> Option<&'a Owner> {
        let name = self.table.device_name(device)?;
        let inside = |holder: &TunHolder| holder.netns == u64::from(device.netns.inum);
        let all_known =
            self.failures.is_empty() && self.incomplete.is_empty() && self.beyond_limit == 0;
        let only_one = all_known && self.table.count_of("tun", name) == 1;
        holders
            .iter()
            .filter(|holder| holder.name == name && (only_one || inside(holder)))
            .min_by_key(|holder| (!inside(holder), holder.owner.process.pid))
            .map(|holder| &holder.owner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{NetnsId, Process};

    const NETNS: NetnsId = NetnsId { inum: 1, cookie: 2 };

    fn ownerless(port: u16, connected: bool) -> Ownerless {
        Ownerless {
            asked_ns: 5,
            socket: SocketId {
                netns: NETNS,
                protocol: 6,
                local: ([10, 0, 0, 1], port).into(),
                remote: ([10, 0, 0, 2], 9).into(),
            },
            connected,
        }
    }

    fn owner(pid: u32) -> Owner {
        Owner {
            process: Process {
                pid,
                comm: "nginx".to_owned(),
            },
            container: None,
        }
    }

    #[test]
    fn one_search_takes_so_many_and_the_next_the_others() {
        let now = Instant::now();
        let mut holding = Holding::new(now);
        for inode in 0..100 {
            assert_eq!(holding.want(inode, ownerless(80, true), now), None);
        }
        assert_eq!(holding.search(now).unwrap().sockets.len(), WANTED_MAX);
        assert_eq!(
            holding.search(now).unwrap().sockets,
            (64..100).map(|inode| (inode, 1)).collect::<Vec<_>>()
        );
        assert_eq!(holding.search(now), None);
    }

    #[test]
    fn a_listener_is_wanted_once_and_each_of_its_addresses_is() {
        let now = Instant::now();
        let mut holding = Holding::new(now);
        for port in [80, 80, 443] {
            holding.want(7, ownerless(port, false), now);
        }
        assert_eq!(holding.wanted.sockets[&7].len(), 2);
    }

    #[test]
    fn what_was_held_a_moment_ago_is_known() {
        let now = Instant::now();
        let mut holding = Holding::new(now);
        holding.held.insert(7, (now, owner(42)));
        let fact = holding.want(7, ownerless(80, false), now);
        let Some(Fact::Socket(socket)) = fact else {
            panic!("{fact:?}");
        };
        assert_eq!((socket.owner.process.pid, socket.remote), (42, None));
        assert_eq!(holding.want(7, ownerless(80, false), now + HELD_FOR), None);
        assert!(holding.search(now).is_some());
    }
}
