//! What it costs the kernel to verify the programs: most of the time until a trace is ready, and the nearest thing to a limit
//! (a million instructions) that a program can run into on somebody else's kernel.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use tracer_tests::Tracer;
use tracer_tests::kernel::Release;

/// The instructions that the verifier processed for each program (`verified_insns`), by the release of the kernel that was asked.
/// A kernel between two of them is held against the earlier; one that is older than all is shown, but not judged.
const PROCESSED: &[(Release, &[(&str, u64)])] = &[(
    Release(6, 18),
    &[
        ("tracer_consume", 14_421),
        ("tracer_drop", 14_748),
        ("tracer_receive", 32_046),
        ("tracer_rst_in", 2_271),
        ("tracer_rst_out", 15_416),
        ("tracer_rtx", 2_205),
        ("tracer_rtx_sa", 2_277),
        ("tracer_state", 2_683),
        ("tracer_xmit", 32_332),
        ("tracer_xmit_err", 144),
    ],
)];

/// `bpf_prog_show_fdinfo` tells the number (kernel/bpf/syscall.c).
const TELLS: Release = Release(5, 16);

/// The number for each program that a process holds.
fn processed_for(pid: u32) -> Result<BTreeMap<String, u64>> {
    let mut processed = BTreeMap::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A descriptor may be closed while this looks at it.
        let Ok(text) = fs::read_to_string(entry?.path()) else {
            continue;
        };
        let field = |name| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|value| value.trim().parse::<u64>().ok())
        };
        // A link tells its program's number, too.
        if let (Some(id), Some(count)) = (field("prog_id:"), field("verified_insns:")) {
            processed.insert(name_of(id)?, count);
        }
    }
    Ok(processed)
}

fn name_of(program: u64) -> Result<String> {
    let output = Command::new("bpftool")
        .args(["--json", "prog", "show", "id", &program.to_string()])
        .output()
        .context("running bpftool")?;
    let told: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let name = told["name"].as_str();
    Ok(name.context("a program without a name")?.to_owned())
}

#[test]
fn no_program_costs_the_verifier_twice_what_it_did() -> Result<()> {
    if !TELLS.is_reached_or_said("the number of verified instructions") {
        return Ok(());
    }
    let mut tracer = Tracer::start(&["trace", "--for", "0", "host 203.0.113.77"])?;
    let (attached, _) = tracer.wait_until_ready()?;
    let processed = processed_for(tracer.pid())?;
    tracer.interrupt()?;
    ensure!(
        processed.len() >= usize::try_from(attached)?,
        "{attached} hooks, but only {processed:?}"
    );

    let known = PROCESSED
        .iter()
        .rev()
        .find(|(release, _)| release.is_reached());
    let mut table =
        String::from("instructions that the verifier processed, and the last known number:\n");
    let mut doubled = Vec::new();
    for (name, count) in &processed {
        let of_program = |(_, row): &(Release, &[(&str, u64)])| {
            let entry = row.iter().find(|(known, _)| known == name);
            entry.map(|(_, count)| *count)
        };
        let before = known.and_then(of_program);
        let shown = before.map_or("none".to_owned(), |before| before.to_string());
        writeln!(table, "verifier: {name:<16} {count:>7} {shown:>7}")?;
        if known.is_some() && before.is_none_or(|before| *count >= 2 * before) {
            doubled.push(name);
        }
    }
    // Past the test runner, which keeps what a case that passes prints.
    io::stderr().write_all(table.as_bytes())?;
    ensure!(
        doubled.is_empty(),
        "{doubled:?} cost twice what they did, or are new: if that is meant, the table here must say so.\n{table}"
    );
    Ok(())
}
