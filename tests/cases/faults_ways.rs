//! A reply that leaves through another device than its request came in on, and nothing dies there: which rule, mark and
//! route sent it that way. Every lab works first, and a replay says the same.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tracer::lab::{Family, Netns, Server, Topology, connect};
use tracer_tests::{Run, Tracer, both, exchange, with_lab};

const PATIENCE: Duration = Duration::from_millis(3400);
const SETTLE: Duration = Duration::from_millis(700);

/// What the server's node must be told.
struct Said {
    cause: &'static str,
    /// The end of the summary.
    phrase: String,
    detail: String,
    /// The summaries of the routes that are evidence, with the mark for which each was asked.
    routes: Vec<(u64, String)>,
    /// What the next commands hold.
    next: Vec<String>,
    /// Where the reply leaves.
    at: (&'static str, &'static str),
}

/// Prepares a lab that works, breaks the way of the reply, and holds the report of the server's node against what must be
/// said. In the full view the reply must die on the router, with its way before that.
fn goes_astray(
    family: Family,
    prepare: fn(&Topology) -> Result<()>,
    fault: fn(&Topology) -> Result<()>,
    said: fn(&Topology) -> Said,
) -> Result<()> {
    with_lab(family, |lab| {
        prepare(lab)?;
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("capture.jsonl");
        let capture = path.to_str().context("a path that is text")?;
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let start = |more: &[&str]| {
            let always = ["trace", "--format", "json", "--for", "60s"];
            Tracer::start(&[&always[..], more].concat())
        };
        let mut full = start(&[&lab.plan.filter()])?;
        let mut node = start(&["--netns", "node-b", "--pods", "--capture", capture])?;
        full.wait_until_ready()?;
        node.wait_until_ready()?;
        let healthy = exchange(lab)?;
        fault(lab)?;
        let attempt = connect(&lab.pod_a, 0, lab.plan.server(6379))?;
        let broken = attempt.local;
        drop(attempt.wait(PATIENCE));
        thread::sleep(SETTLE);
        let (full, node) = (full.interrupt()?, node.interrupt()?);
        let replayed = Run::of(&["report", capture, "--format", "json"])?;
        ensure!(replayed.stdout == node.stdout, "a replay says otherwise");

        let said = said(lab);
        let (full, node) = (full.report()?, node.report()?);
        for report in [&full, &node] {
            let verdict = &flow(report, healthy.port())?["verdict"];
            ensure!(verdict["code"] == "answered", "{verdict:#}");
            ensure!(verdict["cause"].is_null(), "it is healthy: {verdict:#}");
        }
        let verdict = &flow(&node, broken.port())?["verdict"];
        said.check(verdict)
            .with_context(|| format!("{verdict:#}\nledger: {}", node["ledger"]))?;
        let verdict = &flow(&full, broken.port())?["verdict"];
        let before = format!("before that in netns {}, {}", said.at.0, said.detail);
        let detail = verdict["cause"]["detail"].as_str().unwrap_or_default();
        let next = verdict["next"].as_str().unwrap_or_default();
        ensure!(
            verdict["code"] == "reply_dropped"
                && verdict["confidence"] == "proven"
                && verdict["at"]["netns_name"] == "underlay"
                && detail.ends_with(&before)
                && said.next.iter().all(|command| next.contains(command)),
            "want {before:?} and {:?} in {verdict:#}",
            said.next
        );
        Ok(())
    })
}

fn flow(report: &Value, port: u16) -> Result<&Value> {
    let flows = report["flows"].as_array().context("flows")?;
    flows
        .iter()
        .find(|flow| flow["client"]["port"] == port)
        .with_context(|| format!("no flow from port {port}: {report:#}"))
}

impl Said {
    fn check(&self, verdict: &Value) -> Result<()> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        ensure!(verdict["code"] == "reply_left_node" && verdict["confidence"] == "inferred");
        ensure!(verdict["at"]["netns_name"] == self.at.0 && verdict["at"]["device"] == self.at.1);
        let cause = &verdict["cause"];
        ensure!(cause["code"] == self.cause, "want {}", self.cause);
        let summary = text(&verdict["summary"]);
        ensure!(summary.ends_with(&self.phrase), "want {:?}", self.phrase);
        ensure!(
            cause["detail"] == *self.detail,
            "want the detail {:?}",
            self.detail
        );
        let evidence = cause["evidence"].as_array().context("evidence")?;
        let routes: Vec<(u64, String)> = evidence
            .iter()
            .filter(|piece| piece["kind"] == "route")
            .map(|piece| {
                (
                    piece["mark"].as_u64().unwrap_or_default(),
                    text(&piece["summary"]),
                )
            })
            .collect();
        ensure!(routes == self.routes, "want the routes {:?}", self.routes);
        let next = text(&verdict["next"]);
        for command in &self.next {
            ensure!(next.contains(command), "want {command:?} in next");
        }
        Ok(())
    }
}

/// The mesh's addresses of node-a and node-b, and the network that they are in.
fn mesh(family: Family) -> [&'static str; 3] {
    match family {
        Family::V4 => ["100.64.0.1", "100.64.0.2", "100.64.0.0/10"],
        Family::V6 => ["fd64::1", "fd64::2", "fd64::/64"],
    }
}

/// The version that `ip` is told, for words that do not tell it.
fn version(family: Family) -> &'static str {
    match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    }
}

fn rule(netns: &Netns, family: Family, words: &str) -> Result<()> {
    let arguments: Vec<&str> = [version(family), "rule"]
        .into_iter()
        .chain(words.split(' '))
        .collect();
    netns.command("ip", &arguments)?;
    Ok(())
}

/// A mesh: a wire of its own between the nodes, which has its own routing table, asked after what belongs to the mesh
/// itself (by a mark) has been sent by the underlay; and an overlay, whose tunnel goes through the mesh.
fn overlay_on_a_mesh(lab: &Topology) -> Result<()> {
    let family = lab.plan.family();
    let [mesh_a, mesh_b, net] = mesh(family);
    lab.node_a
        .ip("link add ts0 index 41 type veth peer name ts0 netns node-b")?;
    let len = if family == Family::V4 { 32 } else { 128 };
    for (node, own, other, pods, hop) in [
        (&lab.node_a, mesh_a, mesh_b, lab.plan.pods_b(), 2),
        (&lab.node_b, mesh_b, mesh_a, lab.plan.pods_a(), 1),
    ] {
        let hop = format!("02:00:00:00:52:0{hop}");
        let own_hop = if own == mesh_a { 1 } else { 2 };
        node.ip(&format!(
            "address add {own}/{len} dev ts0 nodad\n\
             link set ts0 up\n\
             route add {net} dev ts0 table 52\n\
             link add vx1 mtu 1400 address 02:00:00:00:52:0{own_hop} type vxlan id 77 dstport 4789 remote {other} nolearning\n\
             link set vx1 up"
        ))?;
        let beyond = if family == Family::V4 {
            "169.254.52.1"
        } else {
            "fe80::52"
        };
        node.ip(&format!(
            "neighbour replace {beyond} lladdr {hop} dev vx1 nud permanent\n\
             route replace {pods} via {beyond} dev vx1 onlink"
        ))?;
        rule(
            node,
            family,
            "add pref 5210 fwmark 0x80000/0xff0000 lookup main",
        )?;
        rule(node, family, "add pref 5270 lookup 52")?;
    }
    lab.node_a.wait_for_links()?;
    Ok(lab.node_b.wait_for_links()?)
}

/// The overlay marks the SYN-ACK of its pods with an identity, in bits that the mesh takes for its own.
fn mark_identities(lab: &Topology) -> Result<()> {
    let ip = lab.plan.nft_family();
    Ok(lab.node_b.nft(&format!(
        "add table {ip} m\n\
         add chain {ip} m f {{ type filter hook forward priority -150; }}\n\
         add rule {ip} m f tcp flags & (syn|ack) == syn|ack meta mark set 0x80000\n\
         add chain {ip} m o {{ type route hook output priority -150; }}\n\
         add rule {ip} m o udp dport 4789 meta mark 0x80000 meta mark set 0x80001\n"
    ))?)
}

fn show_rules(netns: &str, family: Family) -> String {
    let ip = match family {
        Family::V4 => "ip",
        Family::V6 => "ip -6",
    };
    format!("`ip netns exec {netns} {ip} rule`")
}

#[test]
fn a_mark_that_two_claim_sends_the_outer_datagram_past_the_mesh() -> Result<()> {
    both(|family| {
        goes_astray(family, overlay_on_a_mesh, mark_identities, |lab| {
            let family = lab.plan.family();
            let [mesh_a, _, net] = mesh(family);
            let gateway = lab.plan.uplink_b().1;
            let selector = "from all fwmark 0x80000/0xff0000";
            let taken =
                format!("default via {gateway} dev ens0 in table main, by rule 5210 ({selector})");
            let unmarked = format!("{net} dev ts0 in table 52, by rule 5270 (from all)");
            Said {
                cause: "mark_conflict",
                phrase: format!(
                    "perhaps because its mark 0x80001 met rule 5210 ({selector}): without the mark it would have left on ts0, where its request had come in"
                ),
                detail: format!(
                    "the SYN came in on ts0, the SYN-ACK went out on ens0 (as a tunnel's packet to {mesh_a}) by the route {taken}; without the mark it would take {unmarked}"
                ),
                routes: vec![(0x8_0001, taken), (0, unmarked)],
                // The source is chosen by the route that was first asked for.
                next: vec![
                    format!("`ip netns exec node-b ip route get {mesh_a} from "),
                    " mark 0x80001`, and the same without the mark; ".to_owned(),
                    show_rules("node-b", family),
                ],
                at: ("node-b", "ens0"),
            }
        })
    })
}

#[test]
fn a_rule_that_was_deleted_leaves_the_mesh_without_its_table() -> Result<()> {
    both(|family| {
        goes_astray(
            family,
            overlay_on_a_mesh,
            |lab| rule(&lab.node_b, lab.plan.family(), "del pref 5270"),
            |lab| {
                let family = lab.plan.family();
                let [mesh_a, _, net] = mesh(family);
                let taken = format!(
                    "default via {} dev ens0 in table main",
                    lab.plan.uplink_b().1
                );
                let unreached = format!("{net} dev ts0 in table 52, to which no rule leads it");
                Said {
                    cause: "asymmetric_egress",
                    phrase: "perhaps because the SYN had come in on ts0, and no routing rule leads the SYN-ACK to table 52, which has a route through ts0".to_owned(),
                    detail: format!(
                        "the SYN came in on ts0, the SYN-ACK went out on ens0 (as a tunnel's packet to {mesh_a}) by the route {taken}; {unreached}"
                    ),
                    routes: vec![(0, taken), (0, unreached)],
                    next: vec![
                        format!(
                            "`ip netns exec node-b ip route get {mesh_a} from {}`",
                            lab.plan.uplink_b().0
                        ),
                        show_rules("node-b", family),
                    ],
                    at: ("node-b", "ens0"),
                }
            },
        )
    })
}

/// pod-b's second NIC, a wire to the router.
fn second_nic(lab: &Topology) -> Result<()> {
    let (router, pod) = second_wire(lab.plan.family());
    lab.underlay.ip(&format!(
        "link add toc index 42 type veth peer name eth1 netns pod-b\n\
         address add {router} dev toc nodad\n\
         link set toc up"
    ))?;
    lab.pod_b.ip(&format!(
        "address add {pod} dev eth1 nodad\nlink set eth1 up"
    ))?;
    Ok(lab.pod_b.wait_for_links()?)
}

fn second_wire(family: Family) -> (&'static str, &'static str) {
    match family {
        Family::V4 => ("192.168.77.1/30", "192.168.77.2/30"),
        Family::V6 => ("fd77::1/64", "fd77::2/64"),
    }
}

fn router_address(family: Family) -> &'static str {
    second_wire(family).0.split('/').next().unwrap_or_default()
}

#[test]
fn a_narrower_route_sends_the_answer_out_by_the_second_nic() -> Result<()> {
    both(|family| {
        goes_astray(
            family,
            second_nic,
            |lab| {
                let gateway = router_address(lab.plan.family());
                Ok(lab.pod_b.ip(&format!(
                    "route add {} via {gateway} dev eth1",
                    lab.plan.pods_a()
                ))?)
            },
            |lab| {
                let family = lab.plan.family();
                let gateway = router_address(family);
                let taken = format!("{} via {gateway} dev eth1 in table main", lab.plan.pods_a());
                Said {
                    cause: "asymmetric_egress",
                    phrase: "perhaps because the SYN had come in on eth0".to_owned(),
                    detail: format!(
                        "the SYN came in on eth0, the SYN-ACK went out on eth1 by the route {taken}"
                    ),
                    routes: vec![(0, taken)],
                    next: vec![
                        format!(
                            "`ip netns exec pod-b ip route get {} from {}`",
                            lab.plan.client_ip(),
                            lab.plan.server(0).ip()
                        ),
                        show_rules("pod-b", family),
                    ],
                    at: ("pod-b", "eth1"),
                }
            },
        )
    })
}
