//! The incidents that tracer was made for, one fault each on the way of a handshake, and what each of the three views must
//! say of it; the `faults_*` have the many others.
//!
//! The name of a test is the cause. The client node and the server node see no further than their own devices: what
//! happens beyond is *inferred* from what does not come back.

use anyhow::Result;
use tracer_tests::{
    Ends, SYN_ACK_LEFT_NODE_B, SYN_LEFT_NODE_A, Scenario, Views, both, by_netfilter, inferred,
    proven,
};

#[test]
fn synack_dropped_by_the_underlays_router() -> Result<()> {
    let views = Views {
        full: by_netfilter("reply_dropped").at("underlay", &["tob"]),
        server_node: SYN_ACK_LEFT_NODE_B,
        client_node: SYN_LEFT_NODE_A,
    };
    both(|family| {
        Scenario::broken_by(|lab| Ok(lab.underlay.nft(&lab.plan.drop_synack_in_tunnel())?))
            .over(family)
            .must_show(views)
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
fn nobody_listens() -> Result<()> {
    let refused = proven("refused")
        .at("pod-b", &["eth0"])
        .cause(&["no_listener"]);
    // The RST arrived at the client's node; who made it, and why, was seen elsewhere.
    let views = Views::on_the_servers_node(refused, proven("refused").at("node-a", &["ens0"]));
    both(|family| {
        Scenario::broken_by(|_| Ok(()))
            .over(family)
            .towards(|plan| plan.server(6380))
            .ends(Ends::Failed)
            .must_show(views)
    })
}

#[test]
fn server_pod_has_no_route_back_for_a_synack() -> Result<()> {
    // No SYN-ACK is ever made, and no drop tells of it: only IpOutNoRoutes moves.
    let not_answered = inferred("request_not_answered")
        .at("pod-b", &["eth0", "null"])
        .cause(&["no_route"]);
    both(|family| {
        Scenario::broken_by(|lab| {
            let gateway = lab.plan.gateway_b();
            Ok(lab.pod_b.ip(&format!("route del default via {gateway}"))?)
        })
        .over(family)
        .must_show(Views::on_the_servers_node(not_answered, SYN_LEFT_NODE_A))
    })
}
