//! What is told to the user: the output types (schema `tracer.report/1`) and everything that renders them.
//!
//! These types only carry what was concluded. Nothing here judges, and no other room serialises its own types
//! into a report: the JSON Schema is generated from what is declared here. `null` always means "not known".

mod build;
mod flow;
mod html;
mod json;
mod markdown;
mod schema;
mod story;
mod text;
mod time;
mod verdict;

#[cfg(test)]
pub(crate) mod tests;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::codes::{CauseCode, Confidence, IcmpFate, PacketKind, Stage, VerdictCode};
pub use build::{build, flow_now, has_final_fault};
pub use flow::{
    Container, Endpoint, Exchange, Flow, Hop, HopTunnel, Leg, Loss, Outer, Process, Protocol,
    Reset, Side, Translation, Tunnel, TunnelKind, Tuple,
};
pub use json::write_json;
pub use schema::{capture_schema, report_schema};
pub(crate) use text::fill;
pub use text::{Style, flow_lines};
pub use time::Time;
pub use verdict::{At, Cause, Evidence, HopSizes, Verdict, WireguardPeer};

/// The schema id in every report.
pub const REPORT_SCHEMA: &str = "tracer.report/1";

/// How a report is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For a person at a terminal
    #[default]
    Text,
    /// For scripts; `tracer schema report` describes it
    Json,
    /// For a post-mortem
    Markdown,
    /// For a ticket: one page that needs nothing else
    Html,
}

/// Writes a report. `style` matters to [`Format::Text`] only.
pub fn write(
    report: &Report,
    format: Format,
    style: Style,
    output: &mut dyn Write,
) -> io::Result<()> {
    match format {
        Format::Text => text::write(report, style, output),
        Format::Json => write_json(report, output),
        Format::Markdown => markdown::write(report, output),
        Format::Html => html::write(report, output),
    }
}

/// Everything that one run (or one replayed capture) concluded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// [`REPORT_SCHEMA`].
    pub schema: String,
    /// The program that saw it.
    pub tracer: Tracer,
    /// The node that was watched.
    pub node: Node,
    /// When it was watched.
    pub window: Window,
    /// What was watched, and what could not be.
    pub observer: Observer,
    /// What was lost on the way to this report.
    pub ledger: Ledger,
    /// The devices that the hops name, and their tunnels' underlays.
    pub devices: Vec<Device>,
    /// Every flow, in the order of its first packet.
    pub flows: Vec<Flow>,
    /// The flows counted.
    pub summary: Summary,
}

/// The program that saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tracer {
    /// Its version.
    pub version: String,
    /// Its arguments as typed, the program's own name left out.
    pub command: Vec<String>,
}

/// The node that was watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Node {
    /// Its name.
    pub hostname: String,
    /// A hash of `/etc/machine-id`: equal on the same machine, and tells nothing else.
    pub machine_id: String,
    /// `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
    /// `uname -r`.
    pub kernel: String,
    /// `uname -m`.
    pub arch: String,
}

/// When the node was watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Window {
    /// When the last hook was attached.
    pub start: Option<Time>,
    /// When the trace stopped; for a cut capture, its last record.
    pub end: Option<Time>,
    /// Nanoseconds between the two.
    pub duration_ns: u64,
    /// Why it stopped.
    pub stopped_by: StoppedBy,
}

/// Why a trace stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StoppedBy {
    /// `--for` ran out.
    Duration,
    /// Ctrl-C or SIGTERM.
    Signal,
    /// `--until-verdict` had its verdict.
    Verdict,
    /// The capture ends without a trailer: its writer was killed.
    Cut,
    /// The tracer could not go on.
    Failure,
}

impl From<crate::record::StoppedBy> for StoppedBy {
    fn from(stopped_by: crate::record::StoppedBy) -> Self {
        use crate::record::StoppedBy as Recorded;
        match stopped_by {
            Recorded::Duration => Self::Duration,
            Recorded::Signal => Self::Signal,
            Recorded::Verdict => Self::Verdict,
            Recorded::Cut => Self::Cut,
            Recorded::Failure => Self::Failure,
        }
    }
}

/// What was watched, and what could not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Observer {
    /// The filter as typed; `null` where every flow was watched.
    pub filter: Option<String>,
    /// The namespaces that were watched; `null` for the whole kernel.
    pub netns: Option<Vec<Netns>>,
    /// Every hook of this mode and what became of it.
    pub hooks: Vec<Hook>,
    /// What could not be seen.
    pub blind_spots: Vec<BlindSpot>,
}

impl Observer {
    /// How many hooks were attached, and how many this kernel offers in this mode.
    pub fn hook_counts(&self) -> (usize, usize) {
        let count = |wanted: &[HookState]| {
            self.hooks
                .iter()
                .filter(|hook| wanted.contains(&hook.state))
                .count()
        };
        (
            count(&[HookState::Attached]),
            count(&[HookState::Attached, HookState::Failed]),
        )
    }
}

/// A network namespace that was watched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Netns {
    /// Its inode number.
    pub netns: u32,
    /// Its name in `/run/netns`, where it has one.
    pub netns_name: Option<String>,
}

/// A hook and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hook {
    /// The kernel's name of it.
    pub name: String,
    /// `tp_btf`, `raw_tp`, …
    pub kind: String,
    /// Whether it sees anything.
    pub state: HookState,
    /// Why it does not.
    pub reason: Option<String>,
}

/// Whether a hook sees anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HookState {
    /// It is attached.
    Attached,
    /// This kernel does not have it.
    Absent,
    /// The kernel has it and refused it.
    Failed,
}

impl From<crate::record::HookState> for HookState {
    fn from(state: crate::record::HookState) -> Self {
        match state {
            crate::record::HookState::Attached => Self::Attached,
            crate::record::HookState::Absent => Self::Absent,
            crate::record::HookState::Failed => Self::Failed,
        }
    }
}

/// Something that this run could not see.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BlindSpot {
    /// A stable name for scripts.
    pub code: String,
    /// What it means for the reader.
    pub summary: String,
}

/// What was lost on the way to this report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ledger {
    /// Records that the kernel half put into the ring.
    pub emitted: u64,
    /// Records that came out of it.
    pub delivered: u64,
    /// Records lost because the ring was full.
    pub ring_full: u64,
    /// Runs of a program that the kernel skipped, since an interrupt came while it ran on that CPU.
    pub missed: u64,
    /// Packets whose headers could not be read.
    pub unreadable: u64,
    /// Records, or lines of a capture, that could not be decoded.
    pub undecodable: u64,
    /// Packets held back by their flow's budget.
    pub rate_limited: u64,
    /// Entries that a bounded table evicted or refused.
    pub table_full: u64,
    /// Nothing that could have changed this report was lost.
    pub clean: bool,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Device {
    /// The inode number of the namespace that it is in.
    pub netns: u32,
    /// That namespace's name, where it has one.
    pub netns_name: Option<String>,
    /// Its index in that namespace.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// `veth`, `vxlan`, …; `loopback`; `physical` where it has no kind.
    pub kind: String,
    /// Bytes of an IP packet.
    pub mtu: u32,
    /// The other end of a veth.
    pub peer: Option<Peer>,
    /// The VNI of a tunnel device; `null` also where each packet brings its own.
    pub vni: Option<u32>,
    /// The device below.
    pub underlay_ifindex: Option<u32>,
    /// The inode number of the namespace that the device below is in, if not in this device's.
    pub underlay_netns: Option<u32>,
}

/// The other end of a veth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Peer {
    /// The inode number of the namespace that it is in.
    pub netns: u32,
    /// Its index there.
    pub ifindex: u32,
}

/// The flows counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// All flows.
    pub flows: u64,
    /// The flows whose verdict is a fault.
    pub faults: u64,
    /// The flows by verdict; codes without a flow are left out.
    pub by_code: BTreeMap<VerdictCode, u64>,
    /// The fault to look at first.
    pub worst: Option<Worst>,
}

/// The fault to look at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Worst {
    /// `id` of the flow.
    pub flow_id: u64,
    /// Its verdict.
    pub code: VerdictCode,
}

impl Summary {
    /// Counts the flows.
    pub fn of(flows: &[Flow]) -> Self {
        let mut by_code = BTreeMap::new();
        for flow in flows {
            *by_code.entry(flow.verdict.code).or_default() += 1;
        }
        Self {
            flows: flows.len() as u64,
            faults: flows
                .iter()
                .filter(|flow| flow.verdict.code.is_fault())
                .count() as u64,
            by_code,
            worst: faults_worst_first(flows).first().map(|flow| Worst {
                flow_id: flow.id,
                code: flow.verdict.code,
            }),
        }
    }
}

/// The flows whose verdict is a fault, in the order in which they deserve a look: proven before inferred; then
/// reply, request, data, MTU; then the most recent.
pub fn faults_worst_first(flows: &[Flow]) -> Vec<&Flow> {
    let mut faults: Vec<&Flow> = flows
        .iter()
        .filter(|flow| flow.verdict.code.is_fault())
        .collect();
    faults.sort_by_key(|flow| {
        (
            flow.verdict.confidence,
            flow.verdict.code.rank(),
            Reverse(flow.last_time()),
            flow.id,
        )
    });
    faults
}

/// The exit code of `trace` and `report` that this report asks for: 10 for a fault, else 11 where a flow stayed
/// inconclusive or no packet matched, else 0.
pub fn exit_code(report: &Report) -> u8 {
    let inconclusive = |flow: &Flow| flow.verdict.code == VerdictCode::Inconclusive;
    if report.flows.iter().any(|flow| flow.verdict.code.is_fault()) {
        crate::exit::FAULT
    } else if report.flows.is_empty() || report.flows.iter().any(inconclusive) {
        crate::exit::INCONCLUSIVE
    } else {
        crate::exit::OK
    }
}
