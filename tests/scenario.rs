//! The course of most tests: a connection that works, a fault, a connection that meets it, three reports.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, bail, ensure};
use tracer::lab::{Family, Outcome, Plan, Server, Topology, connect};

use crate::expect::{Views, answered};
use crate::observers::Observers;
use crate::with_lab;

/// Longer than the answer deadline of TCP, 3.5 s after the first SYN.
const PATIENCE: Duration = Duration::from_millis(4500);

/// Longer than the rest of that deadline, 0.5 s after the last SYN (`net.ipv4.tcp_syn_linear_timeouts` makes the
/// kernel send one every second), which the client sent at the latest just before it gave up.
const SETTLE: Duration = Duration::from_millis(700);

type Step = fn(&Topology) -> Result<()>;

/// How the connection that meets the fault must end for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Nothing comes back.
    TimedOut,
    /// The kernel says that it cannot be.
    Failed,
    /// The handshake completes for the client.
    Connected,
}

impl Ends {
    /// A fault that does not bite tests nothing.
    pub(crate) fn check(self, outcome: &Outcome) -> Result<()> {
        match (outcome, self) {
            (Outcome::TimedOut, Self::TimedOut)
            | (Outcome::Failed(_), Self::Failed)
            | (Outcome::Connected(_), Self::Connected) => Ok(()),
            (other, expected) => bail!("the lab is wrong: {other:?}, not {expected:?}"),
        }
    }
}

/// One fault, and what must be said of it.
#[must_use]
pub struct Scenario {
    family: Family,
    prepare: Step,
    fault: Step,
    target: fn(Plan) -> SocketAddr,
    ends: Ends,
}

/// Where the server of every scenario listens.
fn server(plan: Plan) -> SocketAddr {
    plan.server(6379)
}

impl Scenario {
    /// Breaks a lab that works with this step.
    pub fn broken_by(fault: Step) -> Self {
        Self {
            family: Family::V4,
            prepare: |_| Ok(()),
            fault,
            target: server,
            ends: Ends::TimedOut,
        }
    }

    /// Speaks another IP version.
    pub fn over(mut self, family: Family) -> Self {
        self.family = family;
        self
    }

    /// Changes the lab first, so that it still works but can be broken.
    pub fn prepared_by(mut self, prepare: Step) -> Self {
        self.prepare = prepare;
        self
    }

    /// Connects elsewhere once the lab is broken.
    pub fn towards(mut self, target: fn(Plan) -> SocketAddr) -> Self {
        self.target = target;
        self
    }

    /// Ends in another way than in silence.
    pub fn ends(mut self, ends: Ends) -> Self {
        self.ends = ends;
        self
    }

    /// Runs it and holds the three reports against what must be seen. The connection from before the fault, in the
    /// same lab and the same reports, must be answered in all of them.
    pub fn must_show(self, views: Views) -> Result<()> {
        with_lab(self.family, |lab| {
            (self.prepare)(lab)?;
            let _server = Server::start(&lab.pod_b, server(lab.plan))?;
            let observers = Observers::start(lab)?;
            let healthy = exchange(lab)?;
            (self.fault)(lab)?;
            let attempt = connect(&lab.pod_a, 0, (self.target)(lab.plan))?;
            let broken = attempt.local;
            let outcome = attempt.wait(PATIENCE);
            self.ends.check(&outcome)?;
            if self.ends == Ends::Connected {
                thread::sleep(PATIENCE);
            }
            drop(outcome);
            thread::sleep(SETTLE);
            observers
                .stop()?
                .check(&[(healthy, Views::all(answered())), (broken, views)])
        })
    }
}

/// Connects from the client's pod, has four bytes sent back, closes; returns the client's address.
pub fn exchange(lab: &Topology) -> Result<SocketAddr> {
    let attempt = connect(&lab.pod_a, 0, server(lab.plan))?;
    let client = attempt.local;
    match attempt.wait(PATIENCE) {
        Outcome::Connected(stream) => echoes(stream)?,
        other => bail!("the lab does not work while it is healthy: {other:?}"),
    }
    Ok(client)
}

/// Sends so many bytes and says whether all of them came back before the stream's patience ended.
pub fn echo(stream: &TcpStream, len: usize) -> Result<bool> {
    let (mut reader, mut writer) = (stream, stream.try_clone()?);
    let sent = vec![7; len];
    let written = thread::spawn(move || writer.write_all(&sent));
    let came_back = reader.read_exact(&mut vec![0; len]).is_ok();
    if came_back {
        written
            .join()
            .map_err(|_| anyhow!("the writer panicked"))??;
    }
    Ok(came_back)
}

/// Has four bytes sent back, and closes.
pub(crate) fn echoes(mut stream: TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"ping")?;
    let mut back = [0; 4];
    stream.read_exact(&mut back)?;
    ensure!(&back == b"ping", "the echo is not what was sent");
    stream.shutdown(Shutdown::Write)?;
    ensure!(stream.read(&mut back)? == 0, "more came back than was sent");
    Ok(())
}
