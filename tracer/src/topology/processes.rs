//! Looks through the processes of the node for those that hold given sockets, or tun devices, and for their containers.
//! This needs privilege, so the helper does it. A node has thousands of processes with thousands of descriptors: a search
//! takes a bounded time, begins where the sockets are, and ends when it has found what it was asked for.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    ffi::OsStr,
    fs::{self, File},
    io::Read as _,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::fcntl::readlinkat;
use serde::{Deserialize, Serialize};

use crate::{
    event::Process,
    fact::{Container, Owner},
};

use super::cgroup;

/// The most sockets, and the most processes, that one search is asked for.
pub(super) const WANTED_MAX: usize = 64;

/// The most tun devices that one search tells of.
const TUNS_MAX: usize = 64;

/// The longest that one search takes.
const WITHIN: Duration = Duration::from_secs(2);

/// After so many descriptors of one process the clock is read again.
const DESCRIPTORS: usize = 1_024;

/// The longest that is read of a file in `/proc`; those that are read are short.
const FILE_BYTES_MAX: u64 = 16 * 1024;

/// The first process, which may have opened a socket only to hand it to the service that it starts.
const INIT: u32 = 1;

/// The inode number of the first pid namespace (`PROC_PID_INIT_INO` in include/linux/proc_ns.h).
const FIRST_PID_NAMESPACE: u64 = 0xefff_fffc;

/// Whether `/proc` has every process of the node, each with the id that an event has too.
pub(super) fn are_all_visible() -> bool {
    let namespace = fs::metadata("/proc/self/ns/pid");
    // A kernel without pid namespaces has one for all.
    namespace.is_err() || namespace.is_ok_and(|file| file.ino() == FIRST_PID_NAMESPACE)
}

/// What to look for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Search {
    /// Who has these sockets: inode numbers, each with that of the socket's namespace.
    pub sockets: Vec<(u32, u32)>,
    /// Where these processes run.
    pub pids: Vec<u32>,
    /// Who holds tun devices.
    pub tuns: bool,
}

/// What was found.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Holders {
    /// By the socket's inode number.
    pub sockets: BTreeMap<u32, Owner>,
    /// The processes that were asked for and run.
    pub processes: Vec<Owner>,
    /// Each holder of a tun device once.
    pub tuns: Vec<TunHolder>,
}

/// A process that holds a tun device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TunHolder {
    /// The device's name; the kernel does not say in which namespace the device is.
    pub name: String,
    /// The inode number of the namespace that the process is in.
    pub netns: u64,
    /// The process.
    pub owner: Owner,
}

/// Where to look.
#[derive(Debug)]
pub(super) struct Node {
    /// `/proc`
    pub proc: PathBuf,
    /// Where the kubelet keeps a directory `NAMESPACE_NAME_UID` for each pod.
    pub pod_logs: PathBuf,
}

impl Node {
    /// This one.
    pub(super) fn this() -> Self {
        Self {
            proc: PathBuf::from("/proc"),
            pod_logs: PathBuf::from("/var/log/pods"),
        }
    }

    /// Looks for it.
    pub(super) fn search(&self, search: &Search) -> Holders {
        let mut walk = Walk {
            node: self,
            sought: search.sockets.iter().map(|(inode, _)| *inode).collect(),
            tuns_sought: search.tuns,
            sockets: HashMap::new(),
            tuns: Vec::new(),
            end: Instant::now() + WITHIN,
        };
        walk.look(search);
        let Walk { sockets, tuns, .. } = walk;
        let mut holders = Holders::default();
        for (inode, pid) in sockets {
            holders
                .sockets
                .extend(self.owner(pid).map(|owner| (inode, owner)));
        }
        for (name, pid, netns) in tuns {
            holders.tuns.extend(
                self.owner(pid)
                    .map(|owner| TunHolder { name, netns, owner }),
            );
        }
        holders.processes = search
            .pids
            .iter()
            .filter_map(|pid| self.owner(*pid))
            .collect();
        self.name_pods(&mut holders);
        holders
    }

    fn path(&self, pid: u32, file: &str) -> PathBuf {
        self.proc.join(pid.to_string()).join(file)
    }

    /// The process with this id, if it runs.
    fn owner(&self, pid: u32) -> Option<Owner> {
        let comm = read(&self.path(pid, "comm"))?;
        let cgroups = read(&self.path(pid, "cgroup")).unwrap_or_default();
        Some(Owner {
            process: Process {
                pid,
                comm: comm.strip_suffix('\n').unwrap_or(&comm).to_owned(),
            },
            container: cgroup::container(&cgroups),
        })
    }

    /// The processes, the oldest first as long as ids are not reused.
    fn pids(&self) -> Vec<u32> {
        let mut pids: Vec<u32> = fs::read_dir(&self.proc)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        pids.sort_unstable();
        pids
    }

    /// Gives pods their names.
    fn name_pods(&self, holders: &mut Holders) {
        let tuns = holders.tuns.iter_mut().map(|holder| &mut holder.owner);
        let mut containers: Vec<&mut Container> = holders
            .sockets
            .values_mut()
            .chain(&mut holders.processes)
            .chain(tuns)
            .filter_map(|owner| owner.container.as_mut())
            .filter(|container| container.pod_uid.is_some())
            .collect();
        if containers.is_empty() {
            return;
        }
        for entry in fs::read_dir(&self.pod_logs).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some([namespace, name, uid]) = name.to_str().and_then(parts) else {
                continue;
            };
            for container in &mut containers {
                if container.pod_uid.as_deref() == Some(uid) {
                    container.pod = Some(format!("{namespace}/{name}"));
                }
            }
        }
    }
}

/// The parts of `NAMESPACE_NAME_UID`; none has an underscore.
fn parts(name: &str) -> Option<[&str; 3]> {
    let mut parts = name.split('_');
    let all = [parts.next()?, parts.next()?, parts.next()?];
    parts.next().is_none().then_some(all)
}

/// One walk through the descriptors.
struct Walk<'a> {
    node: &'a Node,
    /// The sockets of which no holder is known, or only [`INIT`].
    sought: HashSet<u32>,
    tuns_sought: bool,
    sockets: HashMap<u32, u32>,
    tuns: Vec<(String, u32, u64)>,
    end: Instant,
}

impl Walk<'_> {
    /// Looks at the processes in the sockets' own namespaces, and then at those that opened a socket elsewhere.
    fn look(&mut self, search: &Search) {
        if self.is_done() {
            return;
        }
        let namespaces: HashSet<u64> = search
            .sockets
            .iter()
            .map(|(_, netns)| u64::from(*netns))
            .collect();
        let mut elsewhere = Vec::new();
        for pid in self.node.pids() {
            let netns = fs::metadata(self.node.path(pid, "ns/net")).map_or(0, |file| file.ino());
            if namespaces.contains(&netns) {
                self.look_at(pid, netns);
            } else {
                elsewhere.push((pid, netns));
            }
            if self.is_done() {
                return;
            }
        }
        for (pid, netns) in elsewhere {
            self.look_at(pid, netns);
            if self.is_done() {
                return;
            }
        }
    }

    fn is_done(&self) -> bool {
        self.sought.is_empty() && !self.tuns_sought || Instant::now() >= self.end
    }

    /// Looks at one process, which may end meanwhile.
    fn look_at(&mut self, pid: u32, netns: u64) {
        let path = self.node.path(pid, "fd");
        let (Ok(descriptors), Ok(directory)) = (fs::read_dir(&path), File::open(&path)) else {
            return;
        };
        for (count, descriptor) in descriptors.flatten().enumerate() {
            if count % DESCRIPTORS == DESCRIPTORS - 1 && self.is_done() {
                return;
            }
            let number = descriptor.file_name();
            let Ok(target) = readlinkat(&directory, number.as_os_str()) else {
                continue;
            };
            if let Some(inode) = socket(&target) {
                self.note_socket(inode, pid);
            } else if self.tuns_sought && target.as_bytes().ends_with(b"/tun") {
                self.note_tun(&number, pid, netns);
            }
        }
    }

    fn note_socket(&mut self, inode: u32, pid: u32) {
        if self.sought.contains(&inode) {
            self.sockets.insert(inode, pid);
            if pid != INIT {
                self.sought.remove(&inode);
            }
        }
    }

    fn note_tun(&mut self, descriptor: &OsStr, pid: u32, netns: u64) {
        let info = self.node.path(pid, "fdinfo").join(descriptor);
        let Some(name) = read(&info).and_then(|info| Some(device(&info)?.to_owned())) else {
            return;
        };
        let holder = (name, pid, netns);
        // A device with several queues has several descriptors.
        if self.tuns.len() < TUNS_MAX && !self.tuns.contains(&holder) {
            self.tuns.push(holder);
        }
    }
}

/// The inode number in `socket:[INODE]`.
fn socket(target: &OsStr) -> Option<u32> {
    let number = target
        .as_bytes()
        .strip_prefix(b"socket:[")?
        .strip_suffix(b"]")?;
    std::str::from_utf8(number).ok()?.parse().ok()
}

/// The device that a descriptor of `/dev/net/tun` is attached to (`tun_chr_show_fdinfo()` in drivers/net/tun.c).
fn device(info: &str) -> Option<&str> {
    let line = info.lines().find_map(|line| line.strip_prefix("iff:"))?;
    Some(line.trim_matches(['\t', ' '])).filter(|name| !name.is_empty())
}

fn read(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const ID: &str = "3f2a9c1b0d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8";
    const UID: &str = "6d5bfd12-0c2e-4c56-9d5e-2f0f6f7c9a01";

    /// A `/proc` of our own, in which a process's namespace is a file.
    struct Fake {
        directory: tempfile::TempDir,
        node: Node,
    }

    impl Fake {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let node = Node {
                proc: directory.path().join("proc"),
                pod_logs: directory.path().join("pods"),
            };
            fs::create_dir_all(&node.proc).unwrap();
            fs::create_dir_all(&node.pod_logs).unwrap();
            // Not every directory of /proc is a process.
            fs::create_dir(node.proc.join("sys")).unwrap();
            Self { directory, node }
        }

        fn netns(&self, name: &str) -> u32 {
            let path = self.directory.path().join(name);
            fs::write(&path, "").unwrap();
            fs::metadata(&path).unwrap().ino().try_into().unwrap()
        }

        fn process(&self, pid: u32, comm: &str, netns: &str, descriptors: &[&str]) {
            let path = |file| self.node.path(pid, file);
            for directory in ["ns", "fd", "fdinfo"] {
                fs::create_dir_all(path(directory)).unwrap();
            }
            symlink(self.directory.path().join(netns), path("ns/net")).unwrap();
            fs::write(path("comm"), format!("{comm}\n")).unwrap();
            fs::write(path("cgroup"), "0::/system.slice/some.service\n").unwrap();
            for (number, target) in descriptors.iter().enumerate() {
                symlink(target, path("fd").join(number.to_string())).unwrap();
            }
        }

        fn sockets(&self, sockets: &[(u32, u32)]) -> Vec<(u32, u32)> {
            let search = Search {
                sockets: sockets.to_vec(),
                ..Search::default()
            };
            let found = self.node.search(&search).sockets;
            let pids = found
                .iter()
                .map(|(inode, owner)| (*inode, owner.process.pid));
            pids.collect()
        }
    }

    #[test]
    fn a_socket_is_told_with_its_process() {
        let fake = Fake::new();
        let (a, b) = (fake.netns("a"), fake.netns("b"));
        fake.process(
            10,
            "x\u{1b}[2J",
            "a",
            &["/dev/null", "socket:[7]", "socket:[70]"],
        );
        fake.process(
            9,
            "other",
            "b",
            &["pipe:[7]", "anon_inode:[eventpoll]", "socket:[8]"],
        );
        assert_eq!(fake.sockets(&[(7, a), (8, b), (9, b)]), [(7, 10), (8, 9)]);
        let search = Search {
            sockets: vec![(7, a)],
            ..Search::default()
        };
        let found = fake.node.search(&search);
        assert_eq!(found.sockets[&7].process.comm, "x\u{1b}[2J");
        assert!(found.processes.is_empty() && found.tuns.is_empty());
    }

    #[test]
    fn of_several_the_oldest_in_the_sockets_namespace_and_rather_not_init() {
        let fake = Fake::new();
        let (a, b) = (fake.netns("a"), fake.netns("b"));
        fake.process(1, "systemd", "a", &["socket:[7]", "socket:[8]"]);
        fake.process(20, "worker", "a", &["socket:[7]"]);
        fake.process(12, "master", "a", &["socket:[7]"]);
        assert_eq!(fake.sockets(&[(7, a)]), [(7, 12)]);
        // Nobody but init has it.
        assert_eq!(fake.sockets(&[(8, a)]), [(8, 1)]);
        // A proxy that has gone home again.
        fake.process(5, "launcher", "a", &["socket:[9]"]);
        assert_eq!(fake.sockets(&[(9, b)]), [(9, 5)]);
        fake.process(30, "inside", "b", &["socket:[9]"]);
        assert_eq!(fake.sockets(&[(9, b)]), [(9, 30)]);
    }

    #[test]
    fn the_pod_of_a_process_has_a_name_where_the_kubelet_logs_it() {
        let fake = Fake::new();
        fake.netns("a");
        fake.process(10, "redis-server", "a", &[]);
        fs::write(
            fake.node.path(10, "cgroup"),
            format!("0::/kubepods/burstable/pod{UID}/{ID}\n"),
        )
        .unwrap();
        let search = Search {
            pids: vec![10, 11],
            ..Search::default()
        };
        let container = |fake: &Fake| {
            let mut found = fake.node.search(&search).processes;
            assert_eq!(found.len(), 1, "the other one has ended");
            found.remove(0).container.unwrap()
        };
        assert_eq!(container(&fake).id, ID);
        assert_eq!(container(&fake).pod, None);
        for name in [
            format!("shop_redis-0_{UID}"),
            format!("a_b_c_{UID}"),
            "x".to_owned(),
        ] {
            fs::create_dir(fake.node.pod_logs.join(name)).unwrap();
        }
        assert_eq!(container(&fake).pod.as_deref(), Some("shop/redis-0"));
    }

    #[test]
    fn a_tun_device_is_told_with_its_holder() {
        let fake = Fake::new();
        let a = fake.netns("a");
        fake.process(
            10,
            "openvpn",
            "a",
            &["/dev/net/tun", "/dev/net/tun", "/dev/net/tun"],
        );
        for (number, info) in [
            "pos:\t0\nflags:\t02\niff:\ttun0\n",
            "iff:\ttun0\n",
            "pos:\t0\n",
        ]
        .iter()
        .enumerate()
        {
            fs::write(fake.node.path(10, "fdinfo").join(number.to_string()), info).unwrap();
        }
        let search = Search {
            tuns: true,
            ..Search::default()
        };
        let tuns = fake.node.search(&search).tuns;
        let [holder] = tuns.as_slice() else {
            panic!("{tuns:?}");
        };
        assert_eq!((holder.name.as_str(), holder.netns), ("tun0", u64::from(a)));
        assert_eq!(holder.owner.process.pid, 10);
        assert!(fake.node.search(&Search::default()).tuns.is_empty());
    }

    #[test]
    fn this_test_is_found_on_this_node() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = nix::sys::stat::fstat(&listener)
            .unwrap()
            .st_ino
            .try_into()
            .unwrap();
        let netns = fs::metadata("/proc/self/ns/net")
            .unwrap()
            .ino()
            .try_into()
            .unwrap();
        let search = Search {
            sockets: vec![(inode, netns)],
            ..Search::default()
        };
        let found = Node::this().search(&search);
        assert_eq!(found.sockets[&inode].process.pid, std::process::id());
    }
}
