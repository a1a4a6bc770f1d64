//! Finds the network namespaces of the node and opens them. This is the part of the topology that needs privilege:
//! what it hands out works without.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::{
            ffi::OsStrExt as _,
            fs::{MetadataExt as _, OpenOptionsExt as _},
        },
    },
    path::{Path, PathBuf},
    thread,
};

use nix::{
    errno::Errno,
    sched::{CloneFlags, setns},
};

use serde::{Deserialize, Serialize};

use super::{rtnetlink::RouteSocket, sockdiag::DiagSocket, sysctls::Sysctls};

/// Where iproute2 and most container runtimes keep named namespaces.
pub(super) const NAMED: &str = "/run/netns";

/// A namespace that something on this node refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    /// The inode number on nsfs, which is `net->ns.inum`.
    pub inode: u64,
    /// The first of its names in `/run/netns`.
    pub name: Option<String>,
    /// A path that refers to it.
    pub path: PathBuf,
}

/// What refers to a namespace on this node.
#[derive(Debug, Default)]
struct Found {
    /// Our own namespace first, then named ones, mounted ones, and those of processes.
    pub candidates: Vec<Candidate>,
    /// Namespaces beyond the limit.
    pub beyond_limit: usize,
    /// What tells apart the namespaces that this user may not look at.
    pub hidden: BTreeSet<Option<u64>>,
    /// The inode numbers of all, those beyond the limit included.
    pub present: BTreeSet<u64>,
}

/// A namespace with a socket in it.
#[derive(Debug)]
pub(super) struct Opened {
    pub inode: u64,
    pub name: Option<String>,
    /// Refers to the namespace, for RTM_GETNSID and setns().
    pub handle: File,
    pub socket: RouteSocket,
    /// Missing where the kernel cannot be asked for sockets.
    pub diag: Option<DiagSocket>,
    pub sysctls: Sysctls,
}

/// Why a namespace could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    pub inode: u64,
    /// An errno.
    pub error: i32,
}

impl Failure {
    /// Whether the path does not refer to the namespace any more (a process ended).
    pub(super) fn errno(self) -> Errno {
        Errno::from_raw(self.error)
    }

    fn vanished(self) -> bool {
        matches!(self.errno(), Errno::ENOENT | Errno::ESRCH | Errno::ESTALE)
    }
}

/// Looks for namespaces: ours, those in `/run/netns`, those mounted anywhere else that we can see (Docker, CRI), and
/// those of all processes. A namespace that only a file descriptor or a thread holds is not found.
fn find(limit: usize) -> io::Result<Found> {
    let own = fs::metadata("/proc/thread-self/ns/net")?;
    let mut seen = Seen {
        device: own.dev(),
        limit,
        inodes: BTreeMap::new(),
        found: Found::default(),
    };
    seen.add(own.ino(), None, Path::new("/proc/thread-self/ns/net"));

    for name in names() {
        let path = Path::new(NAMED).join(&name);
        seen.add_path(&path, Some(name.to_string_lossy().into_owned()));
    }
    if let Ok(mounts) = fs::read("/proc/thread-self/mountinfo") {
        for (inode, path) in mounted(&mounts) {
            seen.add(inode, None, &path);
        }
    }
    for process in fs::read_dir("/proc")?.flatten() {
        if process.file_name().as_bytes()[0].is_ascii_digit() {
            seen.add_path(&process.path().join("ns/net"), None);
        }
    }
    seen.found.present = seen.inodes.into_keys().collect();
    Ok(seen.found)
}

/// A path that refers to each namespace of the node, by inode number.
pub(super) fn paths(limit: usize) -> io::Result<BTreeMap<u64, String>> {
    let candidates = find(limit)?.candidates.into_iter();
    Ok(candidates
        .map(|found| (found.inode, found.path.to_string_lossy().into_owned()))
        .collect())
}

/// The names in `/run/netns`, sorted.
pub(super) fn names() -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = fs::read_dir(NAMED)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort_unstable();
    names
}

/// The namespace that a path refers to, if it refers to a namespace of any kind.
pub(super) fn inode_at(path: &Path) -> io::Result<Option<u64>> {
    let nsfs = fs::metadata("/proc/thread-self/ns/net")?.dev();
    let file = fs::metadata(path)?;
    Ok((file.dev() == nsfs).then_some(file.ino()))
}

struct Seen {
    /// nsfs
    device: u64,
    limit: usize,
    /// Each inode, and where it is in `found.candidates` (a namespace beyond the limit is in none).
    inodes: BTreeMap<u64, Option<usize>>,
    found: Found,
}

impl Seen {
    fn add_path(&mut self, path: &Path, name: Option<String>) {
        match fs::metadata(path) {
            Ok(file) if file.dev() == self.device => self.add(file.ino(), name, path),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self.add_hidden(path),
            // Not a namespace (`ip netns` leaves an empty file behind when an unmount fails), or gone by now.
            _ => {}
        }
    }

    /// A process whose `ns/net` may not be looked at still has a `net/` directory, whose files have inode numbers of
    /// their own in every namespace: a process in ours hides nothing.
    fn add_hidden(&mut self, path: &Path) {
        let device_list = |process: &Path| Some(fs::metadata(process.join("net/dev")).ok()?.ino());
        let there = path.ancestors().nth(2).and_then(device_list);
        if there.is_none() || there != device_list(Path::new("/proc/thread-self")) {
            self.found.hidden.insert(there);
        }
    }

    fn add(&mut self, inode: u64, name: Option<String>, path: &Path) {
        match self.inodes.get(&inode) {
            Some(Some(index)) => {
                let candidate = &mut self.found.candidates[*index];
                candidate.name = candidate.name.take().or(name);
            }
            Some(None) => {}
            None if self.found.candidates.len() < self.limit => {
                self.inodes.insert(inode, Some(self.found.candidates.len()));
                self.found.candidates.push(Candidate {
                    inode,
                    name,
                    path: path.to_owned(),
                });
            }
            None => {
                self.inodes.insert(inode, None);
                self.found.beyond_limit += 1;
            }
        }
    }
}

/// The network namespaces that are mounted somewhere, by `/proc/thread-self/mountinfo`: its fourth field is `net:[INODE]`.
fn mounted(mountinfo: &[u8]) -> Vec<(u64, PathBuf)> {
    mountinfo
        .split(|byte| *byte == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|byte| *byte == b' ').skip(3);
            let root = fields.next()?.strip_prefix(b"net:[")?.strip_suffix(b"]")?;
            let inode = std::str::from_utf8(root).ok()?.parse().ok()?;
            Some((inode, unescape(fields.next()?)))
        })
        .collect()
}

/// Undoes the octal escapes (`\040`) that the kernel writes for white space and backslashes in a path.
fn unescape(path: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| byte == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(octal.unwrap_or(byte));
        rest = if octal.is_some() { &tail[3..] } else { tail };
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

/// What is known already, by inode number.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Known {
    /// Namespaces that are open, and have a name or not.
    pub open: BTreeSet<u64>,
    /// Those of them that have no name yet: `ip netns add` makes a namespace first and names it then.
    pub unnamed: BTreeSet<u64>,
}

/// The most names that one scan brings for namespaces that were known without: the next scan brings the others.
const NAMED_MAX: usize = 256;

/// What one look at the node brought.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// Namespaces that were not known before; our own is the first of all.
    pub opened: Vec<Opened>,
    /// Namespaces that could not be opened.
    pub failures: Vec<Failure>,
    /// Namespaces beyond the limit.
    pub beyond_limit: usize,
    /// Namespaces of processes that this user may not look at.
    pub hidden: usize,
    /// Known namespaces that nothing on this node refers to any more.
    pub gone: Vec<u64>,
    /// The names of known namespaces that had none.
    pub named: Vec<(u64, String)>,
}

/// Opens every namespace that is not known yet.
pub(super) fn scan(known: &Known, limit: usize) -> io::Result<Scan> {
    let mut scan = Scan::default();
    // A process may end between the look and the opening, while its namespace lives on through something else: then
    // look once more. What has vanished twice is taken for gone.
    for _ in 0..2 {
        let Found {
            mut candidates,
            beyond_limit,
            hidden,
            present,
        } = find(limit)?;
        let named = candidates
            .iter()
            .filter(|candidate| known.unnamed.contains(&candidate.inode))
            .filter_map(|candidate| Some((candidate.inode, candidate.name.clone()?)))
            .take(NAMED_MAX)
            .collect();
        candidates.retain(|candidate| {
            let inode = candidate.inode;
            !known.open.contains(&inode) && scan.opened.iter().all(|opened| opened.inode != inode)
        });
        let (opened, failures) = open(candidates);
        scan.opened.extend(opened);
        scan.failures = failures;
        scan.beyond_limit = beyond_limit;
        scan.hidden = hidden.len();
        scan.gone = known.open.difference(&present).copied().collect();
        scan.named = named;
        if !scan.failures.iter().any(|failure| failure.vanished()) {
            break;
        }
    }
    scan.failures.retain(|failure| !failure.vanished());
    Ok(scan)
}

fn failure(inode: u64, errno: Errno) -> Failure {
    Failure {
        inode,
        error: errno as i32,
    }
}

/// Opens each namespace and a socket in it.
fn open(candidates: Vec<Candidate>) -> (Vec<Opened>, Vec<Failure>) {
    let mut opened = Vec::with_capacity(candidates.len());
    let mut failures = Vec::new();
    let mut handles = Vec::with_capacity(candidates.len());
    for candidate in candidates {
        match open_handle(&candidate) {
            Ok(handle) => handles.push((candidate, handle)),
            Err(errno) => failures.push(failure(candidate.inode, errno)),
        }
    }
    let inside = in_each(
        &handles,
        |(_, handle)| handle.as_fd(),
        |_| {
            Ok((
                RouteSocket::open()?,
                DiagSocket::open().ok(),
                Sysctls::open(),
            ))
        },
    );
    for ((candidate, handle), inside) in handles.into_iter().zip(inside) {
        match inside.and_then(|inside| inside) {
            Ok((socket, diag, sysctls)) => opened.push(Opened {
                inode: candidate.inode,
                name: candidate.name,
                handle,
                socket,
                diag,
                sysctls,
            }),
            Err(errno) => failures.push(failure(candidate.inode, errno)),
        }
    }
    (opened, failures)
}

/// Opens the path and makes sure that it still refers to the namespace for which it was found.
fn open_handle(candidate: &Candidate) -> Result<File, Errno> {
    let errno = |error: io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
    let file = OpenOptions::new()
        .read(true)
        // A path that has meanwhile become a pipe must not block us.
        .custom_flags(libc::O_NONBLOCK)
        .open(&candidate.path)
        .map_err(errno)?;
    if file.metadata().map_err(errno)?.ino() == candidate.inode {
        Ok(file)
    } else {
        Err(Errno::ESTALE)
    }
}

/// Runs `work` inside the namespace of each item, on a thread of its own that ends with it: no other thread ever
/// changes its namespace. An item whose namespace cannot be entered yields why.
pub(crate) fn in_each<'a, T: Sync, R: Send>(
    items: &'a [T],
    netns: impl Fn(&'a T) -> BorrowedFd<'a> + Sync,
    mut work: impl FnMut(&'a T) -> R + Send,
) -> Vec<Result<R, Errno>> {
    let enter_all = || {
        let mut here = fs::metadata("/proc/thread-self/ns/net")
            .ok()
            .map(|file| file.ino());
        items
            .iter()
            .map(|item| {
                let fd = netns(item);
                let there = nix::sys::stat::fstat(fd)?.st_ino;
                // Where we are already, no privilege is needed.
                if here != Some(there) {
                    setns(fd, CloneFlags::CLONE_NEWNET)?;
                    here = Some(there);
                }
                Ok(work(item))
            })
            .collect()
    };
    thread::scope(|scope| {
        let spawned = thread::Builder::new()
            .name("netns".to_owned())
            .spawn_scoped(scope, enter_all);
        match spawned {
            Ok(thread) => thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => items.iter().map(|_| Err(Errno::EAGAIN)).collect(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_namespace_is_found_first_and_opens_without_privilege() {
        let found = find(100).unwrap();
        let own = fs::metadata("/proc/thread-self/ns/net").unwrap().ino();
        assert_eq!(found.candidates[0].inode, own);
        let (opened, failures) = open(found.candidates[..1].to_vec());
        assert!(failures.is_empty(), "{failures:?}");
        assert_eq!(opened[0].inode, own);
    }

    #[test]
    fn namespaces_beyond_the_limit_are_counted() {
        let mut seen = Seen {
            device: 4,
            limit: 2,
            inodes: BTreeMap::new(),
            found: Found::default(),
        };
        for inode in [10, 11, 12, 13, 12, 10] {
            seen.add(inode, None, Path::new("/proc/1/ns/net"));
        }
        seen.add(11, Some("later".to_owned()), Path::new("/run/netns/later"));
        let inodes: Vec<u64> = seen
            .found
            .candidates
            .iter()
            .map(|found| found.inode)
            .collect();
        assert_eq!(inodes, [10, 11]);
        assert_eq!(seen.found.candidates[1].name.as_deref(), Some("later"));
        assert_eq!(seen.found.beyond_limit, 2);
    }

    #[test]
    fn mounts_of_network_namespaces_are_read_with_their_escapes() {
        let mountinfo = b"22 1 0:21 / /sys rw,nosuid - sysfs sysfs rw\n\
            97 30 0:4 net:[4026532245] /run/docker/netns/default rw shared:55 - nsfs nsfs rw\n\
            98 30 0:4 mnt:[4026532246] /run/snapd/ns/lxd.mnt rw - nsfs nsfs rw\n\
            99 30 0:4 net:[4026532247] /run/a\\040b\\134c rw - nsfs nsfs rw\n";
        assert_eq!(
            mounted(mountinfo),
            [
                (4_026_532_245, PathBuf::from("/run/docker/netns/default")),
                (4_026_532_247, PathBuf::from("/run/a b\\c")),
            ]
        );
    }

    #[test]
    fn a_path_that_refers_to_another_namespace_now_is_not_opened() {
        let candidate = Candidate {
            inode: 1,
            name: None,
            path: PathBuf::from("/proc/thread-self/ns/net"),
        };
        let (opened, failures) = open(vec![candidate]);
        assert!(opened.is_empty());
        assert!(failures[0].vanished());
    }
}
