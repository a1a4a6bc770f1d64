//! What tracing costs, measured beside tcpdump and bpftrace on the same packets: `cargo xtask bench`.
//!
//! Absolute times say little on a shared machine, so everything is a comparison within one run: an untraced block
//! before and after each traced one, the tools one after another in every round, and beside each group its A/A null,
//! which is the same comparison with no tool at all. A row is worth as much as its interval is narrower than its
//! distance from the null.
//!
//! The table goes to standard output, progress to standard error.

mod audit;
mod comparison;
mod events;
mod memory;
mod network;
mod per_packet;
mod readiness;
mod round_trip;
mod statistics;
mod table;
mod throughput;
mod tools;
mod verdict;

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use tracer::lab::sandbox;

use network::Pair;
use table::Table;

/// Measures what tracing costs and prints a Markdown table.
#[derive(Parser)]
struct Arguments {
    /// Fewer rounds, in about a minute: shows that everything runs, not what it costs
    #[arg(long)]
    quick: bool,

    /// Only this group
    #[arg(long, value_name = "GROUP")]
    only: Option<String>,

    /// Given by `cargo bench`, and without a meaning here
    #[arg(long, hide = true)]
    bench: bool,
}

/// What every group is given.
struct Bench {
    pair: Pair,
    /// How many comparisons each row rests on.
    rounds: usize,
}

/// Measures a group of rows.
type Measure = fn(&Bench, &mut Table) -> Result<()>;

/// One file a group, in the order of the table.
const GROUPS: &[(&str, Measure)] = &[
    ("per_packet", per_packet::measure),
    ("throughput", throughput::measure),
    ("round_trip", round_trip::measure),
    ("readiness", readiness::measure),
    ("events", events::measure),
    ("memory", memory::measure),
    ("verdict", verdict::measure),
    ("audit", audit::measure),
];

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let names: Vec<&str> = GROUPS.iter().map(|(name, _)| *name).collect();
    let only = arguments.only.as_deref();
    ensure!(
        only.is_none_or(|only| names.contains(&only)),
        "the groups are {}",
        names.join(", ")
    );
    let table = sandbox::run(|| -> Result<Table> {
        network::go_first()?;
        tools::mount_tracefs()?;
        let bench = Bench {
            pair: Pair::build()?,
            rounds: if arguments.quick { 5 } else { 25 },
        };
        let mut table = Table::new(arguments.quick)?;
        for (name, measure) in GROUPS {
            if only.is_none_or(|only| only == *name) {
                let begin = Instant::now();
                measure(&bench, &mut table)?;
                progress(&format!("{name}: {} s", begin.elapsed().as_secs()));
            }
        }
        Ok(table)
    })??;
    print(&table.to_markdown());
    Ok(())
}

#[expect(clippy::print_stderr, reason = "progress is told here")]
fn progress(line: &str) {
    eprintln!("bench: {line}");
}

#[expect(clippy::print_stdout, reason = "the table is printed here")]
fn print(table: &str) {
    print!("{table}");
}
