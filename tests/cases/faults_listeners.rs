//! Servers that do not, or not yet, take a connection that reaches them.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::time::{ClockId, clock_gettime};
use tracer::lab::{Family, Outcome, Server, Topology, connect, listen};
use tracer_tests::faults::{self, ACK, SYN_ACK};
use tracer_tests::{
    Ends, Fault, Observers, SYN_LEFT_NODE_A, Views, answered, exchange, inconclusive, inferred,
    proven, side_by_side, socket, with_lab,
};

const SOON: Duration = Duration::from_secs(3);

/// As long as the answer deadline, and what is left of it after the last SYN.
const PATIENCE: Duration = Duration::from_millis(3400);
const SETTLE: Duration = Duration::from_millis(600);

fn connected(lab: &Topology) -> Result<TcpStream> {
    match connect(&lab.pod_a, 0, lab.plan.server(6379))?.wait(SOON) {
        Outcome::Connected(stream) => Ok(stream),
        other => bail!("the lab is healthy, and yet: {other:?}"),
    }
}

/// Connects in vain, and returns the client's address.
fn in_vain(lab: &Topology) -> Result<SocketAddr> {
    let attempt = connect(&lab.pod_a, 0, lab.plan.server(6379))?;
    let client = attempt.local;
    let outcome = attempt.wait(PATIENCE);
    ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
    thread::sleep(SETTLE);
    Ok(client)
}

/// The listener takes the SYN and says nothing: no drop, no SYN-ACK, only a counter of the namespace.
fn silent_because(cause: &'static [&'static str]) -> Views {
    let silent = inferred("request_not_answered")
        .at("pod-b", &["eth0", "null"])
        .cause(cause);
    Views::on_the_servers_node(silent, SYN_LEFT_NODE_A)
}

fn accept_queue_is_full(family: Family) -> Result<()> {
    with_lab(family, |lab| {
        let _listener = listen(&lab.pod_b, lab.plan.server(6379), 0)?;
        let observers = Observers::start(lab)?;
        // The one connection that a backlog of 0 lets wait.
        let waiting = connected(lab)?;
        let ignored = in_vain(lab)?;
        ensure!(lab.pod_b.counter("TcpExt", "ListenOverflows")? >= 3);
        observers.stop()?.check(&[
            (waiting.local_addr()?, Views::all(answered())),
            (ignored, silent_because(&["accept_queue_full"])),
        ])
    })
}

#[test]
fn accept_queue_is_full_for_a_syn() -> Result<()> {
    accept_queue_is_full(Family::V4)
}

#[test]
fn accept_queue_is_full_for_a_syn_over_ipv6() -> Result<()> {
    accept_queue_is_full(Family::V6)
}

/// Both SYNs come while there is room, and one ACK when there is none any more.
fn accept_queue_fills_before_the_ack(family: Family) -> Result<()> {
    with_lab(family, |lab| {
        let server = lab.plan.server(6379);
        let _listener = listen(&lab.pod_b, server, 1)?;
        let observers = Observers::start(lab)?;
        // The first of the two connections that a backlog of 1 lets wait.
        let waiting = connected(lab)?.local_addr()?;
        faults::netfilter(&lab.pod_b, "input", &format!("{ACK} drop"))?;
        let clients = [connected(lab)?, connected(lab)?];
        faults::heal_netfilter(&lab.pod_b)?;
        // The SYN-ACK is sent again after 1, 3 and 7 s, and so is the ACK.
        let deadline = Instant::now() + 4 * SOON;
        while lab.pod_b.counter("TcpExt", "ListenOverflows")? == 0 {
            ensure!(Instant::now() < deadline, "the queue never overflowed");
            thread::sleep(Duration::from_millis(20));
        }
        thread::sleep(PATIENCE);
        let dropped = proven("ack_dropped")
            .at("pod-b", &["eth0"])
            .cause(&["accept_queue_full"])
            .reason("TCP_LISTEN_OVERFLOW");
        let lost = Views::on_the_servers_node(dropped, answered());
        let taken = Views::on_the_servers_node(answered().with_losses(), answered());
        let reports = observers.stop()?;
        let [first, second] = [clients[0].local_addr()?, clients[1].local_addr()?];
        // Whichever ACK came first.
        let healthy = (waiting, Views::all(answered()));
        reports
            .check(&[healthy, (first, taken), (second, lost)])
            .or_else(|_| reports.check(&[healthy, (first, lost), (second, taken)]))
    })
}

#[test]
fn accept_queue_is_full_for_an_ack() -> Result<()> {
    accept_queue_fills_before_the_ack(Family::V4)
}

#[test]
fn accept_queue_is_full_for_an_ack_over_ipv6() -> Result<()> {
    accept_queue_fills_before_the_ack(Family::V6)
}

fn syn_queue_is_full(family: Family) -> Result<()> {
    with_lab(family, |lab| {
        lab.pod_b.sysctl("net/ipv4/tcp_syncookies", "0")?;
        let server = lab.plan.server(6379);
        let _listener = listen(&lab.pod_b, server, 1)?;
        let observers = Observers::start(lab)?;
        let healthy = connected(lab)?;
        // Two requests that are never completed are more than a backlog of one.
        faults::netfilter(&lab.node_b, "forward", &format!("{SYN_ACK} drop"))?;
        let half_open = [
            connect(&lab.pod_a, 0, server)?,
            connect(&lab.pod_a, 0, server)?,
        ];
        let third = connect(&lab.pod_a, 0, server)?;
        let ignored = third.local;
        let outcome = third.wait(PATIENCE);
        ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
        let half_open = half_open.map(|attempt| attempt.local);
        thread::sleep(SETTLE);
        ensure!(lab.pod_b.counter("TcpExt", "TCPReqQFullDrop")? >= 3);
        let dropped = proven("reply_dropped")
            .at("node-b", &["lxcb"])
            .cause(&["netfilter"]);
        let lost = Views::on_the_servers_node(dropped, SYN_LEFT_NODE_A);
        observers.stop()?.check(&[
            (healthy.local_addr()?, Views::all(answered())),
            (half_open[0], lost),
            (half_open[1], lost),
            (ignored, silent_because(&["syn_queue_full"])),
        ])
    })
}

#[test]
fn syn_queue_is_full_and_there_are_no_cookies() -> Result<()> {
    syn_queue_is_full(Family::V4)
}

#[test]
fn syn_queue_is_full_and_there_are_no_cookies_over_ipv6() -> Result<()> {
    syn_queue_is_full(Family::V6)
}

/// With cookies the listener forgets the SYN, and makes a connection of the ACK alone.
fn cookies(family: Family) -> Result<()> {
    with_lab(family, |lab| {
        lab.pod_b.sysctl("net/ipv4/tcp_syncookies", "2")?;
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let observers = Observers::start(lab)?;
        let client = exchange(lab)?;
        ensure!(lab.pod_b.counter("TcpExt", "SyncookiesRecv")? >= 1);
        observers.stop()?.check(&[(client, Views::all(answered()))])
    })
}

#[test]
fn answered_with_syn_cookies() -> Result<()> {
    cookies(Family::V4)
}

#[test]
fn answered_with_syn_cookies_over_ipv6() -> Result<()> {
    cookies(Family::V6)
}

/// What the listener does with an ACK that carries no data, and with one that is too old.
fn acks_that_tcp_does_not_take() -> Vec<Fault> {
    let deferred = Views::on_the_servers_node(
        inconclusive()
            .at("pod-b", &["eth0"])
            .says("TCP_DEFER_ACCEPT"),
        answered(),
    );
    let defer = |server: &Option<Server>| -> Result<()> {
        let server = server.as_ref().context("no server")?;
        socket::wait_for_data(server.as_fd())
    };
    vec![
        Fault::serving(
            "ACK: put aside by a listener that waits for data, which never comes",
            deferred,
            move |_, _, server| {
                defer(server)?;
                Ok(Box::new(()))
            },
        )
        .ends(Ends::Connected),
        Fault::serving(
            "ACK: put aside by a listener that waits for data, which comes",
            Views::all(answered()),
            move |_, _, server| {
                defer(server)?;
                Ok(Box::new(()))
            },
        )
        .talks(),
        Fault::new(
            "ACK: its timestamp is older than the SYN's",
            Views::on_the_servers_node(
                proven("ack_dropped")
                    .at("pod-b", &["eth0"])
                    .reason("TCP_RFC7323_PAWS")
                    .says("PAWS"),
                answered(),
            ),
            |lab, pair| {
                // The clock of timestamps, as far as this system is up, without the offset that each connection has.
                lab.pod_a.sysctl("net/ipv4/tcp_timestamps", "2")?;
                let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
                let ms = Duration::from(now).as_millis() - 10_000;
                faults::netfilter(
                    &lab.pod_a,
                    "output",
                    &format!(
                        "{} tcp option timestamp tsval set {}",
                        pair.ack(),
                        ms % (1 << 32)
                    ),
                )
            },
        )
        .ends(Ends::Connected),
    ]
}

#[test]
fn acks_that_the_listeners_tcp_does_not_take() -> Result<()> {
    side_by_side(Family::V4, acks_that_tcp_does_not_take())
}

#[test]
fn acks_that_the_listeners_tcp_does_not_take_over_ipv6() -> Result<()> {
    side_by_side(Family::V6, acks_that_tcp_does_not_take())
}
