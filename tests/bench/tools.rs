//! The tools that are compared: each is started, is waited for until it watches, and ends as by Ctrl-C.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::Deserialize;
use serde::de::IgnoredAny;
use tracer::lab::mortal;
use tracer_tests::binary;

use crate::network::{Pair, TOOL_CPU};

/// Longer than any of them needs.
const AT_MOST: Duration = Duration::from_secs(30);

/// How often it is looked whether a tool has ended.
const POLL: Duration = Duration::from_micros(500);
/// How long bpftrace is given to heed a signal.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// What watches while something is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// Nobody: the null of a comparison.
    Nothing,
    /// `tracer trace` with these arguments.
    Tracer(&'static [&'static str]),
    /// `tcpdump -w /dev/null` on the server's device.
    Tcpdump,
    /// bpftrace with a probe that does nothing on each of tracer's tracepoints for packets.
    EmptyBpftrace,
    /// bpftrace with a counter on each of them.
    CountingBpftrace,
}

/// The tracepoints that tracer attaches to for packets of every kind.
const TRACEPOINTS: &[&str] = &[
    "net:net_dev_start_xmit",
    "net:net_dev_xmit",
    "net:netif_receive_skb",
    "skb:kfree_skb",
    "skb:consume_skb",
];

/// Where a tool says that it watches, and in which words.
enum Ready {
    Stdout(&'static str),
    Stderr(&'static str),
}

/// A tool that watches.
pub struct Running {
    tool: Tool,
    child: Child,
    rest: JoinHandle<Vec<u8>>,
    /// From its start until it said that it watches.
    pub ready_after: Duration,
}

/// What a tool left.
pub struct Ended {
    /// From the signal to its exit.
    pub after: Duration,
    stdout: Vec<u8>,
}

impl Tool {
    /// Starts it on the tools' CPU.
    pub fn start(self, pair: &Pair) -> Result<Option<Running>> {
        self.begin(pair, true)
    }

    /// Starts it on every CPU, as a user would.
    pub fn start_anywhere(self, pair: &Pair) -> Result<Option<Running>> {
        self.begin(pair, false)
    }

    fn begin(self, pair: &Pair, pinned: bool) -> Result<Option<Running>> {
        let Some((words, ready)) = self.command(pair)? else {
            return Ok(None);
        };
        let mut line = Vec::new();
        if pinned {
            let cpu = TOOL_CPU.to_string();
            line.extend(["taskset", "-c", &cpu].map(str::to_owned));
        }
        line.extend(words);
        let mut command = mortal(&line[0]);
        command.args(&line[1..]);
        Running::start(self, command, &ready)
            .with_context(|| format!("starting {self:?}"))
            .map(Some)
    }

    const fn is_bpftrace(self) -> bool {
        matches!(self, Self::EmptyBpftrace | Self::CountingBpftrace)
    }

    fn command(self, pair: &Pair) -> Result<Option<(Vec<String>, Ready)>> {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        Ok(Some(match self {
            Self::Nothing => return Ok(None),
            Self::Tracer(arguments) => {
                let mut command = vec![binary()?.to_string_lossy().into_owned()];
                command.extend(words(&["trace", "--for", "0", "--format", "json"]));
                command.extend(words(arguments));
                (command, Ready::Stderr("tracer: ready"))
            }
            Self::Tcpdump => {
                let netns = format!("--net=/run/netns/{}", pair.server.name());
                let tcpdump = [
                    "nsenter",
                    &netns,
                    "tcpdump",
                    "-n",
                    "-i",
                    "eth0",
                    "-w",
                    "/dev/null",
                ];
                (words(&tcpdump), Ready::Stderr("listening on"))
            }
            Self::EmptyBpftrace => bpftrace("{ }"),
            Self::CountingBpftrace => bpftrace("{ @[probe] = count(); }"),
        }))
    }
}

/// bpftrace attaches its probes in their order, so that the last one tells when all are there.
fn bpftrace(action: &str) -> (Vec<String>, Ready) {
    let mut program = String::new();
    for tracepoint in TRACEPOINTS {
        program.extend(["tracepoint:", tracepoint, " ", action, " "]);
    }
    program.push_str("interval:ms:1 { if (@told == 0) { printf(\"ready\\n\"); @told = 1; } }");
    let words = ["bpftrace", "-B", "line", "-e", &program];
    (
        words.iter().map(ToString::to_string).collect(),
        Ready::Stdout("ready"),
    )
}

impl Running {
    fn start(tool: Tool, mut command: Command, ready: &Ready) -> Result<Self> {
        let begin = Instant::now();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().context("no pipe from stdout")?;
        let stderr = child.stderr.take().context("no pipe from stderr")?;
        let (sender, told) = channel();
        let rest = match *ready {
            Ready::Stderr(words) => {
                watch(stderr, words, sender);
                thread::spawn(move || read_all(stdout))
            }
            Ready::Stdout(words) => {
                watch(stdout, words, sender);
                thread::spawn(move || read_all(stderr))
            }
        };
        let mut running = Self {
            tool,
            child,
            rest,
            ready_after: Duration::ZERO,
        };
        running.ready_after = running.wait_until(&told)?.duration_since(begin);
        Ok(running)
    }

    fn wait_until(&mut self, told: &Receiver<Instant>) -> Result<Instant> {
        if let Ok(at) = told.recv_timeout(AT_MOST) {
            return Ok(at);
        }
        self.child.kill()?;
        let status = self.child.wait()?;
        bail!("it did not begin to watch ({status})")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as Ctrl-C does.
    pub fn interrupt(mut self) -> Result<Ended> {
        let begin = Instant::now();
        let pid = Pid::from_raw(self.child.id().try_into()?);
        kill(pid, Signal::SIGINT)?;
        // bpftrace 0.17 often sleeps through the first signal.
        let mut again = begin + ASK_AGAIN;
        while self.tool.is_bpftrace() && self.child.try_wait()?.is_none() {
            if Instant::now() > again {
                kill(pid, Signal::SIGINT)?;
                again += ASK_AGAIN;
            }
            thread::sleep(POLL);
        }
        self.wait(begin)
    }

    /// Waits until it ends by itself, and says how long that was from `begin`.
    pub fn wait(mut self, begin: Instant) -> Result<Ended> {
        while self.child.try_wait()?.is_none() {
            if begin.elapsed() > AT_MOST {
                self.child.kill()?;
                self.child.wait()?;
                bail!("{:?} did not end", self.tool);
            }
            thread::sleep(POLL);
        }
        let after = begin.elapsed();
        let stdout = self.rest.join().ok().context("reading what a tool says")?;
        Ok(Ended { after, stdout })
    }
}

impl Ended {
    /// A tracer's report.
    pub fn report(&self) -> Result<Report> {
        serde_json::from_slice(&self.stdout).context("no report")
    }
}

/// What is read of a tracer's report.
#[derive(Deserialize)]
pub struct Report {
    pub ledger: Ledger,
    /// They are only counted.
    pub flows: Vec<IgnoredAny>,
}

/// What was lost, and what was not.
#[derive(Deserialize)]
pub struct Ledger {
    pub emitted: u64,
    pub delivered: u64,
    pub ring_full: u64,
    pub table_full: u64,
}

impl Report {
    /// How many events did not fit into the ring. That everything else was delivered must hold at any load.
    pub fn lost(&self) -> Result<u64> {
        let Ledger {
            emitted, delivered, ..
        } = self.ledger;
        ensure!(
            emitted == delivered,
            "of {emitted} events {delivered} were delivered"
        );
        Ok(self.ledger.ring_full)
    }
}

/// Lets bpftrace find tracepoints, for as long as this sandbox lives: it reads them in tracefs.
pub fn mount_tracefs() -> Result<()> {
    const TRACEFS: &str = "/sys/kernel/tracing";
    if !Path::new(TRACEFS).join("events").exists() {
        let none = None::<&str>;
        mount(
            Some("tracefs"),
            TRACEFS,
            Some("tracefs"),
            MsFlags::empty(),
            none,
        )
        .context("mounting tracefs in the sandbox")?;
    }
    Ok(())
}

/// Reads lines to the end, and tells when one begins with `words`.
fn watch(
    lines: impl std::io::Read + Send + 'static,
    words: &'static str,
    told: std::sync::mpsc::Sender<Instant>,
) {
    thread::spawn(move || {
        for line in BufReader::new(lines).split(b'\n').map_while(Result::ok) {
            if String::from_utf8_lossy(&line).contains(words) {
                // Nobody waits any more for a line that comes a second time.
                let _ = told.send(Instant::now());
            }
        }
    });
}

fn read_all(mut pipe: impl std::io::Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What was read before an error is what there is.
    let _ = pipe.read_to_end(&mut bytes);
    bytes
}

/// CPU time that a process has used, all its threads together, in nanoseconds.
pub fn cpu_ns(pid: u32) -> Result<u64> {
    let mut total = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let spent = text.split(' ').next().unwrap_or_default();
        total += spent.parse::<u64>().context("reading schedstat")?;
    }
    Ok(total)
}
