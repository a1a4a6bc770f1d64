//! The few among many.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use tracer::lab::{Family, Outcome, Server, connect};
use tracer_tests::faults::{self, SYN_ACK};
use tracer_tests::{Observers, Views, answered, inferred, proven, with_lab};

const PATIENCE: Duration = Duration::from_millis(4500);

#[test]
fn one_of_two_hundred_loses_its_synack() -> Result<()> {
    const FLOWS: u16 = 200;
    const FIRST_PORT: u16 = 40_000;
    const BROKEN_PORT: u16 = FIRST_PORT + 123;
    with_lab(Family::V4, |lab| {
        let server = lab.plan.server(6379);
        let _server = Server::start(&lab.pod_b, server)?;
        faults::netfilter(
            &lab.node_a,
            "forward",
            &format!("tcp dport {BROKEN_PORT} {SYN_ACK} drop"),
        )?;
        let observers = Observers::start(lab)?;
        let attempts = (FIRST_PORT..FIRST_PORT + FLOWS)
            .map(|port| connect(&lab.pod_a, port, server))
            .collect::<Result<Vec<_>, _>>()?;
        let mut expected = Vec::new();
        for attempt in attempts {
            let client = attempt.local;
            let outcome = attempt.wait(PATIENCE);
            if client.port() == BROKEN_PORT {
                ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
                let dropped = proven("reply_dropped")
                    .at("node-a", &["vx0"])
                    .cause(&["netfilter"]);
                let views = Views {
                    full: dropped,
                    server_node: inferred("reply_left_node").at("node-b", &["ens0"]),
                    client_node: dropped,
                };
                expected.push((client, views));
            } else {
                ensure!(
                    matches!(outcome, Outcome::Connected(_)),
                    "{client}: {outcome:?}"
                );
                expected.push((client, Views::all(answered())));
            }
        }
        thread::sleep(Duration::from_millis(700));
        observers.stop()?.check(&expected)
    })
}
