//! What explains a drop: the kernel is asked about it while the trace runs, and the report says what it answered. Every
//! lab works first, a replay says the same, and nothing is asked of a namespace that is not in view.

use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tracer::lab::{Family, Netns, Plan, Server, Topology, VNI, connect};
use tracer::record::{Fact, View};
use tracer::topology::{self, Statistics};
use tracer_tests::{Run, Tracer, exchange, with_lab};

const PATIENCE: Duration = Duration::from_millis(4500);
const SETTLE: Duration = Duration::from_millis(700);

/// What a report must say of the packet that died.
struct Said {
    code: &'static str,
    /// To follow the place in the summary.
    phrase: String,
    /// One of these.
    detail: Vec<String>,
    /// The kinds of the evidence besides the drop itself, and for each what its text holds.
    evidence: Vec<(&'static str, String)>,
}

/// Breaks a lab that works, meets the fault from the client's pod, and holds the verdict against what must be said.
fn explains(
    family: Family,
    fault: impl Fn(&Topology) -> Result<()> + Sync,
    target: impl Fn(Plan) -> SocketAddr + Sync,
    said: impl Fn(&Topology) -> Result<Said> + Sync,
) -> Result<()> {
    with_lab(family, |lab| {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("capture.jsonl");
        let capture = path.to_str().context("a path that is text")?;
        let elsewhere = directory.path().join("elsewhere.jsonl");
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let start = |more: &[&str]| {
            let mut arguments = vec!["trace", "--format", "json", "--for", "60s", "--capture"];
            arguments.extend(more);
            Tracer::start(&arguments)
        };
        let mut full = start(&[capture, &lab.plan.filter()])?;
        let mut narrow = start(&[
            elsewhere.to_str().context("a path that is text")?,
            "--netns",
            lab.underlay.name(),
        ])?;
        full.wait_until_ready()?;
        narrow.wait_until_ready()?;
        let healthy = exchange(lab)?;
        fault(lab)?;
        let attempt = connect(&lab.pod_a, 0, target(lab.plan))?;
        let broken = attempt.local;
        drop(attempt.wait(PATIENCE));
        thread::sleep(SETTLE);
        let run = full.interrupt()?;
        narrow.interrupt()?;

        let replayed = Run::of(&["report", capture, "--format", "json"])?;
        ensure!(replayed.stdout == run.stdout, "a replay says otherwise");
        let asked = fs::read_to_string(&elsewhere)?;
        ensure!(
            !asked.contains(r#""type":"fact","fact":"#) || !asked.contains("asked_ns"),
            "something was asked of a namespace that is not in view: {asked}"
        );
        let report = run.report()?;
        let well = flow(&report, healthy)?;
        ensure!(well["verdict"]["code"] == "answered", "{well:#}");
        check(flow(&report, broken)?, &said(lab)?)
            .with_context(|| format!("ledger: {}", report["ledger"]))
    })
}

fn flow(report: &Value, client: SocketAddr) -> Result<&Value> {
    let flows = report["flows"].as_array().context("flows")?;
    let of_client = |flow: &&Value| {
        flow["client"]["port"] == client.port() && flow["client"]["addr"] == client.ip().to_string()
    };
    flows
        .iter()
        .find(of_client)
        .with_context(|| format!("no flow from {client}: {report:#}"))
}

fn check(flow: &Value, said: &Said) -> Result<()> {
    let verdict = &flow["verdict"];
    let cause = &verdict["cause"];
    let summary = verdict["summary"].as_str().unwrap_or_default();
    let mut wrong = Vec::new();
    if verdict["confidence"] != "proven" {
        wrong.push("it is not proven".to_owned());
    }
    if cause["code"] != said.code {
        wrong.push(format!("the cause is not {}", said.code));
    }
    if !summary.ends_with(&said.phrase) {
        wrong.push(format!("the summary does not end with {:?}", said.phrase));
    }
    let detail = cause["detail"].as_str().unwrap_or_default();
    if !said.detail.iter().any(|any| any == detail) {
        wrong.push(format!("the detail is not {:?}", said.detail));
    }
    let evidence = cause["evidence"].as_array().context("evidence")?;
    for (kind, text) in &said.evidence {
        let holds = |piece: &&Value| piece["kind"] == *kind && piece.to_string().contains(text);
        match evidence.iter().find(holds) {
            // It was asked after the packet had died, and soon.
            Some(piece) if piece["time"].as_str() < verdict["at"]["time"].as_str() => {
                wrong.push(format!("it was asked too early: {piece}"));
            }
            Some(_) => {}
            None => wrong.push(format!("no evidence of kind {kind} holds {text:?}")),
        }
    }
    if !wrong.is_empty() {
        bail!("{}\n{verdict:#}", wrong.join("\n"));
    }
    Ok(())
}

fn server(plan: Plan) -> SocketAddr {
    plan.server(6379)
}

const BOTH: [Family; 2] = [Family::V4, Family::V6];

/// One `ip` command of a family that its words do not tell.
fn ip(netns: &Netns, family: Family, words: &str) -> Result<()> {
    let version = match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    };
    let arguments: Vec<&str> = [version].into_iter().chain(words.split(' ')).collect();
    netns.command("ip", &arguments)?;
    Ok(())
}

/// A route on node-b that takes the place of the one back to the client's pod.
fn reject(family: Family, kind: &'static str) -> Result<()> {
    explains(
        family,
        |lab| {
            Ok(lab.node_b.ip(&format!(
                "route del {0}\nroute add {kind} {0}",
                lab.plan.pods_a()
            ))?)
        },
        server,
        |lab| {
            let article = if kind == "unreachable" { "an" } else { "a" };
            let found = format!("{kind} {} in table main", lab.plan.pods_a());
            Ok(Said {
                // IPv6 drops alike where a route says unreachable and where there is none.
                code: if kind == "unreachable" && family == Family::V6 {
                    "no_route"
                } else {
                    "blackhole_route"
                },
                phrase: format!("by {article} {kind} route to {}", lab.plan.client_ip()),
                detail: vec![found.clone()],
                evidence: vec![("route", found)],
            })
        },
    )
}

#[test]
fn a_blackhole_route_is_named() -> Result<()> {
    BOTH.into_iter()
        .try_for_each(|family| reject(family, "blackhole"))
}

#[test]
fn an_unreachable_route_is_named() -> Result<()> {
    BOTH.into_iter()
        .try_for_each(|family| reject(family, "unreachable"))
}

#[test]
fn a_prohibit_route_is_named() -> Result<()> {
    BOTH.into_iter()
        .try_for_each(|family| reject(family, "prohibit"))
}

#[test]
fn a_missing_route_is_missed() -> Result<()> {
    BOTH.into_iter().try_for_each(|family| {
        explains(
            family,
            |lab| {
                lab.node_b.ip(&format!("route del {}", lab.plan.pods_a()))?;
                ip(&lab.node_b, family, "route del default")
            },
            server,
            |lab| {
                let found = "no route: every rule was tried".to_owned();
                Ok(Said {
                    code: "no_route",
                    phrase: format!("because there is no route to {}", lab.plan.client_ip()),
                    detail: vec![found.clone()],
                    evidence: vec![("route", found)],
                })
            },
        )
    })
}

#[test]
fn a_rule_that_leads_to_the_route_is_named() -> Result<()> {
    BOTH.into_iter().try_for_each(|family| {
        explains(
            family,
            |lab| {
                let (client, server) = (lab.plan.pods_a(), lab.plan.pods_b());
                lab.node_b
                    .ip(&format!("route add blackhole {client} table 100"))?;
                let rule = format!("rule add priority 77 from {server} lookup 100");
                ip(&lab.node_b, family, &rule)
            },
            server,
            |lab| {
                let found = format!(
                    "blackhole {} in table 100, by rule 77 (from {})",
                    lab.plan.pods_a(),
                    lab.plan.pods_b()
                );
                Ok(Said {
                    code: "blackhole_route",
                    phrase: format!("by a blackhole route to {}", lab.plan.client_ip()),
                    detail: vec![found.clone()],
                    evidence: vec![("route", found)],
                })
            },
        )
    })
}

#[test]
fn a_rule_that_rejects_by_itself_is_named() -> Result<()> {
    BOTH.into_iter().try_for_each(|family| {
        explains(
            family,
            |lab| {
                let rule = format!("rule add priority 77 to {} prohibit", lab.plan.pods_a());
                ip(&lab.node_b, family, &rule)
            },
            server,
            |lab| {
                let found = format!("prohibit, says rule 77 (from all to {})", lab.plan.pods_a());
                Ok(Said {
                    code: "blackhole_route",
                    phrase: format!("by a prohibit routing rule to {}", lab.plan.client_ip()),
                    detail: vec![found.clone()],
                    evidence: vec![("route", found)],
                })
            },
        )
    })
}

/// Requests go through the underlay, replies through the tunnel: the way back is not the way there.
fn reverse_path(set: &'static str, all: u8, own: u8) -> Result<()> {
    explains(
        Family::V4,
        |lab| {
            let pods = lab.plan.pods_b();
            lab.underlay
                .ip(&format!("route add {pods} via {}", lab.plan.uplink_b().0))?;
            lab.node_a.ip(&format!(
                "route replace {pods} via {}",
                lab.plan.uplink_a().1
            ))?;
            Ok(lab
                .node_a
                .sysctl(&format!("net/ipv4/conf/{set}/rp_filter"), "1")?)
        },
        server,
        |lab| {
            let server = lab.plan.server(0).ip();
            let gateway = lab.plan.uplink_a().1;
            Ok(Said {
                code: "rp_filter",
                phrase: "by reverse path filtering (rp_filter)".to_owned(),
                detail: vec![format!(
                    "rp_filter is 1 on vx0 (all={all}, vx0={own}), and the route back to {server} leaves through ens0 ({} via {gateway} dev ens0 in table main); \
                     before that in netns node-b, the SYN came in on ens0, the SYN-ACK went out on vx0 by the route {} via {} dev vx0 in table main",
                    lab.plan.pods_b(),
                    lab.plan.pods_a(),
                    lab.plan.tunnel().0,
                )],
                evidence: vec![
                    ("sysctl", "net.ipv4.conf.all.rp_filter".to_owned()),
                    ("sysctl", "net.ipv4.conf.vx0.rp_filter".to_owned()),
                    ("route", format!(r#""to":"{server}""#)),
                ],
            })
        },
    )
}

#[test]
fn reverse_path_filtering_of_a_device_is_told_with_the_way_back() -> Result<()> {
    reverse_path("vx0", 0, 1)
}

#[test]
fn reverse_path_filtering_of_all_devices_is_told_with_the_way_back() -> Result<()> {
    reverse_path("all", 1, 0)
}

#[test]
fn a_neighbour_that_never_answered_is_told_with_its_state() -> Result<()> {
    BOTH.into_iter().try_for_each(|family| {
        explains(
            family,
            |_| Ok(()),
            |plan| plan.nobody(6379),
            |lab| {
                let nobody = lab.plan.nobody(0).ip();
                Ok(Said {
                    code: "neighbour_unresolved",
                    phrase: "because the next hop's link-layer address never resolved".to_owned(),
                    detail: unresolved(&format!("the next hop is {nobody} itself"), "lxcb"),
                    evidence: vec![
                        (
                            "route",
                            format!("{} dev lxcb in table main", lab.plan.pods_b()),
                        ),
                        ("neighbour", nobody.to_string()),
                    ],
                })
            },
        )
    })
}

#[test]
fn a_gateway_that_never_answered_is_told_and_not_the_destination() -> Result<()> {
    BOTH.into_iter().try_for_each(|family| {
        explains(
            family,
            |lab| {
                Ok(lab.pod_b.ip(&format!(
                    "route replace default via {}",
                    lab.plan.nobody(0).ip()
                ))?)
            },
            server,
            |lab| {
                let (client, gateway) = (lab.plan.client_ip(), lab.plan.nobody(0).ip());
                Ok(Said {
                    code: "neighbour_unresolved",
                    phrase: "because the next hop's link-layer address never resolved".to_owned(),
                    detail: unresolved(
                        &format!("the next hop to {client} is the gateway {gateway}"),
                        "eth0",
                    ),
                    evidence: vec![
                        (
                            "route",
                            format!("default via {gateway} dev eth0 in table main"),
                        ),
                        ("neighbour", gateway.to_string()),
                    ],
                })
            },
        )
    })
}

/// The neighbour has failed, or the next packet has had it asked for again.
fn unresolved(what: &str, device: &str) -> Vec<String> {
    let in_state = |state| format!("{what}, and its entry on {device} is {state}");
    ["FAILED", "INCOMPLETE"].map(in_state).to_vec()
}

/// A device's MAC address, from its own namespace.
fn mac_of(netns: &Netns, device: &str) -> Result<String> {
    let link = netns.command("ip", &["-brief", "link", "show", "dev", device])?;
    let mac = link.split_whitespace().nth(2).context("a MAC address")?;
    Ok(mac.to_owned())
}

#[test]
fn a_wrong_mac_address_is_told_beside_the_right_one() -> Result<()> {
    BOTH.into_iter().try_for_each(|family| {
        explains(
            family,
            |lab| {
                Ok(lab.node_a.ip(&format!(
                    "neighbour replace {} lladdr 02:de:ad:be:ef:02 dev vx0 nud permanent",
                    lab.plan.tunnel().1
                ))?)
            },
            server,
            |lab| {
                let own = mac_of(&lab.node_b, "vx0")?;
                Ok(Said {
                    code: "wrong_mac",
                    phrase: "because its destination MAC address is another host's".to_owned(),
                    detail: vec![format!(
                        "it was sent to 02:de:ad:be:ef:02, and vx0 has {own}; no device that is known has it"
                    )],
                    evidence: vec![],
                })
            },
        )
    })
}

#[test]
fn the_device_that_has_the_wrong_mac_address_is_named() -> Result<()> {
    explains(
        Family::V4,
        |lab| {
            lab.pod_b
                .ip("link add br0 address 02:de:ad:be:ef:03 type bridge")?;
            thread::sleep(Duration::from_millis(300));
            Ok(lab.node_a.ip(&format!(
                "neighbour replace {} lladdr 02:de:ad:be:ef:03 dev vx0 nud permanent",
                lab.plan.tunnel().1
            ))?)
        },
        server,
        |lab| {
            let own = mac_of(&lab.node_b, "vx0")?;
            Ok(Said {
                code: "wrong_mac",
                phrase: "because its destination MAC address is another host's".to_owned(),
                detail: vec![format!(
                    "it was sent to 02:de:ad:be:ef:03, and vx0 has {own}; it is that of br0 in netns pod-b"
                )],
                evidence: vec![],
            })
        },
    )
}

#[test]
fn forwarding_that_is_off_is_told_with_the_sysctl() -> Result<()> {
    explains(
        Family::V4,
        |lab| Ok(lab.node_b.sysctl("net/ipv4/conf/vx0/forwarding", "0")?),
        server,
        |_| {
            Ok(Said {
                code: "forwarding_off",
                phrase: "because forwarding is off".to_owned(),
                detail: vec!["net.ipv4.conf.vx0.forwarding is 0 (all=1)".to_owned()],
                evidence: vec![("sysctl", "net.ipv4.conf.vx0.forwarding".to_owned())],
            })
        },
    )?;
    explains(
        Family::V6,
        |lab| Ok(lab.node_b.sysctl("net/ipv6/conf/all/forwarding", "0")?),
        server,
        |_| {
            Ok(Said {
                code: "forwarding_off",
                phrase: "because forwarding is off".to_owned(),
                detail: vec!["net.ipv6.conf.all.forwarding is 0 (vx0=0)".to_owned()],
                evidence: vec![("sysctl", "net.ipv6.conf.all.forwarding".to_owned())],
            })
        },
    )
}

#[test]
fn a_source_that_is_an_own_address_is_told_with_the_sysctl() -> Result<()> {
    explains(
        Family::V4,
        |lab| {
            Ok(lab
                .node_b
                .ip(&format!("address add {}/32 dev lo", lab.plan.client_ip()))?)
        },
        server,
        |lab| {
            let client = lab.plan.client_ip();
            Ok(Said {
                code: "source_invalid",
                phrase: format!("because its source address {client} is this host's own"),
                detail: vec![format!(
                    "{client} is an address of this very namespace, and accept_local is 0 on vx0 (all=0, vx0=0)"
                )],
                evidence: vec![("sysctl", "net.ipv4.conf.vx0.accept_local".to_owned())],
            })
        },
    )
}

#[test]
fn the_vnis_that_there_are_are_told() -> Result<()> {
    BOTH.into_iter().try_for_each(|family| {
        explains(
            family,
            |lab| {
                let (near, far) = (lab.plan.uplink_a().0, lab.plan.uplink_b().0);
                Ok(lab.node_a.ip(&format!(
                    "link add vx1 mtu 1400 type vxlan id {} dstport 4789 local {near} remote {far} nolearning\n\
                     link set vx1 up\n\
                     neighbour replace {} lladdr 02:00:00:00:00:0c dev vx1 nud permanent\n\
                     route replace {} dev vx1",
                    VNI + 1,
                    lab.plan.server(0).ip(),
                    lab.plan.pods_b(),
                ))?)
            },
            server,
            |lab| {
                let (near, far) = (lab.plan.uplink_a().0, lab.plan.uplink_b().0);
                Ok(Said {
                    code: "unknown_vni",
                    phrase: format!("because no tunnel device there takes VNI {}", VNI + 1),
                    detail: vec![format!("it came from {near} to {far}; the only VNI there is {VNI} (vx0)")],
                    evidence: vec![],
                })
            },
        )
    })
}

#[test]
fn a_device_that_drops_counts_it() -> Result<()> {
    with_lab(Family::V4, |lab| {
        lab.pod_b.ip("link set eth0 mtu 1200")?;
        let mut devices = topology::Topology::open()?;
        let netns = devices
            .namespaces()
            .find_map(|(id, name)| (name == Some(lab.pod_b.name())).then_some(id))
            .context("pod-b is known")?;
        let eth0 = devices
            .devices()
            .into_iter()
            .find(|device| device.id.netns == netns && device.name == "eth0")
            .context("eth0 is known")?;
        let view = View::Netns { netns: vec![netns] };
        let statistics = Statistics::begin(&mut devices, &view);
        ensure!(statistics.finish(&mut devices).is_empty());
        let target = lab.plan.server(9);
        lab.node_b.run(|| {
            // The sender's end of the cable takes it, the receiver's does not.
            UdpSocket::bind("0.0.0.0:0")?.send_to(&[0; 1300], target)
        })??;
        let moved = statistics.finish(&mut devices);
        ensure!(
            matches!(
                moved.as_slice(),
                [Fact::DeviceCounter { device, name, before: 0, after: 1 }]
                    if *device == eth0.id && name == "rx_dropped"
            ),
            "{moved:?}"
        );
        Ok(())
    })
}
