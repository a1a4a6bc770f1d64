//! The lab's tests: the real binary on real packets through namespaces that are broken on purpose.
//!
//! The network itself is [`tracer::lab`], which `tracer demo` uses too. Everything here needs root, leaves nothing
//! behind and may run beside itself: each test has its own sandbox and its own addresses.
//!
//! What a test expects is written from the contract of verdicts, never copied from what the binary printed.

pub mod bpf;
mod captured;
mod expect;
pub mod faults;
pub mod keeper;
pub mod kernel;
pub mod kernel_wireguard;
mod observers;
pub mod offload;
mod pairs;
mod runner;
mod scenario;
pub mod socket;
pub mod wireguard;

use std::io::{self, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::thread;

use anyhow::{Context as _, Result, anyhow};
use tracer::lab::{Family, Plan, Topology, sandbox};

pub use captured::{Captured, Seen};
pub use expect::{
    Expected, SYN_ACK_LEFT_NODE_B, SYN_LEFT_NODE_A, Views, answered, by_netfilter, inconclusive,
    inferred, proven, unseen,
};
pub use observers::{Disturbed, Observers, Reports, differences};
pub use pairs::{Fault, Held, Pair, side_by_side};
pub use runner::{Run, Tracer, binary, within};
pub use scenario::{Ends, Scenario, echo, exchange};

/// How often a test is run whose tracers were disturbed.
const RUNS_MAX: u32 = 3;

/// Runs a test in a sandbox with a healthy lab whose addresses no other running test has. A run that was
/// [`Disturbed`] tells nothing and is repeated in a new lab; the last one counts, whatever it is.
pub fn with_lab<T: Send>(
    family: Family,
    test: impl Fn(&Topology) -> Result<T> + Send + Sync,
) -> Result<T> {
    let (number, _claim) = claim_number()?;
    let run = || sandbox::run(|| test(&Topology::build(Plan::new(number, family))?))?;
    for _ in 1..RUNS_MAX {
        match run() {
            Err(error) if error.is::<Disturbed>() => {
                writeln!(io::stderr(), "the lab runs again: {error:#}")?;
            }
            done => return done,
        }
    }
    run()
}

/// Both IP versions, at once: most of a test is waiting.
pub fn both(test: impl Fn(Family) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let v4 = scope.spawn(|| test(Family::V4));
        test(Family::V6).context("over IPv6")?;
        v4.join()
            .map_err(|_| anyhow!("the test over IPv4 panicked"))?
            .context("over IPv4")
    })
}

/// Claims a lab number among all the processes of this machine, for as long as the second value lives.
pub fn claim_number() -> Result<(u8, UnixListener)> {
    // 254 is the demo's.
    (1..=250)
        .find_map(|number| {
            // An abstract address is free again when its owner is gone, even by SIGKILL.
            let address = SocketAddr::from_abstract_name(format!("tracer-lab-{number}")).ok()?;
            Some((number, UnixListener::bind_addr(&address).ok()?))
        })
        .context("250 labs run already")
}
