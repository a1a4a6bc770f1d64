//! A service's address, which node-a translates into a backend's, seen through filters that name one end of one
//! half of the connection, and without any.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::Value;
use tracer::lab::{Family, Outcome, Plan, Server, Topology, connect};
use tracer_tests::faults::{self, SYN, SYN_ACK};
use tracer_tests::{
    Ends, Expected, Tracer, answered, differences, inconclusive, inferred, proven, unseen, with_lab,
};

/// As in every scenario: longer than the answer deadline, and longer than what is left of it after the last SYN.
const PATIENCE: Duration = Duration::from_millis(4500);
const SETTLE: Duration = Duration::from_millis(700);

const AT_MOST: &str = "60s";
const SERVICE_PORT: u16 = 443;

/// A connection from pod-a to the service.
struct Connection {
    family: Family,
    backend: fn(Plan) -> SocketAddr,
    /// Whether node-a also puts its own address in place of the client's.
    masquerade: bool,
    /// Whether the client is a process of node-a itself.
    from_node: bool,
    fault: fn(&Topology) -> Result<()>,
    ends: Ends,
}

const HEALTHY: Connection = Connection {
    family: Family::V4,
    backend: |plan| plan.server(6379),
    masquerade: false,
    from_node: false,
    fault: |_| Ok(()),
    ends: Ends::Connected,
};

/// Has node-a translate the service's address as kube-proxy does.
fn translate(lab: &Topology, backend: SocketAddr, masquerade: bool) -> Result<()> {
    let ip = lab.plan.nft_family();
    let service = lab.plan.service(SERVICE_PORT);
    let to_service = format!("{ip} daddr {} tcp dport {}", service.ip(), service.port());
    lab.node_a.nft(&format!(
        "add table {ip} nat\n\
         add chain {ip} nat prerouting {{ type nat hook prerouting priority -100; }}\n\
         add chain {ip} nat output {{ type nat hook output priority -100; }}\n\
         add rule {ip} nat prerouting {to_service} dnat to {backend}\n\
         add rule {ip} nat output {to_service} dnat to {backend}\n",
    ))?;
    if masquerade {
        lab.node_a.nft(&format!(
            "add chain {ip} nat postrouting {{ type nat hook postrouting priority 100; }}\n\
             add rule {ip} nat postrouting oifname vx0 masquerade\n"
        ))?;
    }
    Ok(())
}

impl Connection {
    /// One flow and one verdict, whatever half of the connection the filter names.
    fn must_show(self, expected: Expected) -> Result<()> {
        self.must_show_each(&[expected; 4])
    }

    /// Makes it under four tracers that see the whole lab, and holds their reports against what is expected with a
    /// filter for the service, for the pod, for the backend, and with none.
    fn must_show_each(self, expected: &[Expected; 4]) -> Result<()> {
        with_lab(self.family, |lab| {
            let plan = lab.plan;
            let backend = (self.backend)(plan);
            let service = plan.service(SERVICE_PORT);
            translate(lab, backend, self.masquerade)?;
            (self.fault)(lab)?;
            let _server = Server::start(&lab.pod_b, plan.server(6379))?;

            let of_service = format!("host {} and port {}", service.ip(), service.port());
            let of_pod = format!("host {}", plan.client_ip());
            let of_backend = format!("host {} and port {}", backend.ip(), backend.port());
            let filters = [
                ("service", Some(of_service)),
                ("pod", Some(of_pod)),
                ("backend", Some(of_backend)),
                ("no filter", None),
            ];
            let mut tracers = Vec::new();
            for (name, filter) in filters {
                tracers.push((name, start(lab, filter.as_deref())?));
            }
            for (_, tracer) in &mut tracers {
                tracer.wait_until_ready()?;
            }
            let from = if self.from_node {
                &lab.node_a
            } else {
                &lab.pod_a
            };
            let attempt = connect(from, 0, service)?;
            let client = attempt.local;
            let outcome = attempt.wait(PATIENCE);
            match (&outcome, self.ends) {
                (Outcome::TimedOut, Ends::TimedOut)
                | (Outcome::Failed(_), Ends::Failed)
                | (Outcome::Connected(_), Ends::Connected) => {}
                (other, expected) => bail!("the lab is wrong: {other:?}, not {expected:?}"),
            }
            drop(outcome);
            thread::sleep(SETTLE);

            let connection = Halves {
                client,
                service,
                backend,
            };
            let mut wrong = Vec::new();
            for ((name, tracer), expected) in tracers.into_iter().zip(expected) {
                let run = tracer.interrupt()?;
                for difference in differences(&run, &[(client, *expected)])? {
                    wrong.push(format!("{name}: {difference}"));
                }
                let report = run.report()?;
                // Of the first packet such a filter does not see the first half, since nothing tells it yet.
                let from_the_start = name != "backend" && !self.from_node;
                if let Err(error) = connection.is_one_flow(&report, from_the_start) {
                    wrong.push(format!("{name}: {error}\n{report:#}"));
                }
            }
            ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
            Ok(())
        })
    }
}

/// The tracer of the whole lab.
fn start(lab: &Topology, filter: Option<&str>) -> Result<Tracer> {
    let mut arguments = vec!["trace", "--format", "json", "--for", AT_MOST];
    for netns in lab.namespaces() {
        arguments.extend(["--netns", netns.name()]);
    }
    arguments.extend(filter);
    Tracer::start(&arguments)
}

/// What the connection is called on either side of node-a.
struct Halves {
    client: SocketAddr,
    service: SocketAddr,
    backend: SocketAddr,
}

impl Halves {
    /// Both are one flow, and if its first packet was seen with both addresses, the report tells that.
    fn is_one_flow(&self, report: &Value, from_the_start: bool) -> Result<()> {
        let addr = |end: SocketAddr| end.ip().to_string();
        let flows = report["flows"].as_array().into_iter().flatten();
        // A death without a namespace is seen by everybody: other traffic of this machine may be here.
        let ours: Vec<&Value> = flows
            .filter(|flow| {
                let ends = [&flow["client"], &flow["server"]];
                ends.iter().any(|end| {
                    end["port"] == self.client.port() || end["addr"] == addr(self.backend)
                })
            })
            .collect();
        ensure!(ours.len() <= 1, "{} flows, want one", ours.len());
        let (true, Some(flow)) = (from_the_start, ours.first()) else {
            return Ok(());
        };
        let is = |tuple: &Value, end: SocketAddr| {
            tuple["dst"] == addr(end) && tuple["dst_port"] == end.port()
        };
        let translations = flow["translations"].as_array();
        let there = translations.into_iter().flatten().find(|translation| {
            is(&translation["from"], self.service) && is(&translation["to"], self.backend)
        });
        ensure!(
            there.is_some(),
            "the translation of the request is not told"
        );
        ensure!(
            flow["server"]["addr"] == addr(self.service)
                && flow["server"]["port"] == self.service.port(),
            "the flow's server is not the service"
        );
        Ok(())
    }
}

#[test]
fn answered_through_a_service() -> Result<()> {
    HEALTHY.must_show(answered())
}

#[test]
fn answered_through_a_service_over_ipv6() -> Result<()> {
    Connection {
        family: Family::V6,
        ..HEALTHY
    }
    .must_show(answered())
}

#[test]
fn answered_through_a_service_and_masquerade() -> Result<()> {
    Connection {
        masquerade: true,
        ..HEALTHY
    }
    .must_show(answered())
}

#[test]
fn nobody_listens_at_the_backend() -> Result<()> {
    Connection {
        backend: |plan| plan.server(6380),
        ends: Ends::Failed,
        ..HEALTHY
    }
    .must_show(
        proven("refused")
            .at("pod-b", &["eth0"])
            .cause(&["no_listener"]),
    )
}

#[test]
fn the_backends_node_rejects_the_syn() -> Result<()> {
    Connection {
        fault: |lab| {
            faults::netfilter(
                &lab.node_b,
                "forward",
                &format!("{SYN} reject with icmp type admin-prohibited"),
            )
        },
        ends: Ends::Failed,
        ..HEALTHY
    }
    .must_show(proven("refused").at("node-b", &[]).cause(&["rejected"]))
}

#[test]
fn nobody_has_the_backends_address() -> Result<()> {
    Connection {
        backend: |plan| plan.nobody(6379),
        ends: Ends::Failed,
        ..HEALTHY
    }
    .must_show(
        proven("request_dropped")
            .at("node-b", &["lxcb"])
            .cause(&["neighbour_unresolved"])
            .reason("NEIGH_FAILED"),
    )
}

#[test]
fn the_backend_has_no_route_back() -> Result<()> {
    Connection {
        fault: |lab| Ok(lab.pod_b.ip("route del default")?),
        ends: Ends::TimedOut,
        ..HEALTHY
    }
    .must_show(
        inferred("request_not_answered")
            .at("pod-b", &["eth0", "null"])
            .cause(&["no_route"]),
    )
}

#[test]
fn the_backends_node_has_no_route_back_to_the_pods() -> Result<()> {
    Connection {
        fault: |lab| {
            let pods = lab.plan.pods_a();
            Ok(lab
                .node_b
                .ip(&format!("route replace unreachable {pods}"))?)
        },
        ends: Ends::TimedOut,
        ..HEALTHY
    }
    .must_show(proven("reply_dropped").at("node-b", &["lxcb"]))
}

#[test]
fn synack_dropped_before_it_is_translated_back() -> Result<()> {
    Connection {
        fault: |lab| faults::netfilter(&lab.node_a, "forward", &format!("{SYN_ACK} drop")),
        ends: Ends::TimedOut,
        ..HEALTHY
    }
    .must_show(
        proven("reply_dropped")
            .at("node-a", &["vx0"])
            .cause(&["netfilter"]),
    )
}

#[test]
fn synack_dropped_in_the_pod_after_it_was_translated_back() -> Result<()> {
    Connection {
        masquerade: true,
        fault: |lab| faults::netfilter(&lab.pod_a, "input", &format!("{SYN_ACK} drop")),
        ends: Ends::TimedOut,
        ..HEALTHY
    }
    .must_show(
        proven("reply_dropped")
            .at("pod-a", &["eth0"])
            .cause(&["netfilter"]),
    )
}

#[test]
fn synack_that_nothing_translates_back() -> Result<()> {
    Connection {
        fault: |lab| {
            // As if the reply came another way than the request went: node-a's conntrack does not look at it.
            Ok(lab.node_a.nft(
                "add table ip raw\n\
                 add chain ip raw prerouting { type filter hook prerouting priority -300; }\n\
                 add rule ip raw prerouting iifname vx0 tcp sport 6379 notrack\n",
            )?)
        },
        ends: Ends::TimedOut,
        ..HEALTHY
    }
    .must_show(
        proven("reply_dropped")
            .at("pod-a", &["eth0"])
            .reason("NO_SOCKET"),
    )
}

/// In OUTPUT the addresses are replaced before any hook sees the packet: only the socket, and the reply that reaches
/// it, know the service.
#[test]
fn answered_from_the_node_itself() -> Result<()> {
    Connection {
        from_node: true,
        ..HEALTHY
    }
    .must_show_each(&[inconclusive(), unseen(), answered(), answered()])
}

#[test]
fn synack_dropped_on_its_way_to_the_node_itself() -> Result<()> {
    let dropped = proven("reply_dropped")
        .at("node-b", &["lxcb"])
        .cause(&["netfilter"]);
    Connection {
        from_node: true,
        fault: |lab| faults::netfilter(&lab.node_b, "forward", &format!("{SYN_ACK} drop")),
        ends: Ends::TimedOut,
        ..HEALTHY
    }
    .must_show_each(&[unseen(), unseen(), dropped, dropped])
}
