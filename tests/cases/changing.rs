//! Faults that change while the client tries again: the try that came furthest speaks, and an earlier death must
//! not lend its cause to a later one.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use tracer::lab::{Outcome, Plan, Server, Topology, connect};
use tracer_tests::faults::{self, SYN, SYN_ACK};
use tracer_tests::{Expected, Observers, Views, both, inferred, proven, with_lab};

const PATIENCE: Duration = Duration::from_millis(4500);
const SETTLE: Duration = Duration::from_millis(700);

/// Connects while the first fault is there; half a second later, between two SYNs, the second takes its place.
fn meets(
    first: fn(&Topology) -> Result<()>,
    then: fn(&Topology) -> Result<()>,
    target: fn(Plan) -> SocketAddr,
    views: &Views,
) -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
            let observers = Observers::start(lab)?;
            first(lab)?;
            let attempt = connect(&lab.pod_a, 0, target(lab.plan))?;
            let client = attempt.local;
            thread::sleep(Duration::from_millis(500));
            then(lab)?;
            let outcome = attempt.wait(PATIENCE);
            ensure!(!matches!(outcome, Outcome::Connected(_)), "{outcome:?}");
            thread::sleep(SETTLE);
            observers.stop()?.check(&[(client, *views)])
        })
    })
}

fn drop_syn_on_node_b(lab: &Topology) -> Result<()> {
    faults::netfilter(&lab.node_b, "forward", &format!("{SYN} drop"))
}

#[test]
fn syn_dropped_once_and_then_nobody_listens() -> Result<()> {
    let refused = proven("refused")
        .at("pod-b", &["eth0"])
        .cause(&["no_listener"]);
    meets(
        drop_syn_on_node_b,
        |lab| faults::heal_netfilter(&lab.node_b),
        |plan| plan.server(6380),
        &Views {
            full: refused.with_losses(),
            server_node: refused.with_losses(),
            client_node: proven("refused"),
        },
    )
}

#[test]
fn syn_dropped_once_and_then_its_synack_always() -> Result<()> {
    let dropped = proven("reply_dropped")
        .at("node-a", &["vx0"])
        .cause(&["netfilter"]);
    meets(
        drop_syn_on_node_b,
        |lab| {
            faults::netfilter(&lab.node_a, "forward", &format!("{SYN_ACK} drop"))?;
            faults::heal_netfilter(&lab.node_b)
        },
        |plan| plan.server(6379),
        &Views {
            full: dropped,
            server_node: inferred("reply_left_node").at("node-b", &["ens0"]),
            client_node: dropped,
        },
    )
}

#[test]
fn synack_dropped_once_by_the_router_and_then_every_syn_by_a_policy() -> Result<()> {
    // A reply existed and died: that its SYN is stopped now is the smaller news, and the server still repeats it.
    let dropped: Expected = proven("reply_dropped")
        .at("underlay", &["tob"])
        .cause(&["netfilter"]);
    meets(
        |lab| Ok(lab.underlay.nft(&lab.plan.drop_synack_in_tunnel())?),
        drop_syn_on_node_b,
        |plan| plan.server(6379),
        &Views {
            full: dropped,
            server_node: inferred("reply_left_node").at("node-b", &["ens0"]),
            client_node: inferred("request_left_node").at("node-a", &["ens0"]),
        },
    )
}
