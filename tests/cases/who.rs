//! Which process a report names at each end of a flow, and behind a tun device, whatever of them was there before the trace.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tracer::lab::{Family, Netns, Outcome, Topology, connect, dns_query, listen, udp_socket};
use tracer_tests::faults::{self, SYN_ACK};
use tracer_tests::keeper::{Keeper, tun};
use tracer_tests::{Observers, Run, Tracer, Views, both, inferred, unseen, with_lab};

/// Longer than the answer deadlines of TCP and of UDP.
const PATIENCE: Duration = Duration::from_millis(4500);
const SETTLE: Duration = Duration::from_millis(700);
const UDP_DEADLINE: Duration = Duration::from_millis(5200);

/// A name that would clear the screen, and one that a page would take for a tag.
const HOSTILE: &str = "r\u{1b}[2J<b>`dis";

/// Every address of both IP versions.
const fn everywhere(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), port)
}

/// The flow with this client.
fn flow(report: &Value, client: SocketAddr) -> Result<&Value> {
    let is_meant = |flow: &&Value| {
        flow["client"]["addr"] == client.ip().to_string() && flow["client"]["port"] == client.port()
    };
    let mut flows = report["flows"].as_array().into_iter().flatten();
    flows
        .find(is_meant)
        .with_context(|| format!("no flow of {client} in {report:#}"))
}

#[track_caller]
fn ensure_named(flow: &Value, end: &str, pid: u32) -> Result<()> {
    ensure!(
        flow[end]["process"]["pid"] == pid,
        "the {end} is not process {pid} in {flow:#}"
    );
    Ok(())
}

#[track_caller]
fn ensure_unnamed(flow: &Value, end: &str) -> Result<()> {
    ensure!(flow[end]["process"].is_null(), "a {end} in {flow:#}");
    Ok(())
}

/// Connects from pod-a and waits for what must come of it.
fn dial(lab: &Topology, port: u16, must_work: bool) -> Result<SocketAddr> {
    let attempt = connect(&lab.pod_a, 0, lab.plan.server(port))?;
    let client = attempt.local;
    let outcome = attempt.wait(PATIENCE);
    ensure!(
        matches!(
            (&outcome, must_work),
            (Outcome::Connected(_), true) | (Outcome::TimedOut, false)
        ),
        "{outcome:?}"
    );
    Ok(client)
}

#[test]
fn a_server_that_listened_before_the_trace() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let mut server = Keeper::idle(HOSTILE, listen(&lab.pod_b, everywhere(6379), 16)?)?;
            let container = server.into_container()?;
            let observers = Observers::start(lab)?;
            let healthy = dial(lab, 6379, true)?;
            faults::netfilter(&lab.node_a, "forward", &format!("{SYN_ACK} drop"))?;
            let unanswered = dial(lab, 6379, false)?;
            faults::heal_netfilter(&lab.node_a)?;
            faults::netfilter(&lab.pod_b, "input", "tcp dport 6379 drop")?;
            let unheard = dial(lab, 6379, false)?;
            thread::sleep(SETTLE);
            let reports = observers.stop()?;
            let [full, of_server, of_client] = [
                reports.full.report()?,
                reports.server_node.report()?,
                reports.client_node.report()?,
            ];
            for client in [healthy, unanswered, unheard] {
                for report in [&full, &of_server] {
                    let flow = flow(report, client)?;
                    ensure_named(flow, "server", server.pid())?;
                    let server = &flow["server"];
                    ensure!(server["process"]["comm"] == HOSTILE, "{flow:#}");
                    ensure!(server["container"]["id"] == container, "{flow:#}");
                    ensure!(server["container"]["runtime"] == "docker", "{flow:#}");
                }
                for report in [&full, &of_client] {
                    ensure_named(flow(report, client)?, "client", std::process::id())?;
                }
                ensure_unnamed(flow(&of_client, client)?, "server")?;
                ensure_unnamed(flow(&of_server, client)?, "client")?;
            }
            Ok(())
        })
    })
}

#[test]
fn datagrams_name_both_their_sockets() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let server = Keeper::idle("unbound", udp_socket(&lab.pod_b, everywhere(53))?)?;
            let observers = Observers::start(lab)?;
            let client = udp_socket(&lab.pod_a, SocketAddr::new(lab.plan.client_ip(), 0))?;
            client.send_to(&dns_query(7), lab.plan.server(53))?;
            thread::sleep(UDP_DEADLINE);
            let reports = observers.stop()?;
            let client = client.local_addr()?;
            let silent = inferred("request_not_answered").at("pod-b", &["eth0"]);
            reports.check(&[(
                client,
                Views {
                    full: silent,
                    server_node: silent,
                    client_node: inferred("request_left_node").at("node-a", &["ens0"]),
                },
            )])?;
            let report = reports.full.report()?;
            let flow = flow(&report, client)?;
            ensure_named(flow, "server", server.pid())?;
            ensure_named(flow, "client", std::process::id())
        })
    })
}

#[test]
fn a_connection_from_before_the_trace() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let listener = listen(&lab.pod_b, lab.plan.server(6379), 16)?;
            let attempt = connect(&lab.pod_a, 0, lab.plan.server(6379))?;
            let client = attempt.local;
            let Outcome::Connected(mut stream) = attempt.wait(PATIENCE) else {
                anyhow::bail!("the healthy lab does not answer")
            };
            stream.set_read_timeout(Some(PATIENCE))?;
            let (accepted, _) = listener.accept()?;
            // Whoever listens is not who has the connection.
            let _master = Keeper::idle("master", listener)?;
            let worker = Keeper::echo("worker", accepted)?;
            let observers = Observers::start(lab)?;
            for _ in 0..5 {
                echo(&mut stream)?;
                thread::sleep(Duration::from_millis(50));
            }
            let reports = observers.stop()?;
            let views = Views::all(inferred("answered").request_unseen());
            reports.check(&[(client, views)])?;
            let report = reports.full.report()?;
            let flow = flow(&report, client)?;
            ensure_named(flow, "server", worker.pid())?;
            ensure_named(flow, "client", std::process::id())
        })
    })
}

fn echo(stream: &mut TcpStream) -> Result<()> {
    let mut back = [0; 4];
    stream.write_all(b"ping")?;
    stream.read_exact(&mut back)?;
    ensure!(&back == b"ping", "the echo is not what was sent");
    Ok(())
}

/// A client and a server, alone with each other at the same addresses as every other such pair.
fn island(lab: &Topology, name: &str) -> Result<(Netns, Netns)> {
    let names = [format!("{name}-client"), format!("{name}-server")];
    let (near, far) = (Netns::add(&names[0])?, Netns::add(&names[1])?);
    near.ip(&format!(
        "link add eth0 index 21 type veth peer name eth0 netns {}\n\
         address add {} dev eth0 nodad\n\
         link set eth0 up",
        names[1],
        lab.plan.on_link(77, 1),
    ))?;
    far.ip(&format!(
        "address add {} dev eth0 nodad\n\
         link set eth0 up",
        lab.plan.on_link(77, 2),
    ))?;
    near.wait_for_links()?;
    far.wait_for_links()?;
    Ok((near, far))
}

#[test]
fn two_namespaces_with_one_address() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let server = SocketAddr::new(lab.plan.host(77, 2), 8080);
            let islands = [island(lab, "east")?, island(lab, "west")?];
            let keepers = [
                Keeper::idle("east", listen(&islands[0].1, everywhere(8080), 16)?)?,
                Keeper::idle("west", listen(&islands[1].1, everywhere(8080), 16)?)?,
            ];
            let filter = lab.plan.filter();
            let mut tracer =
                Tracer::start(&["trace", "--format", "json", "--for", "60s", &filter])?;
            tracer.wait_until_ready()?;
            let mut clients = Vec::new();
            for (number, (near, _)) in (0..).zip(&islands) {
                let attempt = connect(near, 41_000 + number, server)?;
                clients.push(attempt.local);
                let outcome = attempt.wait(PATIENCE);
                ensure!(matches!(outcome, Outcome::Connected(_)), "{outcome:?}");
            }
            thread::sleep(SETTLE);
            let report = tracer.interrupt()?.report()?;
            for (client, keeper) in clients.iter().zip(&keepers) {
                ensure_named(flow(&report, *client)?, "server", keeper.pid())?;
            }
            Ok(())
        })
    })
}

#[test]
fn what_leaves_through_a_tun_device() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            // Each pod has a device of that name: the kernel does not say whose is which.
            let holders = [
                Keeper::idle_in(&lab.pod_a, HOSTILE, tun(&lab.pod_a, "tun0")?)?,
                Keeper::idle_in(&lab.pod_b, "openvpn", tun(&lab.pod_b, "tun0")?)?,
            ];
            let elsewhere = SocketAddr::new(lab.plan.host(78, 2), 443);
            lab.pod_a.ip(&format!(
                "link set tun0 up\n\
                 route add {} dev tun0",
                elsewhere.ip()
            ))?;
            let server = Keeper::idle("redis", listen(&lab.pod_b, everywhere(6379), 16)?)?;
            let observers = Observers::start(lab)?;
            let healthy = dial(lab, 6379, true)?;
            let attempt = connect(&lab.pod_a, 0, elsewhere)?;
            let lost = attempt.local;
            let outcome = attempt.wait(PATIENCE);
            ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
            thread::sleep(SETTLE);
            let reports = observers.stop()?;
            let left = inferred("request_left_node").at("pod-a", &["tun0"]);
            reports.check(&[
                (healthy, Views::all(tracer_tests::answered())),
                (
                    lost,
                    Views {
                        full: left,
                        client_node: left,
                        server_node: unseen(),
                    },
                ),
            ])?;
            for run in [&reports.full, &reports.client_node] {
                let report = run.report()?;
                let flow = flow(&report, lost)?;
                let detail = flow["verdict"]["cause"]["detail"].as_str();
                let holder = format!("{HOSTILE}[{}] holds tun0", holders[0].pid());
                ensure!(
                    detail.is_some_and(|detail| detail.starts_with(&holder)),
                    "{flow:#}"
                );
            }
            ensure_named(
                flow(&reports.full.report()?, healthy)?,
                "server",
                server.pid(),
            )
        })
    })
}

#[test]
fn a_capture_names_who_the_live_report_named() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("capture.jsonl");
        let capture = path.to_str().context("a path that is text")?;
        let mut server = Keeper::idle(HOSTILE, listen(&lab.pod_b, everywhere(6379), 16)?)?;
        let container = server.into_container()?;
        let tun = Keeper::idle_in(&lab.pod_a, "openvpn", tun(&lab.pod_a, "tun0")?)?;
        let elsewhere = SocketAddr::new(lab.plan.host(78, 2), 443);
        lab.pod_a.ip(&format!(
            "link set tun0 up\n\
             route add {} dev tun0",
            elsewhere.ip()
        ))?;
        let filter = lab.plan.filter();
        let mut tracer = Tracer::start(&["trace", "--for", "60s", "--capture", capture, &filter])?;
        tracer.wait_until_ready()?;
        dial(lab, 6379, true)?;
        connect(&lab.pod_a, 0, elsewhere)?.wait(PATIENCE);
        thread::sleep(SETTLE);
        let live = tracer.interrupt()?;
        let replayed = Run::of(&["report", capture])?;
        ensure!(
            replayed.stdout == live.stdout,
            "{}\n{}",
            live.stdout,
            replayed.stdout
        );
        let verbose = Run::of(&["report", capture, "--format", "json"])?.report()?;
        ensure!(
            verbose["flows"]
                .as_array()
                .is_some_and(|flows| flows.len() == 2)
        );
        for said in [
            &format!("openvpn[{}] holds tun0", tun.pid()),
            &format!("nsenter -t {}", tun.pid()),
        ] {
            ensure!(live.stdout.contains(said), "no {said} in {}", live.stdout);
        }
        // A flow that was answered is told in short.
        ensure!(verbose["flows"][0]["server"]["container"]["id"] == container);
        ensure!(!live.stdout.contains('\u{1b}'), "{}", live.stdout);
        Ok(())
    })
}
