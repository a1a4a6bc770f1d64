//! Reads what the MTU audit needs beyond devices and addresses: how routes use the devices, path MTUs that were learnt,
//! where tunnels lead, and the rules that change the MSS. Only asks; judging is [`crate::mtu`]'s.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    os::fd::AsFd as _,
};

use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    route::{RouteAttribute, RouteMessage},
};
use nix::errno::Errno;

use crate::{
    event::{DeviceId, NetnsId},
    fact::{Prefix, RouteKind},
    mtu::model::{
        Association, Device, IpsecTunnel, LearnedMtu, Namespace, Network, RouteMetrics, Underlay,
        Use,
    },
    record::{BlindSpot, View},
};

use super::{
    Netns, Topology, clamps, encap, links,
    netlink::{BUFFER_BYTES, Message},
    netns, routes,
    rtnetlink::Dump,
    wireguard, xfrm,
};

/// The most routes with metrics, and the most learnt path MTUs, that are kept of one namespace.
const ROUTES_MAX: usize = 4_096;

/// The most outer destinations of one tunnel that are looked up.
const REMOTES_MAX: usize = 32;

/// What is read inside a namespace, besides rtnetlink.
struct Inside {
    clamps: Result<clamps::Found, Errno>,
    endpoints: HashMap<u32, Vec<IpAddr>>,
    associations: Result<Vec<Association>, Errno>,
}

impl Topology {
    /// Reads all that the audit looks at in the namespaces of the view. Needs privilege, since rules and the peers of
    /// WireGuard are told only inside a namespace.
    pub fn audit(&mut self, view: &View) -> Network {
        let mut network = Network {
            devices: self.audited_devices(view),
            blind_spots: self.blind_spots(),
            ..Network::default()
        };
        let inside = self.read_inside(view, &network);
        for index in 0..self.namespaces.len() {
            let id = self.namespaces[index].id;
            if view.contains(id) {
                let inside = inside.get(&id);
                self.read_namespace(index, inside, &mut network);
            }
        }
        name_paths(&mut network);
        network
    }

    /// Runs something inside a namespace, on a thread of its own; sockets that it makes stay there.
    pub fn inside<R: Send>(&self, netns: NetnsId, work: impl Fn() -> R + Sync) -> Result<R, Errno> {
        let opened = self.namespaces.iter().find(|opened| opened.id == netns);
        let handles: Vec<_> = opened.map(|opened| &opened.handle).into_iter().collect();
        let done = netns::in_each(&handles, |handle| handle.as_fd(), |_| work());
        done.into_iter().next().unwrap_or(Err(Errno::ENOENT))
    }

    fn audited_devices(&self, view: &View) -> BTreeMap<DeviceId, Device> {
        let mut devices = BTreeMap::new();
        for device in self.table.devices() {
            if !view.contains(device.id.netns) {
                continue;
            }
            let below = device.underlay();
            let id = device.id;
            let master = device.master_ifindex.map(|ifindex| DeviceId {
                netns: id.netns,
                ifindex,
            });
            devices.insert(
                id,
                Device {
                    id,
                    name: device.name,
                    kind: device.kind,
                    mtu: device.mtu,
                    up: device.up,
                    peer: device.peer,
                    master,
                    below,
                    addrs: device.addrs,
                    encap: self.table.encap(id).cloned(),
                    underlays: Vec::new(),
                },
            );
        }
        devices
    }

    fn read_inside(&self, view: &View, network: &Network) -> HashMap<NetnsId, Inside> {
        let seen: Vec<&Netns> = self
            .namespaces
            .iter()
            .filter(|netns| view.contains(netns.id))
            .collect();
        let read = netns::in_each(
            &seen,
            |netns| netns.handle.as_fd(),
            |netns| {
                let mut buffer = vec![0; BUFFER_BYTES];
                let wireguards: Vec<u32> = network
                    .devices_of(netns.id)
                    .filter(|device| device.kind == "wireguard")
                    .map(|device| device.id.ifindex)
                    .collect();
                Inside {
                    clamps: clamps::read(&mut buffer),
                    endpoints: wireguard::endpoints(&wireguards, &mut buffer),
                    associations: xfrm::read(&mut buffer),
                }
            },
        );
        let found = seen.iter().zip(read);
        found
            .filter_map(|(netns, inside)| Some((netns.id, inside.ok()?)))
            .collect()
    }

    fn read_namespace(&mut self, index: usize, inside: Option<&Inside>, network: &mut Network) {
        let Self {
            namespaces,
            table,
            buffer,
            ..
        } = self;
        let Netns {
            id,
            name,
            socket,
            sysctls,
            ..
        } = &mut namespaces[index];
        let id = *id;
        let sysctl = |ipv6| sysctls.read(ipv6, "all", "forwarding") == Some(1);
        let mut namespace = Namespace {
            name: name.clone(),
            own: index == 0,
            forwards: sysctl(false) || sysctl(true),
            tcp_mtu_probing: sysctls.of_ipv4("tcp_mtu_probing"),
            ip_no_pmtu_disc: sysctls.of_ipv4("ip_no_pmtu_disc"),
            ..Namespace::default()
        };
        let mut failed = Vec::new();
        let mut dump = |what, each: &mut dyn FnMut(routes::Entry)| {
            let asked = socket.dump(
                what,
                buffer,
                &mut |message: Message<'_>| match links::parse(message) {
                    Some(change) => table.apply(id, change),
                    None => routes::parse(message).into_iter().for_each(&mut *each),
                },
            );
            if let Err(errno) = asked {
                failed.push((what, errno));
            }
        };
        dump(Dump::Routes, &mut |route| take(&mut namespace, &route));
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            dump(Dump::LearnedMtus(family), &mut |route| {
                learn(&mut namespace, &route);
            });
        }
        for (what, errno) in failed {
            // A kernel without IPv6 has no such routes.
            if errno != Errno::EOPNOTSUPP && errno != Errno::EAFNOSUPPORT {
                blind(
                    network,
                    "routes_unread",
                    format!(
                        "{} of network namespace {} could not be read ({})",
                        match what {
                            Dump::LearnedMtus(_) => "the path MTUs that ICMP has told",
                            _ => "the routes",
                        },
                        id.inum,
                        errno.desc()
                    ),
                );
            }
        }
        match inside.map(|inside| &inside.clamps) {
            Some(Ok(found)) => {
                namespace.clamps = (!found.legacy).then(|| found.clamps.clone());
                if found.legacy {
                    blind(
                        network,
                        "mss_rules_unread",
                        format!(
                            "network namespace {} has a table mangle of the older iptables, whose rules are not read: one may clamp the MSS",
                            id.inum
                        ),
                    );
                }
            }
            // No nf_tables in this kernel, so no rule of it.
            Some(Err(Errno::EPROTONOSUPPORT | Errno::EINVAL | Errno::EOPNOTSUPP)) => {
                namespace.clamps = Some(Vec::new());
            }
            other => {
                let errno = other.and_then(|clamps| clamps.as_ref().err());
                blind(
                    network,
                    "mss_rules_unread",
                    format!(
                        "the rules of network namespace {} could not be read ({}): one may clamp the MSS",
                        id.inum,
                        errno.map_or("it could not be entered", |errno| errno.desc())
                    ),
                );
            }
        }
        network.namespaces.insert(id, namespace);
        self.read_underlays(index, inside, network);
        self.read_ipsec(index, inside, network);
    }

    /// Finds out where the ESP tunnels lead that begin in a namespace.
    fn read_ipsec(&mut self, index: usize, inside: Option<&Inside>, network: &mut Network) {
        let id = self.namespaces[index].id;
        let associations = match inside.map(|inside| &inside.associations) {
            Some(Ok(associations)) => associations,
            Some(Err(errno)) => {
                return blind(
                    network,
                    "ipsec_unread",
                    format!(
                        "the IPsec associations of network namespace {} could not be read ({}): what they carry is not known",
                        id.inum,
                        errno.desc()
                    ),
                );
            }
            None => return,
        };
        for association in associations {
            if !self.table.has_address(id, association.src) {
                continue;
            }
            let tunnel = IpsecTunnel {
                association: association.clone(),
                underlay: self.route_to(id, association.dst, None),
            };
            if let Some(namespace) = network.namespaces.get_mut(&id) {
                namespace.ipsec.push(tunnel);
            }
        }
    }

    /// Finds out where the tunnels of a namespace lead.
    fn read_underlays(&mut self, index: usize, inside: Option<&Inside>, network: &mut Network) {
        let id = self.namespaces[index].id;
        let tunnels: Vec<u32> = network
            .devices_of(id)
            .filter(|device| device.encap.is_some() || device.kind == "wireguard")
            .map(|device| device.id.ifindex)
            .collect();
        if tunnels.is_empty() {
            return;
        }
        let entries = self.forwarding_entries(index);
        for ifindex in tunnels {
            let tunnel = DeviceId { netns: id, ifindex };
            let endpoints = inside.and_then(|inside| inside.endpoints.get(&ifindex));
            let learnt = entries.get(&ifindex).into_iter().flatten();
            let Some(device) = network.devices.get(&tunnel) else {
                continue;
            };
            let mut remotes: BTreeSet<IpAddr> = learnt
                .chain(endpoints.into_iter().flatten())
                .copied()
                .collect();
            remotes.extend(device.encap.iter().flat_map(|encap| &encap.remotes));
            // A tunnel that was moved sends where it was made (`IFLA_LINK_NETNSID`).
            let from = self.table.made_in(tunnel).unwrap_or(id);
            let below = device.below;
            let mut underlays = Vec::new();
            for remote in remotes.into_iter().take(REMOTES_MAX) {
                underlays.extend(self.route_to(from, remote, below));
            }
            if let (true, Some(device)) = (underlays.is_empty(), below) {
                underlays.push(Underlay {
                    remote: None,
                    device,
                    mtu: None,
                });
            }
            if let Some(device) = network.devices.get_mut(&tunnel) {
                device.underlays = underlays;
            }
        }
    }

    /// The outer destinations in the forwarding databases, by the ifindex of the VXLAN.
    fn forwarding_entries(&mut self, index: usize) -> HashMap<u32, BTreeSet<IpAddr>> {
        let mut entries: HashMap<u32, BTreeSet<IpAddr>> = HashMap::new();
        let mut request = [0; 12];
        request[0] = u8::try_from(libc::AF_BRIDGE).unwrap_or_default();
        let Netns { id, socket, .. } = &mut self.namespaces[index];
        let table = &mut self.table;
        // A kernel without bridges has no such entries.
        let _ = socket.netlink().ask(
            libc::RTM_GETNEIGH,
            NLM_F_DUMP,
            &request,
            &mut self.buffer,
            &mut |message| match links::parse(message) {
                Some(change) => table.apply(*id, change),
                None if message.kind == libc::RTM_NEWNEIGH => {
                    if let Some((ifindex, remote)) = encap::forwarding_entry(message.payload) {
                        let remotes = entries.entry(ifindex).or_default();
                        if remotes.len() < REMOTES_MAX {
                            remotes.insert(remote);
                        }
                    }
                }
                None => {}
            },
        );
        entries
    }

    /// How a namespace routes a packet to an address; through `below`, where the tunnel is bound to a device.
    fn route_to(
        &mut self,
        from: NetnsId,
        remote: IpAddr,
        below: Option<DeviceId>,
    ) -> Option<Underlay> {
        let index = self.namespaces.iter().position(|netns| netns.id == from)?;
        let mut request = RouteMessage::default();
        let (family, bits) = match remote {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        request.header.address_family = family;
        request.header.destination_prefix_length = bits;
        let attributes = &mut request.attributes;
        attributes.push(RouteAttribute::Destination(remote.into()));
        if let Some(below) = below.filter(|below| below.netns == from) {
            attributes.push(RouteAttribute::Oif(below.ifindex));
        }
        let Netns { id, socket, .. } = &mut self.namespaces[index];
        let table = &mut self.table;
        let mut route = None;
        let asked = socket.request(
            RouteNetlinkMessage::GetRoute(request),
            &mut self.buffer,
            &mut |message| match links::parse(message) {
                Some(change) => table.apply(*id, change),
                None => route = route.take().or_else(|| routes::parse(message)),
            },
        );
        let route = asked.ok().and(route)?;
        if route.kind != RouteKind::Unicast {
            return None;
        }
        let hop = route.hops.first()?;
        Some(Underlay {
            remote: Some(remote),
            device: DeviceId {
                netns: from,
                ifindex: hop.ifindex,
            },
            mtu: route.metrics.mtu,
        })
    }
}

/// Says how the namespaces without a name can be entered by a command.
fn name_paths(network: &mut Network) {
    let unnamed = network
        .namespaces
        .values()
        .any(|netns| netns.name.is_none() && !netns.own);
    if !unnamed {
        return;
    }
    let Ok(paths) = netns::paths(super::NETNS_MAX) else {
        return;
    };
    for (id, netns) in &mut network.namespaces {
        if netns.name.is_none() && !netns.own {
            netns.path = paths.get(&u64::from(id.inum)).cloned();
        }
    }
}

fn blind(network: &mut Network, code: &str, summary: String) {
    network.blind_spots.push(BlindSpot {
        code: code.to_owned(),
        summary,
    });
}

/// Notes how a route uses its devices, and what it says about sizes.
fn take(namespace: &mut Namespace, route: &routes::Entry) {
    if route.kind != RouteKind::Unicast {
        return;
    }
    let Prefix { addr, len } = route.dst;
    let ipv6 = addr.is_ipv6();
    let metrics = route.metrics;
    if (metrics.mtu.is_some() || metrics.advmss.is_some()) && namespace.metrics.len() < ROUTES_MAX {
        let only = route.hops.first().filter(|_| route.hops.len() == 1);
        namespace.metrics.push(RouteMetrics {
            dst: format!("{addr}/{len}"),
            table: route.table,
            ifindex: only.map_or(0, |hop| hop.ifindex),
            gateway: only.and_then(|hop| hop.gateway),
            priority: metrics.priority,
            mtu: metrics.mtu,
            advmss: metrics.advmss,
        });
    }
    let link_local = match addr {
        IpAddr::V4(addr) => addr.is_link_local(),
        IpAddr::V6(addr) => addr.is_unicast_link_local() || addr.is_multicast(),
    };
    if link_local {
        return;
    }
    let one_host = len == if ipv6 { 128 } else { 32 };
    for hop in &route.hops {
        let used: &mut Use = namespace.uses.entry(hop.ifindex).or_default();
        if ipv6 {
            used.v6 = true;
            used.default_v6 |= len == 0;
        } else {
            used.v4 = true;
            used.default_v4 |= len == 0;
        }
        match metrics.mtu {
            Some(mtu) => used.largest_mtu = used.largest_mtu.max(Some(mtu)),
            // The route to a gateway of its own carries no bulk.
            None if one_host => {}
            None => used.unlimited = true,
        }
    }
}

fn learn(namespace: &mut Namespace, route: &routes::Entry) {
    if let (Some(mtu), Some(hop)) = (route.metrics.mtu, route.hops.first())
        && namespace.learned.len() < ROUTES_MAX
    {
        namespace.learned.push(LearnedMtu {
            dst: route.dst.addr,
            ifindex: hop.ifindex,
            mtu,
            expires_s: route.expires_s,
        });
    }
}
