//! What the user meant: validated, with every file that will be written already open, so that a path that cannot
//! be written fails before anything is traced and before privileges are dropped.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;
use tracer_common::filter::FilterProgram;

use crate::cli::{Hooks, ObserverArgs, ReportOutput, TraceArgs, WatchArgs};
use crate::escape::Escaped;
use crate::export::capture::{CaptureWriter, Encoding};
use crate::export::events::EventLog;
use crate::filter::{self, FilterError};
use crate::report::{self, Format, Report, Style};

/// The default size of the ring between the kernel and this process.
pub const RING_BYTES: u32 = 8 << 20;

/// Longer than anybody means.
const DURATION_MAX_MS: u64 = 366 * 24 * 3_600_000;

/// The size of a page: the smallest ring.
const PAGE_BYTES: u32 = 4096;

/// Why what was typed cannot be done.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// It makes no sense.
    #[error("{0}")]
    Usage(String),
    /// The filter cannot be compiled.
    #[error(transparent)]
    Filter(#[from] FilterError),
    /// A file cannot be written.
    #[error("cannot write {}", Escaped(&path.to_string_lossy()))]
    Output {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// What is watched, and how: what `trace` and `watch` share.
#[derive(Debug)]
pub struct ObserverConfig {
    /// The program's arguments as typed.
    pub command: Vec<String>,
    /// The filter as typed, empty for every flow.
    pub filter: String,
    /// What it means.
    pub filter_program: Box<FilterProgram>,
    /// The namespaces to watch, as typed; empty for the whole kernel.
    pub netns: Vec<String>,
    /// Whether those behind their veths are watched as well.
    pub pods: bool,
    /// Which hooks.
    pub hooks: Hooks,
    /// The devices to watch at their `tc` hook, as typed.
    pub tc: Vec<String>,
    /// Whether the budget per flow is off.
    pub all_packets: bool,
    /// Whether stderr stays silent.
    pub quiet: bool,
    /// The size of the ring: a power of two, at least a page.
    pub ring_bytes: u32,
}

impl ObserverConfig {
    fn new(args: ObserverArgs, command: Vec<String>) -> Result<Self, ConfigError> {
        let filter = args.filter.join(" ");
        let filter_program = Box::new(filter::compile(&filter)?);
        let ring_bytes = args.ring_bytes;
        if !ring_bytes.is_power_of_two() || ring_bytes < PAGE_BYTES {
            return Err(ConfigError::Usage(format!(
                "--ring-bytes {ring_bytes}: not a power of two of at least {PAGE_BYTES}"
            )));
        }
        Ok(Self {
            command,
            filter,
            filter_program,
            netns: args.netns,
            pods: args.pods,
            hooks: args.hooks,
            tc: args.tc,
            all_packets: args.all_packets,
            quiet: args.quiet,
            ring_bytes,
        })
    }
}

/// One trace, ready to run.
#[derive(Debug)]
pub struct TraceConfig {
    /// What is watched.
    pub observer: ObserverConfig,
    /// How long; `None` is until Ctrl-C.
    pub duration: Option<Duration>,
    /// Whether the first final fault ends it.
    pub until_verdict: bool,
    /// Where events are shown as they happen.
    pub events: Option<EventLog<BufWriter<io::Stdout>>>,
    /// Where the report goes.
    pub report: ReportSink,
    /// Where the capture goes.
    pub capture: Option<CaptureWriter<File>>,
}

impl TraceConfig {
    /// Checks what was typed and opens what will be written.
    pub fn new(args: TraceArgs, command: Vec<String>) -> Result<Self, ConfigError> {
        let observer = ObserverConfig::new(args.observer, command)?;
        let encoding = args
            .capture
            .as_deref()
            .map(|path| {
                Encoding::of_path(path).ok_or_else(|| {
                    ConfigError::Usage(
                        "--capture: the name must end in .jsonl or .jsonl.zst".to_owned(),
                    )
                })
            })
            .transpose()?;
        if args.capture.is_some() && args.capture == args.report.output {
            return Err(ConfigError::Usage(
                "--capture and --output name the same file".to_owned(),
            ));
        }
        if args.events && args.report.format != Format::Text && args.report.output.is_none() {
            return Err(ConfigError::Usage(
                "--events prints on standard output, where the report would not be alone: add --output FILE"
                    .to_owned(),
            ));
        }
        let report = ReportSink::open(args.report)?;
        let capture = match (args.capture, encoding) {
            (Some(path), Some(encoding)) => {
                let writer = create(&path)
                    .and_then(|file| CaptureWriter::new(file, encoding))
                    .map_err(|source| ConfigError::Output { path, source })?;
                Some(writer)
            }
            _ => None,
        };
        Ok(Self {
            observer,
            duration: duration(args.duration, io::stdout().is_terminal()),
            until_verdict: args.until_verdict,
            events: args
                .events
                .then(|| EventLog::new(BufWriter::new(io::stdout()))),
            report,
            capture,
        })
    }
}

/// One live view, ready to run.
#[derive(Debug)]
pub struct WatchConfig {
    /// What is watched.
    pub observer: ObserverConfig,
    /// How long; `None` is until Ctrl-C.
    pub duration: Option<Duration>,
    /// How often to print, where there is no screen.
    pub every: Duration,
}

impl WatchConfig {
    /// Checks what was typed.
    pub fn new(args: WatchArgs, command: Vec<String>) -> Result<Self, ConfigError> {
        Ok(Self {
            observer: ObserverConfig::new(args.observer, command)?,
            duration: args.duration.filter(|duration| !duration.is_zero()),
            every: args.every,
        })
    }
}

/// How long to trace; `None` is until Ctrl-C.
fn duration(typed: Option<Duration>, terminal: bool) -> Option<Duration> {
    let default = Duration::from_secs(if terminal { 30 } else { 10 });
    Some(typed.unwrap_or(default)).filter(|duration| !duration.is_zero())
}

/// Where a report goes, and how it is written.
#[derive(Debug)]
pub struct ReportSink {
    format: Format,
    file: Option<(PathBuf, File)>,
}

impl ReportSink {
    /// Opens the file, if there is one.
    pub fn open(typed: ReportOutput) -> Result<Self, ConfigError> {
        let file = match typed.output {
            None => None,
            Some(path) => match create(&path) {
                Ok(file) => Some((path, file)),
                Err(source) => return Err(ConfigError::Output { path, source }),
            },
        };
        Ok(Self {
            format: typed.format,
            file,
        })
    }

    /// Writes the report. A reader that went away is no error.
    pub fn write(self, report: &Report) -> Result<(), ConfigError> {
        let (path, written) = match self.file {
            Some((path, file)) => (path, write_to(file, report, self.format, Style::PLAIN)),
            None => (
                PathBuf::from("standard output"),
                write_to(io::stdout().lock(), report, self.format, Style::of_stdout()),
            ),
        };
        match written {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(ConfigError::Output {
                path,
                source: error,
            }),
            _ => Ok(()),
        }
    }
}

fn write_to(output: impl Write, report: &Report, format: Format, style: Style) -> io::Result<()> {
    let mut output = BufWriter::new(output);
    report::write(report, format, style, &mut output)?;
    output.flush()
}

fn create(path: &Path) -> io::Result<File> {
    File::create(path)
}

/// Reads a duration: `30s`, `500ms`, `1h30m`, or `0`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total_ms: u64 = 0;
    while !rest.is_empty() || text.is_empty() {
        let (digits, after) = rest.split_at(
            rest.find(|c: char| !c.is_ascii_digit())
                .unwrap_or(rest.len()),
        );
        let (unit, after) = after.split_at(
            after
                .find(|c: char| c.is_ascii_digit())
                .unwrap_or(after.len()),
        );
        if digits.is_empty() {
            return Err("write a number and a unit, like 500ms, 30s, 2m or 1h30m".to_owned());
        }
        if unit.is_empty() {
            return Err(format!("{digits} of what? write {digits}s or {digits}m"));
        }
        let Some((_, unit_ms)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err("the units are ms, s, m and h".to_owned());
        };
        let part = digits
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*unit_ms));
        total_ms = part
            .and_then(|part| total_ms.checked_add(part))
            .filter(|total_ms| *total_ms <= DURATION_MAX_MS)
            .ok_or("that is more than a year; write 0 to trace until Ctrl-C")?;
        rest = after;
    }
    if total_ms == 0 {
        return Err("write 0 to trace until Ctrl-C".to_owned());
    }
    Ok(Duration::from_millis(total_ms))
}

/// Reads how often something is done: a duration that is not 0.
pub fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_duration(text)? {
        Duration::ZERO => Err("write a number and a unit, like 500ms, 5s or 1m".to_owned()),
        interval => Ok(interval),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use clap::Parser;

    use super::{ConfigError, ReportSink, TraceConfig, duration, parse_duration};
    use crate::cli::{Cli, Command, ReportOutput};
    use crate::report::Format;

    fn config(arguments: &[&str]) -> Result<TraceConfig, ConfigError> {
        let Command::Trace(args) =
            Cli::parse_from(["tracer", "trace"].iter().chain(arguments)).command
        else {
            panic!("not trace")
        };
        TraceConfig::new(*args, arguments.iter().map(ToString::to_string).collect())
    }

    #[track_caller]
    fn usage(arguments: &[&str], sentence: &str) {
        match config(arguments) {
            Err(ConfigError::Usage(said)) => assert_eq!(said, sentence),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_makes_no_sense_together_is_a_usage_error() {
        usage(
            &["--capture", "a.json"],
            "--capture: the name must end in .jsonl or .jsonl.zst",
        );
        usage(
            &["--capture", "a.jsonl", "--output", "a.jsonl"],
            "--capture and --output name the same file",
        );
        usage(
            &["--events", "--format", "json"],
            "--events prints on standard output, where the report would not be alone: add --output FILE",
        );
        usage(
            &["--ring-bytes", "5000"],
            "--ring-bytes 5000: not a power of two of at least 4096",
        );
        assert!(
            !Path::new("a.jsonl").exists(),
            "nothing may be created before all is checked"
        );
    }

    #[test]
    fn files_are_open_before_anything_is_traced() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
        let made = config(&[
            "--output",
            &path("a.json"),
            "--format",
            "json",
            "--capture",
            &path("a.jsonl.zst"),
            "--events",
        ])
        .expect("all of it can be written");
        assert!(made.capture.is_some() && made.events.is_some());
        assert!(Path::new(&path("a.json")).exists() && Path::new(&path("a.jsonl.zst")).exists());

        for option in ["--output", "--capture"] {
            match config(&[option, &path("missing/a.jsonl")]) {
                Err(error @ ConfigError::Output { .. }) => {
                    assert_eq!(
                        error.to_string(),
                        format!("cannot write {}", path("missing/a.jsonl"))
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_full_disk_is_told() {
        let sink = ReportSink::open(ReportOutput {
            format: Format::Text,
            output: Some("/dev/full".into()),
        });
        let report = crate::report::tests::samples::report(Vec::new());
        match sink.expect("it opens").write(&report) {
            Err(ConfigError::Output { source, .. }) => {
                assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn durations() {
        for (text, ms) in [
            ("0", 0),
            ("500ms", 500),
            ("30s", 30_000),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1s1ms", 1_001),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        }
        for text in [
            "",
            "s",
            "30",
            "-1s",
            "1.5s",
            "1 s",
            "10x",
            "0s",
            "s10",
            "١s",
            "99999999999999999999s",
            "9999999h",
            "1e3s",
            "inf",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn zero_is_until_ctrl_c_and_the_default_depends_on_the_terminal() {
        assert_eq!(duration(Some(Duration::ZERO), true), None);
        assert_eq!(duration(None, true), Some(Duration::from_secs(30)));
        assert_eq!(duration(None, false), Some(Duration::from_secs(10)));
        assert_eq!(
            duration(Some(Duration::from_millis(1)), true),
            Some(Duration::from_millis(1))
        );
    }
}
