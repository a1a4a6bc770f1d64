//! What was recorded says the same as what was seen, byte for byte, and a trace that waits for a verdict ends with it.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tracer::lab::{Family, Outcome, Server, Topology, connect};
use tracer_tests::{Run, Tracer, exchange, with_lab};

const PATIENCE: Duration = Duration::from_millis(4500);
const SETTLE: Duration = Duration::from_millis(700);

/// One connection that works, and one whose SYN-ACK the underlay drops.
fn traffic(lab: &Topology) -> Result<()> {
    exchange(lab)?;
    lab.underlay.nft(&lab.plan.drop_synack_in_tunnel())?;
    let outcome = connect(&lab.pod_a, 0, lab.plan.server(6379))?.wait(PATIENCE);
    ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
    Ok(())
}

#[test]
fn a_capture_gives_the_report_of_the_live_run_byte_for_byte() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("capture.jsonl");
        let capture = path.to_str().context("a path that is text")?;
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let filter = lab.plan.filter();
        let mut tracer = Tracer::start(&[
            "trace",
            "--format",
            "json",
            "--for",
            "60s",
            "--capture",
            capture,
            &filter,
        ])?;
        tracer.wait_until_ready()?;
        traffic(lab)?;
        std::thread::sleep(SETTLE);
        let live = tracer.interrupt()?;
        ensure!(live.code() == Some(10), "{live}");
        let replayed = Run::of(&["report", capture, "--format", "json"])?;
        ensure!(replayed.code() == Some(10), "{replayed}");
        ensure!(
            replayed.stdout == live.stdout,
            "live:\n{}\nreplayed:\n{}",
            live.stdout,
            replayed.stdout
        );

        // A writer that was killed leaves half a line: what is whole is read, and the report says that it was cut.
        let whole = fs::read(&path)?;
        fs::write(&path, &whole[..whole.len() - whole.len() / 8])?;
        let cut = Run::of(&["report", capture])?;
        ensure!(matches!(cut.code(), Some(10 | 11)), "{}", cut.stdout);
        ensure!(cut.stdout.contains("cut"), "{}", cut.stdout);
        Ok(())
    })
}

#[test]
fn a_trace_that_waits_for_a_verdict_ends_with_it() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let filter = lab.plan.filter();
        let mut tracer = Tracer::start(&[
            "trace",
            "--format",
            "json",
            "--for",
            "60s",
            "--until-verdict",
            &filter,
        ])?;
        tracer.wait_until_ready()?;
        let start = Instant::now();
        traffic(lab)?;
        let run = tracer.finish(Duration::from_secs(10))?;
        ensure!(
            start.elapsed() < Duration::from_secs(10),
            "{:?}",
            start.elapsed()
        );
        ensure!(run.code() == Some(10), "{run}");
        let report = run.report()?;
        ensure!(
            report["summary"]["worst"]["code"] == "reply_dropped",
            "{report:#}"
        );
        Ok(())
    })
}
