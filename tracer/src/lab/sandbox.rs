//! A place whose namespaces nobody else sees and nothing outlives.
//!
//! One thread gets a mount namespace of its own with a fresh `/run/netns`. Names made there by `ip netns add` are
//! mounts inside it, so the kernel takes them back together with the last thread or child that lives in it: there
//! is no clean-up that SIGKILL could prevent, and two sandboxes with the same names do not meet.

use std::panic;
use std::path::Path;
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::LabError;

const NETNS_DIRECTORY: &str = "/run/netns";

/// Runs `body` in a sandbox, on a thread of its own, and waits for it. Needs root.
///
/// Threads and children that `body` starts live in the sandbox too, and see its names as an operator of this machine
/// would. A panic in `body` goes on in the caller.
pub fn run<T: Send>(body: impl FnOnce() -> T + Send) -> Result<T, LabError> {
    let outcome = thread::scope(|scope| {
        scope
            .spawn(|| {
                enter()?;
                Ok(body())
            })
            .join()
    });
    outcome.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
}

/// Gives the calling thread its own mounts.
fn enter() -> Result<(), LabError> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| LabError::System {
        what: "making a private mount namespace (this needs root)".to_owned(),
        source: errno.into(),
    })?;
    let mounted = |what: &str, source: Option<&str>, target: &str, kind: Option<&str>, flags| {
        mount(source, target, kind, flags, None::<&str>).map_err(|errno| LabError::System {
            what: what.to_owned(),
            source: errno.into(),
        })
    };
    mounted(
        "making every mount private",
        None,
        "/",
        None,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
    )?;
    if !Path::new(NETNS_DIRECTORY).exists() {
        std::fs::create_dir_all(NETNS_DIRECTORY)
            .map_err(LabError::system(format!("creating {NETNS_DIRECTORY}")))?;
    }
    mounted(
        "mounting a fresh directory for the names of namespaces",
        Some("tmpfs"),
        NETNS_DIRECTORY,
        Some("tmpfs"),
        MsFlags::empty(),
    )
}
