//! The words of the contract: verdict codes, confidences, causes, packets and stages. The verdict chooses them and the
//! report writes them; scripts read them, so none is ever renamed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What happened to a flow.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum VerdictCode {
    /// The reply was delivered.
    Answered,
    /// Datagrams in one direction only, which is no fault by itself.
    OneWay,
    /// The request died here.
    RequestDropped,
    /// The request left this node and nothing came back.
    RequestLeftNode,
    /// The request arrived and no reply was ever made.
    RequestNotAnswered,
    /// The reply existed and died here.
    ReplyDropped,
    /// The reply left this node and did not take effect.
    ReplyLeftNode,
    /// The reply arrived here, did not die and never reached its socket.
    ReplyNotDelivered,
    /// The ACK that ends the handshake died here.
    AckDropped,
    /// Somebody said no.
    Refused,
    /// A packet was too big for a device, and died of it.
    MtuDropped,
    /// Only the large packets are lost.
    LargePacketsLost,
    /// An established flow loses segments here.
    DataDropped,
    /// Data is sent again and again without an answer.
    Stalled,
    /// What was seen carries no verdict.
    Inconclusive,
    /// Left one node and never reached the other; only from several captures.
    LostBetweenNodes,
}

impl VerdictCode {
    /// Whether it is a fault, and so exits with 10.
    pub const fn is_fault(self) -> bool {
        !matches!(self, Self::Answered | Self::OneWay | Self::Inconclusive)
    }

    /// As the JSON spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::OneWay => "one_way",
            Self::RequestDropped => "request_dropped",
            Self::RequestLeftNode => "request_left_node",
            Self::RequestNotAnswered => "request_not_answered",
            Self::ReplyDropped => "reply_dropped",
            Self::ReplyLeftNode => "reply_left_node",
            Self::ReplyNotDelivered => "reply_not_delivered",
            Self::AckDropped => "ack_dropped",
            Self::Refused => "refused",
            Self::MtuDropped => "mtu_dropped",
            Self::LargePacketsLost => "large_packets_lost",
            Self::DataDropped => "data_dropped",
            Self::Stalled => "stalled",
            Self::Inconclusive => "inconclusive",
            Self::LostBetweenNodes => "lost_between_nodes",
        }
    }

    /// The order among faults of one confidence: reply, request, data, MTU.
    pub const fn rank(self) -> u8 {
        match self {
            Self::ReplyDropped
            | Self::ReplyLeftNode
            | Self::ReplyNotDelivered
            | Self::AckDropped
            | Self::LostBetweenNodes => 0,
            Self::RequestDropped
            | Self::RequestLeftNode
            | Self::RequestNotAnswered
            | Self::Refused => 1,
            Self::DataDropped | Self::Stalled => 2,
            Self::MtuDropped | Self::LargePacketsLost => 3,
            Self::Answered | Self::OneWay | Self::Inconclusive => 4,
        }
    }
}

/// How a verdict is known. The order is the order of trust.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Confidence {
    /// An event shows it.
    Proven,
    /// It follows from what did not happen, and nothing that could have shown it was lost.
    Inferred,
    /// Not known, and the summary says why.
    Inconclusive,
}

impl Confidence {
    /// As the JSON spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Proven => "proven",
            Self::Inferred => "inferred",
            Self::Inconclusive => "inconclusive",
        }
    }
}

/// What a packet is to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PacketKind {
    /// The request was not seen: it came before the trace, or past it.
    Unseen,
    /// A TCP SYN.
    Syn,
    /// A TCP SYN-ACK.
    SynAck,
    /// The ACK that ends a handshake.
    Ack,
    /// A TCP segment with data or FIN, or a later ACK.
    Data,
    /// A TCP RST.
    Rst,
    /// A UDP datagram from who spoke first.
    Datagram,
    /// A UDP datagram to who spoke first.
    DatagramBack,
    /// A DNS query.
    Query,
    /// A DNS answer.
    Answer,
    /// An ICMP echo request.
    EchoRequest,
    /// An ICMP echo reply.
    EchoReply,
    /// An ICMP error about the flow.
    IcmpError,
}

impl PacketKind {
    /// As the text report heads its line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unseen => "request",
            Self::Syn => "SYN",
            Self::SynAck => "SYN-ACK",
            Self::Ack => "ACK",
            Self::Data => "data",
            Self::Rst => "RST",
            Self::Datagram => "datagram",
            Self::DatagramBack => "datagram back",
            Self::Query => "DNS query",
            Self::Answer => "DNS answer",
            Self::EchoRequest => "echo request",
            Self::EchoReply => "echo reply",
            Self::IcmpError => "ICMP error",
        }
    }
}

/// Where in the stack a packet was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Made here, on its way to a first device.
    LocalOut,
    /// Handed to a device's driver.
    Egress,
    /// Entered a device's receive path.
    Ingress,
    /// Routed onwards.
    Forward,
    /// Its addresses changed.
    Nat,
    /// Put into a tunnel.
    Encap,
    /// Taken out of a tunnel.
    Decap,
    /// On its way to a socket here.
    LocalIn,
    /// Taken by a listening socket.
    Listener,
    /// Taken by a connected socket.
    Socket,
    /// Freed.
    Drop,
}

/// What became of the ICMP error that tells the sender of a packet that it was too big.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IcmpFate {
    /// There can be none: the packet died below IP.
    LinkLayer,
    /// It goes to the end of the tunnel that the packet is in, which is not its sender.
    TunnelEnd,
    /// Who would send it has no route to the sender.
    NoRouteBack,
    /// None was seen, and why is not known.
    NotSent,
    /// It died on its way.
    Dropped,
    /// It left this node.
    LeftNode,
    /// It did not reach the sender, and was not seen to die.
    NotDelivered,
    /// It reached the sender.
    Delivered,
    /// It reached the sender, which went on sending packets that are as large.
    Ignored,
    /// It reached the sender, which sent the same again in smaller packets.
    ActedUpon,
}

impl IcmpFate {
    /// Whether there was an error for the sender.
    pub const fn is_sent(self) -> bool {
        !matches!(
            self,
            Self::LinkLayer | Self::TunnelEnd | Self::NoRouteBack | Self::NotSent
        )
    }

    /// Whether it reached the sender.
    pub const fn is_delivered(self) -> bool {
        matches!(self, Self::Delivered | Self::Ignored | Self::ActedUpon)
    }
}

macro_rules! cause_codes {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal),+ $(,)?) => {
        /// Why, so that scripts need no English.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
        pub enum CauseCode {
            $($(#[$doc])+ #[serde(rename = $name)] $variant),+
        }

        impl CauseCode {
            /// As the JSON spells it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }
    };
}

cause_codes! {
    /// An nftables or iptables rule.
    Netfilter = "netfilter",
    /// Reverse path filtering.
    RpFilter = "rp_filter",
    /// No route to the destination.
    NoRoute = "no_route",
    /// A route that says drop.
    BlackholeRoute = "blackhole_route",
    /// ARP or neighbour discovery had no answer.
    NeighbourUnresolved = "neighbour_unresolved",
    /// Addressed to another host on the link.
    WrongMac = "wrong_mac",
    /// No tunnel device for the VNI.
    UnknownVni = "unknown_vni",
    /// The tunnel device is down.
    TunnelDown = "tunnel_down",
    /// No route to the tunnel's other end.
    TunnelNoRoute = "tunnel_no_route",
    /// WireGuard has no session with the peer.
    WireguardNoSession = "wireguard_no_session",
    /// The inner address is not in the peer's AllowedIPs.
    WireguardAllowedIps = "wireguard_allowed_ips",
    /// No WireGuard peer for the destination.
    WireguardNoPeer = "wireguard_no_peer",
    /// The reply left through another device than the request came in.
    AsymmetricEgress = "asymmetric_egress",
    /// The packet's mark sends it another way than it would go without: two programs claim the same bits, or one sets what
    /// another did not mean.
    MarkConflict = "mark_conflict",
    /// The listener's accept queue is full.
    AcceptQueueFull = "accept_queue_full",
    /// The listener's SYN queue is full.
    SynQueueFull = "syn_queue_full",
    /// Nobody listens on the port.
    NoListener = "no_listener",
    /// A rule or route that answers with a refusal.
    Rejected = "rejected",
    /// Connection tracking calls the packet invalid.
    ConntrackInvalid = "conntrack_invalid",
    /// The connection tracking table is full.
    ConntrackFull = "conntrack_full",
    /// A tc program or filter.
    TcProgram = "tc_program",
    /// An XDP program.
    XdpProgram = "xdp_program",
    /// A cgroup program.
    CgroupProgram = "cgroup_program",
    /// The queueing discipline.
    Qdisc = "qdisc",
    /// A wrong checksum.
    Checksum = "checksum",
    /// The hop limit ran out.
    Ttl = "ttl",
    /// Forwarding is off.
    ForwardingOff = "forwarding_off",
    /// A source address that cannot be (martian).
    SourceInvalid = "source_invalid",
    /// The socket's buffer is full.
    SocketBuffer = "socket_buffer",
    /// Too big for a device.
    Mtu = "mtu",
    /// IPsec.
    Xfrm = "xfrm",
    /// Open vSwitch.
    Ovs = "ovs",
    /// The device's own ring is full.
    RingFull = "ring_full",
    /// The device is down.
    DeviceDown = "device_down",
    /// Seen, but not understood.
    Unknown = "unknown",
}

#[cfg(test)]
mod tests {
    use super::{CauseCode, Confidence, VerdictCode};

    #[test]
    fn names_are_what_the_json_says() {
        for code in [
            VerdictCode::RequestNotAnswered,
            VerdictCode::OneWay,
            VerdictCode::MtuDropped,
        ] {
            assert_eq!(serde_json::json!(code), code.name());
        }
        assert_eq!(
            serde_json::json!(Confidence::Proven),
            Confidence::Proven.name()
        );
        assert_eq!(
            serde_json::json!(CauseCode::WireguardAllowedIps),
            CauseCode::WireguardAllowedIps.name()
        );
    }

    #[test]
    fn trust_orders_proven_first() {
        assert!(Confidence::Proven < Confidence::Inferred);
        assert!(Confidence::Inferred < Confidence::Inconclusive);
    }
}
