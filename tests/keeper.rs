//! Processes that hold what a test gives them: a socket, a connection, a tun device. They have names of their own, and may
//! run in what looks like a container.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::libc;
use tempfile::TempDir;
use tracer::lab::{Netns, mortal};

use crate::bpf::unified_hierarchy;

/// What a control group of Docker's is called, around the container's id.
const GROUP: (&str, &str) = ("docker-", ".scope");

/// A process that holds a descriptor until it is dropped.
#[derive(Debug)]
pub struct Keeper {
    child: Child,
    _program: TempDir,
    group: Option<PathBuf>,
}

impl Keeper {
    /// Holds it and does nothing. `name` is what `/proc/PID/comm` shows, at most 15 bytes.
    pub fn idle(name: &str, held: impl Into<OwnedFd>) -> Result<Self> {
        let (program, path) = renamed("sleep", name)?;
        let command = mortal(path);
        Self::start(command, &["60"], held.into(), program)
    }

    /// Does so in a network namespace.
    pub fn idle_in(netns: &Netns, name: &str, held: impl Into<OwnedFd>) -> Result<Self> {
        let (program, path) = renamed("sleep", name)?;
        let mut command = mortal("ip");
        command.args(["netns", "exec", netns.name()]).arg(path);
        Self::start(command, &["60"], held.into(), program)
    }

    /// Sends back what comes on a connection.
    pub fn echo(name: &str, held: impl Into<OwnedFd>) -> Result<Self> {
        let (program, path) = renamed("cat", name)?;
        let held = held.into();
        let mut command = mortal(path);
        command.stdout(Stdio::from(held.try_clone()?));
        Self::start(command, &[], held, program)
    }

    fn start(
        mut command: std::process::Command,
        arguments: &[&str],
        held: OwnedFd,
        program: TempDir,
    ) -> Result<Self> {
        let child = command.args(arguments).stdin(Stdio::from(held)).spawn()?;
        Ok(Self {
            child,
            _program: program,
            group: None,
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Moves it into a control group as Docker would make one, and returns the container's id.
    pub fn into_container(&mut self) -> Result<String> {
        let root = unified_hierarchy()?;
        let id = format!("{:064x}", self.pid());
        let group = root.join(format!("{}{id}{}", GROUP.0, GROUP.1));
        fs::create_dir(&group).with_context(|| format!("making {}", group.display()))?;
        self.group = Some(group.clone());
        fs::write(group.join("cgroup.procs"), self.pid().to_string())?;
        Ok(id)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(group) = &self.group {
            let _ = fs::remove_dir(group);
        }
    }
}

/// A copy of a program under another name, by which the kernel calls the process.
fn renamed(program: &str, name: &str) -> Result<(TempDir, PathBuf)> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join(name);
    let original = ["/bin", "/usr/bin"]
        .map(|directory| Path::new(directory).join(program))
        .into_iter()
        .find(|path| path.exists());
    let original = original.with_context(|| format!("there is no {program}"))?;
    fs::copy(original, &path)?;
    Ok((directory, path))
}

/// Makes a tun device in a namespace, which lives as long as the file is open.
pub fn tun(netns: &Netns, name: &str) -> Result<File> {
    let open = || -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/net/tun")?;
        // SAFETY: all zeroes are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: the request is a whole `ifreq`, which the kernel reads and writes, and it outlives the call.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
        if made == 0 {
            Ok(file)
        } else {
            Err(io::Error::last_os_error())
        }
    };
    ensure!(name.len() < libc::IFNAMSIZ, "{name} is too long");
    netns
        .run(open)?
        .with_context(|| format!("making {name} in netns {}", netns.name()))
}
