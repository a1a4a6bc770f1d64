//! The ways of a full-size packet: from each namespace that only sends, device by device, to where the node ends. At each
//! step: how much of what the sender may send still passes, and what becomes of the rest.
//!
//! Routes are followed by device, not by destination: out through the devices with default routes, and into every tunnel
//! that has a route. What a BPF program redirects goes elsewhere; its way is not known here.

use std::collections::{BTreeMap, BTreeSet};

use crate::event::{DeviceId, NetnsId};

use super::model::{Device, Network};
use super::overhead::{Outer, is_tunnel, is_userspace_tunnel, outer_of_kind, overhead};

/// `is_skb_forwardable()` (include/linux/netdevice.h) leaves room for one VLAN tag, whether or not there is one: so much
/// more than its MTU passes a veth or a bridge's port.
pub(super) const VLAN_SLACK: u32 = 4;

/// How many steps a path may have, and how many ways lead on from one place: a bound for loops, not a limit that
/// networks reach.
const DEPTH_MAX: usize = 16;
const WAYS_MAX: usize = 8;

/// How a packet came to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// The sender's own device.
    Sends,
    /// The other end of a cable, which receives.
    Cable,
    /// The bridge of which the device before is a port.
    Bridge,
    /// A port that the bridge sends through.
    Port,
    /// The namespace forwards it out.
    Routed,
    /// A tunnel's outer packet goes out.
    Wrapped,
    /// The device below a VLAN, a macvlan or the like.
    Below,
    /// A member of a bond.
    Member,
}

/// What becomes of a packet that is too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is dropped, and nobody is told.
    Lost,
    /// It is dropped, and ICMP tells its sender.
    TooBig,
    /// Its outer packet is sent in fragments.
    Fragmented,
}

/// One device on the way.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub device: DeviceId,
    pub how: How,
    /// The MTU that counts: the device's, or the route's.
    pub limit: u32,
    /// Bytes that tunnels have put around the sender's packet by now.
    pub around: u32,
    /// The largest packet of the sender that passes here.
    pub passes: u32,
    /// What becomes of larger ones; nothing where none comes that is larger.
    pub fate: Option<Fate>,
    /// The largest that comes here.
    pub comes: u32,
    pub next: Vec<Step>,
}

/// The ways out of one namespace.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub sender: NetnsId,
    pub ways: Vec<Step>,
}

/// Who sends more than a device takes that they are routed through, so that ICMP has to tell them.
pub(super) type Narrows = BTreeMap<DeviceId, Narrow>;

#[derive(Clone, Debug)]
pub(super) struct Narrow {
    pub limit: u32,
    /// Each sender's device, and the most that it sends.
    pub senders: BTreeMap<DeviceId, u32>,
}

/// All ways through the node.
#[derive(Debug, Default)]
pub(super) struct Paths {
    pub paths: Vec<Path>,
    pub narrows: Narrows,
}

/// Walks the ways out of every namespace; kept are those of the namespaces that none of them leads through.
pub(super) fn walk(network: &Network) -> Paths {
    let facing = facing(network);
    let mut paths = Vec::new();
    let mut passed = BTreeSet::new();
    let mut narrows = Narrows::new();
    for sender in network.namespaces.keys().copied() {
        let mut walk = Walk {
            network,
            facing: &facing,
            from: None,
            chain: vec![sender],
            depth: 0,
            passed: &mut passed,
            narrows: &mut narrows,
        };
        let ways = walk.out(sender, None, Load::NONE, How::Sends);
        if !ways.is_empty() {
            paths.push(Path { sender, ways });
        }
    }
    paths.retain(|path| !passed.contains(&path.sender));
    Paths { paths, narrows }
}

/// The near ends of the veths that lead into namespaces whose default route comes back through them: the pods'.
pub(super) fn facing(network: &Network) -> BTreeMap<DeviceId, DeviceId> {
    network
        .devices
        .values()
        .filter_map(|device| {
            let peer = network.devices.get(&device.peer?)?;
            let is_pod = peer.id.netns != device.id.netns && network.use_of(peer.id).is_default();
            let up = device.up && peer.up;
            (is_pod && up).then_some((device.id, peer.id))
        })
        .collect()
}

/// What travels: the sender's packet, and what is around it.
#[derive(Clone, Copy)]
struct Load {
    /// The largest packet of the sender that has come so far.
    size: u32,
    around: u32,
    /// What becomes of an outer packet that is too large.
    outer: Option<Fate>,
}

impl Load {
    const NONE: Self = Self {
        size: u32::MAX,
        around: 0,
        outer: None,
    };
}

struct Walk<'a> {
    network: &'a Network,
    facing: &'a BTreeMap<DeviceId, DeviceId>,
    /// The sender's device of this way.
    from: Option<DeviceId>,
    /// The sender's namespace and those that have routed the packet, so that none does twice.
    chain: Vec<NetnsId>,
    depth: usize,
    passed: &'a mut BTreeSet<NetnsId>,
    narrows: &'a mut Narrows,
}

impl Walk<'_> {
    /// Every way that a namespace sends packets, but not back to `came`.
    fn out(&mut self, netns: NetnsId, came: Option<DeviceId>, load: Load, how: How) -> Vec<Step> {
        let (devices, is_down) = ways_out(self.network, self.facing, netns, came);
        let mut steps = Vec::new();
        for device in devices.into_iter().take(WAYS_MAX) {
            if how == How::Sends {
                self.from = Some(device.id);
            }
            let mut step = self.leave(device, how, load, None);
            if is_down && how == How::Routed {
                // It arrives at a neighbour, and that is its end.
                step.next
                    .iter_mut()
                    .for_each(|arrives| arrives.next.clear());
            }
            steps.push(step);
        }
        steps
    }

    /// A packet leaves through a device; `told` is a smaller MTU of the route.
    fn leave(&mut self, device: &Device, how: How, load: Load, told: Option<u32>) -> Step {
        let limit = match how {
            How::Sends | How::Routed => self.network.sends(device),
            _ => told.map_or(device.mtu, |told| told.min(device.mtu)),
        };
        let passes = limit.saturating_sub(load.around);
        let comes = if how == How::Sends { passes } else { load.size };
        let fate = match how {
            How::Port if comes.saturating_add(load.around) <= limit + VLAN_SLACK => None,
            _ if comes <= passes => None,
            How::Routed | How::Wrapped => Some(load.outer.unwrap_or(Fate::TooBig)),
            _ => Some(Fate::Lost),
        };
        if let (How::Routed, 0, Some(Fate::TooBig), Some(from)) =
            (how, load.around, fate, self.from)
        {
            let narrow = self.narrows.entry(device.id).or_insert(Narrow {
                limit,
                senders: BTreeMap::new(),
            });
            narrow.senders.insert(from, comes);
        }
        let onward = Load {
            // Fragments carry it on whole.
            size: if fate == Some(Fate::Fragmented) {
                comes
            } else {
                comes.min(passes)
            },
            ..load
        };
        let mut step = Step {
            device: device.id,
            how,
            limit,
            around: load.around,
            passes,
            fate,
            comes,
            next: Vec::new(),
        };
        if self.deeper() {
            step.next = self.beyond(device, onward);
            self.depth -= 1;
        }
        step
    }

    /// Where a packet goes that a device transmits.
    fn beyond(&mut self, device: &Device, load: Load) -> Vec<Step> {
        let network = self.network;
        match device.kind.as_str() {
            "veth" | "netkit" => {
                let peer = device.peer.and_then(|peer| network.devices.get(&peer));
                let peer = peer.filter(|peer| peer.up);
                peer.map(|peer| self.arrive(peer, load))
                    .into_iter()
                    .collect()
            }
            "vlan" | "macvlan" | "macvtap" | "ipvlan" | "ipvtap" => {
                let below = device.below.and_then(|below| network.devices.get(&below));
                let below = below.map(|below| self.leave(below, How::Below, load, None));
                below.into_iter().collect()
            }
            "bond" | "team" => {
                let members: Vec<&Device> = network.ports(device.id).take(WAYS_MAX).collect();
                let members = members.into_iter();
                members
                    .map(|member| self.leave(member, How::Member, load, None))
                    .collect()
            }
            "bridge" => self.bridged(device.id, None, load),
            _ if is_tunnel(device) && !is_userspace_tunnel(device) => self.wrapped(device, load),
            _ => Vec::new(),
        }
    }

    /// The outer packets of a tunnel.
    fn wrapped(&mut self, tunnel: &Device, load: Load) -> Vec<Step> {
        let mut steps = Vec::new();
        for (underlay, outer, told) in underlays(self.network, tunnel) {
            let Some(bytes) = overhead(tunnel, outer) else {
                continue;
            };
            let load = Load {
                around: load.around + bytes,
                outer: Some(fate_of_outer(tunnel)),
                ..load
            };
            steps.push(self.leave(underlay, How::Wrapped, load, told));
        }
        steps
    }

    /// A packet arrives at the other end of a cable.
    fn arrive(&mut self, device: &Device, load: Load) -> Step {
        let checks = device.kind != "netkit";
        let passes = (device.mtu + VLAN_SLACK).saturating_sub(load.around);
        let lost = checks && load.size > passes;
        let onward = Load {
            size: if lost {
                load.size.min(passes - VLAN_SLACK)
            } else {
                load.size
            },
            ..load
        };
        let next = if self.deeper() {
            let next = self.received(device, onward);
            self.depth -= 1;
            next
        } else {
            Vec::new()
        };
        Step {
            device: device.id,
            how: How::Cable,
            limit: device.mtu,
            around: load.around,
            passes,
            fate: lost.then_some(Fate::Lost),
            comes: load.size,
            next,
        }
    }

    /// What a namespace does with a packet that it has received.
    fn received(&mut self, device: &Device, load: Load) -> Vec<Step> {
        let network = self.network;
        let Some(bridge) = device
            .master
            .and_then(|master| network.devices.get(&master))
        else {
            return self.route(device.id, load);
        };
        if bridge.kind != "bridge" {
            return self.route(bridge.id, load);
        }
        let mut next = self.bridged(bridge.id, Some(device.id), load);
        if !bridge.addrs.is_empty() {
            next.extend(self.route(bridge.id, load));
        }
        vec![Step {
            device: bridge.id,
            how: How::Bridge,
            limit: bridge.mtu,
            around: load.around,
            // What a bridge receives for its own namespace it does not measure (`br_pass_frame_up()`).
            passes: load.size,
            fate: None,
            comes: load.size,
            next,
        }]
    }

    /// The ports of a bridge that lead on, and not to pods.
    fn bridged(&mut self, bridge: DeviceId, came: Option<DeviceId>, load: Load) -> Vec<Step> {
        let network = self.network;
        let uplinks: Vec<&Device> = network
            .ports(bridge)
            .filter(|port| Some(port.id) != came && !self.facing.contains_key(&port.id))
            .filter(|port| !matches!(port.kind.as_str(), "tun" | "veth") || leads_on(network, port))
            .take(WAYS_MAX)
            .collect();
        let uplinks = uplinks.into_iter();
        uplinks
            .map(|port| self.leave(port, How::Port, load, None))
            .collect()
    }

    fn route(&mut self, came: DeviceId, load: Load) -> Vec<Step> {
        let netns = came.netns;
        // What comes in where the default route leads out is on its way down.
        if self.network.use_of(came).is_default() {
            return Vec::new();
        }
        let forwards = self
            .network
            .namespaces
            .get(&netns)
            .is_some_and(|netns| netns.forwards);
        if !forwards || self.chain.contains(&netns) {
            return Vec::new();
        }
        self.chain.push(netns);
        let steps = self.out(netns, Some(came), load, How::Routed);
        self.chain.pop();
        if !steps.is_empty() {
            self.passed.insert(netns);
        }
        steps
    }

    /// Notes one more step, unless there were too many.
    fn deeper(&mut self) -> bool {
        let deeper = self.depth < DEPTH_MAX;
        self.depth += usize::from(deeper);
        deeper
    }
}

/// Whether the other end of a port is in a namespace that may carry packets on.
fn leads_on(network: &Network, port: &Device) -> bool {
    let peer = port.peer.and_then(|peer| network.devices.get(&peer));
    peer.is_some_and(|peer| {
        let netns = network.namespaces.get(&peer.id.netns);
        peer.id.netns != port.id.netns && netns.is_some_and(|netns| netns.forwards)
    })
}

/// What becomes of an outer packet that is too large for the underlay.
pub(super) fn fate_of_outer(tunnel: &Device) -> Fate {
    let encap = tunnel.encap.as_ref();
    match tunnel.kind.as_str() {
        "macsec" => Fate::Lost,
        _ if encap.is_some_and(|encap| encap.dont_fragment) => Fate::TooBig,
        _ => Fate::Fragmented,
    }
}

/// The devices through which a namespace sends what does not stay in it, and whether they lead only down to neighbours:
/// those with default routes and the tunnels with routes; where there is no default route, all with routes.
fn ways_out<'a>(
    network: &'a Network,
    facing: &BTreeMap<DeviceId, DeviceId>,
    netns: NetnsId,
    came: Option<DeviceId>,
) -> (Vec<&'a Device>, bool) {
    let usable: Vec<&Device> = network
        .devices_of(netns)
        .filter(|device| device.up && device.kind != "loopback" && Some(device.id) != came)
        .filter(|device| network.use_of(device.id).is_routed())
        .collect();
    let has_default = network
        .devices_of(netns)
        .any(|device| device.up && network.use_of(device.id).is_default());
    let (up, down): (Vec<&Device>, Vec<&Device>) = usable.into_iter().partition(|device| {
        let leads_up = network.use_of(device.id).is_default() || is_tunnel(device);
        leads_up || !has_default && !facing.contains_key(&device.id)
    });
    match (up.is_empty(), has_default) {
        (false, true) => (up, false),
        (true, true) => (Vec::new(), false),
        (false, false) => (up, true),
        (true, false) => (down, true),
    }
}

/// The devices that carry a tunnel's outer packets, with the outer IP version and what the route says, one each.
pub(super) fn underlays<'a>(
    network: &'a Network,
    tunnel: &Device,
) -> Vec<(&'a Device, Outer, Option<u32>)> {
    let fixed = outer_of_kind(&tunnel.kind);
    let local = tunnel.encap.as_ref().and_then(|encap| encap.local);
    let mut found: Vec<(&Device, Outer, Option<u32>)> = Vec::new();
    for underlay in &tunnel.underlays {
        let Some(device) = network.devices.get(&underlay.device) else {
            continue;
        };
        let outer = fixed.unwrap_or_else(|| Outer::of(underlay.remote.or(local)));
        let same = found
            .iter_mut()
            .find(|(known, version, _)| known.id == device.id && *version == outer);
        match same {
            Some((_, _, told)) => {
                let both = [*told, underlay.mtu];
                *told = both.into_iter().flatten().min();
            }
            None => found.push((device, outer, underlay.mtu)),
        }
    }
    if found.is_empty() {
        // Each packet brings its own destination: most likely one that lies behind the default route.
        let default = network.devices_of(tunnel.id.netns).find(|device| {
            device.up && network.use_of(device.id).is_default() && !is_tunnel(device)
        });
        found.extend(default.map(|device| {
            let used = network.use_of(device.id);
            let only_v6 = used.default_v6 && !used.default_v4;
            let guess = if only_v6 { Outer::V6 } else { Outer::of(local) };
            (device, fixed.unwrap_or(guess), None)
        }));
    }
    found
}
