//! What a tracer is asked to watch, how its trace ends, and what it said.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use nix::sys::signal::Signal;
use serde_json::Value;
use tracer_tests::{Run, Tracer};

use crate::network::Network;
use crate::rng::Rng;
use crate::shape::Shape;

/// A bound only: every trace is ended from here.
const AT_MOST: &str = "60s";

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// The whole kernel, and this lab's addresses.
    Filtered,
    /// The whole kernel, and the addresses of the client.
    FilteredByClient,
    Everything,
    ClientNode,
    ServerNode,
    Router,
}

/// How a trace ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By Ctrl-C, when everything is over.
    Late,
    /// By Ctrl-C, so many milliseconds after the faults began.
    Early(u64),
    UntilVerdict,
    /// By SIGKILL, so many milliseconds after the faults began or when everything is over; the capture is read then.
    Killed(Option<u64>),
}

/// A tracer of a run.
#[derive(Clone, Copy, Debug)]
pub struct View {
    pub watch: Watch,
    pub ending: Ending,
    /// `--hooks tracepoints`.
    pub tracepoints: bool,
}

impl View {
    pub fn choose(rng: &mut Rng) -> Self {
        Self {
            watch: rng.pick(&[
                Watch::Filtered,
                Watch::Filtered,
                Watch::FilteredByClient,
                Watch::Everything,
                Watch::ClientNode,
                Watch::ClientNode,
                Watch::ServerNode,
                Watch::ServerNode,
                Watch::Router,
            ]),
            ending: match rng.between(1, 10) {
                1 | 2 => Ending::Early(rng.between(20, 5000)),
                3 => Ending::UntilVerdict,
                4 => Ending::Killed(None),
                5 => Ending::Killed(Some(rng.between(20, 5000))),
                _ => Ending::Late,
            },
            tracepoints: rng.chance(20),
        }
    }

    /// The namespaces that it sees, from the first to the last of them on the way to the server.
    pub fn range(self, shape: Shape) -> (usize, usize) {
        let last = shape.last();
        match self.watch {
            Watch::Filtered | Watch::FilteredByClient | Watch::Everything => (0, last),
            Watch::ClientNode => (0, 1),
            Watch::ServerNode => (last - 1, last),
            Watch::Router => (2, 2),
        }
    }

    /// Its row in the table.
    pub fn label(self) -> &'static str {
        match self.watch {
            Watch::Filtered | Watch::FilteredByClient => "whole kernel, with a filter",
            Watch::Everything => "whole kernel, no filter",
            Watch::ClientNode => "client's node",
            Watch::ServerNode => "server's node",
            Watch::Router => "a router",
        }
    }

    /// The row of how it ended.
    pub fn ending_label(self) -> &'static str {
        match self.ending {
            Ending::Late => "Ctrl-C when all is over",
            Ending::Early(_) => "Ctrl-C at any time",
            Ending::UntilVerdict => "--until-verdict",
            Ending::Killed(None) => "SIGKILL when all is over, capture read",
            Ending::Killed(Some(_)) => "SIGKILL at any time, capture read",
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {:?}", self.watch, self.ending)?;
        if self.tracepoints {
            f.write_str(", --hooks tracepoints")?;
        }
        Ok(())
    }
}

/// A tracer that runs.
pub struct Observer {
    pub view: View,
    tracer: Option<Tracer>,
    capture: PathBuf,
    ready: Instant,
    /// When a signal ended it.
    signalled: Option<Instant>,
}

/// What a tracer left.
pub struct Observed {
    pub view: View,
    pub report: Value,
    pub code: Option<i32>,
    /// Its window closed between these.
    pub closed: (Instant, Instant),
}

/// How far the window that a report tells may be from the time that this process measures.
const CLOCK_ERROR: Duration = Duration::from_millis(600);

impl Observer {
    /// Starts it in the calling thread's sandbox and waits until it is attached. Its capture goes into `directory`.
    pub fn start(view: View, number: usize, network: &Network, directory: &Path) -> Result<Self> {
        let capture = directory.join(format!("view-{number}.jsonl"));
        let path = capture.to_str().context("a path that is text")?;
        let mut arguments = vec![
            "trace",
            "--format",
            "json",
            "--for",
            AT_MOST,
            "--capture",
            path,
        ];
        if view.tracepoints {
            arguments.extend(["--hooks", "tracepoints"]);
        }
        if view.ending == Ending::UntilVerdict {
            arguments.push("--until-verdict");
        }
        let filter = match view.watch {
            Watch::FilteredByClient => format!("host {}", network.plan.client_ip()),
            _ => network.plan.filter(),
        };
        match view.watch {
            Watch::Filtered | Watch::FilteredByClient => arguments.push(&filter),
            Watch::Everything => {}
            Watch::ClientNode => arguments.extend(["--netns", "node-a", "--pods"]),
            Watch::ServerNode => arguments.extend(["--netns", "node-b", "--pods"]),
            Watch::Router => arguments.extend(["--netns", "router-1"]),
        }
        let mut tracer = Tracer::start(&arguments)?;
        tracer.wait_until_ready()?;
        Ok(Self {
            view,
            tracer: Some(tracer),
            capture,
            ready: Instant::now(),
            signalled: None,
        })
    }

    /// Ends it now, if it has not ended by itself.
    pub fn end(&mut self) -> Result<()> {
        if let (Some(tracer), None) = (&self.tracer, self.signalled) {
            let signal = match self.view.ending {
                Ending::Killed(_) => Signal::SIGKILL,
                _ => Signal::SIGINT,
            };
            self.signalled = Some(Instant::now());
            // One that had its verdict is a process that nobody has waited for yet, and takes the signal too.
            tracer.signal(signal)?;
        }
        Ok(())
    }

    /// What it said. It must have been ended.
    pub fn collect(mut self) -> Result<Observed> {
        let tracer = self.tracer.take().context("collected twice")?;
        let run = tracer.finish(Duration::from_mins(1))?;
        let run = match self.view.ending {
            Ending::Killed(_) => {
                let path = self.capture.to_str().context("a path that is text")?;
                Run::of(&["report", path, "--format", "json"])?
            }
            _ => run,
        };
        let report = run.report()?;
        let told = report["window"]["duration_ns"]
            .as_u64()
            .context("a window")?;
        let told = self.ready + Duration::from_nanos(told);
        let closed = match (self.view.ending, self.signalled) {
            (Ending::UntilVerdict | Ending::Killed(_), _) | (_, None) => (
                told.checked_sub(CLOCK_ERROR).unwrap_or(told),
                told + CLOCK_ERROR,
            ),
            (_, Some(signalled)) => (signalled, told.max(signalled) + CLOCK_ERROR),
        };
        Ok(Observed {
            view: self.view,
            code: run.code(),
            report,
            closed,
        })
    }
}
