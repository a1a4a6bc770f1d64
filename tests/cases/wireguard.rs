//! WireGuard between the nodes: one packet is followed from `wg0` into its datagram and out of it again, and each way in
//! which a WireGuard tunnel dies silently has its own verdict. Incident 1 is here as a whole: Geneve over WireGuard, and a
//! reply that is eaten outside, or on the node that receives it.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tracer::lab::{Family, Server, Topology};
use tracer_tests::bpf::{self, Victims};
use tracer_tests::{
    Expected, Observers, Run, SYN_ACK_LEFT_NODE_B, SYN_LEFT_NODE_A, Scenario, Views, answered,
    by_netfilter, exchange, inferred, kernel_wireguard as wireguard, proven, unseen, with_lab,
};

/// Runs where there is WireGuard.
fn show(scenario: Scenario, views: &Views) -> Result<()> {
    if wireguard::is_available()? {
        scenario.must_show(*views)?;
    }
    Ok(())
}

/// The SYN never got out of node-a's `wg0`.
const fn stays_in_node_a(expected: Expected) -> Views {
    Views::on_the_clients_node(expected.at("node-a", &["wg0"]).stage("encap"), unseen())
}

const NO_SESSION: Expected = inferred("request_dropped")
    .cause(&["wireguard_no_session"])
    .says("no session with peer");

fn no_session(fault: fn(&Topology) -> Result<()>, family: Family) -> Result<()> {
    let scenario = Scenario::broken_by(fault)
        .prepared_by(wireguard::with_geneve)
        .over(family);
    show(scenario, &stays_in_node_a(NO_SESSION))
}

#[test]
fn wireguard_peer_with_another_key() -> Result<()> {
    no_session(wireguard::wrong_key, Family::V4)
}

#[test]
fn wireguard_peer_with_another_key_over_ipv6() -> Result<()> {
    no_session(wireguard::wrong_key, Family::V6)
}

#[test]
fn wireguard_endpoint_where_nobody_listens() -> Result<()> {
    no_session(wireguard::wrong_endpoint, Family::V4)
}

#[test]
fn wireguard_peer_that_is_down() -> Result<()> {
    no_session(wireguard::peer_down, Family::V4)
}

#[test]
fn wireguard_peer_without_an_endpoint() -> Result<()> {
    let scenario = Scenario::broken_by(wireguard::no_endpoint).prepared_by(wireguard::with_geneve);
    let died = proven("request_dropped")
        .cause(&["wireguard_no_peer"])
        .function("wg_xmit");
    show(scenario, &stays_in_node_a(died))
}

fn not_allowed_out(family: Family) -> Result<()> {
    let scenario = Scenario::broken_by(wireguard::not_allowed_out)
        .prepared_by(wireguard::with_geneve)
        .over(family);
    let died = proven("request_dropped")
        .cause(&["wireguard_allowed_ips"])
        .function("wg_xmit");
    show(scenario, &stays_in_node_a(died))
}

#[test]
fn wireguard_that_allows_no_peer_the_destination() -> Result<()> {
    not_allowed_out(Family::V4)
}

#[test]
fn wireguard_that_allows_no_peer_the_destination_over_ipv6() -> Result<()> {
    not_allowed_out(Family::V6)
}

fn not_allowed_in(family: Family) -> Result<()> {
    let scenario = Scenario::broken_by(wireguard::not_allowed_in)
        .prepared_by(wireguard::with_geneve)
        .over(family);
    // From node-b alone nothing is seen of a packet that is consumed before it is decrypted for anybody.
    let refused = inferred("request_dropped")
        .cause(&["wireguard_allowed_ips"])
        .at("node-b", &["ens0"])
        .stage("decap");
    let views = Views {
        full: refused,
        server_node: unseen(),
        client_node: SYN_LEFT_NODE_A,
    };
    show(scenario, &views)
}

#[test]
fn wireguard_that_refuses_the_source() -> Result<()> {
    not_allowed_in(Family::V4)
}

#[test]
fn wireguard_that_refuses_the_source_over_ipv6() -> Result<()> {
    not_allowed_in(Family::V6)
}

/// Incident 1 (a).
fn eaten_in_the_underlay(prepare: fn(&Topology) -> Result<()>, family: Family) -> Result<()> {
    let scenario = Scenario::broken_by(wireguard::eaten_in_the_underlay)
        .prepared_by(prepare)
        .over(family);
    let views = Views {
        full: by_netfilter("reply_dropped").at("underlay", &["tob"]),
        server_node: SYN_ACK_LEFT_NODE_B.says("WireGuard peer"),
        client_node: SYN_LEFT_NODE_A.says("WireGuard peer"),
    };
    show(scenario, &views)
}

#[test]
fn incident_1_reply_in_geneve_in_wireguard_eaten_in_the_underlay() -> Result<()> {
    eaten_in_the_underlay(wireguard::with_geneve, Family::V4)
}

#[test]
fn incident_1_reply_in_geneve_in_wireguard_eaten_in_the_underlay_over_ipv6() -> Result<()> {
    eaten_in_the_underlay(wireguard::with_geneve, Family::V6)
}

#[test]
fn incident_1_reply_in_wireguard_alone_eaten_in_the_underlay() -> Result<()> {
    eaten_in_the_underlay(wireguard::alone, Family::V4)
}

/// Incident 1 (b): a program on the Geneve device of the node that receives the reply, as an identity's policy is.
#[test]
fn incident_1_reply_dropped_by_a_program_behind_geneve() -> Result<()> {
    let scenario = Scenario::broken_by(|lab| {
        let replies = Victims::of_all(lab.plan.family(), true);
        bpf::tc(&lab.node_a, "gnv0", "ingress", &replies)
    })
    .prepared_by(wireguard::with_geneve);
    let died = proven("reply_dropped")
        .at("node-a", &["gnv0"])
        .stage("ingress");
    show(
        scenario,
        &Views::on_the_clients_node(died, SYN_ACK_LEFT_NODE_B),
    )
}

/// Incident 1 (c): nothing is wrong, and each hop is told.
fn healthy(family: Family) -> Result<()> {
    if !wireguard::is_available()? {
        return Ok(());
    }
    with_lab(family, |lab| {
        wireguard::with_geneve(lab)?;
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let observers = Observers::start(lab)?;
        // The first connection waits for the first handshake.
        let first = exchange(lab)?;
        let second = exchange(lab)?;
        let reports = observers.stop()?;
        reports.check(&[
            (first, Views::all(answered())),
            (second, Views::all(answered())),
        ])?;
        for leg in ["request", "reply"] {
            shows_datagrams(&reports.full, leg, 4, lab)?;
            shows_datagrams(&reports.server_node, leg, 1, lab)?;
            shows_datagrams(&reports.client_node, leg, 1, lab)?;
        }
        Ok(())
    })
}

/// Each flow's path has so many hops of the datagram, between the nodes' endpoints, beside those of `wg0`.
fn shows_datagrams(run: &Run, leg: &str, count: usize, lab: &Topology) -> Result<()> {
    let report = run.report()?;
    let flows = report["flows"].as_array().context("no flows")?;
    let (a, b) = (lab.plan.uplink_a().0, lab.plan.uplink_b().0);
    let (from, to) = match leg {
        "request" => ((a, wireguard::PORT_A), (b, wireguard::PORT_B)),
        _ => ((b, wireguard::PORT_B), (a, wireguard::PORT_A)),
    };
    for flow in flows {
        let path = flow[leg]["path"].as_array().context("no path")?;
        let is_datagram = |hop: &&Value| hop["tunnel"]["kind"] == "wireguard";
        let datagrams: Vec<&Value> = path.iter().filter(is_datagram).collect();
        ensure!(
            datagrams.len() == count,
            "{} hops of the datagram, want {count}: {path:#?}",
            datagrams.len()
        );
        for hop in datagrams {
            let outer = &hop["outer"];
            ensure!(
                outer["src"] == from.0.to_string()
                    && outer["src_port"] == from.1
                    && outer["dst"] == to.0.to_string()
                    && outer["dst_port"] == to.1,
                "the datagram goes from {from:?} to {to:?}: {hop:#}"
            );
        }
        let on_wg0 = |hop: &&Value| hop["device"] == "wg0" && hop["tunnel"]["kind"] == "geneve";
        ensure!(path.iter().any(|hop| on_wg0(&hop)), "no wg0: {path:#?}");
    }
    Ok(())
}

#[test]
fn incident_1_geneve_over_wireguard_that_works() -> Result<()> {
    healthy(Family::V4)
}

#[test]
fn incident_1_geneve_over_wireguard_that_works_over_ipv6() -> Result<()> {
    healthy(Family::V6)
}
