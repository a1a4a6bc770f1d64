//! How much longer a request waits for its answer: one byte to and fro on a TCP connection between two CPUs.

use std::time::Duration;

use anyhow::Result;

use crate::Bench;
use crate::comparison::compare;
use crate::network::round_trips;
use crate::statistics::quantile;
use crate::table::Table;
use crate::tools::Tool;

/// How long each block is: some thousand round trips.
const BLOCK: Duration = Duration::from_millis(150);

const TOOLS: &[Tool] = &[
    Tool::Nothing,
    Tool::Tracer(&[]),
    Tool::Tracer(&["host", "203.0.113.7"]),
    Tool::Tcpdump,
];
const WHAT: &[&str] = &[
    "",
    "default trace",
    "traffic that does not match",
    "`tcpdump -w /dev/null`",
];

pub fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    let listener = bench.pair.listen(5202)?;
    for (part, name) in [(0.5, "median"), (0.99, "p99")] {
        let compared = compare(&bench.pair, bench.rounds, TOOLS, || {
            let trips = round_trips(&bench.pair, &listener, BLOCK)?;
            Ok(quantile(&trips, part))
        })?;
        for (tool, what) in WHAT.iter().enumerate().skip(1) {
            table.row(
                &format!("{name} round trip ÷ untraced, {what}"),
                compared.ratio(tool),
                "",
                Some(compared.ratio(0)),
            );
        }
    }
    Ok(())
}
