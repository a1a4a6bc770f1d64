//! Shows where a reply disappears on this node, and why: `tracer --help`.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;
use tracer::cli::{Cli, Command};
use tracer::config::{ConfigError, ReportSink, TraceConfig, WatchConfig};
use tracer::topology::{NETNS_HELPER, WIREGUARD_HELPER, serve_netns, serve_wireguard};
use tracer::{check, demo, exit, manual, mtu, replay, report, trace, watch};

fn main() -> ExitCode {
    let name = std::env::args_os().next().unwrap_or_default();
    let result = if name == NETNS_HELPER {
        serve_netns().map(|()| exit::OK)
    } else if name == WIREGUARD_HELPER {
        serve_wireguard().map(|()| exit::OK)
    } else {
        run(Cli::parse().command)
    };
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // Where stderr is gone as well, the exit code has to do.
            let _ = writeln!(io::stderr(), "tracer: {error:#}");
            ExitCode::from(exit::of(&error))
        }
    }
}

fn run(command: Command) -> Result<u8> {
    match command {
        Command::Trace(args) => {
            let capture = args.capture.clone();
            let mut config = TraceConfig::new(*args, typed())?;
            let (report, failure) = trace::run(&mut config)?;
            config.report.write(&report)?;
            match (failure, capture) {
                (Some(source), Some(path)) => Err(ConfigError::Output { path, source }.into()),
                _ => Ok(report::exit_code(&report)),
            }
        }
        Command::Watch(args) => {
            watch::run(&WatchConfig::new(args, typed())?)?;
            Ok(exit::OK)
        }
        Command::Report(args) => {
            let sink = ReportSink::open(args.report)?;
            let report = replay::run(&args.capture)?;
            sink.write(&report)?;
            Ok(report::exit_code(&report))
        }
        Command::Check => check::run(),
        Command::Mtu(args) => mtu::run(&args, typed()),
        Command::Demo(args) => demo::run(args.scenario),
        Command::Schema { format } => Ok(manual::schema(format).map(|()| exit::OK)?),
        Command::Completions { shell } => Ok(manual::completions(shell).map(|()| exit::OK)?),
        Command::Man => Ok(manual::man().map(|()| exit::OK)?),
    }
}

/// The arguments as typed, the program's own name left out.
fn typed() -> Vec<String> {
    std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}
