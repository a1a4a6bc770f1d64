//! How long a tool takes until it watches, and until it is gone again.

use anyhow::Result;

use crate::Bench;
use crate::statistics::Estimate;
use crate::table::Table;
use crate::tools::Tool;

const TOOLS: &[(&str, Tool)] = &[
    ("tracer", Tool::Tracer(&[])),
    ("tcpdump", Tool::Tcpdump),
    ("bpftrace, five tracepoints", Tool::CountingBpftrace),
];

pub fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    let mut ready = vec![Vec::new(); TOOLS.len()];
    let mut gone = vec![Vec::new(); TOOLS.len()];
    for round in 0..bench.rounds {
        for turn in 0..TOOLS.len() {
            let index = (round + turn) % TOOLS.len();
            let Some(running) = TOOLS[index].1.start_anywhere(&bench.pair)? else {
                continue;
            };
            ready[index].push(running.ready_after.as_secs_f64() * 1e3);
            gone[index].push(running.interrupt()?.after.as_secs_f64() * 1e3);
        }
    }
    for (index, (name, _)) in TOOLS.iter().enumerate() {
        table.row(
            &format!("start → ready, {name}"),
            Estimate::median(&ready[index]),
            "ms",
            None,
        );
    }
    for (index, (name, _)) in TOOLS.iter().enumerate() {
        table.row(
            &format!("Ctrl-C → exit, {name}"),
            Estimate::median(&gone[index]),
            "ms",
            None,
        );
    }
    Ok(())
}
