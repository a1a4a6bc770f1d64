//! Rules that hand packets to a process (NFQUEUE), and no process takes them. They are made with iptables: the kernel may
//! have the target of iptables only.

use anyhow::Result;
use tracer::lab::{Family, Netns};
use tracer_tests::{
    Ends, Fault, Pair, SYN_LEFT_NODE_A, Views, answered, both, proven, side_by_side,
};

/// The queue that nobody reads.
const QUEUE: &str = "77";

/// Queues packets of a pair, given by the words of iptables, in a chain of a namespace.
fn queue(netns: &Netns, pair: &Pair, chain: &str, packet: &[&str], more: &[&str]) -> Result<()> {
    let program = if pair.client.is_ipv4() {
        "iptables"
    } else {
        "ip6tables"
    };
    let to_queue = ["-j", "NFQUEUE", "--queue-num", QUEUE];
    let arguments = [&["-A", chain], packet, &to_queue, more].concat();
    netns.command(program, &arguments)?;
    Ok(())
}

fn queues_without_a_reader() -> Vec<Fault> {
    let queued = |code| {
        proven(code)
            .cause(&["netfilter"])
            .function("nf_queue")
            .says("(NFQUEUE)")
    };
    vec![
        Fault::new(
            "SYN in pod-b's INPUT",
            Views::on_the_servers_node(
                queued("request_dropped")
                    .at("pod-b", &["eth0"])
                    .stage("local_in"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| {
                let (client, server) = (pair.client.to_string(), pair.server.ip().to_string());
                let syn = ["-s", &client, "-d", &server, "-p", "tcp", "--syn"];
                queue(&lab.pod_b, pair, "INPUT", &syn, &[])
            },
        ),
        Fault::new(
            "SYN-ACK in node-b's FORWARD",
            Views::on_the_servers_node(
                queued("reply_dropped")
                    .at("node-b", &["lxcb"])
                    .stage("forward"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| {
                let (client, server) = (pair.client.to_string(), pair.server.ip().to_string());
                let back = ["-s", &server, "-d", &client, "-p", "tcp"];
                queue(&lab.node_b, pair, "FORWARD", &back, &[])
            },
        ),
        Fault::new(
            "SYN in node-b's FORWARD, which passes where nobody reads",
            Views::all(answered()),
            |lab, pair| {
                let (client, server) = (pair.client.to_string(), pair.server.ip().to_string());
                let there = ["-s", &client, "-d", &server, "-p", "tcp"];
                queue(&lab.node_b, pair, "FORWARD", &there, &["--queue-bypass"])
            },
        )
        .ends(Ends::Connected),
    ]
}

#[test]
fn queues_that_nobody_reads() -> Result<()> {
    both(|family: Family| side_by_side(family, queues_without_a_reader()))
}
