//! Programs that kill: of tc, of XDP, of a control group, of a socket.

use std::os::fd::{AsFd as _, OwnedFd};

use anyhow::{Context as _, Result};
use tracer::lab::Family;
use tracer_tests::bpf::{self, Cgroup, Victims};
use tracer_tests::{
    Fault, Held, SYN_ACK_LEFT_NODE_B, SYN_LEFT_NODE_A, Views, proven, side_by_side, socket, unseen,
};

fn held(link: OwnedFd) -> Held {
    Box::new(link)
}

fn of_tc() -> Vec<Fault> {
    let dropped = |code| proven(code).cause(&["tc_program"]);
    let (syn, syn_ack) = (dropped("request_dropped"), dropped("reply_dropped"));
    vec![
        Fault::new(
            "SYN: tc filter at the egress of pod-a's eth0",
            Views::on_the_clients_node(
                syn.at("pod-a", &["eth0"])
                    .stage("egress")
                    .reason("TC_EGRESS"),
                unseen(),
            ),
            |lab, pair| bpf::tc(&lab.pod_a, "eth0", "egress", &Victims::syn(pair)),
        ),
        Fault::new(
            "SYN: tc filter at the ingress of node-a's lxca",
            Views::on_the_clients_node(
                syn.at("node-a", &["lxca"])
                    .stage("ingress")
                    .reason("TC_INGRESS"),
                unseen(),
            ),
            |lab, pair| bpf::tc(&lab.node_a, "lxca", "ingress", &Victims::syn(pair)),
        ),
        Fault::new(
            "SYN: tc filter at the egress of node-b's lxcb",
            Views::on_the_servers_node(
                syn.at("node-b", &["lxcb"])
                    .stage("egress")
                    .reason("TC_EGRESS"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| bpf::tc(&lab.node_b, "lxcb", "egress", &Victims::syn(pair)),
        ),
        Fault::new(
            "SYN-ACK: tc filter at the ingress of node-b's lxcb",
            Views::on_the_servers_node(
                syn_ack
                    .at("node-b", &["lxcb"])
                    .stage("ingress")
                    .reason("TC_INGRESS"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| bpf::tc(&lab.node_b, "lxcb", "ingress", &Victims::syn_ack(pair)),
        ),
        Fault::new(
            "SYN-ACK: tc filter at the egress of node-a's lxca",
            Views::on_the_clients_node(
                syn_ack
                    .at("node-a", &["lxca"])
                    .stage("egress")
                    .reason("TC_EGRESS"),
                SYN_ACK_LEFT_NODE_B,
            ),
            |lab, pair| bpf::tc(&lab.node_a, "lxca", "egress", &Victims::syn_ack(pair)),
        ),
        Fault::holding(
            "SYN: tcx program at the ingress of pod-b's eth0",
            Views::on_the_servers_node(
                syn.at("pod-b", &["eth0"])
                    .stage("ingress")
                    .reason("TC_INGRESS"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| bpf::tcx_ingress(&lab.pod_b, "eth0", &Victims::syn(pair)).map(held),
        ),
        Fault::holding(
            "SYN-ACK: tcx program at the egress of pod-b's eth0",
            Views::on_the_servers_node(
                syn_ack
                    .at("pod-b", &["eth0"])
                    .stage("egress")
                    .reason("TC_EGRESS"),
                SYN_LEFT_NODE_A,
            ),
            |lab, pair| bpf::tcx_egress(&lab.pod_b, "eth0", &Victims::syn_ack(pair)).map(held),
        ),
        Fault::holding(
            "SYN: tcx program at the egress of node-a's vx0",
            Views::on_the_clients_node(
                syn.at("node-a", &["vx0"])
                    .stage("egress")
                    .reason("TC_EGRESS"),
                unseen(),
            ),
            |lab, pair| bpf::tcx_egress(&lab.node_a, "vx0", &Victims::syn(pair)).map(held),
        ),
    ]
}

fn of_xdp() -> Vec<Fault> {
    let dropped = |code| proven(code).cause(&["xdp_program"]).stage("ingress");
    let (syn, syn_ack) = (dropped("request_dropped"), dropped("reply_dropped"));
    vec![
        Fault::holding(
            "SYN: generic XDP on pod-b's eth0",
            Views::on_the_servers_node(syn.at("pod-b", &["eth0"]), SYN_LEFT_NODE_A),
            |lab, pair| bpf::xdp_generic(&lab.pod_b, "eth0", &Victims::syn(pair)).map(held),
        ),
        Fault::holding(
            "SYN-ACK: veth's own XDP on node-b's lxcb",
            Views::on_the_servers_node(syn_ack.at("node-b", &["lxcb"]), SYN_LEFT_NODE_A),
            |lab, pair| bpf::xdp_native(&lab.node_b, "lxcb", &Victims::syn_ack(pair)).map(held),
        ),
        Fault::holding(
            "SYN: veth's own XDP on node-a's lxca",
            Views::on_the_clients_node(syn.at("node-a", &["lxca"]), unseen()),
            |lab, pair| bpf::xdp_native(&lab.node_a, "lxca", &Victims::syn(pair)).map(held),
        ),
        Fault::holding(
            "SYN-ACK: generic XDP on pod-a's eth0",
            Views::on_the_clients_node(syn_ack.at("pod-a", &["eth0"]), SYN_ACK_LEFT_NODE_B),
            |lab, pair| bpf::xdp_generic(&lab.pod_a, "eth0", &Victims::syn_ack(pair)).map(held),
        ),
    ]
}

/// The client's and the server's sockets are of one group; each packet is told apart by its hook.
fn of_a_cgroup(group: &Cgroup) -> Vec<Fault> {
    let dropped = |code| proven(code).cause(&["cgroup_program"]);
    let (syn, syn_ack) = (dropped("request_dropped"), dropped("reply_dropped"));
    let [out_syn, in_syn, out_syn_ack, in_syn_ack] = [(); 4].map(|()| group.path().to_owned());
    vec![
        Fault::holding(
            "SYN: egress program of the client's group",
            Views::on_the_clients_node(
                syn.at("pod-a", &["eth0"])
                    .stage("local_out")
                    .reason("BPF_CGROUP_EGRESS"),
                unseen(),
            ),
            move |_, pair| Cgroup::drop_outgoing(&out_syn, &Victims::syn(pair)).map(held),
        ),
        Fault::holding(
            "SYN: ingress program of the server's group",
            Views::on_the_servers_node(
                syn.at("pod-b", &["eth0"])
                    .stage("local_in")
                    .reason("SOCKET_FILTER"),
                SYN_LEFT_NODE_A,
            ),
            move |_, pair| Cgroup::drop_incoming(&in_syn, &Victims::syn(pair)).map(held),
        ),
        Fault::holding(
            "SYN-ACK: egress program of the server's group",
            Views::on_the_servers_node(
                syn_ack
                    .at("pod-b", &["eth0"])
                    .stage("local_out")
                    .reason("BPF_CGROUP_EGRESS"),
                SYN_LEFT_NODE_A,
            ),
            move |_, pair| Cgroup::drop_outgoing(&out_syn_ack, &Victims::syn_ack(pair)).map(held),
        ),
        Fault::holding(
            "SYN-ACK: ingress program of the client's group",
            Views::on_the_clients_node(
                syn_ack
                    .at("pod-a", &["eth0"])
                    .stage("local_in")
                    .reason("SOCKET_FILTER"),
                SYN_ACK_LEFT_NODE_B,
            ),
            move |_, pair| Cgroup::drop_incoming(&in_syn_ack, &Victims::syn_ack(pair)).map(held),
        ),
        Fault::serving(
            "SYN: the listener's own socket filter",
            Views::on_the_servers_node(
                syn.at("pod-b", &["eth0"])
                    .stage("local_in")
                    .reason("SOCKET_FILTER"),
                SYN_LEFT_NODE_A,
            ),
            |_, _, server| {
                socket::reject_all(server.as_ref().context("no server")?.as_fd())?;
                Ok(Box::new(()))
            },
        ),
    ]
}

#[test]
fn programs_of_tc() -> Result<()> {
    side_by_side(Family::V4, of_tc())
}

#[test]
fn programs_of_tc_over_ipv6() -> Result<()> {
    side_by_side(Family::V6, of_tc())
}

#[test]
fn programs_of_xdp() -> Result<()> {
    side_by_side(Family::V4, of_xdp())
}

#[test]
fn programs_of_xdp_over_ipv6() -> Result<()> {
    side_by_side(Family::V6, of_xdp())
}

#[test]
fn programs_of_a_control_group_and_of_a_socket() -> Result<()> {
    let group = Cgroup::enter()?;
    side_by_side(Family::V4, of_a_cgroup(&group))
}

#[test]
fn programs_of_a_control_group_and_of_a_socket_over_ipv6() -> Result<()> {
    let group = Cgroup::enter()?;
    side_by_side(Family::V6, of_a_cgroup(&group))
}
