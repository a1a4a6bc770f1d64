//! Random networks, faults, loads and views, and whether what the tracer says of them is true: `cargo xtask lab random`.
//!
//! The truth is known without a tracer: from the fault, from the client's kernel, and from counters of netfilter in the
//! pods and beside every rule that kills. `truth` makes of that the set of verdicts that are true of a connection in a
//! view; `judge` holds what was said against it. The same seed gives the same runs.

mod breaking;
mod choice;
mod exchange;
mod fault;
mod judge;
mod killers;
mod load;
mod network;
mod rng;
mod run;
mod shape;
mod table;
mod truth;
mod view;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Parser;

use judge::Judgement;
use run::Scenario;
use table::Table;

/// Breaks random networks at random and counts what the tracer says of them: right, inconclusive, wrong, wrongly proven.
#[derive(Parser)]
#[command(after_help = "\
Examples:
  cargo xtask lab random --runs 50 --seed 7             a batch; the same seed gives the same runs
  cargo xtask lab random --runs 500 --seed 1 --jobs 4   the long one
  cargo xtask lab random --seed 7 --only 23             one run of that batch again
  cargo xtask lab random --seed 7 --only 23 --show      what that run does, without doing it

Exit codes: 0 nothing was wrong, 1 a verdict was wrong or a run failed.")]
struct Arguments {
    /// How many runs
    #[arg(long, value_name = "N", default_value_t = 50)]
    runs: u64,

    /// What the runs are chosen by
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,

    /// How many runs at once
    #[arg(long, value_name = "J", default_value_t = 2)]
    jobs: u64,

    /// Only the run of this number
    #[arg(long, value_name = "K")]
    only: Option<u64>,

    /// Print what the runs are, and do nothing
    #[arg(long)]
    show: bool,

    /// Where the captures and reports of runs with a wrong verdict are kept
    #[arg(long, value_name = "DIR", default_value = "/tmp/random-findings")]
    keep: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runs: Vec<u64> = match arguments.only {
        Some(run) => vec![run],
        None => (0..arguments.runs).collect(),
    };
    if arguments.show {
        for run in runs {
            let scenario = Scenario::choose(arguments.seed, run);
            print(&format!("run {run}\n{scenario}"));
        }
        return ExitCode::SUCCESS;
    }
    let batch = Batch::new(&arguments, runs);
    let table = batch.run();
    print(&table.to_markdown());
    let (took, failed) = (batch.began.elapsed(), batch.failed.load(Ordering::Relaxed));
    print(&format!(
        "{} runs, seed {}, {} jobs, {} s; {failed} runs with a mistake",
        batch.runs.len(),
        arguments.seed,
        arguments.jobs,
        took.as_secs(),
    ));
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The runs, and how far they are.
struct Batch<'a> {
    arguments: &'a Arguments,
    runs: Vec<u64>,
    began: Instant,
    next: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
}

impl<'a> Batch<'a> {
    fn new(arguments: &'a Arguments, runs: Vec<u64>) -> Self {
        Self {
            arguments,
            runs,
            began: Instant::now(),
            next: AtomicU64::new(0),
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    fn run(&self) -> Table {
        let table = Mutex::new(Table::default());
        thread::scope(|scope| {
            for _ in 0..self.arguments.jobs.max(1) {
                scope.spawn(|| {
                    while let Some(run) = self.take() {
                        self.one(run, &table);
                    }
                });
            }
        });
        table
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn take(&self) -> Option<u64> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        self.runs.get(usize::try_from(index).ok()?).copied()
    }

    fn one(&self, run: u64, table: &Mutex<Table>) {
        let mistakes = match self.judged(run, table) {
            Ok(mistakes) => mistakes,
            Err(error) => vec![format!("the run failed: {error:#}")],
        };
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        if !mistakes.is_empty() {
            self.failed.fetch_add(1, Ordering::Relaxed);
            let seed = self.arguments.seed;
            say(&format!(
                "run {run} (again: cargo xtask lab random --seed {seed} --only {run})\n{}{}",
                Scenario::choose(seed, run),
                mistakes.join("\n"),
            ));
        }
        let total = self.runs.len() as u64;
        let each = self.began.elapsed() / u32::try_from(done).unwrap_or(u32::MAX);
        let left = each * u32::try_from(total - done).unwrap_or(u32::MAX);
        say(&format!(
            "{done} of {total} runs, {} with a mistake, about {} s left",
            self.failed.load(Ordering::Relaxed),
            left.as_secs(),
        ));
    }

    /// Does a run and counts its verdicts; returns what was wrong, and keeps its captures then.
    fn judged(&self, run: u64, table: &Mutex<Table>) -> Result<Vec<String>> {
        let directory = tempfile::tempdir().context("a directory for captures")?;
        let scenario = Scenario::choose(self.arguments.seed, run);
        let began = Instant::now();
        let outcome = scenario.run(directory.path());
        let kept = self
            .arguments
            .keep
            .join(format!("seed-{}-run-{run}", self.arguments.seed));
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(error) => {
                keep(directory.path(), &kept)?;
                return Err(error);
            }
        };
        let mut mistakes = outcome.complaints;
        let mut needless = 0;
        let mut table = table
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for verdict in &outcome.verdicts {
            table.add(verdict);
            let (what, why) = match &verdict.judgement {
                Judgement::Wrong(why) => ("WRONG", why),
                Judgement::WronglyProven(why) => ("WRONGLY PROVEN", why),
                Judgement::Needless(why) => {
                    needless += 1;
                    // One is shown as an example: it is no mistake.
                    if needless == 1 {
                        say(&format!(
                            "run {run}: needlessly inconclusive: {}: port {}: {why}",
                            verdict.view, verdict.port
                        ));
                    }
                    continue;
                }
                Judgement::Right | Judgement::Inconclusive => continue,
            };
            // A flood has hundreds of the same.
            if mistakes.len() < 6 {
                mistakes.push(format!(
                    "{what}: {}: port {}: {why}",
                    verdict.view, verdict.port
                ));
            }
        }
        drop(table);
        if !mistakes.is_empty() || needless > 0 {
            keep(directory.path(), &kept)?;
        } else if began.elapsed() > Duration::from_mins(1) {
            say(&format!("run {run} took {} s", began.elapsed().as_secs()));
        }
        Ok(mistakes)
    }
}

/// Copies a run's captures to where they stay.
fn keep(directory: &Path, kept: &Path) -> Result<()> {
    fs::create_dir_all(kept).with_context(|| format!("creating {}", kept.display()))?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        fs::copy(entry.path(), kept.join(entry.file_name()))?;
    }
    Ok(())
}

#[expect(clippy::print_stderr, reason = "progress is told here")]
fn say(line: &str) {
    eprintln!("random: {line}");
}

#[expect(clippy::print_stdout, reason = "the table is printed here")]
fn print(text: &str) {
    println!("{text}");
}
