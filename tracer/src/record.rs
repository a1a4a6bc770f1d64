//! The one stream that everything after the source reads: a live run produces it, a capture stores it, and a
//! replay reads it back. What is not in a record cannot reach a verdict; that is why a capture gives the same
//! report as the run that wrote it.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::{DeviceId, Event, NetnsId};

pub use crate::fact::Fact;

/// The schema id in the header of a capture.
pub const CAPTURE_SCHEMA: &str = "tracer.capture/1";

/// One line of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Record {
    /// Comes first and once.
    Header(Box<Header>),
    /// A device as it is from now on.
    Device(Box<Device>),
    /// Something that the kernel reported.
    Event(Box<Event>),
    /// Something else that a verdict may use.
    Fact(Fact),
    /// The loss ledger as of now, cumulative.
    Ledger(Ledger),
    /// Two clocks read together.
    Clock(ClockPair),
    /// Comes last and once; a capture without it was cut.
    Trailer(Trailer),
}

/// Who watched what, from where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Header {
    /// [`CAPTURE_SCHEMA`].
    pub schema: String,
    /// The version of the tracer that wrote it.
    pub tracer_version: String,
    /// The subcommand and arguments as typed.
    pub command: Vec<String>,
    /// The node's name.
    pub hostname: String,
    /// A hash of `/etc/machine-id`.
    pub machine_id: String,
    /// `/proc/sys/kernel/random/boot_id`: monotonic times compare only within one boot.
    pub boot_id: String,
    /// `uname -r`.
    pub kernel: String,
    /// `uname -m`.
    pub arch: String,
    /// The filter as typed, empty for none.
    pub filter: String,
    /// Which namespaces were watched.
    pub view: View,
    /// Every hook of this mode and what became of it.
    pub hooks: Vec<Hook>,
    /// What could not be seen.
    pub blind_spots: Vec<BlindSpot>,
    /// The devices that were watched at their `tc` hook as well: what reaches them past the tracepoints was seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tc_devices: Vec<DeviceId>,
    /// CLOCK_MONOTONIC when the last hook was attached.
    pub start_ns: u64,
}

/// The namespaces that were watched. What leaves them has left the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum View {
    /// The whole kernel.
    Kernel,
    /// Exactly these.
    Netns {
        /// The namespaces.
        netns: Vec<NetnsId>,
    },
}

impl View {
    /// Whether a namespace is watched.
    pub fn contains(&self, netns: NetnsId) -> bool {
        match self {
            Self::Kernel => true,
            Self::Netns { netns: set } => set.contains(&netns),
        }
    }
}

/// A hook and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hook {
    /// The kernel's name of it.
    pub name: String,
    /// `tp_btf`, or `tcx` where it is a device's.
    pub kind: String,
    /// Whether it is attached.
    pub state: HookState,
    /// Why it is not, in the user's words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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

/// Something that this run could not see.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct BlindSpot {
    /// A stable name for scripts.
    pub code: String,
    /// What it means for the person who reads the report.
    pub summary: String,
}

/// A network device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Device {
    /// Which device.
    pub id: DeviceId,
    /// The namespace's name in `/run/netns`, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns_name: Option<String>,
    /// The device's name; untrusted, escaped wherever it is shown.
    pub name: String,
    /// `IFLA_INFO_KIND` (`veth`, `vxlan`, …), `loopback`, or `physical` where the device has no kind.
    pub kind: String,
    /// Bytes of an IP packet.
    pub mtu: u32,
    /// `IFF_UP`.
    pub up: bool,
    /// The link-layer address, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<[u8; 6]>,
    /// The other end of a veth (or netkit).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<DeviceId>,
    /// The bridge, bond or VRF that the device is a port of, in the same namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub master_ifindex: Option<u32>,
    /// The VNI of a VXLAN or Geneve device; `None` also for one in external (metadata) mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// The UDP port that a VXLAN, Geneve or WireGuard device receives on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub udp_port: Option<u16>,
    /// The device below (VLAN, macvlan, a tunnel bound to a device); `None` where it is in a namespace that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underlay_ifindex: Option<u32>,
    /// The namespace of the device below, where it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underlay_netns: Option<NetnsId>,
    /// The addresses on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addrs: Vec<IpAddr>,
    /// The device is gone from now on.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
}

impl Device {
    /// The device below, where it is known.
    pub fn underlay(&self) -> Option<DeviceId> {
        Some(DeviceId {
            netns: self.underlay_netns.unwrap_or(self.id.netns),
            ifindex: self.underlay_ifindex?,
        })
    }
}

/// What was lost, cumulative since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ledger {
    /// CLOCK_MONOTONIC when it was read.
    pub time_ns: u64,
    /// Records that the kernel half put into the ring.
    pub emitted: u64,
    /// Records that this half took out of it.
    pub delivered: u64,
    /// Records lost because the ring was full.
    pub ring_full: u64,
    /// Runs of a program that the kernel skipped, since an interrupt came while it ran on that CPU
    /// (`recursion_misses`, Linux 5.12).
    pub missed: u64,
    /// Packets whose headers the kernel half could not read.
    #[serde(default)]
    pub unreadable: u64,
    /// Records that could not be decoded.
    pub undecodable: u64,
    /// Packets held back by their flow's budget.
    pub rate_limited: u64,
    /// Entries that a bounded table evicted or refused, in the kernel or here.
    pub table_full: u64,
}

impl Ledger {
    /// All that was lost on the way from the kernel. The budget holds back data only, and is not a loss.
    pub const fn lost(&self) -> u64 {
        self.ring_full
            .saturating_add(self.missed)
            .saturating_add(self.unreadable)
            .saturating_add(self.undecodable)
            .saturating_add(self.table_full)
    }
}

/// CLOCK_MONOTONIC and CLOCK_REALTIME, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClockPair {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub monotonic_ns: u64,
    /// Nanoseconds since the epoch.
    pub realtime_ns: u64,
}

/// The end of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trailer {
    /// CLOCK_MONOTONIC when the trace stopped.
    pub end_ns: u64,
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
    /// The tracer could not go on (its output failed).
    Failure,
}
