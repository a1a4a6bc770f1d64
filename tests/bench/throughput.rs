//! How much of a TCP stream's throughput is left.

use std::time::Duration;

use anyhow::Result;

use crate::Bench;
use crate::comparison::compare;
use crate::network::bulk;
use crate::table::Table;
use crate::tools::Tool;

/// How long each stream is.
const BLOCK: Duration = Duration::from_millis(250);

const TOOLS: &[Tool] = &[
    Tool::Nothing,
    Tool::Tracer(&[]),
    Tool::Tracer(&["host", "203.0.113.7"]),
    Tool::Tracer(&["--all-packets"]),
    Tool::Tcpdump,
];
const WHAT: &[&str] = &[
    "",
    "TCP throughput kept, default trace",
    "TCP throughput kept, traffic that does not match",
    "TCP throughput kept, `--all-packets`",
    "TCP throughput kept, `tcpdump -w /dev/null`",
];

pub fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    let listener = bench.pair.listen(5201)?;
    let compared = compare(&bench.pair, bench.rounds, TOOLS, || {
        bulk(&bench.pair, &listener, BLOCK)
    })?;
    for (tool, what) in WHAT.iter().enumerate().skip(1) {
        table.row(what, compared.ratio(tool), "", Some(compared.ratio(0)));
    }
    let rates: Vec<f64> = compared
        .samples(0)
        .iter()
        .map(|sample| sample.untraced)
        .collect();
    table.note(format!(
        "The TCP stream moves {:.1} Gbit/s untraced, its sender on one CPU, its receiver and the tools on the other.",
        crate::statistics::median(&rates) * 8e-9
    ));
    table.lost("TCP streams", compared.lost_events);
    Ok(())
}
