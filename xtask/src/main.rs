//! The tasks of this repository, one file a task: `cargo xtask setup | build | run | test | vm | lab | bench | dist`.

mod bench;
mod build;
mod command;
mod dist;
mod lab;
mod output;
mod run;
mod setup;
mod test;
mod toolchain;
mod vm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Builds, runs, tests and packages tracer.
///
/// Every task first makes the machine ready, as `setup` does; where nothing is missing that takes a moment.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Setup(setup::Arguments),
    Build(build::Arguments),
    Run(run::Arguments),
    Test(test::Arguments),
    Vm(vm::Arguments),
    Lab(lab::Arguments),
    Bench(bench::Arguments),
    Dist(dist::Arguments),
}

fn main() -> ExitCode {
    match perform(Cli::parse().task) {
        Ok(code) => code,
        Err(error) => {
            output::say(&format!("error: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn perform(task: Task) -> Result<ExitCode> {
    match task {
        // The only task whose end is that of the program it runs.
        Task::Vm(arguments) => return vm::perform(&arguments),
        Task::Setup(arguments) => setup::perform(&arguments),
        Task::Build(arguments) => build::perform(&arguments),
        Task::Run(arguments) => run::perform(&arguments),
        Task::Test(arguments) => test::perform(&arguments),
        Task::Lab(arguments) => lab::perform(&arguments),
        Task::Bench(arguments) => bench::perform(&arguments),
        Task::Dist(arguments) => dist::perform(&arguments),
    }?;
    Ok(ExitCode::SUCCESS)
}
