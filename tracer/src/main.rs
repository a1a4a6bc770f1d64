//! Where there is fault in the network, find it: `tracer --help`.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use tracer::cli::{Cli, Command};
use tracer::{exit, manual};

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Where stderr is gone as well, the exit code has to do.
            let _ = writeln!(io::stderr(), "tracer: {error:#}");
            ExitCode::from(exit::of(&error))
        }
    }
}

fn run(command: &Command) -> Result<u8> {
    match command {
        Command::Schema { format } => manual::schema(*format)?,
        Command::Completions { shell } => manual::completions(*shell)?,
        Command::Man => manual::man()?,
        Command::Trace(_) | Command::Report(_) | Command::Check | Command::Demo(_) => {
            bail!("this build cannot do that yet")
        }
    }
    Ok(exit::OK)
}
