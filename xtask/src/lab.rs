//! `lab`: experiments with the real program on networks that are broken on purpose. They are in `tests/`.

use anyhow::Result;

use crate::{command, setup, toolchain::Rustc};

/// Break networks on purpose and see whether what tracer says of them is true.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(clap::Subcommand)]
enum Experiment {
    /// Random networks, faults, loads and views; `cargo xtask lab random --help` says more
    #[command(disable_help_flag = true)]
    Random {
        /// Its own options
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
}

/// Makes the machine ready, builds the tracer and runs the experiment as root.
pub fn perform(arguments: &Arguments) -> Result<()> {
    setup::ensure()?;
    command::run(command::cargo().args(["build", "--quiet", "--package", "tracer"]))?;
    let Experiment::Random { options } = &arguments.experiment;
    let mut lab = command::cargo();
    lab.args(["run", "--quiet", "--package", "tracer-tests"])
        .args(["--bin", "random-lab", "--"])
        .args(options);
    command::run_programs_as_root(&mut lab, &Rustc::query()?.host);
    command::run(&mut lab)
}
