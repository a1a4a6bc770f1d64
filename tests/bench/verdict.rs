//! How long after the deciding event a verdict is there.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::Bench;
use crate::network::SERVER;
use crate::statistics::Estimate;
use crate::table::Table;
use crate::tools::Tool;

/// Longer than a verdict takes.
const AT_MOST: Duration = Duration::from_secs(10);

pub fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("verdict.jsonl");
    // The tool's arguments are constants, and so is this name for as long as the process lives.
    let capture: &'static str = Box::leak(path.to_string_lossy().into_owned().into_boxed_str());
    let arguments: &'static [&'static str] = Box::leak(Box::new([
        "--until-verdict",
        "--capture",
        capture,
        "host",
        "10.201.77.2",
    ]));
    let (mut known, mut gone) = (Vec::new(), Vec::new());
    for round in 0..bench.rounds {
        let Some(running) = Tool::Tracer(arguments).start_anywhere(&bench.pair)? else {
            continue;
        };
        // The tracer looks every 100 ms: the event comes at another moment between two looks in every round.
        thread::sleep(Duration::from_millis(100 + (37 * round as u64) % 100));
        let refused = bench
            .pair
            .client
            .run(|| TcpStream::connect_timeout(&SocketAddr::new(SERVER, 7_999), AT_MOST))?;
        ensure!(refused.is_err(), "somebody listens at port 7999");
        let ended = running.wait(Instant::now())?;
        gone.push(ended.after.as_secs_f64() * 1e3);
        known.push(decided_after(&fs::read_to_string(&path)?)?);
    }
    table.row(
        "deciding event → verdict (refused, `--until-verdict`)",
        Estimate::median(&known),
        "ms",
        None,
    );
    table.row(
        "… and until the report is written and the hooks are gone",
        Estimate::median(&gone),
        "ms",
        None,
    );
    Ok(())
}

/// From the last packet of a capture to the moment at which the verdict ended the trace, in milliseconds.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds of some seconds")]
fn decided_after(capture: &str) -> Result<f64> {
    let (mut last_ns, mut end_ns) = (None, None);
    for line in capture.lines() {
        let record: Value = serde_json::from_str(line)?;
        match record["type"].as_str() {
            Some("event") => last_ns = last_ns.max(record["time_ns"].as_u64()),
            Some("trailer") => end_ns = record["end_ns"].as_u64(),
            _ => {}
        }
    }
    let (last_ns, end_ns) = (last_ns.context("no event")?, end_ns.context("no end")?);
    Ok(end_ns.saturating_sub(last_ns) as f64 / 1e6)
}
