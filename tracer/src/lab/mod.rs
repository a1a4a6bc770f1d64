//! A lab: namespaces, devices and traffic on this kernel, that are gone when the lab ends, however it ends.
//!
//! `tracer demo` breaks a network here, and the scenario tests build theirs from the same parts. Nothing here
//! knows how a trace works, and nothing outside this module creates a namespace or a device.
//!
//! ```no_run
//! use std::time::Duration;
//! use tracer::lab::{Family, Plan, Server, Topology, connect, sandbox};
//!
//! sandbox::run(|| {
//!     let lab = Topology::build(Plan::new(1, Family::V4))?;
//!     let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
//!     lab.underlay.nft(&lab.plan.drop_synack_in_tunnel())?;
//!     let outcome = connect(&lab.pod_a, 0, lab.plan.server(6379))?.wait(Duration::from_secs(4));
//!     println!("{outcome:?}");
//!     Ok::<(), tracer::lab::LabError>(())
//! })??;
//! # Ok::<(), tracer::lab::LabError>(())
//! ```

mod command;
mod datagram;
mod netns;
mod ratchet;
pub mod sandbox;
mod topology;
mod traffic;

use std::io;
use std::process::ExitStatus;

pub use command::mortal;
pub use datagram::{UdpServer, answer_dns, dns_query, ping, udp_socket};
pub use netns::Netns;
pub use ratchet::Ratchet;
pub use topology::{Family, Plan, Topology, VNI};
pub use traffic::{Attempt, Outcome, Server, connect, connect_from, listen};

/// Why a lab could not be built.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// A program that the lab is built with is not installed.
    #[error("`{program}` is not installed; the lab needs it (Debian package {package})")]
    Missing {
        /// The program's name.
        program: String,
        /// The Debian package that holds it.
        package: &'static str,
    },
    /// A program said no.
    #[error("`{command}` failed ({status}): {stderr}")]
    Failed {
        /// The command line, and what was written to its standard input.
        command: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said.
        stderr: String,
    },
    /// The system said no.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
}

impl LabError {
    /// Names what was being tried when the system refused.
    fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        |source| Self::System { what, source }
    }
}
