//! Packets that are wrong themselves, or come at the wrong time: TTL, checksums, impossible sources, full queues,
//! neighbours.

use std::net::IpAddr;

use anyhow::Result;
use tracer::lab::{Family, Netns, Topology};
use tracer_tests::bpf::{self, Victims};
use tracer_tests::{
    Ends, Fault, Pair, SYN_ACK_LEFT_NODE_B, SYN_LEFT_NODE_A, Views, faults, offload, proven,
    side_by_side, unseen,
};

/// nftables: has packets go so many hops at the most.
fn hops(pair: &Pair, count: u8) -> String {
    match pair.client {
        IpAddr::V4(_) => format!("ip ttl set {count}"),
        IpAddr::V6(_) => format!("ip6 hoplimit set {count}"),
    }
}

fn too_few_hops() -> Vec<Fault> {
    let died = |code| proven(code).cause(&["ttl"]).stage("forward");
    let (syn, syn_ack) = (died("request_dropped"), died("reply_dropped"));
    // The client is told by ICMP.
    let told = proven("refused").at("node-a", &["ens0"]).cause(&["ttl"]);
    vec![
        Fault::new(
            "SYN: no hop is left on node-a",
            Views::on_the_clients_node(syn.at("node-a", &["lxca"]), unseen()),
            |lab, pair| {
                faults::netfilter(
                    &lab.pod_a,
                    "output",
                    &format!("{} {}", pair.syn(), hops(pair, 1)),
                )
            },
        )
        .ends(Ends::Failed),
        Fault::new(
            "SYN: no hop is left on node-b",
            Views::on_the_servers_node(syn.at("node-b", &["vx0"]), told),
            |lab, pair| {
                faults::netfilter(
                    &lab.pod_a,
                    "output",
                    &format!("{} {}", pair.syn(), hops(pair, 2)),
                )
            },
        )
        .ends(Ends::Failed),
        Fault::new(
            "SYN-ACK: no hop is left on node-b",
            Views::on_the_servers_node(syn_ack.at("node-b", &["lxcb"]), SYN_LEFT_NODE_A),
            |lab, pair| {
                faults::netfilter(
                    &lab.pod_b,
                    "output",
                    &format!("{} {}", pair.syn_ack(), hops(pair, 1)),
                )
            },
        ),
        Fault::new(
            "SYN-ACK: no hop is left on node-a",
            Views::on_the_clients_node(syn_ack.at("node-a", &["vx0"]), SYN_ACK_LEFT_NODE_B),
            |lab, pair| {
                faults::netfilter(
                    &lab.pod_b,
                    "output",
                    &format!("{} {}", pair.syn_ack(), hops(pair, 2)),
                )
            },
        ),
        Fault::new(
            "SYN: node-b sends it back to node-a, round and round",
            // 64 hops, of which node-a takes the first.
            Views::on_the_servers_node(syn.at("node-b", &["vx0"]), told),
            |lab, pair| {
                Ok(lab.node_b.ip(&format!(
                    "route replace {} via {} dev vx0",
                    pair.server.ip(),
                    lab.plan.tunnel().0
                ))?)
            },
        )
        .ends(Ends::Failed),
    ]
}

fn wrong_checksums() -> Vec<Fault> {
    let died = |code| {
        proven(code)
            .cause(&["checksum"])
            .reason("TCP_CSUM")
            .stage("local_in")
    };
    vec![
        Fault::new(
            "SYN: node-a writes a wrong TCP checksum",
            Views::on_the_servers_node(
                died("request_dropped").at("pod-b", &["eth0"]),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| {
                offload::send_checksums(&lab.pod_a, "eth0")?;
                faults::netfilter(
                    &lab.node_a,
                    "forward",
                    &format!("{} tcp checksum set 0xdead", pair.syn()),
                )
            },
        ),
        Fault::new(
            "SYN-ACK: node-b writes a wrong TCP checksum",
            Views::on_the_clients_node(
                died("reply_dropped").at("pod-a", &["eth0"]),
                SYN_ACK_LEFT_NODE_B,
            ),
            |lab, pair| {
                offload::send_checksums(&lab.pod_b, "eth0")?;
                faults::netfilter(
                    &lab.node_b,
                    "forward",
                    &format!("{} tcp checksum set 0xdead", pair.syn_ack()),
                )
            },
        ),
    ]
}

/// Has pod-a send a pair's SYN from another address, behind the back of its socket.
fn send_from(lab: &Topology, pair: &Pair, source: IpAddr) -> Result<()> {
    let family = lab.plan.nft_family();
    faults::netfilter(
        &lab.pod_a,
        "postrouting",
        &format!("{} {family} saddr set {source}", pair.syn()),
    )
}

fn impossible_sources(family: Family) -> Result<Vec<Fault>> {
    let sources: &[(&str, &str)] = match family {
        Family::V4 => &[
            ("loopback", "127.0.0.9"),
            ("multicast", "224.0.0.9"),
            ("broadcast", "255.255.255.255"),
        ],
        Family::V6 => &[("loopback", "::1"), ("multicast", "ff0e::9")],
    };
    let mut faults = Vec::new();
    for (kind, source) in sources {
        let source: IpAddr = source.parse()?;
        let died = proven("request_dropped")
            .at("node-a", &["lxca"])
            .stage("ingress")
            .cause(&["source_invalid"]);
        faults.push(
            Fault::new(
                format!("SYN: sent from a {kind} address"),
                Views::all(unseen()),
                move |lab, pair| send_from(lab, pair, source),
            )
            .also_from(source, Views::on_the_clients_node(died, unseen())),
        );
    }
    Ok(faults)
}

/// As a node does that masquerades with an address that only it knows.
fn unknown_source(family: Family) -> Result<Fault> {
    let source: IpAddr = match family {
        Family::V4 => "192.0.2.9",
        Family::V6 => "2001:db8::9",
    }
    .parse()?;
    let died = proven("reply_dropped")
        .at("node-b", &["lxcb"])
        .cause(&["no_route"]);
    let views = Views {
        full: died,
        server_node: unseen(),
        client_node: SYN_LEFT_NODE_A,
    };
    let there = Views {
        full: unseen(),
        server_node: died,
        client_node: unseen(),
    };
    let inject = move |lab: &Topology, pair: &Pair| {
        let family = lab.plan.nft_family();
        Ok(lab.node_a.nft(&format!(
            "add table {family} fault-nat\n\
             add chain {family} fault-nat postrouting {{ type nat hook postrouting priority 100; }}\n\
             add rule {family} fault-nat postrouting {} snat to {source}\n",
            pair.from_client()
        ))?)
    };
    let name =
        "SYN-ACK: node-a had masqueraded the client with an address that node-b does not know";
    Ok(Fault::new(name, views, inject).also_from(source, there))
}

fn full_queues() -> Vec<Fault> {
    let died = |code| proven(code).cause(&["qdisc"]).stage("egress");
    let (syn, syn_ack) = (died("request_dropped"), died("reply_dropped"));
    vec![
        Fault::new(
            "SYN: the queue of pod-a's eth0",
            Views::on_the_clients_node(syn.at("pod-a", &["eth0"]), unseen()),
            |lab, pair| bpf::full_queue(&lab.pod_a, "eth0", &Victims::syn(pair)),
        ),
        Fault::new(
            "SYN: the queue of node-b's lxcb",
            Views::on_the_servers_node(syn.at("node-b", &["lxcb"]), SYN_LEFT_NODE_A),
            |lab, pair| bpf::full_queue(&lab.node_b, "lxcb", &Victims::syn(pair)),
        ),
        Fault::new(
            "SYN-ACK: the queue of pod-b's eth0",
            Views::on_the_servers_node(syn_ack.at("pod-b", &["eth0"]), SYN_LEFT_NODE_A),
            |lab, pair| bpf::full_queue(&lab.pod_b, "eth0", &Victims::syn_ack(pair)),
        ),
        Fault::new(
            "SYN-ACK: the queue of node-a's lxca",
            Views::on_the_clients_node(syn_ack.at("node-a", &["lxca"]), SYN_ACK_LEFT_NODE_B),
            |lab, pair| bpf::full_queue(&lab.node_a, "lxca", &Victims::syn_ack(pair)),
        ),
    ]
}

fn dead_neighbours(family: Family) -> Vec<Fault> {
    let died = |code| proven(code).cause(&["neighbour_unresolved"]);
    let mut faults = vec![
        Fault::new(
            "SYN: node-b's next hop never answers",
            Views::on_the_servers_node(
                died("request_dropped").at("node-b", &["lxcb"]),
                proven("refused").at("node-a", &["ens0"]),
            ),
            |lab, pair| {
                let (server, nobody) = (pair.server.ip(), lab.plan.nobody(0).ip());
                Ok(lab
                    .node_b
                    .ip(&format!("route replace {server} via {nobody}"))?)
            },
        )
        .ends(Ends::Failed),
    ];
    // IPv6 takes the default route once it knows that the next hop is dead.
    if family == Family::V4 {
        faults.push(Fault::new(
            "SYN-ACK: pod-b's next hop never answers",
            Views::on_the_servers_node(
                died("reply_dropped").at("pod-b", &["eth0"]),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| {
                let (client, nobody) = (pair.client, lab.plan.nobody(0).ip());
                Ok(lab.pod_b.ip(&format!("route add {client} via {nobody}"))?)
            },
        ));
    }
    faults
}

/// IPsec policies that let nothing pass in the clear.
fn blocking_policies(family: Family) -> Vec<Fault> {
    let block = |node: &Netns, direction: &str, src: IpAddr, dst: IpAddr| -> Result<()> {
        Ok(node.ip(&format!(
            "xfrm policy add src {src} dst {dst} dir {direction} action block"
        ))?)
    };
    let died = |code| proven(code).cause(&["xfrm"]);
    // `ip6_forward` frees many for no reason given.
    let forwarded = match family {
        Family::V4 => died("request_dropped"),
        Family::V6 => proven("request_dropped")
            .cause(&["unknown"])
            .function("ip6_forward"),
    };
    vec![
        Fault::new(
            "SYN: an IPsec policy of node-b blocks it",
            Views::on_the_servers_node(forwarded.at("node-b", &["vx0"]), SYN_LEFT_NODE_A),
            move |lab, pair| block(&lab.node_b, "fwd", pair.client, pair.server.ip()),
        ),
        Fault::new(
            "SYN-ACK: an IPsec policy of pod-a blocks it",
            Views::on_the_clients_node(
                died("reply_dropped").at("pod-a", &["eth0"]),
                SYN_ACK_LEFT_NODE_B,
            ),
            move |lab, pair| block(&lab.pod_a, "in", pair.server.ip(), pair.client),
        ),
    ]
}

fn all(family: Family) -> Result<()> {
    let mut faults = too_few_hops();
    faults.extend(blocking_policies(family));
    faults.extend(wrong_checksums());
    faults.extend(impossible_sources(family)?);
    faults.push(unknown_source(family)?);
    faults.extend(full_queues());
    faults.extend(dead_neighbours(family));
    side_by_side(family, faults)
}

#[test]
fn packets_that_nobody_takes() -> Result<()> {
    all(Family::V4)
}

#[test]
fn packets_that_nobody_takes_over_ipv6() -> Result<()> {
    all(Family::V6)
}
