//! The devices of the node: every network namespace, its devices and addresses, which veth leads where, and all of
//! that kept current while a trace runs.
//!
//! [`Topology::open`] needs privilege to enter namespaces, on a thread of its own. The sockets that it leaves open
//! keep working after the privilege is dropped. They also keep the namespaces alive until the topology is dropped,
//! so that neither an inode number nor a cookie of it can be reused meanwhile.

mod counters;
mod links;
mod netns;
mod routes;
mod rtnetlink;
mod table;
mod view;

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    fs::File,
    io,
    os::fd::AsFd as _,
};

use nix::{
    errno::Errno,
    sys::resource::{Resource, getrlimit, setrlimit},
};
use tracer_common::packet::{Tunnel, TunnelPorts};

use crate::{
    event::NetnsId,
    record::{BlindSpot, Device},
};

use self::{
    netns::{Failure, Opened},
    rtnetlink::{BUFFER_BYTES, Dump, Message, RouteSocket},
    table::{Limits, Refused, Table},
};

pub use self::{counters::Counters, view::ViewError};

/// The most namespaces that are opened; each costs two file descriptors.
const NETNS_MAX: usize = 4_096;

/// The most devices and addresses that are remembered.
const LIMITS: Limits = Limits {
    devices: 65_536,
    addresses: 262_144,
};

/// The most questions of the form "which number does this namespace have there" in one go.
const NSID_QUESTIONS_MAX: usize = 50_000;

/// The most datagrams that one poll takes from one namespace.
const DATAGRAMS_PER_POLL: usize = 64;

/// How to open a topology.
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// Whether events carry the cookie of their namespace; where they do not, no [`NetnsId`] has one.
    pub cookies: bool,
}

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
    incomplete: BTreeSet<NetnsId>,
    /// Namespaces on the other end of veths that were not asked for because there are too many.
    unasked: usize,
    cookies: bool,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Netns {
    id: NetnsId,
    name: Option<String>,
    handle: File,
    socket: RouteSocket,
}

impl Topology {
    /// Opens every namespace of the node and lists its devices. Raises the soft limit of open files.
    pub fn open(options: OpenOptions) -> Result<Self, TopologyError> {
        raise_file_limit();
        let scan = netns::scan(&BTreeSet::new(), NETNS_MAX)?;
        let mut topology = Self {
            namespaces: Vec::with_capacity(scan.opened.len()),
            table: Table::new(LIMITS),
            failures: scan.failures,
            beyond_limit: scan.beyond_limit,
            hidden: scan.hidden,
            incomplete: BTreeSet::new(),
            unasked: 0,
            cookies: options.cookies,
            buffer: vec![0; BUFFER_BYTES],
        };
        topology.adopt(scan.opened);
        if topology.namespaces.is_empty() {
            let failure = topology.failures.first();
            let errno = failure.map_or(Errno::ENOENT, |failure| failure.errno);
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

    /// Takes in what changed since the last call, without waiting: each device that is not as it was, once. A device that
    /// is gone comes as it was last, with `removed`.
    pub fn poll(&mut self) -> Vec<Device> {
        for index in 0..self.namespaces.len() {
            if self.listen(index) == Err(Errno::ENOBUFS) {
                // Notifications were lost: only a new listing tells what is true now.
                self.table.forget(self.namespaces[index].id);
                self.list(index);
            }
        }
        self.resolve_peers();
        self.table.changes()
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
        let reason = first.map_or("", |failure| failure.errno.desc());
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
        add(
            incomplete,
            "devices_incomplete",
            format!(
                "the devices of {incomplete} network namespaces could not be listed completely"
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
        let failure = self
            .failures
            .iter()
            .find(|failure| failure.candidate.inode == inode);
        Err(
            failure.map_or("it was not there when tracer looked", |failure| {
                failure.errno.desc()
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
        } in opened
        {
            // An inode number of nsfs is `ns.inum`, an unsigned int (fs/nsfs.c).
            let Ok(inum) = u32::try_from(inode) else {
                continue;
            };
            let cookie = if self.cookies {
                socket.netns_cookie()
            } else {
                0
            };
            let id = NetnsId { inum, cookie };
            if let Some(name) = &name {
                self.table.name(id, name.clone());
            }
            self.namespaces.push(Netns {
                id,
                name,
                handle,
                socket,
            });
            self.list(self.namespaces.len() - 1);
        }
        self.table.ask_again();
        self.resolve_peers();
    }

    /// Lists the devices and addresses of a namespace.
    fn list(&mut self, index: usize) {
        let id = self.namespaces[index].id;
        let links = self.dump(index, Dump::Links, &mut |_| {});
        let addresses = self.dump(index, Dump::Addresses, &mut |_| {});
        if links.and(addresses).is_ok() {
            self.incomplete.remove(&id);
        } else {
            self.incomplete.insert(id);
        }
    }

    /// Asks a namespace for everything of a kind. Whatever it says about devices is taken in, and `each` hears all of it.
    fn dump(
        &mut self,
        index: usize,
        what: Dump,
        each: &mut dyn FnMut(Message<'_>),
    ) -> Result<(), Errno> {
        let Netns { id, socket, .. } = &mut self.namespaces[index];
        let table = &mut self.table;
        socket.dump(what, &mut self.buffer, &mut |message| {
            if let Some(change) = links::parse(message) {
                table.apply(*id, change);
            }
            each(message);
        })
    }

    /// Takes in the notifications of a namespace that are already there.
    fn listen(&mut self, index: usize) -> Result<(), Errno> {
        let Netns { id, socket, .. } = &mut self.namespaces[index];
        let table = &mut self.table;
        for _ in 0..DATAGRAMS_PER_POLL {
            let more = socket.poll(&mut self.buffer, &mut |message| {
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

    /// Finds out which namespaces the veths name.
    fn resolve_peers(&mut self) {
        let mut wanted: HashMap<NetnsId, BTreeSet<i32>> = HashMap::new();
        for (netns, nsid) in self.table.take_unresolved() {
            wanted.entry(netns).or_default().insert(nsid);
        }
        if wanted.is_empty() {
            return;
        }
        // Those that know many others come first: then it is known already whom the many others know.
        let mut order: Vec<usize> = (0..self.namespaces.len()).collect();
        order.sort_by_key(|index| {
            let nsids = wanted.get(&self.namespaces[*index].id);
            Reverse(nsids.map_or(0, BTreeSet::len))
        });
        let mut questions = NSID_QUESTIONS_MAX;
        for index in order {
            let Some(nsids) = wanted.remove(&self.namespaces[index].id) else {
                break;
            };
            self.resolve_nsids(index, nsids, &mut questions);
        }
    }

    /// Asks one namespace for its number of the others, until the wanted numbers have turned up.
    fn resolve_nsids(&mut self, index: usize, mut wanted: BTreeSet<i32>, questions: &mut usize) {
        let id = self.namespaces[index].id;
        let likely = self.table.neighbours(id);
        let mut others: Vec<usize> = (0..self.namespaces.len()).collect();
        others.sort_by_key(|other| !likely.contains(&self.namespaces[*other].id));
        for other in others {
            if wanted.is_empty() || *questions == 0 {
                break;
            }
            let Ok([asked, other]) = self.namespaces.get_disjoint_mut([index, other]) else {
                continue;
            };
            *questions -= 1;
            let table = &mut self.table;
            let answer =
                asked
                    .socket
                    .nsid_of(other.handle.as_fd(), &mut self.buffer, &mut |message| {
                        if let Some(change) = links::parse(message) {
                            table.apply(id, change);
                        }
                    });
            if let Ok(Some(nsid)) = answer {
                table.resolve(id, nsid, other.id);
                wanted.remove(&nsid);
            }
        }
        if *questions == 0 {
            self.unasked += wanted.len();
        }
        self.table.connect_all(id);
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
        let tunnel = match device.kind.as_str() {
            "vxlan" => Tunnel::Vxlan,
            "geneve" => Tunnel::Geneve,
            _ => continue,
        };
        if let Some(port) = device.udp_port
            && !ports.declare(port, tunnel)
        {
            undeclared += 1;
        }
    }
    (ports, undeclared)
}
