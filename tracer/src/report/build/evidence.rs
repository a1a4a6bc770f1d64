//! What supports a cause, as the report tells it.

use super::super::Evidence;
use super::Builder;
use crate::event::DeviceId;
use crate::fact::Fact;

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
                device: self
                    .analysis
                    .devices
                    .get(DeviceId {
                        netns: *netns,
                        ifindex: *ifindex,
                    })
                    .map(|device| device.name.clone()),
                addr: *addr,
                state: state.map(|state| state.name().to_owned()),
                mac: mac.map(crate::fact::mac_words),
            },
        }
    }
}
