//! Finds out into which namespace a veth leads: a namespace knows others by numbers of its own, and only tells the
//! number of one that is shown to it (`RTM_GETNSID` with `NETNSA_FD`).

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    os::fd::AsFd as _,
};

use crate::event::NetnsId;

use super::{Topology, links};

/// The most questions in one go.
const QUESTIONS_MAX: usize = 50_000;

impl Topology {
    /// Finds out which namespaces the devices name.
    pub(super) fn resolve_peers(&mut self) {
        let mut wanted: HashMap<NetnsId, BTreeSet<i32>> = HashMap::new();
        for (netns, nsid) in self.table.take_unresolved() {
            wanted.entry(netns).or_default().insert(nsid);
        }
        if wanted.is_empty() {
            return;
        }
        // Those that know many others come first: then it is known already whom the many others know.
        let mut order: Vec<usize> = (0..self.namespaces.len()).collect();
        order.sort_by_key(|index| {
            let nsids = wanted.get(&self.namespaces[*index].id);
            Reverse(nsids.map_or(0, BTreeSet::len))
        });
        let mut questions = QUESTIONS_MAX;
        for index in order {
            let Some(nsids) = wanted.remove(&self.namespaces[index].id) else {
                break;
            };
            self.resolve_nsids(index, nsids, &mut questions);
        }
    }

    /// Asks one namespace for its number of the others, until the wanted numbers have turned up.
    fn resolve_nsids(&mut self, index: usize, mut wanted: BTreeSet<i32>, questions: &mut usize) {
        let id = self.namespaces[index].id;
        let likely = self.table.neighbours(id);
        let mut others: Vec<usize> = (0..self.namespaces.len()).collect();
        others.sort_by_key(|other| !likely.contains(&self.namespaces[*other].id));
        for other in others {
            if wanted.is_empty() || *questions == 0 {
                break;
            }
            let Ok([asked, other]) = self.namespaces.get_disjoint_mut([index, other]) else {
                continue;
            };
            *questions -= 1;
            let table = &mut self.table;
            let answer =
                asked
                    .socket
                    .nsid_of(other.handle.as_fd(), &mut self.buffer, &mut |message| {
                        if let Some(change) = links::parse(message) {
                            table.apply(id, change);
                        }
                    });
            if let Ok(Some(nsid)) = answer {
                table.resolve(id, nsid, other.id);
                wanted.remove(&nsid);
            }
        }
        self.look |= !wanted.is_empty();
        if *questions == 0 {
            self.unasked += wanted.len();
        }
        self.table.connect_all(id);
    }
}
