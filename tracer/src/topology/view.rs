//! What `--netns`, `--pods` and `--tc` mean: which namespaces are watched, and which devices at their `tc` hook.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    ffi::OsString,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use nix::errno::Errno;

use crate::{
    event::{DeviceId, NetnsId},
    record::{Device, View},
};

use super::{Netns, Topology, links, netns, routes::default_route_devices, rtnetlink::Dump};

/// The most names that an error lists.
const NAMES_SHOWN: usize = 12;

/// Why a namespace cannot be watched. The texts carry names from the file system: escape them when showing.
#[derive(Debug, thiserror::Error)]
pub enum ViewError {
    /// No such name.
    #[error("no network namespace {name:?}; there {}", listed(.known))]
    UnknownName {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<String>,
    },
    /// No such process.
    #[error("no process {0}")]
    UnknownProcess(String),
    /// The path cannot be looked at.
    #[error("{}: {error}", path.display())]
    Path {
        /// What was asked for.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// The path is something else.
    #[error("{} is not a network namespace", .0.display())]
    NotNetns(PathBuf),
    /// The namespace exists and could not be opened.
    #[error("the network namespace {name:?} could not be opened: {reason}")]
    Unreachable {
        /// What was asked for.
        name: String,
        /// Why not.
        reason: &'static str,
    },
    /// No such device where it was looked for.
    #[error("no device {name:?} in {place}; there {}", listed(.known))]
    UnknownDevice {
        /// What was asked for.
        name: String,
        /// Where.
        place: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A device in a namespace that is not watched.
    #[error("the network namespace {0:?} is not one of those of --netns")]
    NotWatched(String),
    /// The namespace cannot be entered any more.
    #[error("cannot refer to the network namespace of the device {name:?}: {error}")]
    Handle {
        /// The device.
        name: String,
        /// Why not.
        error: io::Error,
    },
    /// The routes that `--pods` asks for could not be read.
    #[error("cannot read the routes of network namespace {}: {errno}", netns.inum)]
    Routes {
        /// Where.
        netns: NetnsId,
        /// Why not.
        errno: Errno,
    },
}

/// A device that is watched at its `tc` hook.
#[derive(Clone, Debug)]
pub struct Entrance {
    /// Which device.
    pub id: DeviceId,
    /// Its name; untrusted.
    pub name: String,
    /// Refers to its namespace, for setns().
    pub netns: Arc<File>,
}

fn listed(known: &[String]) -> String {
    match known {
        [] => "is none with a name".to_owned(),
        [only] => format!("is only {only:?}"),
        _ => {
            let shown: Vec<String> = known
                .iter()
                .take(NAMES_SHOWN)
                .map(|name| format!("{name:?}"))
                .collect();
            let more = match known.len().saturating_sub(NAMES_SHOWN) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("are {}{more}", shown.join(", "))
        }
    }
}

/// The other end, as seen from each namespace, of every veth that leads into another one.
fn cables(devices: &[Device]) -> Vec<(NetnsId, DeviceId)> {
    devices
        .iter()
        .filter_map(|device| Some((device.id.netns, device.peer?)))
        .filter(|(near, far)| *near != far.netns)
        .collect()
}

fn path_of(name: &str) -> PathBuf {
    if name.contains('/') {
        PathBuf::from(name)
    } else if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()) {
        PathBuf::from(format!("/proc/{name}/ns/net"))
    } else {
        Path::new(netns::NAMED).join(name)
    }
}

fn not_there(name: &str, path: &Path, error: io::Error) -> ViewError {
    if error.kind() != io::ErrorKind::NotFound || name.contains('/') {
        return ViewError::Path {
            path: path.to_owned(),
            error,
        };
    }
    if path.starts_with(netns::NAMED) {
        ViewError::UnknownName {
            name: name.to_owned(),
            known: nearest_first(name, netns::names()),
        }
    } else {
        ViewError::UnknownProcess(name.to_owned())
    }
}

/// Puts the names first that begin as the unknown one does.
fn nearest_first(name: &str, known: Vec<OsString>) -> Vec<String> {
    let known = known.into_iter();
    let known = known.map(|other| other.to_string_lossy().into_owned());
    nearest_of(name, known.collect())
}

fn nearest_of(name: &str, mut known: Vec<String>) -> Vec<String> {
    let common = |other: &str| {
        let pairs = name.chars().zip(other.chars());
        pairs.take_while(|(left, right)| left == right).count()
    };
    known.sort_by_key(|other| std::cmp::Reverse(common(other)));
    known
}

impl Topology {
    /// The namespaces that `--netns` names, each by its name in `/run/netns`, by a process id (all digits) or by a path
    /// (with a slash), and with `--pods` those behind their veths whose default route leads back through the veth. No
    /// name at all is the whole kernel.
    pub fn view(&mut self, names: &[String], pods: bool) -> Result<View, ViewError> {
        if names.is_empty() {
            return Ok(View::Kernel);
        }
        let mut netns = BTreeSet::new();
        for name in names {
            netns.insert(self.named(name)?);
        }
        if pods {
            netns.extend(self.pods(&netns)?);
        }
        Ok(View::Netns {
            netns: netns.into_iter().collect(),
        })
    }

    /// The devices that `--tc` names: `DEV` in the namespaces of `--netns`, or in our own where there are none, and
    /// `NETNS/DEV` in the one that is named as `--netns` names it. Each device comes once.
    pub fn entrances(&self, names: &[String], view: &View) -> Result<Vec<Entrance>, ViewError> {
        let mut entrances: BTreeMap<DeviceId, Entrance> = BTreeMap::new();
        let devices = self.devices();
        for name in names {
            let (netns, place, device) = match name.rsplit_once('/') {
                Some((place, device)) => {
                    let netns = self.named(place)?;
                    if !view.contains(netns) {
                        return Err(ViewError::NotWatched(place.to_owned()));
                    }
                    (
                        vec![netns],
                        format!("the network namespace {place:?}"),
                        device,
                    )
                }
                None => match view {
                    View::Netns { netns } => (
                        netns.clone(),
                        "the network namespaces of --netns".to_owned(),
                        &**name,
                    ),
                    View::Kernel => {
                        let own = self.namespaces.first().map(|own| own.id);
                        let place = "tracer's own network namespace".to_owned();
                        (own.into_iter().collect(), place, &**name)
                    }
                },
            };
            let (found, others): (Vec<&Device>, Vec<&Device>) = devices
                .iter()
                .filter(|known| netns.contains(&known.id.netns))
                .partition(|known| known.name == device);
            if found.is_empty() {
                let known = others.into_iter().map(|other| other.name.clone());
                return Err(ViewError::UnknownDevice {
                    name: device.to_owned(),
                    place,
                    known: nearest_of(device, known.collect()),
                });
            }
            for found in found {
                entrances.insert(found.id, self.entrance(found)?);
            }
        }
        Ok(entrances.into_values().collect())
    }

    fn entrance(&self, device: &Device) -> Result<Entrance, ViewError> {
        let opened = self.namespaces.iter();
        let opened = opened.filter(|opened| opened.id == device.id.netns);
        let handle = opened.map(|opened| opened.handle.try_clone()).next();
        let handle = handle.unwrap_or_else(|| Err(io::ErrorKind::NotFound.into()));
        Ok(Entrance {
            id: device.id,
            name: device.name.clone(),
            netns: Arc::new(handle.map_err(|error| ViewError::Handle {
                name: device.name.clone(),
                error,
            })?),
        })
    }

    fn named(&self, name: &str) -> Result<NetnsId, ViewError> {
        let path = path_of(name);
        let inode = netns::inode_at(&path).map_err(|error| not_there(name, &path, error))?;
        let Some(inode) = inode else {
            return Err(ViewError::NotNetns(path));
        };
        match self.by_inode(inode) {
            Ok(netns) => Ok(netns),
            Err(reason) => Err(ViewError::Unreachable {
                name: name.to_owned(),
                reason,
            }),
        }
    }

    /// The namespaces that hang from the named ones.
    fn pods(&mut self, named: &BTreeSet<NetnsId>) -> Result<BTreeSet<NetnsId>, ViewError> {
        let mut pods = BTreeSet::new();
        let mut defaults: BTreeMap<NetnsId, BTreeSet<u32>> = BTreeMap::new();
        for (near, far) in cables(&self.devices()) {
            if !named.contains(&near) || named.contains(&far.netns) || pods.contains(&far.netns) {
                continue;
            }
            let devices = match defaults.entry(far.netns) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.default_route_devices(far.netns)?),
            };
            if devices.contains(&far.ifindex) {
                pods.insert(far.netns);
            }
        }
        Ok(pods)
    }

    fn default_route_devices(&mut self, netns: NetnsId) -> Result<BTreeSet<u32>, ViewError> {
        let mut devices = BTreeSet::new();
        let Some(index) = self.namespaces.iter().position(|open| open.id == netns) else {
            return Ok(devices);
        };
        let Netns { id, socket, .. } = &mut self.namespaces[index];
        let table = &mut self.table;
        socket
            .dump(Dump::Routes, &mut self.buffer, &mut |message| {
                if let Some(change) = links::parse(message) {
                    table.apply(*id, change);
                }
                devices.extend(default_route_devices(message));
            })
            .map_err(|errno| ViewError::Routes { netns, errno })?;
        Ok(devices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_a_process_and_a_path_are_told_apart() {
        let check = |name: &str, path: &str| assert_eq!(path_of(name), Path::new(path));
        check("blue", "/run/netns/blue");
        check("4242", "/proc/4242/ns/net");
        check("4242a", "/run/netns/4242a");
        check("/proc/1/ns/net", "/proc/1/ns/net");
        check("./here", "./here");
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_names() {
        let known = ["green", "worker-1", "worker-2"]
            .map(OsString::from)
            .to_vec();
        let error = ViewError::UnknownName {
            name: "worker-3".to_owned(),
            known: nearest_first("worker-3", known),
        };
        assert_eq!(
            error.to_string(),
            "no network namespace \"worker-3\"; there are \"worker-1\", \"worker-2\", \"green\""
        );
    }

    #[test]
    fn names_from_the_file_system_cannot_speak_to_the_terminal() {
        let error = ViewError::UnknownName {
            name: "\u{1b}[2J".to_owned(),
            known: vec!["\u{202e}x".to_owned()],
        };
        assert_eq!(
            error.to_string(),
            "no network namespace \"\\u{1b}[2J\"; there is only \"\\u{202e}x\""
        );
    }

    #[test]
    fn a_long_list_of_names_is_cut() {
        let known: Vec<String> = (0..14).map(|number| format!("n{number}")).collect();
        assert!(listed(&known).ends_with("\"n11\" and 2 more"));
        assert_eq!(listed(&[]), "is none with a name");
    }
}
