//! The few among many.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tracer::lab::{Family, Outcome, Server, Topology, connect};
use tracer_tests::faults::{self, SYN, SYN_ACK};
use tracer_tests::{
    Observers, SYN_ACK_LEFT_NODE_B, SYN_LEFT_NODE_A, Views, answered, proven, with_lab,
};

/// As long as the answer deadline, and what is left of it after the last SYN.
const PATIENCE: Duration = Duration::from_millis(3400);
const SETTLE: Duration = Duration::from_millis(600);

/// Each port of a client, and what becomes of its connection.
const FLOWS: u16 = 1_000;
const FIRST_PORT: u16 = 40_000;
const LOSES_ITS_SYN_ACK: u16 = FIRST_PORT + 123;
const LOSES_ITS_SYN: u16 = FIRST_PORT + 456;
const IS_REJECTED: u16 = FIRST_PORT + 789;

fn the_three(lab: &Topology) -> Result<()> {
    faults::netfilter(
        &lab.node_a,
        "forward",
        &format!("tcp dport {LOSES_ITS_SYN_ACK} {SYN_ACK} drop"),
    )?;
    faults::netfilter(
        &lab.pod_b,
        "input",
        &format!("tcp sport {LOSES_ITS_SYN} {SYN} drop"),
    )?;
    faults::netfilter(
        &lab.node_b,
        "forward",
        &format!("tcp sport {IS_REJECTED} {SYN} reject with tcp reset"),
    )
}

fn views_of(port: u16) -> Views {
    let by_netfilter = |code| proven(code).cause(&["netfilter"]);
    match port {
        LOSES_ITS_SYN_ACK => Views::on_the_clients_node(
            by_netfilter("reply_dropped").at("node-a", &["vx0"]),
            SYN_ACK_LEFT_NODE_B,
        ),
        LOSES_ITS_SYN => Views::on_the_servers_node(
            by_netfilter("request_dropped").at("pod-b", &["eth0"]),
            SYN_LEFT_NODE_A,
        ),
        IS_REJECTED => Views::on_the_servers_node(
            proven("refused")
                .at("node-b", &["vx0"])
                .cause(&["rejected"]),
            proven("refused").at("node-a", &["ens0"]),
        ),
        _ => Views::all(answered()),
    }
}

fn three_of_a_thousand(family: Family) -> Result<()> {
    with_lab(family, |lab| {
        let server = lab.plan.server(6379);
        let _server = Server::start(&lab.pod_b, server)?;
        the_three(lab)?;
        let observers = Observers::start(lab)?;
        let attempts = (FIRST_PORT..FIRST_PORT + FLOWS)
            .map(|port| connect(&lab.pod_a, port, server))
            .collect::<Result<Vec<_>, _>>()?;
        let deadline = Instant::now() + PATIENCE;
        let mut expected = Vec::new();
        let mut streams = Vec::new();
        for attempt in attempts {
            let client = attempt.local;
            let outcome = attempt.wait(deadline.saturating_duration_since(Instant::now()));
            match (client.port(), outcome) {
                (LOSES_ITS_SYN_ACK | LOSES_ITS_SYN, Outcome::TimedOut)
                | (IS_REJECTED, Outcome::Failed(_)) => {}
                (LOSES_ITS_SYN_ACK | LOSES_ITS_SYN | IS_REJECTED, outcome) => {
                    bail!("{client}: {outcome:?}")
                }
                (_, Outcome::Connected(stream)) => streams.push(stream),
                (_, outcome) => bail!("{client}: {outcome:?}"),
            }
            expected.push((client, views_of(client.port())));
        }
        thread::sleep(SETTLE);
        observers.stop()?.check(&expected)
    })
}

#[test]
fn three_of_a_thousand_are_named_and_no_other() -> Result<()> {
    three_of_a_thousand(Family::V4)
}

#[test]
fn three_of_a_thousand_are_named_and_no_other_over_ipv6() -> Result<()> {
    three_of_a_thousand(Family::V6)
}
