//! `tracer mtu`: the audit of every device's MTU, in every namespace, before any packet is lost.
//!
//! `topology/audit.rs` reads, by netlink and without any traffic (only `probe` sends, and only to whom the user names); [`model`] is what was read; `paths` and `findings` judge,
//! without I/O and without a clock; [`report`] and `text` tell. Nothing is watched, and nothing is changed.

mod codes;
mod findings;
mod ipsec;
pub mod model;
mod overhead;
mod paths;
mod probe;
pub mod report;
mod text;

#[cfg(test)]
mod tests;

use std::io::{self, BufWriter, Write};
use std::net::IpAddr;

use anyhow::{Context as _, Result};

use crate::cli::{MtuArgs, MtuFormat};
use crate::clock;
use crate::exit;
use crate::host::Host;
use crate::privilege;
use crate::record::View;
use crate::report::{Node, Style, Time, Tracer, write_json};
use crate::topology::Topology;

pub use report::{MTU_SCHEMA, MtuReport};

/// Audits, and prints the report. The exit code says whether anything was found.
pub fn run(args: &MtuArgs, command: Vec<String>) -> Result<u8> {
    let report = audit(&args.netns, args.probe, command)?;
    print(&report, args.format)?;
    Ok(if report.findings.is_empty() {
        exit::OK
    } else {
        exit::MTU
    })
}

/// Looks at the namespaces named, or at all. An address to be probed is probed from the namespace if one is named, else from
/// our own.
fn audit(names: &[String], target: Option<IpAddr>, command: Vec<String>) -> Result<MtuReport> {
    privilege::check()?;
    let host = Host::read()?;
    let mut topology = Topology::open()?;
    let all = names.iter().any(|name| name == "all");
    let names = if all { &[] } else { names };
    let view = topology.view(names, false)?;
    let network = topology.audit(&view);
    let tracer = Tracer {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command,
    };
    let node = Node {
        hostname: host.hostname,
        machine_id: host.machine_id,
        boot_id: host.boot_id,
        kernel: host.kernel,
        arch: host.arch,
    };
    let from = match &view {
        View::Netns { netns } if netns.len() == 1 => netns[0],
        _ => topology.own(),
    };
    let probe = match target {
        // The other end may be in a namespace that is not looked at.
        Some(target) => {
            let whole = topology.audit(&View::Kernel);
            let probed = probe::probe(&topology, &whole, from, target);
            Some(probed.with_context(|| format!("probing {target}"))?)
        }
        None => None,
    };
    let now = clock::read().context("reading the clock")?;
    let time = Time::from_unix_ns(now.realtime_ns);
    let mut report = report::build(&network, tracer, node, time);
    report.probe = probe;
    Ok(report)
}

/// Writes to standard output; a reader that went away is no error.
fn print(report: &MtuReport, format: MtuFormat) -> Result<()> {
    let mut output = BufWriter::new(io::stdout().lock());
    let written = match format {
        MtuFormat::Text => text::write(report, Style::of_stdout(), &mut output),
        MtuFormat::Json => write_json(report, &mut output),
    };
    match written.and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("writing the report")
        }
        _ => Ok(()),
    }
}
