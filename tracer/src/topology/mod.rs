//! The devices of the node: every network namespace, its devices and addresses, which veth leads where, and all of
//! that kept current while a trace runs.
//!
//! [`Topology::open`] needs privilege to enter namespaces, on a thread of its own. The sockets that it leaves open
//! keep working after the privilege is dropped. They also keep their namespaces alive, so that neither an inode
//! number nor a cookie can be reused meanwhile: a namespace that nothing else on the node refers to is let go as soon
//! as the helper ([`Topology::start_helper`]) notices.

mod audit;
mod cgroup;
mod clamps;
mod counters;
mod encap;
mod holders;
mod inquiry;
mod links;
mod neighbours;
mod netlink;
mod netns;
mod peers;
mod processes;
mod routes;
mod rtnetlink;
mod rules;
mod scout;
mod sockdiag;
mod statistics;
mod sysctls;
mod table;
mod view;
mod wireguard;
mod wireguard_peers;
mod xfrm;

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs::File,
    io,
    path::Path,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::resource::{Resource, getrlimit, setrlimit},
};
use tracer_common::packet::TunnelPorts;

use crate::{
    devices::tunnel_port,
    event::NetnsId,
    record::{BlindSpot, Device},
};

use self::{
    holders::{Holding, Unnamed},
    netlink::{BUFFER_BYTES, Message},
    netns::{Failure, Known, Opened},
    rtnetlink::{Dump, RouteSocket},
    scout::{Answered, Scout},
    sockdiag::DiagSocket,
    sysctls::Sysctls,
    table::{Limits, Refused, Table},
};

pub(crate) use self::netns::in_each;
pub use self::{
    counters::Counters,
    inquiry::Pace,
    scout::{NETNS_HELPER, serve as serve_netns},
    statistics::Statistics,
    view::{Entrance, ViewError},
    wireguard_peers::{WIREGUARD_HELPER, serve as serve_wireguard},
};

/// The most namespaces that are opened; each costs five file descriptors.
const NETNS_MAX: usize = 4_096;

/// The most devices and addresses that are remembered.
const LIMITS: Limits = Limits {
    devices: 65_536,
    addresses: 262_144,
};

/// How often a namespace is listed before that is left to the next poll.
const LISTINGS: usize = 3;

/// The most datagrams that one poll takes from one namespace.
const DATAGRAMS_PER_POLL: usize = 64;

/// How often a namespace that something speaks of is looked for.
const TRIES: u8 = 3;

/// How long after the last look the next one may follow, since each walks through /proc.
const LOOK_SOON: Duration = Duration::from_millis(200);

/// How long after the last look the next one follows in any case.
const LOOK_LATER: Duration = Duration::from_secs(5);

/// Why there is no topology at all.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// `/proc` cannot be read.
    #[error("cannot look for network namespaces in /proc: {0}")]
    Proc(#[from] io::Error),
    /// Not even our own namespace could be opened.
    #[error("cannot open an rtnetlink socket: {0}")]
    OwnNetns(Errno),
}

/// The devices of the node.
#[derive(Debug)]
pub struct Topology {
    /// Our own namespace is the first.
    namespaces: Vec<Netns>,
    table: Table,
    failures: Vec<Failure>,
    beyond_limit: usize,
    hidden: usize,
    /// Namespaces whose devices could not be listed completely.
    incomplete: BTreeMap<NetnsId, Errno>,
    /// Namespaces on the other end of veths that were not asked for because there are too many.
    unasked: usize,
    buffer: Vec<u8>,
    /// Does what needs privilege.
    scout: Option<Scout>,
    /// Whether it looks for namespaces that are born later.
    follows: bool,
    holding: Holding,
    /// Why processes are not named, where that was to be.
    unnamed: Option<Unnamed>,
    /// Reads WireGuard devices.
    wireguard: Option<wireguard_peers::Reader>,
    /// Whether something speaks of a namespace that is not known.
    look: bool,
    /// When it was last looked for.
    last_look: Instant,
    /// Whether the helper could not be started, or died.
    scout_lost: bool,
    /// The namespaces that are open.
    known: HashSet<NetnsId>,
    /// Where the last event came from.
    noticed: Option<NetnsId>,
    /// How often each unknown namespace was looked for in vain.
    unknown: HashMap<NetnsId, u8>,
    /// When the routing tables may be walked through again.
    walk_after: Instant,
}

#[derive(Debug)]
struct Netns {
    id: NetnsId,
    name: Option<String>,
    handle: File,
    socket: RouteSocket,
    diag: Option<DiagSocket>,
    sysctls: Sysctls,
}

impl Topology {
    /// Opens every namespace of the node and lists its devices. Raises the soft limit of open files.
    pub fn open() -> Result<Self, TopologyError> {
        raise_file_limit();
        let scan = netns::scan(&Known::default(), NETNS_MAX)?;
        let mut topology = Self {
            namespaces: Vec::with_capacity(scan.opened.len()),
            table: Table::new(LIMITS),
            failures: scan.failures,
            beyond_limit: scan.beyond_limit,
            hidden: scan.hidden,
            incomplete: BTreeMap::new(),
            unasked: 0,
            buffer: vec![0; BUFFER_BYTES],
            scout: None,
            follows: false,
            holding: Holding::new(Instant::now()),
            unnamed: None,
            wireguard: None,
            look: false,
            last_look: Instant::now(),
            scout_lost: false,
            known: HashSet::new(),
            noticed: None,
            unknown: HashMap::new(),
            walk_after: Instant::now(),
        };
        topology.adopt(scan.opened);
        if topology.namespaces.is_empty() {
            let failure = topology.failures.first();
            let errno = failure.map_or(Errno::ENOENT, |failure| failure.errno());
            return Err(TopologyError::OwnNetns(errno));
        }
        // What is there now is not a change.
        topology.table.changes();
        Ok(topology)
    }

    /// Our own namespace.
    pub fn own(&self) -> NetnsId {
        self.namespaces[0].id
    }

    /// Whether this kernel tells the cookies of namespaces (`SO_NETNS_COOKIE`, since Linux 5.14). Where it does not, events
    /// must come without as well, or they would seem to come from other namespaces.
    pub fn has_cookies(&self) -> bool {
        self.own().cookie != 0
    }

    /// Every namespace that is open, with its name in `/run/netns` (untrusted).
    pub fn namespaces(&self) -> impl Iterator<Item = (NetnsId, Option<&str>)> {
        self.namespaces
            .iter()
            .map(|netns| (netns.id, netns.name.as_deref()))
    }

    /// Every device as of the last poll, by namespace and ifindex.
    pub fn devices(&self) -> Vec<Device> {
        self.table.devices()
    }

    /// Starts the process that goes on with what this one may not do any more, which must be before the privilege is
    /// dropped: it tells who holds sockets and, if asked to, looks into namespaces that are born later. `tracer` is a program
    /// that calls [`serve_netns`] where its name is [`NETNS_HELPER`].
    pub fn start_helper(&mut self, tracer: &Path, follows: bool) {
        self.follows = follows;
        match Scout::start(tracer) {
            Ok(scout) => self.scout = Some(scout),
            Err(_) => self.scout_lost = true,
        }
        self.unnamed = self.why_unnamed();
    }

    /// Hears that an event came from this namespace: where it is not known, the next polls look for it.
    pub fn notice(&mut self, netns: NetnsId) {
        // Events come in runs: most are from where the last one came from.
        if self.noticed.replace(netns) == Some(netns) || self.known.contains(&netns) {
            return;
        }
        let room = self.unknown.len() < NETNS_MAX;
        match self.unknown.get(&netns) {
            Some(&tries) => self.look |= tries < TRIES,
            None if room => {
                self.unknown.insert(netns, 0);
                self.look = true;
            }
            None => {}
        }
    }

    /// Takes in what changed since the last call, without waiting: each device that is not as it was, once. A device that
    /// is gone comes as it was last, with `removed`.
    pub fn poll(&mut self) -> Vec<Device> {
        for index in 0..self.namespaces.len() {
            let lost = self.listen(index) == Err(Errno::ENOBUFS);
            let netns = &mut self.namespaces[index];
            if lost || self.incomplete.contains_key(&netns.id) {
                // Notifications were lost: only a new listing tells what is true now, and whatever still waits to be
                // read is older than that.
                netns.socket.netlink().discard(&mut self.buffer);
                self.list(index);
            }
        }
        self.resolve_peers();
        self.consult();
        self.table.changes()
    }

    /// Takes over what the helper has to say, and asks it for more.
    fn consult(&mut self) {
        if self.hear().and_then(|()| self.ask_helper()).is_err() {
            self.scout = None;
            self.scout_lost = true;
        }
    }

    fn hear(&mut self) -> io::Result<()> {
        let Some(scout) = &mut self.scout else {
            return Ok(());
        };
        match scout.answer()? {
            Some(Answered::Namespaces(scan)) => {
                self.failures = scan.failures;
                self.beyond_limit = scan.beyond_limit;
                self.hidden = scan.hidden;
                self.release(&scan.gone);
                self.name(scan.named);
                self.adopt(scan.opened);
            }
            Some(Answered::Holders(holders)) => self.learn_holders(holders),
            None => {}
        }
        Ok(())
    }

    /// Asks for namespaces where something speaks of one, and else for holders.
    fn ask_helper(&mut self) -> io::Result<()> {
        let Some(scout) = self.scout.as_mut().filter(|scout| !scout.busy()) else {
            return Ok(());
        };
        let since = self.last_look.elapsed();
        if self.follows && (self.look && since >= LOOK_SOON || since >= LOOK_LATER) {
            self.look = false;
            self.last_look = Instant::now();
            let mut known = Known::default();
            for netns in &self.namespaces {
                known.open.insert(netns.id.inum.into());
                if netns.name.is_none() {
                    known.unnamed.insert(netns.id.inum.into());
                }
            }
            scout.ask_for_namespaces(known)?;
            for tries in self.unknown.values_mut() {
                *tries = tries.saturating_add(1);
            }
        } else if let Some(search) = self.holding.search(Instant::now()) {
            scout.ask_for_holders(search)?;
        }
        Ok(())
    }

    /// What this topology does not show.
    pub fn blind_spots(&self) -> Vec<BlindSpot> {
        let mut spots = Vec::new();
        let mut add = |count: usize, code: &str, summary: String| {
            if count > 0 {
                spots.push(BlindSpot {
                    code: code.to_owned(),
                    summary,
                });
            }
        };
        let failed = self.failures.len();
        let first = self.failures.first();
        let reason = first.map_or("", |failure| failure.errno().desc());
        add(
            failed,
            "netns_unreachable",
            format!(
                "{failed} network namespaces could not be entered ({reason}): their devices are not known"
            ),
        );
        let beyond = self.beyond_limit;
        add(
            beyond,
            "netns_limit",
            format!("{beyond} network namespaces beyond the first {NETNS_MAX} are not looked at"),
        );
        let hidden = self.hidden;
        add(
            hidden,
            "netns_hidden",
            format!(
                "{hidden} network namespaces of processes that this user may not look at are not known"
            ),
        );
        let incomplete = self.incomplete.len();
        let reason = self
            .incomplete
            .values()
            .next()
            .map_or("", |errno| errno.desc());
        add(
            incomplete,
            "devices_incomplete",
            format!(
                "the devices of {incomplete} network namespaces could not be listed completely ({reason})"
            ),
        );
        let unasked = self.unasked;
        add(
            unasked,
            "peers_limit",
            format!(
                "where the veths into {unasked} network namespaces lead is not known: there are too many"
            ),
        );
        add(
            usize::from(self.scout_lost && self.follows),
            "netns_born_later",
            "nothing looks into network namespaces that are born during the trace: their devices are not known".to_owned(),
        );
        add(
            usize::from(self.unnamed.is_some()),
            "processes_unnamed",
            format!(
                "which process has a socket from before the trace, or takes datagrams, is not known: {}",
                self.unnamed.map_or("", Unnamed::words)
            ),
        );
        let Refused { devices, addresses } = self.table.refused();
        add(
            devices,
            "devices_limit",
            format!(
                "{devices} devices beyond the first {} are not known",
                LIMITS.devices
            ),
        );
        add(
            addresses,
            "addresses_limit",
            format!(
                "{addresses} addresses beyond the first {} are not known",
                LIMITS.addresses
            ),
        );
        spots
    }

    /// The namespace with this inode number, or why there is none.
    fn by_inode(&self, inode: u64) -> Result<NetnsId, &'static str> {
        let opened = self.namespaces.iter();
        if let Some(netns) = opened
            .map(|netns| netns.id)
            .find(|id| u64::from(id.inum) == inode)
        {
            return Ok(netns);
        }
        let failure = self.failures.iter().find(|failure| failure.inode == inode);
        Err(
            failure.map_or("it was not there when tracer looked", |failure| {
                failure.errno().desc()
            }),
        )
    }

    /// Takes namespaces in and lists their devices.
    fn adopt(&mut self, opened: Vec<Opened>) {
        for Opened {
            inode,
            name,
            handle,
            socket,
            diag,
            sysctls,
        } in opened
        {
            // An inode number of nsfs is `ns.inum`, an unsigned int (fs/nsfs.c).
            let Ok(inum) = u32::try_from(inode) else {
                continue;
            };
            let cookie = socket.netns_cookie();
            let id = NetnsId { inum, cookie };
            if let Some(name) = &name {
                self.table.name(id, name.clone());
            }
            self.known.insert(id);
            self.unknown.remove(&id);
            self.namespaces.push(Netns {
                id,
                name,
                handle,
                socket,
                diag,
                sysctls,
            });
            self.list(self.namespaces.len() - 1);
        }
        self.table.ask_again();
        self.resolve_peers();
    }

    /// Gives their names to namespaces that had none yet.
    fn name(&mut self, named: Vec<(u64, String)>) {
        let mut named: HashMap<u64, String> = named.into_iter().collect();
        for netns in self
            .namespaces
            .iter_mut()
            .filter(|netns| netns.name.is_none())
        {
            netns.name = named.remove(&netns.id.inum.into());
            if let Some(name) = &netns.name {
                self.table.name(netns.id, name.clone());
            }
        }
    }

    /// Lets go of namespaces that only we keep alive.
    fn release(&mut self, gone: &[u64]) {
        let gone: HashSet<u64> = gone.iter().copied().collect();
        let table = &mut self.table;
        self.namespaces.retain(|netns| {
            let stays = !gone.contains(&netns.id.inum.into());
            if !stays {
                table.release(netns.id);
                self.known.remove(&netns.id);
                self.incomplete.remove(&netns.id);
            }
            stays
        });
    }

    /// Lists the devices and addresses of a namespace. Where that fails, a device that is not mentioned may still be
    /// there, and the next poll tries again.
    fn list(&mut self, index: usize) {
        let Netns { id, socket, .. } = &mut self.namespaces[index];
        let mut changes = Vec::new();
        let mut listed = Err(Errno::ENOBUFS);
        for _ in 0..LISTINGS {
            changes.clear();
            let mut note = |message: Message<'_>| changes.extend(links::parse(message));
            listed = socket.dump(Dump::Links, &mut self.buffer, &mut note);
            if listed.is_ok() {
                listed = socket.dump(Dump::Addresses, &mut self.buffer, &mut note);
            }
            // So much changes just now that the socket overflows; EBUSY is what is left of a dump that was given up.
            if !matches!(listed, Err(Errno::ENOBUFS | Errno::EBUSY)) {
                break;
            }
            socket.netlink().discard(&mut self.buffer);
        }
        if let Err(errno) = listed {
            self.incomplete.insert(*id, errno);
        } else {
            self.table.forget(*id);
            self.incomplete.remove(id);
        }
        for change in changes {
            self.table.apply(*id, change);
        }
    }

    /// Takes in the notifications of a namespace that are already there.
    fn listen(&mut self, index: usize) -> Result<(), Errno> {
        let Netns { id, socket, .. } = &mut self.namespaces[index];
        let table = &mut self.table;
        for _ in 0..DATAGRAMS_PER_POLL {
            let more = socket.netlink().poll(&mut self.buffer, &mut |message| {
                if let Some(change) = links::parse(message) {
                    table.apply(*id, change);
                }
            })?;
            if !more {
                break;
            }
        }
        Ok(())
    }
}

/// Lets this process open as many files as it may: each namespace costs a few.
fn raise_file_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
    {
        // Where that fails, namespaces that cannot be opened are a blind spot.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// The UDP ports at which the devices receive tunnels, and how many there are beyond what [`TunnelPorts`] holds.
pub fn tunnel_ports<'a>(devices: impl IntoIterator<Item = &'a Device>) -> (TunnelPorts, usize) {
    let mut ports = TunnelPorts::NONE;
    let mut undeclared = 0;
    for device in devices {
        if let Some((port, tunnel)) = tunnel_port(device)
            && !ports.declare(port, tunnel)
        {
            undeclared += 1;
        }
    }
    (ports, undeclared)
}
