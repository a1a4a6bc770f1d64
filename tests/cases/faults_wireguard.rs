//! WireGuard in a process: what enters it at the tun device is out of the kernel's sight, and comes out as another packet.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use tracer::lab::{Outcome, Server, Topology, connect};
use tracer_tests::{
    Observers, Views, answered, both, exchange, inferred, unseen, wireguard, with_lab,
};

const PATIENCE: Duration = Duration::from_millis(3400);
const SETTLE: Duration = Duration::from_millis(2200);

/// The tunnel's own datagrams, healthy: what leaves the server's node was not seen to arrive.
const CARRIED: Views = Views {
    full: answered(),
    server_node: inferred("answered"),
    client_node: answered(),
};

/// They were answered before; now they carry SYNs, and nothing comes back.
const UNANSWERED: Views = Views {
    full: inferred("request_not_answered").at("node-b", &["ens0"]),
    server_node: inferred("answered"),
    client_node: inferred("request_left_node").at("node-a", &["ens0"]),
};

/// A lab whose pods reach each other through WireGuard, broken by this step; what must be said of the connection that
/// meets it, and of the tunnel's own datagrams.
fn through_wireguard(
    fault: fn(&Topology, &[wireguard::Wireguard; 2]) -> Result<()>,
    views: &Views,
    tunnel: &Views,
) -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let ends = wireguard::between_the_nodes(lab)?;
            let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
            let observers = Observers::start(lab)?;
            let healthy = exchange(lab)?;
            fault(lab, &ends)?;
            let attempt = connect(&lab.pod_a, 0, lab.plan.server(6379))?;
            let broken = attempt.local;
            let outcome = attempt.wait(PATIENCE);
            ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
            drop(outcome);
            thread::sleep(SETTLE);
            let port = SocketAddr::new(lab.plan.uplink_a().0, wireguard::PORT);
            observers.stop()?.check(&[
                (healthy, Views::all(answered())),
                (broken, *views),
                (port, *tunnel),
            ])
        })
    })
}

#[test]
fn answered_through_wireguard_in_a_process() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let _ends = wireguard::between_the_nodes(lab)?;
            let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
            let observers = Observers::start(lab)?;
            let client = exchange(lab)?;
            let port = SocketAddr::new(lab.plan.uplink_a().0, wireguard::PORT);
            observers
                .stop()?
                .check(&[(client, Views::all(answered())), (port, CARRIED)])
        })
    })
}

/// The SYN went into the process of node-a, and nothing came out of that of node-b.
const SYN_WENT_INTO_WGA: Views = Views {
    full: inferred("request_left_node").at("node-a", &["wga"]),
    server_node: unseen(),
    client_node: inferred("request_left_node").at("node-a", &["wga"]),
};

#[test]
fn the_peers_process_takes_no_such_source() -> Result<()> {
    through_wireguard(
        |lab, _| wireguard::allow_from_a(lab, &lab.plan.pods_b()),
        &SYN_WENT_INTO_WGA,
        &UNANSWERED,
    )
}

#[test]
fn the_peers_process_hangs() -> Result<()> {
    through_wireguard(|_, ends| ends[1].hang(), &SYN_WENT_INTO_WGA, &UNANSWERED)
}

#[test]
fn the_clients_process_has_no_peer_for_the_server() -> Result<()> {
    through_wireguard(
        |lab, _| wireguard::allow_from_b(lab, &lab.plan.pods_a()),
        &SYN_WENT_INTO_WGA,
        &CARRIED,
    )
}
