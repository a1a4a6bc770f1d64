//! What the client's pod sends: connections whose outcome its own kernel tells, and traffic that nobody judges.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use tracer::lab::{Attempt, Outcome, connect};

use crate::network::Network;
use crate::rng::Rng;
use crate::shape::Target;

/// Longer than the answer deadline, and longer than what is left of it after the last SYN.
pub const PATIENCE_MS: u64 = 4500;

/// The port of the first connection that a fault is about.
pub const FIRST_PORT: u16 = 21_000;
const BEFORE_PORT: u16 = 20_100;
const OTHER_PORT: u16 = 22_000;
const SHORT_PORT: u16 = 23_000;
/// The port of connections that follow one another.
pub const REUSED_PORT: u16 = 24_000;
const FLOOD_PORT: u16 = 30_000;

/// How a connection ended, as the client's kernel told it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Connected,
    /// With this error.
    Failed(String),
    /// Nothing came; the client has given up.
    GaveUp,
}

/// A connection attempt, over.
#[derive(Clone, Debug)]
pub struct Connection {
    pub port: u16,
    pub target: Target,
    pub began: Instant,
    /// When it was established, or had failed.
    pub ended: Instant,
    pub end: End,
    /// `connect` itself failed: perhaps no packet was ever sent.
    pub may_be_unsent: bool,
    /// It was over before the faults began.
    pub is_before_faults: bool,
}

/// What is sent besides the connections that a fault is about.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// Connections to the main server before the faults.
    pub before: u64,
    /// Milliseconds of patience of each connection that is to suffer.
    pub main: Vec<u64>,
    /// Healthy connections to another server, one after another.
    pub other: u64,
    /// Connections to another server, all at once.
    pub flood: u64,
    /// Connections to the main server that are aborted at once.
    pub short: u64,
    /// Connections to another server from one port, one after another.
    pub reused: u64,
    /// Datagrams to a port on which nobody listens.
    pub datagrams: bool,
    /// DNS queries.
    pub queries: u16,
    pub echo: bool,
}

impl Load {
    pub fn choose(rng: &mut Rng) -> Self {
        let mut main = vec![PATIENCE_MS; usize::try_from(rng.between(1, 3)).unwrap_or(1)];
        if rng.chance(15) {
            main[0] = rng.between(200, 3000);
        }
        let mut load = Self {
            main,
            queries: if rng.chance(40) {
                rng.pick(&[1, 2, 5])
            } else {
                0
            },
            echo: rng.chance(40),
            before: rng.pick(&[0, 0, 1, 5]),
            ..Self::default()
        };
        for _ in 0..rng.between(0, 2) {
            match rng.between(1, 5) {
                1 => load.other = rng.between(3, 20),
                2 => load.flood = rng.between(50, 300),
                3 => load.short = rng.between(3, 30),
                4 => load.reused = rng.between(2, 4),
                _ => load.datagrams = true,
            }
        }
        load
    }
}

/// What is done with an established connection.
#[derive(Clone, Copy)]
enum Close {
    /// Four bytes are sent back, then it is closed.
    AfterEcho,
    /// A RST ends it.
    Abort,
}

/// The connections that were made before the faults.
pub fn before(network: &Network, load: &Load) -> Vec<Connection> {
    (0..load.before)
        .map(|number| Connection {
            is_before_faults: true,
            ..dial(
                network,
                port(BEFORE_PORT, number),
                Target::Main,
                PATIENCE_MS,
                Close::AfterEcho,
            )
        })
        .collect()
}

/// Fills the accept queue of a listener with a backlog of 0; the connection lives as long as the second value.
pub fn fill_queue(network: &Network) -> Result<(Connection, Option<TcpStream>)> {
    let port = BEFORE_PORT + 50;
    let began = Instant::now();
    let attempt = connect(network.pod_a(), port, network.asked(Target::Full))?;
    let outcome = attempt.wait(Duration::from_secs(3));
    let (end, stream) = match outcome {
        Outcome::Connected(stream) => (End::Connected, Some(stream)),
        Outcome::Failed(error) => (End::Failed(error.to_string()), None),
        Outcome::TimedOut => (End::GaveUp, None),
    };
    let connection = Connection {
        port,
        target: Target::Full,
        began,
        ended: Instant::now(),
        end,
        may_be_unsent: false,
        is_before_faults: true,
    };
    Ok((connection, stream))
}

/// Makes everything else at once, each kind on its own thread of `scope`; what ended goes to `done`.
pub fn start<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    network: &'scope Network,
    load: &'scope Load,
    target: Target,
    done: &'scope Mutex<Vec<Connection>>,
) {
    let push = |connection: Connection| {
        done.lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push(connection);
    };
    for (number, patience_ms) in load.main.iter().enumerate() {
        let port = FIRST_PORT + u16::try_from(number).unwrap_or(0);
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(number as u64 * 10));
            push(dial(network, port, target, *patience_ms, Close::AfterEcho));
        });
    }
    scope.spawn(move || {
        for number in 0..load.other {
            let port = port(OTHER_PORT, number);
            push(dial(network, port, Target::Other, 1500, Close::AfterEcho));
            thread::sleep(Duration::from_millis(20));
        }
    });
    scope.spawn(move || {
        for number in 0..load.short {
            let port = port(SHORT_PORT, number);
            push(dial(network, port, Target::Main, 500, Close::Abort));
        }
    });
    scope.spawn(move || {
        for _ in 0..load.reused {
            push(dial(
                network,
                REUSED_PORT,
                Target::Other,
                1000,
                Close::Abort,
            ));
            thread::sleep(Duration::from_millis(100));
        }
    });
    scope.spawn(move || flood(network, load.flood).into_iter().for_each(push));
    if load.datagrams {
        scope.spawn(move || datagrams(network));
    }
}

/// The connection from which the lab's health is known before anything is broken.
pub fn warm_up(network: &Network) -> Connection {
    dial(
        network,
        BEFORE_PORT - 1,
        Target::Main,
        PATIENCE_MS,
        Close::AfterEcho,
    )
}

fn dial(
    network: &Network,
    port: u16,
    target: Target,
    patience_ms: u64,
    close: Close,
) -> Connection {
    let began = Instant::now();
    let patience = Duration::from_millis(patience_ms);
    let attempt = connect(network.pod_a(), port, network.asked(target));
    finish(attempt, port, target, began, patience, close)
}

fn finish(
    attempt: Result<Attempt, tracer::lab::LabError>,
    port: u16,
    target: Target,
    began: Instant,
    patience: Duration,
    close: Close,
) -> Connection {
    let until = began + patience;
    let left = || until.saturating_duration_since(Instant::now());
    let may_be_unsent = attempt.is_err();
    let outcome = attempt.map(|attempt| attempt.wait(left()));
    let ended = Instant::now();
    let end = match outcome {
        Ok(Outcome::Connected(stream)) => {
            match close {
                // What comes of the data is not judged: the handshake is.
                Close::AfterEcho => drop(echo(stream, left())),
                Close::Abort => drop(abort(&stream)),
            }
            End::Connected
        }
        Ok(Outcome::Failed(error)) => End::Failed(error.to_string()),
        Ok(Outcome::TimedOut) => End::GaveUp,
        Err(error) => End::Failed(error.to_string()),
    };
    Connection {
        port,
        target,
        began,
        ended,
        end,
        may_be_unsent,
        is_before_faults: false,
    }
}

fn flood(network: &Network, count: u64) -> Vec<Connection> {
    let attempts: Vec<_> = (0..count)
        .map(|number| {
            let (port, began) = (port(FLOOD_PORT, number), Instant::now());
            let attempt = connect(network.pod_a(), port, network.asked(Target::Other));
            (port, began, attempt)
        })
        .collect();
    attempts
        .into_iter()
        .map(|(port, began, attempt)| {
            let patience = Duration::from_millis(PATIENCE_MS);
            finish(attempt, port, Target::Other, began, patience, Close::Abort)
        })
        .collect()
}

/// Has four bytes sent back within a time, and closes.
fn echo(mut stream: TcpStream, within: Duration) -> std::io::Result<()> {
    stream.set_read_timeout(Some(within.max(Duration::from_millis(1))))?;
    stream.write_all(b"ping")?;
    let mut back = [0; 4];
    stream.read_exact(&mut back)?;
    stream.shutdown(Shutdown::Write)?;
    let _end = stream.read(&mut back)?;
    Ok(())
}

/// Has the close send a RST, so that the port is free at once.
fn abort(stream: &TcpStream) -> nix::Result<()> {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(stream, sockopt::Linger, &linger)
}

/// To a port on which nobody listens, so that ICMP errors come back.
fn datagrams(network: &Network) {
    let to = network.backend(Target::Closed);
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = network.pod_a().run(|| UdpSocket::bind(any));
    if let Ok(Ok(socket)) = socket {
        for _ in 0..20 {
            // An ICMP error of the one before is told here.
            let _ = socket.send_to(b"nobody listens", to);
            thread::sleep(Duration::from_millis(25));
        }
    }
}

fn port(first: u16, number: u64) -> u16 {
    first + u16::try_from(number).unwrap_or(0)
}
