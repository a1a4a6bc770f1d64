//! Reads an event's header bytes into a [`Sighting`]: the flow's own packet (the innermost), its size and the
//! tunnels around it. Pure: the same bytes and tunnel ports give the same sighting.

use std::net::SocketAddr;

use tracer_common::packet::{
    self, FLAG_DONT_FRAGMENT, FLAG_FIRST_FRAGMENT, Frame, Layer, Packet, Start, TunnelPorts,
};

use crate::event::{Event, Skb, What};
use crate::flow::{
    Datagram, Dns, Echo, FiveTuple, IcmpError, Message, Point, Segment, Sighting, TcpFlags, Tunnel,
    TunnelKind,
};

/// What an event shows of a flow: a packet of it, or an ICMP error about one. `None` where the event shows no packet, or
/// one of no flow: another protocol, a fragment without ports, a header that was not captured, a tunnel's own packet.
pub fn sighting(event: &Event, ports: &TunnelPorts) -> Option<Sighting> {
    let (skb, point) = match &event.what {
        What::Xmit { skb } => (skb, Point::Xmit),
        What::Receive { skb } => (skb, Point::Receive),
        What::Consume { skb } => (skb, Point::Consume),
        What::Drop { skb, death } => (skb, Point::Drop(Box::new(death.clone()))),
        What::XmitFailed { .. } | What::Socket { .. } => return None,
    };
    let datagram = parse(skb, ports);
    let sealed = sealed(skb, ports);
    // What is encrypted lies in a layer of its own, with its own header bytes.
    let (packet, bytes) = match &sealed {
        Some(sealed) => (sealed, &skb.sealed),
        None => (&datagram, &skb.headers),
    };
    let inner = packet.inner()?;
    // An ICMP error is filed with the flow whose segment it quotes.
    let flow = packet.flow()?;
    let message = message(bytes, flow)?;
    let outer = datagram.outer()?;
    let layers = datagram.layers().iter();
    let layers = layers.chain(sealed.iter().flat_map(Packet::layers));
    Some(Sighting {
        time_ns: event.time_ns,
        cpu: event.cpu,
        sequence: event.sequence,
        netns: event.netns,
        ifindex: event.ifindex,
        skb: skb.id,
        point,
        packet_len: outer.packet_len,
        inner_len: inner.packet_len,
        skb_len: skb.len_bytes,
        gso_size: skb.gso_size.into(),
        dont_fragment: outer.has(FLAG_DONT_FRAGMENT),
        mark: skb.mark,
        hop_limit: flow.ttl,
        tuple: tuple(flow, message),
        message,
        icmp: packet.has_quoted.then(|| icmp(inner)),
        tunnels: layers.filter_map(tunnel).collect(),
        dst_mac: dst_mac(skb),
    })
}

/// What a packet says, if it is one that a flow is made of.
fn message(bytes: &[u8], layer: &Layer) -> Option<Message> {
    let ip_id = if layer.version == 4 {
        u16::try_from(layer.ip_id).unwrap_or_default()
    } else {
        0
    };
    if layer.is_tcp() {
        Some(Message::Tcp(Segment {
            seq: layer.seq,
            ack: layer.ack,
            flags: TcpFlags(layer.tcp_flags),
            payload_len: layer.payload_len,
            tsval: packet::tcp_options(bytes, layer).timestamp,
        }))
    } else if layer.is_udp() && layer.tunnel == packet::Tunnel::None {
        Some(Message::Udp(Datagram {
            udp_len: udp_len(bytes, layer)?,
            ip_id,
            dns: dns(bytes, layer),
            fragmented: layer.has(FLAG_FIRST_FRAGMENT),
        }))
    } else if layer.is_echo_request() || layer.is_echo_reply() {
        Some(Message::Echo(Echo {
            is_reply: layer.is_echo_reply(),
            seq: layer.echo_seq(),
            payload_len: layer.payload_len,
            ip_id,
        }))
    } else {
        None
    }
}

/// The length field of a UDP header: fragments and what is put together from them have the same.
fn udp_len(bytes: &[u8], layer: &Layer) -> Option<u16> {
    let at = usize::from(layer.transport_offset) + 4;
    let field = bytes.get(at..at + 2)?;
    Some(u16::from_be_bytes([field[0], field[1]]))
}

fn dns(bytes: &[u8], layer: &Layer) -> Option<Dns> {
    let header = packet::dns_header(bytes, layer)?;
    Some(Dns {
        id: header.id,
        is_response: header.is_response,
    })
}

fn tuple(layer: &Layer, message: Message) -> FiveTuple {
    let (src_port, dst_port) = match message {
        Message::Tcp(_) | Message::Udp(_) => (layer.src_port, layer.dst_port),
        Message::Echo(_) => (layer.echo_id(), layer.echo_id()),
    };
    FiveTuple {
        protocol: layer.protocol,
        src: SocketAddr::new(layer.src_addr(), src_port),
        dst: SocketAddr::new(layer.dst_addr(), dst_port),
    }
}

/// To whom the outermost frame is addressed.
fn dst_mac(skb: &Skb) -> Option<[u8; 6]> {
    let frame = skb.ethernet.then_some(&skb.headers)?;
    frame.first_chunk().copied()
}

fn icmp(layer: &Layer) -> IcmpError {
    IcmpError {
        version: layer.version,
        kind: layer.icmp_type,
        code: layer.icmp_code,
        from: layer.src_addr(),
        to: layer.dst_addr(),
        // RFC 1191: a router of before it says 0.
        mtu: layer.next_hop_mtu().filter(|mtu| *mtu > 0),
    }
}

/// The headers of the packet that is encrypted in a WireGuard datagram, where they are known.
pub fn sealed(skb: &Skb, ports: &TunnelPorts) -> Option<Packet> {
    let frame = Frame {
        start: Start::Ip,
        len_bytes: u32::try_from(skb.sealed.len()).ok()?,
    };
    (!skb.sealed.is_empty()).then(|| Packet::parse(&skb.sealed, frame, ports))
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
        packet::Tunnel::Wireguard => TunnelKind::Wireguard,
    };
    Some(Tunnel {
        kind,
        vni: layer.tunnel.has_vni().then_some(layer.vni),
        outer_src: layer.src_addr(),
        outer_dst: layer.dst_addr(),
        udp_src_port: (kind == TunnelKind::Wireguard).then_some(layer.src_port),
        udp_port: layer.is_udp().then_some(layer.dst_port),
    })
}
