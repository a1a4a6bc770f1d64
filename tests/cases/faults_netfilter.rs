//! Rules that kill or reject, at every hook that they may hang from, for each packet of a handshake.

use anyhow::Result;
use tracer::lab::{Family, Topology};
use tracer_tests::kernel::Release;
use tracer_tests::{
    Ends, Fault, Pair, SYN_ACK_LEFT_NODE_B, SYN_LEFT_NODE_A, Views, answered, by_netfilter, faults,
    proven, side_by_side, unseen,
};

/// The first release in which nftables has a hook where a device sends.
const EGRESS_HOOK: Release = Release(5, 16);

/// Drops at the hooks of the IP layer, `says` being the hook's name in the sentence.
fn drops_at_every_hook() -> Vec<Fault> {
    let syn = by_netfilter("request_dropped");
    let syn_ack = by_netfilter("reply_dropped");
    let ack = by_netfilter("ack_dropped");
    vec![
        Fault::new(
            "SYN in pod-a's OUTPUT",
            Views::on_the_clients_node(
                syn.at("pod-a", &["null", "eth0"])
                    .stage("local_out")
                    .says("OUTPUT"),
                unseen(),
            ),
            |lab, pair| faults::netfilter(&lab.pod_a, "output", &format!("{} drop", pair.syn())),
        ),
        Fault::new(
            "SYN in pod-a's POSTROUTING",
            Views::on_the_clients_node(
                syn.at("pod-a", &["eth0"])
                    .stage("egress")
                    .says("POSTROUTING"),
                unseen(),
            ),
            |lab, pair| {
                faults::netfilter(&lab.pod_a, "postrouting", &format!("{} drop", pair.syn()))
            },
        ),
        Fault::new(
            "SYN in node-a's PREROUTING",
            Views::on_the_clients_node(
                syn.at("node-a", &["lxca"])
                    .stage("ingress")
                    .says("PREROUTING"),
                unseen(),
            ),
            |lab, pair| {
                faults::netfilter(&lab.node_a, "prerouting", &format!("{} drop", pair.syn()))
            },
        ),
        Fault::new(
            "SYN in node-a's FORWARD",
            Views::on_the_clients_node(
                syn.at("node-a", &["lxca"]).stage("forward").says("FORWARD"),
                unseen(),
            ),
            |lab, pair| faults::netfilter(&lab.node_a, "forward", &format!("{} drop", pair.syn())),
        ),
        Fault::new(
            "SYN in node-b's FORWARD",
            Views::on_the_servers_node(
                syn.at("node-b", &["vx0"]).stage("forward").says("FORWARD"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| faults::netfilter(&lab.node_b, "forward", &format!("{} drop", pair.syn())),
        ),
        Fault::new(
            "SYN in node-b's POSTROUTING",
            Views::on_the_servers_node(
                syn.at("node-b", &["lxcb"])
                    .stage("egress")
                    .says("POSTROUTING"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| {
                faults::netfilter(&lab.node_b, "postrouting", &format!("{} drop", pair.syn()))
            },
        ),
        Fault::new(
            "SYN in pod-b's INPUT",
            Views::on_the_servers_node(
                syn.at("pod-b", &["eth0"]).stage("local_in").says("INPUT"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| faults::netfilter(&lab.pod_b, "input", &format!("{} drop", pair.syn())),
        ),
        Fault::new(
            "SYN-ACK in pod-b's OUTPUT",
            Views::on_the_servers_node(
                syn_ack
                    .at("pod-b", &["null", "eth0"])
                    .stage("local_out")
                    .says("OUTPUT"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| {
                faults::netfilter(&lab.pod_b, "output", &format!("{} drop", pair.syn_ack()))
            },
        ),
        Fault::new(
            "SYN-ACK in node-b's PREROUTING",
            Views::on_the_servers_node(
                syn_ack
                    .at("node-b", &["lxcb"])
                    .stage("ingress")
                    .says("PREROUTING"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| {
                faults::netfilter(
                    &lab.node_b,
                    "prerouting",
                    &format!("{} drop", pair.syn_ack()),
                )
            },
        ),
        Fault::new(
            "SYN-ACK in node-b's FORWARD",
            Views::on_the_servers_node(
                syn_ack
                    .at("node-b", &["lxcb"])
                    .stage("forward")
                    .says("FORWARD"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| {
                faults::netfilter(&lab.node_b, "forward", &format!("{} drop", pair.syn_ack()))
            },
        ),
        Fault::new(
            "SYN-ACK in node-a's FORWARD",
            Views::on_the_clients_node(
                syn_ack
                    .at("node-a", &["vx0"])
                    .stage("forward")
                    .says("FORWARD"),
                SYN_ACK_LEFT_NODE_B,
            ),
            |lab, pair| {
                faults::netfilter(&lab.node_a, "forward", &format!("{} drop", pair.syn_ack()))
            },
        ),
        Fault::new(
            "SYN-ACK in node-a's POSTROUTING",
            Views::on_the_clients_node(
                syn_ack
                    .at("node-a", &["lxca"])
                    .stage("egress")
                    .says("POSTROUTING"),
                SYN_ACK_LEFT_NODE_B,
            ),
            |lab, pair| {
                faults::netfilter(
                    &lab.node_a,
                    "postrouting",
                    &format!("{} drop", pair.syn_ack()),
                )
            },
        ),
        Fault::new(
            "SYN-ACK in pod-a's INPUT",
            Views::on_the_clients_node(
                syn_ack
                    .at("pod-a", &["eth0"])
                    .stage("local_in")
                    .says("INPUT"),
                SYN_ACK_LEFT_NODE_B,
            ),
            |lab, pair| faults::netfilter(&lab.pod_a, "input", &format!("{} drop", pair.syn_ack())),
        ),
        // The client is connected, and its node has seen the reply delivered.
        Fault::new(
            "ACK in pod-a's OUTPUT",
            Views::on_the_clients_node(
                ack.at("pod-a", &["null", "eth0"])
                    .stage("local_out")
                    .says("OUTPUT"),
                SYN_ACK_LEFT_NODE_B,
            ),
            |lab, pair| faults::netfilter(&lab.pod_a, "output", &format!("{} drop", pair.ack())),
        )
        .ends(Ends::Connected),
        Fault::new(
            "ACK in node-a's FORWARD",
            Views::on_the_clients_node(
                ack.at("node-a", &["lxca"]).stage("forward").says("FORWARD"),
                SYN_ACK_LEFT_NODE_B,
            ),
            |lab, pair| faults::netfilter(&lab.node_a, "forward", &format!("{} drop", pair.ack())),
        )
        .ends(Ends::Connected),
        Fault::new(
            "ACK in node-b's FORWARD",
            Views::on_the_servers_node(
                ack.at("node-b", &["vx0"]).stage("forward").says("FORWARD"),
                answered(),
            ),
            |lab, pair| faults::netfilter(&lab.node_b, "forward", &format!("{} drop", pair.ack())),
        )
        .ends(Ends::Connected),
        Fault::new(
            "ACK in pod-b's INPUT",
            Views::on_the_servers_node(
                ack.at("pod-b", &["eth0"]).stage("local_in").says("INPUT"),
                answered(),
            ),
            |lab, pair| faults::netfilter(&lab.pod_b, "input", &format!("{} drop", pair.ack())),
        )
        .ends(Ends::Connected),
        Fault::new(
            "SYN-ACK that node-b's conntrack calls INVALID, since the SYN went past it",
            Views::on_the_servers_node(
                syn_ack.at("node-b", &["lxcb"]).stage("forward"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| {
                lab.node_b.nft(&format!(
                    "add table inet raw\n\
                     add chain inet raw prerouting {{ type filter hook prerouting priority -300; }}\n\
                     add rule inet raw prerouting {} notrack\n",
                    pair.from_client()
                ))?;
                faults::netfilter(
                    &lab.node_b,
                    "forward",
                    &format!("{} ct state invalid drop", pair.from_server()),
                )
            },
        ),
    ]
}

/// Drops at the hooks of a device.
fn drops_at_devices() -> Vec<Fault> {
    let dropped = |code| proven(code).cause(&["netfilter"]).reason("NETFILTER_DROP");
    let syn = dropped("request_dropped");
    let syn_ack = dropped("reply_dropped");
    vec![
        Fault::new(
            "SYN at the egress hook of pod-a's eth0",
            Views::on_the_clients_node(
                syn.at("pod-a", &["eth0"])
                    .stage("egress")
                    .says("egress hook"),
                unseen(),
            ),
            |lab, pair| {
                faults::at_device(
                    &lab.pod_a,
                    "egress",
                    "eth0",
                    &format!("{} drop", pair.syn()),
                )
            },
        )
        .since(EGRESS_HOOK),
        Fault::new(
            "SYN at the ingress hook of node-a's lxca",
            Views::on_the_clients_node(
                syn.at("node-a", &["lxca"])
                    .stage("ingress")
                    .says("ingress hook"),
                unseen(),
            ),
            |lab, pair| {
                faults::at_device(
                    &lab.node_a,
                    "ingress",
                    "lxca",
                    &format!("{} drop", pair.syn()),
                )
            },
        ),
        Fault::new(
            "SYN at the egress hook of node-a's vx0",
            Views::on_the_clients_node(
                syn.at("node-a", &["vx0"])
                    .stage("egress")
                    .says("egress hook"),
                unseen(),
            ),
            |lab, pair| {
                faults::at_device(
                    &lab.node_a,
                    "egress",
                    "vx0",
                    &format!("{} drop", pair.syn()),
                )
            },
        )
        .since(EGRESS_HOOK),
        Fault::new(
            "SYN at the ingress hook of node-b's vx0",
            Views::on_the_servers_node(
                syn.at("node-b", &["vx0"])
                    .stage("ingress")
                    .says("ingress hook"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| {
                faults::at_device(
                    &lab.node_b,
                    "ingress",
                    "vx0",
                    &format!("{} drop", pair.syn()),
                )
            },
        ),
        Fault::new(
            "SYN at the egress hook of node-b's lxcb",
            Views::on_the_servers_node(
                syn.at("node-b", &["lxcb"])
                    .stage("egress")
                    .says("egress hook"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| {
                faults::at_device(
                    &lab.node_b,
                    "egress",
                    "lxcb",
                    &format!("{} drop", pair.syn()),
                )
            },
        )
        .since(EGRESS_HOOK),
        Fault::new(
            "SYN-ACK at the egress hook of pod-b's eth0",
            Views::on_the_servers_node(
                syn_ack
                    .at("pod-b", &["eth0"])
                    .stage("egress")
                    .says("egress hook"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| {
                faults::at_device(
                    &lab.pod_b,
                    "egress",
                    "eth0",
                    &format!("{} drop", pair.syn_ack()),
                )
            },
        )
        .since(EGRESS_HOOK),
        Fault::new(
            "SYN-ACK at the ingress hook of pod-a's eth0",
            Views::on_the_clients_node(
                syn_ack
                    .at("pod-a", &["eth0"])
                    .stage("ingress")
                    .says("ingress hook"),
                SYN_ACK_LEFT_NODE_B,
            ),
            |lab, pair| {
                faults::at_device(
                    &lab.pod_a,
                    "ingress",
                    "eth0",
                    &format!("{} drop", pair.syn_ack()),
                )
            },
        ),
    ]
}

/// How a rule says no.
const RESET: &str = "reject with tcp reset";
const PROHIBITED: &str = "reject with icmpx admin-prohibited";
const WAYS: [&str; 2] = [RESET, PROHIBITED];

fn rejections_of_the_syn() -> Vec<Fault> {
    let refused = proven("refused").cause(&["rejected"]);
    let mut faults = Vec::new();
    for how in WAYS {
        let at = |netns: &'static str, hook: &'static str| {
            move |lab: &Topology, pair: &Pair| {
                let [pod_a, node_a, _, node_b, pod_b] = lab.namespaces();
                let netns = match netns {
                    "pod-a" => pod_a,
                    "node-a" => node_a,
                    "node-b" => node_b,
                    _ => pod_b,
                };
                faults::netfilter(netns, hook, &format!("{} {how}", pair.syn()))
            }
        };
        let fault = |netns, hook, views| {
            Fault::new(
                format!("SYN: {how} in {netns}'s {hook}"),
                views,
                at(netns, hook),
            )
            .ends(Ends::Failed)
        };
        faults.extend([
            fault(
                "pod-a",
                "output",
                // The kernel writes loopback into the IPv6 packet before it answers it.
                Views::on_the_clients_node(refused.at("pod-a", &["null", "eth0", "lo"]), unseen()),
            ),
            fault(
                "node-a",
                "forward",
                Views::on_the_clients_node(refused.at("node-a", &["lxca"]), unseen()),
            ),
            // Who sent the RST is not seen from the client's node; an ICMP error is signed, and says why.
            fault(
                "node-b",
                "forward",
                Views::on_the_servers_node(
                    refused.at("node-b", &["vx0"]),
                    if how == RESET {
                        proven("refused")
                            .at("node-a", &["ens0"])
                            .cause(&["unknown"])
                    } else {
                        refused.at("node-a", &["ens0"])
                    },
                ),
            ),
            fault(
                "pod-b",
                "input",
                Views::on_the_servers_node(
                    refused.at("pod-b", &["eth0"]),
                    if how == RESET {
                        proven("refused")
                            .at("node-a", &["ens0"])
                            .cause(&["unknown"])
                    } else {
                        refused.at("node-a", &["ens0"])
                    },
                ),
            ),
        ]);
    }
    faults
}

/// The server is told, in the client's name or in the rule's; the client waits in vain.
fn rejections_of_the_syn_ack() -> Vec<Fault> {
    let dropped = by_netfilter("reply_dropped").stage("forward");
    let mut faults = Vec::new();
    for how in WAYS {
        faults.push(Fault::new(
            format!("SYN-ACK: {how} in node-b's forward"),
            Views::on_the_servers_node(dropped.at("node-b", &["lxcb"]), SYN_LEFT_NODE_A),
            move |lab: &Topology, pair: &Pair| {
                faults::netfilter(&lab.node_b, "forward", &format!("{} {how}", pair.syn_ack()))
            },
        ));
        faults.push(Fault::new(
            format!("SYN-ACK: {how} in node-a's forward"),
            Views::on_the_clients_node(dropped.at("node-a", &["vx0"]), SYN_ACK_LEFT_NODE_B),
            move |lab: &Topology, pair: &Pair| {
                faults::netfilter(&lab.node_a, "forward", &format!("{} {how}", pair.syn_ack()))
            },
        ));
        faults.push(Fault::new(
            format!("SYN-ACK: {how} in pod-a's input"),
            Views::on_the_clients_node(
                by_netfilter("reply_dropped").at("pod-a", &["eth0"]),
                SYN_ACK_LEFT_NODE_B,
            ),
            move |lab: &Topology, pair: &Pair| {
                faults::netfilter(&lab.pod_a, "input", &format!("{} {how}", pair.syn_ack()))
            },
        ));
    }
    faults
}

#[test]
fn drops_at_every_hook_of_netfilter() -> Result<()> {
    side_by_side(Family::V4, drops_at_every_hook())
}

#[test]
fn drops_at_every_hook_of_netfilter_over_ipv6() -> Result<()> {
    side_by_side(Family::V6, drops_at_every_hook())
}

#[test]
fn drops_at_the_hooks_of_devices() -> Result<()> {
    side_by_side(Family::V4, drops_at_devices())
}

#[test]
fn drops_at_the_hooks_of_devices_over_ipv6() -> Result<()> {
    side_by_side(Family::V6, drops_at_devices())
}

#[test]
fn rejections_by_reset_and_by_icmp() -> Result<()> {
    let mut faults = rejections_of_the_syn();
    faults.extend(rejections_of_the_syn_ack());
    side_by_side(Family::V4, faults)
}

#[test]
fn rejections_by_reset_and_by_icmp_over_ipv6() -> Result<()> {
    let mut faults = rejections_of_the_syn();
    faults.extend(rejections_of_the_syn_ack());
    side_by_side(Family::V6, faults)
}
