//! Shows what this kernel lets us see: attaches every hook for a moment, with a filter that nothing matches, and
//! says which could be attached and what follows from those that could not.

use std::io::Write as _;

use anyhow::Result;

use crate::attach::{AttachOptions, attach};
use crate::escape::Escaped;
use crate::exit;
use crate::filter;
use crate::host::Host;
use crate::manual;
use crate::privilege;
use crate::record::HookState;
use crate::topology::Topology;

/// An address that no packet has (RFC 6890: reserved for documentation).
const NOTHING: &str = "host 192.0.2.1 and port 1 and vni 16777215";
/// Nothing will be in it.
const RING_BYTES: u32 = 4096;

/// Prints the findings. The exit code says whether every hook that this kernel offers could be attached.
pub fn run() -> Result<u8> {
    let mut output = Vec::new();
    privilege::check()?;
    let host = Host::read()?;
    let topology = Topology::open()?;
    let attached = attach(&AttachOptions {
        filter: filter::compile(NOTHING)?,
        ring_bytes: RING_BYTES,
        ..AttachOptions::default()
    })?;
    writeln!(output, "kernel {} on {}", Escaped(&host.kernel), host.arch)?;
    let (count, offered) = attached.count();
    writeln!(
        output,
        "\nhooks: {count} of the {offered} that this kernel offers"
    )?;
    for hook in &attached.hooks {
        let state = match hook.state {
            HookState::Attached => "attached",
            HookState::Absent => "absent",
            HookState::Failed => "failed",
        };
        let reason = hook
            .reason
            .as_deref()
            .map(|reason| format!("  {}", Escaped(reason)))
            .unwrap_or_default();
        writeln!(
            output,
            "  {state:<8}  {:<24} {}{reason}",
            hook.name, hook.kind
        )?;
    }
    let spots: Vec<_> = attached
        .blind_spots
        .iter()
        .chain(&topology.blind_spots())
        .cloned()
        .collect();
    if spots.is_empty() {
        writeln!(
            output,
            "\nblind spots: none that this kernel adds to those of the README"
        )?;
    } else {
        writeln!(output, "\nblind spots:")?;
        for spot in &spots {
            writeln!(output, "  {:<24} {}", spot.code, Escaped(&spot.summary))?;
        }
    }
    let devices = topology.devices().len();
    let namespaces = topology.namespaces().count();
    writeln!(
        output,
        "\n{namespaces} network namespaces with {devices} devices"
    )?;
    manual::print(&output)?;
    Ok(if count == offered {
        exit::OK
    } else {
        exit::ERROR
    })
}
