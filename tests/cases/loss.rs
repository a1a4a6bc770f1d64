//! What is lost is counted, what was lost spoils what follows from absence, and nothing is left behind.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tracer::lab::{Family, Outcome, Server, connect};
use tracer_tests::{Tracer, with_lab};

const SOON: Duration = Duration::from_secs(4);

/// After SIGKILL the kernel takes back what only descriptors held.
const GONE_WITHIN: Duration = Duration::from_secs(10);

fn number(report: &Value, path: &str) -> Result<u64> {
    report
        .pointer(path)
        .and_then(Value::as_u64)
        .with_context(|| format!("no number at {path} in {report:#}"))
}

#[test]
fn a_ring_of_one_page_counts_every_loss_and_infers_nothing() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let server = lab.plan.server(6379);
        let _server = Server::start(&lab.pod_b, server)?;
        let nobody = lab.plan.nobody(6379);
        let filter = lab.plan.filter();
        let mut tracer = Tracer::start(&[
            "trace",
            "--format",
            "json",
            "--for",
            "60s",
            "--ring-bytes",
            "4096",
            &filter,
        ])?;
        tracer.wait_until_ready()?;
        // Each burst is far more than a page of records between two drains.
        for _ in 0..5 {
            let attempts = (0..100)
                .map(|_| connect(&lab.pod_a, 0, server))
                .collect::<Result<Vec<_>, _>>()?;
            for attempt in attempts {
                let outcome = attempt.wait(SOON);
                ensure!(matches!(outcome, Outcome::Connected(_)), "{outcome:?}");
            }
        }
        // Nothing answers this one for the full deadline: absence that a full ring must not turn into a verdict.
        let outcome = connect(&lab.pod_a, 0, nobody)?.wait(SOON);
        ensure!(!matches!(outcome, Outcome::Connected(_)), "{outcome:?}");
        let report = tracer.interrupt()?.report()?;
        let emitted = number(&report, "/ledger/emitted")?;
        let delivered = number(&report, "/ledger/delivered")?;
        let ring_full = number(&report, "/ledger/ring_full")?;
        ensure!(
            ring_full > 0,
            "the ring was never full: {:#}",
            report["ledger"]
        );
        ensure!(
            emitted > 0 && emitted == delivered,
            "{:#}",
            report["ledger"]
        );
        ensure!(report["ledger"]["clean"] == false, "{:#}", report["ledger"]);
        for flow in report["flows"].as_array().context("flows")? {
            let verdict = &flow["verdict"];
            ensure!(verdict["confidence"] != "inferred", "{flow:#}");
            let possible: &[&str] = if flow["server"]["addr"] == nobody.ip().to_string() {
                &["request_dropped", "refused"]
            } else {
                &["answered"]
            };
            let code = verdict["code"].as_str().unwrap_or("null");
            ensure!(
                verdict["confidence"] != "proven" || possible.contains(&code),
                "proven, and did not happen: {flow:#}"
            );
        }
        Ok(())
    })
}

/// The ids of the programs that a process holds, from its descriptors.
fn programs_of(pid: u32) -> Result<BTreeSet<u32>> {
    let mut programs = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo"))? {
        // A descriptor may be closed while this looks at it.
        let Ok(text) = fs::read_to_string(entry?.path()) else {
            continue;
        };
        programs.extend(
            text.lines()
                .filter_map(|line| line.strip_prefix("prog_id:")?.trim().parse::<u32>().ok()),
        );
    }
    Ok(programs)
}

fn is_loaded(program: u32) -> Result<bool> {
    let output = Command::new("bpftool")
        .args(["prog", "show", "id", &program.to_string()])
        .output()
        .context("running bpftool")?;
    Ok(output.status.success())
}

fn nothing_is_left(programs: &BTreeSet<u32>) -> Result<()> {
    let deadline = Instant::now() + GONE_WITHIN;
    for program in programs {
        while is_loaded(*program)? {
            ensure!(
                Instant::now() < deadline,
                "program {program} is still loaded"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// Sends a signal to a tracer and sees to it that the kernel forgets every program that it held.
fn leaves_nothing_after(signal: Signal, tracer: Tracer, is_ready: bool) -> Result<()> {
    // A stopped process loads nothing more between this look and the signal.
    tracer.signal(Signal::SIGSTOP)?;
    let programs = programs_of(tracer.pid())?;
    for program in &programs {
        ensure!(is_loaded(*program)?, "program {program} is not there");
    }
    ensure!(
        !(is_ready && programs.is_empty()),
        "a tracer without programs"
    );
    tracer.signal(signal)?;
    tracer.signal(Signal::SIGCONT)?;
    nothing_is_left(&programs)?;
    tracer.finish(GONE_WITHIN)?;
    Ok(())
}

fn start() -> Result<Tracer> {
    Tracer::start(&["trace", "--for", "60s", "--format", "json"])
}

#[test]
fn sigkill_leaves_no_program_behind() -> Result<()> {
    for delay in [0, 7, 130, 600] {
        let mut tracer = start()?;
        tracer.wait_until_ready()?;
        thread::sleep(Duration::from_millis(delay));
        leaves_nothing_after(Signal::SIGKILL, tracer, true)?;
    }
    Ok(())
}

#[test]
fn sigkill_while_it_attaches_leaves_no_program_behind() -> Result<()> {
    for delay in [5, 20, 50, 90, 150, 300] {
        let tracer = start()?;
        thread::sleep(Duration::from_millis(delay));
        leaves_nothing_after(Signal::SIGKILL, tracer, false)?;
    }
    Ok(())
}

#[test]
fn a_closed_terminal_or_sigterm_leaves_no_program_behind() -> Result<()> {
    for signal in [Signal::SIGHUP, Signal::SIGTERM] {
        let mut tracer = start()?;
        tracer.wait_until_ready()?;
        leaves_nothing_after(signal, tracer, true)?;
    }
    Ok(())
}
