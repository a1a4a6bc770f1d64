//! Reads an event's header bytes into a [`Sighting`]: the flow's own packet (the innermost), its size and the
//! tunnels around it. Pure: the same bytes and tunnel ports give the same sighting.

use std::net::SocketAddr;

use tracer_common::event::{START_ETHERNET, START_IP};
use tracer_common::packet::{self, Frame, IpProto, Layer, Packet, Start, TunnelPorts};

use crate::event::{Event, Skb, What};
use crate::flow::{FiveTuple, Point, Segment, Sighting, TcpFlags, Tunnel, TunnelKind};

const _: () = assert!(START_ETHERNET != START_IP);

/// The TCP packet that an event shows, or `None` where the event shows no packet, or one that is not TCP or whose
/// TCP header was not captured.
pub fn sighting(event: &Event, ports: &TunnelPorts) -> Option<Sighting> {
    let (skb, point) = match &event.what {
        What::Xmit { skb } => (skb, Point::Xmit),
        What::Receive { skb } => (skb, Point::Receive),
        What::Consume { skb } => (skb, Point::Consume),
        What::Drop { skb, death } => (skb, Point::Drop(Box::new(death.clone()))),
        What::XmitFailed { .. } | What::Socket { .. } => return None,
    };
    let packet = parse(skb, ports);
    let inner = packet
        .inner()
        .filter(|layer| layer.is_tcp() && !packet.has_quoted)?;
    let outer = packet.outer()?;
    Some(Sighting {
        time_ns: event.time_ns,
        cpu: event.cpu,
        sequence: event.sequence,
        netns: event.netns,
        ifindex: event.ifindex,
        skb: skb.id,
        point,
        packet_len: outer.packet_len,
        mark: skb.mark,
        tuple: FiveTuple {
            protocol: IpProto::Tcp as u8,
            src: SocketAddr::new(inner.src_addr(), inner.src_port),
            dst: SocketAddr::new(inner.dst_addr(), inner.dst_port),
        },
        segment: Segment {
            seq: inner.seq,
            ack: inner.ack,
            flags: TcpFlags(inner.tcp_flags),
            payload_len: inner.payload_len,
            tsval: packet::tcp_options(&skb.headers, inner).timestamp,
        },
        tunnels: packet.layers().iter().filter_map(tunnel).collect(),
    })
}

/// The headers of a packet.
pub fn parse(skb: &Skb, ports: &TunnelPorts) -> Packet {
    let frame = Frame {
        start: if skb.ethernet {
            Start::Ethernet
        } else {
            Start::Ip
        },
        len_bytes: skb.len_bytes,
    };
    Packet::parse(&skb.headers, frame, ports)
}

fn tunnel(layer: &Layer) -> Option<Tunnel> {
    let kind = match layer.tunnel {
        packet::Tunnel::None => return None,
        packet::Tunnel::Vxlan => TunnelKind::Vxlan,
        packet::Tunnel::Geneve => TunnelKind::Geneve,
        packet::Tunnel::IpInIp => TunnelKind::IpInIp,
    };
    Some(Tunnel {
        kind,
        vni: layer.tunnel.has_vni().then_some(layer.vni),
        outer_src: layer.src_addr(),
        outer_dst: layer.dst_addr(),
        udp_port: layer.is_udp().then_some(layer.dst_port),
    })
}
