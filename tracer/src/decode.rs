//! Reads an event's header bytes into a [`Sighting`]: the flow's own packet (the innermost), its size and the
//! tunnels around it. Pure: the same bytes and tunnel ports give the same sighting.

use std::net::SocketAddr;

use tracer_common::packet::{self, Frame, IpProto, Layer, Packet, Start, TunnelPorts};

use crate::event::{Event, Skb, What};
use crate::flow::{FiveTuple, IcmpError, Point, Segment, Sighting, TcpFlags, Tunnel, TunnelKind};

/// What an event shows of a TCP flow: a segment of it, or an ICMP error about one. `None` where the event shows no
/// packet, or one that is neither, or whose TCP header was not captured.
pub fn sighting(event: &Event, ports: &TunnelPorts) -> Option<Sighting> {
    let (skb, point) = match &event.what {
        What::Xmit { skb } => (skb, Point::Xmit),
        What::Receive { skb } => (skb, Point::Receive),
        What::Consume { skb } => (skb, Point::Consume),
        What::Drop { skb, death } => (skb, Point::Drop(Box::new(death.clone()))),
        What::XmitFailed { .. } | What::Socket { .. } => return None,
    };
    let packet = parse(skb, ports);
    let inner = packet.inner()?;
    // An ICMP error is filed with the flow whose segment it quotes.
    let flow = packet.flow().filter(|layer| layer.is_tcp())?;
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
            src: SocketAddr::new(flow.src_addr(), flow.src_port),
            dst: SocketAddr::new(flow.dst_addr(), flow.dst_port),
        },
        segment: Segment {
            seq: flow.seq,
            ack: flow.ack,
            flags: TcpFlags(flow.tcp_flags),
            payload_len: flow.payload_len,
            tsval: packet::tcp_options(&skb.headers, flow).timestamp,
        },
        icmp: packet.has_quoted.then(|| icmp(inner)),
        tunnels: packet.layers().iter().filter_map(tunnel).collect(),
    })
}

fn icmp(layer: &Layer) -> IcmpError {
    IcmpError {
        version: layer.version,
        kind: layer.icmp_type,
        code: layer.icmp_code,
        from: layer.src_addr(),
        to: layer.dst_addr(),
    }
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
