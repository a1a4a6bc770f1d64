//! The lab's tests: the real binary on real packets through namespaces that are broken on purpose.
//!
//! The network itself is [`tracer::lab`], which `tracer demo` uses too. Everything here needs root, leaves nothing
//! behind and may run beside itself: each test has its own sandbox and its own addresses.

use anyhow::Result;
use tracer::lab::{Plan, Topology, sandbox};

/// Runs a test in a sandbox with a healthy lab.
pub fn with_lab(plan: Plan, test: impl FnOnce(&Topology) -> Result<()> + Send) -> Result<()> {
    sandbox::run(|| test(&Topology::build(plan)?))?
}
