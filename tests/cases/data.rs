//! What an established connection carries, lost on its way.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tracer::lab::{Family, Outcome, Server, Topology, connect};
use tracer_tests::faults;
use tracer_tests::{Observers, Views, answered, both, echo, inferred, proven, with_lab};

const PATIENCE: Duration = Duration::from_millis(4500);

/// nftables: a segment with data.
const DATA: &str = "tcp flags & (psh|rst) == psh";

/// A connection from pod-a to the server in pod-b.
fn open(lab: &Topology) -> Result<(SocketAddr, TcpStream)> {
    let attempt = connect(&lab.pod_a, 0, lab.plan.server(6379))?;
    let client = attempt.local;
    match attempt.wait(PATIENCE) {
        Outcome::Connected(stream) => {
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok((client, stream))
        }
        other => bail!("the lab does not work while it is healthy: {other:?}"),
    }
}

#[test]
fn data_dropped_by_the_server_nodes_forward_chain() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
            let observers = Observers::start(lab)?;
            let (healthy, stream) = open(lab)?;
            ensure!(
                echo(&stream, 4)?,
                "the lab does not work while it is healthy"
            );
            let (broken, stream) = open(lab)?;
            ensure!(
                echo(&stream, 4)?,
                "the lab does not work while it is healthy"
            );
            faults::netfilter(
                &lab.node_b,
                "forward",
                &format!("tcp dport 6379 {DATA} drop"),
            )?;
            ensure!(!echo(&stream, 4)?, "the rule drops nothing");
            let dropped = proven("data_dropped")
                .at("node-b", &["vx0"])
                .cause(&["netfilter"]);
            observers.stop()?.check(&[
                (healthy, Views::all(answered())),
                (
                    broken,
                    Views {
                        full: dropped,
                        server_node: dropped,
                        client_node: inferred("stalled").at("node-a", &["ens0"]),
                    },
                ),
            ])
        })
    })
}

#[test]
fn data_that_is_lost_once_and_sent_again_is_no_fault() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let observers = Observers::start(lab)?;
        let (client, stream) = open(lab)?;
        ensure!(
            echo(&stream, 4)?,
            "the lab does not work while it is healthy"
        );
        faults::netfilter(
            &lab.node_b,
            "forward",
            &format!("tcp dport 6379 {DATA} limit rate 1/hour burst 1 packets drop"),
        )?;
        ensure!(echo(&stream, 4)?, "what was lost was not sent again");
        let with_losses = answered().with_losses();
        observers.stop()?.check(&[(
            client,
            Views {
                full: with_losses,
                server_node: with_losses,
                client_node: answered(),
            },
        )])
    })
}

#[test]
fn replies_too_big_for_the_nodes_end_of_the_pods_veth() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
            // Segments of their own, as devices without segmentation offload send them.
            lab.pod_b.ip("link set eth0 gso_max_segs 1")?;
            let observers = Observers::start(lab)?;
            let (healthy, stream) = open(lab)?;
            ensure!(
                echo(&stream, 20_000)?,
                "the lab does not work while it is healthy"
            );
            lab.node_b.ip("link set lxcb mtu 1380")?;
            let (broken, stream) = open(lab)?;
            ensure!(echo(&stream, 5)?, "small replies are lost too");
            ensure!(!echo(&stream, 20_000)?, "the MTU stops nothing");
            let too_big = proven("mtu_dropped").at("pod-b", &["eth0"]).cause(&["mtu"]);
            observers.stop()?.check(&[
                (healthy, Views::all(answered())),
                (
                    broken,
                    Views {
                        full: too_big,
                        server_node: too_big,
                        client_node: answered(),
                    },
                ),
            ])
        })
    })
}
