//! `build`: both halves. The kernel half is built and embedded by `tracer/build.rs`.

use anyhow::Result;

use crate::{command, setup};

/// Build tracer: the program, and the kernel half that is embedded in it.
#[derive(clap::Args)]
pub struct Arguments {
    /// Optimise, as `run` and `dist` do
    #[arg(long)]
    release: bool,
}

/// Makes the machine ready and builds.
pub fn perform(arguments: &Arguments) -> Result<()> {
    setup::ensure()?;
    let mut cargo = command::cargo();
    cargo.args(["build", "--package", "tracer"]);
    if arguments.release {
        cargo.arg("--release");
    }
    command::run(&mut cargo)
}
