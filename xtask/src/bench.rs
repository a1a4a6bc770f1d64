//! `bench`: what tracing costs, beside the tools that people know. The measuring is done by `tests/bench/`.

use anyhow::Result;

use crate::{command, output, setup, toolchain::Rustc};

/// Measure what tracer costs, beside tcpdump and bpftrace, and print the table as Markdown.
///
/// Takes about eight minutes. It is worth most on a machine that does nothing else meanwhile.
#[derive(clap::Args)]
pub struct Arguments {
    /// Fewer rounds, in about a minute: shows that everything runs, not what it costs
    #[arg(long)]
    quick: bool,

    /// Only one group of rows: per_packet, throughput, round_trip, readiness, events, memory, verdict or audit
    #[arg(long, value_name = "GROUP")]
    only: Option<String>,
}

/// Makes the machine ready, builds the optimised tracer, and measures as root.
pub fn perform(arguments: &Arguments) -> Result<()> {
    setup::ensure()?;
    setup::ensure_rivals()?;
    command::run(command::cargo().args(["build", "--package", "tracer", "--release"]))?;
    let mut bench = command::cargo();
    bench
        .args(["bench", "--package", "tracer-tests", "--bench", "cost"])
        .env(
            "TRACER_BIN",
            command::target_directory()?.join("release/tracer"),
        )
        .arg("--");
    if arguments.quick {
        bench.arg("--quick");
    }
    if let Some(group) = &arguments.only {
        bench.args(["--only", group]);
    }
    command::run_programs_as_root(&mut bench, &Rustc::query()?.host);
    output::say(&format!("bench: {}", command::text_of(&bench)));
    command::run(&mut bench)
}
