//! Nothing is broken, and every view must say so.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tracer::lab::{Family, Netns, Outcome, Server, Topology, connect, listen};
use tracer_tests::faults::{self, SYN, SYN_ACK};
use tracer_tests::{Observers, Views, answered, exchange, unseen, with_lab};

const SOON: Duration = Duration::from_secs(3);

fn a_connection_is_answered(lab: &Topology) -> Result<Value> {
    let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
    let observers = Observers::start(lab)?;
    let client = exchange(lab)?;
    let reports = observers.stop()?;
    reports.check(&[(client, Views::all(answered()))])?;
    reports.full.report()
}

/// The devices of a leg's path, each once, in order.
fn devices_of(report: &Value, leg: &str) -> Result<Vec<String>> {
    let hops = report
        .pointer(&format!("/flows/0/{leg}/path"))
        .and_then(Value::as_array)
        .with_context(|| format!("no path of the {leg}"))?;
    let text = |hop: &Value, field: &str| hop[field].as_str().map(str::to_owned);
    let mut devices: Vec<String> = hops
        .iter()
        .filter_map(|hop| {
            Some(format!(
                "{}/{}",
                text(hop, "netns_name")?,
                text(hop, "device")?
            ))
        })
        .collect();
    devices.dedup();
    Ok(devices)
}

#[test]
fn answered_over_vxlan_with_every_device_of_the_path() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let report = a_connection_is_answered(lab)?;
        let to_the_server = [
            "pod-a/eth0",
            "node-a/lxca",
            "node-a/vx0",
            "node-a/ens0",
            "underlay/toa",
            "underlay/tob",
            "node-b/ens0",
            "node-b/vx0",
            "node-b/lxcb",
            "pod-b/eth0",
        ];
        let to_the_client: Vec<_> = to_the_server.iter().rev().copied().collect();
        let request = devices_of(&report, "request")?;
        ensure!(request == to_the_server, "the SYN's path is {request:?}");
        let reply = devices_of(&report, "reply")?;
        ensure!(reply == to_the_client, "the SYN-ACK's path is {reply:?}");
        let tunnel = report.pointer("/flows/0/tunnels/0");
        ensure!(
            tunnel.is_some_and(|tunnel| tunnel["kind"] == "vxlan" && tunnel["vni"] == 4096),
            "the tunnel is {tunnel:?}"
        );
        Ok(())
    })
}

#[test]
fn answered_over_vxlan_and_ipv6() -> Result<()> {
    with_lab(Family::V6, |lab| a_connection_is_answered(lab).map(drop))
}

#[test]
fn answered_on_the_second_try() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let observers = Observers::start(lab)?;
        faults::netfilter(&lab.node_b, "forward", &format!("{SYN} drop"))?;
        let attempt = connect(&lab.pod_a, 0, lab.plan.server(6379))?;
        let client = attempt.local;
        thread::sleep(Duration::from_millis(500));
        faults::heal_netfilter(&lab.node_b)?;
        let outcome = attempt.wait(SOON);
        ensure!(matches!(outcome, Outcome::Connected(_)), "{outcome:?}");
        let views = Views {
            full: answered().with_losses(),
            server_node: answered().with_losses(),
            // The first SYN left node-a like the second; where it died is not seen from there.
            client_node: answered(),
        };
        let reports = observers.stop()?;
        reports.check(&[(client, views)])?;
        let report = reports.full.report()?;
        // Two, unless this machine was too busy to heal the network within the second.
        let syns = report.pointer("/flows/0/request/count");
        ensure!(
            syns.and_then(Value::as_u64).is_some_and(|syns| syns >= 2),
            "{syns:?}"
        );
        ensure!(
            report.pointer("/flows/0/losses/0/cause/code") == Some(&"netfilter".into()),
            "{report:#}"
        );
        Ok(())
    })
}

#[test]
fn answered_on_the_second_reply() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let observers = Observers::start(lab)?;
        faults::netfilter(&lab.node_a, "forward", &format!("{SYN_ACK} drop"))?;
        let attempt = connect(&lab.pod_a, 0, lab.plan.server(6379))?;
        let client = attempt.local;
        thread::sleep(Duration::from_millis(500));
        faults::heal_netfilter(&lab.node_a)?;
        let outcome = attempt.wait(SOON);
        ensure!(matches!(outcome, Outcome::Connected(_)), "{outcome:?}");
        // The second SYN meets the pending request and is freed in tcp_v4_rcv, which is innocent.
        let views = Views {
            full: answered().with_losses(),
            server_node: answered(),
            client_node: answered().with_losses(),
        };
        observers.stop()?.check(&[(client, views)])
    })
}

/// The stream of a connection that must complete.
fn connected(netns: &Netns, port: u16, lab: &Topology) -> Result<TcpStream> {
    match connect(netns, port, lab.plan.server(6379))?.wait(SOON) {
        Outcome::Connected(stream) => Ok(stream),
        other => bail!("the lab is healthy, and yet: {other:?}"),
    }
}

#[test]
fn answered_then_reset_by_the_server() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let listener: TcpListener = listen(&lab.pod_b, lab.plan.server(6379), 16)?;
        let observers = Observers::start(lab)?;
        let mut stream = connected(&lab.pod_a, 0, lab)?;
        let client = stream.local_addr()?;
        let (accepted, _) = listener.accept()?;
        stream.write_all(b"ping")?;
        // What is closed before it was read is reset: the connection was answered all the same.
        thread::sleep(Duration::from_millis(50));
        drop(accepted);
        stream.set_read_timeout(Some(SOON))?;
        ensure!(stream.read(&mut [0; 4]).is_err(), "no reset came");
        observers.stop()?.check(&[(client, Views::all(answered()))])
    })
}

#[test]
fn answered_and_a_megabyte_each_way() -> Result<()> {
    const BYTES: usize = 1 << 20;
    with_lab(Family::V4, |lab| {
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let observers = Observers::start(lab)?;
        let mut stream = connected(&lab.pod_a, 0, lab)?;
        let client = stream.local_addr()?;
        let mut sending = stream.try_clone()?;
        let sender = thread::spawn(move || {
            sending.write_all(&vec![7; BYTES])?;
            sending.shutdown(Shutdown::Write)
        });
        let mut back = Vec::new();
        stream.read_to_end(&mut back)?;
        sender.join().ok().context("the sender panicked")??;
        ensure!(back.len() == BYTES, "{} bytes came back", back.len());
        observers.stop()?.check(&[(client, Views::all(answered()))])
    })
}

#[test]
fn answered_within_the_pod_over_loopback() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let observers = Observers::start(lab)?;
        let client = connected(&lab.pod_b, 0, lab)?.local_addr()?;
        let views = Views {
            client_node: unseen(),
            ..Views::all(answered())
        };
        observers.stop()?.check(&[(client, views)])
    })
}

#[test]
fn what_happens_outside_the_namespaces_watched_is_not_told() -> Result<()> {
    with_lab(Family::V4, |watched| {
        let _server = Server::start(&watched.pod_b, watched.plan.server(6379))?;
        let observers = Observers::start(watched)?;
        with_lab(Family::V4, |other| {
            // In OUTPUT an skb has no device, and so tells no namespace by itself.
            faults::netfilter(&other.pod_a, "output", &format!("{SYN} drop"))?;
            let outcome = connect(&other.pod_a, 0, other.plan.server(6379))?.wait(SOON);
            ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
            Ok(())
        })?;
        let client = exchange(watched)?;
        let reports = observers.stop()?;
        reports.check(&[(client, Views::all(answered()))])?;
        for run in [&reports.server_node, &reports.client_node] {
            let report = run.report()?;
            ensure!(report["summary"]["flows"] == 1, "{:#}", report["flows"]);
        }
        Ok(())
    })
}
