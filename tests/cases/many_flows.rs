//! The one among many, and a server that is too busy for one more.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use tracer::lab::{Family, Outcome, Server, connect, listen};
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

#[test]
fn accept_queue_is_full() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let server = lab.plan.server(6379);
        let _listener = listen(&lab.pod_b, server, 0)?;
        let observers = Observers::start(lab)?;
        // The one connection that a backlog of 0 lets wait.
        let first = connect(&lab.pod_a, 0, server)?;
        let waiting = first.local;
        let held = first.wait(PATIENCE);
        ensure!(matches!(held, Outcome::Connected(_)), "{held:?}");
        let second = connect(&lab.pod_a, 0, server)?;
        let ignored = second.local;
        let outcome = second.wait(PATIENCE);
        ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
        ensure!(lab.pod_b.counter("TcpExt", "ListenOverflows")? >= 3);
        thread::sleep(Duration::from_millis(700));
        // The listener takes the SYN and says nothing: no drop, no SYN-ACK.
        let not_answered = inferred("request_not_answered")
            .at("pod-b", &["eth0", "null"])
            .cause(&["accept_queue_full", "unknown"]);
        let views = Views {
            full: not_answered,
            server_node: not_answered,
            client_node: inferred("request_left_node").at("node-a", &["ens0"]),
        };
        observers
            .stop()?
            .check(&[(waiting, Views::all(answered())), (ignored, views)])
    })
}
