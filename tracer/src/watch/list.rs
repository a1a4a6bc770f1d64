//! What of a snapshot is listed, and in which order: pure functions of what the user chose.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};

use super::model::{DropCount, DropKind, FlowRow, Snapshot};
use crate::escape::escape;
use crate::report::Endpoint;

/// The order of the flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowSort {
    /// The newest first.
    #[default]
    Age,
    /// By state, those that wait first.
    State,
    /// By server, so that one that fails everybody stands out.
    Server,
    /// The most often repeated requests first.
    Tries,
}

impl FlowSort {
    /// The next one.
    pub const fn next(self) -> Self {
        match self {
            Self::Age => Self::State,
            Self::State => Self::Server,
            Self::Server => Self::Tries,
            Self::Tries => Self::Age,
        }
    }

    /// What the user calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::State => "state",
            Self::Server => "server",
            Self::Tries => "tries",
        }
    }
}

/// The order of the drops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DropSort {
    /// The most frequent first.
    #[default]
    Packets,
    /// By cause.
    Cause,
    /// By namespace and device.
    Place,
    /// The latest first.
    Last,
}

impl DropSort {
    /// The next one.
    pub const fn next(self) -> Self {
        match self {
            Self::Packets => Self::Cause,
            Self::Cause => Self::Place,
            Self::Place => Self::Last,
            Self::Last => Self::Packets,
        }
    }

    /// What the user calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Cause => "cause",
            Self::Place => "place",
            Self::Last => "last",
        }
    }
}

/// The flows that contain a text, in order.
pub fn flows<'a>(
    snapshot: &'a Snapshot,
    text: &str,
    sort: FlowSort,
    reverse: bool,
) -> Vec<&'a FlowRow> {
    let matches = |row: &&FlowRow| {
        let words = [state(row), &tuple(row), &cause(row), &place_of(row)].join(" ");
        contains(&words, text)
    };
    let mut rows: Vec<&FlowRow> = snapshot.flows.iter().filter(matches).collect();
    // Among equals the newest comes first, and the order never depends on chance.
    rows.sort_by_key(|row| (Reverse(row.first_ns), row.id));
    match sort {
        FlowSort::Age => {}
        FlowSort::State => rows.sort_by_key(|row| (!row.waiting, row.flow.verdict.code)),
        FlowSort::Server => rows.sort_by_key(|row| (row.flow.server.addr, row.flow.server.port)),
        FlowSort::Tries => rows.sort_by_key(|row| Reverse(row.flow.request.count)),
    }
    if reverse {
        rows.reverse();
    }
    rows
}

/// The drops that contain a text, in order.
pub fn drops<'a>(
    snapshot: &'a Snapshot,
    text: &str,
    sort: DropSort,
    reverse: bool,
) -> Vec<&'a (DropKind, DropCount)> {
    let matches = |(kind, _): &&(DropKind, DropCount)| {
        contains(
            &[kind.cause, &escape(&kind.reason), &place(kind)].join(" "),
            text,
        )
    };
    let mut rows: Vec<&(DropKind, DropCount)> = snapshot.drops.iter().filter(matches).collect();
    rows.sort_by_key(|(kind, _)| kind);
    match sort {
        DropSort::Packets => rows.sort_by_key(|(_, count)| Reverse(count.packets)),
        DropSort::Cause => {}
        DropSort::Place => rows.sort_by_key(|(kind, _)| (&kind.netns, &kind.device)),
        DropSort::Last => rows.sort_by_key(|(_, count)| Reverse(count.last)),
    }
    if reverse {
        rows.reverse();
    }
    rows
}

fn contains(words: &str, text: &str) -> bool {
    text.is_empty() || words.to_lowercase().contains(&text.to_lowercase())
}

/// The verdict's code, or that there is none yet.
pub fn state(row: &FlowRow) -> &'static str {
    if row.waiting {
        "waiting"
    } else {
        row.flow.verdict.code.name()
    }
}

/// Who talks to whom.
pub fn tuple(row: &FlowRow) -> String {
    let (client, server) = (&row.flow.client, &row.flow.server);
    format!("{} → {}", address(client), address(server))
}

fn address(endpoint: &Endpoint) -> String {
    match (endpoint.addr, endpoint.port) {
        (addr, Some(port)) => SocketAddr::new(addr, port).to_string(),
        (IpAddr::V4(addr), None) => addr.to_string(),
        (IpAddr::V6(addr), None) => addr.to_string(),
    }
}

/// Why, if that is known, escaped.
pub fn cause(row: &FlowRow) -> String {
    let cause = row.flow.verdict.cause.as_ref();
    cause
        .map(|cause| cause.code.name().to_owned())
        .unwrap_or_default()
}

/// Where the packet that decides was seen last, escaped.
pub fn place_of(row: &FlowRow) -> String {
    let Some(at) = &row.flow.verdict.at else {
        return String::new();
    };
    let netns = at.netns_name.clone();
    let netns = netns.or(at.netns.map(|netns| netns.to_string()));
    join(
        at.device.as_deref().unwrap_or_default(),
        netns.as_deref().unwrap_or_default(),
    )
}

/// A device in its namespace, escaped.
pub fn place(kind: &DropKind) -> String {
    join(&kind.device, &kind.netns)
}

fn join(device: &str, netns: &str) -> String {
    match (device, netns) {
        ("", "") => String::new(),
        (device, "") => escape(device),
        ("", netns) => format!("({})", escape(netns)),
        (device, netns) => format!("{} ({})", escape(device), escape(netns)),
    }
}

/// A time span in three or four characters.
pub fn age(span_ns: u64) -> String {
    let seconds = span_ns / 1_000_000_000;
    match seconds {
        0..=99 => format!("{seconds}s"),
        100..=5_999 => format!("{}m", seconds / 60),
        6_000..=359_999 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}
