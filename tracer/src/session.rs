//! One run of the hooks, whatever it is for: attaches, gives up its privileges, moves events from the ring into the
//! analysis (and the capture, if there is one) until something ends it, and closes the books. What is done with the
//! analysis meanwhile is the command's own [`Work`].

use std::fs::File;
use std::io::{self, BufWriter, Stdout};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::io::unix::AsyncFd;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::analysis::Analysis;
use crate::attach::{AttachOptions, Attached, BUDGET, Control, attach};
use crate::config::ObserverConfig;
use crate::export::capture::CaptureWriter;
use crate::export::events::EventLog;
use crate::host::Host;
use crate::record::{CAPTURE_SCHEMA, Device, Fact, Header, Record, StoppedBy, Trailer, View};
use crate::source::ring::Ring;
use crate::topology::{Counters, Pace, Statistics, Topology, tunnel_ports};
use crate::{clock, privilege};

/// This program, to be started as a helper.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// How often the ring is emptied: nothing wakes its reader while it is less than half full.
const DRAIN_EVERY: Duration = Duration::from_millis(10);
/// How often devices and the ledger are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often both clocks are read together, since the wall clock may be set meanwhile.
const CLOCK_EVERY_NS: u64 = 30_000_000_000;
/// How often the ring is emptied once the hooks are gone; each time takes a bounded number of records.
const LAST_DRAINS: usize = 64;
/// The most questions about packets that died just before the hooks were gone.
const LAST_QUESTIONS: usize = 16;
/// The most sockets that are asked for in one look, and at the end.
const SOCKETS_PER_LOOK: usize = 64;
/// See [`SOCKETS_PER_LOOK`].
const LAST_SOCKETS: usize = 1_024;
/// The longest that a report waits for the names of processes.
const LAST_HOLDERS_WITHIN: Duration = Duration::from_secs(1);

/// What a command does while the hooks run. Whatever it returns ends the run.
pub trait Work {
    /// The ring has been emptied: every 10 ms, or more often.
    fn drained(&mut self, _analysis: &Analysis) -> Result<Option<StoppedBy>> {
        Ok(None)
    }

    /// The devices and the ledger have been looked at as well, as of `now_ns` (CLOCK_MONOTONIC): every 100 ms.
    fn looked(&mut self, analysis: &mut Analysis, now_ns: u64) -> Result<Option<StoppedBy>>;
}

/// Where records go besides the analysis.
#[derive(Debug, Default)]
pub struct Outputs {
    /// The capture.
    pub capture: Option<CaptureWriter<File>>,
    /// Where each event is shown as it happens.
    pub events: Option<EventLog<BufWriter<Stdout>>>,
}

/// Hooks that are attached, and what came of them so far.
pub struct Session {
    runtime: Rc<Runtime>,
    signals: Signals,
    ring: Ring,
    control: Control,
    topology: Topology,
    counters: Counters,
    statistics: Statistics,
    pace: Pace,
    sink: Sink,
    last_clock_ns: u64,
}

/// The signals that end a run. They are caught from before it says that it is ready, so that whoever waited for that
/// line may send one at once.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// Needs the context of a runtime.
    fn catch() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one.
    async fn received(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hangup.recv() => {}
        }
    }
}

/// Where every record goes: into the analysis, and into the outputs that there are.
struct Sink {
    analysis: Analysis,
    outputs: Outputs,
    /// Why the capture could not be written any further.
    failure: Option<io::Error>,
}

impl Sink {
    fn push(&mut self, record: &Record) {
        self.analysis.push(record);
        let capture = &mut self.outputs.capture;
        let written = capture.as_mut().map(|capture| capture.push(record));
        self.keep(written);
        let events = &mut self.outputs.events;
        if events
            .as_mut()
            .is_some_and(|events| events.push(record).is_err())
        {
            *events = None;
        }
    }

    fn flush(&mut self) {
        let flushed = self.outputs.capture.as_mut().map(CaptureWriter::flush);
        self.keep(flushed);
        // Nobody reads the lines any more, which is no error: the report follows all the same.
        let events = &mut self.outputs.events;
        if events
            .as_mut()
            .is_some_and(|events| events.flush().is_err())
        {
            *events = None;
        }
    }

    fn keep(&mut self, result: Option<io::Result<()>>) {
        if let Some(Err(error)) = result {
            self.failure = Some(error);
            self.outputs.capture = None;
        }
    }
}

impl Session {
    /// Attaches the hooks, gives up the privileges that took, and says so on stderr.
    pub fn open(config: &ObserverConfig, outputs: Outputs) -> Result<Self> {
        privilege::check()?;
        let mut topology = Topology::open()?;
        let view = topology.view(&config.netns, config.pods)?;
        let entrances = topology.entrances(&config.tc, &view)?;
        let tc_devices = entrances.iter().map(|entrance| entrance.id).collect();
        topology.start_helper(Path::new(OWN_PROGRAM), view == View::Kernel);
        let wireguard = topology.know_wireguard(Path::new(OWN_PROGRAM));
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
            wireguard_devices: topology.wireguard_devices(),
            entrances,
        })?;
        let mut counters = Counters::open(&topology, &view);
        counters.begin();
        let statistics = Statistics::begin(&mut topology, &view);
        let (count, offered) = attached.count();
        let mut header = header(config, &attached, &topology, view)?;
        header.blind_spots.extend(counters.blind_spot());
        header.tc_devices = tc_devices;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let signals = {
            let _context = runtime.enter();
            Signals::catch()?
        };
        let mut session = Self {
            runtime: Rc::new(runtime),
            signals,
            ring: attached.ring,
            control: attached.control,
            topology,
            counters,
            statistics,
            pace: Pace::new(Instant::now().into_std()),
            sink: Sink {
                analysis: Analysis::new(header.clone()),
                outputs,
                failure: None,
            },
            last_clock_ns: 0,
        };
        session.begin(header, wireguard)?;
        privilege::drop_all(&[]).context("cannot give up privileges")?;
        if !config.quiet {
            anstream::eprintln!("tracer: ready ({count} of {offered} hooks)");
        }
        Ok(session)
    }

    /// The node's name; untrusted.
    pub fn hostname(&self) -> &str {
        &self.sink.analysis.header.hostname
    }

    fn begin(&mut self, header: Header, wireguard: Vec<Fact>) -> Result<()> {
        self.sink.push(&Record::Header(Box::new(header)));
        self.read_clocks(clock::monotonic_ns()?)?;
        let devices = self.topology.devices();
        for device in devices {
            self.sink.push(&Record::Device(Box::new(device)));
        }
        for fact in wireguard {
            self.sink.push(&Record::Fact(fact));
        }
        self.declare_tunnels()?;
        self.sink.flush();
        Ok(())
    }

    /// Runs until a signal, the end of `duration`, or the command's own work ends it.
    pub fn run(&mut self, duration: Option<Duration>, work: &mut impl Work) -> Result<StoppedBy> {
        Rc::clone(&self.runtime).block_on(self.watch(duration, work))
    }

    async fn watch(
        &mut self,
        duration: Option<Duration>,
        work: &mut impl Work,
    ) -> Result<StoppedBy> {
        let ring: OwnedFd = self.ring.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` is open until it is dropped, and always tells the same descriptor.
        let ring = unsafe { AsyncFd::register(ring) }.map_err(io::Error::from)?;
        let mut drain = interval(DRAIN_EVERY);
        drain.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut next_look = Instant::now();
        let deadline = duration.map(|duration| next_look + duration);
        loop {
            tokio::select! {
                biased;
                () = self.signals.received() => return Ok(StoppedBy::Signal),
                () = at(deadline) => return Ok(StoppedBy::Duration),
                ready = ring.readable() => ready?.clear_ready(),
                _ = drain.tick() => {}
            }
            self.drain();
            let now = Instant::now().into_std();
            if self.pace.allows(now) && self.ask()? {
                self.pace.asked(now);
            }
            if let Some(stopped_by) = work.drained(&self.sink.analysis)? {
                return Ok(stopped_by);
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK_EVERY;
                let now_ns = self.look()?;
                if self.sink.failure.is_some() {
                    return Ok(StoppedBy::Failure);
                }
                if let Some(stopped_by) = work.looked(&mut self.sink.analysis, now_ns)? {
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

    /// Asks the kernel about a packet that died, if there is something to ask.
    fn ask(&mut self) -> Result<bool> {
        let Some(question) = self.sink.analysis.questions.take() else {
            return Ok(false);
        };
        for fact in self.topology.ask(&question, clock::monotonic_ns()?) {
            self.sink.push(&Record::Fact(fact));
        }
        Ok(true)
    }

    /// Asks who is behind what was seen, and takes in what is known by now.
    fn ask_who(&mut self, at_most: usize) -> Result<()> {
        for _ in 0..at_most {
            let Some(whom) = self.sink.analysis.owners.take() else {
                break;
            };
            if let Some(fact) = self.topology.ask_who(whom, clock::monotonic_ns()?) {
                self.sink.push(&Record::Fact(fact));
            }
        }
        for fact in self.topology.take_holders() {
            self.sink.push(&Record::Fact(fact));
        }
        Ok(())
    }

    /// Takes in everything but events, as of the time that is returned.
    fn look(&mut self) -> Result<u64> {
        let now_ns = clock::monotonic_ns()?;
        self.ask_who(SOCKETS_PER_LOOK)?;
        let mut changes = self.topology.poll();
        // A WireGuard device tells its port only when it is asked, and has one only while it is up.
        let is_wireguard = |device: &Device| device.kind == "wireguard" && !device.removed;
        if changes.iter().any(is_wireguard) {
            for fact in self.topology.wireguard() {
                self.sink.push(&Record::Fact(fact));
            }
            changes.extend(self.topology.poll());
        }
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
        Ok(now_ns)
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
        let wireguard = self.topology.wireguard_devices();
        self.control.set_wireguard_devices(&wireguard)?;
        Ok(())
    }

    /// Stops the hooks, takes what is still in the ring, and returns all that was seen; the second part is why the
    /// capture could not be written to its end, if so.
    pub fn finish(mut self, stopped_by: StoppedBy) -> Result<(Analysis, Option<io::Error>)> {
        let end_ns = clock::monotonic_ns()?;
        self.control.detach()?;
        for _ in 0..LAST_DRAINS {
            if self.drain() {
                break;
            }
        }
        for _ in 0..LAST_QUESTIONS {
            if !self.ask()? {
                break;
            }
        }
        self.ask_who(LAST_SOCKETS)?;
        let until = Instant::now() + LAST_HOLDERS_WITHIN;
        while self.topology.awaits_holders() && Instant::now() < until {
            self.topology.await_holders(until - Instant::now());
            self.ask_who(LAST_SOCKETS)?;
        }
        let ledger = self.control.ledger(&self.ring, clock::monotonic_ns()?)?;
        self.sink.push(&Record::Ledger(ledger));
        let counted = self.statistics.finish(&mut self.topology);
        let wireguard = self.topology.wireguard();
        let counted = counted.into_iter().chain(wireguard);
        for fact in self.counters.finish().into_iter().chain(counted) {
            self.sink.push(&Record::Fact(fact));
        }
        self.sink.push(&Record::Clock(clock::read()?));
        self.sink
            .push(&Record::Trailer(Trailer { end_ns, stopped_by }));
        let finished = self.sink.outputs.capture.take().map(CaptureWriter::finish);
        self.sink.keep(finished);
        Ok((self.sink.analysis, self.sink.failure))
    }
}

fn header(
    config: &ObserverConfig,
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
        tc_devices: Vec::new(),
        start_ns: clock::monotonic_ns()?,
    })
}

/// Waits until a moment, for ever if there is none.
async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
