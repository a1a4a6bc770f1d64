//! The devices as the record stream tells them: who is the other end of what, which addresses are local where,
//! and where the view ends. Reads nothing but records.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;

use tracer_common::packet::Tunnel;

use crate::event::{DeviceId, NetnsId};
use crate::record::{Device, View};

/// What becomes of a packet that a device transmits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FarEnd {
    /// It arrives on this device.
    Device(DeviceId),
    /// It leaves the view: the other end is a wire, a process, or a namespace that is not watched.
    Outside,
    /// The device wraps the packet and hands it to another device of the same namespace.
    Underlay,
    /// The device is a bridge, a bond, loopback, …: what comes next is decided inside the namespace.
    Inside,
    /// Nothing is known of the device.
    Unknown,
}

/// All devices, as of the last record.
#[derive(Debug, Default)]
pub struct Devices {
    by_id: BTreeMap<DeviceId, Device>,
    names: HashMap<NetnsId, String>,
    locals: HashMap<NetnsId, HashSet<IpAddr>>,
    /// When the UDP port of a tunnel became known, and with it what its packets look like outside.
    learned_ns: HashMap<DeviceId, u64>,
    /// Those at whose `tc` hook everything is seen that reaches them.
    entrances: HashSet<DeviceId>,
}

/// How much later than the latest event a record may be, and than the record the kernel half, which it is told to.
const LEARNED_WITHIN_NS: u64 = 250_000_000;

impl Devices {
    /// None yet; of these everything is seen that reaches them, at their `tc` hook.
    pub fn watched_at(entrances: &[DeviceId]) -> Self {
        Self {
            entrances: entrances.iter().copied().collect(),
            ..Self::default()
        }
    }

    /// Takes a device record. A device that is gone stays known: packets that it carried are still to be explained.
    pub fn push(&mut self, device: &Device) {
        if let Some(name) = &device.netns_name {
            self.names.insert(device.id.netns, name.clone());
        }
        // An address that moved away stays local: a packet that arrived before the move was delivered there.
        self.locals
            .entry(device.id.netns)
            .or_default()
            .extend(device.addrs.iter().copied());
        if device.removed {
            if let Some(known) = self.by_id.get_mut(&device.id) {
                known.removed = true;
            }
            // Its program went with it: another device with its number is not watched.
            self.entrances.remove(&device.id);
        } else {
            self.by_id.insert(device.id, device.clone());
        }
    }

    /// Notes that the UDP port of a tunnel was not known before.
    pub fn learn_tunnel(&mut self, id: DeviceId, now_ns: u64) {
        self.learned_ns.entry(id).or_insert(now_ns);
    }

    /// Whether a tunnel's own packets could not be told from others yet, so that nothing was seen of what it sent.
    pub fn is_tunnel_before_learned(&self, id: DeviceId, time_ns: u64) -> bool {
        // What was known at the beginning has 0: no event came before.
        self.learned_ns.get(&id).is_some_and(|learned_ns| {
            *learned_ns > 0 && time_ns < learned_ns.saturating_add(LEARNED_WITHIN_NS)
        })
    }

    /// A tunnel, wherever it ends, whose port was not known during some of this time, so that its packets were not told from
    /// others: one of them may have carried an answer.
    pub fn tunnel_learned_between(&self, since_ns: u64, until_ns: u64) -> Option<&Device> {
        let in_time = |learned_ns: u64| {
            learned_ns > 0
                && since_ns < learned_ns.saturating_add(LEARNED_WITHIN_NS)
                && learned_ns < until_ns.saturating_add(LEARNED_WITHIN_NS)
        };
        self.by_id.values().find(|device| {
            let learned_ns = self.learned_ns.get(&device.id);
            learned_ns.is_some_and(|learned_ns| in_time(*learned_ns))
        })
    }

    /// The device with this id.
    pub fn get(&self, id: DeviceId) -> Option<&Device> {
        self.by_id.get(&id)
    }

    /// Every device, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = &Device> {
        self.by_id.values()
    }

    /// The name of a namespace, where it has one.
    pub fn netns_name(&self, netns: NetnsId) -> Option<&str> {
        self.names.get(&netns).map(String::as_str)
    }

    /// Whether an address belongs to a namespace.
    pub fn is_local(&self, netns: NetnsId, addr: IpAddr) -> bool {
        self.locals
            .get(&netns)
            .is_some_and(|addrs| addrs.contains(&addr))
    }

    /// Whether the device wraps packets of its own kind's protocol (VXLAN, Geneve, …) rather than carrying them on.
    pub fn is_tunnel(&self, id: DeviceId) -> bool {
        self.get(id)
            .is_some_and(|device| is_tunnel_kind(&device.kind))
    }

    /// Whether packets that arrive on the device may go round again without an event of their own, or be taken by
    /// another device on top of it, so that silence after it proves nothing.
    pub fn hides_delivery(&self, id: DeviceId) -> bool {
        let Some(device) = self.get(id) else {
            return true;
        };
        if self.hides(device) {
            return true;
        }
        let is_below = |other: &Device| match other.underlay() {
            Some(underlay) => underlay == id,
            // Every one but a bond lies on a device. Where that is in a namespace that is not known, it may be this one.
            None => device.kind != "loopback" && !matches!(other.kind.as_str(), "bond" | "team"),
        };
        let port_of_a_hider = device
            .master_ifindex
            .and_then(|ifindex| {
                self.get(DeviceId {
                    ifindex,
                    netns: id.netns,
                })
            })
            .is_some_and(|master| self.hides(master));
        port_of_a_hider
            || self
                .by_id
                .values()
                .any(|other| self.hides(other) && is_below(other))
    }

    /// Whether a device takes packets from the one below without an event of its own. The `tc` hook of some kinds shows
    /// them; of an ipvlan it depends on the mode, and a macvtap and a MACsec device take them elsewhere.
    fn hides(&self, device: &Device) -> bool {
        let kind = device.kind.as_str();
        let is_seen_at_tc = matches!(kind, "macvlan" | "vlan" | "bond" | "team");
        hides_delivery_kind(kind) && !(is_seen_at_tc && self.entrances.contains(&device.id))
    }

    /// Where a packet goes that the device transmits, as far as the view reaches.
    pub fn far_end(&self, id: DeviceId, view: &View) -> FarEnd {
        let Some(device) = self.get(id) else {
            return FarEnd::Unknown;
        };
        match device.kind.as_str() {
            "veth" | "netkit" => match device.peer {
                Some(peer) if view.contains(peer.netns) && self.by_id.contains_key(&peer) => {
                    FarEnd::Device(peer)
                }
                // The kernel names a veth's peer only where it can: with the whole kernel in view, an unnamed one is a gap.
                None if *view == View::Kernel => FarEnd::Unknown,
                _ => FarEnd::Outside,
            },
            "physical" | "tun" | "tap" | "ipvtap" | "macvtap" => FarEnd::Outside,
            kind if is_tunnel_kind(kind) => FarEnd::Underlay,
            _ => FarEnd::Inside,
        }
    }
}

/// The UDP port at which a VXLAN, Geneve or WireGuard device receives.
pub fn tunnel_port(device: &Device) -> Option<(u16, Tunnel)> {
    let tunnel = match device.kind.as_str() {
        "vxlan" => Tunnel::Vxlan,
        "geneve" => Tunnel::Geneve,
        "wireguard" => Tunnel::Wireguard,
        _ => return None,
    };
    Some((device.udp_port?, tunnel))
}

fn is_tunnel_kind(kind: &str) -> bool {
    matches!(
        kind,
        "vxlan"
            | "geneve"
            | "wireguard"
            | "ipip"
            | "sit"
            | "ip6tnl"
            | "gre"
            | "gretap"
            | "ip6gre"
            | "ip6gretap"
            | "erspan"
            | "xfrm"
            | "vti"
    )
}

fn hides_delivery_kind(kind: &str) -> bool {
    matches!(
        kind,
        "macvlan" | "macvtap" | "ipvlan" | "ipvtap" | "vlan" | "bond" | "team" | "macsec"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NetnsId = NetnsId { inum: 1, cookie: 1 };
    const B: NetnsId = NetnsId { inum: 2, cookie: 2 };

    fn device(netns: NetnsId, ifindex: u32, kind: &str, peer: Option<DeviceId>) -> Device {
        Device {
            id: DeviceId { netns, ifindex },
            netns_name: None,
            name: format!("dev{ifindex}"),
            kind: kind.to_owned(),
            mtu: 1500,
            up: true,
            mac: None,
            peer,
            master_ifindex: None,
            vni: None,
            udp_port: None,
            underlay_ifindex: None,
            underlay_netns: None,
            addrs: Vec::new(),
            removed: false,
        }
    }

    #[test]
    fn a_veth_whose_peer_is_not_watched_leaves_the_view() {
        let a = DeviceId {
            netns: A,
            ifindex: 2,
        };
        let b = DeviceId {
            netns: B,
            ifindex: 3,
        };
        let mut devices = Devices::default();
        devices.push(&device(A, 2, "veth", Some(b)));
        devices.push(&device(B, 3, "veth", Some(a)));
        assert_eq!(devices.far_end(a, &View::Kernel), FarEnd::Device(b));
        assert_eq!(
            devices.far_end(a, &View::Netns { netns: vec![A] }),
            FarEnd::Outside
        );
    }

    #[test]
    fn a_device_below_a_vlan_hides_delivery() {
        let mut devices = Devices::default();
        devices.push(&device(A, 2, "physical", None));
        let id = DeviceId {
            netns: A,
            ifindex: 2,
        };
        assert!(!devices.hides_delivery(id));
        let mut vlan = device(A, 3, "vlan", None);
        vlan.underlay_ifindex = Some(2);
        devices.push(&vlan);
        assert!(devices.hides_delivery(id));
    }

    #[test]
    fn a_device_below_a_pods_macvlan_hides_delivery() {
        let mut devices = Devices::default();
        devices.push(&device(A, 20, "physical", None));
        let id = DeviceId {
            netns: A,
            ifindex: 20,
        };
        assert!(!devices.hides_delivery(id));
        devices.push(&device(B, 2, "macvlan", None));
        assert!(devices.hides_delivery(id));
    }

    #[test]
    fn a_veth_below_a_pods_macvlan_hides_delivery_and_no_other_veth_does() {
        let mut devices = Devices::default();
        let id = |ifindex| DeviceId { netns: A, ifindex };
        devices.push(&device(A, 2, "veth", None));
        devices.push(&device(A, 3, "veth", None));
        let mut macvlan = device(B, 2, "macvlan", None);
        macvlan.underlay_ifindex = Some(3);
        macvlan.underlay_netns = Some(A);
        devices.push(&macvlan);
        assert!(!devices.hides_delivery(id(2)));
        assert!(devices.hides_delivery(id(3)));
    }

    #[test]
    fn a_macvlan_that_is_watched_at_its_tc_hook_hides_nothing_and_an_ipvlan_does() {
        let id = |ifindex| DeviceId { netns: A, ifindex };
        for (kind, hides) in [("macvlan", false), ("vlan", false), ("ipvlan", true)] {
            let mut devices = Devices::watched_at(&[id(3)]);
            devices.push(&device(A, 2, "physical", None));
            let mut above = device(A, 3, kind, None);
            above.underlay_ifindex = Some(2);
            devices.push(&above);
            assert_eq!(devices.hides_delivery(id(2)), hides, "{kind}");
            assert_eq!(devices.hides_delivery(id(3)), hides, "{kind}");
            let mut gone = devices.get(id(3)).cloned().expect("it was pushed");
            gone.removed = true;
            devices.push(&gone);
            assert!(devices.hides_delivery(id(2)), "{kind}");
            // Another one beside it hides what it takes.
            above.id = id(4);
            devices.push(&above);
            assert!(devices.hides_delivery(id(2)), "{kind}");
        }
    }

    #[test]
    fn a_removed_device_is_still_known() {
        let mut devices = Devices::default();
        let mut gone = device(A, 2, "vxlan", None);
        devices.push(&gone);
        gone.removed = true;
        devices.push(&gone);
        assert!(devices.is_tunnel(gone.id));
    }
}
