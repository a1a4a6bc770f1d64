//! What the audit tells: the output types (schema `tracer.mtu/1`), made from facts, paths and findings.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::event::{DeviceId, NetnsId};
use crate::report::{BlindSpot, Node, Time, Tracer};

pub use super::codes::{FindingCode, Severity};
use super::findings::{self, Finding as Found};
use super::ipsec::room;
use super::model::{Clamping, Device as Known, Network};
use super::paths::{self, Fate as Becomes, How, Path as Walked, Step as Walk, walk};

/// The schema id in every report.
pub const MTU_SCHEMA: &str = "tracer.mtu/1";

/// Everything that one audit found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MtuReport {
    /// [`MTU_SCHEMA`].
    pub schema: String,
    /// The program that looked.
    pub tracer: Tracer,
    /// The node that was looked at.
    pub node: Node,
    /// When.
    pub time: Time,
    /// What is wrong: what loses packets first.
    pub findings: Vec<Finding>,
    /// The ways of a full-size packet, from each namespace that no other sends through.
    pub paths: Vec<Path>,
    /// The namespaces and their devices.
    pub namespaces: Vec<Namespace>,
    /// What really passes on the way to the address of `--probe`; `null` without it.
    pub probe: Option<Probe>,
    /// What could not be read.
    pub blind_spots: Vec<BlindSpot>,
    /// The findings counted.
    pub summary: Summary,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// What.
    pub code: FindingCode,
    /// How bad.
    pub severity: Severity,
    /// One sentence.
    pub summary: String,
    /// Who has part in it: who sends too much first, then where it dies.
    pub devices: Vec<At>,
    /// The smallest IP packet that does not pass as it should; `null` where size is not the point.
    pub affected_from: Option<u32>,
    /// The largest that is sent.
    pub affected_to: Option<u32>,
    /// The largest IP packet that passes.
    pub largest_passing: Option<u32>,
    /// What becomes of those that do not pass.
    pub fate: Option<Fate>,
    /// What else to know.
    pub notes: Vec<String>,
    /// The commands that would mend it, to be run one after another; empty where a name cannot be typed.
    pub mend: Vec<String>,
}

/// A device, by its namespace and its name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct At {
    /// The inode number of its namespace.
    pub netns: u32,
    /// That namespace's name, where it has one.
    pub netns_name: Option<String>,
    /// Its index there.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// Its MTU.
    pub mtu: u32,
}

/// What becomes of a packet that is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It is dropped, and nobody is told.
    Lost,
    /// It is dropped, and ICMP tells its sender; without DF, IPv4 cuts it instead.
    TooBig,
    /// Its outer packet is sent in fragments.
    Fragmented,
}

/// The ways out of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Path {
    /// The inode number of the namespace.
    pub netns: u32,
    /// Its name, where it has one.
    pub netns_name: Option<String>,
    /// One for each device that it sends through.
    pub ways: Vec<Step>,
}

/// One device on the way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// The device.
    #[serde(flatten)]
    pub at: At,
    /// `veth`, `vxlan`, …
    pub kind: String,
    /// How the packet comes to it.
    pub via: Via,
    /// The MTU that counts here: the device's, or a smaller one of the route.
    pub limit: u32,
    /// Bytes that tunnels have put around the sender's packet by now.
    pub overhead: u32,
    /// The largest of the sender's packets that passes here; `null` where the device does not measure.
    pub largest_passing: Option<u32>,
    /// What becomes of larger ones; `null` where none comes that is larger.
    pub fate: Option<Fate>,
    /// The largest of the sender's packets that comes here.
    pub largest_coming: u32,
    /// Whether a rule sets the MSS of TCP to what passes here.
    pub mss_clamped: bool,
    /// Where it goes from here.
    pub next: Vec<Step>,
}

/// How a packet comes to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// The namespace itself sends it there.
    Sends,
    /// Over the cable, from the other end.
    Cable,
    /// A port hands it to its bridge.
    Bridge,
    /// The bridge sends it through a port.
    Port,
    /// The namespace forwards it.
    Routed,
    /// The tunnel sends its outer packet there.
    Wrapped,
    /// The device lies below the one before.
    Below,
    /// The device is a member of the bond before.
    Member,
}

/// A namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Namespace {
    /// Its inode number.
    pub netns: u32,
    /// Its name, where it has one.
    pub netns_name: Option<String>,
    /// Whether it forwards packets.
    pub forwards: bool,
    /// `net.ipv4.tcp_mtu_probing`: 0 is off, 1 after a black hole was met, 2 always.
    pub tcp_mtu_probing: Option<i64>,
    /// `net.ipv4.ip_no_pmtu_disc`: 1 is no path MTU discovery.
    pub ip_no_pmtu_disc: Option<i64>,
    /// The rules that change the MSS of TCP, by table and chain; `null` where they could not be read.
    pub mss_rules: Option<Vec<String>>,
    /// Its devices.
    pub devices: Vec<Device>,
    /// Routes that say sizes of their own.
    pub routes: Vec<Route>,
    /// Path MTUs that ICMP has told.
    pub learned: Vec<Learned>,
    /// The ESP tunnels that begin here.
    pub ipsec: Vec<Ipsec>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Device {
    /// Its index in its namespace.
    pub ifindex: u32,
    /// Its name.
    pub name: String,
    /// `veth`, `vxlan`, …; `physical` where it has no kind.
    pub kind: String,
    /// Bytes of an IP packet.
    pub mtu: u32,
    /// Whether it is up.
    pub up: bool,
    /// The largest packet that the namespace's routes send through it.
    pub sends: u32,
    /// The other end of a veth.
    pub peer: Option<Peer>,
    /// The bridge or bond that it is a port of.
    pub master_ifindex: Option<u32>,
    /// A tunnel's underlays.
    pub underlays: Vec<Underlay>,
}

/// The other end of a veth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Peer {
    /// The inode number of its namespace.
    pub netns: u32,
    /// Its index there.
    pub ifindex: u32,
}

/// What carries a tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Underlay {
    /// The inode number of its namespace.
    pub netns: u32,
    /// Its index there.
    pub ifindex: u32,
    /// The bytes around each packet; `null` where a process decides.
    pub overhead: Option<u32>,
    /// The MTU of the route to the tunnel's end, where that is not the device's.
    pub route_mtu: Option<u32>,
}

/// A route that says sizes of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Route {
    /// The destination in CIDR notation.
    pub dst: String,
    /// Its table.
    pub table: u32,
    /// Its device, or `null` where it has several next hops.
    pub ifindex: Option<u32>,
    /// Its MTU.
    pub mtu: Option<u32>,
    /// The MSS that it tells.
    pub advmss: Option<u32>,
}

/// A path MTU that ICMP has told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Learned {
    /// To where.
    pub dst: IpAddr,
    /// The device that the packets leave through.
    pub ifindex: u32,
    /// What passes.
    pub mtu: u32,
    /// Seconds until it is forgotten.
    pub expires_s: Option<u32>,
}

/// An ESP tunnel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Ipsec {
    /// The outer source.
    pub src: IpAddr,
    /// The outer destination.
    pub dst: IpAddr,
    /// The kernel's name of the cipher.
    pub algorithm: String,
    /// The device that its packets leave through; `null` where they are not routed.
    pub underlay_ifindex: Option<u32>,
    /// The largest packet that it carries; `null` where the cipher is not known here.
    pub largest_passing: Option<u32>,
}

/// What really passes on the way to an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// The address.
    pub target: IpAddr,
    /// The inode number of the namespace from which it was probed.
    pub netns: u32,
    /// Its name, where it has one.
    pub netns_name: Option<String>,
    /// The largest IP packet of an echo request that was answered; `null` where none was. The way there has taken it whole; the
    /// answer may have come in fragments.
    pub largest_answered: Option<u32>,
    /// Whether the address is in another namespace of this node, so that both ways could be probed.
    pub target_is_local: bool,
    /// The largest IP packet of a datagram that came there.
    pub largest_there: Option<u32>,
    /// The largest that came back.
    pub largest_back: Option<u32>,
    /// How many packets were sent for it.
    pub packets: u32,
}

/// The findings counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// All of them.
    pub findings: u64,
    /// Those by which packets are lost and nobody is told.
    pub errors: u64,
    /// The others.
    pub warnings: u64,
    /// The namespaces that were looked at.
    pub namespaces: u64,
    /// Their devices.
    pub devices: u64,
}

/// Judges what was read.
pub fn build(network: &Network, tracer: Tracer, node: Node, time: Time) -> MtuReport {
    let walked = walk(network);
    let findings: Vec<Finding> = findings::find(network, &walked)
        .into_iter()
        .map(|found| finding(network, found))
        .collect();
    let errors = findings
        .iter()
        .filter(|finding| finding.severity == Severity::Error)
        .count() as u64;
    let mut namespaces: Vec<Namespace> = network
        .namespaces
        .keys()
        .map(|id| namespace(network, *id))
        .collect();
    // An inode number says nothing to a reader; those without a name come last.
    let by_name = |name: &Option<String>| (name.is_none(), name.clone());
    namespaces.sort_by_key(|netns| by_name(&netns.netns_name));
    let mut paths: Vec<Path> = walked
        .paths
        .iter()
        .map(|walked| path(network, walked))
        .collect();
    paths.sort_by_key(|path| by_name(&path.netns_name));
    let summary = Summary {
        findings: findings.len() as u64,
        errors,
        warnings: findings.len() as u64 - errors,
        namespaces: namespaces.len() as u64,
        devices: network.devices.len() as u64,
    };
    MtuReport {
        schema: MTU_SCHEMA.to_owned(),
        tracer,
        node,
        time,
        findings,
        paths,
        namespaces,
        probe: None,
        blind_spots: network
            .blind_spots
            .iter()
            .map(|spot| BlindSpot {
                code: spot.code.clone(),
                summary: spot.summary.clone(),
            })
            .collect(),
        summary,
    }
}

fn netns_name(network: &Network, id: NetnsId) -> Option<String> {
    network.namespaces.get(&id)?.name.clone()
}

fn at(network: &Network, id: DeviceId) -> At {
    let device = network.devices.get(&id);
    At {
        netns: id.netns.inum,
        netns_name: netns_name(network, id.netns),
        ifindex: id.ifindex,
        name: device.map_or_else(String::new, |device| device.name.clone()),
        mtu: device.map_or(0, |device| device.mtu),
    }
}

fn finding(network: &Network, found: Found) -> Finding {
    Finding {
        severity: found.severity(),
        code: found.code,
        summary: found.summary,
        devices: found
            .devices
            .into_iter()
            .map(|id| at(network, id))
            .collect(),
        affected_from: found.affected.as_ref().map(|sizes| *sizes.start()),
        affected_to: found.affected.as_ref().map(|sizes| *sizes.end()),
        largest_passing: found.largest_passing,
        fate: found.fate.map(Fate::from),
        notes: found.notes,
        mend: found.mend,
    }
}

impl From<Becomes> for Fate {
    fn from(fate: Becomes) -> Self {
        match fate {
            Becomes::Lost => Self::Lost,
            Becomes::TooBig => Self::TooBig,
            Becomes::Fragmented => Self::Fragmented,
        }
    }
}

fn path(network: &Network, walked: &Walked) -> Path {
    Path {
        netns: walked.sender.inum,
        netns_name: netns_name(network, walked.sender),
        ways: walked.ways.iter().map(|way| step(network, way)).collect(),
    }
}

fn step(network: &Network, walk: &Walk) -> Step {
    let device = network.devices.get(&walk.device);
    Step {
        at: at(network, walk.device),
        kind: device.map_or_else(String::new, |device| device.kind.clone()),
        via: match walk.how {
            How::Sends => Via::Sends,
            How::Cable => Via::Cable,
            How::Bridge => Via::Bridge,
            How::Port => Via::Port,
            How::Routed => Via::Routed,
            How::Wrapped => Via::Wrapped,
            How::Below => Via::Below,
            How::Member => Via::Member,
        },
        limit: walk.limit,
        overhead: walk.around,
        largest_passing: (walk.how != How::Bridge).then_some(walk.passes),
        fate: walk.fate.map(Fate::from),
        largest_coming: walk.comes,
        mss_clamped: walk.fate == Some(Becomes::TooBig)
            && device.is_some_and(|device| network.clamping(device, walk.limit) == Clamping::Whole),
        next: walk.next.iter().map(|next| step(network, next)).collect(),
    }
}

fn namespace(network: &Network, id: NetnsId) -> Namespace {
    let known = network.namespaces.get(&id).cloned().unwrap_or_default();
    Namespace {
        netns: id.inum,
        netns_name: known.name,
        forwards: known.forwards,
        tcp_mtu_probing: known.tcp_mtu_probing,
        ip_no_pmtu_disc: known.ip_no_pmtu_disc,
        mss_rules: known
            .clamps
            .map(|clamps| clamps.into_iter().map(|clamp| clamp.chain).collect()),
        devices: network
            .devices_of(id)
            .map(|known| device(network, known))
            .collect(),
        routes: known
            .metrics
            .into_iter()
            .map(|route| Route {
                dst: route.dst,
                table: route.table,
                ifindex: (route.ifindex != 0).then_some(route.ifindex),
                mtu: route.mtu,
                advmss: route.advmss,
            })
            .collect(),
        learned: known
            .learned
            .into_iter()
            .map(|learned| Learned {
                dst: learned.dst,
                ifindex: learned.ifindex,
                mtu: learned.mtu,
                expires_s: learned.expires_s,
            })
            .collect(),
        ipsec: known
            .ipsec
            .into_iter()
            .map(|tunnel| Ipsec {
                underlay_ifindex: tunnel.underlay.map(|underlay| underlay.device.ifindex),
                largest_passing: room(network, &tunnel).map(|(_, _, inside)| inside),
                src: tunnel.association.src,
                dst: tunnel.association.dst,
                algorithm: tunnel.association.algorithm,
            })
            .collect(),
    }
}

fn device(network: &Network, known: &Known) -> Device {
    let underlays = if super::overhead::is_tunnel(known) {
        paths::underlays(network, known)
    } else {
        Vec::new()
    };
    Device {
        ifindex: known.id.ifindex,
        name: known.name.clone(),
        kind: known.kind.clone(),
        mtu: known.mtu,
        up: known.up,
        sends: network.sends(known),
        peer: known.peer.map(|peer| Peer {
            netns: peer.netns.inum,
            ifindex: peer.ifindex,
        }),
        master_ifindex: known.master.map(|master| master.ifindex),
        underlays: underlays
            .into_iter()
            .map(|(underlay, outer, told)| Underlay {
                netns: underlay.id.netns.inum,
                ifindex: underlay.id.ifindex,
                overhead: super::overhead::overhead(known, outer),
                route_mtu: told,
            })
            .collect(),
    }
}
