//! Builds frames byte by byte, independently of the parser, and says which layers a parser must find in them.

use proptest::{collection::vec, option, prelude::*};
use tracer_common::packet::{
    FLAG_DONT_FRAGMENT, FLAG_FIRST_FRAGMENT, FLAG_LATER_FRAGMENT, FLAG_PORTS, FLAG_TRANSPORT,
    Layer, Tunnel, TunnelPorts,
};

pub const VXLAN_PORT: u16 = 8472;
pub const GENEVE_PORT: u16 = 6081;

/// The tunnel ports that the frames of this module use.
pub fn ports() -> TunnelPorts {
    let mut ports = TunnelPorts::NONE;
    assert!(ports.declare(VXLAN_PORT, Tunnel::Vxlan));
    assert!(ports.declare(GENEVE_PORT, Tunnel::Geneve));
    ports
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    None,
    First,
    /// With an offset in units of eight bytes, not 0.
    Later(u16),
}

/// An IPv6 extension header.
#[derive(Clone, Copy, Debug)]
pub enum Extension {
    /// Hop-by-hop (0), routing (43) or destination options (60), with this many words of eight bytes after the first.
    Options(u8, u8),
    /// An authentication header whose ICV has this many words of eight bytes.
    Authentication(u8),
}

#[derive(Clone, Debug)]
pub struct Ip {
    pub version: u8,
    pub src: [u8; 16],
    pub dst: [u8; 16],
    pub ttl: u8,
    pub tos: u8,
    pub id: u32,
    pub dont_fragment: bool,
    pub fragment: Fragment,
    /// Words of IPv4 options.
    pub options: u8,
    /// IPv6 extension headers; a fragment header goes behind them.
    pub extensions: Vec<Extension>,
}

#[derive(Clone, Debug)]
pub enum Transport {
    Tcp {
        src: u16,
        dst: u16,
        seq: u32,
        ack: u32,
        flags: u8,
        window: u16,
        options: u8,
    },
    Udp {
        src: u16,
        dst: u16,
    },
    Icmp {
        kind: u8,
        code: u8,
        rest: u32,
    },
    Other {
        protocol: u8,
    },
}

/// What an outer layer is.
#[derive(Clone, Copy, Debug)]
pub enum Encap {
    Vxlan {
        vni: u32,
    },
    /// Geneve with this many words of options; `ethernet` says whether a frame or an IP packet is inside.
    Geneve {
        vni: u32,
        options: u8,
        ethernet: bool,
    },
    IpInIp,
}

#[derive(Clone, Debug)]
pub struct Spec {
    /// The VLAN tags of the outermost frame, outermost first.
    pub vlans: Vec<u16>,
    pub outer: Vec<(Ip, u16, Encap)>,
    pub inner: Ip,
    pub transport: Transport,
    pub payload: Vec<u8>,
}

/// A frame and what it consists of.
pub struct Built {
    pub bytes: Vec<u8>,
    pub layers: Vec<Layer>,
    /// Where the headers of each layer end, its tunnel header included.
    pub ends: Vec<usize>,
}

/// Bytes that are built from the inside out, so that every offset shifts when a header is put before it.
fn prepend(header: &[u8], built: &mut Built) {
    built.bytes.splice(0..0, header.iter().copied());
    for layer in &mut built.layers {
        layer.offset += header.len() as u16;
        layer.transport_offset += header.len() as u16;
    }
    for end in &mut built.ends {
        *end += header.len();
    }
}

pub fn ethernet(vlans: &[u16], ethertype: u16) -> Vec<u8> {
    let mut header = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for (index, tci) in vlans.iter().enumerate() {
        let tpid: u16 = if index + 1 < vlans.len() {
            0x88a8
        } else {
            0x8100
        };
        header.extend(tpid.to_be_bytes());
        header.extend(tci.to_be_bytes());
    }
    header.extend(ethertype.to_be_bytes());
    header
}

fn ethertype(version: u8) -> u16 {
    if version == 4 { 0x0800 } else { 0x86dd }
}

/// The IP header for a payload of `payload_len` bytes, and the layer without its transport fields.
fn ip(ip: &Ip, protocol: u8, payload_len: usize) -> (Vec<u8>, Layer) {
    let mut layer = Layer {
        src: ip.src,
        dst: ip.dst,
        version: ip.version,
        protocol,
        ttl: ip.ttl,
        tos: ip.tos,
        ..Layer::EMPTY
    };
    layer.flags = match ip.fragment {
        Fragment::None => 0,
        Fragment::First => FLAG_FIRST_FRAGMENT,
        Fragment::Later(_) => FLAG_LATER_FRAGMENT,
    };
    let mut header = Vec::new();
    if ip.version == 4 {
        let len = 20 + usize::from(ip.options) * 4;
        header.extend([0x40 | (len / 4) as u8, ip.tos]);
        header.extend(((len + payload_len) as u16).to_be_bytes());
        header.extend((ip.id as u16).to_be_bytes());
        let fragment = match ip.fragment {
            Fragment::None => 0,
            Fragment::First => 0x2000,
            Fragment::Later(offset) => offset & 0x1fff,
        };
        header.extend((fragment | if ip.dont_fragment { 0x4000 } else { 0 }).to_be_bytes());
        header.extend([ip.ttl, protocol, 0, 0]);
        header.extend(&ip.src[..4]);
        header.extend(&ip.dst[..4]);
        header.extend(vec![1; usize::from(ip.options) * 4]);
        layer.src[4..].fill(0);
        layer.dst[4..].fill(0);
        layer.ip_id = ip.id & 0xffff;
        if ip.dont_fragment {
            layer.flags |= FLAG_DONT_FRAGMENT;
        }
    } else {
        let mut kinds: Vec<u8> = ip
            .extensions
            .iter()
            .map(|extension| match extension {
                Extension::Options(kind, _) => *kind,
                Extension::Authentication(_) => 51,
            })
            .collect();
        if ip.fragment != Fragment::None {
            kinds.push(44);
        }
        kinds.push(protocol);
        let mut extensions = Vec::new();
        for (index, extension) in ip.extensions.iter().enumerate() {
            extensions.push(kinds[index + 1]);
            match extension {
                Extension::Options(_, words) => {
                    extensions.push(*words);
                    extensions.extend(vec![0; 6 + usize::from(*words) * 8]);
                }
                Extension::Authentication(words) => {
                    extensions.push(1 + words * 2);
                    extensions.extend(vec![0; 10 + usize::from(*words) * 8]);
                }
            }
        }
        if ip.fragment != Fragment::None {
            let (offset, more) = match ip.fragment {
                Fragment::Later(offset) => (offset, 0),
                _ => (0, 1),
            };
            extensions.extend([protocol, 0]);
            extensions.extend((offset << 3 | more).to_be_bytes());
            extensions.extend(ip.id.to_be_bytes());
            layer.ip_id = ip.id;
        }
        header.extend([0x60 | ip.tos >> 4, ip.tos << 4, 0, 0]);
        header.extend(((extensions.len() + payload_len) as u16).to_be_bytes());
        header.extend([kinds[0], ip.ttl]);
        header.extend(ip.src);
        header.extend(ip.dst);
        header.extend(extensions);
        layer.flags |= FLAG_DONT_FRAGMENT;
    }
    layer.packet_len = (header.len() + payload_len) as u32;
    layer.transport_offset = header.len() as u16;
    (header, layer)
}

fn transport(spec: &Transport, version: u8, payload_len: usize) -> (u8, Vec<u8>) {
    let mut header = Vec::new();
    let protocol = match *spec {
        Transport::Tcp {
            src,
            dst,
            seq,
            ack,
            flags,
            window,
            options,
        } => {
            header.extend(src.to_be_bytes());
            header.extend(dst.to_be_bytes());
            header.extend(seq.to_be_bytes());
            header.extend(ack.to_be_bytes());
            header.extend([(5 + options) << 4, flags]);
            header.extend(window.to_be_bytes());
            header.extend([0; 4]);
            header.extend(vec![1; usize::from(options) * 4]);
            6
        }
        Transport::Udp { src, dst } => {
            header.extend(src.to_be_bytes());
            header.extend(dst.to_be_bytes());
            header.extend(((8 + payload_len) as u16).to_be_bytes());
            header.extend([0, 0]);
            17
        }
        Transport::Icmp { kind, code, rest } => {
            header.extend([kind, code, 0, 0]);
            header.extend(rest.to_be_bytes());
            if version == 4 { 1 } else { 58 }
        }
        Transport::Other { protocol } => protocol,
    };
    (protocol, header)
}

fn fill(layer: &mut Layer, spec: &Transport, payload_len: usize) {
    match *spec {
        Transport::Tcp {
            src,
            dst,
            seq,
            ack,
            flags,
            window,
            ..
        } => {
            (layer.src_port, layer.dst_port) = (src, dst);
            (layer.seq, layer.ack) = (seq, ack);
            (layer.tcp_flags, layer.window) = (flags, window);
            layer.flags |= FLAG_PORTS | FLAG_TRANSPORT;
        }
        Transport::Udp { src, dst } => {
            (layer.src_port, layer.dst_port) = (src, dst);
            layer.flags |= FLAG_PORTS | FLAG_TRANSPORT;
        }
        Transport::Icmp { kind, code, rest } => {
            (layer.icmp_type, layer.icmp_code, layer.icmp_rest) = (kind, code, rest);
            layer.flags |= FLAG_TRANSPORT;
        }
        Transport::Other { .. } => return,
    }
    layer.payload_len = payload_len as u32;
}

/// One IP packet.
pub fn packet(spec: &Ip, payload_of: &Transport, payload: &[u8]) -> Built {
    let (protocol, header) = transport(payload_of, spec.version, payload.len());
    let later = matches!(spec.fragment, Fragment::Later(_));
    let header = if later { Vec::new() } else { header };
    let mut built = Built {
        bytes: payload.to_vec(),
        layers: Vec::new(),
        ends: Vec::new(),
    };
    prepend(&header, &mut built);
    let (ip_header, mut layer) = ip(spec, protocol, built.bytes.len());
    if !later {
        fill(&mut layer, payload_of, payload.len());
    }
    prepend(&ip_header, &mut built);
    built.layers.push(layer);
    built.ends.push(ip_header.len() + header.len().min(20));
    built
}

/// Puts `built` into a tunnel.
fn encapsulate(outer: &Ip, src_port: u16, encap: Encap, built: &mut Built) {
    let version = built.layers[0].version;
    let (tunnel, vni, port) = match encap {
        Encap::IpInIp => (Tunnel::IpInIp, 0, 0),
        Encap::Vxlan { vni } => {
            let mut header = vec![0x08, 0, 0, 0];
            header.extend((vni << 8).to_be_bytes());
            header.extend(ethernet(&[], ethertype(version)));
            prepend(&header, built);
            (Tunnel::Vxlan, vni, VXLAN_PORT)
        }
        Encap::Geneve {
            vni,
            options,
            ethernet: has_ethernet,
        } => {
            let inside = if has_ethernet {
                0x6558
            } else {
                ethertype(version)
            };
            let mut header = vec![options, 0];
            header.extend(inside.to_be_bytes());
            header.extend((vni << 8).to_be_bytes());
            header.extend(vec![0; usize::from(options) * 4]);
            if has_ethernet {
                header.extend(ethernet(&[], ethertype(version)));
            }
            prepend(&header, built);
            (Tunnel::Geneve, vni, GENEVE_PORT)
        }
    };
    let payload_len = built.bytes.len();
    let udp = Transport::Udp {
        src: src_port,
        dst: port,
    };
    let (protocol, header) = if tunnel == Tunnel::IpInIp {
        (if version == 4 { 4 } else { 41 }, Vec::new())
    } else {
        transport(&udp, outer.version, payload_len)
    };
    prepend(&header, built);
    let (ip_header, mut layer) = ip(outer, protocol, built.bytes.len());
    if tunnel != Tunnel::IpInIp {
        fill(&mut layer, &udp, payload_len);
    }
    layer.tunnel = tunnel;
    layer.vni = vni;
    prepend(&ip_header, built);
    built.layers.insert(0, layer);
    let tunnel_len = if tunnel == Tunnel::IpInIp { 0 } else { 8 };
    built
        .ends
        .insert(0, ip_header.len() + header.len() + tunnel_len);
}

pub fn build(spec: &Spec) -> Built {
    let mut built = packet(&spec.inner, &spec.transport, &spec.payload);
    for (outer, src_port, encap) in spec.outer.iter().rev() {
        encapsulate(outer, *src_port, *encap, &mut built);
    }
    let version = built.layers[0].version;
    prepend(&ethernet(&spec.vlans, ethertype(version)), &mut built);
    built
}

/// An IPv4 header without options.
pub fn ipv4(src: [u8; 4], dst: [u8; 4]) -> Ip {
    let wide = |[a, b, c, d]: [u8; 4]| [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    Ip {
        version: 4,
        src: wide(src),
        dst: wide(dst),
        ttl: 64,
        tos: 0,
        id: 1,
        dont_fragment: true,
        fragment: Fragment::None,
        options: 0,
        extensions: Vec::new(),
    }
}

/// A TCP header without options.
pub fn tcp(src: u16, dst: u16, flags: u8) -> Transport {
    Transport::Tcp {
        src,
        dst,
        seq: 1000,
        ack: 2000,
        flags,
        window: 64240,
        options: 0,
    }
}

fn any_fragment() -> impl Strategy<Value = Fragment> {
    prop_oneof![
        8 => Just(Fragment::None),
        1 => Just(Fragment::First),
        1 => (1_u16..0x1fff).prop_map(Fragment::Later),
    ]
}

fn any_extensions() -> impl Strategy<Value = Vec<Extension>> {
    (
        option::of(0_u8..2),
        option::of(0_u8..2),
        option::of(0_u8..3),
    )
        .prop_map(|(hop_by_hop, destination, authentication)| {
            let mut extensions = Vec::new();
            extensions.extend(hop_by_hop.map(|words| Extension::Options(0, words)));
            extensions.extend(destination.map(|words| Extension::Options(60, words)));
            extensions.extend(authentication.map(Extension::Authentication));
            extensions
        })
}

pub fn any_ip() -> impl Strategy<Value = Ip> {
    (
        (
            prop_oneof![Just(4_u8), Just(6_u8)],
            any::<[u8; 16]>(),
            any::<[u8; 16]>(),
        ),
        (any::<u8>(), any::<u8>(), any::<u32>(), any::<bool>()),
        any_fragment(),
        prop_oneof![3 => Just(0_u8), 1 => 1_u8..=10],
        prop_oneof![3 => Just(Vec::new()), 1 => any_extensions()],
    )
        .prop_map(
            |(
                (version, src, dst),
                (ttl, tos, id, dont_fragment),
                fragment,
                options,
                extensions,
            )| Ip {
                version,
                src,
                dst,
                ttl,
                tos,
                id,
                dont_fragment,
                fragment,
                options,
                extensions,
            },
        )
}

/// A UDP port that no tunnel uses.
fn any_port() -> impl Strategy<Value = u16> {
    any::<u16>().prop_filter("a tunnel's port", |port| {
        ![VXLAN_PORT, GENEVE_PORT].contains(port)
    })
}

pub fn any_transport() -> impl Strategy<Value = Transport> {
    prop_oneof![
        4 => (any_port(), any_port(), any::<(u32, u32, u8, u16)>(), 0_u8..=10).prop_map(
            |(src, dst, (seq, ack, flags, window), options)| Transport::Tcp {
                src, dst, seq, ack, flags, window, options
            }
        ),
        2 => (any_port(), any_port()).prop_map(|(src, dst)| Transport::Udp { src, dst }),
        // Not the errors, which quote another packet.
        1 => (128_u8..=255, any::<u8>(), any::<u32>())
            .prop_map(|(kind, code, rest)| Transport::Icmp { kind, code, rest }),
        1 => prop_oneof![Just(132_u8), Just(47), Just(89), Just(253)]
            .prop_map(|protocol| Transport::Other { protocol }),
    ]
}

fn any_encap() -> impl Strategy<Value = Encap> {
    let vni = 0_u32..1 << 24;
    prop_oneof![
        2 => vni.clone().prop_map(|vni| Encap::Vxlan { vni }),
        2 => (vni, 0_u8..8, any::<bool>())
            .prop_map(|(vni, options, ethernet)| Encap::Geneve { vni, options, ethernet }),
        1 => Just(Encap::IpInIp),
    ]
}

/// An outer header is not a fragment, since the headers in a later one cannot be read.
fn any_outer() -> impl Strategy<Value = (Ip, u16, Encap)> {
    (any_ip(), any_port(), any_encap()).prop_map(|(ip, port, encap)| {
        (
            Ip {
                fragment: Fragment::None,
                ..ip
            },
            port,
            encap,
        )
    })
}

pub fn any_spec() -> impl Strategy<Value = Spec> {
    (
        vec(any::<u16>(), 0..=2),
        vec(any_outer(), 0..=2),
        any_ip(),
        any_transport(),
        vec(any::<u8>(), 0..40),
    )
        .prop_map(|(vlans, outer, inner, transport, payload)| Spec {
            vlans,
            outer,
            inner,
            transport,
            payload,
        })
}
