//! What tracer may do: enough to attach, and nothing from then on. What parses bytes runs without capabilities.

use std::time::{Duration, Instant};
use std::{fs, io, thread};

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};

/// What attaching needs, and what for.
const NEEDED: [(Capability, &str); 4] = [
    (Capability::CAP_BPF, "to load programs"),
    (Capability::CAP_PERFMON, "to attach them to tracepoints"),
    (
        Capability::CAP_NET_ADMIN,
        "to attach them to network devices",
    ),
    (Capability::CAP_SYS_ADMIN, "to look into network namespaces"),
];

/// The identity mapping of the initial user namespace.
const EVERY_USER: [&str; 3] = ["0", "0", "4294967295"];

/// A thread that was joined is still listed until the kernel has buried it (`pthread_join` returns at `mm_release`,
/// `/proc` forgets at `release_task`), which takes long only on a busy machine.
const BURIED_WITHIN: Duration = Duration::from_secs(1);

/// Why attaching cannot work.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Missing {
    /// Some capabilities are not there.
    #[error("tracer needs root: run it with sudo (missing {})", purposes(.0))]
    Capabilities(Vec<Capability>),
    /// Root in a container, which is nobody outside of it.
    #[error(
        "tracer needs root on the node itself: this user namespace only maps some users, and BPF needs capabilities outside of it"
    )]
    UserNamespace,
}

/// Why the privilege could not be dropped.
#[derive(Debug, thiserror::Error)]
pub enum DropError {
    /// The kernel refused.
    #[error("cannot drop capabilities: {0}")]
    Capabilities(#[from] CapsError),
    /// The kernel refused.
    #[error("cannot set no_new_privs: {0}")]
    NoNewPrivileges(#[from] nix::errno::Errno),
    /// `/proc/self/task` cannot be read.
    #[error("cannot see whether all threads have dropped their capabilities: {0}")]
    Threads(#[from] io::Error),
    /// Capabilities belong to threads: whoever was started before keeps its own.
    #[error("{0} threads were started before the capabilities were dropped and keep theirs")]
    OtherThreads(usize),
}

fn purposes(missing: &[Capability]) -> String {
    NEEDED
        .iter()
        .filter(|(capability, _)| missing.contains(capability))
        .map(|(capability, purpose)| format!("{capability} {purpose}"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Whether this thread may attach.
pub fn check() -> Result<(), Missing> {
    let effective = caps::read(None, CapSet::Effective).unwrap_or_default();
    let missing = missing(&effective);
    if !missing.is_empty() {
        return Err(Missing::Capabilities(missing));
    }
    match fs::read_to_string("/proc/self/uid_map") {
        Ok(map) if !map.split_whitespace().eq(EVERY_USER) => Err(Missing::UserNamespace),
        // A kernel without user namespaces has no such file.
        _ => Ok(()),
    }
}

fn missing(effective: &CapsHashSet) -> Vec<Capability> {
    // CAP_SYS_ADMIN includes the two that Linux 5.8 split off from it (`bpf_capable()`, `perfmon_capable()` in
    // include/linux/capability.h).
    let admin = effective.contains(&Capability::CAP_SYS_ADMIN);
    NEEDED
        .iter()
        .map(|(capability, _)| *capability)
        .filter(|capability| {
            let implied = matches!(capability, Capability::CAP_BPF | Capability::CAP_PERFMON);
            !(effective.contains(capability) || implied && admin)
        })
        .collect()
}

/// Drops every capability but `keep` for good, and forbids to gain any by executing a program. The calling thread must
/// be the only one, since the others would keep theirs: those that it starts later have none.
///
/// Maps that are open can be read without any capability since Linux 5.19, even where `kernel.unprivileged_bpf_disabled`
/// is set; a kernel that refuses leaves us CAP_BPF, which is tried and not guessed. Says what was kept.
pub fn drop_all(keep: &[Capability]) -> Result<Vec<Capability>, DropError> {
    let mut kept = keep.to_vec();
    if !maps_are_readable_without_capabilities()? {
        kept.push(Capability::CAP_BPF);
    }
    drop_in_this_thread(&kept)?;
    let deadline = Instant::now() + BURIED_WITHIN;
    let mut others = privileged_threads(&kept)?;
    while others > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(1));
        others = privileged_threads(&kept)?;
    }
    if others > 0 {
        return Err(DropError::OtherThreads(others));
    }
    Ok(kept)
}

/// How many threads of this process may do more than this.
fn privileged_threads(keep: &[Capability]) -> Result<usize, DropError> {
    let mut count = 0;
    for task in fs::read_dir("/proc/self/task")? {
        // A thread that is gone since may do nothing.
        let Ok(status) = fs::read_to_string(task?.path().join("status")) else {
            continue;
        };
        if !capabilities_within(&status, keep) {
            count += 1;
        }
    }
    Ok(count)
}

/// Drops the capabilities of this thread alone.
pub(crate) fn drop_in_this_thread(keep: &[Capability]) -> Result<(), DropError> {
    let permitted = caps::read(None, CapSet::Permitted)?;
    let keep: CapsHashSet = keep
        .iter()
        .filter(|capability| permitted.contains(capability))
        .copied()
        .collect();
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;
    caps::set(None, CapSet::Effective, &keep)?;
    caps::set(None, CapSet::Permitted, &keep)?;
    nix::sys::prctl::set_no_new_privs()?;
    Ok(())
}

/// Whether the permitted set in a `/proc/…/status` has nothing but these.
fn capabilities_within(status: &str, keep: &[Capability]) -> bool {
    let allowed = keep
        .iter()
        .fold(0, |mask, capability| mask | capability.bitmask());
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapPrm:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & !allowed == 0)
}

/// Asks the kernel on a thread that has no capabilities.
fn maps_are_readable_without_capabilities() -> Result<bool, DropError> {
    let not_a_map = fs::File::open("/dev/null")?;
    let asked = thread::scope(|scope| {
        let ask = || -> Result<bool, DropError> {
            drop_in_this_thread(&[])?;
            Ok(bpf_answers(not_a_map))
        };
        scope.spawn(ask).join()
    });
    asked.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Whether bpf(2) looks at its argument at all, which a kernel that refuses unprivileged callers does not.
fn bpf_answers(not_a_map: fs::File) -> bool {
    let answer = aya::maps::MapData::from_fd(not_a_map.into());
    !matches!(
        answer,
        Err(aya::maps::MapError::SyscallError(error))
            if error.io_error.raw_os_error() == Some(libc::EPERM)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        let set = |capabilities: &[Capability]| capabilities.iter().copied().collect();
        assert_eq!(
            missing(&set(&[
                Capability::CAP_SYS_ADMIN,
                Capability::CAP_NET_ADMIN
            ])),
            []
        );
        let missing = missing(&set(&[Capability::CAP_BPF, Capability::CAP_PERFMON]));
        assert_eq!(
            Missing::Capabilities(missing).to_string(),
            "tracer needs root: run it with sudo (missing CAP_NET_ADMIN to attach them to network devices, \
             CAP_SYS_ADMIN to look into network namespaces)"
        );
    }

    #[test]
    fn a_thread_that_dropped_has_nothing_left_and_cannot_gain() {
        std::thread::spawn(|| {
            drop_in_this_thread(&[]).unwrap();
            for set in [CapSet::Effective, CapSet::Permitted, CapSet::Inheritable] {
                assert!(caps::read(None, set).unwrap().is_empty(), "{set:?}");
            }
            assert!(nix::sys::prctl::get_no_new_privs().unwrap());
            // Root that executes a program would otherwise get everything back.
            let child = std::process::Command::new("cat")
                .arg("/proc/self/status")
                .output()
                .unwrap();
            let status = String::from_utf8(child.stdout).unwrap();
            assert!(capabilities_within(&status, &[]), "{status}");
            assert!(matches!(check(), Err(Missing::Capabilities(missing)) if missing.len() == 4));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_kept_its_capabilities_is_noticed() {
        let status = "Name:\ttracer\nCapInh:\t0000000000000000\nCapPrm:\t0000008000001000\nCapEff:\t0000000000000000\n";
        assert!(!capabilities_within(status, &[]));
        assert!(!capabilities_within(status, &[Capability::CAP_BPF]));
        assert!(capabilities_within(
            status,
            &[Capability::CAP_BPF, Capability::CAP_NET_ADMIN]
        ));
        assert!(!capabilities_within("Name:\ttracer\n", &[]));
    }

    #[test]
    fn whether_maps_can_be_read_is_found_out_without_losing_anything() {
        let before = caps::read(None, CapSet::Permitted).unwrap();
        // Every kernel that this test runs on is newer than 5.19.
        assert!(maps_are_readable_without_capabilities().unwrap());
        assert_eq!(caps::read(None, CapSet::Permitted).unwrap(), before);
    }
}
