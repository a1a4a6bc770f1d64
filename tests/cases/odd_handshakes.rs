//! Connections that begin otherwise than by one SYN that one listener answers, or do not begin at all.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tracer::lab::{Family, LabError, Outcome, connect};
use tracer_tests::{Observers, Tracer, Views, answered, both, faults, unseen, with_lab};

const SOON: Duration = Duration::from_secs(5);
const SETTLE: Duration = Duration::from_millis(1200);

/// Both ends connect to each other's port: their first SYNs are lost, so that each waits for an answer when it gets the
/// other's second.
fn simultaneous_open(family: Family) -> Result<()> {
    with_lab(family, |lab| {
        let client = SocketAddr::new(lab.plan.client_ip(), 7001);
        let server = lab.plan.server(7002);
        let observers = Observers::start(lab)?;
        faults::netfilter(&lab.underlay, "forward", "udp dport 4789 drop")?;
        let there = connect(&lab.pod_a, client.port(), server)?;
        // The one that sends again later gets a SYN while it waits.
        thread::sleep(Duration::from_millis(300));
        let back = connect(&lab.pod_b, server.port(), client)?;
        thread::sleep(Duration::from_millis(200));
        faults::heal_netfilter(&lab.underlay)?;
        for attempt in [there, back] {
            let outcome = attempt.wait(SOON);
            ensure!(matches!(outcome, Outcome::Connected(_)), "{outcome:?}");
        }
        ensure!(
            lab.pod_b.counter("Tcp", "PassiveOpens")? == 0,
            "nobody listened"
        );
        thread::sleep(SETTLE);
        // One connection, which is named after the one whose SYN was seen first.
        let from_a = Views {
            server_node: unseen(),
            ..Views::all(answered())
        };
        let from_b = Views {
            server_node: answered(),
            ..Views::all(unseen())
        };
        observers
            .stop()?
            .check(&[(client, from_a), (server, from_b)])
    })
}

#[test]
fn two_that_connect_to_each_other_are_answered() -> Result<()> {
    both(simultaneous_open)
}

/// The client's kernel refuses to connect, so that there is nothing to see, and the report says no more than that.
fn no_route_at_all(family: Family) -> Result<()> {
    with_lab(family, |lab| {
        let start = |format: &str| {
            let always = ["trace", "--for", "60s", "--format", format];
            Tracer::start(&[&always[..], &[&lab.plan.filter()]].concat())
        };
        let (mut json, mut text) = (start("json")?, start("text")?);
        json.wait_until_ready()?;
        text.wait_until_ready()?;
        let version = match family {
            Family::V4 => "-4",
            Family::V6 => "-6",
        };
        lab.pod_a
            .command("ip", &[version, "route", "del", "default"])?;
        match connect(&lab.pod_a, 0, lab.plan.server(6379)) {
            Err(LabError::System { source, .. }) => {
                ensure!(source.kind() == ErrorKind::NetworkUnreachable, "{source}");
            }
            other => bail!("the lab is wrong: {other:?}"),
        }
        let (json, text) = (json.interrupt()?, text.interrupt()?);
        let report = json.report()?;
        ensure!(json.code() == Some(11) && text.code() == Some(11), "{json}");
        let flows = report["flows"].as_array().context("flows")?;
        ensure!(flows.is_empty(), "{report:#}");
        for words in ["no packet matched", "Network is unreachable"] {
            ensure!(text.stdout.contains(words), "{words:?} in {}", text.stdout);
        }
        Ok(())
    })
}

#[test]
fn a_client_without_any_route_sends_nothing() -> Result<()> {
    both(no_route_at_all)
}
