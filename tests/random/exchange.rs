//! What has no connections: DNS queries and echoes, each sent once.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use tracer::lab::{dns_query, ping, udp_socket};

use crate::fault::{Carrier, What};
use crate::network::Network;
use crate::shape::Direction;

/// The port of the first query.
const QUERY_PORT: u16 = 26_000;
/// The number of the echo.
const ECHO_ID: u16 = 28_000;
const QUERY_PATIENCE: Duration = Duration::from_millis(1500);
const ECHO_PATIENCE: Duration = Duration::from_millis(800);

/// A request that was sent once, and what came of it.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub carrier: Carrier,
    /// The client's port, or the number of its echo.
    pub client: u16,
    pub began: Instant,
    /// When the answer came, or the client gave up.
    pub ended: Instant,
    pub is_answered: bool,
}

impl Exchange {
    /// Its packets of a direction.
    pub fn what(&self, direction: Direction) -> What {
        match self.carrier {
            Carrier::Echo => What::Echoes(direction),
            _ => What::Datagrams(direction),
        }
    }

    /// When it must have been answered.
    pub fn deadline(&self) -> Duration {
        match self.carrier {
            Carrier::Echo => Duration::from_secs(1),
            _ => Duration::from_secs(5),
        }
    }
}

/// Asks so many queries, one every few milliseconds, each from a port of its own.
pub fn queries(network: &Network, count: u16) -> Result<Vec<Exchange>> {
    let mut asked = Vec::new();
    for number in 0..count {
        let client = QUERY_PORT + number;
        let local = SocketAddr::new(network.plan.client_ip(), client);
        let socket = udp_socket(network.pod_a(), local)?;
        let began = Instant::now();
        // A query that cannot be sent is one that nobody counts.
        let _ = socket.send_to(&dns_query(number), network.resolver());
        asked.push((client, began, socket));
        thread::sleep(Duration::from_millis(5));
    }
    asked
        .into_iter()
        .map(|(client, began, socket)| {
            let left = (began + QUERY_PATIENCE).saturating_duration_since(Instant::now());
            socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            let is_answered = socket.recv_from(&mut [0; 512]).is_ok();
            Ok(Exchange {
                carrier: Carrier::Udp,
                client,
                began,
                ended: Instant::now(),
                is_answered,
            })
        })
        .collect()
}

/// One echo.
pub fn echo(network: &Network) -> Exchange {
    let began = Instant::now();
    let server = network.plan.server(0).ip();
    let is_answered = ping(network.pod_a(), server, ECHO_ID, 1, ECHO_PATIENCE).unwrap_or(false);
    Exchange {
        carrier: Carrier::Echo,
        client: ECHO_ID,
        began,
        ended: Instant::now(),
        is_answered,
    }
}
