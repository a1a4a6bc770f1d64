//! Ways that are no ways, or another on the way back: forwarding, link-layer addresses, routing by rule, a service that
//! leads back to its client.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tracer::lab::{Family, Netns, Outcome, Server, Topology, connect};
use tracer_tests::faults::{self, SYN};
use tracer_tests::{
    Ends, Expected, Fault, Observers, SYN_ACK_LEFT_NODE_B, SYN_LEFT_NODE_A, Scenario, Tracer,
    Views, answered, both, by_netfilter, differences, inconclusive, inferred, proven, side_by_side,
    unseen, with_lab,
};

const PATIENCE: Duration = Duration::from_millis(3400);
const SETTLE: Duration = Duration::from_millis(600);

/// Switches forwarding off, for what comes in by one device where that can be told (IPv4).
fn do_not_forward(node: &Netns, family: Family, device: &str) -> Result<()> {
    let path = match family {
        Family::V4 => format!("net/ipv4/conf/{device}/forwarding"),
        Family::V6 => "net/ipv6/conf/all/forwarding".to_owned(),
    };
    Ok(node.sysctl(&path, "0")?)
}

#[test]
fn node_b_does_not_forward_the_syn() -> Result<()> {
    let dropped = proven("request_dropped")
        .at("node-b", &["vx0"])
        .cause(&["forwarding_off"]);
    both(|family| {
        Scenario::broken_by(|lab| do_not_forward(&lab.node_b, lab.plan.family(), "vx0"))
            .over(family)
            .must_show(Views::on_the_servers_node(dropped, SYN_LEFT_NODE_A))
    })
}

#[test]
fn node_b_does_not_forward_the_synack() -> Result<()> {
    // IPv6 forwards from every device or from none.
    Scenario::broken_by(|lab| do_not_forward(&lab.node_b, Family::V4, "lxcb")).must_show(
        Views::on_the_servers_node(
            proven("reply_dropped")
                .at("node-b", &["lxcb"])
                .cause(&["forwarding_off"]),
            SYN_LEFT_NODE_A,
        ),
    )
}

const OTHER_MAC: &str = "02:de:ad:be:ef:02";

#[test]
fn node_a_sends_to_a_mac_address_that_is_not_the_routers() -> Result<()> {
    let views = Views {
        full: proven("request_dropped")
            .at("underlay", &["toa"])
            .cause(&["wrong_mac"])
            .reason("OTHERHOST"),
        server_node: unseen(),
        client_node: SYN_LEFT_NODE_A,
    };
    both(|family| {
        Scenario::broken_by(|lab| {
            let gateway = lab.plan.uplink_a().1;
            Ok(lab.node_a.ip(&format!(
                "neighbour replace {gateway} lladdr {OTHER_MAC} dev ens0 nud permanent"
            ))?)
        })
        .over(family)
        .must_show(views)
    })
}

#[test]
fn node_b_sends_to_a_mac_address_that_is_not_the_routers() -> Result<()> {
    let views = Views {
        full: proven("reply_dropped")
            .at("underlay", &["tob"])
            .cause(&["wrong_mac"])
            .reason("OTHERHOST"),
        server_node: SYN_ACK_LEFT_NODE_B,
        client_node: SYN_LEFT_NODE_A,
    };
    both(|family| {
        Scenario::broken_by(|lab| {
            let gateway = lab.plan.uplink_b().1;
            Ok(lab.node_b.ip(&format!(
                "neighbour replace {gateway} lladdr {OTHER_MAC} dev ens0 nud permanent"
            ))?)
        })
        .over(family)
        .must_show(views)
    })
}

#[test]
fn synack_for_a_neighbour_that_never_resolves_over_ipv6() -> Result<()> {
    // IPv6 has another gateway to try only where there is one.
    let dropped = proven("reply_dropped")
        .at("pod-b", &["eth0"])
        .cause(&["neighbour_unresolved"]);
    Scenario::broken_by(|lab| {
        Ok(lab.pod_b.ip(&format!(
            "route replace default via {}",
            lab.plan.nobody(0).ip()
        ))?)
    })
    .over(Family::V6)
    .must_show(Views::on_the_servers_node(dropped, SYN_LEFT_NODE_A))
}

/// Another wire from node-b to the router, to which a rule of node-b's sends what pod-b answers.
fn answer_by_another_wire(family: Family) -> Vec<Fault> {
    let (router, node) = match family {
        Family::V4 => ("192.168.77.1/30", "192.168.77.2/30"),
        Family::V6 => ("fd77::1/64", "fd77::2/64"),
    };
    let gateway = router.split('/').next().unwrap_or(router);
    let by_rule = move |lab: &Topology, rule: &str| -> Result<()> {
        lab.underlay.ip(&format!(
            "link add toc index 13 type veth peer name ens1 netns node-b\n\
             address add {router} dev toc\n\
             link set toc up"
        ))?;
        lab.node_b.ip(&format!(
            "address add {node} dev ens1\n\
             link set ens1 up\n\
             route add default via {gateway} dev ens1 table 9"
        ))?;
        let version = if family == Family::V4 { "-4" } else { "-6" };
        let mut command = vec![version, "rule", "add"];
        command.extend(rule.split(' '));
        command.extend(["lookup", "9", "pref", "100"]);
        lab.node_b.command("ip", &command)?;
        Ok(lab.node_b.wait_for_links()?)
    };
    // The router has no route to the pods.
    let views = Views {
        full: proven("reply_dropped")
            .at("underlay", &["toc"])
            .cause(&["no_route"]),
        server_node: inferred("reply_left_node")
            .at("node-b", &["ens1"])
            .cause(&["asymmetric_egress"])
            .says("had come in on vx0"),
        client_node: SYN_LEFT_NODE_A,
    };
    vec![Fault::new(
        "SYN-ACK: a rule sends it out by another device than the SYN came in on",
        views,
        move |lab, pair| {
            by_rule(
                lab,
                &format!("from {} to {}", pair.server.ip(), pair.client),
            )
        },
    )]
}

#[test]
fn a_rule_sends_the_answer_another_way() -> Result<()> {
    both(|family| side_by_side(family, answer_by_another_wire(family)))
}

/// Has node-b translate a service to pod-b.
fn asks_itself(lab: &Topology, masquerade: bool) -> Result<()> {
    let plan = lab.plan;
    let ip = plan.nft_family();
    let (service, server) = (plan.service(443), plan.server(6379));
    lab.node_b.nft(&format!(
        "add table {ip} nat\n\
         add chain {ip} nat prerouting {{ type nat hook prerouting priority -100; }}\n\
         add rule {ip} nat prerouting {ip} daddr {} tcp dport 443 dnat to {server}\n",
        service.ip()
    ))?;
    if masquerade {
        lab.node_b.nft(&format!(
            "add chain {ip} nat postrouting {{ type nat hook postrouting priority 100; }}\n\
             add rule {ip} nat postrouting {ip} saddr {} oifname lxcb masquerade\n",
            server.ip()
        ))?;
    }
    Ok(())
}

fn reaches_itself_through_a_service(
    family: Family,
    masquerade: bool,
    ends: Ends,
    expected: Expected,
) -> Result<()> {
    with_lab(family, |lab| {
        asks_itself(lab, masquerade)?;
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let observers = Observers::start(lab)?;
        let attempt = connect(&lab.pod_b, 0, lab.plan.service(443))?;
        let client = attempt.local;
        let outcome = attempt.wait(PATIENCE);
        match (&outcome, ends) {
            (Outcome::Connected(_), Ends::Connected) | (Outcome::TimedOut, Ends::TimedOut) => {}
            (other, _) => bail!("the lab is wrong: {other:?}, not {ends:?}"),
        }
        drop(outcome);
        thread::sleep(SETTLE);
        observers
            .stop()?
            .check(&[(client, Views::on_the_servers_node(expected, unseen()))])
    })
}

#[test]
fn a_pod_reaches_itself_through_a_service_that_masquerades() -> Result<()> {
    both(|family| reaches_itself_through_a_service(family, true, Ends::Connected, answered()))
}

#[test]
fn a_pod_does_not_reach_itself_through_a_service_without_masquerade() -> Result<()> {
    // The pod gets its own SYN from outside, with its own address as the source.
    let dropped = proven("request_dropped")
        .at("pod-b", &["eth0"])
        .cause(&["source_invalid"])
        .reason("IP_LOCAL_SOURCE");
    reaches_itself_through_a_service(Family::V4, false, Ends::TimedOut, dropped)
}

#[test]
fn a_pod_does_not_reach_itself_through_a_service_without_masquerade_over_ipv6() -> Result<()> {
    // IPv6 takes the SYN, and answers it at home, where nobody translates the answer back.
    let dropped = proven("reply_dropped")
        .at("pod-b", &["lo"])
        .reason("NO_SOCKET");
    reaches_itself_through_a_service(Family::V6, false, Ends::TimedOut, dropped)
}

/// A rule of the router that drops every ACK inside the VXLAN, with or without data or a FIN.
fn drop_acks_in_tunnel(lab: &Topology) -> Result<()> {
    const SYN_RST_ACK: u8 = 0x16;
    const ACK: u8 = 0x10;
    // From the outer UDP header: UDP 8, VXLAN 8, Ethernet 14, IP, then byte 13 of TCP are the flags.
    let inner_ip = match lab.plan.family() {
        Family::V4 => 20,
        Family::V6 => 40,
    };
    let at_bit = (8 + 8 + 14 + inner_ip + 13) * 8;
    faults::netfilter(
        &lab.underlay,
        "forward",
        &format!("udp dport 4789 @th,{at_bit},8 & {SYN_RST_ACK:#x} == {ACK:#x} drop"),
    )
}

#[test]
fn ack_dropped_by_the_underlays_router() -> Result<()> {
    let views = Views {
        full: by_netfilter("ack_dropped").at("underlay", &["toa"]),
        server_node: SYN_ACK_LEFT_NODE_B,
        client_node: answered(),
    };
    both(|family| {
        Scenario::broken_by(drop_acks_in_tunnel)
            .over(family)
            .ends(Ends::Connected)
            .must_show(views)
    })
}

/// pod-c's wire ends at node-b's `lxcm`, on which pod-d's macvlan lies: what pod-c sends to pod-d arrives there and is
/// taken by a device of another namespace, without an event.
fn behind_a_macvlan(family: Family) -> Result<()> {
    with_lab(family, |lab| {
        let (pod_c, pod_d) = (Netns::add("pod-c")?, Netns::add("pod-d")?);
        let (client, server, prefix) = match family {
            Family::V4 => ("192.0.2.1", "192.0.2.2", 24),
            Family::V6 => ("2001:db8::1", "2001:db8::2", 64),
        };
        lab.node_b.ip(
            "link add lxcm index 31 type veth peer name far netns pod-c\n\
             link set lxcm up\n\
             link add link lxcm name mv0 netns pod-d type macvlan mode bridge",
        )?;
        for (pod, device, addr) in [(&pod_c, "far", client), (&pod_d, "mv0", server)] {
            pod.ip(&format!("link set {device} up"))?;
            let address = format!("{addr}/{prefix}");
            pod.command("ip", &["address", "add", &address, "dev", device, "nodad"])?;
        }
        let server = SocketAddr::new(server.parse()?, 6379);
        let _server = Server::start(&pod_d, server)?;
        let start = |arguments: &[&str]| {
            let always = ["trace", "--format", "json", "--for", "60s"];
            Tracer::start(&[&always[..], arguments].concat())
        };
        // One sees only where the wire ends, the other the pods alone.
        let mut node = start(&["--netns", "node-b", "--netns", "pod-c"])?;
        let mut pods = start(&["--netns", "pod-c", "--netns", "pod-d"])?;
        node.wait_until_ready()?;
        pods.wait_until_ready()?;
        let healthy = connect(&pod_c, 0, server)?;
        let first = healthy.local;
        let outcome = healthy.wait(PATIENCE);
        ensure!(matches!(outcome, Outcome::Connected(_)), "{outcome:?}");
        faults::netfilter(&pod_d, "input", &format!("{SYN} drop"))?;
        let broken = connect(&pod_c, 0, server)?;
        let second = broken.local;
        let outcome = broken.wait(PATIENCE);
        ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
        thread::sleep(SETTLE);
        let dropped = by_netfilter("request_dropped").at("pod-d", &["mv0"]);
        let views = [
            (node, answered(), inconclusive()),
            (pods, answered(), dropped),
        ];
        for (tracer, healthy, broken) in views {
            let run = tracer.interrupt()?;
            let wrong = differences(&run, &[(first, healthy), (second, broken)])?;
            ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        }
        Ok(())
    })
}

#[test]
fn silence_behind_a_pods_macvlan_proves_nothing() -> Result<()> {
    both(behind_a_macvlan)
}
