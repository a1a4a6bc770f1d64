//! What supports a cause, as the report tells it.

use super::super::{Evidence, WireguardPeer};
use super::Builder;
use crate::event::DeviceId;
use crate::fact::{Fact, Way};

impl Builder<'_> {
    pub(super) fn fact(&self, fact: &Fact) -> Evidence {
        match fact {
            Fact::Counter {
                netns,
                name,
                before,
                after,
            } => Evidence::Counter {
                netns: netns.inum,
                netns_name: self.netns_name(*netns),
                device: None,
                name: name.clone(),
                before: *before,
                after: *after,
            },
            Fact::DeviceCounter {
                device,
                name,
                before,
                after,
            } => Evidence::Counter {
                netns: device.netns.inum,
                netns_name: self.netns_name(device.netns),
                device: self.device_of(*device),
                name: name.clone(),
                before: *before,
                after: *after,
            },
            Fact::Route(route) => Evidence::Route {
                time: self.time(route.asked_ns),
                netns: route.netns.inum,
                netns_name: self.netns_name(route.netns),
                to: route.lookup.target(),
                summary: self.scene.route_words(route),
                found: route.found,
                prefix: route
                    .prefix
                    .map(|prefix| format!("{}/{}", prefix.addr, prefix.len)),
                table: route.table,
                rule: route.rule,
                rule_selector: route.rule_selector.clone(),
                // The way back is mostly asked without the packet's mark.
                mark: match route.lookup.way {
                    Way::Input | Way::Output => route.lookup.mark,
                    Way::Reverse => 0,
                },
            },
            Fact::Sysctl {
                netns,
                asked_ns,
                name,
                value,
            } => Evidence::Sysctl {
                time: self.time(*asked_ns),
                netns: netns.inum,
                netns_name: self.netns_name(*netns),
                name: name.clone(),
                value: *value,
            },
            Fact::Wireguard(device) => Evidence::Wireguard {
                time: self.time(device.asked_ns),
                netns: device.device.netns.inum,
                netns_name: self.netns_name(device.device.netns),
                device: self.device_of(device.device),
                listen_port: device.listen_port,
                fwmark: device.fwmark,
                peers: device.peers.iter().map(|peer| self.peer(peer)).collect(),
            },
            Fact::Neighbour {
                netns,
                asked_ns,
                ifindex,
                addr,
                state,
                mac,
            } => Evidence::Neighbour {
                time: self.time(*asked_ns),
                netns: netns.inum,
                netns_name: self.netns_name(*netns),
                device: self.device_of(DeviceId {
                    netns: *netns,
                    ifindex: *ifindex,
                }),
                addr: *addr,
                state: state.map(|state| state.name().to_owned()),
                mac: mac.map(crate::fact::mac_words),
            },
            Fact::Socket(socket) => self.told(
                socket.asked_ns,
                format!("{} has the socket {}", socket.owner, socket.local),
            ),
            Fact::Process { asked_ns, owner } => self.told(*asked_ns, format!("{owner} runs")),
            Fact::Tun {
                device,
                asked_ns,
                owner,
            } => {
                let device = self.device_of(*device);
                let device = device.as_deref().unwrap_or("a tun device");
                self.told(*asked_ns, format!("{owner} holds {device}"))
            }
        }
    }

    fn told(&self, asked_ns: u64, summary: String) -> Evidence {
        Evidence::Event {
            time: self.time(asked_ns),
            summary,
        }
    }

    fn peer(&self, peer: &crate::fact::WireguardPeer) -> WireguardPeer {
        let prefixes = peer.allowed_ips.iter();
        WireguardPeer {
            public_key: peer.public_key.clone(),
            endpoint: peer.endpoint,
            allowed_ips: prefixes
                .map(|prefix| format!("{}/{}", prefix.addr, prefix.len))
                .collect(),
            latest_handshake: peer.latest_handshake_ns.and_then(|at_ns| self.time(at_ns)),
            rx_bytes: peer.rx_bytes,
            tx_bytes: peer.tx_bytes,
        }
    }

    fn device_of(&self, id: DeviceId) -> Option<String> {
        let device = self.analysis.devices.get(id)?;
        Some(device.name.clone())
    }
}
