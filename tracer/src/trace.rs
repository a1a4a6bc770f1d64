//! Runs one trace: attaches, gives up its privileges, moves events from the ring into the capture and the analysis
//! until something ends it, and closes the books.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal as _, Stdout};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::analysis::Analysis;
use crate::attach::{AttachOptions, Attached, BUDGET, Control, attach};
use crate::config::TraceConfig;
use crate::export::capture::CaptureWriter;
use crate::export::events::EventLog;
use crate::host::Host;
use crate::record::{CAPTURE_SCHEMA, Header, Record, StoppedBy, Trailer, View};
use crate::report::{self, Report};
use crate::source::ring::Ring;
use crate::topology::{Counters, Topology, tunnel_ports};
use crate::{clock, privilege};

/// How often the ring is emptied: nothing wakes its reader while it is less than half full.
const DRAIN_EVERY: Duration = Duration::from_millis(10);
/// How often devices and the ledger are looked at, and `--until-verdict` looks for its verdict.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often both clocks are read together, since the wall clock may be set meanwhile.
const CLOCK_EVERY_NS: u64 = 30_000_000_000;
/// How often the ring is emptied once the hooks are gone; each time takes a bounded number of records.
const LAST_DRAINS: usize = 64;

/// Traces until something ends it, and returns the report. `config.capture` is taken.
///
/// A capture that cannot be written ends the trace: the report is then of what was seen until then, and the error
/// is its second part.
pub fn run(config: &mut TraceConfig) -> Result<(Report, Option<io::Error>)> {
    privilege::check()?;
    let mut topology = Topology::open()?;
    let view = topology.view(&config.netns, config.pods)?;
    if view == View::Kernel {
        topology.keep_looking(Path::new("/proc/self/exe"));
    }
    let attached = attach(&AttachOptions {
        filter: *config.filter_program,
        netns: match &view {
            View::Kernel => None,
            View::Netns { netns } => Some(netns.iter().map(|netns| netns.inum).collect()),
        },
        netns_cookies: topology.has_cookies(),
        ring_bytes: config.ring_bytes,
        budget: if config.all_packets { 0 } else { BUDGET },
        tunnel_ports: tunnel_ports(&topology.devices()).0,
    })?;
    let mut counters = Counters::open(&topology, &view);
    counters.begin();
    let (count, offered) = attached.count();
    let mut header = header(config, &attached, &topology, view)?;
    header.blind_spots.extend(counters.blind_spot());
    let mut trace = Trace {
        ring: attached.ring,
        control: attached.control,
        topology,
        counters,
        sink: Sink {
            analysis: Analysis::new(header.clone()),
            capture: config.capture.take(),
            events: config.events.take(),
            failure: None,
        },
        last_clock_ns: 0,
    };
    trace.begin(header)?;
    privilege::drop_all(&[]).context("cannot give up privileges")?;
    if !config.quiet {
        anstream::eprintln!("tracer: ready ({count} of {offered} hooks)");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let stopped_by = runtime.block_on(trace.watch(config))?;
    trace.finish(stopped_by)
}

fn header(
    config: &TraceConfig,
    attached: &Attached,
    topology: &Topology,
    view: View,
) -> Result<Header> {
    let host = Host::read().context("cannot tell which node this is")?;
    let mut blind_spots = attached.blind_spots.clone();
    blind_spots.extend(topology.blind_spots());
    Ok(Header {
        schema: CAPTURE_SCHEMA.to_owned(),
        tracer_version: env!("CARGO_PKG_VERSION").to_owned(),
        command: config.command.clone(),
        hostname: host.hostname,
        machine_id: host.machine_id,
        boot_id: host.boot_id,
        kernel: host.kernel,
        arch: host.arch,
        filter: config.filter.clone(),
        view,
        hooks: attached.hooks.clone(),
        blind_spots,
        start_ns: clock::monotonic_ns()?,
    })
}

/// A trace that runs.
struct Trace {
    ring: Ring,
    control: Control,
    topology: Topology,
    counters: Counters,
    sink: Sink,
    last_clock_ns: u64,
}

/// Where every record goes: into the analysis, and into the capture if there is one.
struct Sink {
    analysis: Analysis,
    capture: Option<CaptureWriter<File>>,
    /// Where each event is shown as it happens.
    events: Option<EventLog<BufWriter<Stdout>>>,
    /// Why the capture could not be written any further.
    failure: Option<io::Error>,
}

impl Sink {
    fn push(&mut self, record: &Record) {
        self.analysis.push(record);
        let written = self.capture.as_mut().map(|capture| capture.push(record));
        self.keep(written);
        if self
            .events
            .as_mut()
            .is_some_and(|events| events.push(record).is_err())
        {
            self.events = None;
        }
    }

    fn flush(&mut self) {
        let flushed = self.capture.as_mut().map(CaptureWriter::flush);
        self.keep(flushed);
        // Nobody reads the lines any more, which is no error: the report follows all the same.
        if self
            .events
            .as_mut()
            .is_some_and(|events| events.flush().is_err())
        {
            self.events = None;
        }
    }

    fn keep(&mut self, result: Option<io::Result<()>>) {
        if let Some(Err(error)) = result {
            self.failure = Some(error);
            self.capture = None;
        }
    }
}

impl Trace {
    fn begin(&mut self, header: Header) -> Result<()> {
        self.sink.push(&Record::Header(Box::new(header)));
        self.read_clocks(clock::monotonic_ns()?)?;
        let devices = self.topology.devices();
        for device in devices {
            self.sink.push(&Record::Device(Box::new(device)));
        }
        self.declare_tunnels()?;
        self.sink.flush();
        Ok(())
    }

    async fn watch(&mut self, config: &TraceConfig) -> Result<StoppedBy> {
        let ring: OwnedFd = self.ring.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` is open until it is dropped, and always tells the same descriptor.
        let ring = unsafe { AsyncFd::register(ring) }.map_err(io::Error::from)?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let mut drain = interval(DRAIN_EVERY);
        drain.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let started = Instant::now();
        let deadline = config.duration.map(|duration| started + duration);
        let progress = Progress::new(config);
        let mut next_look = started;
        loop {
            tokio::select! {
                biased;
                _ = interrupt.recv() => return Ok(StoppedBy::Signal),
                _ = terminate.recv() => return Ok(StoppedBy::Signal),
                _ = hangup.recv() => return Ok(StoppedBy::Signal),
                () = at(deadline) => return Ok(StoppedBy::Duration),
                ready = ring.readable() => ready?.clear_ready(),
                _ = drain.tick() => {}
            }
            self.drain();
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK_EVERY;
                progress.show(started.elapsed(), &self.sink.analysis);
                if let Some(stopped_by) = self.look(config.until_verdict)? {
                    return Ok(stopped_by);
                }
            }
        }
    }

    fn drain(&mut self) -> bool {
        let Self { sink, topology, .. } = self;
        let empty = self.ring.drain(|event| {
            if let Some(netns) = event.netns {
                topology.notice(netns);
            }
            sink.push(&Record::Event(Box::new(event)));
        });
        sink.flush();
        empty
    }

    /// Takes in everything but events, and says whether the trace is over.
    fn look(&mut self, until_verdict: bool) -> Result<Option<StoppedBy>> {
        let now_ns = clock::monotonic_ns()?;
        let changes = self.topology.poll();
        self.counters.follow(&self.topology);
        if !changes.is_empty() {
            for device in changes {
                self.sink.push(&Record::Device(Box::new(device)));
            }
            self.declare_tunnels()?;
        }
        let ledger = self.control.ledger(&self.ring, now_ns)?;
        if self.sink.analysis.is_news(&ledger) {
            self.sink.push(&Record::Ledger(ledger));
        }
        if now_ns.saturating_sub(self.last_clock_ns) >= CLOCK_EVERY_NS {
            self.read_clocks(now_ns)?;
        }
        if self.sink.failure.is_some() {
            return Ok(Some(StoppedBy::Failure));
        }
        let done = until_verdict && report::has_final_fault(&self.sink.analysis, now_ns);
        Ok(done.then_some(StoppedBy::Verdict))
    }

    fn read_clocks(&mut self, now_ns: u64) -> Result<()> {
        self.last_clock_ns = now_ns;
        self.sink.push(&Record::Clock(clock::read()?));
        Ok(())
    }

    /// Tells the kernel half which UDP ports carry tunnels, as of now.
    fn declare_tunnels(&mut self) -> Result<()> {
        let (ports, _beyond) = tunnel_ports(&self.topology.devices());
        self.control.set_tunnel_ports(&ports)?;
        Ok(())
    }

    /// Stops the hooks, takes what is still in the ring, and reports.
    fn finish(mut self, stopped_by: StoppedBy) -> Result<(Report, Option<io::Error>)> {
        let end_ns = clock::monotonic_ns()?;
        self.control.detach()?;
        for _ in 0..LAST_DRAINS {
            if self.drain() {
                break;
            }
        }
        let ledger = self.control.ledger(&self.ring, clock::monotonic_ns()?)?;
        self.sink.push(&Record::Ledger(ledger));
        for fact in self.counters.finish() {
            self.sink.push(&Record::Fact(fact));
        }
        self.sink.push(&Record::Clock(clock::read()?));
        self.sink
            .push(&Record::Trailer(Trailer { end_ns, stopped_by }));
        let finished = self.sink.capture.take().map(CaptureWriter::finish);
        self.sink.keep(finished);
        Ok((report::build(&self.sink.analysis), self.sink.failure))
    }
}

/// Waits until a moment, for ever if there is none.
async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// What a person at a terminal sees while they wait.
struct Progress {
    bar: ProgressBar,
    duration: Option<Duration>,
}

impl Progress {
    fn new(config: &TraceConfig) -> Self {
        // indicatif draws on stderr, and only where stderr is a terminal.
        let bar = if config.quiet || !io::stderr().is_terminal() {
            ProgressBar::hidden()
        } else {
            ProgressBar::new_spinner()
        };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        Self {
            bar,
            duration: config.duration,
        }
    }

    fn show(&self, elapsed: Duration, analysis: &Analysis) {
        let limit = self.duration.map_or_else(
            || "until Ctrl-C".to_owned(),
            |duration| format!("of {} s", duration.as_secs()),
        );
        self.bar.set_message(format!(
            "{} s {limit}, {} flows; Ctrl-C ends with a report",
            elapsed.as_secs(),
            analysis.flows.len()
        ));
        self.bar.tick();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
