//! `setup`: what a fresh machine lacks. Every other task calls it, so it is quick where nothing is missing.
//!
//! It installs what the tasks need and changes nothing else: no mounts, no kernel settings, no apt sources.

pub mod apt;
mod linker;
mod packages;
mod rust_src;

use std::{env, path::PathBuf};

use anyhow::Result;

use crate::{output, toolchain::Rustc};

/// Install what the other tasks need; says what it does and why.
#[derive(clap::Args)]
pub struct Arguments {
    /// Also name what is already there
    #[arg(short, long)]
    verbose: bool,
}

/// The task itself.
pub fn perform(arguments: &Arguments) -> Result<()> {
    let progress = Progress {
        verbose: arguments.verbose,
    };
    ready(progress)?;
    // Only without apt can something still be missing here.
    if packages::missing_tools().is_empty() {
        note("this machine is ready");
    } else {
        note("this machine is ready to build and run tracer, but not for the lab");
    }
    Ok(())
}

/// What every other task does first: silent where nothing is missing.
pub fn ensure() -> Result<()> {
    ready(Progress { verbose: false })
}

/// What guests need besides: QEMU, and what their initramfs is made of.
pub fn ensure_guests() -> Result<()> {
    packages::install(&packages::missing_for_guests())
}

/// The programs that the lab calls, by name.
pub fn lab_programs() -> impl Iterator<Item = &'static str> {
    packages::tool_programs()
}

/// What `bench` needs besides: the tools that tracer is compared with. Nothing else is measured with them.
pub fn ensure_rivals() -> Result<()> {
    packages::install(&packages::missing_rivals())
}

fn ready(progress: Progress) -> Result<()> {
    let rustc = Rustc::query()?;
    let mut missing = packages::missing_tools();
    if missing.is_empty() {
        progress.already_there("the lab's tools");
    }
    let linker = linker::good_version();
    if linker.is_none() {
        missing.extend(linker::missing_llvm(&rustc));
    }
    packages::install(&missing)?;
    match linker {
        Some(version) => progress.already_there(&format!("bpf-linker {version}")),
        None => linker::install(&rustc)?,
    }
    rust_src::ensure(&rustc, progress)
}

/// How much the steps say.
#[derive(Clone, Copy)]
struct Progress {
    verbose: bool,
}

impl Progress {
    /// A step that was done before.
    fn already_there(self, what: &str) {
        if self.verbose {
            output::say(&format!("setup: {what}: already there"));
        }
    }
}

/// Says that a step begins that changes the machine, and why it is needed.
pub fn step(action: &str, why: &str) {
    output::say(&format!("setup: {action}: {why}"));
}

/// Says something unexpected that does not stop the setup.
fn note(text: &str) {
    output::say(&format!("setup: {text}"));
}

/// Where downloads are kept between runs, outside the tree so that a clean checkout need not fetch them again.
pub fn cache_directory() -> PathBuf {
    choose_cache_directory(
        env::var_os("XDG_CACHE_HOME").map(PathBuf::from),
        env::home_dir(),
    )
}

fn choose_cache_directory(xdg_cache_home: Option<PathBuf>, home: Option<PathBuf>) -> PathBuf {
    xdg_cache_home
        .filter(|directory| directory.is_absolute())
        .or_else(|| {
            Some(home?)
                .filter(|home| home.is_absolute())
                .map(|home| home.join(".cache"))
        })
        .unwrap_or_else(|| PathBuf::from("/var/cache"))
        .join("tracer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_where_the_user_keeps_caches() {
        let choose = |xdg: Option<&str>, home: Option<&str>| {
            choose_cache_directory(xdg.map(PathBuf::from), home.map(PathBuf::from))
        };
        assert_eq!(
            choose(Some("/xdg"), Some("/home/a")),
            PathBuf::from("/xdg/tracer")
        );
        assert_eq!(
            choose(Some("relative"), Some("/home/a")),
            PathBuf::from("/home/a/.cache/tracer")
        );
        assert_eq!(choose(None, Some("")), PathBuf::from("/var/cache/tracer"));
        assert_eq!(choose(None, None), PathBuf::from("/var/cache/tracer"));
    }
}
