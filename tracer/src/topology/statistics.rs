//! What the devices of the watched namespaces count, before and after: a driver, and much of what lies below IP, drops
//! without an event.

use std::collections::BTreeMap;

use crate::{event::DeviceId, fact::Fact, record::View};

use super::{
    Netns, Topology,
    links::{self, LINK_HEADER_BYTES, attributes, number},
    netlink::Message,
    rtnetlink::Dump,
};

/// The counters that tell of losses, and which of `struct rtnl_link_stats64` (include/uapi/linux/if_link.h) each is.
const WATCHED: [(&str, usize); 12] = [
    ("rx_errors", 4),
    ("tx_errors", 5),
    ("rx_dropped", 6),
    ("tx_dropped", 7),
    ("rx_crc_errors", 12),
    ("rx_frame_errors", 13),
    ("rx_fifo_errors", 14),
    ("rx_missed_errors", 15),
    ("tx_aborted_errors", 16),
    ("tx_carrier_errors", 17),
    ("rx_nohandler", 23),
    // Since Linux 5.19.
    ("rx_otherhost_dropped", 24),
];

/// What a device has counted; 0 for a counter that this kernel lacks.
type Values = [u64; WATCHED.len()];

/// The counters of devices.
#[derive(Debug)]
pub struct Statistics {
    view: View,
    before: BTreeMap<DeviceId, Values>,
}

impl Statistics {
    /// Reads the counters as the trace begins.
    pub fn begin(topology: &mut Topology, view: &View) -> Self {
        Self {
            view: view.clone(),
            before: topology.statistics(view),
        }
    }

    /// Reads the counters as the trace ends, and tells those that moved. Of a device that came later it is not known what
    /// it had counted elsewhere.
    pub fn finish(&self, topology: &mut Topology) -> Vec<Fact> {
        let after = topology.statistics(&self.view);
        let devices = after
            .iter()
            .filter_map(|(device, after)| Some((*device, self.before.get(device)?, after)));
        devices
            .flat_map(|(device, before, after)| differences(device, before, after))
            .collect()
    }
}

fn differences(device: DeviceId, before: &Values, after: &Values) -> Vec<Fact> {
    WATCHED
        .iter()
        .zip(before.iter().zip(after))
        .filter(|(_, (before, after))| before < after)
        .map(|((name, _), (before, after))| Fact::DeviceCounter {
            device,
            name: (*name).to_owned(),
            before: *before,
            after: *after,
        })
        .collect()
}

impl Topology {
    /// What the devices of the watched namespaces have counted. A namespace that does not answer has none.
    fn statistics(&mut self, view: &View) -> BTreeMap<DeviceId, Values> {
        let Self {
            namespaces,
            table,
            buffer,
            incomplete,
            ..
        } = self;
        let mut all = BTreeMap::new();
        for Netns { id, socket, .. } in namespaces.iter_mut() {
            if !view.contains(*id) {
                continue;
            }
            let listed = socket.dump(Dump::Statistics, buffer, &mut |message| {
                if let Some((ifindex, values)) = parse(message) {
                    let device = DeviceId {
                        netns: *id,
                        ifindex,
                    };
                    all.insert(device, values);
                }
                // Notifications come among the answers.
                if let Some(change) = links::parse(message) {
                    table.apply(*id, change);
                }
            });
            if let Err(errno) = listed {
                // The next poll lists the devices anew: notifications may have been lost.
                incomplete.insert(*id, errno);
            }
        }
        all
    }
}

/// Reads a message; `None` for one that is about something else.
fn parse(message: Message<'_>) -> Option<(u32, Values)> {
    if message.kind != libc::RTM_NEWLINK {
        return None;
    }
    // struct ifinfomsg: family, padding, type (two bytes), and the ifindex.
    let ifindex = number(message.payload.get(4..8)?)?;
    let counted = attributes(message.payload.get(LINK_HEADER_BYTES..)?)
        .find(|attribute| attribute.kind() == libc::IFLA_STATS64)?;
    let (counted, _) = counted.value().as_chunks::<8>();
    let value = |index: usize| {
        counted
            .get(index)
            .map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    };
    Some((ifindex, WATCHED.map(|(_, index)| value(index))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::NetnsId;

    /// `struct ifinfomsg` of ifindex 7 and an IFLA_STATS64 of so many counters, of which each is its own index.
    fn message(counters: u64) -> Vec<u8> {
        let mut payload = vec![0; LINK_HEADER_BYTES];
        payload[4] = 7;
        let len = u16::try_from(4 + 8 * counters).expect("a short attribute");
        payload.extend(len.to_ne_bytes());
        payload.extend(libc::IFLA_STATS64.to_ne_bytes());
        payload.extend((0..counters).flat_map(u64::to_ne_bytes));
        payload
    }

    fn parsed(payload: &[u8]) -> Option<(u32, Values)> {
        parse(Message {
            kind: libc::RTM_NEWLINK,
            payload,
        })
    }

    #[test]
    fn each_counter_is_read_from_its_place() {
        assert_eq!(
            parsed(&message(25)),
            Some((7, [4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 23, 24]))
        );
        // An older kernel.
        assert_eq!(
            parsed(&message(23)),
            Some((7, [4, 5, 6, 7, 12, 13, 14, 15, 16, 17, 0, 0]))
        );
        for cut in 0..LINK_HEADER_BYTES + 4 {
            assert_eq!(parsed(&message(25)[..cut]), None);
        }
    }

    #[test]
    fn only_what_moved_is_told() {
        let netns = NetnsId { inum: 1, cookie: 2 };
        let device = DeviceId { netns, ifindex: 7 };
        let mut after = Values::default();
        after[3] = 2;
        assert_eq!(
            differences(device, &Values::default(), &after),
            [Fact::DeviceCounter {
                device,
                name: "tx_dropped".to_owned(),
                before: 0,
                after: 2,
            }]
        );
        assert!(differences(device, &after, &after).is_empty());
    }

    #[test]
    fn the_running_kernel_counts() {
        let mut topology = Topology::open().unwrap();
        let own = topology.own();
        let counted = topology.statistics(&View::Netns { netns: vec![own] });
        let loopback = DeviceId {
            netns: own,
            ifindex: 1,
        };
        assert!(counted.contains_key(&loopback), "{counted:?}");
    }
}
