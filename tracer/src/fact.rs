//! What a verdict or a report may use and no event carries: counters, what the kernel answered when it was asked about a
//! packet that had just died or gone astray, and which process has a socket or a device. An answer is true of the moment when it was
//! given, which it names; what it is about was before.

use std::net::{IpAddr, SocketAddr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::{DeviceId, NetnsId, Process};

/// Something that a verdict may use and that no event carries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "fact", rename_all = "snake_case")]
pub enum Fact {
    /// A counter of a namespace, read when the trace began and when it ended.
    Counter {
        /// The namespace.
        netns: NetnsId,
        /// As `nstat` names it (`TcpExtListenOverflows`).
        name: String,
        /// When the trace began.
        before: u64,
        /// When the trace ended.
        after: u64,
    },
    /// A counter of a device, likewise.
    DeviceCounter {
        /// The device.
        device: DeviceId,
        /// As `struct rtnl_link_stats64` names it (`rx_dropped`).
        name: String,
        /// When the trace began.
        before: u64,
        /// When the trace ended.
        after: u64,
    },
    /// How a namespace routes a packet.
    Route(Box<Route>),
    /// The value of a sysctl.
    Sysctl {
        /// The namespace.
        netns: NetnsId,
        /// CLOCK_MONOTONIC when it was asked.
        asked_ns: u64,
        /// As `sysctl` names it (`net.ipv4.conf.eth0.rp_filter`); it holds a device's name, which is untrusted.
        name: String,
        /// The value.
        value: i64,
    },
    /// What a namespace knows of a neighbour.
    Neighbour {
        /// The namespace.
        netns: NetnsId,
        /// CLOCK_MONOTONIC when it was asked.
        asked_ns: u64,
        /// The device behind which the neighbour is.
        ifindex: u32,
        /// The neighbour's address.
        addr: IpAddr,
        /// Its state, or `None` where there is no entry.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        state: Option<NeighbourState>,
        /// Its link-layer address, where it is known and has six bytes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mac: Option<[u8; 6]>,
    },
    /// Which process has a socket.
    Socket(Box<SocketOwner>),
    /// In which container a process runs that an event names.
    Process {
        /// CLOCK_MONOTONIC when it was asked.
        asked_ns: u64,
        /// The process.
        owner: Owner,
    },
    /// Which process holds the other end of a tun or tap device.
    Tun {
        /// The device.
        device: DeviceId,
        /// CLOCK_MONOTONIC when it was asked.
        asked_ns: u64,
        /// The process.
        owner: Owner,
    },
    /// A WireGuard device and its peers, when the trace began, when the device came up, or when the trace ended.
    Wireguard(Box<Wireguard>),
}

/// A WireGuard device as it told itself: never its keys, but for the first letters of public ones.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wireguard {
    /// The device.
    pub device: DeviceId,
    /// CLOCK_MONOTONIC when it was asked.
    pub asked_ns: u64,
    /// The UDP port that it listens on and sends from, or 0 while it is down.
    pub listen_port: u16,
    /// The mark of its datagrams, or 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub fwmark: u32,
    /// Its peers.
    pub peers: Vec<WireguardPeer>,
    /// There are more peers or AllowedIPs than are told here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
}

/// A peer of a WireGuard device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WireguardPeer {
    /// The first letters of its public key, as `wg` writes it.
    pub public_key: String,
    /// Where datagrams to it are sent; `None` while that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<SocketAddr>,
    /// The addresses that are its own: packets to them go to it, and packets from it must come from them.
    pub allowed_ips: Vec<Prefix>,
    /// CLOCK_MONOTONIC of the latest handshake; `None` where there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latest_handshake_ns: Option<u64>,
    /// Bytes of datagrams that came from it.
    pub rx_bytes: u64,
    /// Bytes of datagrams to it.
    pub tx_bytes: u64,
    /// How often it is sent something in any case, in seconds; 0 for never.
    #[serde(default, skip_serializing_if = "is_zero_u16")]
    pub keepalive_s: u16,
}

/// After so long a session is not used any more (`REJECT_AFTER_TIME`, drivers/net/wireguard/messages.h).
const SESSION_FOR_NS: u64 = 180_000_000_000;

impl Wireguard {
    /// The peer that has an address: the longest of all AllowedIPs decides.
    pub fn peer_of(&self, addr: IpAddr) -> Option<&WireguardPeer> {
        let longest = |peer: &WireguardPeer| {
            let prefixes = peer.allowed_ips.iter();
            prefixes
                .filter(|prefix| prefix.contains(addr))
                .map(|prefix| prefix.len)
                .max()
        };
        let peers = self.peers.iter();
        let matching = peers.filter_map(|peer| Some((longest(peer)?, peer)));
        matching.max_by_key(|(len, _)| *len).map(|(_, peer)| peer)
    }
}

impl WireguardPeer {
    /// Whether there may have been a session at a time, as far as a handshake tells.
    pub fn may_have_session(&self, at_ns: u64) -> bool {
        self.latest_handshake_ns
            .is_some_and(|latest_ns| at_ns < latest_ns.saturating_add(SESSION_FOR_NS))
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
fn is_zero_u16(value: &u16) -> bool {
    *value == 0
}

impl Fact {
    /// When it was asked; `None` for what was counted all along.
    pub fn asked_ns(&self) -> Option<u64> {
        match self {
            Self::Counter { .. } | Self::DeviceCounter { .. } => None,
            Self::Route(route) => Some(route.asked_ns),
            Self::Socket(socket) => Some(socket.asked_ns),
            Self::Wireguard(device) => Some(device.asked_ns),
            Self::Sysctl { asked_ns, .. }
            | Self::Neighbour { asked_ns, .. }
            | Self::Process { asked_ns, .. }
            | Self::Tun { asked_ns, .. } => Some(*asked_ns),
        }
    }
}

/// The sysctl of a device (or of `all`), as `sysctl` names it: there a dot in a device's name is a slash.
pub fn sysctl_name(ipv6: bool, device: &str, name: &str) -> String {
    let version = if ipv6 { "ipv6" } else { "ipv4" };
    format!("net.{version}.conf.{}.{name}", device.replace('.', "/"))
}

/// "02:00:00:00:00:0a".
pub fn mac_words(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// How a namespace routes a packet (`RTM_GETROUTE`).
#[expect(
    clippy::struct_excessive_bools,
    reason = "each stands for itself in a capture"
)]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Route {
    /// The namespace.
    pub netns: NetnsId,
    /// CLOCK_MONOTONIC when it was asked.
    pub asked_ns: u64,
    /// What was asked.
    pub lookup: Lookup,
    /// The type of the route that was found.
    pub found: RouteKind,
    /// Its destination, where it is certain which route it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<Prefix>,
    /// Its table, likewise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// The priority of the `ip rule` that led there, where that is certain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<u32>,
    /// Which packets that rule is for, in the words of `ip rule` (`fwmark 0x80000/0xff0000`); it may hold a device's name,
    /// which is untrusted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule_selector: Option<String>,
    /// The rule itself says so, and no table was asked.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_rule: bool,
    /// Where the route leads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hops: Vec<NextHop>,
    /// The route's own MTU (`ip route … mtu N`), where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// A rule looks at ports or protocols, so that the answer holds for this very tuple only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ports_matter: bool,
    /// A rule looks at something that was not asked (a TOS, a user, a VRF), so that the packet itself may have been routed
    /// otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncertain: bool,
    /// It would take the packet, but no rule leads the packet to its table.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unreached: bool,
}

/// A packet that is to be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Lookup {
    /// Which way.
    pub way: Way,
    /// The device that the packet came in on; for [`Way::Output`], the one that it is to leave through.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifindex: Option<u32>,
    /// The IP protocol number.
    pub protocol: u8,
    /// The packet's source, the port 0 where it has none.
    pub src: SocketAddr,
    /// The packet's destination, likewise.
    pub dst: SocketAddr,
    /// `skb->mark`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mark: u32,
}

impl Lookup {
    /// Leaves only what every rule looks at.
    pub const fn forget_ports(&mut self) {
        self.protocol = 0;
        self.src.set_port(0);
        self.dst.set_port(0);
    }

    /// Where the packet is to be routed to.
    pub const fn target(&self) -> IpAddr {
        match self.way {
            Way::Input | Way::Output => self.dst.ip(),
            Way::Reverse => self.src.ip(),
        }
    }
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// What to ask about a packet that died, or went another way than it should have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// In which namespace.
    pub netns: NetnsId,
    /// About what.
    pub about: About,
}

/// What a question is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum About {
    /// Which route took the packet, or that none did.
    Route(Lookup),
    /// Whether the packet passes reverse path filtering: the way back, and the sysctls.
    ReversePath(Lookup),
    /// Whether packets of an IP version that come in on a device are forwarded.
    Forwarding {
        /// The device.
        ifindex: u32,
        /// IPv6, not IPv4.
        ipv6: bool,
    },
    /// What is known of the packet's next hop behind its device.
    Neighbour(Lookup),
    /// Which route took a reply, which would have without its mark, and where there is one that leads through the device on
    /// which its request had come in.
    Egress {
        /// The reply.
        lookup: Lookup,
        /// That device.
        entered: u32,
    },
    /// The way on of a packet that was too big for it, and the way back to its sender, to whom ICMP has to say so.
    TooBig {
        /// The packet.
        onward: Lookup,
        /// The ICMP error, whose source the kernel chooses.
        back: Lookup,
    },
    /// Which IPv4 source addresses a device takes.
    Source {
        /// The device.
        ifindex: u32,
    },
}

/// Which way a packet is to be routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Onwards, having come in on a device.
    Input,
    /// Out of the namespace that made it.
    Output,
    /// Back to its source, which is what reverse path filtering asks.
    Reverse,
}

/// What kind of route was found. The names are those of `ip route`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RouteKind {
    /// None.
    None,
    /// To a gateway or a neighbour.
    Unicast,
    /// To this namespace itself.
    Local,
    /// To everybody, or to a group.
    Broadcast,
    /// Drops, and says nothing.
    Blackhole,
    /// Drops, and says by ICMP that the host is unreachable.
    Unreachable,
    /// Drops, and says by ICMP that it is prohibited.
    Prohibit,
    /// Some other.
    Other,
}

impl RouteKind {
    /// As `ip route` writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Unicast => "unicast",
            Self::Local => "local",
            Self::Broadcast => "broadcast",
            Self::Blackhole => "blackhole",
            Self::Unreachable => "unreachable",
            Self::Prohibit => "prohibit",
            Self::Other => "other",
        }
    }

    /// Whether such a route drops what it takes.
    pub const fn rejects(self) -> bool {
        matches!(self, Self::Blackhole | Self::Unreachable | Self::Prohibit)
    }
}

/// A network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Prefix {
    /// Its address.
    pub addr: IpAddr,
    /// How many of the address's bits count.
    pub len: u8,
}

impl Prefix {
    /// Whether an address is in it.
    pub fn contains(&self, addr: IpAddr) -> bool {
        let (bits, one, other) = match (self.addr, addr) {
            (IpAddr::V4(one), IpAddr::V4(other)) => {
                (32, u128::from(one.to_bits()), u128::from(other.to_bits()))
            }
            (IpAddr::V6(one), IpAddr::V6(other)) => (128, one.to_bits(), other.to_bits()),
            _ => return false,
        };
        // What is left of a difference behind the prefix does not count.
        let behind = bits - u32::from(self.len).min(bits);
        (one ^ other).checked_shr(behind).unwrap_or(0) == 0
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.len == 0 {
            return f.write_str("default");
        }
        write!(f, "{}/{}", self.addr, self.len)
    }
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct NextHop {
    /// The gateway; `None` where the destination itself is the neighbour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
    /// Through which device.
    pub ifindex: u32,
}

/// `NUD_*` (include/uapi/linux/neighbour.h), as `ip neigh` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NeighbourState {
    /// It was asked for and has not answered yet.
    Incomplete,
    /// It is known.
    Reachable,
    /// It was known, and nobody has asked since.
    Stale,
    /// As stale, and about to be asked.
    Delay,
    /// It was known, and is being asked.
    Probe,
    /// It was asked for and did not answer.
    Failed,
    /// It needs no asking.
    Noarp,
    /// Someone has set it.
    Permanent,
    /// The entry is new.
    New,
}

impl NeighbourState {
    /// The state with this number, of which one bit is set.
    pub const fn from_number(number: u16) -> Option<Self> {
        Some(match number {
            0x00 => Self::New,
            0x01 => Self::Incomplete,
            0x02 => Self::Reachable,
            0x04 => Self::Stale,
            0x08 => Self::Delay,
            0x10 => Self::Probe,
            0x20 => Self::Failed,
            0x40 => Self::Noarp,
            0x80 => Self::Permanent,
            _ => return None,
        })
    }

    /// As `ip neigh` writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Incomplete => "INCOMPLETE",
            Self::Reachable => "REACHABLE",
            Self::Stale => "STALE",
            Self::Delay => "DELAY",
            Self::Probe => "PROBE",
            Self::Failed => "FAILED",
            Self::Noarp => "NOARP",
            Self::Permanent => "PERMANENT",
            Self::New => "NONE",
        }
    }

    /// Whether packets to the neighbour can be sent.
    pub const fn is_resolved(self) -> bool {
        !matches!(self, Self::Incomplete | Self::Failed | Self::New)
    }
}

/// A socket, and the process that has it open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SocketOwner {
    /// The namespace.
    pub netns: NetnsId,
    /// CLOCK_MONOTONIC when the kernel was asked for the socket.
    pub asked_ns: u64,
    /// The IP protocol number: TCP or UDP.
    pub protocol: u8,
    /// The local address of the packets that it sends and takes, even where it is bound to every address.
    pub local: SocketAddr,
    /// The other end; `None` for a socket that has none: a listener, or one that takes datagrams from everybody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<SocketAddr>,
    /// The process. Of several, one in the namespace rather than elsewhere, and the one with the lowest id that is not the init
    /// which handed the socket over.
    pub owner: Owner,
}

/// A process, and where it runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Owner {
    /// The process.
    #[serde(flatten)]
    pub process: Process,
    /// Its container, where its cgroup tells one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
}

/// "nginx[812]"; the name is untrusted.
impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Process { pid, comm } = &self.process;
        write!(f, "{comm}[{pid}]")
    }
}

/// A container, as the path of a cgroup tells it (`/proc/PID/cgroup`). All of it is untrusted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Container {
    /// Its id, 64 hexadecimal digits.
    pub id: String,
    /// What runs it, where the path says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,
    /// The uid of its Kubernetes pod, where it is of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
    /// That pod, as `NAMESPACE/NAME`, where the kubelet's directory of logs names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
}

/// What runs containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Runtime {
    /// containerd, by itself or for Kubernetes.
    Containerd,
    /// CRI-O.
    CriO,
    /// Docker.
    Docker,
    /// Podman.
    Podman,
}

impl Runtime {
    /// As its users write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::CriO => "cri-o",
            Self::Docker => "docker",
            Self::Podman => "podman",
        }
    }
}
