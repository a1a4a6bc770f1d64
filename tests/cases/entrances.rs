//! `--tc`: packets that reach a device past the tracepoints, seen at its `tc` hook.

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tracer::lab::{Family, Netns, Outcome, Server, Topology, connect};
use tracer_tests::bpf::{self, Victims};
use tracer_tests::faults::{self, SYN};
use tracer_tests::kernel::{Release, has_module};
use tracer_tests::{Run, Tracer, answered, both, by_netfilter, differences, exchange, with_lab};

const PATIENCE: Duration = Duration::from_millis(3400);
const SETTLE: Duration = Duration::from_millis(600);

/// From the kill to the end of the links.
const GONE_WITHIN: Duration = Duration::from_secs(10);

/// Where tcx is.
const TCX: (Release, &str) = (Release(6, 6), "tcx");

fn has_tcx() -> bool {
    TCX.0.is_reached_or_said(TCX.1)
}

fn tracer(arguments: &[&str]) -> Result<Tracer> {
    let always = ["trace", "--format", "json", "--for", "120s"];
    let mut tracer = Tracer::start(&[&always[..], arguments].concat())?;
    tracer.wait_until_ready()?;
    Ok(tracer)
}

/// Whether every request's path has a hop where a device receives.
fn shows_arrival(run: &Run, netns: &str, device: &str) -> Result<bool> {
    let report = run.report()?;
    let flows = report["flows"].as_array().context("no flows")?;
    ensure!(!flows.is_empty(), "no flows");
    let arrives = |flow: &Value| {
        flow["request"]["path"].as_array().is_some_and(|path| {
            path.iter().any(|hop| {
                hop["device"] == device
                    && hop["netns_name"] == netns
                    && hop["stage"] == "ingress"
                    && hop["function"].is_null()
            })
        })
    };
    Ok(flows.iter().all(arrives))
}

/// A device on node-b's end of a veth that takes packets from it, in a namespace of its own.
fn above_a_wire(lab: &Topology, family: Family, kind: &str) -> Result<(Netns, Netns, SocketAddr)> {
    let (pod_c, pod_d) = (Netns::add("pod-c")?, Netns::add("pod-d")?);
    let (client, server, prefix) = match family {
        Family::V4 => ("198.51.100.1", "198.51.100.2", 24),
        Family::V6 => ("2001:db8:1::1", "2001:db8:1::2", 64),
    };
    lab.node_b.ip(&format!(
        "link add lxcm index 31 type veth peer name far netns pod-c\n\
         link set lxcm up\n\
         link add link lxcm name upper netns pod-d type {kind}"
    ))?;
    pod_c.ip("link set far up")?;
    let near = if kind.starts_with("vlan") {
        pod_c.ip(&format!(
            "link add link far name upper type {kind}\nlink set upper up"
        ))?;
        "upper"
    } else {
        "far"
    };
    pod_d.ip("link set upper up")?;
    for (pod, device, addr) in [(&pod_c, near, client), (&pod_d, "upper", server)] {
        let address = format!("{addr}/{prefix}");
        pod.command("ip", &["address", "add", &address, "dev", device, "nodad"])?;
    }
    Ok((pod_c, pod_d, SocketAddr::new(server.parse()?, 6379)))
}

/// Silence behind the wire proves nothing without `--tc`, whose hop is where the packet arrived.
fn taken_by(kind: &str, family: Family) -> Result<()> {
    with_lab(family, |lab| {
        let (pod_c, pod_d, server) = above_a_wire(lab, family, kind)?;
        let _server = Server::start(&pod_d, server)?;
        let watched = ["--netns", "node-b", "--netns", "pod-c", "--netns", "pod-d"];
        let without = tracer(&watched)?;
        let with = tracer(&[&watched[..], &["--tc", "pod-d/upper"]].concat())?;
        let healthy = connect(&pod_c, 0, server)?;
        let first = healthy.local;
        let outcome = healthy.wait(PATIENCE);
        ensure!(matches!(outcome, Outcome::Connected(_)), "{outcome:?}");
        drop(outcome);
        faults::netfilter(&pod_d, "input", &format!("{SYN} drop"))?;
        let broken = connect(&pod_c, 0, server)?;
        let second = broken.local;
        let outcome = broken.wait(PATIENCE);
        ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
        thread::sleep(SETTLE);
        let (without, with) = (without.interrupt()?, with.interrupt()?);
        let dropped = by_netfilter("request_dropped").at("pod-d", &["upper"]);
        for run in [&without, &with] {
            let wrong = differences(run, &[(first, answered()), (second, dropped)])?;
            ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        }
        ensure!(shows_arrival(&with, "pod-d", "upper")?, "{}", with.stdout);
        ensure!(
            !shows_arrival(&without, "pod-d", "upper")?,
            "{}",
            without.stdout
        );
        Ok(())
    })
}

#[test]
fn what_a_macvlan_takes_is_seen_at_its_tc_hook() -> Result<()> {
    if !has_tcx() {
        return Ok(());
    }
    both(|family| taken_by("macvlan mode bridge", family))
}

#[test]
fn what_a_vlan_takes_is_seen_at_its_tc_hook() -> Result<()> {
    if !has_tcx() {
        return Ok(());
    }
    if !has_module("8021q")? {
        writeln!(
            io::stderr(),
            "skipped: this kernel has no VLANs; `cargo xtask vm` has kernels with them"
        )?;
        return Ok(());
    }
    both(|family| taken_by("vlan id 5", family))
}

/// Node-b hands what comes out of the tunnel to pod-b past every tracepoint.
fn handed_to_the_peer(family: Family) -> Result<()> {
    with_lab(family, |lab| {
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let _link: OwnedFd = bpf::redirect_to_peer(&lab.node_b, "vx0", "lxcb")?;
        let filter = lab.plan.filter();
        let without = tracer(&[&filter])?;
        let with = tracer(&["--tc", "pod-b/eth0", &filter])?;
        let client = exchange(lab)?;
        for (run, sees) in [(without.interrupt()?, false), (with.interrupt()?, true)] {
            let wrong = differences(&run, &[(client, answered())])?;
            ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
            ensure!(
                shows_arrival(&run, "pod-b", "eth0")? == sees,
                "{}",
                run.stdout
            );
        }
        Ok(())
    })
}

#[test]
fn what_bpf_redirect_peer_brings_is_seen_at_the_tc_hook() -> Result<()> {
    if !has_tcx() {
        return Ok(());
    }
    both(handed_to_the_peer)
}

#[test]
fn a_program_of_others_stays_and_sigkill_leaves_nothing() -> Result<()> {
    if !has_tcx() {
        return Ok(());
    }
    with_lab(Family::V4, |lab| {
        let pod_b = &lab.pod_b;
        let _server = Server::start(pod_b, lab.plan.server(6379))?;
        let nobody = Victims::of_all(Family::V6, false);
        let _foreign = bpf::tcx_ingress(pod_b, "eth0", &nobody)?;
        ensure!(bpf::count_at_tcx_ingress(pod_b, "eth0")? == 1);
        let tracer = tracer(&["--netns", "pod-b", "--tc", "eth0"])?;
        ensure!(bpf::count_at_tcx_ingress(pod_b, "eth0")? == 2);
        exchange(lab)?;
        tracer.signal(Signal::SIGKILL)?;
        let deadline = Instant::now() + GONE_WITHIN;
        while bpf::count_at_tcx_ingress(pod_b, "eth0")? > 1 {
            ensure!(
                Instant::now() < deadline,
                "a killed tracer left its program"
            );
            thread::sleep(Duration::from_millis(20));
        }
        ensure!(bpf::count_at_tcx_ingress(pod_b, "eth0")? == 1);
        Ok(())
    })
}

#[test]
fn a_device_that_is_not_there_is_answered_with_those_that_are() -> Result<()> {
    with_lab(Family::V4, |_lab| {
        let run = Run::of(&["trace", "--netns", "node-b", "--tc", "lxcd", "--for", "1s"])?;
        ensure!(run.code() == Some(1), "{run}");
        let said = "no device \"lxcd\" in the network namespaces of --netns; there are \"lxcb\", ";
        ensure!(run.stderr.contains(said), "{run}");
        let run = Run::of(&["trace", "--tc", "node-b/ens1", "--for", "1s"])?;
        ensure!(run.code() == Some(1), "{run}");
        let said = "no device \"ens1\" in the network namespace \"node-b\"; there are \"ens0\", ";
        ensure!(run.stderr.contains(said), "{run}");
        let run = Run::of(&[
            "trace",
            "--netns",
            "node-b",
            "--tc",
            "pod-b/eth0",
            "--for",
            "1s",
        ])?;
        ensure!(run.code() == Some(1), "{run}");
        let said = "the network namespace \"pod-b\" is not one of those of --netns";
        ensure!(run.stderr.contains(said), "{run}");
        Ok(())
    })
}
