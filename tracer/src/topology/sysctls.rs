//! The sysctls of a namespace's devices. `/proc/sys/net` shows the namespace of whoever looks a path up, so the
//! directories are opened inside each namespace while that is allowed; what is opened below them later is that
//! namespace's own, and any user may read it.

use std::{fs::File, io::Read as _, os::fd::OwnedFd};

use nix::{
    fcntl::{OFlag, open, openat},
    sys::stat::Mode,
};

/// The longest value; those that are read are small numbers.
const VALUE_BYTES_MAX: u64 = 32;

/// The directories `conf` of one namespace.
#[derive(Debug, Default)]
pub(super) struct Sysctls {
    pub ipv4: Option<OwnedFd>,
    /// Missing where IPv6 is not built in.
    pub ipv6: Option<OwnedFd>,
}

impl Sysctls {
    /// Opens them in the namespace of the calling thread.
    pub(super) fn open() -> Self {
        let directory = |version: &str| {
            let path = format!("/proc/sys/net/{version}/conf");
            let flags = OFlag::O_DIRECTORY | OFlag::O_RDONLY | OFlag::O_CLOEXEC;
            open(path.as_str(), flags, Mode::empty()).ok()
        };
        Self {
            ipv4: directory("ipv4"),
            ipv6: directory("ipv6"),
        }
    }

    /// The value for a device, or for `all`.
    pub(super) fn read(&self, ipv6: bool, device: &str, name: &str) -> Option<i64> {
        // A device's name has no slash (`dev_valid_name()` in net/core/dev.c), and one with a NUL is no path.
        self.number(ipv6, &format!("{device}/{name}"))
    }

    /// A value of `net.ipv4` that is not a device's.
    pub(super) fn of_ipv4(&self, name: &str) -> Option<i64> {
        self.number(false, &format!("../{name}"))
    }

    /// The number in a file below the directory `conf`.
    fn number(&self, ipv6: bool, path: &str) -> Option<i64> {
        let directory = if ipv6 { &self.ipv6 } else { &self.ipv4 };
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let file = openat(directory.as_ref()?, path, flags, Mode::empty()).ok()?;
        let mut text = String::new();
        File::from(file)
            .take(VALUE_BYTES_MAX)
            .read_to_string(&mut text)
            .ok()?;
        text.trim().parse().ok()
    }
}
