//! The lab itself: it is healthy until it is broken, and nothing of it is left.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tracer::lab::{Family, Outcome, Server, Topology, connect};
use tracer_tests::{Disturbed, with_lab};

const SOON: Duration = Duration::from_secs(2);

fn echoes(mut stream: TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(SOON))?;
    stream.write_all(b"ping")?;
    let mut back = [0; 4];
    stream.read_exact(&mut back)?;
    ensure!(&back == b"ping");
    Ok(())
}

fn answers_then_loses_its_synack(lab: &Topology) -> Result<()> {
    let server = lab.plan.server(6379);
    let _server = Server::start(&lab.pod_b, server)?;
    match connect(&lab.pod_a, 0, server)?.wait(SOON) {
        Outcome::Connected(stream) => echoes(stream)?,
        other => bail!("the healthy lab does not answer: {other:?}"),
    }
    lab.underlay.nft(&lab.plan.drop_synack_in_tunnel())?;
    let outcome = connect(&lab.pod_a, 0, server)?.wait(SOON);
    ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
    ensure!(lab.pod_a.counter("Tcp", "RetransSegs")? >= 1);
    Ok(())
}

#[test]
fn a_pod_reaches_the_other_until_the_synack_is_dropped() -> Result<()> {
    with_lab(Family::V4, answers_then_loses_its_synack)
}

#[test]
fn a_pod_reaches_the_other_over_ipv6_until_the_synack_is_dropped() -> Result<()> {
    with_lab(Family::V6, answers_then_loses_its_synack)
}

#[test]
fn the_names_of_a_sandbox_are_seen_inside_it_only() -> Result<()> {
    with_lab(Family::V4, |lab| {
        ensure!(Path::new("/run/netns/node-a").exists());
        ensure!(lab.node_a.inum()? != lab.node_b.inum()?);
        Ok(())
    })?;
    ensure!(!Path::new("/run/netns/node-a").exists());
    Ok(())
}

#[test]
fn a_disturbed_run_is_repeated_and_what_fails_is_not() -> Result<()> {
    let runs = AtomicU32::new(0);
    let disturbed = || Err(Disturbed { missed: 1 }).context("the full view");
    let second_works = |_: &Topology| match runs.fetch_add(1, Ordering::Relaxed) {
        0 => disturbed(),
        _ => Ok(()),
    };
    with_lab(Family::V4, second_works)?;
    ensure!(runs.swap(0, Ordering::Relaxed) == 2);
    let never_works = |_: &Topology| {
        runs.fetch_add(1, Ordering::Relaxed);
        disturbed()
    };
    ensure!(with_lab(Family::V4, never_works).is_err());
    ensure!(runs.swap(0, Ordering::Relaxed) == 3);
    let fails = |_: &Topology| -> Result<()> {
        runs.fetch_add(1, Ordering::Relaxed);
        bail!("a fault")
    };
    ensure!(with_lab(Family::V4, fails).is_err());
    ensure!(runs.into_inner() == 1);
    Ok(())
}
