//! The live view as lines, for a pipe or a file.

use std::io::{self, Write};

use super::list;
use super::model::Snapshot;
use crate::escape::escape;
use crate::report::Time;

/// Lines of each list before it says how many more there are.
const LINES: usize = 20;

/// Writes one block: a line that counts, then a line a flow, then a line a kind of drop.
pub fn write(snapshot: &Snapshot, time: Option<Time>, output: &mut dyn Write) -> io::Result<()> {
    let time = time.map(Time::date_and_clock).unwrap_or_default();
    writeln!(output, "{time} UTC  {}", counts(snapshot))?;
    let flows = list::flows(snapshot, "", list::FlowSort::default(), false);
    for row in flows.iter().take(LINES) {
        let words = [
            "flow".to_owned(),
            list::state(row).to_owned(),
            list::tuple(row),
            format!("{}x", row.flow.request.count),
            list::cause(row),
            list::place_of(row),
        ];
        line(&words, output)?;
    }
    more(flows.len(), "flows", output)?;
    let drops = list::drops(snapshot, "", list::DropSort::default(), false);
    for (kind, count) in drops.iter().take(LINES) {
        let words = [
            "drop".to_owned(),
            kind.cause.to_owned(),
            format!("{}x", count.packets),
            escape(&kind.reason),
            list::place(kind),
        ];
        line(&words, output)?;
    }
    more(drops.len(), "kinds of drop", output)?;
    output.flush()
}

/// What is not known is left out.
fn line(words: &[String], output: &mut dyn Write) -> io::Result<()> {
    let known: Vec<&str> = words
        .iter()
        .map(String::as_str)
        .filter(|word| !word.is_empty())
        .collect();
    writeln!(output, "  {}", known.join("  "))
}

fn more(count: usize, what: &str, output: &mut dyn Write) -> io::Result<()> {
    match count.saturating_sub(LINES) {
        0 => Ok(()),
        more => writeln!(output, "  and {more} more {what}"),
    }
}

/// The flows counted, and whether something was lost.
pub fn counts(snapshot: &Snapshot) -> String {
    let counts = &snapshot.counts;
    let ledger = match snapshot.lost {
        0 => "nothing lost".to_owned(),
        lost => format!("{lost} events lost"),
    };
    format!(
        "{} waiting, {} faults, {} refused, {} inconclusive, {} answered; {ledger}",
        counts.waiting, counts.faults, counts.refused, counts.inconclusive, counts.answered
    )
}
