//! A flow as the report tells it: who talks to whom, the packets of the exchange and the way each took.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::time::Time;
use crate::codes::{PacketKind, Stage};
use crate::fact::Runtime;

use super::verdict::{At, Cause, Verdict};

/// A flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Flow {
    /// Its number in this report, from 1, in the order of first packets.
    pub id: u64,
    /// Its protocol.
    pub protocol: Protocol,
    /// Which exchange between its ends it is, where the protocol tells; `null` for TCP and other UDP.
    pub exchange: Option<Exchange>,
    /// Who asks, as addressed nearest to the client.
    pub client: Endpoint,
    /// Who is asked, as addressed at the same place.
    pub server: Endpoint,
    /// Where the addresses changed on the way.
    pub translations: Vec<Translation>,
    /// The tunnels that carried it, each once per direction.
    pub tunnels: Vec<Tunnel>,
    /// The SYN, the echo request, the DNS query, or all datagrams of the client.
    pub request: Leg,
    /// The SYN-ACK, the echo reply, the DNS answer, or all datagrams of the server.
    pub reply: Leg,
    /// The ACK that ends a TCP handshake; `null` for other protocols.
    pub ack: Option<Leg>,
    /// The RSTs.
    pub resets: Vec<Reset>,
    /// Copies of packets that were sent again, data included.
    pub retransmits: u64,
    /// The packets that died, those that mean nothing included.
    pub losses: Vec<Loss>,
    /// The conclusion.
    pub verdict: Verdict,
}

impl Flow {
    /// When something of this flow was last seen.
    pub fn last_time(&self) -> Option<Time> {
        [
            self.verdict.at.as_ref().and_then(|at| at.time),
            self.request.last,
            self.reply.last,
            self.ack.as_ref().and_then(|ack| ack.last),
        ]
        .into_iter()
        .flatten()
        .chain(self.resets.iter().filter_map(|reset| reset.last))
        .max()
    }
}

/// The protocol of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP.
    Icmp,
    /// ICMPv6.
    Icmp6,
}

impl Protocol {
    /// As the filter language spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
            Self::Icmp6 => "icmp6",
        }
    }
}

/// Which of the exchanges between two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Exchange {
    /// A DNS query with its answer.
    Dns {
        /// The identifier that both have.
        id: u16,
    },
    /// An ICMP echo with its reply.
    Echo {
        /// The identifier of the `ping`, as its host chose it.
        id: u16,
        /// The number of the echo.
        seq: u16,
    },
}

/// One end of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Endpoint {
    /// Its address.
    pub addr: IpAddr,
    /// Its port; `null` for ICMP.
    pub port: Option<u16>,
    /// The process that owns the socket, where that is known.
    pub process: Option<Process>,
    /// The container that the process runs in, where it runs in one.
    pub container: Option<Container>,
    /// The pod of that container, as `NAMESPACE/NAME`, where it is known.
    pub pod: Option<String>,
    /// The inode number of the socket's network namespace, where the socket was seen.
    pub netns: Option<u32>,
    /// That namespace's name, where it has one.
    pub netns_name: Option<String>,
}

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Process {
    /// Its id in the initial pid namespace.
    pub pid: u32,
    /// Its name (`/proc/PID/comm`), which it chooses itself.
    pub comm: String,
}

/// A container, as the cgroup of a process tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Container {
    /// Its whole id.
    pub id: String,
    /// What runs it, where the cgroup says so.
    pub runtime: Option<Runtime>,
    /// The uid of its Kubernetes pod, where it is of one.
    pub pod_uid: Option<String>,
}

/// A change of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Translation {
    /// Where in the stack.
    pub stage: Stage,
    /// The addresses before.
    pub from: Tuple,
    /// The addresses after.
    pub to: Tuple,
    /// The first hop that showed the new addresses.
    pub hop: Hop,
}

/// The addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tuple {
    /// The source address.
    pub src: IpAddr,
    /// The source port.
    pub src_port: Option<u16>,
    /// The destination address.
    pub dst: IpAddr,
    /// The destination port.
    pub dst_port: Option<u16>,
}

/// A tunnel that carried packets of a flow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tunnel {
    /// Its kind.
    pub kind: TunnelKind,
    /// The VNI on the wire.
    pub vni: Option<u32>,
    /// What the VNI stands for, where that is known.
    pub vni_meaning: Option<String>,
    /// The tunnel's source.
    pub outer_src: IpAddr,
    /// The tunnel's destination.
    pub outer_dst: IpAddr,
    /// The UDP port that the tunnel is sent to.
    pub udp_dst_port: Option<u16>,
}

/// The kind of a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TunnelKind {
    /// VXLAN, RFC 7348.
    Vxlan,
    /// Geneve, RFC 8926.
    Geneve,
    /// WireGuard.
    Wireguard,
    /// IP directly in IP.
    #[serde(rename = "ipip")]
    IpInIp,
}

impl TunnelKind {
    /// As `ip link` spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vxlan => "vxlan",
            Self::Geneve => "geneve",
            Self::Wireguard => "wireguard",
            Self::IpInIp => "ipip",
        }
    }
}

/// One packet of the exchange, its retransmissions folded in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Leg {
    /// Which packet.
    pub kind: PacketKind,
    /// How many copies were seen; 0 where it never came.
    pub count: u64,
    /// When the first copy was first seen.
    pub first: Option<Time>,
    /// When the last copy was last seen.
    pub last: Option<Time>,
    /// The way of the copy that came furthest.
    pub path: Vec<Hop>,
}

impl Leg {
    /// A packet that never came.
    pub const fn never(kind: PacketKind) -> Self {
        Self {
            kind,
            count: 0,
            first: None,
            last: None,
            path: Vec::new(),
        }
    }
}

/// RSTs from one side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Reset {
    /// Whose address they carry; whoever rejects on the way forges the other end's.
    pub from: Side,
    /// How many.
    pub count: u64,
    /// When the first was first seen.
    pub first: Option<Time>,
    /// When the last was last seen.
    pub last: Option<Time>,
    /// The way of the one that came furthest.
    pub path: Vec<Hop>,
}

/// An end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Side {
    /// Who asks.
    Client,
    /// Who is asked.
    Server,
}

/// A packet that died.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Loss {
    /// Which packet.
    pub packet: PacketKind,
    /// When it died.
    pub time: Option<Time>,
    /// Where it died.
    pub at: Option<At>,
    /// Of what.
    pub cause: Option<Cause>,
    /// Whether its absence explains nothing.
    pub innocent: bool,
    /// Why it is innocent, or what its loss did.
    pub why: String,
}

/// One place where a packet was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Hop {
    /// When.
    pub time: Option<Time>,
    /// Nanoseconds since the hop before; `null` for the first.
    pub delay_ns: Option<u64>,
    /// Where in the stack.
    pub stage: Stage,
    /// On which device.
    pub device: Option<String>,
    /// That device's index in its namespace.
    pub ifindex: Option<u32>,
    /// The inode number of the namespace.
    pub netns: Option<u32>,
    /// That namespace's name, where it has one.
    pub netns_name: Option<String>,
    /// The kernel function, where one was seen.
    pub function: Option<String>,
    /// Bytes of the outermost IP packet.
    pub len: Option<u32>,
    /// The tunnel that the packet was inside of at this hop.
    pub tunnel: Option<HopTunnel>,
    /// That tunnel's addresses.
    pub outer: Option<Outer>,
    /// The skb's mark; `null` for 0.
    pub mark: Option<u32>,
}

/// The tunnel that a packet was inside of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HopTunnel {
    /// Its kind.
    pub kind: TunnelKind,
    /// The VNI on the wire.
    pub vni: Option<u32>,
}

/// The addresses of a tunnel's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Outer {
    /// The source.
    pub src: IpAddr,
    /// The destination.
    pub dst: IpAddr,
    /// The source's UDP port, where it is that of an end and not of a flow: WireGuard's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src_port: Option<u16>,
    /// The destination's UDP port, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst_port: Option<u16>,
}
