//! The live view where there is no screen: lines in a pipe.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tracer::lab::{Family, Outcome, Server, connect, mortal};
use tracer_tests::faults::{self, SYN_ACK};
use tracer_tests::{Tracer, binary, exchange, with_lab};

/// Longer than the answer deadline of TCP, 3.5 s after the first SYN.
const PATIENCE: Duration = Duration::from_millis(4500);

#[test]
fn lines_name_what_failed_and_where_it_died() -> Result<()> {
    with_lab(Family::V4, |lab| {
        let server = lab.plan.server(6379);
        let _server = Server::start(&lab.pod_b, server)?;
        let filter = lab.plan.filter();
        let mut watch = Tracer::start(&["watch", "--for", "60s", "--every", "500ms", &filter])?;
        watch.wait_until_ready()?;
        let healthy = exchange(lab)?;
        faults::netfilter(&lab.node_a, "forward", &format!("{SYN_ACK} drop"))?;
        let attempt = connect(&lab.pod_a, 0, server)?;
        let broken = attempt.local;
        let outcome = attempt.wait(PATIENCE);
        ensure!(matches!(outcome, Outcome::TimedOut), "{outcome:?}");
        thread::sleep(Duration::from_millis(700));
        let run = watch.interrupt()?;
        ensure!(run.code() == Some(0), "{run:?}");
        let waited = format!("  flow  waiting  {broken} → {server}  ");
        ensure!(run.stdout.contains(&waited), "{}", run.stdout);
        let lines: Vec<&str> = run.stdout.lines().collect();
        let blocks = lines.iter().filter(|line| !line.starts_with(' ')).count();
        ensure!(blocks > 5, "want a block every 500 ms: {}", run.stdout);
        let last = lines
            .iter()
            .rposition(|line| !line.starts_with(' '))
            .context("no block at all")?;
        let counts = "0 waiting, 1 faults, 0 refused, 0 inconclusive, 1 answered; nothing lost";
        ensure!(lines[last].ends_with(counts), "{}", run.stdout);
        let line = |beginning: String, rest: &[&str]| {
            let found = lines[last..].iter().any(|line| {
                line.starts_with(&beginning) && rest.iter().all(|word| line.contains(word))
            });
            ensure!(
                found,
                "no line `{beginning}…` with {rest:?}:\n{}",
                run.stdout
            );
            Ok(())
        };
        line(
            format!("  flow  reply_dropped  {broken} → {server}  "),
            &["netfilter", "vx0 (node-a)"],
        )?;
        line(
            "  drop  netfilter  ".to_owned(),
            &["NETFILTER_DROP", "vx0 (node-a)"],
        )?;
        let failed = |line: &&str| line.contains(&healthy.to_string()) && !line.contains("waiting");
        ensure!(!lines.iter().any(failed), "{}", run.stdout);
        ensure!(!run.stdout.contains('\x1b'), "{:?}", run.stdout);
        Ok(())
    })
}

#[test]
fn a_reader_who_goes_away_ends_it() -> Result<()> {
    let mut watch = mortal(binary()?)
        .args(["watch", "--for", "60s", "--every", "200ms", "port 1"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    drop(watch.stdout.take());
    let deadline = Instant::now() + Duration::from_secs(40);
    while Instant::now() < deadline {
        if let Some(status) = watch.try_wait()? {
            ensure!(status.code() == Some(0), "{status}");
            return Ok(());
        }
        thread::sleep(Duration::from_millis(20));
    }
    watch.kill()?;
    watch.wait()?;
    bail!("it goes on without a reader")
}
