//! What one small packet costs: a datagram sent in one namespace and received in the other, two devices on its way.

use std::time::Duration;

use anyhow::Result;

use crate::Bench;
use crate::comparison::compare;
use crate::network::{Datagrams, at_work};
use crate::table::Table;
use crate::tools::Tool;

/// How long each block is.
const BLOCK: Duration = Duration::from_millis(40);
/// The devices that a datagram passes, each of which is a hop to tracer; tcpdump looks at one of them.
const HOPS: f64 = 2.0;

const NULL: usize = 0;
const OTHER_FLOW: usize = 1;
const EVERY_FLOW: usize = 2;
const EVERY_PACKET: usize = 3;
const TCPDUMP: usize = 4;
const EMPTY: usize = 5;
const COUNTING: usize = 6;

const TOOLS: &[Tool] = &[
    Tool::Nothing,
    Tool::Tracer(&["host", "203.0.113.7"]),
    Tool::Tracer(&[]),
    Tool::Tracer(&["--all-packets", "host", "10.201.77.2"]),
    Tool::Tcpdump,
    Tool::EmptyBpftrace,
    Tool::CountingBpftrace,
];

pub fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    let datagrams = Datagrams::open(&bench.pair)?;
    let compared = compare(&bench.pair, bench.rounds, TOOLS, || {
        at_work(|| datagrams.nanoseconds_each(BLOCK))
    })?;
    let ratio_null = compared.ratio(NULL);
    let ratios = [
        (OTHER_FLOW, "traffic that does not match ÷ untraced"),
        (EVERY_FLOW, "traffic that matches (no filter) ÷ untraced"),
        (
            EVERY_PACKET,
            "traffic that matches, `--all-packets` ÷ untraced",
        ),
        (
            TCPDUMP,
            "the same datagrams with `tcpdump -w /dev/null` ÷ untraced",
        ),
        (
            EMPTY,
            "… with bpftrace, an empty probe on each tracepoint ÷ untraced",
        ),
        (
            COUNTING,
            "… with bpftrace, a counter on each tracepoint ÷ untraced",
        ),
    ];
    for (tool, what) in ratios {
        table.row(what, compared.ratio(tool), "", Some(ratio_null));
    }
    let null = compared.added(NULL);
    let untraced: Vec<f64> = compared
        .samples(NULL)
        .iter()
        .map(|sample| sample.untraced)
        .collect();
    table.note(format!(
        "A datagram takes {:.0} ns untraced, sent and received on one CPU, system calls included.",
        crate::statistics::median(&untraced)
    ));
    let per_hop = 1.0 / HOPS;
    table.row(
        "traffic that does not match, added per hop",
        compared.added(OTHER_FLOW).times(per_hop),
        "ns",
        Some(null.times(per_hop)),
    );
    table.row(
        "matching, `--all-packets`, added per hop",
        compared.added(EVERY_PACKET).times(per_hop),
        "ns",
        Some(null.times(per_hop)),
    );
    table.row(
        "tcpdump, added per hop (it looks at one)",
        compared.added(TCPDUMP),
        "ns",
        Some(null),
    );
    table.row(
        "matching, added per hop ÷ tcpdump's",
        compared.added_ratio(EVERY_PACKET, TCPDUMP).times(per_hop),
        "",
        None,
    );
    table.row(
        "traffic that does not match, added ÷ bpftrace's empty probes",
        compared.added_ratio(OTHER_FLOW, EMPTY),
        "",
        None,
    );
    table.lost("datagrams", compared.lost_events);
    Ok(())
}
