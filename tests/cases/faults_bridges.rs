//! Pods on a bridge of node-b's: what it floods, refuses, and does not send back where it came from.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tracer::lab::{Family, Netns, Outcome, Server, Topology, connect};
use tracer_tests::{
    Ends, Expected, Observers, Views, answered, both, exchange, proven, unseen, with_lab,
};

const PATIENCE: Duration = Duration::from_millis(3400);
const SETTLE: Duration = Duration::from_millis(600);

/// Puts a bridge, `br0`, in front of pod-b's `lxcb`, and a third pod, pod-c, behind another of its ports, `lxcc`.
fn with_bridge(
    family: Family,
    test: impl Fn(&Topology, &Netns) -> Result<()> + Sync,
) -> Result<()> {
    with_lab(family, |lab| {
        let plan = lab.plan;
        let pod_c = Netns::add("pod-c")?;
        let prefix = match family {
            Family::V4 => 24,
            Family::V6 => 48,
        };
        let (gateway, third) = (plan.gateway_b(), plan.nobody(0).ip());
        lab.node_b.ip(&format!(
            "link add br0 address 02:00:00:00:00:b0 type bridge\n\
             address del {gateway}/{prefix} dev lxcb\n\
             link set lxcb master br0\n\
             link set br0 up\n\
             address add {gateway}/{prefix} dev br0\n\
             link add lxcc index 21 type veth peer name eth0 netns pod-c\n\
             link set lxcc up master br0"
        ))?;
        pod_c.ip(&format!(
            "address add {third}/{prefix} dev eth0 nodad\n\
             link set eth0 up\n\
             route add default via {gateway}"
        ))?;
        lab.node_b.wait_for_links()?;
        test(lab, &pod_c)
    })
}

/// The MAC address of a pod.
fn mac_of(pod: &Netns) -> Result<String> {
    let link = pod.command("ip", &["-brief", "link", "show", "eth0"])?;
    let mac = link.split_whitespace().nth(2).context("no MAC address")?;
    Ok(mac.to_owned())
}

/// Connects to pod-b once the lab is broken; what is not on the bridge sees nothing of it.
fn must_show(
    lab: &Topology,
    from: &Netns,
    to: SocketAddr,
    ends: Ends,
    expected: Expected,
) -> Result<()> {
    let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
    let observers = Observers::start(lab)?;
    let attempt = connect(from, 0, to)?;
    let client = attempt.local;
    let outcome = attempt.wait(PATIENCE);
    ensure!(
        matches!(
            (&outcome, ends),
            (Outcome::Connected(_), Ends::Connected) | (Outcome::TimedOut, Ends::TimedOut)
        ),
        "the lab is wrong: {outcome:?}, not {ends:?}"
    );
    drop(outcome);
    thread::sleep(SETTLE);
    observers
        .stop()?
        .check(&[(client, Views::on_the_servers_node(expected, unseen()))])
}

#[test]
fn a_copy_that_the_bridge_floods_dies_in_another_pod_and_means_nothing() -> Result<()> {
    both(|family| {
        with_bridge(family, |lab, _| {
            // It never learns where pod-b is.
            lab.node_b
                .ip("link set lxcb type bridge_slave learning off")?;
            // What it has learned before, if anything.
            let mac = mac_of(&lab.pod_b)?;
            let forget = ["fdb", "del", &mac, "dev", "lxcb", "master"];
            let _ = lab.node_b.command("bridge", &forget);
            let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
            let observers = Observers::start(lab)?;
            let client = exchange(lab)?;
            let reports = observers.stop()?;
            let flooded = answered().with_losses();
            reports.check(&[(client, Views::on_the_servers_node(flooded, answered()))])?;
            let report = reports.full.report()?;
            let losses = report.pointer("/flows/0/losses").and_then(Value::as_array);
            for loss in losses.into_iter().flatten() {
                ensure!(
                    loss["innocent"] == true && loss["at"]["netns_name"] == "pod-c",
                    "{loss:#}"
                );
            }
            Ok(())
        })
    })
}

#[test]
fn syn_dropped_by_a_rule_of_the_bridge() -> Result<()> {
    let dropped = proven("request_dropped")
        .at("node-b", &["lxcb", "lxcc"])
        .stage("forward")
        .cause(&["netfilter"])
        .says("the bridge's FORWARD");
    both(|family| {
        with_bridge(family, |lab, pod_c| {
            lab.node_b.nft(
                "add table bridge fault\n\
                 add chain bridge fault forward { type filter hook forward priority 0; }\n\
                 add rule bridge fault forward tcp dport 6379 drop\n",
            )?;
            let server = lab.plan.server(6379);
            must_show(lab, pod_c, server, Ends::TimedOut, dropped)
        })
    })
}

#[test]
fn syn_between_two_isolated_ports() -> Result<()> {
    let dropped = proven("request_dropped")
        .at("node-b", &["lxcb", "lxcc"])
        .says("the bridge");
    both(|family| {
        with_bridge(family, |lab, pod_c| {
            // Their neighbours are known: what dies is the SYN and not the question for a MAC address.
            let (server, third) = (lab.plan.server(6379), lab.plan.nobody(0).ip());
            pod_c.ip(&format!(
                "neighbour replace {} lladdr {} dev eth0 nud permanent",
                server.ip(),
                mac_of(&lab.pod_b)?
            ))?;
            lab.pod_b.ip(&format!(
                "neighbour replace {third} lladdr {} dev eth0 nud permanent",
                mac_of(pod_c)?
            ))?;
            for port in ["lxcb", "lxcc"] {
                lab.node_b
                    .command("bridge", &["link", "set", "dev", port, "isolated", "on"])?;
            }
            must_show(lab, pod_c, server, Ends::TimedOut, dropped)
        })
    })
}

/// Has node-b translate a service to pod-b while its packets still pass the bridge, so that what pod-b asks itself
/// must go back where it came from.
fn translate_on_the_bridge(lab: &Topology) -> Result<()> {
    let (plan, ip) = (lab.plan, lab.plan.nft_family());
    let (service, server) = (plan.service(443), plan.server(6379));
    lab.node_b.sysctl(
        match plan.family() {
            Family::V4 => "net/bridge/bridge-nf-call-iptables",
            Family::V6 => "net/bridge/bridge-nf-call-ip6tables",
        },
        "1",
    )?;
    lab.node_b.nft(&format!(
        "add table {ip} nat\n\
         add chain {ip} nat prerouting {{ type nat hook prerouting priority -100; }}\n\
         add chain {ip} nat postrouting {{ type nat hook postrouting priority 100; }}\n\
         add rule {ip} nat prerouting {ip} daddr {} tcp dport 443 dnat to {server}\n\
         add rule {ip} nat postrouting {ip} saddr {} {ip} daddr {} masquerade\n",
        service.ip(),
        server.ip(),
        server.ip()
    ))?;
    Ok(())
}

#[test]
fn a_pod_reaches_itself_through_a_service_and_a_bridge_with_hairpin() -> Result<()> {
    both(|family| {
        with_bridge(family, |lab, _| {
            translate_on_the_bridge(lab)?;
            lab.node_b
                .command("bridge", &["link", "set", "dev", "lxcb", "hairpin", "on"])?;
            must_show(
                lab,
                &lab.pod_b,
                lab.plan.service(443),
                Ends::Connected,
                answered(),
            )
        })
    })
}

#[test]
fn a_pod_does_not_reach_itself_through_a_service_and_a_bridge_without_hairpin() -> Result<()> {
    let dropped = proven("request_dropped")
        .at("node-b", &["lxcb"])
        .says("the bridge");
    both(|family| {
        with_bridge(family, |lab, _| {
            translate_on_the_bridge(lab)?;
            must_show(
                lab,
                &lab.pod_b,
                lab.plan.service(443),
                Ends::TimedOut,
                dropped,
            )
        })
    })
}
