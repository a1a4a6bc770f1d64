//! Names the cause of a death by (reason, freeing function, callers): the reason alone does not classify. Where a
//! kernel gives no reason, the function does nearly as well.
//!
//! Sources: `enum skb_drop_reason` (include/net/dropreason-core.h) and the `kfree_skb` sites of Linux 5.10 to 6.18.

use std::net::{IpAddr, Ipv4Addr};

use super::question::routed;
use super::size;
use super::wireguard;
use crate::codes::{CauseCode, Stage};
use crate::devices::Devices;
use crate::event::{Death, Symbol};
use crate::flow::{Message, Point, Sighting};
use crate::record::{Device, Fact};

/// Why a packet died, and where in the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// For scripts.
    pub code: CauseCode,
    /// Where in the stack.
    pub stage: Stage,
    /// What killed it, to follow "SYN killed …": "by a netfilter rule in FORWARD".
    pub phrase: String,
    /// More, where there is more to say.
    pub detail: Option<String>,
    /// What supports it.
    pub evidence: Vec<Evidence>,
}

impl Diagnosis {
    /// The neighbour about which the kernel was asked.
    pub(super) fn next_hop(&self) -> Option<IpAddr> {
        self.evidence.iter().find_map(|evidence| match evidence {
            Evidence::Fact(Fact::Neighbour { addr, .. }) => Some(*addr),
            _ => None,
        })
    }
}

/// Something that supports a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// Something that was seen at a time (CLOCK_MONOTONIC).
    Event {
        /// When.
        time_ns: u64,
        /// What.
        summary: String,
    },
    /// A counter that moved, or what the kernel answered.
    Fact(Fact),
}

/// Where a bridge frees what it may not pass on to the port that leads to its destination.
const BRIDGE: &[&str] = &[
    "br_handle_frame_finish",
    "br_forward",
    "__br_forward",
    "br_flood",
    "br_dev_xmit",
];

/// Where tunnel devices wrap a packet and look for a route to the other end.
const TUNNEL_XMIT: &[&str] = &[
    "vxlan_xmit",
    "vxlan_xmit_one",
    "geneve_xmit",
    "geneve_xmit_skb",
];

/// Says why the packet of a sighting died. `None` if it did not.
pub fn of(sighting: &Sighting, devices: &Devices) -> Option<Diagnosis> {
    match &sighting.point {
        Point::Drop(death) => Some(of_death(sighting, death, devices)),
        Point::Refused(result) => Some(Diagnosis {
            code: CauseCode::Unknown,
            stage: Stage::Egress,
            phrase: format!("by the device's driver, which refused it (result {result})"),
            detail: None,
            evidence: vec![Evidence::Event {
                time_ns: sighting.time_ns,
                summary: format!("the driver returned {result}"),
            }],
        }),
        Point::Xmit | Point::Receive | Point::Consume => None,
    }
}

fn of_death(sighting: &Sighting, death: &Death, devices: &Devices) -> Diagnosis {
    let trace = Trace(death);
    let stage = trace.stage(sighting, devices);
    let code = code(&trace, sighting, devices);
    Diagnosis {
        code,
        stage,
        phrase: phrase(code, &trace, sighting, devices),
        detail: detail(code, sighting),
        evidence: vec![Evidence::Event {
            time_ns: sighting.time_ns,
            summary: trace.to_string(),
        }],
    }
}

/// What a packet died of, for scripts: the drop alone decides it.
pub(super) fn code_of_death(sighting: &Sighting, death: &Death, devices: &Devices) -> CauseCode {
    code(&Trace(death), sighting, devices)
}

/// The functions on the stack at a death, nearest first, the freeing one included.
pub(super) struct Trace<'a>(pub(super) &'a Death);

impl std::fmt::Display for Trace<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(reason) = &self.0.reason {
            write!(f, "{reason} in ")?;
        }
        write!(f, "{}", self.0.location)?;
        for caller in self.0.own_callers().iter().take(4) {
            write!(f, " < {}", caller.plain_name())?;
        }
        Ok(())
    }
}

impl Trace<'_> {
    fn functions(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.0.location)
            .chain(self.0.own_callers())
            .map(Symbol::plain_name)
    }

    pub(super) fn has(&self, wanted: &[&str]) -> bool {
        self.functions().any(|function| wanted.contains(&function))
    }

    fn has_prefix(&self, prefix: &str) -> bool {
        self.functions()
            .any(|function| function.starts_with(prefix))
    }

    pub(super) fn freed_in(&self, wanted: &[&str]) -> bool {
        wanted.contains(&self.0.location.plain_name())
    }

    pub(super) fn reason(&self) -> &str {
        self.0.reason.as_deref().unwrap_or_default()
    }

    /// The netfilter hook, by the function that calls it.
    fn netfilter_hook(&self) -> Option<(&'static str, Stage)> {
        let callers = self.functions().find_map(|function| {
            Some(match function {
                "ip_forward" | "ip6_forward" => ("FORWARD", Stage::Forward),
                "ip_local_deliver" | "ip6_input" => ("INPUT", Stage::LocalIn),
                "ip_rcv" | "ipv6_rcv" | "ip_list_rcv" | "ipv6_list_rcv" | "ip_sabotage_in" => {
                    ("PREROUTING", Stage::Ingress)
                }
                "__ip_local_out" | "ip_local_out" | "__ip6_local_out" | "ip6_local_out"
                | "ip6_xmit" => ("OUTPUT", Stage::LocalOut),
                "ip_output" | "ip_mc_output" | "ip6_output" | "ip6_finish_output" => {
                    ("POSTROUTING", Stage::Egress)
                }
                "__netif_receive_skb_core" | "nf_hook_ingress" => {
                    ("the device's ingress hook", Stage::Ingress)
                }
                "__dev_queue_xmit" | "nf_hook_egress" => {
                    ("the device's egress hook", Stage::Egress)
                }
                "br_handle_frame" | "br_nf_pre_routing" => {
                    ("the bridge's PREROUTING", Stage::Ingress)
                }
                "__br_forward" | "br_forward" | "br_nf_forward" => {
                    ("the bridge's FORWARD", Stage::Forward)
                }
                _ => return None,
            })
        });
        callers.filter(|_| self.is_netfilter())
    }

    /// The kind of a route that discards, as `ip route` calls it and as far as the function tells it.
    fn route_kind(&self) -> &'static str {
        match self.0.location.plain_name() {
            "ip6_pkt_prohibit" => "prohibit",
            "dst_discard_out" | "dst_discard" => "blackhole",
            // IPv4 has one function for all three.
            _ => "blackhole, unreachable or prohibit",
        }
    }

    /// Whether it died for want of a usable route, and the kernel says no more: only the routes tell which kind it was.
    pub(super) fn is_unrouted_for_no_reason(&self) -> bool {
        self.0.reason.is_none() && self.freed_in(&["ip_error", "ip6_pkt_drop"])
    }

    /// Whether a rule or netfilter itself freed it. That netfilter is among the callers means nothing: a rule or a
    /// bridge (`br_netfilter`) may pass a packet on from within a hook, and it dies of something else then.
    fn is_netfilter(&self) -> bool {
        self.reason() == "NETFILTER_DROP"
            || self.freed_in(&[
                "nf_hook_slow",
                "nft_do_chain",
                "ipt_do_table",
                "ip6t_do_table",
            ])
            || self.is_unread_queue()
    }

    /// Whether a rule handed it to a process (NFQUEUE) that did not take it: nobody reads the queue, or it is full
    /// (`nf_queue()` in net/netfilter/nf_queue.c).
    fn is_unread_queue(&self) -> bool {
        self.freed_in(&["nf_queue"])
    }

    /// Whether the packet was received and given its route there. A route that was looked up before may discard because
    /// its device is gone (`dst_dev_put`); one that is looked up now, because it says so.
    fn was_routed_just_now(&self) -> bool {
        let caller = self.0.own_callers().first().map(Symbol::plain_name);
        caller.is_some_and(|caller| {
            [
                "ip_rcv",
                "ip_rcv_finish",
                "ip_sublist_rcv",
                "ip_sabotage_in",
                "ipv6_rcv",
                "ip6_rcv_finish",
                "ip6_sublist_rcv",
                "__netif_receive_skb_one_core",
                "__netif_receive_skb_list_core",
            ]
            .contains(&caller)
        })
    }

    /// Where in the stack it died.
    fn stage(&self, sighting: &Sighting, devices: &Devices) -> Stage {
        if let Some((_, stage)) = self.netfilter_hook() {
            return stage;
        }
        // UDP looks for the socket of the tunnel.
        if !sighting.tunnels.is_empty() && self.freed_in(&["__udp4_lib_rcv", "__udp6_lib_rcv"]) {
            return Stage::Decap;
        }
        let by_function = self.functions().find_map(|function| {
            Some(match function {
                "vxlan_rcv" | "geneve_udp_encap_recv" => Stage::Decap,
                "udp_queue_rcv_one_skb" | "udpv6_queue_rcv_one_skb"
                    if !sighting.tunnels.is_empty() =>
                {
                    Stage::Decap
                }
                "vxlan_xmit"
                | "vxlan_xmit_one"
                | "geneve_xmit"
                | "wg_xmit"
                | "wg_packet_purge_staged_packets" => Stage::Encap,
                "ip_forward" | "ip6_forward" | "ip_forward_finish" => Stage::Forward,
                "tcp_v4_rcv"
                | "tcp_v6_rcv"
                | "tcp_v4_do_rcv"
                | "tcp_v6_do_rcv"
                | "tcp_rcv_state_process"
                | "udp_queue_rcv_one_skb"
                | "udpv6_queue_rcv_one_skb"
                | "udp_unicast_rcv_skb"
                | "udp6_unicast_rcv_skb"
                | "__udp4_lib_rcv"
                | "__udp6_lib_rcv"
                | "icmp_rcv"
                | "icmpv6_rcv"
                | "ping_rcv"
                | "ip_local_deliver"
                | "ip_local_deliver_finish"
                | "ip6_input"
                | "ip6_input_finish"
                | "ip_protocol_deliver_rcu"
                | "ip6_protocol_deliver_rcu" => Stage::LocalIn,
                "ip_fragment"
                | "ip6_fragment"
                | "__neigh_event_send"
                | "neigh_invalidate"
                | "neigh_resolve_output"
                | "neigh_timer_handler"
                | "__dev_queue_xmit"
                | "dev_hard_start_xmit"
                | "sch_direct_xmit"
                | "__dev_forward_skb2"
                | "__dev_forward_skb"
                | "____dev_forward_skb"
                | "veth_xmit"
                | "ip_finish_output2"
                | "ip6_finish_output2"
                | "br_dev_queue_push_xmit"
                | "tun_net_xmit" => Stage::Egress,
                "ip_rcv_core"
                | "ip_rcv_finish_core"
                | "ip_rcv"
                | "ip_sublist_rcv"
                | "ip6_rcv_core"
                | "ip6_sublist_rcv"
                | "ipv6_rcv"
                | "ip_rcv_finish"
                | "ip6_rcv_finish"
                | "ip_error"
                | "ip6_pkt_drop"
                | "ip6_pkt_discard"
                | "ip6_pkt_prohibit"
                | "__netif_receive_skb_core"
                | "__netif_receive_skb_one_core"
                | "veth_xdp_rcv_skb"
                | "do_xdp_generic" => Stage::Ingress,
                "__ip_local_out"
                | "ip_local_out"
                | "__ip_queue_xmit"
                | "ip_queue_xmit"
                | "ip6_xmit"
                | "tcp_v4_send_synack"
                | "tcp_v6_send_synack"
                | "ip_build_and_send_pkt" => Stage::LocalOut,
                _ => return None,
            })
        });
        by_function.unwrap_or_else(|| match sighting.device() {
            None => Stage::LocalOut,
            Some(id) if devices.is_tunnel(id) => Stage::Encap,
            Some(_) => Stage::Drop,
        })
    }
}

fn code(trace: &Trace<'_>, sighting: &Sighting, devices: &Devices) -> CauseCode {
    by_reason(trace, sighting, devices).unwrap_or_else(|| by_function(trace, sighting, devices))
}

fn by_reason(trace: &Trace<'_>, sighting: &Sighting, devices: &Devices) -> Option<CauseCode> {
    Some(match trace.reason() {
        "NETFILTER_DROP" => CauseCode::Netfilter,
        "IP_RPFILTER" => CauseCode::RpFilter,
        // Inside a tunnel header it is the tunnel's UDP port on which nobody listens.
        "NO_SOCKET" => CauseCode::NoListener,
        // A device that is down is not in the kernel's table of VNIs.
        "VXLAN_VNI_NOT_FOUND" if tunnel_is_down(sighting, devices) => CauseCode::TunnelDown,
        "VXLAN_VNI_NOT_FOUND" => CauseCode::UnknownVni,
        "NEIGH_FAILED" | "NEIGH_CREATEFAIL" | "NEIGH_QUEUEFULL" | "NEIGH_DEAD" => {
            CauseCode::NeighbourUnresolved
        }
        "OTHERHOST" => CauseCode::WrongMac,
        // IPv6 gives this reason for every route that discards but a blackhole; the function tells a prohibit route.
        "IP_INNOROUTES" if trace.freed_in(&["ip6_pkt_prohibit"]) => CauseCode::BlackholeRoute,
        // A bridge gives the first too, where none of its ports is up.
        "NO_TX_TARGET" | "IP_OUTNOROUTES" if trace.has(TUNNEL_XMIT) => CauseCode::TunnelNoRoute,
        "IP_INNOROUTES" | "IP_OUTNOROUTES" => CauseCode::NoRoute,
        // `ip_error` gives this reason where the input route is unreachable because forwarding is off.
        "IP_INADDRERRORS" if trace.has(&["ip_error"]) => CauseCode::ForwardingOff,
        // `ip6_forward` gives it where forwarding is off, and for sources that no router may pass on.
        "IP_INADDRERRORS"
            if trace.freed_in(&["ip6_forward"]) && is_host(routed(sighting).0.ip()) =>
        {
            CauseCode::ForwardingOff
        }
        // A bad header is found before, when the packet is received.
        "IP_INHDR" if trace.freed_in(&["ip_forward", "ip6_forward"]) => CauseCode::Ttl,
        // IPv6 has no reason of its own for these.
        "IP_INHDR" if trace.freed_in(&["ip6_rcv_core"]) && comes_from_nowhere(sighting) => {
            CauseCode::SourceInvalid
        }
        "XDP" => CauseCode::XdpProgram,
        "TC_INGRESS" | "TC_EGRESS" => CauseCode::TcProgram,
        "BPF_CGROUP_EGRESS" | "SOCKET_FILTER" => CauseCode::CgroupProgram,
        "QDISC_DROP" | "QDISC_OVERLIMIT" | "QDISC_CONGESTED" | "FQ_BAND_LIMIT"
        | "FQ_HORIZON_LIMIT" | "FQ_FLOW_LIMIT" | "CAKE_FLOOD" => CauseCode::Qdisc,
        "TCP_CSUM" | "UDP_CSUM" | "IP_CSUM" | "SKB_CSUM" | "ICMP_CSUM" => CauseCode::Checksum,
        "PKT_TOO_BIG" => CauseCode::Mtu,
        "IP_INVALID_SOURCE" | "IP_LOCAL_SOURCE" | "IP_LOCALNET" | "IP_INVALID_DEST" => {
            CauseCode::SourceInvalid
        }
        "SOCKET_RCVBUFF" | "SOCKET_BACKLOG" | "PROTO_MEM" => CauseCode::SocketBuffer,
        "TCP_LISTEN_OVERFLOW" => CauseCode::AcceptQueueFull,
        "XFRM_POLICY" => CauseCode::Xfrm,
        "CPU_BACKLOG" | "FULL_RING" => CauseCode::RingFull,
        "DEV_READY" => CauseCode::DeviceDown,
        _ => return None,
    })
}

/// Whether an address can be one host's.
fn is_host(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_loopback()
}

/// For kernels without reasons (before 5.17), and for the sites that give none.
fn by_function(trace: &Trace<'_>, sighting: &Sighting, devices: &Devices) -> CauseCode {
    let has_reasons = trace.0.reason.is_some();
    if trace.is_netfilter() {
        CauseCode::Netfilter
    } else if trace.freed_in(&["wg_xmit"]) {
        wireguard::code_of_result(trace.0.result)
    } else if trace.has(&["wg_packet_purge_staged_packets"]) {
        CauseCode::WireguardNoSession
    } else if trace.freed_in(&["vxlan_rcv", "geneve_udp_encap_recv", "geneve_rx"])
        && vni_is_unknown(sighting, devices)
    {
        CauseCode::UnknownVni
    } else if trace.has(&[
        "neigh_invalidate",
        "__neigh_event_send",
        "arp_error_report",
        "ndisc_error_report",
    ]) {
        CauseCode::NeighbourUnresolved
    } else if size::too_big(sighting, devices).is_some() {
        CauseCode::Mtu
    } else if has_reasons && trace.freed_in(&["ip_error"])
        || trace.freed_in(&["dst_discard", "dst_discard_out"]) && trace.was_routed_just_now()
    {
        CauseCode::BlackholeRoute
    } else if trace.has(&["veth_xdp_rcv_skb", "do_xdp_generic"]) {
        CauseCode::XdpProgram
    } else if trace.has_prefix("xfrm") {
        CauseCode::Xfrm
    } else if trace.has_prefix("ovs_") || trace.has(&["do_execute_actions"]) {
        CauseCode::Ovs
    } else if has_reasons {
        CauseCode::Unknown
    } else {
        by_function_alone(trace, sighting, devices)
    }
}

/// For kernels that give no reason at all (before 5.17): what a function frees for one reason only, or for several that the
/// packet itself tells apart. The places are those of Linux 5.10.
fn by_function_alone(trace: &Trace<'_>, sighting: &Sighting, devices: &Devices) -> CauseCode {
    match trace.0.location.plain_name() {
        "ip_rcv_core" => CauseCode::WrongMac,
        "ip6_rcv_core" if comes_from_nowhere(sighting) => CauseCode::SourceInvalid,
        // `ip_route_input_noref` refuses what comes from or goes to where nothing can (EINVAL), else by the way back (EXDEV).
        "ip_rcv_finish_core" if !is_from_a_host(sighting, devices) => CauseCode::SourceInvalid,
        "ip_rcv_finish_core" if is_host(routed(sighting).1.ip()) => CauseCode::RpFilter,
        "ip_forward" | "ip6_forward" if sighting.hop_limit <= 1 => CauseCode::Ttl,
        // IPv6 discards alike where there is no route and where there is one that says unreachable.
        "ip6_pkt_discard" | "ip6_pkt_discard_out" => CauseCode::NoRoute,
        "ip6_pkt_prohibit" | "ip6_pkt_prohibit_out" => CauseCode::BlackholeRoute,
        "vxlan_rcv" if tunnel_is_down(sighting, devices) => CauseCode::TunnelDown,
        // A handler takes every IP packet that `tc` does not kill.
        "__netif_receive_skb_core" => CauseCode::TcProgram,
        // Whatever else kills a packet there frees it in a function of its own.
        "ip_finish_output" | "ip6_finish_output" => CauseCode::CgroupProgram,
        _ => CauseCode::Unknown,
    }
}

/// Whether the source address of a packet that was received, as its route is looked up, can be another host's.
fn is_from_a_host(sighting: &Sighting, devices: &Devices) -> bool {
    let source = routed(sighting).0.ip();
    let broadcast = IpAddr::V4(Ipv4Addr::BROADCAST);
    let is_own = sighting
        .netns
        .is_some_and(|netns| devices.is_local(netns, source));
    is_host(source) && source != broadcast && !is_own
}

/// Whether no packet on a wire may have this source address.
fn comes_from_nowhere(sighting: &Sighting) -> bool {
    let source = sighting.tuple.src.ip();
    sighting.tunnels.is_empty() && (source.is_loopback() || source.is_multicast())
}

/// Whether the namespace has a tunnel device with the VNI that the packet carries, but it is down.
fn tunnel_is_down(sighting: &Sighting, devices: &Devices) -> bool {
    let vni = sighting.tunnels.last().and_then(|tunnel| tunnel.vni);
    let has_vni = |device: &&Device| {
        Some(device.id.netns) == sighting.netns && device.vni == vni && !device.removed
    };
    let mut with_vni = devices.iter().filter(has_vni).peekable();
    vni.is_some() && with_vni.peek().is_some() && with_vni.all(|device| !device.up)
}

/// Whether no tunnel device of the namespace has the VNI that the packet carries.
fn vni_is_unknown(sighting: &Sighting, devices: &Devices) -> bool {
    let vni = sighting.tunnels.last().and_then(|tunnel| tunnel.vni);
    vni.is_some()
        && !devices
            .iter()
            .any(|device| Some(device.id.netns) == sighting.netns && device.vni == vni)
}

fn phrase(code: CauseCode, trace: &Trace<'_>, sighting: &Sighting, devices: &Devices) -> String {
    let vni = || sighting.tunnels.last().and_then(|tunnel| tunnel.vni);
    match code {
        CauseCode::Netfilter => {
            let rule = match trace.netfilter_hook() {
                Some((hook, _)) => format!("by a netfilter rule in {hook}"),
                None => "by a netfilter rule".to_owned(),
            };
            if trace.is_unread_queue() {
                format!("{rule} that hands it to a process (NFQUEUE), whose queue nobody reads, or which is full")
            } else {
                rule
            }
        }
        CauseCode::RpFilter => "by reverse path filtering (rp_filter)".to_owned(),
        CauseCode::NoListener => match sighting.tunnels.first().map(|tunnel| tunnel.udp_port) {
            Some(Some(port)) => {
                format!("because no tunnel device there listens on UDP port {port}")
            }
            Some(None) => "because no tunnel device there takes it".to_owned(),
            None => format!("because no socket takes {}", sighting.tuple.dst),
        },
        CauseCode::UnknownVni => match vni() {
            Some(vni) => format!("because no tunnel device there takes VNI {vni}"),
            None => "because no tunnel device there takes it".to_owned(),
        },
        CauseCode::TunnelDown => match vni() {
            Some(vni) => format!("because the tunnel device there that has VNI {vni} is down"),
            None => "because the tunnel device is down".to_owned(),
        },
        CauseCode::TunnelNoRoute if trace.reason() == "NO_TX_TARGET" => {
            "because the tunnel device has no other end for its MAC address".to_owned()
        }
        CauseCode::TunnelNoRoute => {
            "because there is no route to the tunnel's other end".to_owned()
        }
        CauseCode::NeighbourUnresolved => {
            "because the next hop's link-layer address never resolved".to_owned()
        }
        CauseCode::WrongMac => "because its destination MAC address is another host's".to_owned(),
        CauseCode::NoRoute => {
            format!("because there is no route to {}", routed(sighting).1.ip())
        }
        CauseCode::BlackholeRoute => format!(
            "by a {} route to {}",
            trace.route_kind(),
            routed(sighting).1.ip()
        ),
        CauseCode::ForwardingOff => "because forwarding is off".to_owned(),
        CauseCode::Ttl => {
            "because its TTL ran out: it went in circles, or began with too few hops".to_owned()
        }
        CauseCode::XdpProgram => "by an XDP program".to_owned(),
        CauseCode::TcProgram => "by a tc filter or program".to_owned(),
        CauseCode::CgroupProgram
            if trace.reason() == "BPF_CGROUP_EGRESS"
                || trace.freed_in(&["ip_finish_output", "ip6_finish_output"]) =>
        {
            "by a BPF program of the sender's control group".to_owned()
        }
        CauseCode::CgroupProgram => {
            "by a BPF program of the receiver's control group or by its socket's filter".to_owned()
        }
        CauseCode::Qdisc => "by the queueing discipline".to_owned(),
        CauseCode::Checksum => format!(
            "because its {} checksum is wrong",
            match trace.reason() {
                "TCP_CSUM" => "TCP",
                "UDP_CSUM" if !sighting.tunnels.is_empty() => "tunnel's UDP",
                "UDP_CSUM" => "UDP",
                "IP_CSUM" => "IP header's",
                "ICMP_CSUM" => "ICMP",
                _ => "own",
            }
        ),
        CauseCode::Mtu => size::phrase(
            sighting,
            size::too_big(sighting, devices).and_then(|too_big| too_big.narrow),
        ),
        CauseCode::SourceInvalid => {
            let source = sighting.tuple.src.ip();
            match trace.reason() {
                "IP_LOCAL_SOURCE" => {
                    format!("because its source address {source} is this host's own")
                }
                _ => format!("because no packet may come in from the source address {source}"),
            }
        }
        CauseCode::SocketBuffer => "because the socket's buffer is full".to_owned(),
        CauseCode::AcceptQueueFull => "because the listener's accept queue is full".to_owned(),
        CauseCode::WireguardAllowedIps => format!(
            "by WireGuard: no peer has {} among its AllowedIPs",
            routed(sighting).1.ip()
        ),
        CauseCode::WireguardNoPeer => format!(
            "by WireGuard: the peer that has {} has no endpoint",
            routed(sighting).1.ip()
        ),
        CauseCode::WireguardNoSession => {
            "by WireGuard, which gave up waiting for a session with the peer".to_owned()
        }
        CauseCode::Xfrm => "by IPsec".to_owned(),
        CauseCode::Ovs => "by Open vSwitch".to_owned(),
        CauseCode::RingFull => "because a receive queue is full".to_owned(),
        CauseCode::DeviceDown => "because the device is down".to_owned(),
        _ => match trace.reason() {
            "" | "NOT_SPECIFIED" if trace.freed_in(BRIDGE) => {
                "by the bridge, which does not pass it on to the port of its destination (the same port without hairpin, or both isolated)".to_owned()
            }
            "" | "NOT_SPECIFIED" => {
                format!(
                    "in {}, which gives no reason",
                    trace.0.location.plain_name()
                )
            }
            "NO_TX_TARGET" if trace.freed_in(BRIDGE) => {
                "by the bridge, none of whose ports can take it".to_owned()
            }
            "TCP_RFC7323_PAWS" | "TCP_RFC7323_PAWS_ACK" | "TCP_RFC7323_TW_PAWS" => {
                "because its TCP timestamp is older than the one before (PAWS)".to_owned()
            }
            reason => format!("in {} ({reason})", trace.0.location.plain_name()),
        },
    }
}

fn detail(code: CauseCode, sighting: &Sighting) -> Option<String> {
    match code {
        CauseCode::UnknownVni => {
            let tunnel = sighting.tunnels.last()?;
            Some(format!(
                "it came from {} to {}",
                tunnel.outer_src, tunnel.outer_dst
            ))
        }
        CauseCode::RpFilter => Some(format!(
            "the route back to {} does not leave through the device that the packet came in on",
            sighting.tuple.src.ip()
        )),
        _ => None,
    }
}

/// The commands that show more, for a cause that was found in a namespace. `{ns}` is the prefix that enters it, `next_hop`
/// the neighbour to which the packet was to go, where that is known.
pub fn next(
    code: CauseCode,
    ns: &str,
    sighting: &Sighting,
    device: Option<&str>,
    next_hop: Option<IpAddr>,
) -> Option<String> {
    let (src, dst) = (sighting.tuple.src, sighting.tuple.dst);
    // A packet in a tunnel is routed by the tunnel's addresses.
    let (from, to, _) = routed(sighting);
    Some(match code {
        CauseCode::Netfilter if matches!(&sighting.point, Point::Drop(death) if Trace(death).is_unread_queue()) => {
            format!("`{ns}cat /proc/net/netfilter/nfnetlink_queue` lists the queues that are read; `{ns}iptables-save` or `{ns}nft list ruleset` shows the rule")
        }
        CauseCode::Netfilter => {
            format!("`{ns}nft list ruleset` and look for a rule that drops {src} → {dst}")
        }
        CauseCode::Rejected => {
            format!("`{ns}nft list ruleset` and look for a rule that rejects {src} → {dst}")
        }
        CauseCode::RpFilter => format!(
            "`{ns}ip route get {}` and compare its device with {}; `{ns}sysctl net.ipv4.conf.all.rp_filter`",
            from.ip(),
            device.unwrap_or("the one above"),
        ),
        CauseCode::NoListener if !sighting.tunnels.is_empty() => compare_tunnels(ns),
        CauseCode::NoListener => match sighting.message {
            Message::Tcp(_) => format!("`{ns}ss -ltnp 'sport = {}'`", dst.port()),
            Message::Udp(_) => format!("`{ns}ss -lunp 'sport = {}'`", dst.port()),
            Message::Echo(_) => return None,
        },
        CauseCode::UnknownVni => compare_tunnels(ns),
        CauseCode::Checksum => {
            "where it is sent, `ethtool -K DEV tx off` tells whether the device computes it wrong; else look for what changes the packet on the way"
                .to_owned()
        }
        CauseCode::SourceInvalid => format!(
            "`{ns}ip -br address`, and between the sender and here look for a rule that puts {} there: `nft list ruleset`",
            src.ip()
        ),
        CauseCode::TunnelDown => format!("`{ns}ip -d link show type vxlan`"),
        CauseCode::TunnelNoRoute => {
            let device = device.unwrap_or("DEV");
            format!(
                "`{ns}ip -d link show {device}` tells its other end (`remote`, or else `{ns}bridge fdb show dev {device}`), `{ns}ip route get` the way there"
            )
        }
        CauseCode::NeighbourUnresolved => format!(
            "`{ns}ip neigh show to {}`; `{ns}ip route get {}`",
            next_hop.unwrap_or(to.ip()),
            to.ip()
        ),
        CauseCode::WrongMac => format!(
            "`{ns}ip link show {}`, and `ip neigh` on the sender",
            device.unwrap_or("DEV")
        ),
        CauseCode::Ttl => format!(
            "`{ns}ip route get {}`, and the same on the next hop: does it route it back?",
            dst.ip()
        ),
        CauseCode::NoRoute | CauseCode::BlackholeRoute => {
            format!("`{ns}ip route get {}`; `{ns}ip rule`", to.ip())
        }
        CauseCode::ForwardingOff => {
            format!("`{ns}sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding`")
        }
        CauseCode::AcceptQueueFull | CauseCode::SynQueueFull => format!(
            "`{ns}ss -ltn 'sport = {}'`: Recv-Q above Send-Q is a full queue",
            dst.port()
        ),
        CauseCode::TcProgram => format!(
            "`{ns}tc filter show dev {} ingress; tc filter show dev {} egress`",
            device.unwrap_or("DEV"),
            device.unwrap_or("DEV")
        ),
        CauseCode::XdpProgram => format!(
            "`{ns}ip link show {}` tells the program's id, and `bpftool prog show id ID` what it is",
            device.unwrap_or("")
        ),
        CauseCode::CgroupProgram => format!(
            "`bpftool cgroup tree` lists the programs of control groups, `{ns}ss -tanpb` the sockets' own filters"
        ),
        CauseCode::Qdisc => format!("`{ns}tc -s qdisc show dev {}`", device.unwrap_or("DEV")),
        CauseCode::WireguardAllowedIps
        | CauseCode::WireguardNoPeer
        | CauseCode::WireguardNoSession => {
            wireguard::next(code, ns, sighting, device.unwrap_or("DEV"))
        }
        CauseCode::DeviceDown | CauseCode::Mtu => {
            format!("`{ns}ip -s link show {}`", device.unwrap_or(""))
        }
        CauseCode::Unknown if matches!(&sighting.point, Point::Drop(death) if Trace(death).freed_in(BRIDGE)) => {
            format!("`{ns}bridge -d link show` (hairpin, isolated) and `{ns}bridge fdb show`")
        }
        _ => return None,
    })
}

fn compare_tunnels(ns: &str) -> String {
    format!(
        "`{ns}ip -d link show type vxlan`, and the same on the sender: their VNIs and ports must agree"
    )
}
