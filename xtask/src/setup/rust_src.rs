//! The source of Rust's `core`, of exactly this rustc's version: the kernel half builds `core` for the BPF target.
//!
//! rustup provides it where rustup manages this rustc and reaches its server. Otherwise Debian does: its
//! `rust-src` package is unpacked into the cache, not installed, and linked into the sysroot.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};

use super::{
    Progress,
    apt::{self, PrivateApt},
    step,
};
use crate::{command, toolchain::Rustc};

/// How long rustup may take before Debian is asked.
const RUSTUP_LIMIT: Duration = Duration::from_mins(2);

/// The Debian suite that has the packages of recent Rust releases side by side.
const SUITE: &str = "trixie-backports";

/// Provides the source unless it is there.
pub fn ensure(rustc: &Rustc, progress: Progress) -> Result<()> {
    let place = rustc.sysroot.join("lib/rustlib/src/rust");
    let what = format!("the source of Rust {}", rustc.release);
    if is_source(&place, &rustc.release) {
        progress.already_there(&what);
        return Ok(());
    }
    let why = "the kernel half builds `core` for the BPF target";
    if place.is_symlink() {
        // A link of ours from before a toolchain update, or one whose cache was emptied.
        fs::remove_file(&place).with_context(|| format!("cannot remove {}", place.display()))?;
    }
    step(&format!("asking rustup for {what}"), why);
    let rustup = by_rustup();
    if is_source(&place, &rustc.release) {
        return Ok(());
    }
    let reason = rustup
        .err()
        .unwrap_or_else(|| anyhow!("it added none to {}", rustc.sysroot.display()));
    step(
        &format!(
            "taking {what} from Debian's {SUITE}, as rustup could not provide it ({reason:#})"
        ),
        why,
    );
    let source = by_debian(&rustc.release).with_context(|| {
        format!(
            "{what} must be in {}: `rustup component add rust-src` where rustup works, else unpack the rust-src \
             archive of exactly this release there",
            place.display()
        )
    })?;
    link(&source, &place)
}

/// Whether a directory holds the library's source, and not that of another release where its name tells.
fn is_source(place: &Path, release: &str) -> bool {
    if !place.join("library/core/src/lib.rs").is_file() {
        return false;
    }
    let Ok(place) = place.canonicalize() else {
        return false;
    };
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    name.strip_prefix("rustc-")
        .is_none_or(|version| version == release)
}

fn by_rustup() -> Result<()> {
    if command::find("rustup").is_none() {
        bail!("rustup is not here");
    }
    command::run_bounded(
        Command::new("rustup")
            .args(["--quiet", "component", "add", "rust-src"])
            .env_remove("RUST_BACKTRACE")
            .current_dir(command::workspace()),
        RUSTUP_LIMIT,
    )
}

/// Unpacks Debian's package into the cache and returns the directory of the source.
fn by_debian(release: &str) -> Result<PathBuf> {
    let cache = super::cache_directory();
    let unpacked = cache.join(format!("rust-src-{release}"));
    let source = unpacked.join(format!("usr/src/rustc-{release}"));
    if is_source(&source, release) {
        return Ok(source);
    }
    let private = PrivateApt::for_suite(&cache.join("apt"), SUITE)?;
    private.update()?;
    let versions = private.versions("rust-src")?;
    let version = versions
        .iter()
        .find(|version| apt::upstream_release(version) == release)
        .with_context(|| {
            format!(
                "{SUITE} has rust-src {}, but not {release}",
                versions.join(", ")
            )
        })?;
    let package = private.download("rust-src", version)?;
    // Unpacked beside its place and moved, so that an interrupted run leaves nothing that looks whole.
    let partial = cache.join(format!("rust-src-{release}.partial"));
    for leftover in [&partial, &unpacked] {
        if leftover.exists() {
            fs::remove_dir_all(leftover)
                .with_context(|| format!("cannot remove {}", leftover.display()))?;
        }
    }
    command::run(Command::new("dpkg").arg("-x").arg(&package).arg(&partial))?;
    fs::rename(&partial, &unpacked)?;
    fs::remove_file(&package)?;
    if !is_source(&source, release) {
        bail!("Debian's rust-src {version} has no {}", source.display());
    }
    Ok(source)
}

fn link(source: &Path, place: &Path) -> Result<()> {
    let parent = place.parent().context("the sysroot has no parent")?;
    fs::create_dir_all(parent)
        .and_then(|()| symlink(source, place))
        .with_context(|| format!("cannot link {} to {}", place.display(), source.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source_at(place: &Path) {
        fs::create_dir_all(place.join("library/core/src")).unwrap();
        fs::write(place.join("library/core/src/lib.rs"), "").unwrap();
    }

    #[test]
    fn a_plain_directory_is_rustups_and_always_fits() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("rust");
        assert!(!is_source(&place, "1.95.0"));
        source_at(&place);
        assert!(is_source(&place, "1.95.0"));
    }

    #[test]
    fn a_link_to_another_release_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("rustc-1.95.0");
        let place = directory.path().join("lib/rust");
        source_at(&source);
        link(&source, &place).unwrap();
        assert!(is_source(&place, "1.95.0"));
        assert!(!is_source(&place, "1.96.0"));
    }

    #[test]
    fn a_link_to_an_emptied_cache_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("rust");
        link(&directory.path().join("rustc-1.95.0"), &place).unwrap();
        assert!(!is_source(&place, "1.95.0"));
        assert!(place.is_symlink());
    }
}
