//! The conclusion about a flow, in codes for scripts and in words for people.

use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::time::Time;
use crate::codes::{CauseCode, Confidence, IcmpFate, Stage, VerdictCode};
use crate::fact::RouteKind;

/// The conclusion about a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// What happened.
    pub code: VerdictCode,
    /// How it is known.
    pub confidence: Confidence,
    /// One sentence, without a full stop.
    pub summary: String,
    /// What to do now.
    pub next: Option<String>,
    /// Where it happened.
    pub at: Option<At>,
    /// Why it happened.
    pub cause: Option<Cause>,
}

/// A place and a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct At {
    /// The inode number of the namespace.
    pub netns: Option<u32>,
    /// That namespace's name, where it has one.
    pub netns_name: Option<String>,
    /// The device.
    pub device: Option<String>,
    /// That device's index in its namespace.
    pub ifindex: Option<u32>,
    /// The kernel function, with its offset.
    pub function: Option<String>,
    /// Where in the stack.
    pub stage: Stage,
    /// When.
    pub time: Option<Time>,
}

/// Why a packet died, or why a flow failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Cause {
    /// For scripts.
    pub code: CauseCode,
    /// The kernel's own drop reason, where it gave one.
    pub drop_reason: Option<String>,
    /// The function that freed the packet, with its offset.
    pub function: Option<String>,
    /// Its callers, nearest first.
    pub callers: Vec<String>,
    /// For people.
    pub detail: Option<String>,
    /// What supports it.
    pub evidence: Vec<Evidence>,
    /// Bytes of the outermost IP packet.
    pub packet_len: Option<u32>,
    /// Bytes of the largest IP packet that the packet travels as, if it was too big: of a segment, where it is still to be
    /// cut into some.
    #[serde(default)]
    pub segment_len: Option<u32>,
    /// Bytes that the device takes; for a packet that was too big, those that the way on takes, where that is known.
    pub mtu: Option<u32>,
    /// Whether the packet was still to be cut into segments.
    pub gso: Option<bool>,
    /// Whether the IP header forbade fragments.
    pub dont_fragment: Option<bool>,
    /// Whether an ICMP error was sent to its sender.
    pub icmp_sent: Option<bool>,
    /// Whether that ICMP error reached the sender.
    pub icmp_delivered: Option<bool>,
    /// For a packet that was too big: which sizes came how far, device by device in the order of the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sizes: Vec<HopSizes>,
    /// What became of the ICMP error, or why there was none.
    #[serde(default)]
    pub icmp_fate: Option<IcmpFate>,
}

/// How large the packets were that a device saw of one direction of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HopSizes {
    /// The inode number of the device's namespace.
    pub netns: u32,
    /// That namespace's name, where it has one.
    pub netns_name: Option<String>,
    /// The device.
    pub device: Option<String>,
    /// That device's index in its namespace.
    pub ifindex: u32,
    /// Bytes of the largest packet that came to it or left through it: the flow's own IP packet, without tunnel headers, and one
    /// segment of what is still to be cut.
    pub largest_seen: u32,
    /// Bytes of the smallest that died of its size there.
    pub smallest_died: Option<u32>,
}

/// Something that supports a cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Evidence {
    /// Something that was seen.
    Event {
        /// When.
        time: Option<Time>,
        /// What.
        summary: String,
    },
    /// A counter of a namespace, or of a device in it, that moved during the trace.
    Counter {
        /// The namespace's inode number.
        netns: u32,
        /// That namespace's name, where it has one.
        netns_name: Option<String>,
        /// The device; `null` for a counter of the whole namespace.
        device: Option<String>,
        /// As `nstat` names it; of a device, as `struct rtnl_link_stats64` does.
        name: String,
        /// When the trace began.
        before: u64,
        /// When it ended.
        after: u64,
    },
    /// How a namespace routed the packet when it was asked, soon after the death or the departure.
    Route {
        /// When it was asked.
        time: Option<Time>,
        /// The namespace's inode number.
        netns: u32,
        /// That namespace's name, where it has one.
        netns_name: Option<String>,
        /// To which address: the packet's destination, or its source for the way back.
        to: IpAddr,
        /// What was found, in the words of `ip route`.
        summary: String,
        /// The type of the route.
        found: RouteKind,
        /// The route's destination in CIDR notation, where it is certain which route it was.
        prefix: Option<String>,
        /// Its table, likewise.
        table: Option<u32>,
        /// The priority of the rule that led there, where that is certain.
        rule: Option<u32>,
        /// Which packets that rule is for, in the words of `ip rule`.
        rule_selector: Option<String>,
        /// The packet's mark with which it was asked; 0 for none.
        mark: u32,
    },
    /// A sysctl, when it was asked, soon after the death.
    Sysctl {
        /// When it was asked.
        time: Option<Time>,
        /// The namespace's inode number.
        netns: u32,
        /// That namespace's name, where it has one.
        netns_name: Option<String>,
        /// As `sysctl` names it.
        name: String,
        /// The value.
        value: i64,
    },
    /// A WireGuard device and the peers that the packet concerns, when it was asked.
    Wireguard {
        /// When it was asked.
        time: Option<Time>,
        /// The namespace's inode number.
        netns: u32,
        /// That namespace's name, where it has one.
        netns_name: Option<String>,
        /// The device.
        device: Option<String>,
        /// The UDP port that it listens on.
        listen_port: u16,
        /// The mark of its datagrams; 0 for none.
        fwmark: u32,
        /// The peers.
        peers: Vec<WireguardPeer>,
    },
    /// What a namespace knew of a neighbour when it was asked, soon after the death.
    Neighbour {
        /// When it was asked.
        time: Option<Time>,
        /// The namespace's inode number.
        netns: u32,
        /// That namespace's name, where it has one.
        netns_name: Option<String>,
        /// Behind which device.
        device: Option<String>,
        /// The neighbour's address.
        addr: IpAddr,
        /// As `ip neigh` writes it; `null` where there is no entry.
        state: Option<String>,
        /// Its link-layer address, where it is known.
        mac: Option<String>,
    },
}

/// A peer of a WireGuard device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WireguardPeer {
    /// The first letters of its public key.
    pub public_key: String,
    /// Where datagrams to it are sent; `null` while that is not known.
    pub endpoint: Option<SocketAddr>,
    /// Its AllowedIPs, in CIDR notation.
    pub allowed_ips: Vec<String>,
    /// When the latest handshake was; `null` for never.
    pub latest_handshake: Option<Time>,
    /// Bytes of datagrams that came from it.
    pub rx_bytes: u64,
    /// Bytes of datagrams to it.
    pub tx_bytes: u64,
}
