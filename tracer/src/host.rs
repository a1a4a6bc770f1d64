//! Which node this is: what the header of a capture says about where it was written.

use std::{fs, io};

use sha2::{Digest as _, Sha256};

/// Separates our hash of the machine id from everybody else's.
const MACHINE_ID_SALT: &[u8] = b"tracer machine-id\0";

/// The node, as a header names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// `uname -n`.
    pub hostname: String,
    /// The first 16 bytes of a salted SHA-256 of `/etc/machine-id`, in hexadecimal: equal for two captures of one
    /// machine, and the id itself (which systemd asks to keep confidential) cannot be told from it. Empty where
    /// the machine has no id.
    pub machine_id: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// `uname -r`.
    pub kernel: String,
    /// `uname -m`.
    pub arch: String,
}

impl Host {
    /// Reads it from the running system.
    pub fn read() -> io::Result<Self> {
        let name = nix::sys::utsname::uname()?;
        let text = |part: &std::ffi::OsStr| part.to_string_lossy().into_owned();
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        // A container image or a small initramfs often has none, which must not stop a trace.
        let machine_id = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        Ok(Self {
            hostname: text(name.nodename()),
            machine_id: hash(machine_id.trim()),
            boot_id: boot_id.trim().to_owned(),
            kernel: text(name.release()),
            arch: text(name.machine()),
        })
    }
}

fn hash(machine_id: &str) -> String {
    // systemd writes "uninitialized" on the first boot of an image: many machines would share that.
    if machine_id.is_empty() || machine_id == "uninitialized" {
        return String::new();
    }
    let digest = Sha256::new()
        .chain_update(MACHINE_ID_SALT)
        .chain_update(machine_id)
        .finalize();
    let [first, second] = [&digest[..8], &digest[8..16]].map(|half| {
        let bytes = half.iter();
        bytes.fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
    });
    format!("{first:016x}{second:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_id_is_hashed_and_stable_across_versions() {
        // printf 'tracer machine-id\0%s' 0123456789abcdef0123456789abcdef | sha256sum | cut -c-32
        assert_eq!(
            hash("0123456789abcdef0123456789abcdef"),
            "61dcaace5c51f75338339e49f4be5e03"
        );
        assert_eq!(hash(""), "");
        assert_eq!(hash("uninitialized"), "");
    }

    #[test]
    fn this_machine_has_a_name_a_boot_and_a_kernel() {
        let host = Host::read().unwrap();
        assert!(!host.hostname.is_empty());
        assert_eq!(host.boot_id.len(), 36);
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        assert_eq!(host.kernel, kernel.trim());
        assert_eq!(host.arch, std::env::consts::ARCH);
    }
}
