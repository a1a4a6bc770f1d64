//! `run`: the optimised tracer, as root.

use std::{ffi::OsString, os::unix::process::CommandExt as _};

use anyhow::{Context as _, Result};

use crate::{command, output, setup};

/// Build tracer and run it as root: `cargo xtask run -- demo`.
///
/// The exit code is the tracer's own.
#[derive(clap::Args)]
pub struct Arguments {
    /// What tracer is given, after `--`; nothing means what `tracer` alone does
    #[arg(last = true, value_name = "ARGS")]
    tracer: Vec<OsString>,
}

/// Makes the machine ready, builds, and becomes tracer.
pub fn perform(arguments: &Arguments) -> Result<()> {
    setup::ensure()?;
    command::run(command::cargo().args(["build", "--package", "tracer", "--release"]))?;
    let tracer = command::target_directory()?.join("release/tracer");
    let mut tracer = command::as_root(tracer);
    tracer.args(&arguments.tracer);
    if tracer.get_program() == "sudo" {
        output::say("run: tracer loads eBPF programs, so it runs as root, through sudo");
    }
    // exec returns only if it failed.
    let error = tracer.exec();
    Err(error).with_context(|| format!("cannot start {}", command::text_of(&tracer)))
}
