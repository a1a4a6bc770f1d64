//! What the user typed. What it means is [`config`](crate::config)'s business.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

use crate::config::{parse_duration, parse_interval};
use crate::report::Format;

/// Shows where a reply disappears on this node, and why.
///
/// Watches request/reply pairs (SYN and SYN-ACK above all) on their way through the devices, tunnels and network
/// namespaces of a Linux node, and ends with a verdict: which packet died, where, and why.
#[derive(Debug, Parser)]
#[command(
    name = "tracer",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "\
Examples:
  sudo tracer trace host 10.244.190.4 and port 6379   who loses these packets?
  sudo tracer trace                                   every new connection, for 30 seconds
  sudo tracer watch                                   what goes wrong right now?
  sudo tracer check                                   what can be seen on this kernel?
  sudo tracer mtu                                     which packets would be too large, and where?
  sudo tracer demo                                    a broken network of its own, traced

Exit codes: 0 no fault, 1 error, 2 usage, 10 a fault, 11 inconclusive or no packet matched,\n12 an MTU mismatch."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Trace, then say what happened to each flow
    Trace(Box<TraceArgs>),
    /// Show half-open flows, drops and refusals as they happen
    Watch(WatchArgs),
    /// Analyse a capture again, without root
    Report(ReportArgs),
    /// Show what this kernel lets us see: hooks and blind spots
    #[command(after_help = "\
Examples:
  sudo tracer check")]
    Check,
    /// Audit the MTU of every device in every network namespace, before any packet is lost
    Mtu(MtuArgs),
    /// Build a small network in namespaces of its own, trace it and show the verdict
    Demo(DemoArgs),
    /// Print the JSON Schema of a format
    #[command(after_help = "\
Examples:
  tracer schema report > report.schema.json
  tracer schema capture > capture.schema.json")]
    Schema {
        /// Which format
        #[arg(value_enum)]
        format: SchemaOf,
    },
    /// Print a completion script
    #[command(after_help = "\
Examples:
  tracer completions bash > /etc/bash_completion.d/tracer
  tracer completions zsh > ~/.zfunc/_tracer")]
    Completions {
        /// For which shell
        #[arg(value_enum)]
        shell: Shell,
    },
    /// Print the manual page
    #[command(after_help = "\
Examples:
  tracer man | man -l -")]
    Man,
}

/// What `trace` was given.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sudo tracer trace host 10.244.190.4 and port 6379
  sudo tracer trace --until-verdict --for 2m 'port 443 and not net 10.0.0.0/8'
  sudo tracer trace --netns web --pods port 80
  sudo tracer trace --for 0 --capture incident.jsonl.zst --output incident.json --format json

Exit codes: 0 no fault, 1 error, 2 usage, 10 a fault, 11 inconclusive or no packet matched.")]
pub struct TraceArgs {
    /// What is watched.
    #[command(flatten)]
    pub observer: ObserverArgs,

    /// How long: 500ms, 30s, 2m, 1h; 0 is until Ctrl-C [default: 30s on a terminal, else 10s]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// Stop at the first fault that is final
    #[arg(long)]
    pub until_verdict: bool,

    /// What becomes of the report.
    #[command(flatten)]
    pub report: ReportOutput,

    /// Write what was seen to a capture, for `tracer report`: .jsonl or .jsonl.zst
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub capture: Option<PathBuf>,

    /// Print every event on standard output as it happens; the report is then text, or goes to --output
    #[arg(long)]
    pub events: bool,
}

/// What `watch` was given.
#[derive(Args, Debug)]
#[command(after_help = "\
Keys:
  up, down, PgUp, PgDn  move            enter  the flow's path, esc closes it
  tab                   flows or drops  p      pause: the screen stays, watching goes on
  s, r                  sort, reverse   /      show only what contains a text
  q, Ctrl-C             quit

Examples:
  sudo tracer watch
  sudo tracer watch --netns web --pods port 80
  sudo tracer watch --for 10m --every 30s port 6379 | tee watch.log

Exit codes: 0 however it ends, 1 error, 2 usage. A script that needs a verdict runs `tracer trace`.")]
pub struct WatchArgs {
    /// What is watched.
    #[command(flatten)]
    pub observer: ObserverArgs,

    /// How long: 500ms, 30s, 2m, 1h [default: until Ctrl-C]
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// How often to print, where standard output is not a terminal
    #[arg(long, value_name = "DURATION", value_parser = parse_interval, default_value = "5s")]
    pub every: Duration,
}

/// What is watched, and how: what `trace` and `watch` share.
#[derive(Args, Debug)]
pub struct ObserverArgs {
    /// Which flows: host, net, port, src, dst, and, or, not, as in tcpdump [default: every new one]
    #[arg(value_name = "FILTER")]
    pub filter: Vec<String>,

    /// Watch exactly this network namespace: a name, a process id or a path; may be repeated
    #[arg(long, value_name = "NAME|PID|PATH")]
    pub netns: Vec<String>,

    /// Watch also the namespaces behind the veths of those of --netns that route back through them
    #[arg(long, requires = "netns")]
    pub pods: bool,

    /// Which hooks to use
    #[arg(long, value_enum, default_value_t)]
    pub hooks: Hooks,

    /// Watch this device at its tc ingress hook as well, for what reaches it past the tracepoints: bpf_redirect_peer, VLANs,
    /// macvlans, bonds; in the namespaces of --netns, else in our own; may be repeated (Linux 6.6)
    #[arg(long, value_name = "[NETNS/]DEV")]
    pub tc: Vec<String>,

    /// Watch every packet of a flow, without the budget that keeps busy flows cheap
    #[arg(long)]
    pub all_packets: bool,

    /// Say nothing on stderr but errors
    #[arg(long, short)]
    pub quiet: bool,

    /// The size of the ring between the kernel and the tracer
    #[arg(long, value_name = "N", hide = true, default_value_t = crate::config::RING_BYTES)]
    pub ring_bytes: u32,
}

/// Which hooks to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Hooks {
    /// All that this kernel offers
    #[default]
    Auto,
    /// Only tracepoints: the cheapest
    Tracepoints,
}

/// What becomes of the report.
#[derive(Args, Debug)]
pub struct ReportOutput {
    /// How to write the report
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,

    /// Where to write the report [default: standard output]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,
}

/// What `report` was given.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tracer report incident.jsonl.zst
  tracer report incident.jsonl --format markdown > post-mortem.md

Exit codes: 0 no fault, 1 error, 2 usage, 10 a fault, 11 inconclusive or no packet matched.")]
pub struct ReportArgs {
    /// A capture that `tracer trace --capture` wrote
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub capture: PathBuf,

    /// What becomes of the report.
    #[command(flatten)]
    pub report: ReportOutput,
}

/// What `mtu` was given.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sudo tracer mtu
  sudo tracer mtu --netns web --netns 4242
  sudo tracer mtu --netns web --probe 10.244.190.4
  sudo tracer mtu --format json | jq -r '.findings[] | .mend[]'

Exit codes: 0 nothing is wrong, 1 error, 2 usage, 12 something is.")]
pub struct MtuArgs {
    /// Look at this network namespace: a name, a process id, a path, or all; may be repeated [default: all]
    #[arg(long, value_name = "all|NAME|PID|PATH")]
    pub netns: Vec<String>,

    /// Find out by packets of bisected sizes what really passes on the way to this address, from the namespace of --netns if
    /// that is one, else from our own
    #[arg(long, value_name = "ADDR")]
    pub probe: Option<IpAddr>,

    /// How to write the report
    #[arg(long, value_enum, default_value_t)]
    pub format: MtuFormat,
}

/// How an audit is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MtuFormat {
    /// For a person at a terminal
    #[default]
    Text,
    /// For scripts; `tracer schema mtu` describes it
    Json,
}

/// What `demo` was given.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sudo tracer demo
  sudo tracer demo healthy
  sudo tracer demo mtu")]
pub struct DemoArgs {
    /// What is wrong with the network
    #[arg(value_enum, default_value_t)]
    pub scenario: Scenario,
}

/// What is wrong with the network of a demo.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// A router between two nodes drops the SYN-ACK
    #[default]
    LostSynack,
    /// Nothing
    Healthy,
    /// A node's agent has lowered its MTU with each restart, and older pods have kept theirs
    Mtu,
}

/// A format that has a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SchemaOf {
    /// What `--capture` writes, one record a line
    Capture,
    /// What `--format json` writes
    Report,
    /// What `mtu --format json` writes
    Mtu,
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::Cli;

    /// The help of a command as `tracer COMMAND --help` prints it at 100 columns.
    fn help(arguments: &[&str]) -> String {
        Cli::command()
            .term_width(100)
            .try_get_matches_from(["tracer"].iter().chain(arguments))
            .expect_err("help is not a command")
            .to_string()
    }

    #[test]
    fn definitions_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn help_texts() {
        let commands = [
            "",
            "trace",
            "watch",
            "report",
            "check",
            "mtu",
            "demo",
            "schema",
            "completions",
            "man",
        ];
        let known: Vec<String> = Cli::command()
            .get_subcommands()
            .map(|command| command.get_name().to_owned())
            .collect();
        assert_eq!(known, commands[1..], "a command without a snapshot");
        for command in commands {
            let arguments: Vec<&str> = [command, "--help"]
                .into_iter()
                .filter(|word| !word.is_empty())
                .collect();
            insta::assert_snapshot!(format!("help_{command}"), help(&arguments));
        }
    }

    #[test]
    fn a_filter_needs_no_quotes() {
        let cli = Cli::parse_from([
            "tracer", "trace", "host", "10.0.0.1", "and", "not", "port", "22", "--for", "2s",
        ]);
        let super::Command::Trace(trace) = cli.command else {
            panic!("not trace")
        };
        assert_eq!(
            trace.observer.filter.join(" "),
            "host 10.0.0.1 and not port 22"
        );
        assert_eq!(trace.duration, Some(std::time::Duration::from_secs(2)));
    }

    #[test]
    fn what_makes_no_sense_is_a_usage_error() {
        for arguments in [
            &[][..],
            &["trace", "--for", "soon"],
            &["trace", "--pods"],
            &["trace", "--format", "pdf"],
            &["trace", "--hooks", "full"],
            &["report"],
            &["demo", "other"],
            &["watch", "--every", "0"],
            &["watch", "--format", "json"],
        ] {
            let error =
                Cli::try_parse_from(["tracer"].iter().chain(arguments)).expect_err("a usage error");
            assert_eq!(
                error.exit_code(),
                i32::from(crate::exit::USAGE),
                "{arguments:?}"
            );
        }
    }
}
