//! One network namespace: what is configured in it, and what is run in it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::linux::fs::MetadataExt as _;
use std::panic;
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};

use super::LabError;
use super::command;

const LINKS_UP_WITHIN: Duration = Duration::from_secs(5);

/// A named network namespace of this sandbox. The sandbox, not this handle, ends it.
#[derive(Debug)]
pub struct Netns {
    name: String,
    file: File,
}

impl Netns {
    /// Adds a namespace with its loopback up.
    pub fn add(name: &str) -> Result<Self, LabError> {
        command::run("ip", &["netns", "add", name], "")?;
        let path = format!("/run/netns/{name}");
        let file = File::open(&path).map_err(LabError::system(format!("opening {path}")))?;
        let netns = Self {
            name: name.to_owned(),
            file,
        };
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// The name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The inode number that identifies the namespace as long as it lives.
    pub fn inum(&self) -> Result<u64, LabError> {
        let metadata = self
            .file
            .metadata()
            .map_err(LabError::system(format!("reading netns {}", self.name)))?;
        Ok(metadata.st_ino())
    }

    /// Runs `body` on a thread inside the namespace and waits for it. Sockets that it makes stay in the namespace,
    /// wherever they are used afterwards. A panic in `body` goes on in the caller.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> Result<T, LabError> {
        let outcome = thread::scope(|scope| {
            scope
                .spawn(|| {
                    setns(&self.file, CloneFlags::CLONE_NEWNET).map_err(|errno| {
                        LabError::System {
                            what: format!("entering netns {}", self.name),
                            source: errno.into(),
                        }
                    })?;
                    Ok(body())
                })
                .join()
        });
        outcome.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    }

    /// Runs a program to its end inside the namespace and returns what it printed.
    pub fn command(&self, program: &str, args: &[&str]) -> Result<String, LabError> {
        self.run(|| command::run(program, args, ""))?
    }

    /// Waits until the kernel has activated every device: before that, a device's queue drops what it is given.
    pub fn wait_for_links(&self) -> Result<(), LabError> {
        let deadline = Instant::now() + LINKS_UP_WITHIN;
        loop {
            let links = self.command("ip", &["-brief", "link", "show", "up"])?;
            let waiting = links.lines().find(|link| link.contains("NO-CARRIER"));
            match waiting {
                None => return Ok(()),
                Some(link) if Instant::now() > deadline => {
                    let what = format!("waiting in netns {} for the link {link}", self.name);
                    return Err(LabError::system(what)(io::ErrorKind::TimedOut.into()));
                }
                Some(_) => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Runs lines of `ip` commands (each without the leading `ip`), stopping at the first that fails.
    pub fn ip(&self, lines: &str) -> Result<(), LabError> {
        command::run("ip", &["-n", &self.name, "-batch", "-"], lines)?;
        Ok(())
    }

    /// Applies an nftables ruleset, all of it or nothing.
    pub fn nft(&self, ruleset: &str) -> Result<(), LabError> {
        self.run(|| command::run("nft", &["-f", "-"], ruleset))??;
        Ok(())
    }

    /// Sets a sysctl, named by its path below `/proc/sys` (`net/ipv4/ip_forward`).
    pub fn sysctl(&self, path: &str, value: &str) -> Result<(), LabError> {
        let file = format!("/proc/sys/{path}");
        self.run(|| fs::write(&file, value))?
            .map_err(LabError::system(format!(
                "writing {value} to {file} in netns {}",
                self.name
            )))
    }

    /// Reads a counter of `/proc/net/{snmp,netstat}`, such as `("TcpExt", "ListenOverflows")`.
    pub fn counter(&self, group: &str, name: &str) -> Result<u64, LabError> {
        // `/proc/net` is the namespace of the process's first thread; only `thread-self` is ours.
        let files = [
            "/proc/thread-self/net/netstat",
            "/proc/thread-self/net/snmp",
        ];
        let texts: io::Result<Vec<String>> =
            self.run(|| files.iter().map(fs::read_to_string).collect())?;
        let what = format!("counter {group} {name} in netns {}", self.name);
        let texts = texts.map_err(LabError::system(what.clone()))?;
        texts
            .iter()
            .find_map(|text| find_counter(text, group, name))
            .ok_or_else(|| LabError::system(what)(ErrorKind::NotFound.into()))
    }
}

/// Finds a value in a file of two-line groups: a line of names, then a line of values.
fn find_counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut rows = text
        .lines()
        .filter_map(|line| line.strip_prefix(group)?.strip_prefix(':'));
    let names = rows.next()?;
    let values = rows.next()?;
    let (_, value) = names
        .split_whitespace()
        .zip(values.split_whitespace())
        .find(|(found, _)| *found == name)?;
    value.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::find_counter;

    #[test]
    fn a_counter_is_found_in_its_own_group_only() {
        let text =
            "Ip: Forwarding InReceives\nIp: 1 42\nIpExt: InNoRoutes InReceives\nIpExt: 0 7\n";
        assert_eq!(find_counter(text, "Ip", "InReceives"), Some(42));
        assert_eq!(find_counter(text, "IpExt", "InReceives"), Some(7));
        assert_eq!(find_counter(text, "Ip", "InNoRoutes"), None);
    }
}
