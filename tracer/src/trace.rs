//! Runs one trace: watches until something ends it, then reports.

use std::io::{self, IsTerminal as _};
use std::time::{Duration, Instant};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::analysis::Analysis;
use crate::config::TraceConfig;
use crate::record::StoppedBy;
use crate::report::{self, Report};
use crate::session::{Outputs, Session, Work};

/// Traces until something ends it, and returns the report. `config.capture` and `config.events` are taken.
///
/// A capture that cannot be written ends the trace: the report is then of what was seen until then, and the error
/// is its second part.
pub fn run(config: &mut TraceConfig) -> Result<(Report, Option<io::Error>)> {
    let outputs = Outputs {
        capture: config.capture.take(),
        events: config.events.take(),
    };
    let mut session = Session::open(&config.observer, outputs)?;
    let stopped_by = session.run(config.duration, &mut Waiting::new(config))?;
    let (analysis, failure) = session.finish(stopped_by)?;
    Ok((report::build(&analysis), failure))
}

/// What happens while a trace runs: a person at a terminal sees that it does, and `--until-verdict` looks for its
/// verdict.
struct Waiting {
    bar: ProgressBar,
    started: Instant,
    duration: Option<Duration>,
    until_verdict: bool,
    judge_after: Instant,
}

/// Every flow is judged to find the verdict that ends the trace, which takes the longer the more there are: of all the
/// time, at most one part in this many.
const JUDGE_PAUSE: u32 = 10;

impl Waiting {
    fn new(config: &TraceConfig) -> Self {
        // indicatif draws on stderr, and only where stderr is a terminal.
        let bar = if config.observer.quiet || !io::stderr().is_terminal() {
            ProgressBar::hidden()
        } else {
            ProgressBar::new_spinner()
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        Self {
            bar,
            started: Instant::now(),
            duration: config.duration,
            until_verdict: config.until_verdict,
            judge_after: Instant::now(),
        }
    }

    fn has_final_fault(&mut self, analysis: &Analysis, now_ns: u64) -> bool {
        let begin = Instant::now();
        if begin < self.judge_after {
            return false;
        }
        let found = report::has_final_fault(analysis, now_ns);
        self.judge_after = begin + JUDGE_PAUSE * begin.elapsed();
        found
    }
}

impl Work for Waiting {
    fn looked(&mut self, analysis: &mut Analysis, now_ns: u64) -> Result<Option<StoppedBy>> {
        let limit = self.duration.map_or_else(
            || "until Ctrl-C".to_owned(),
            |duration| format!("of {} s", duration.as_secs()),
        );
        self.bar.set_message(format!(
            "{} s {limit}, {} flows; Ctrl-C ends with a report",
            self.started.elapsed().as_secs(),
            analysis.flows.len()
        ));
        self.bar.tick();
        let done = self.until_verdict && self.has_final_fault(analysis, now_ns);
        Ok(done.then_some(StoppedBy::Verdict))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
