//! A busy flow is held back, says so, and is seen whole again later; what a verdict needs is never held back.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tracer::event::{SocketHook, What};
use tracer::lab::{Family, Netns, Outcome, Plan, Server, Topology, connect};
use tracer_common::budget::WINDOW_NS;
use tracer_tests::{Captured, Seen, Tracer, faults, with_lab};

const SOON: Duration = Duration::from_secs(3);

/// Longer than a budget that comes back needs for it.
const BUSY_SECOND_IS_OVER: Duration = Duration::from_millis(1200);

/// Far more than every budget, at a dozen sightings each.
const FLOOD: u32 = 600;

/// Longer than two tracers take for one packet at one place.
const APART: u64 = 20_000_000;

/// Runs `traffic` under a tracer with the budget and under one without, and hands over what both captured.
fn both(lab: &Topology, traffic: impl FnOnce() -> Result<()>) -> Result<(Captured, Captured)> {
    let directory = tempfile::tempdir()?;
    let (with, without) = (
        directory.path().join("budget.jsonl"),
        directory.path().join("all.jsonl"),
    );
    let mut tracers = [
        start(lab, &with, &[])?,
        start(lab, &without, &["--all-packets"])?,
    ];
    for tracer in &mut tracers {
        tracer.wait_until_ready()?;
    }
    traffic()?;
    thread::sleep(Duration::from_millis(200));
    for tracer in tracers {
        tracer.interrupt()?;
    }
    let captured = (Captured::read(&with)?, Captured::read(&without)?);
    for captured in [&captured.0, &captured.1] {
        let ledger = captured.ledger()?;
        ensure!(
            ledger.ring_full == 0 && ledger.emitted == ledger.delivered,
            "the test is too fast for this machine: {ledger:?}"
        );
    }
    Ok(captured)
}

fn start(lab: &Topology, capture: &Path, more: &[&str]) -> Result<Tracer> {
    let capture = capture.to_str().context("a path that is text")?;
    let filter = lab.plan.filter();
    let mut arguments = vec!["trace", "--format", "json", "--for", "60s"];
    arguments.extend(["--ring-bytes", "67108864", "--capture", capture]);
    arguments.extend(more);
    arguments.push(&filter);
    Tracer::start(&arguments)
}

fn udp(netns: &Netns, address: SocketAddr) -> Result<UdpSocket> {
    let socket = netns.run(|| UdpSocket::bind(address))??;
    socket.set_read_timeout(Some(SOON))?;
    Ok(socket)
}

/// A client and a server of UDP.
struct Datagrams {
    client: UdpSocket,
    server: UdpSocket,
    client_port: u16,
}

impl Datagrams {
    fn new(lab: &Topology, port: u16) -> Result<Self> {
        let client = udp(&lab.pod_a, SocketAddr::new(lab.plan.client_ip(), 0))?;
        let address = lab.plan.server(port);
        let server = udp(&lab.pod_b, address)?;
        client.connect(address)?;
        let client_port = client.local_addr()?.port();
        Ok(Self {
            client,
            server,
            client_port,
        })
    }

    /// Sends datagrams of eight bytes, which all arrive.
    fn send(&self, count: u32) -> Result<()> {
        let mut bytes = [0; 8];
        for number in 0..count {
            bytes[..4].copy_from_slice(&number.to_be_bytes());
            self.client.send(&bytes)?;
            self.server.recv(&mut bytes)?;
        }
        Ok(())
    }

    /// Sends a request and an answer, of lengths by which they are told from [`Datagrams::send`].
    fn ask(&self) -> Result<()> {
        self.client.send(&[1; REQUEST_LEN as usize])?;
        let mut bytes = [0; 64];
        let (_, from) = self.server.recv_from(&mut bytes)?;
        self.server.send_to(&[2; ANSWER_LEN as usize], from)?;
        self.client.recv(&mut bytes)?;
        Ok(())
    }
}

const REQUEST_LEN: u32 = 21;
const ANSWER_LEN: u32 = 34;

/// How many sightings have so much payload.
fn of_len(seen: &[Seen<'_>], payload_len: u32) -> usize {
    let inner = seen.iter().filter_map(|seen| seen.packet.inner());
    inner
        .filter(|layer| layer.payload_len == payload_len)
        .count()
}

fn marks(seen: &[Seen<'_>]) -> Vec<u64> {
    let marked = seen.iter().filter(|seen| seen.skb.budget_spent);
    marked.map(|seen| seen.event.time_ns).collect()
}

fn a_busy_flow_is_held_back(family: Family) -> Result<()> {
    with_lab(family, |lab| {
        let datagrams = Datagrams::new(lab, 9999)?;
        let (budget, all) = both(lab, || {
            datagrams.send(FLOOD)?;
            thread::sleep(BUSY_SECOND_IS_OVER);
            datagrams.ask()
        })?;
        let port = datagrams.client_port;
        let (seen, whole) = (budget.of_port(port), all.of_port(port));
        let held_back = whole.len().saturating_sub(seen.len()) as u64;
        ensure!(held_back > 1000, "only {held_back} were held back");
        ensure!(
            budget.ledger()?.rate_limited == held_back,
            "{held_back} are missing, {:?}",
            budget.ledger()?
        );
        ensure!(all.ledger()?.rate_limited == 0 && marks(&whole).is_empty());

        // Nothing is missing but within a second after a mark: what the other saw far from there was seen here as well.
        let marks = marks(&seen);
        ensure!(!marks.is_empty(), "no sighting is marked");
        let certain = |seen: &[Seen<'_>], apart: u64| {
            let times = seen.iter().map(|seen| seen.event.time_ns);
            let may_be_missing = |time: u64| {
                marks
                    .iter()
                    .any(|mark| (mark - apart..mark + WINDOW_NS + apart).contains(&time))
            };
            times.filter(|time| !may_be_missing(*time)).count()
        };
        ensure!(
            certain(&seen, 0) >= certain(&whole, APART),
            "{} sightings outside of the marks, of {}",
            certain(&seen, 0),
            certain(&whole, APART)
        );

        // The late request and its answer are seen at every hop.
        for len in [REQUEST_LEN, ANSWER_LEN] {
            let (found, want) = (of_len(&seen, len), of_len(&whole, len));
            ensure!(
                want >= 10 && found == want,
                "{found} of {want} sightings of {len} bytes"
            );
        }
        Ok(())
    })
}

#[test]
fn a_busy_udp_flow_is_held_back_and_a_late_request_is_seen_whole() -> Result<()> {
    a_busy_flow_is_held_back(Family::V4)
}

#[test]
fn a_busy_udp_flow_is_held_back_over_ipv6_as_well() -> Result<()> {
    a_busy_flow_is_held_back(Family::V6)
}

#[test]
fn dns_is_not_held_back() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let datagrams = Datagrams::new(lab, 53)?;
        let (budget, all) = both(lab, || datagrams.send(120))?;
        let port = datagrams.client_port;
        let (seen, whole) = (budget.of_port(port), all.of_port(port));
        ensure!(whole.len() > 1000 && seen.len() == whole.len());
        ensure!(marks(&seen).is_empty() && budget.ledger()?.rate_limited == 0);
        // And without its payload beyond the header of DNS, of which there are eight bytes here.
        for seen in seen {
            let layer = seen.packet.inner().context("no header")?;
            let end = usize::from(layer.transport_offset) + 8 + 8;
            ensure!(seen.skb.headers.len() == end, "{:?}", seen.skb);
        }
        Ok(())
    })
}

/// Sends so much over a connection that its budget is spent in both directions.
fn connected(plan: Plan, lab: &Topology) -> Result<std::net::TcpStream> {
    let attempt = connect(&lab.pod_a, 0, plan.server(6379))?;
    let Outcome::Connected(mut stream) = attempt.wait(SOON) else {
        bail!("the healthy lab does not answer")
    };
    stream.set_read_timeout(Some(SOON))?;
    for _ in 0..20 {
        stream.write_all(b"ping")?;
        let mut back = [0; 4];
        stream.read_exact(&mut back)?;
    }
    Ok(stream)
}

#[test]
fn of_a_spent_tcp_connection_deaths_and_retransmissions_are_still_told() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let mut port = 0;
        let (budget, all) = both(lab, || {
            let mut stream = connected(lab.plan, lab)?;
            port = stream.local_addr()?.port();
            faults::netfilter(&lab.node_b, "forward", "tcp dport 6379 drop")?;
            stream.write_all(b"ping")?;
            // The first retransmission comes after 0.2 s, the second after 0.4 s more.
            thread::sleep(Duration::from_secs(1));
            faults::heal_netfilter(&lab.node_b)?;
            Ok(())
        })?;
        let (seen, whole) = (budget.of_port(port), all.of_port(port));
        let marks = marks(&seen);
        let [mark] = marks[..] else {
            bail!("{} marks, want one", marks.len())
        };
        // SYN and FIN beside the budget of 64.
        ensure!(
            whole.len() > 2 * seen.len(),
            "{} of {}",
            seen.len(),
            whole.len()
        );
        ensure!(budget.ledger()?.rate_limited > 0);

        let deaths = |seen: &[Seen<'_>]| -> BTreeSet<u32> {
            let dead = seen.iter().filter(|seen| {
                seen.event.time_ns > mark && matches!(seen.event.what, What::Drop { .. })
            });
            dead.filter_map(|seen| Some(seen.packet.inner()?.ip_id))
                .collect()
        };
        ensure!(deaths(&whole).len() >= 2, "{} deaths", deaths(&whole).len());
        ensure!(deaths(&seen) == deaths(&whole));

        let retransmissions = |captured: &Captured| {
            let events = captured.events();
            events
                .filter(|event| match &event.what {
                    What::Socket { hook, socket } => {
                        *hook == SocketHook::RetransmitSkb && socket.local_port == port
                    }
                    _ => false,
                })
                .count()
        };
        ensure!(retransmissions(&all) >= 2);
        ensure!(retransmissions(&budget) == retransmissions(&all));
        Ok(())
    })
}
