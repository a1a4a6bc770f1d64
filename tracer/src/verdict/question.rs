//! What to ask the kernel about a packet that died. It follows from the death alone, so that a question which was asked
//! while the trace ran and the verdict that looks for its answer agree. What to ask about a reply that went another way
//! than its request is [`egress`]'s business.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use tracer_common::packet::IpProto;

use super::diagnosis::{self, Trace};
use super::egress;
use super::size::{self, Check};
use crate::codes::CauseCode;
use crate::devices::Devices;
use crate::event::Death;
use crate::fact::{About, Lookup, Question, Way};
use crate::flow::table::FlowTable;
use crate::flow::{FiveTuple, Point, Sighting};

/// A question is asked again once this time has passed between two packets that raise it: what it asks about may have changed.
const AGAIN_AFTER_NS: u64 = 1_000_000_000;

/// The most questions that wait.
const WAITING_MAX: usize = 64;

/// The most questions that are remembered; beyond that all are forgotten, and asked again.
const REMEMBERED_MAX: usize = 1_024;

/// The functions that mean a packet was on its way out of the namespace that made it, even where that happened while
/// another one was received.
const OUTPUT: [&str; 10] = [
    "__ip_local_out",
    "ip_local_out",
    "__ip_queue_xmit",
    "ip_queue_xmit",
    "ip_send_skb",
    "__ip6_local_out",
    "ip6_local_out",
    "ip6_xmit",
    "ip6_send_skb",
    "ip6_pkt_discard_out",
];

/// The question that a death raises, if it raises one.
pub(super) fn of(sighting: &Sighting, devices: &Devices) -> Option<Question> {
    let Point::Drop(death) = &sighting.point else {
        return None;
    };
    let device = sighting.ifindex;
    let ipv6 = routed(sighting).1.is_ipv6();
    let about = match diagnosis::code_of_death(sighting, death, devices) {
        CauseCode::NoRoute | CauseCode::BlackholeRoute => About::Route(lookup(sighting, death)),
        CauseCode::Unknown if Trace(death).is_unrouted_for_no_reason() => {
            About::Route(lookup(sighting, death))
        }
        CauseCode::RpFilter => About::ReversePath(Lookup {
            way: Way::Reverse,
            ..lookup(sighting, death)
        }),
        CauseCode::ForwardingOff => About::Forwarding {
            ifindex: device?,
            ipv6,
        },
        CauseCode::NeighbourUnresolved => {
            device?;
            About::Neighbour(Lookup {
                way: Way::Output,
                ifindex: device,
                ..lookup(sighting, death)
            })
        }
        CauseCode::Mtu => too_big(sighting, death, devices)?,
        CauseCode::SourceInvalid if !ipv6 => About::Source { ifindex: device? },
        _ => return None,
    };
    Some(Question {
        netns: sighting.netns?,
        about,
    })
}

/// Where IP found a packet too big, an ICMP error goes back to who sent it: the tunnel, if it is in one.
fn too_big(sighting: &Sighting, death: &Death, devices: &Devices) -> Option<About> {
    let too_big = size::too_big(sighting, devices)?;
    let lookup = lookup(sighting, death);
    // All but `ip_forward` know the device to leave through, and not the one that the packet came in on.
    let onward = if Trace(death).freed_in(&["ip_forward"]) {
        lookup
    } else {
        Lookup {
            way: Way::Output,
            ifindex: sighting.ifindex,
            ..lookup
        }
    };
    (too_big.check == Check::Ip).then(|| About::TooBig {
        onward,
        back: lookup_back(sighting),
    })
}

/// How the kernel looks for the way of an ICMP error about a packet (`icmp_route_lookup()` in net/ipv4/icmp.c,
/// `icmp6_send()` in net/ipv6/icmp.c): with the packet's mark only where a sysctl says so.
pub(super) fn lookup_back(sighting: &Sighting) -> Lookup {
    let (sender, _, _) = routed(sighting);
    let (unspecified, protocol) = match sender {
        SocketAddr::V4(_) => (IpAddr::from([0; 4]), IpProto::Icmp),
        SocketAddr::V6(_) => (IpAddr::from([0; 16]), IpProto::Ipv6Icmp),
    };
    Lookup {
        way: Way::Output,
        ifindex: None,
        protocol: protocol as u8,
        src: SocketAddr::new(unspecified, 0),
        dst: SocketAddr::new(sender.ip(), 0),
        mark: 0,
    }
}

pub(super) fn lookup(sighting: &Sighting, death: &Death) -> Lookup {
    let (src, dst, protocol) = routed(sighting);
    let sent = Trace(death).has(&OUTPUT) || sighting.ifindex.is_none();
    Lookup {
        way: if sent { Way::Output } else { Way::Input },
        ifindex: sighting.ifindex.filter(|_| !sent),
        protocol,
        src,
        dst,
        mark: sighting.mark,
    }
}

/// The question that a reply raises which leaves through another device than its request came in on.
fn astray(sighting: &Sighting, flows: &FlowTable, devices: &Devices) -> Option<Question> {
    let (lookup, entered) = egress::question(sighting, flows, devices)?;
    Some(Question {
        netns: sighting.netns?,
        about: About::Egress { lookup, entered },
    })
}

/// The addresses by which a packet is routed where it was seen: the tunnel's, if it is in one. Ports that are not known
/// are 0.
pub(super) fn routed(sighting: &Sighting) -> (SocketAddr, SocketAddr, u8) {
    let with_port = |addr: IpAddr, port| SocketAddr::new(addr, port);
    if let Some(tunnel) = sighting.tunnels.first() {
        return (
            with_port(tunnel.outer_src, 0),
            with_port(tunnel.outer_dst, tunnel.udp_port.unwrap_or(0)),
            tunnel.udp_port.map_or(0, |_| IpProto::Udp as u8),
        );
    }
    if let Some(icmp) = sighting.icmp {
        let protocol = if icmp.version == 4 {
            IpProto::Icmp
        } else {
            IpProto::Ipv6Icmp
        };
        return (
            with_port(icmp.from, 0),
            with_port(icmp.to, 0),
            protocol as u8,
        );
    }
    let FiveTuple { protocol, src, dst } = sighting.tuple;
    // An echo has its identifier there.
    let has_ports = [IpProto::Tcp as u8, IpProto::Udp as u8].contains(&protocol);
    let port = |addr: SocketAddr| if has_ports { addr.port() } else { 0 };
    (
        with_port(src.ip(), port(src)),
        with_port(dst.ip(), port(dst)),
        protocol,
    )
}

/// The questions that wait to be asked.
#[derive(Debug, Default)]
pub struct Questions {
    waiting: VecDeque<Question>,
    /// When a packet last raised the question, without its ports.
    raised: HashMap<Question, u64>,
}

impl Questions {
    /// Notes what a sighting raises that is not filed yet, unless it was raised a moment ago.
    pub fn note(&mut self, sighting: &Sighting, flows: &FlowTable, devices: &Devices) {
        let raised = of(sighting, devices).or_else(|| astray(sighting, flows, devices));
        let Some(question) = raised else {
            return;
        };
        if self.waiting.len() >= WAITING_MAX {
            return;
        }
        let kind = without_ports(question);
        let again = self
            .raised
            .get(&kind)
            .is_none_or(|last| sighting.time_ns.abs_diff(*last) >= AGAIN_AFTER_NS);
        if again {
            if self.raised.len() >= REMEMBERED_MAX {
                self.raised.clear();
            }
            self.raised.insert(kind, sighting.time_ns);
            self.waiting.push_back(question);
        }
    }

    /// The one that waits longest.
    pub fn take(&mut self) -> Option<Question> {
        self.waiting.pop_front()
    }
}

/// Many flows die of one cause: ports make no difference, but where a rule looks at them, which the answer tells.
fn without_ports(mut question: Question) -> Question {
    if let About::Route(lookup)
    | About::ReversePath(lookup)
    | About::Neighbour(lookup)
    | About::Egress { lookup, .. } = &mut question.about
    {
        lookup.forget_ports();
    } else if let About::TooBig { onward, .. } = &mut question.about {
        onward.forget_ports();
    }
    question
}
