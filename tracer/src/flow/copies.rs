//! One packet may be sent several times, and each transmission may branch (a bridge floods it). A [`Transmission`] is
//! one of them with everything that was seen of it; its [`End`]s say what became of each branch.

use std::collections::HashMap;

use crate::devices::{Devices, FarEnd};
use crate::event::{Death, NetnsId, SkbId};
use crate::flow::{Message, Point, Sighting};
use crate::record::View;

/// `NETDEV_TX_BUSY`: the driver was busy, and the packet goes back into the queue.
const NETDEV_TX_BUSY: i32 = 0x10;

/// One transmission of a packet: its sightings in the order of time.
#[derive(Clone, Debug)]
pub struct Transmission<'a> {
    /// At least one.
    sightings: Vec<&'a Sighting>,
}

/// What became of a branch of a transmission, with the last sighting of it.
#[derive(Clone, Copy, Debug)]
pub enum End<'a> {
    /// The TCP state machine took it.
    Consumed(&'a Sighting),
    /// It arrived in the namespace that owns its destination address.
    Delivered(&'a Sighting),
    /// It was handed to a device whose other end is outside the view.
    Left(&'a Sighting),
    /// Nothing more was seen of it, though something should have been.
    Vanished(&'a Sighting),
    /// It was freed, or refused by a driver.
    Died(&'a Sighting),
}

impl<'a> End<'a> {
    /// The last sighting.
    pub const fn sighting(self) -> &'a Sighting {
        match self {
            Self::Consumed(at)
            | Self::Delivered(at)
            | Self::Left(at)
            | Self::Vanished(at)
            | Self::Died(at) => at,
        }
    }

    /// How much it says of the packet, compared with the ends of other branches. That a copy died where the packet was
    /// meant to go says more than that another went elsewhere.
    fn rank(self, devices: &Devices) -> u8 {
        match self {
            Self::Consumed(_) => 4,
            Self::Delivered(_) => 3,
            Self::Died(at) if arrived(at, devices) && !is_bystander(at) => 2,
            Self::Left(_) | Self::Vanished(_) => 1,
            Self::Died(_) => 0,
        }
    }
}

impl<'a> Transmission<'a> {
    /// The sightings, in the order of time.
    pub fn sightings(&self) -> &[&'a Sighting] {
        &self.sightings
    }

    /// The first sighting.
    pub fn first(&self) -> &'a Sighting {
        self.sightings[0]
    }

    /// The last sighting.
    pub fn last(&self) -> &'a Sighting {
        self.sightings[self.sightings.len() - 1]
    }

    /// How many places it passed: what is compared when asking which transmission came furthest.
    pub fn distance(&self) -> usize {
        let passed =
            |sighting: &&&Sighting| !matches!(sighting.point, Point::Drop(_) | Point::Refused(_));
        self.sightings.iter().filter(passed).count()
    }

    /// What became of it: the fate of the branch that fared best. A transmission is dead only if every branch is.
    pub fn end(&self, devices: &Devices, view: &View) -> End<'a> {
        let mut ends = self.ends(devices, view);
        let dead: Vec<&Sighting> = ends
            .iter()
            .filter(|end| matches!(end, End::Died(at) if !is_bystander(at)))
            .map(|end| end.sighting())
            .collect();
        ends.retain(|end| {
            !matches!(end, End::Left(_) | End::Vanished(_))
                || !dead
                    .iter()
                    .any(|dead| self.is_mirrored(end.sighting(), dead, devices))
        });
        let best = ends.into_iter().max_by_key(|end| {
            (
                end.rank(devices),
                !is_bystander(end.sighting()),
                end.sighting().order(),
            )
        });
        // There is always one: nothing continues the last sighting.
        best.unwrap_or(End::Vanished(self.last()))
    }

    /// Whether a copy was made for somebody else (`tc mirred`, `nft dup`) of a packet that died afterwards: it began later,
    /// in an skb of its own, and is neither one that a bridge flooded nor one that a tunnel sent to several ends.
    fn is_mirrored(&self, copy: &Sighting, dead: &Sighting, devices: &Devices) -> bool {
        let first = |skb: SkbId| self.sightings.iter().find(|seen| seen.skb == skb);
        let (Some(copied), Some(original)) = (first(copy.skb), first(dead.skb)) else {
            return false;
        };
        let is_flooded = copied
            .device()
            .and_then(|id| devices.get(id))
            .is_none_or(|device| device.master_ifindex.is_some());
        copy.skb != dead.skb
            && copied.point == Point::Xmit
            && original.order() < copied.order()
            && copied.order() < dead.order()
            && original.tunnels == copied.tunnels
            && !is_flooded
    }

    fn ends(&self, devices: &Devices, view: &View) -> Vec<End<'a>> {
        let is_open = |index: &usize| {
            let (at, later) = (self.sightings[*index], &self.sightings[index + 1..]);
            !later.iter().any(|next| continues(at, next, devices, view))
        };
        let killed = |at: &Sighting| {
            self.sightings
                .iter()
                .any(|other| other.skb == at.skb && matches!(other.point, Point::Drop(_)))
        };
        (0..self.sightings.len())
            .filter(is_open)
            .filter_map(|index| {
                let at = self.sightings[index];
                Some(match &at.point {
                    // The free that the refusal led to tells more.
                    Point::Refused(_) if killed(at) => return None,
                    Point::Refused(NETDEV_TX_BUSY) => End::Vanished(at),
                    Point::Drop(_) if was_queued(at) || was_asked(at) => End::Delivered(at),
                    Point::Drop(_) | Point::Refused(_) => End::Died(at),
                    Point::Consume => End::Consumed(at),
                    Point::Receive if arrived(at, devices) => End::Delivered(at),
                    Point::Receive => End::Vanished(at),
                    Point::Xmit => match at.device().map(|id| devices.far_end(id, view)) {
                        Some(FarEnd::Outside) => End::Left(at),
                        _ => End::Vanished(at),
                    },
                })
            })
            .collect()
    }
}

/// Whether the packet is in the namespace of its destination, out of every tunnel.
fn arrived(at: &Sighting, devices: &Devices) -> bool {
    at.tunnels.is_empty()
        && at
            .netns
            .is_some_and(|netns| devices.is_local(netns, at.tuple.dst.ip()))
}

/// A copy whose death says nothing of the packet: one that a bridge flooded to a host it was not meant for, or one made
/// for a packet socket (a sniffer) that could not take it.
pub fn is_bystander(at: &Sighting) -> bool {
    let Point::Drop(death) = &at.point else {
        return false;
    };
    death.reason.as_deref() == Some("OTHERHOST")
        || matches!(
            death.location.function.as_str(),
            "packet_rcv" | "tpacket_rcv" | "packet_rcv_spkt"
        )
}

/// Whether the packet lay in its socket's queue until the socket was closed. TCP has no such packets that matter: what
/// opens a connection is not queued.
pub fn was_queued(at: &Sighting) -> bool {
    let by_destructor = |death: &Death| {
        // inet_sock_destruct (net/ipv4/af_inet.c) and udp_destruct_common (net/ipv4/udp.c) empty the queues.
        ["inet_sock_destruct", "udp_destruct_common"].contains(&death.location.plain_name())
    };
    !matches!(at.message, Message::Tcp(_))
        && matches!(&at.point, Point::Drop(death) if by_destructor(death))
}

/// Whether ICMP has read an echo request: one that it cannot answer it frees without a reason (`icmpv6_rcv()` after
/// `icmpv6_echo_reply()`, Linux 6.18).
pub fn was_asked(at: &Sighting) -> bool {
    let by_icmp = |death: &Death| {
        !death.has_reason() && ["icmp_rcv", "icmpv6_rcv"].contains(&death.location.plain_name())
    };
    matches!(at.message, Message::Echo(echo) if !echo.is_reply)
        && at.icmp.is_none()
        && matches!(&at.point, Point::Drop(death) if by_icmp(death))
}

/// Whether `next`, seen after `at`, shows that the branch went on.
fn continues(at: &Sighting, next: &Sighting, devices: &Devices, view: &View) -> bool {
    if at.skb == next.skb {
        return !matches!(at.point, Point::Drop(_) | Point::Consume);
    }
    let same_netns =
        |netns: Option<NetnsId>| netns.is_none() || at.netns.is_none() || netns == at.netns;
    let came_from_outside = || {
        next.point == Point::Receive
            && next
                .device()
                .is_some_and(|id| devices.far_end(id, view) == FarEnd::Outside)
    };
    match at.point {
        Point::Drop(_) | Point::Consume | Point::Refused(_) => false,
        Point::Receive => same_netns(next.netns),
        Point::Xmit => match at
            .device()
            .map_or(FarEnd::Unknown, |id| devices.far_end(id, view))
        {
            // The peer may copy the packet before it looks at it (XDP), and free the copy.
            FarEnd::Device(peer) => {
                matches!(next.point, Point::Receive | Point::Drop(_)) && next.device() == Some(peer)
            }
            FarEnd::Underlay | FarEnd::Inside => same_netns(next.netns),
            // A packet that left may come back through another door (a process, a wire between two of our devices).
            FarEnd::Outside => came_from_outside(),
            FarEnd::Unknown => next.point == Point::Receive && next.netns != at.netns,
        },
    }
}

/// Packets that say different things are different packets; those that say the same are split by transmission.
/// `sampled` as in [`split`].
pub fn transmissions<'a>(
    sightings: impl IntoIterator<Item = &'a Sighting>,
    sampled: bool,
) -> Vec<Transmission<'a>> {
    let mut known: HashMap<Message, usize> = HashMap::new();
    let mut groups: Vec<Vec<&'a Sighting>> = Vec::new();
    for sighting in sightings {
        let index = *known
            .entry(sighting.message.content())
            .or_insert(groups.len());
        if index == groups.len() {
            groups.push(Vec::new());
        }
        groups[index].push(sighting);
    }
    let mut transmissions: Vec<Transmission<'a>> = groups
        .into_iter()
        .flat_map(|group| split(group, sampled))
        .collect();
    transmissions.sort_by_key(|transmission| transmission.first().order());
    transmissions
}

/// How long a packet of a sampled stream may take from one sighting to the next.
const SAMPLED_HOP_NS: u64 = 50_000_000;

/// Splits the sightings of one packet, sorted by time, into its transmissions.
///
/// What the sender puts into each transmission anew (the TCP timestamp, the IP identification) tells two apart, but for
/// TCP's of one millisecond: a SYN-ACK that answers a repeated SYN may meet one that is repeated by the timer. They, and
/// those without such a mark, are told apart by a place that is passed for the second time, by another skb or without a
/// mark to vouch for the skb.
///
/// Of a stream that was too long to be kept whole (`sampled`), a packet without a mark may be one whose earlier sightings
/// are not there: only its skb joins it to another, and only shortly after.
pub fn split<'a>(
    sightings: impl IntoIterator<Item = &'a Sighting>,
    sampled: bool,
) -> Vec<Transmission<'a>> {
    let mut transmissions: Vec<Transmission<'a>> = Vec::new();
    for sighting in sightings {
        let mark = sighting.message.transmission();
        let same_mark =
            |transmission: &Transmission<'a>| transmission.first().message.transmission() == mark;
        // The address of an skb that was freed says nothing: it may be another's by now.
        let same_skb = |transmission: &Transmission<'a>| {
            let last = transmission
                .sightings
                .iter()
                .rfind(|seen| seen.skb == sighting.skb);
            last.is_some_and(|last| {
                !matches!(last.point, Point::Drop(_) | Point::Consume)
                    && !is_sent_anew(transmission, sighting)
            })
        };
        let passed = |transmission: &Transmission<'a>| {
            transmission
                .sightings
                .iter()
                .any(|seen| passes_again(seen, sighting))
        };
        let is_strict = sampled && mark.is_none();
        let in_time = |transmission: &Transmission<'a>| {
            let last_ns = transmission.last().time_ns;
            !is_strict || sighting.time_ns.saturating_sub(last_ns) < SAMPLED_HOP_NS
        };
        let index = transmissions
            .iter()
            .rposition(|each| {
                same_mark(each)
                    && same_skb(each)
                    && (mark.is_some() || !passed(each))
                    && in_time(each)
            })
            .or_else(|| {
                transmissions
                    .iter()
                    .rposition(|each| !is_strict && same_mark(each) && !passed(each))
            });
        match index {
            Some(index) => transmissions[index].sightings.push(sighting),
            None => transmissions.push(Transmission {
                sightings: vec![sighting],
            }),
        }
    }
    transmissions
}

/// Whether a device sends an skb that it has sent before, although it neither came back there nor was refused: then the
/// skb was freed unseen, and its address is another packet's.
fn is_sent_anew(transmission: &Transmission<'_>, sighting: &Sighting) -> bool {
    let seen = &transmission.sightings;
    let Some(before) = seen.iter().rposition(|seen| passes_again(seen, sighting)) else {
        return false;
    };
    let came_back = |seen: &&Sighting| match seen.point {
        Point::Receive => seen.netns == sighting.netns,
        Point::Refused(_) => true,
        _ => false,
    };
    let mut since = seen[before..].iter();
    sighting.point == Point::Xmit && !since.any(|seen| seen.skb == sighting.skb && came_back(seen))
}

/// Whether a packet is where it has been, which it may be once for each hop that it has left.
fn passes_again(seen: &Sighting, sighting: &Sighting) -> bool {
    same_place(seen, sighting) && sighting.hop_limit >= seen.hop_limit
}

fn same_place(one: &Sighting, other: &Sighting) -> bool {
    one.netns == other.netns
        && one.ifindex == other.ifindex
        && std::mem::discriminant(&one.point) == std::mem::discriminant(&other.point)
}
