//! The lab in guests: its cases on one kernel after the other, and a table of how they went.

use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use super::{Accel, Kernel, Limits, Programs};
use crate::output;

/// Which part of the lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// A few cases on the oldest kernel and on the newest
    Few,
    /// Every case on every kernel: hours in an emulated machine
    All,
}

/// What [`Part::Few`] is: an answer that arrives, one that dies, one that nobody gives, and what the verifier says.
const FEW: &[&str] = &[
    "commands::check_says_what_this_kernel_lets_us_see",
    "handshake::nobody_listens",
    "handshake::synack_dropped_by_the_underlays_router",
    "handshake::synack_fails_the_client_nodes_reverse_path_check",
];

/// A verified program and a started process take their time in an emulated machine, and every case starts several.
const LIMITS: Limits = Limits {
    whole: Duration::from_hours(4),
    silence: Duration::from_mins(15),
};

/// How a kernel's cases went.
struct Outcome {
    kernel: Kernel,
    code: u8,
    /// The test runner's last line.
    summary: String,
    /// What was skipped, and why.
    skipped: Vec<String>,
    took: Duration,
}

/// Runs a part of the lab; an error if a case failed on a kernel.
pub fn run(part: Part) -> Result<()> {
    let programs = Programs::build()?;
    let kernels: &[Kernel] = match part {
        Part::Few => &[Kernel::V5_10, Kernel::V7_3],
        Part::All => &Kernel::ALL,
    };
    let mut outcomes = Vec::new();
    for kernel in kernels {
        outcomes.push(run_on(*kernel, part, &programs)?);
    }
    let mut failed = Vec::new();
    for outcome in &outcomes {
        for skipped in &outcome.skipped {
            output::say(&format!("lab on {}: {skipped}", outcome.kernel.name()));
        }
        output::say(&format!(
            "lab on {}: {}, {} s",
            outcome.kernel.name(),
            outcome.summary,
            outcome.took.as_secs()
        ));
        if outcome.code != 0 {
            failed.push(outcome.kernel.name());
        }
    }
    if !failed.is_empty() {
        bail!("the lab failed on Linux {}", failed.join(", "));
    }
    Ok(())
}

fn run_on(kernel: Kernel, part: Part, programs: &Programs) -> Result<Outcome> {
    // What a guest of two processors runs at once, each case with several tracers, is what it can run in time.
    let mut words = vec!["cases", "--test-threads", "2"];
    if part == Part::Few {
        words.push("--exact");
        words.extend(FEW);
    }
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    let mut said = Tee::default();
    let begin = Instant::now();
    let code = programs.run(kernel, Accel::Tcg, LIMITS, &words, &mut said)?;
    let text = String::from_utf8_lossy(&said.copy);
    let lines = |beginning: &str| -> Vec<String> {
        text.lines()
            .filter(|line| line.starts_with(beginning))
            .map(str::to_owned)
            .collect()
    };
    Ok(Outcome {
        kernel,
        code,
        summary: lines("test result: ")
            .pop()
            .unwrap_or_else(|| format!("exit code {code}")),
        skipped: lines("skipped: "),
        took: begin.elapsed(),
    })
}

/// Passes on what a guest says, and keeps it.
#[derive(Default)]
struct Tee {
    copy: Vec<u8>,
}

impl Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.copy.extend_from_slice(bytes);
        io::stdout().write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush()
    }
}
