//! All devices as the namespaces told them, and the [`Device`] records that follow. It does no I/O: changes go in,
//! records come out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    mem,
    net::IpAddr,
    ops::RangeInclusive,
};

use crate::{
    event::{DeviceId, NetnsId},
    mtu::model::Encap,
    record::Device,
};

use super::links::{Change, Link};

/// Sorts before every device.
const FIRST: DeviceId = DeviceId {
    netns: NetnsId { inum: 0, cookie: 0 },
    ifindex: 0,
};

/// Sorts after every device.
const LAST: DeviceId = DeviceId {
    netns: NetnsId {
        inum: u32::MAX,
        cookie: u64::MAX,
    },
    ifindex: u32::MAX,
};

/// Every device of a namespace.
fn all_of(netns: NetnsId) -> RangeInclusive<DeviceId> {
    let id = |ifindex| DeviceId { netns, ifindex };
    id(0)..=id(u32::MAX)
}

/// How much a table holds at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub devices: usize,
    pub addresses: usize,
}

/// What had no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Refused {
    pub devices: usize,
    pub addresses: usize,
}

/// Devices and addresses, and what changed since it was last asked.
#[derive(Debug)]
pub(super) struct Table {
    limits: Limits,
    names: HashMap<NetnsId, String>,
    devices: BTreeMap<DeviceId, Entry>,
    /// Addresses of all devices together.
    addresses: usize,
    refused: Refused,
    /// By which number one namespace knows another; true for as long as both are held open.
    nsids: HashMap<(NetnsId, i32), NetnsId>,
    /// Every claim, as (the device claimed, the claimer).
    claims: BTreeSet<(DeviceId, DeviceId)>,
    /// The numbers that devices name and that wait to be resolved.
    unresolved: BTreeSet<(NetnsId, i32)>,
    changed: BTreeSet<DeviceId>,
    /// The ports of devices that tell them elsewhere than with the link.
    listen_ports: HashMap<DeviceId, u16>,
    /// The record that was last made of each device.
    reported: BTreeMap<DeviceId, Device>,
}

#[derive(Debug, Default)]
struct Entry {
    link: Link,
    addrs: BTreeSet<IpAddr>,
    /// Which device this one says is its other end.
    claim: Option<DeviceId>,
}

impl Table {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            names: HashMap::new(),
            devices: BTreeMap::new(),
            addresses: 0,
            refused: Refused::default(),
            nsids: HashMap::new(),
            claims: BTreeSet::new(),
            unresolved: BTreeSet::new(),
            changed: BTreeSet::new(),
            listen_ports: HashMap::new(),
            reported: BTreeMap::new(),
        }
    }

    /// The devices of a kind.
    pub(super) fn of_kind(&self, kind: &str) -> Vec<DeviceId> {
        let devices = self.devices.iter();
        let of_kind = devices.filter(|(_, entry)| entry.link.kind == kind);
        of_kind.map(|(id, _)| *id).collect()
    }

    /// Learns the UDP port that a device listens on; 0 for one that is down.
    pub(super) fn listens(&mut self, id: DeviceId, port: u16) {
        if self.listen_ports.insert(id, port) != Some(port) {
            self.changed.insert(id);
        }
    }

    /// Names a namespace.
    pub(super) fn name(&mut self, netns: NetnsId, name: String) {
        self.names.insert(netns, name);
        let devices = self.devices.range(all_of(netns));
        self.changed.extend(devices.map(|(id, _)| *id));
    }

    /// What did not fit.
    pub(super) fn refused(&self) -> Refused {
        self.refused
    }

    /// Every device, by namespace and ifindex.
    pub(super) fn devices(&self) -> Vec<Device> {
        let ids = self.devices.keys();
        ids.filter_map(|id| self.record(*id)).collect()
    }

    /// What a tunnel puts around each packet.
    pub(super) fn encap(&self, id: DeviceId) -> Option<&Encap> {
        self.devices.get(&id)?.link.encap.as_deref()
    }

    /// The namespace that a device names beside its own: where a tunnel that was moved still sends its packets.
    pub(super) fn made_in(&self, id: DeviceId) -> Option<NetnsId> {
        let nsid = self.devices.get(&id)?.link.over_nsid?;
        self.nsids.get(&(id.netns, nsid)).copied()
    }

    /// A device's name.
    pub(super) fn device_name(&self, id: DeviceId) -> Option<&str> {
        Some(&self.devices.get(&id)?.link.name)
    }

    /// How many devices of a kind have this name, in all namespaces together.
    pub(super) fn count_of(&self, kind: &str, name: &str) -> usize {
        let links = self.devices.values().map(|entry| &entry.link);
        links
            .filter(|link| link.kind == kind && link.name == name)
            .count()
    }

    /// Whether an address is on one of a namespace's devices.
    pub(super) fn has_address(&self, netns: NetnsId, addr: IpAddr) -> bool {
        let mut devices = self.devices.range(all_of(netns));
        devices.any(|(_, entry)| entry.addrs.contains(&addr))
    }

    /// What differs from the last call.
    pub(super) fn changes(&mut self) -> Vec<Device> {
        let mut records = Vec::new();
        for id in mem::take(&mut self.changed) {
            match self.record(id) {
                Some(record) if self.reported.get(&id) != Some(&record) => {
                    self.reported.insert(id, record.clone());
                    records.push(record);
                }
                Some(_) => {}
                None => records.extend(self.reported.remove(&id).map(|last| Device {
                    peer: None,
                    removed: true,
                    ..last
                })),
            }
        }
        records
    }

    /// Takes in what one message of a namespace said.
    pub(super) fn apply(&mut self, netns: NetnsId, change: Change) {
        let id = |ifindex| DeviceId { netns, ifindex };
        match change {
            Change::Link(link) => self.put(id(link.ifindex), *link),
            Change::LinkGone(ifindex) => self.remove(id(ifindex)),
            Change::Address(ifindex, addr) => self.add_address(id(ifindex), addr),
            Change::AddressGone(ifindex, addr) => self.remove_address(id(ifindex), addr),
        }
    }

    /// Forgets a namespace's devices, to hear them anew: what does not come back is gone.
    pub(super) fn forget(&mut self, netns: NetnsId) {
        let ids: Vec<DeviceId> = self
            .devices
            .range(all_of(netns))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            self.remove(id);
        }
    }

    /// Forgets a namespace for good, without a word about its devices: nothing is known of them any more.
    pub(super) fn release(&mut self, netns: NetnsId) {
        self.forget(netns);
        let claimers: Vec<DeviceId> = self.claims_on(netns).collect();
        for id in claimers {
            self.set_claim(id, None);
        }
        let silent = all_of(netns);
        self.reported.retain(|id, _| !silent.contains(id));
        self.changed.retain(|id| !silent.contains(id));
        self.names.remove(&netns);
        self.nsids
            .retain(|(from, _), to| *from != netns && *to != netns);
    }

    fn put(&mut self, id: DeviceId, link: Link) {
        if !self.devices.contains_key(&id) && self.devices.len() >= self.limits.devices {
            self.refused.devices += 1;
            return;
        }
        if let Some(nsid) = link.over_nsid
            && !self.nsids.contains_key(&(id.netns, nsid))
        {
            self.unresolved.insert((id.netns, nsid));
        }
        self.devices.entry(id).or_default().link = link;
        self.changed.insert(id);
        self.connect(id);
    }

    /// Notes which device this one says is its other end.
    fn connect(&mut self, id: DeviceId) {
        let Some(entry) = self.devices.get(&id) else {
            return;
        };
        let claim = self.claim(id, &entry.link);
        self.set_claim(id, claim);
    }

    /// Which device a veth or netkit says is its other end.
    fn claim(&self, id: DeviceId, link: &Link) -> Option<DeviceId> {
        if !link.has_peer() {
            return None;
        }
        let netns = match link.over_nsid {
            Some(nsid) => *self.nsids.get(&(id.netns, nsid))?,
            None => id.netns,
        };
        let ifindex = link.over_ifindex?;
        Some(DeviceId { netns, ifindex })
    }

    fn set_claim(&mut self, id: DeviceId, claim: Option<DeviceId>) {
        let Some(entry) = self.devices.get_mut(&id) else {
            return;
        };
        let before = mem::replace(&mut entry.claim, claim);
        if let Some(device) = before {
            self.claims.remove(&(device, id));
        }
        if let Some(device) = claim {
            self.claims.insert((device, id));
        }
        self.changed.insert(id);
        for device in before.into_iter().chain(claim) {
            let claimers: Vec<DeviceId> = self.claimers(device).collect();
            self.changed.insert(device);
            self.changed.extend(claimers);
        }
    }

    /// Who says that this device is its other end.
    fn claimers(&self, id: DeviceId) -> impl Iterator<Item = DeviceId> {
        let range = self.claims.range((id, FIRST)..=(id, LAST));
        range.map(|(_, claimer)| *claimer)
    }

    /// The other end of a veth or netkit.
    fn peer(&self, id: DeviceId, entry: &Entry) -> Option<DeviceId> {
        self.believed(id, entry).or_else(|| {
            let claim = entry.claim?;
            let other = self.devices.get(&claim)?;
            (self.believed(claim, other) == Some(id)).then_some(claim)
        })
    }

    /// The other end that names this device: the one that this device names too, else the only one that does.
    ///
    /// The kernel does not tell one end when the other is moved, and the namespaces are not heard in the order of
    /// events, so what a device itself names may be out of date.
    fn believed(&self, id: DeviceId, entry: &Entry) -> Option<DeviceId> {
        match entry.claim {
            Some(own) if self.claims.contains(&(id, own)) => return Some(own),
            Some(_) => {}
            // The first end of a new cable is told before the cable is complete (`veth_newlink()` in
            // drivers/net/veth.c), and never again.
            None if entry.link.has_peer() && entry.link.over_ifindex.is_none() => {}
            None => return None,
        }
        let mut claimers = self.claimers(id);
        claimers.next().filter(|_| claimers.next().is_none())
    }

    fn remove(&mut self, id: DeviceId) {
        self.set_claim(id, None);
        let Some(entry) = self.devices.remove(&id) else {
            return;
        };
        self.addresses -= entry.addrs.len();
        self.listen_ports.remove(&id);
        self.changed.insert(id);
    }

    fn add_address(&mut self, id: DeviceId, addr: IpAddr) {
        let Some(entry) = self.devices.get_mut(&id) else {
            return;
        };
        if entry.addrs.contains(&addr) {
            return;
        }
        if self.addresses >= self.limits.addresses {
            self.refused.addresses += 1;
            return;
        }
        self.addresses += 1;
        entry.addrs.insert(addr);
        self.changed.insert(id);
    }

    fn remove_address(&mut self, id: DeviceId, addr: IpAddr) {
        if let Some(entry) = self.devices.get_mut(&id)
            && entry.addrs.remove(&addr)
        {
            self.addresses -= 1;
            self.changed.insert(id);
        }
    }

    /// The numbers by which a device that was heard of since the last call names a namespace that is not known yet.
    pub(super) fn take_unresolved(&mut self) -> BTreeSet<(NetnsId, i32)> {
        mem::take(&mut self.unresolved)
    }

    /// Asks for all unknown numbers once more, since there are new namespaces.
    pub(super) fn ask_again(&mut self) {
        let unresolved = self.devices.iter().filter_map(|(id, entry)| {
            let key = (id.netns, entry.link.over_nsid?);
            (!self.nsids.contains_key(&key)).then_some(key)
        });
        self.unresolved.extend(unresolved);
    }

    /// Learns that `netns` knows `other` by this number.
    pub(super) fn resolve(&mut self, netns: NetnsId, nsid: i32, other: NetnsId) {
        self.nsids.insert((netns, nsid), other);
        let devices = self.devices.range(all_of(netns));
        let named = devices.filter(|(_, entry)| entry.link.over_nsid == Some(nsid));
        self.changed.extend(named.map(|(id, _)| *id));
    }

    /// Connects the veths of a namespace after what it names was resolved.
    pub(super) fn connect_all(&mut self, netns: NetnsId) {
        let waiting: Vec<DeviceId> = self
            .devices
            .range(all_of(netns))
            .filter(|(_, entry)| entry.claim.is_none() && entry.link.has_peer())
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.connect(id);
        }
    }

    /// The namespaces whose veths are known to lead into this one.
    pub(super) fn neighbours(&self, netns: NetnsId) -> BTreeSet<NetnsId> {
        self.claims_on(netns).map(|id| id.netns).collect()
    }

    /// The devices whose other end is said to be in this namespace.
    fn claims_on(&self, netns: NetnsId) -> impl Iterator<Item = DeviceId> {
        let devices = all_of(netns);
        let range = (*devices.start(), FIRST)..=(*devices.end(), LAST);
        self.claims.range(range).map(|(_, claimer)| *claimer)
    }

    fn record(&self, id: DeviceId) -> Option<Device> {
        let entry = self.devices.get(&id)?;
        let Entry { link, addrs, .. } = entry;
        let underlay_ifindex = link.over_ifindex.filter(|_| !link.has_peer());
        // The number of a device means nothing without its namespace.
        let elsewhere = underlay_ifindex.and(link.over_nsid);
        let underlay_netns = elsewhere.and_then(|nsid| self.nsids.get(&(id.netns, nsid)).copied());
        Some(Device {
            id,
            netns_name: self.names.get(&id.netns).cloned(),
            name: link.name.clone(),
            kind: link.kind.clone(),
            mtu: link.mtu,
            up: link.up,
            mac: link.mac,
            peer: self.peer(id, entry),
            master_ifindex: link.master_ifindex,
            vni: link.vni,
            udp_port: link.udp_port.or_else(|| {
                let port = self.listen_ports.get(&id)?;
                (*port != 0).then_some(*port)
            }),
            underlay_ifindex: underlay_ifindex
                .filter(|_| elsewhere.is_none() || underlay_netns.is_some()),
            underlay_netns,
            addrs: addrs.iter().copied().collect(),
            removed: false,
        })
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
