//! How far a report can be trusted: the window, the blind spots and the ledger; and what to try when nothing was seen.

use std::time::Duration;

use super::path::netns;
use super::{Item, Row, Section, Tone, plural};
use crate::report::{HookState, Ledger, Report, StoppedBy};

/// Not one flow: a typo must not look healthy.
pub(super) fn nothing_matched(report: &Report) -> Section {
    let observer = &report.observer;
    let mut rows = Vec::new();
    rows.push(Row::new(
        "filter",
        observer
            .filter
            .as_deref()
            .unwrap_or("none: every new connection"),
    ));
    rows.push(watched(report));
    let mut reasons = Vec::new();
    if let Some(filter) = &observer.filter {
        reasons.push(
            "a typo: an address, port or protocol of the filter that this traffic does not have",
        );
        if filter
            .split(|c: char| !c.is_alphanumeric())
            .any(|word| word == "src" || word == "dst")
        {
            reasons.push("the direction: `src` and `dst` are those of the request or of the reply, not of both ends");
        }
    }
    if observer.netns.is_some() {
        reasons.push("the namespace: the traffic is not in the namespaces that were watched (try without --netns)");
    }
    reasons.push("the moment: nobody tried in this window (try --for 2m, or --for 0 until Ctrl-C)");
    reasons.push("the node: the traffic does not pass this one");
    reasons.push("the client: where its own kernel has no route (\"Network is unreachable\") it sends nothing at all");
    if !report.observer.blind_spots.is_empty() {
        reasons.push("a blind spot, listed below");
    }
    rows.extend(
        reasons
            .into_iter()
            .map(|reason| Row::new("perhaps", reason)),
    );
    Section {
        title: "no packet matched, so this says nothing about the network".to_owned(),
        tone: Tone::Open,
        confidence: None,
        rows,
    }
}

/// What was watched, for how long, and what was missed.
pub(super) fn footer(report: &Report) -> Section {
    let mut rows = Vec::new();
    if !report.flows.is_empty() {
        rows.push(watched(report));
    }
    if let Some(stopped) = stopped(report.window.stopped_by) {
        rows.push(Row::new("stopped", stopped).toned(Tone::Open));
    }
    rows.extend(
        report
            .observer
            .blind_spots
            .iter()
            .map(|spot| Row::new("not seen", spot.summary.clone())),
    );
    rows.extend(
        report
            .observer
            .hooks
            .iter()
            .filter(|hook| hook.state == HookState::Failed)
            .map(|hook| {
                let reason = hook.reason.as_deref().unwrap_or("the kernel refused it");
                Row::new("no hook", format!("{}: {reason}", hook.name)).toned(Tone::Open)
            }),
    );
    rows.push(ledger(report));
    Section {
        title: count(report),
        tone: Tone::Plain,
        confidence: None,
        rows,
    }
}

fn count(report: &Report) -> String {
    let summary = &report.summary;
    let codes: Vec<String> = summary
        .by_code
        .iter()
        .map(|(code, count)| format!("{count} {}", code.name()))
        .collect();
    let flows = usize::try_from(summary.flows).unwrap_or(usize::MAX);
    if codes.is_empty() {
        return "0 flows".to_owned();
    }
    format!("{flows} flow{}: {}", plural(flows), codes.join(", "))
}

fn watched(report: &Report) -> Row {
    let view = match &report.observer.netns {
        None => "every network namespace".to_owned(),
        Some(set) => {
            let names: Vec<String> = set
                .iter()
                .filter_map(|watched| netns(watched.netns_name.as_deref(), Some(watched.netns)))
                .collect();
            names.join(", ")
        }
    };
    let from = report
        .window
        .start
        .map(|start| format!(" from {} UTC", start.date_and_clock()));
    let mut row = Row::new(
        "watched",
        format!(
            "{view} of {} (Linux {})",
            report.node.hostname, report.node.kernel
        ),
    );
    row.items.push(Item::new(
        format!(
            "{}{}",
            seconds(report.window.duration_ns),
            from.unwrap_or_default()
        ),
        Tone::Plain,
    ));
    row
}

fn seconds(duration_ns: u64) -> String {
    format!("{:.1} s", Duration::from_nanos(duration_ns).as_secs_f64())
}

/// Only what was not planned is worth a line.
fn stopped(stopped_by: StoppedBy) -> Option<&'static str> {
    match stopped_by {
        StoppedBy::Duration | StoppedBy::Verdict => None,
        StoppedBy::Signal => Some("by Ctrl-C or SIGTERM"),
        StoppedBy::Cut => Some("the capture was cut: whoever wrote it was killed"),
        StoppedBy::Failure => Some("the tracer could not go on; this is what it saw before"),
    }
}

fn ledger(report: &Report) -> Row {
    let ledger = &report.ledger;
    let (attached, offered) = report.observer.hook_counts();
    let hooks = format!("{attached} of {offered} hooks");
    let lost = lost(ledger);
    if ledger.clean {
        let lost = if lost.is_empty() {
            "0 lost".to_owned()
        } else {
            lost.join(", ")
        };
        return Row::new("ledger", format!("clean: {lost}, {hooks}"));
    }
    let lost = match report.window.stopped_by {
        _ if !lost.is_empty() => lost.join(", "),
        StoppedBy::Cut => "what came after the cut".to_owned(),
        _ => "something was lost".to_owned(),
    };
    Row::new("ledger", format!("not clean: {lost}; {hooks}")).toned(Tone::Bad)
}

fn lost(ledger: &Ledger) -> Vec<String> {
    [
        (ledger.ring_full, "lost because the ring was full"),
        (ledger.missed, "missed by a hook"),
        (ledger.unreadable, "with unreadable headers"),
        (ledger.undecodable, "not decodable"),
        (ledger.rate_limited, "held back by the budget of busy flows"),
        (ledger.table_full, "evicted from a full table"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, what)| format!("{count} {what}"))
    .collect()
}
