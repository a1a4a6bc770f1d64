//! What the audit knows of the node: namespaces, devices, routes. Facts as the kernel told them, and no judgement.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::event::{DeviceId, NetnsId};
use crate::record::BlindSpot;

/// Everything that was read.
#[derive(Clone, Debug, Default)]
pub struct Network {
    /// Every namespace that was looked at.
    pub namespaces: BTreeMap<NetnsId, Namespace>,
    /// Every device of those namespaces.
    pub devices: BTreeMap<DeviceId, Device>,
    /// What could not be read.
    pub blind_spots: Vec<BlindSpot>,
}

/// A network namespace.
#[derive(Clone, Debug, Default)]
pub struct Namespace {
    /// Its name in `/run/netns` (untrusted).
    pub name: Option<String>,
    /// A path that refers to it, for one without a name; nothing for our own.
    pub path: Option<String>,
    /// Whether it is ours, so that a command needs nothing to enter it.
    pub own: bool,
    /// Whether it forwards IPv4 or IPv6 (`net.ipv4.conf.all.forwarding`, `net.ipv6.conf.all.forwarding`).
    pub forwards: bool,
    /// How routes use each device, by ifindex.
    pub uses: BTreeMap<u32, Use>,
    /// The routes that say an MTU or an MSS of their own.
    pub metrics: Vec<RouteMetrics>,
    /// The path MTUs that ICMP has told (`ip route show cache`).
    pub learned: Vec<LearnedMtu>,
    /// The rules that change the MSS of TCP; nothing where they could not be read.
    pub clamps: Option<Vec<Clamp>>,
    /// The ESP tunnels that begin here.
    pub ipsec: Vec<IpsecTunnel>,
    /// `net.ipv4.tcp_mtu_probing`.
    pub tcp_mtu_probing: Option<i64>,
    /// `net.ipv4.ip_no_pmtu_disc`.
    pub ip_no_pmtu_disc: Option<i64>,
}

/// How the routes of a namespace use one of its devices; routes to the namespace itself do not count.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, as the kernel tells it"
)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Use {
    /// It has a default route of IPv4.
    pub default_v4: bool,
    /// It has a default route of IPv6.
    pub default_v6: bool,
    /// It has an IPv4 route, link-local ones left out.
    pub v4: bool,
    /// It has an IPv6 route, link-local ones left out.
    pub v6: bool,
    /// A route to more than one host says no MTU of its own, so that the device's counts.
    pub unlimited: bool,
    /// The largest MTU that a route to more than one host says.
    pub largest_mtu: Option<u32>,
}

impl Use {
    /// Whether it has a default route.
    pub fn is_default(self) -> bool {
        self.default_v4 || self.default_v6
    }

    /// Whether any route leads out through it.
    pub fn is_routed(self) -> bool {
        self.v4 || self.v6 || self.is_default()
    }
}

/// A route with metrics that matter here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteMetrics {
    /// The destination in CIDR notation.
    pub dst: String,
    /// Its table.
    pub table: u32,
    /// The device, or 0 where it has several next hops.
    pub ifindex: u32,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// Its metric.
    pub priority: Option<u32>,
    /// `RTAX_MTU`.
    pub mtu: Option<u32>,
    /// `RTAX_ADVMSS`.
    pub advmss: Option<u32>,
}

/// An ESP tunnel, and where its packets go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpsecTunnel {
    /// What the kernel tells of it.
    pub association: Association,
    /// Where its packets go, if they are routed.
    pub underlay: Option<Underlay>,
}

/// What a security association says about the size of its packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Association {
    /// The outer source.
    pub src: IpAddr,
    /// The outer destination.
    pub dst: IpAddr,
    /// The kernel's name of the cipher (`cbc(aes)`).
    pub algorithm: String,
    /// The length of the integrity check value.
    pub check_bytes: u32,
    /// ESP is inside UDP, to pass address translation.
    pub in_udp: bool,
    /// The xfrm device that sends through it.
    pub if_id: Option<u32>,
}

/// A path MTU that the kernel has learnt from ICMP, and for how long it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LearnedMtu {
    /// The destination.
    pub dst: IpAddr,
    /// The device that the packets leave through.
    pub ifindex: u32,
    /// What passes.
    pub mtu: u32,
    /// Seconds until it is forgotten.
    pub expires_s: Option<u32>,
}

/// A rule that changes the MSS of TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clamp {
    /// The table and the chain (untrusted).
    pub chain: String,
    /// The devices that it is for: nothing for all that come in, or go out.
    pub iif: Option<String>,
    /// See `iif`.
    pub oif: Option<String>,
    /// It looks at devices in a way that was not understood, so that it may or may not be for one.
    pub unclear: bool,
    /// The MSS that it sets; nothing where that follows from the route's MTU.
    pub size: Option<u16>,
}

impl Clamp {
    /// Whether it is for what comes in on this device: such a rule changes the MSS that the other side tells, and so the
    /// size of what leaves through the device. `None` where that is not known.
    pub fn limits_what_leaves(&self, device: &str) -> Option<bool> {
        if self.unclear {
            return None;
        }
        // A rule with an outgoing device is for the SYNs that leave through that one; what the others answer is not.
        let takes_all = self.oif.is_none();
        Some(takes_all && self.iif.as_deref().is_none_or(|iif| matches(iif, device)))
    }
}

/// What rules do for the TCP segments that leave through a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clamping {
    /// No rule is for them.
    None,
    /// The rule in this chain is only for what comes back.
    OtherDirection(String),
    /// A rule tells their senders what passes.
    Whole,
    /// That could not be read, or not understood.
    Unknown,
}

/// TCP's and IPv4's headers without options, which an MSS leaves out.
pub(super) const TCP_V4: u32 = 40;

/// Whether a name, or a name with a `*` at its end, is this device's.
fn matches(pattern: &str, device: &str) -> bool {
    pattern
        .strip_suffix('*')
        .map_or(pattern == device, |start| device.starts_with(start))
}

/// A device.
#[derive(Clone, Debug)]
pub struct Device {
    /// Where it is.
    pub id: DeviceId,
    /// Its name (untrusted).
    pub name: String,
    /// `veth`, `vxlan`, …; `loopback`; `physical` where it has no kind.
    pub kind: String,
    /// Bytes of an IP packet.
    pub mtu: u32,
    /// Whether it is up: nothing passes one that is not.
    pub up: bool,
    /// The other end of a veth.
    pub peer: Option<DeviceId>,
    /// The bridge or bond that it is a port of.
    pub master: Option<DeviceId>,
    /// The device below: what a VLAN, a macvlan or a tunnel says.
    pub below: Option<DeviceId>,
    /// Its addresses.
    pub addrs: Vec<IpAddr>,
    /// What it puts around each packet.
    pub encap: Option<Encap>,
    /// Where a tunnel's packets go, as the kernel routes them.
    pub underlays: Vec<Underlay>,
}

/// What a tunnel device puts around each packet, as far as its link attributes tell.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own, as the kernel tells it"
)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encap {
    /// The outer source.
    pub local: Option<IpAddr>,
    /// The outer destinations: the configured one, those of the forwarding database, the peers' endpoints.
    pub remotes: Vec<IpAddr>,
    /// Each packet brings its own addresses (`external`).
    pub external: bool,
    /// No Ethernet header inside: VXLAN-GPE, Geneve with `innerprotoinherit`.
    pub without_ethernet: bool,
    /// `o_flags` of GRE: checksum 0x8000, key 0x2000, sequence 0x1000.
    pub gre_flags: u16,
    /// ERSPAN's version.
    pub erspan_version: u8,
    /// FOU (1) or GUE (2) around an IP tunnel (`TUNNEL_ENCAP_*`).
    pub udp_kind: u16,
    /// IPv6's tunnel encapsulation limit option is sent.
    pub encap_limit: bool,
    /// Outer packets may not be fragmented: `df set` of VXLAN and Geneve, `pmtudisc` of IP tunnels.
    pub dont_fragment: bool,
    /// The length of MACsec's integrity check value.
    pub icv_bytes: u8,
    /// Which associations an xfrm device sends through.
    pub if_id: Option<u32>,
}

/// Where a tunnel's packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Underlay {
    /// The outer destination; nothing where only the device is known.
    pub remote: Option<IpAddr>,
    /// The device that they leave through.
    pub device: DeviceId,
    /// What the route says or ICMP has told.
    pub mtu: Option<u32>,
}

impl Network {
    /// A device by its ifindex in a namespace.
    pub fn device(&self, netns: NetnsId, ifindex: u32) -> Option<&Device> {
        self.devices.get(&DeviceId { netns, ifindex })
    }

    /// The devices of a namespace.
    pub fn devices_of(&self, netns: NetnsId) -> impl Iterator<Item = &Device> {
        let id = |ifindex| DeviceId { netns, ifindex };
        let range = self.devices.range(id(0)..=id(u32::MAX));
        range.map(|(_, device)| device)
    }

    /// The ports of a bridge or bond that are up.
    pub fn ports(&self, master: DeviceId) -> impl Iterator<Item = &Device> {
        self.devices_of(master.netns)
            .filter(move |device| device.master == Some(master) && device.up)
    }

    /// How routes use a device.
    pub fn use_of(&self, device: DeviceId) -> Use {
        self.namespaces
            .get(&device.netns)
            .and_then(|netns| netns.uses.get(&device.ifindex))
            .copied()
            .unwrap_or_default()
    }

    /// What the rules of a device's namespace do for the TCP segments that leave through it, where it takes so much.
    pub fn clamping(&self, device: &Device, limit: u32) -> Clamping {
        let netns = self.namespaces.get(&device.id.netns);
        let Some(clamps) = netns.and_then(|netns| netns.clamps.as_ref()) else {
            return Clamping::Unknown;
        };
        let enough = |size: Option<u16>| size.is_none_or(|size| u32::from(size) + TCP_V4 <= limit);
        let mut found = Clamping::None;
        for clamp in clamps.iter().filter(|clamp| enough(clamp.size)) {
            match clamp.limits_what_leaves(&device.name) {
                Some(true) => return Clamping::Whole,
                None => found = Clamping::Unknown,
                Some(false) if clamp.oif.is_some() && found == Clamping::None => {
                    found = Clamping::OtherDirection(clamp.chain.clone());
                }
                Some(false) => {}
            }
        }
        found
    }

    /// The largest packet that a namespace itself sends through a device: what its routes there allow, else the device.
    pub fn sends(&self, device: &Device) -> u32 {
        let used = self.use_of(device.id);
        match used.largest_mtu {
            Some(mtu) if !used.unlimited => mtu.min(device.mtu),
            _ => device.mtu,
        }
    }
}
