//! The real binary, started as an operator would start it, and never waited for without a bound.

use std::env;
use std::fmt;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tracer::lab::mortal;

/// Attaching takes well under a second; many debug builds that start at once on a busy machine take far longer.
const READY_WITHIN: Duration = Duration::from_mins(1);

/// From the signal (or the end of `--for`) to the exit.
const EXIT_WITHIN: Duration = Duration::from_secs(30);

/// How much longer a deadline is than on a machine of its own: `TRACER_LAB_SLOWDOWN`, else 1. It says how long a test
/// waits before it calls silence a failure, never what a verdict is made of.
pub fn within(deadline: Duration) -> Duration {
    let factor = env::var("TRACER_LAB_SLOWDOWN").ok();
    deadline * factor.and_then(|factor| factor.parse().ok()).unwrap_or(1)
}

/// The binary under test: `TRACER_BIN`, or the one that this build put beside the test programs.
pub fn binary() -> Result<PathBuf> {
    let path = if let Some(path) = env::var_os("TRACER_BIN") {
        PathBuf::from(path)
    } else {
        let this = env::current_exe().context("finding this program's own path")?;
        // target/PROFILE/deps/TEST or target/PROFILE/PROGRAM → target/PROFILE/tracer
        let profile = this
            .ancestors()
            .skip(1)
            .find(|directory| !directory.ends_with("deps"))
            .with_context(|| format!("{} is not in a target directory", this.display()))?;
        profile.join("tracer")
    };
    ensure!(
        path.exists(),
        "there is no {}: `cargo xtask test` builds it, and so does `cargo build -p tracer`",
        path.display()
    );
    Ok(path)
}

/// A running `tracer`.
#[derive(Debug)]
pub struct Tracer {
    child: Child,
    stdout: JoinHandle<Vec<u8>>,
    stderr_lines: Receiver<String>,
    stderr: String,
}

/// What a finished `tracer` left.
#[derive(Debug)]
pub struct Run {
    /// How it ended.
    pub status: ExitStatus,
    /// Data.
    pub stdout: String,
    /// Talk.
    pub stderr: String,
}

impl Tracer {
    /// Starts it with these arguments. It dies with the calling thread.
    pub fn start(arguments: &[&str]) -> Result<Self> {
        let mut child = mortal(binary()?)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("starting tracer")?;
        let mut stdout = child.stdout.take().context("no pipe from stdout")?;
        let stderr = child.stderr.take().context("no pipe from stderr")?;
        let (sender, stderr_lines) = channel();
        thread::spawn(move || {
            for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
                if sender
                    .send(String::from_utf8_lossy(&line).into_owned())
                    .is_err()
                {
                    break;
                }
            }
        });
        let stdout = thread::spawn(move || {
            let mut bytes = Vec::new();
            // What was read before an error is what there is to judge.
            let _ = stdout.read_to_end(&mut bytes);
            bytes
        });
        Ok(Self {
            child,
            stdout,
            stderr_lines,
            stderr: String::new(),
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the line that says that every hook is attached, and returns its N and M.
    pub fn wait_until_ready(&mut self) -> Result<(u32, u32)> {
        let ready_within = within(READY_WITHIN);
        let deadline = Instant::now() + ready_within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.stderr_lines.recv_timeout(left) {
                Ok(line) => {
                    self.stderr.push_str(&line);
                    self.stderr.push('\n');
                    if let Some(hooks) = line.strip_prefix("tracer: ready (") {
                        return parse_hooks(hooks)
                            .with_context(|| format!("not the line of the contract: {line}"));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!(
                        "not ready within {ready_within:?}; it said:\n{}",
                        self.stderr
                    )
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("it ended before it was ready, and said:\n{}", self.stderr)
                }
            }
        }
    }

    /// Sends a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().try_into()?);
        kill(pid, signal).with_context(|| format!("sending {signal} to {pid}"))
    }

    /// Ends the trace as Ctrl-C does, and waits for the report.
    pub fn interrupt(self) -> Result<Run> {
        self.signal(Signal::SIGINT)?;
        self.finish(EXIT_WITHIN)
    }

    /// Waits until it ends by itself, at most this long.
    pub fn finish(mut self, at_most: Duration) -> Result<Run> {
        let at_most = within(at_most);
        let deadline = Instant::now() + at_most;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                self.child.kill()?;
                self.child.wait()?;
                self.stderr.extend(self.stderr_lines.iter());
                bail!(
                    "it did not end within {at_most:?}; it said:\n{}",
                    self.stderr
                );
            }
            thread::sleep(Duration::from_millis(5));
        };
        let stdout = self.stdout.join().ok().context("reading stdout")?;
        self.stderr.extend(
            self.stderr_lines
                .iter()
                .flat_map(|line| [line, "\n".to_owned()]),
        );
        Ok(Run {
            status,
            stdout: String::from_utf8(stdout).context("stdout is not UTF-8")?,
            stderr: self.stderr,
        })
    }
}

/// `N of M hooks)`.
fn parse_hooks(text: &str) -> Option<(u32, u32)> {
    let (attached, offered) = text.strip_suffix(" hooks)")?.split_once(" of ")?;
    Some((attached.parse().ok()?, offered.parse().ok()?))
}

/// What a failed test shows: how it ended, and what it said.
impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}, {} bytes on stdout, stderr:\n{}",
            self.status,
            self.stdout.len(),
            self.stderr
        )
    }
}

impl Run {
    /// Runs it to its end.
    pub fn of(arguments: &[&str]) -> Result<Self> {
        Tracer::start(arguments)?.finish(EXIT_WITHIN)
    }

    /// The exit code; `None` after a signal.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The JSON report.
    pub fn report(&self) -> Result<Value> {
        serde_json::from_str(&self.stdout).with_context(|| {
            format!(
                "stdout is not a report ({}):\n{}\nstderr:\n{}",
                self.status, self.stdout, self.stderr
            )
        })
    }
}
