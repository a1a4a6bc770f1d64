//! One fault each on the way of a handshake, and what each of the three views must say of it.
//!
//! The name of a test is the cause. The client node and the server node see no further than their own devices: what
//! happens beyond is *inferred* from what does not come back.

use std::net::IpAddr;

use anyhow::Result;
use tracer::lab::{Family, Netns, VNI};
use tracer_tests::faults::{self, ACK, SYN, SYN_ACK};
use tracer_tests::{
    Ends, SYN_ACK_LEFT_NODE_B, SYN_LEFT_NODE_A, Scenario, Views, answered, by_netfilter, inferred,
    proven, unseen,
};

#[test]
fn synack_dropped_by_the_underlays_router() -> Result<()> {
    Scenario::broken_by(|lab| Ok(lab.underlay.nft(&lab.plan.drop_synack_in_tunnel())?)).must_show(
        Views {
            full: by_netfilter("reply_dropped").at("underlay", &["tob"]),
            server_node: SYN_ACK_LEFT_NODE_B,
            client_node: SYN_LEFT_NODE_A,
        },
    )
}

#[test]
fn synack_dropped_by_the_underlays_router_over_ipv6() -> Result<()> {
    Scenario::broken_by(|lab| Ok(lab.underlay.nft(&lab.plan.drop_synack_in_tunnel())?))
        .over(Family::V6)
        .must_show(Views {
            full: by_netfilter("reply_dropped").at("underlay", &["tob"]),
            server_node: SYN_ACK_LEFT_NODE_B,
            client_node: SYN_LEFT_NODE_A,
        })
}

#[test]
fn synack_dropped_in_the_server_pods_output() -> Result<()> {
    // In OUTPUT the skb has no device yet: the namespace is known from its socket, or not at all.
    let dropped = by_netfilter("reply_dropped")
        .at("pod-b", &["null", "eth0"])
        .stage("local_out");
    Scenario::broken_by(|lab| faults::netfilter(&lab.pod_b, "output", &format!("{SYN_ACK} drop")))
        .must_show(Views {
            full: dropped,
            server_node: dropped,
            client_node: SYN_LEFT_NODE_A,
        })
}

#[test]
fn synack_dropped_by_the_server_nodes_forward_chain() -> Result<()> {
    let dropped = by_netfilter("reply_dropped").at("node-b", &["lxcb"]);
    Scenario::broken_by(|lab| faults::netfilter(&lab.node_b, "forward", &format!("{SYN_ACK} drop")))
        .must_show(Views {
            full: dropped,
            server_node: dropped,
            client_node: SYN_LEFT_NODE_A,
        })
}

#[test]
fn synack_dropped_by_the_client_nodes_forward_chain() -> Result<()> {
    let dropped = by_netfilter("reply_dropped").at("node-a", &["vx0"]);
    Scenario::broken_by(|lab| faults::netfilter(&lab.node_a, "forward", &format!("{SYN_ACK} drop")))
        .must_show(Views {
            full: dropped,
            server_node: SYN_ACK_LEFT_NODE_B,
            client_node: dropped,
        })
}

#[test]
fn synack_dropped_in_the_client_pods_input() -> Result<()> {
    let dropped = by_netfilter("reply_dropped").at("pod-a", &["eth0"]);
    Scenario::broken_by(|lab| faults::netfilter(&lab.pod_a, "input", &format!("{SYN_ACK} drop")))
        .must_show(Views {
            full: dropped,
            server_node: SYN_ACK_LEFT_NODE_B,
            client_node: dropped,
        })
}

#[test]
fn synack_fails_the_client_nodes_reverse_path_check() -> Result<()> {
    let dropped = proven("reply_dropped")
        .at("node-a", &["vx0"])
        .cause(&["rp_filter"])
        .reason("IP_RPFILTER");
    // Requests go through the underlay, replies through the tunnel: the way back is not the way there.
    Scenario::broken_by(|lab| Ok(lab.node_a.sysctl("net/ipv4/conf/vx0/rp_filter", "1")?))
        .prepared_by(|lab| {
            let pods = lab.plan.pods_b();
            lab.underlay
                .ip(&format!("route add {pods} via {}", lab.plan.uplink_b().0))?;
            Ok(lab.node_a.ip(&format!(
                "route replace {pods} via {}",
                lab.plan.uplink_a().1
            ))?)
        })
        .must_show(Views {
            full: dropped,
            server_node: SYN_ACK_LEFT_NODE_B,
            client_node: dropped,
        })
}

#[test]
fn syn_with_a_vni_that_the_server_node_does_not_know() -> Result<()> {
    let dropped = proven("request_dropped")
        .at("node-b", &["ens0"])
        .cause(&["unknown_vni"])
        .reason("VXLAN_VNI_NOT_FOUND");
    Scenario::broken_by(|lab| {
        Ok(lab.node_a.ip(&format!(
            "route replace {} via {} dev vx1 onlink",
            lab.plan.pods_b(),
            lab.plan.tunnel().1
        ))?)
    })
    .prepared_by(|lab| {
        add_tunnel_without_counterpart(
            &lab.node_a,
            &format!("id {} dstport 4789", VNI + 1),
            lab.plan.uplink_a().0,
            lab.plan.uplink_b().0,
            lab.plan.tunnel().1,
        )
    })
    .must_show(Views {
        full: dropped,
        server_node: dropped,
        client_node: SYN_LEFT_NODE_A,
    })
}

#[test]
fn synack_with_a_vni_that_the_client_node_does_not_know() -> Result<()> {
    let dropped = proven("reply_dropped")
        .at("node-a", &["ens0"])
        .cause(&["unknown_vni"])
        .reason("VXLAN_VNI_NOT_FOUND");
    Scenario::broken_by(|lab| {
        Ok(lab.node_b.ip(&format!(
            "route replace {} via {} dev vx1 onlink",
            lab.plan.pods_a(),
            lab.plan.tunnel().0
        ))?)
    })
    .prepared_by(|lab| {
        add_tunnel_without_counterpart(
            &lab.node_b,
            &format!("id {} dstport 4789", VNI + 1),
            lab.plan.uplink_b().0,
            lab.plan.uplink_a().0,
            lab.plan.tunnel().0,
        )
    })
    .must_show(Views {
        full: dropped,
        server_node: SYN_ACK_LEFT_NODE_B,
        client_node: dropped,
    })
}

#[test]
fn syn_to_a_udp_port_that_no_tunnel_of_the_server_node_has() -> Result<()> {
    let dropped = proven("request_dropped")
        .at("node-b", &["ens0"])
        .cause(&["no_listener"])
        .reason("NO_SOCKET");
    Scenario::broken_by(|lab| {
        Ok(lab.node_a.ip(&format!(
            "route replace {} via {} dev vx1 onlink",
            lab.plan.pods_b(),
            lab.plan.tunnel().1
        ))?)
    })
    .prepared_by(|lab| {
        add_tunnel_without_counterpart(
            &lab.node_a,
            &format!("id {VNI} dstport 8472"),
            lab.plan.uplink_a().0,
            lab.plan.uplink_b().0,
            lab.plan.tunnel().1,
        )
    })
    .must_show(Views {
        full: dropped,
        server_node: dropped,
        client_node: SYN_LEFT_NODE_A,
    })
}

/// `vx1`, which the other node has no counterpart of.
fn add_tunnel_without_counterpart(
    node: &Netns,
    tunnel: &str,
    local: IpAddr,
    remote: IpAddr,
    gateway: IpAddr,
) -> Result<()> {
    Ok(node.ip(&format!(
        "link add vx1 mtu 1450 type vxlan {tunnel} local {local} remote {remote} nolearning\n\
         link set vx1 up\n\
         neighbour replace {gateway} lladdr 02:00:00:00:00:0c dev vx1 nud permanent"
    ))?)
}

#[test]
fn nobody_listens() -> Result<()> {
    let refused = proven("refused")
        .at("pod-b", &["eth0"])
        .cause(&["no_listener"]);
    Scenario::broken_by(|_| Ok(()))
        .towards(|plan| plan.server(6380))
        .ends(Ends::Failed)
        .must_show(Views {
            full: refused,
            server_node: refused,
            // The RST arrived; who made it, and why, was seen elsewhere.
            client_node: proven("refused"),
        })
}

#[test]
fn syn_rejected_with_a_reset_by_the_server_node() -> Result<()> {
    let refused = proven("refused").at("node-b", &[]).cause(&["rejected"]);
    Scenario::broken_by(|lab| {
        faults::netfilter(
            &lab.node_b,
            "forward",
            &format!("{SYN} reject with tcp reset"),
        )
    })
    .ends(Ends::Failed)
    .must_show(Views {
        full: refused,
        server_node: refused,
        client_node: proven("refused"),
    })
}

#[test]
fn syn_rejected_with_an_icmp_error_by_the_server_node() -> Result<()> {
    let refused = proven("refused").at("node-b", &[]).cause(&["rejected"]);
    Scenario::broken_by(|lab| {
        faults::netfilter(
            &lab.node_b,
            "forward",
            &format!("{SYN} reject with icmp type admin-prohibited"),
        )
    })
    .ends(Ends::Failed)
    .must_show(Views {
        full: refused,
        server_node: refused,
        client_node: proven("refused"),
    })
}

#[test]
fn syn_dropped_by_a_policy_of_the_server_node() -> Result<()> {
    let dropped = by_netfilter("request_dropped").at("node-b", &["vx0"]);
    Scenario::broken_by(|lab| {
        faults::netfilter(&lab.node_b, "forward", "oifname lxcb tcp dport 6379 drop")
    })
    .must_show(Views {
        full: dropped,
        server_node: dropped,
        client_node: SYN_LEFT_NODE_A,
    })
}

#[test]
fn syn_dropped_by_the_client_nodes_forward_chain() -> Result<()> {
    let dropped = by_netfilter("request_dropped").at("node-a", &["lxca"]);
    Scenario::broken_by(|lab| faults::netfilter(&lab.node_a, "forward", &format!("{SYN} drop")))
        .must_show(Views {
            full: dropped,
            server_node: unseen(),
            client_node: dropped,
        })
}

#[test]
fn syn_dropped_in_the_client_pods_output() -> Result<()> {
    let dropped = by_netfilter("request_dropped")
        .at("pod-a", &["null", "eth0"])
        .stage("local_out");
    Scenario::broken_by(|lab| faults::netfilter(&lab.pod_a, "output", &format!("{SYN} drop")))
        .must_show(Views {
            full: dropped,
            server_node: unseen(),
            client_node: dropped,
        })
}

#[test]
fn syn_dropped_in_the_server_pods_input() -> Result<()> {
    let dropped = by_netfilter("request_dropped").at("pod-b", &["eth0"]);
    Scenario::broken_by(|lab| faults::netfilter(&lab.pod_b, "input", &format!("{SYN} drop")))
        .must_show(Views {
            full: dropped,
            server_node: dropped,
            client_node: SYN_LEFT_NODE_A,
        })
}

#[test]
fn syn_for_a_neighbour_that_never_resolves() -> Result<()> {
    let dropped = proven("request_dropped")
        .at("node-b", &["lxcb"])
        .cause(&["neighbour_unresolved"])
        .reason("NEIGH_FAILED");
    Scenario::broken_by(|_| Ok(()))
        .towards(|plan| plan.nobody(6379))
        // node-b answers with an ICMP host unreachable once it has given up.
        .ends(Ends::Failed)
        .must_show(Views {
            full: dropped,
            server_node: dropped,
            client_node: proven("refused"),
        })
}

#[test]
fn synack_for_a_neighbour_that_never_resolves() -> Result<()> {
    let dropped = proven("reply_dropped")
        .at("pod-b", &["eth0"])
        .cause(&["neighbour_unresolved"])
        .reason("NEIGH_FAILED");
    Scenario::broken_by(|lab| {
        Ok(lab.pod_b.ip(&format!(
            "route replace default via {}",
            lab.plan.nobody(0).ip()
        ))?)
    })
    .must_show(Views {
        full: dropped,
        server_node: dropped,
        client_node: SYN_LEFT_NODE_A,
    })
}

#[test]
fn syn_for_the_wrong_inner_mac() -> Result<()> {
    let dropped = proven("request_dropped")
        .at("node-b", &["vx0"])
        .cause(&["wrong_mac"])
        .reason("OTHERHOST");
    Scenario::broken_by(|lab| {
        Ok(lab.node_a.ip(&format!(
            "neighbour replace {} lladdr 02:de:ad:be:ef:02 dev vx0 nud permanent",
            lab.plan.tunnel().1
        ))?)
    })
    .must_show(Views {
        full: dropped,
        server_node: dropped,
        client_node: SYN_LEFT_NODE_A,
    })
}

#[test]
fn synack_for_the_wrong_inner_mac() -> Result<()> {
    let dropped = proven("reply_dropped")
        .at("node-a", &["vx0"])
        .cause(&["wrong_mac"])
        .reason("OTHERHOST");
    Scenario::broken_by(|lab| {
        Ok(lab.node_b.ip(&format!(
            "neighbour replace {} lladdr 02:de:ad:be:ef:02 dev vx0 nud permanent",
            lab.plan.tunnel().0
        ))?)
    })
    .must_show(Views {
        full: dropped,
        server_node: SYN_ACK_LEFT_NODE_B,
        client_node: dropped,
    })
}

#[test]
fn synack_meets_a_blackhole_route_on_the_server_node() -> Result<()> {
    let dropped = proven("reply_dropped")
        .at("node-b", &["lxcb"])
        .cause(&["blackhole_route", "no_route"]);
    Scenario::broken_by(|lab| {
        Ok(lab
            .node_b
            .ip(&format!("route replace blackhole {}", lab.plan.pods_a()))?)
    })
    .must_show(Views {
        full: dropped,
        server_node: dropped,
        client_node: SYN_LEFT_NODE_A,
    })
}

#[test]
fn server_pod_has_no_route_back_for_a_synack() -> Result<()> {
    // No SYN-ACK is ever made, and no drop tells of it: only IpOutNoRoutes moves.
    let not_answered = inferred("request_not_answered")
        .at("pod-b", &["eth0", "null"])
        .cause(&["no_route"]);
    Scenario::broken_by(|lab| Ok(lab.pod_b.ip("route del default")?)).must_show(Views {
        full: not_answered,
        server_node: not_answered,
        client_node: SYN_LEFT_NODE_A,
    })
}

#[test]
fn ack_dropped_by_the_server_nodes_forward_chain() -> Result<()> {
    let dropped = by_netfilter("ack_dropped").at("node-b", &["vx0"]);
    Scenario::broken_by(|lab| {
        faults::netfilter(&lab.node_b, "forward", &format!("oifname lxcb {ACK} drop"))
    })
    .ends(Ends::Connected)
    .must_show(Views {
        full: dropped,
        server_node: dropped,
        // The reply was delivered there; that the ACK died later is not seen from the client's node.
        client_node: answered(),
    })
}
