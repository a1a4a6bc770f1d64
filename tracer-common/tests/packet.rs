//! The header parser against frames whose content is known, against etherparse, and against hostile bytes.

mod frames;

use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use frames::{Encap, Extension, Fragment, Spec, Transport, build, ethernet, ipv4, ports, tcp};
use proptest::{collection::vec, prelude::*};
use tracer_common::{
    event::HEADER_BYTES_MAX,
    packet::{
        DnsHeader, FLAG_FIRST_FRAGMENT, FLAG_LATER_FRAGMENT, FLAG_PORTS, FLAG_TRANSPORT, Frame,
        IpProto, Layer, Packet, SCRATCH_BYTES, Scratch, Start, Status, TCP_ACK, TCP_SYN,
        TcpOptions, Tunnel, TunnelPorts, dns_header, parse, tcp_options,
    },
};

const CLIENT: [u8; 4] = [10, 244, 182, 26];
const SERVER: [u8; 4] = [10, 244, 190, 4];
const NODE_A: [u8; 4] = [192, 168, 50, 2];
const NODE_B: [u8; 4] = [192, 168, 50, 3];

fn frame(start: Start, len_bytes: usize) -> Frame {
    Frame {
        start,
        len_bytes: len_bytes as u32,
    }
}

fn parse_ethernet(bytes: &[u8]) -> Packet {
    Packet::parse(bytes, frame(Start::Ethernet, bytes.len()), &ports())
}

/// What the kernel half does: the same bytes in a scratch buffer, with `garbage` where nothing was captured.
fn parse_scratch(bytes: &[u8], start: Start, len_bytes: usize, garbage: u8) -> Packet {
    let mut scratch = Scratch {
        bytes: [garbage; SCRATCH_BYTES],
        len: bytes.len().min(HEADER_BYTES_MAX) as u64,
    };
    let len = bytes.len().min(HEADER_BYTES_MAX);
    scratch.bytes[..len].copy_from_slice(&bytes[..len]);
    let mut packet = Packet::EMPTY;
    parse(&scratch, frame(start, len_bytes), &ports(), &mut packet);
    packet
}

fn spec(outer: Vec<(frames::Ip, u16, Encap)>, transport: Transport) -> Spec {
    Spec {
        vlans: Vec::new(),
        outer,
        inner: ipv4(CLIENT, SERVER),
        transport,
        payload: Vec::new(),
    }
}

/// Checks that the parser finds exactly the layers that the frame was built of.
#[track_caller]
fn check(spec: &Spec) -> Packet {
    let built = build(spec);
    let packet = parse_ethernet(&built.bytes);
    assert_eq!(packet.layers(), built.layers);
    assert_eq!(packet.status, Status::Complete);
    assert_eq!(
        packet.vlan_tci[..usize::from(packet.vlan_count)],
        spec.vlans
    );
    packet
}

#[test]
fn a_syn_without_a_tunnel() {
    let packet = check(&spec(vec![], tcp(46596, 6379, TCP_SYN)));
    let layer = packet.inner().unwrap();
    assert_eq!(packet.outer(), packet.inner());
    assert_eq!(layer.src_addr().to_string(), "10.244.182.26");
    assert_eq!(layer.dst_addr().to_string(), "10.244.190.4");
    assert_eq!(
        (layer.src_port, layer.dst_port, layer.seq, layer.ack),
        (46596, 6379, 1000, 2000)
    );
    assert_eq!(
        (
            layer.offset,
            layer.transport_offset,
            layer.packet_len,
            layer.payload_len
        ),
        (14, 34, 40, 0)
    );
    assert!(layer.is_tcp() && !layer.is_udp() && !layer.is_icmp());
    assert_eq!(packet.ethertype, 0x0800);
}

#[test]
fn a_syn_ack_in_geneve() {
    let outer = (
        ipv4(NODE_A, NODE_B),
        40000,
        Encap::Geneve {
            vni: 53256,
            options: 2,
            ethernet: true,
        },
    );
    let packet = check(&spec(vec![outer], tcp(6379, 46596, TCP_SYN | TCP_ACK)));
    assert_eq!(packet.count, 2);
    let outer = packet.outer().unwrap();
    assert_eq!(
        (outer.tunnel, outer.vni, outer.dst_port),
        (Tunnel::Geneve, 53256, frames::GENEVE_PORT)
    );
    assert_eq!(packet.inner().unwrap().src_port, 6379);
}

#[test]
fn nested_twice() {
    let packet = check(&spec(
        vec![
            (ipv4(NODE_A, NODE_B), 1, Encap::Vxlan { vni: 4096 }),
            (
                ipv4(NODE_B, NODE_A),
                2,
                Encap::Geneve {
                    vni: 813,
                    options: 0,
                    ethernet: false,
                },
            ),
        ],
        Transport::Icmp {
            kind: 8,
            code: 0,
            rest: 0x0012_0034,
        },
    ));
    let inner = packet.inner().unwrap();
    assert!(inner.is_echo_request());
    assert_eq!((inner.echo_id(), inner.echo_seq()), (0x12, 0x34));
}

#[test]
fn nested_three_times_says_that_it_goes_on() {
    let vxlan = |vni| (ipv4(NODE_A, NODE_B), 1, Encap::Vxlan { vni });
    let built = build(&spec(vec![vxlan(1), vxlan(2), vxlan(3)], tcp(1, 2, 0)));
    let packet = parse_ethernet(&built.bytes);
    assert_eq!(packet.layers(), &built.layers[..3]);
    assert_eq!(packet.status, Status::TooDeep);
}

#[test]
fn a_tunnel_is_read_only_at_a_declared_port() {
    let built = build(&spec(
        vec![(ipv4(NODE_A, NODE_B), 1, Encap::Vxlan { vni: 1 })],
        tcp(1, 2, 0),
    ));
    let packet = Packet::parse(
        &built.bytes,
        frame(Start::Ethernet, built.bytes.len()),
        &TunnelPorts::NONE,
    );
    assert_eq!((packet.count, packet.status), (1, Status::Complete));
    assert_eq!(packet.inner().unwrap().tunnel, Tunnel::None);
}

#[test]
fn a_wireguard_message_is_known_by_either_port_and_by_its_first_bytes() {
    let mut ports = TunnelPorts::NONE;
    assert!(ports.declare(51820, Tunnel::Wireguard));
    let tunnel = |src, dst, payload: &[u8]| {
        let built = build(&Spec {
            payload: payload.to_vec(),
            ..spec(Vec::new(), Transport::Udp { src, dst })
        });
        let frame = frame(Start::Ethernet, built.bytes.len());
        let packet = Packet::parse(&built.bytes, frame, &ports);
        assert_eq!((packet.count, packet.status), (1, Status::Complete));
        packet.inner().unwrap().tunnel
    };
    let data = [4, 0, 0, 0, 7, 7, 7, 7];
    assert_eq!(tunnel(40000, 51820, &data), Tunnel::Wireguard);
    assert_eq!(tunnel(51820, 40000, &data), Tunnel::Wireguard);
    assert_eq!(tunnel(40000, 40000, &data), Tunnel::None);
    // Others may use the port, too.
    assert_eq!(
        tunnel(40000, 51820, &[5, 0, 0, 0, 7, 7, 7, 7]),
        Tunnel::None
    );
    assert_eq!(
        tunnel(40000, 51820, &[4, 0, 1, 0, 7, 7, 7, 7]),
        Tunnel::None
    );
    assert_eq!(tunnel(40000, 51820, &data[..4]), Tunnel::None);
}

#[test]
fn tunnel_ports_are_bounded_and_replaced() {
    let mut ports = TunnelPorts::NONE;
    assert!(!ports.declare(0, Tunnel::Vxlan));
    for port in 1..=8 {
        assert!(ports.declare(port, Tunnel::Vxlan));
    }
    assert!(!ports.declare(9, Tunnel::Vxlan));
    assert!(ports.declare(8, Tunnel::Geneve));
    assert_eq!(
        (ports.lookup(8), ports.lookup(1), ports.lookup(9)),
        (Tunnel::Geneve, Tunnel::Vxlan, Tunnel::None)
    );
    assert_eq!(ports.lookup(0), Tunnel::None);
}

#[test]
fn arp_in_a_tunnel_belongs_to_the_tunnel() {
    let mut built = build(&spec(
        vec![(ipv4(NODE_A, NODE_B), 1, Encap::Vxlan { vni: 7 })],
        tcp(1, 2, 0),
    ));
    let ethertype = 14 + 20 + 8 + 8 + 12;
    built.bytes[ethertype..ethertype + 2].copy_from_slice(&[0x08, 0x06]);
    let packet = parse_ethernet(&built.bytes);
    assert_eq!(
        (packet.count, packet.status, packet.ethertype),
        (1, Status::Complete, 0x0806)
    );
    assert_eq!(
        (packet.inner().unwrap().tunnel, packet.inner().unwrap().vni),
        (Tunnel::Vxlan, 7)
    );
}

#[test]
fn arp_is_not_ip() {
    let mut bytes = ethernet(&[5], 0x0806);
    bytes.extend([0; 28]);
    let packet = parse_ethernet(&bytes);
    assert_eq!(
        (packet.count, packet.status, packet.ethertype),
        (0, Status::NotIp, 0x0806)
    );
    assert_eq!((packet.vlan_count, packet.vlan_tci[0]), (1, 5));
}

#[test]
fn a_third_vlan_tag_is_too_deep() {
    let mut bytes = ethernet(&[1, 2, 3], 0x0800);
    bytes.extend([0x45; 60]);
    assert_eq!(parse_ethernet(&bytes).status, Status::TooDeep);
}

#[test]
fn the_link_header_and_the_version_must_agree() {
    let mut bytes = build(&spec(vec![], tcp(1, 2, 0))).bytes;
    bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
    let packet = parse_ethernet(&bytes);
    assert_eq!((packet.count, packet.status), (0, Status::Malformed));
}

#[test]
fn without_a_link_header_the_version_decides() {
    for version in [4, 6] {
        let ip = frames::Ip {
            version,
            ..ipv4(CLIENT, SERVER)
        };
        let built = frames::packet(&ip, &tcp(1, 2, TCP_SYN), &[]);
        let packet = Packet::parse(&built.bytes, frame(Start::Ip, built.bytes.len()), &ports());
        assert_eq!(packet.layers(), built.layers);
        assert_eq!(packet.status, Status::Complete);
    }
    let packet = Packet::parse(&[0x55; 60], frame(Start::Ip, 60), &ports());
    assert_eq!((packet.count, packet.status), (0, Status::Malformed));
}

#[test]
fn fragments() {
    for version in [4, 6] {
        for (fragment, flag) in [
            (Fragment::First, FLAG_FIRST_FRAGMENT),
            (Fragment::Later(185), FLAG_LATER_FRAGMENT),
        ] {
            let inner = frames::Ip {
                version,
                fragment,
                id: 77,
                ..ipv4(CLIENT, SERVER)
            };
            let packet = check(&Spec {
                inner,
                payload: vec![0xff; 64],
                ..spec(vec![], Transport::Udp { src: 53, dst: 5353 })
            });
            let layer = packet.inner().unwrap();
            assert!(layer.has(flag));
            assert_eq!(layer.has(FLAG_PORTS), flag == FLAG_FIRST_FRAGMENT);
            assert_eq!((layer.ip_id, layer.protocol), (77, 17));
        }
    }
}

#[test]
fn a_later_fragment_of_a_tunnel_shows_nothing_inside() {
    let outer = frames::Ip {
        fragment: Fragment::Later(8),
        ..ipv4(NODE_A, NODE_B)
    };
    let built = frames::packet(
        &outer,
        &Transport::Udp {
            src: 1,
            dst: frames::VXLAN_PORT,
        },
        &[8; 60],
    );
    let packet = Packet::parse(&built.bytes, frame(Start::Ip, built.bytes.len()), &ports());
    assert_eq!((packet.count, packet.status), (1, Status::Complete));
    assert_eq!(packet.inner().unwrap().tunnel, Tunnel::None);
}

#[test]
fn four_extension_headers_are_followed_and_a_fifth_is_not() {
    for (count, status) in [(4, Status::Complete), (5, Status::TooDeep)] {
        let inner = frames::Ip {
            version: 6,
            extensions: vec![Extension::Options(60, 0); count],
            ..ipv4(CLIENT, SERVER)
        };
        let built = frames::packet(&inner, &tcp(1, 2, 0), &[]);
        let packet = Packet::parse(&built.bytes, frame(Start::Ip, built.bytes.len()), &ports());
        assert_eq!((packet.count, packet.status), (1, status));
        assert_eq!(packet.inner().unwrap().is_tcp(), count == 4);
    }
}

#[test]
fn a_length_of_zero_is_that_of_the_frame() {
    for (version, offset) in [(4, 2), (6, 4)] {
        let inner = frames::Ip {
            version,
            ..ipv4(CLIENT, SERVER)
        };
        let mut bytes = build(&Spec {
            inner,
            ..spec(vec![], tcp(1, 2, 0))
        })
        .bytes;
        bytes[14 + offset..14 + offset + 2].fill(0);
        let packet = Packet::parse(&bytes, frame(Start::Ethernet, 100_014), &ports());
        let layer = packet.inner().unwrap();
        let headers = if version == 4 { 40 } else { 60 };
        assert_eq!(
            (layer.packet_len, layer.payload_len),
            (100_000, 100_000 - headers)
        );
    }
}

#[test]
fn padding_is_no_transport_header() {
    let mut built = build(&spec(vec![], Transport::Other { protocol: 6 }));
    built.bytes.extend([0xaa; 26]);
    let packet = parse_ethernet(&built.bytes);
    assert_eq!((packet.count, packet.status), (1, Status::Malformed));
    assert!(!packet.inner().unwrap().has(FLAG_PORTS));
}

#[test]
fn headers_that_contradict_themselves() {
    let whole = build(&spec(vec![], tcp(1, 2, 0))).bytes;
    let cases: [(usize, u8, u8); 3] = [
        // An IPv4 header of 16 bytes: no layer at all.
        (14, 0x44, 0),
        // A total length below the header's.
        (17, 19, 1),
        // A TCP header of 16 bytes: its fields stand.
        (46, 0x40, 1),
    ];
    for (offset, value, count) in cases {
        let mut bytes = whole.clone();
        bytes[offset] = value;
        let packet = parse_ethernet(&bytes);
        assert_eq!(
            (packet.count, packet.status),
            (count, Status::Malformed),
            "byte {offset}"
        );
    }
}

/// An ICMP error of `version` that quotes the first `quoted_len` bytes of a SYN.
fn icmp_error(version: u8, kind: u8, code: u8, rest: u32, quoted_len: usize) -> (Packet, Layer) {
    let ip = frames::Ip {
        version,
        ..ipv4(CLIENT, SERVER)
    };
    let quoted = frames::packet(&ip, &tcp(46596, 6379, TCP_SYN), &[0; 1400]);
    let router = frames::Ip {
        version,
        ..ipv4(NODE_A, CLIENT)
    };
    let error = Transport::Icmp { kind, code, rest };
    let mut bytes = ethernet(&[], if version == 4 { 0x0800 } else { 0x86dd });
    bytes.extend(frames::packet(&router, &error, &quoted.bytes[..quoted_len]).bytes);
    (parse_ethernet(&bytes), quoted.layers[0])
}

#[test]
fn an_icmp_error_quotes_its_packet() {
    for (version, kind, code) in [(4, 3, 4), (6, 2, 0)] {
        let (packet, quoted) = icmp_error(version, kind, code, 1280, 128);
        let error = packet.inner().unwrap();
        assert!(error.is_icmp_error());
        assert_eq!(error.next_hop_mtu(), Some(1280));
        assert_eq!((packet.count, packet.status), (1, Status::Complete));
        let found = packet.quoted().unwrap();
        assert_eq!(packet.flow(), Some(found));
        assert_eq!((found.src, found.dst), (quoted.src, quoted.dst));
        assert_eq!(
            (found.src_port, found.dst_port, found.seq),
            (46596, 6379, 1000)
        );
        assert_eq!(found.packet_len, quoted.packet_len);
    }
}

#[test]
fn an_icmp_error_need_quote_only_eight_bytes() {
    let (packet, _) = icmp_error(4, 3, 1, 0, 28);
    let quoted = packet.quoted().unwrap();
    assert_eq!(packet.status, Status::Complete);
    assert_eq!(
        (quoted.src_port, quoted.dst_port, quoted.seq),
        (46596, 6379, 1000)
    );
    assert!(quoted.has(FLAG_PORTS) && !quoted.has(FLAG_TRANSPORT));
    assert_eq!(packet.inner().unwrap().next_hop_mtu(), None);
}

#[test]
fn what_is_quoted_in_full_can_be_parsed_by_itself() {
    let mut quoted = build(&spec(
        vec![(ipv4(NODE_A, NODE_B), 1, Encap::Vxlan { vni: 9 })],
        tcp(1, 2, 0),
    ))
    .bytes;
    quoted.drain(..14);
    let error = Transport::Icmp {
        kind: 3,
        code: 4,
        rest: 1400,
    };
    let bytes = frames::packet(&ipv4(NODE_B, NODE_A), &error, &quoted).bytes;
    let packet = Packet::parse(&bytes, frame(Start::Ip, bytes.len()), &ports());
    let offset = usize::from(packet.quoted().unwrap().offset);
    let inside = Packet::parse(&bytes[offset..], frame(Start::Ip, quoted.len()), &ports());
    assert_eq!(
        inside.inner().unwrap().src_addr().to_string(),
        "10.244.182.26"
    );
}

#[test]
fn an_echo_quotes_nothing() {
    let (packet, _) = icmp_error(4, 8, 0, 0, 60);
    assert!(packet.quoted().is_none());
}

/// An outer layer of each kind, and none.
fn each_outer() -> Vec<Vec<(frames::Ip, u16, Encap)>> {
    let node = ipv4(NODE_A, NODE_B);
    let node_v6 = frames::Ip {
        version: 6,
        ..node.clone()
    };
    let geneve = Encap::Geneve {
        vni: 813,
        options: 2,
        ethernet: true,
    };
    vec![
        vec![],
        vec![(node.clone(), 40000, Encap::Vxlan { vni: 4096 })],
        vec![(node_v6, 40000, geneve)],
        vec![(node, 40000, Encap::IpInIp)],
    ]
}

/// Builds the packet over IPv4 and IPv6, in every tunnel and behind a VLAN tag, and checks how many bytes of its IP
/// payload are headers.
#[track_caller]
fn check_headers_len(transport: &Transport, payload: &[u8], expected: usize) {
    for (version, outer) in [4, 6].into_iter().zip(std::iter::repeat(each_outer())) {
        for outer in outer {
            for vlans in [vec![], vec![7, 8]] {
                let spec = Spec {
                    vlans,
                    inner: frames::Ip {
                        version,
                        ..ipv4(CLIENT, SERVER)
                    },
                    payload: payload.to_vec(),
                    ..spec(outer.clone(), transport.clone())
                };
                let built = build(&spec);
                let packet = parse_ethernet(&built.bytes);
                let captured = built.bytes.len().min(HEADER_BYTES_MAX) as u32;
                let end = usize::from(
                    built
                        .layers
                        .last()
                        .expect("a frame has layers")
                        .transport_offset,
                ) + expected;
                assert_eq!(packet.headers_len(captured) as usize, end, "{spec:?}");
                assert_eq!(packet.headers_len(end as u32 - 1) as usize, end - 1);
                assert_eq!(packet.headers_len(u32::MAX) as usize, end);
                // What was left out is not missed: it parses the same.
                assert_eq!(parse_ethernet(&built.bytes[..end]).layers(), built.layers);
            }
        }
    }
}

fn udp(src: u16, dst: u16) -> Transport {
    Transport::Udp { src, dst }
}

#[test]
fn what_leaves_the_kernel_ends_with_the_transport_header() {
    let payload = [0xaa; 100];
    check_headers_len(&tcp(46596, 6379, TCP_ACK), &payload, 20);
    check_headers_len(&udp(46596, 123), &payload, 8);
    check_headers_len(&udp(46596, 123), &[], 8);
    // Three words of options.
    let options = Transport::Tcp {
        src: 1,
        dst: 2,
        seq: 3,
        ack: 4,
        flags: TCP_SYN,
        window: 5,
        options: 3,
    };
    check_headers_len(&options, &payload, 32);
    // A protocol without a parser has no header that is known to be one.
    check_headers_len(&Transport::Other { protocol: 132 }, &payload, 0);
}

#[test]
fn an_echo_leaves_the_kernel_with_its_identifier() {
    for version in [4, 6] {
        let kinds = if version == 4 { [8, 0] } else { [128, 129] };
        for (kind, len) in kinds.into_iter().zip([0, 56]) {
            let echo = Transport::Icmp {
                kind,
                code: 0,
                rest: 0x0102_0003,
            };
            let ip = frames::Ip {
                version,
                ..ipv4(CLIENT, SERVER)
            };
            let built = frames::packet(&ip, &echo, &vec![0xaa; len]);
            let packet = Packet::parse(&built.bytes, frame(Start::Ip, built.bytes.len()), &ports());
            let end = packet.headers_len(built.bytes.len() as u32) as usize;
            assert_eq!(end, built.bytes.len() - len);
            let alone = Packet::parse(&built.bytes[..end], frame(Start::Ip, 0), &ports());
            let layer = alone.inner().unwrap();
            assert_eq!((layer.echo_id(), layer.echo_seq()), (0x0102, 3));
            assert_eq!(layer.payload_len as usize, len);
        }
    }
}

#[test]
fn a_dns_message_leaves_the_kernel_with_its_header_and_without_its_names() {
    let payload = [0xaa; 100];
    for (src, dst) in [(46596, 53), (53, 46596), (5353, 5353), (5353, 9)] {
        check_headers_len(&udp(src, dst), &payload, 8 + 12);
        // A datagram need not be a message.
        check_headers_len(&udp(src, dst), &payload[..12], 8 + 12);
        check_headers_len(&udp(src, dst), &payload[..5], 8 + 5);
        check_headers_len(&udp(src, dst), &[], 8);
    }
    // DNS over TCP has its header in a stream, of which nothing is known.
    check_headers_len(&tcp(46596, 53, TCP_ACK), &payload, 20);
}

#[test]
fn what_an_icmp_error_quotes_leaves_the_kernel_without_its_payload() {
    let quoted = |version, transport: &Transport| {
        let ip = frames::Ip {
            version,
            ..ipv4(CLIENT, SERVER)
        };
        frames::packet(&ip, transport, &[0xaa; 60])
    };
    let echo = |version| Transport::Icmp {
        kind: if version == 4 { 8 } else { 128 },
        code: 0,
        rest: 0x0102_0003,
    };
    for version in [4, 6] {
        let unreachable = if version == 4 { 3 } else { 1 };
        for (transport, expected) in [
            (tcp(46596, 6379, TCP_ACK), 20),
            (udp(46596, 123), 8),
            (udp(46596, 53), 20),
            (echo(version), 8),
        ] {
            let quoted = quoted(version, &transport);
            for outer in each_outer() {
                let spec = Spec {
                    inner: frames::Ip {
                        version,
                        ..ipv4(NODE_B, CLIENT)
                    },
                    payload: quoted.bytes.clone(),
                    ..spec(
                        outer,
                        Transport::Icmp {
                            kind: unreachable,
                            code: 1,
                            rest: 0,
                        },
                    )
                };
                let bytes = build(&spec).bytes;
                let packet = parse_ethernet(&bytes);
                let captured = bytes.len().min(HEADER_BYTES_MAX) as u32;
                let end = packet.headers_len(captured) as usize;
                let found = packet.quoted().unwrap();
                assert_eq!(
                    end,
                    usize::from(found.transport_offset) + expected,
                    "{spec:?}"
                );
                assert_eq!(parse_ethernet(&bytes[..end]).quoted(), Some(found));
            }
        }
        // A quote that is cut short is kept as it is.
        let cut = quoted(version, &tcp(46596, 6379, TCP_ACK)).bytes;
        let cut = &cut[..if version == 4 { 28 } else { 48 }];
        let error = Transport::Icmp {
            kind: unreachable,
            code: 1,
            rest: 0,
        };
        let spec = Spec {
            inner: frames::Ip {
                version,
                ..ipv4(NODE_B, CLIENT)
            },
            payload: cut.to_vec(),
            ..spec(vec![], error)
        };
        let bytes = build(&spec).bytes;
        assert_eq!(
            parse_ethernet(&bytes).headers_len(bytes.len() as u32),
            bytes.len() as u32
        );
    }
}

#[test]
fn a_quoted_tunnel_is_named_and_kept_whole() {
    let tunnel = vec![(ipv4(NODE_A, NODE_B), 1, Encap::Vxlan { vni: 9 })];
    let mut quoted = build(&spec(tunnel, tcp(1, 2, 0))).bytes;
    quoted.drain(..14);
    let error = Transport::Icmp {
        kind: 3,
        code: 4,
        rest: 1400,
    };
    let bytes = frames::packet(&ipv4(NODE_B, NODE_A), &error, &quoted).bytes;
    let packet = Packet::parse(&bytes, frame(Start::Ip, bytes.len()), &ports());
    let found = packet.quoted().unwrap();
    assert_eq!((found.tunnel, found.vni), (Tunnel::Vxlan, 9));
    assert_eq!(packet.headers_len(bytes.len() as u32), bytes.len() as u32);
}

#[test]
fn a_dns_header_pairs_an_answer_with_its_question() {
    let message = |flags: u16| {
        let mut bytes = vec![0x12, 0x34];
        bytes.extend(flags.to_be_bytes());
        bytes.extend([0, 1, 0, 0, 0, 0, 0, 0]);
        bytes.extend(b"\x07example\x00\x00\x01\x00\x01");
        bytes
    };
    let read = |transport: Transport, payload: &[u8], captured: usize| {
        let built = frames::packet(&ipv4(CLIENT, SERVER), &transport, payload);
        let bytes = &built.bytes[..captured.min(built.bytes.len())];
        let packet = Packet::parse(bytes, frame(Start::Ip, built.bytes.len()), &ports());
        dns_header(bytes, packet.inner().unwrap())
    };
    let question = DnsHeader {
        id: 0x1234,
        is_response: false,
        opcode: 0,
        response_code: 0,
    };
    assert_eq!(read(udp(46596, 53), &message(0x0100), 40), Some(question));
    let answer = DnsHeader {
        is_response: true,
        response_code: 3,
        ..question
    };
    assert_eq!(read(udp(53, 46596), &message(0x8183), 40), Some(answer));
    let update = DnsHeader {
        opcode: 5,
        ..question
    };
    assert_eq!(read(udp(46596, 53), &message(0x2800), 40), Some(update));
    // Nothing where it is no DNS by its ports, too short, or cut.
    assert_eq!(read(udp(46596, 54), &message(0), 99), None);
    assert_eq!(read(tcp(46596, 53, TCP_ACK), &message(0), 99), None);
    assert_eq!(read(udp(46596, 53), &message(0)[..11], 99), None);
    assert_eq!(read(udp(46596, 53), &message(0), 39), None);
}

#[test]
fn what_cannot_be_dns_is_none_whatever_its_port() {
    let is_dns = |src: u16, dst: u16, payload: &[u8]| {
        let built = frames::packet(&ipv4(CLIENT, SERVER), &udp(src, dst), payload);
        let bytes = built.bytes.as_slice();
        let packet = Packet::parse(bytes, frame(Start::Ip, bytes.len()), &ports());
        dns_header(bytes, packet.inner().unwrap()).is_some()
    };
    // An identifier, flags, how many questions, answers, authorities and additional records, and room for the rest.
    let message = |flags: u16, counts: [u16; 4], room: usize| {
        let mut bytes = vec![0x12, 0x34];
        bytes.extend(flags.to_be_bytes());
        bytes.extend(counts.into_iter().flat_map(u16::to_be_bytes));
        bytes.resize(12 + room, 0xaa);
        bytes
    };
    let query = |flags, counts, room| is_dns(46596, 53, &message(flags, counts, room));
    let answer = |flags, counts, room| is_dns(53, 46596, &message(flags, counts, room));
    // A query with EDNS, one for a zone's changes, a notification, an update.
    assert!(query(0x0120, [1, 0, 0, 1], 16));
    assert!(query(0x0000, [1, 0, 1, 1], 60));
    assert!(query(0x2400, [1, 1, 0, 0], 40));
    assert!(query(0x2800, [1, 2, 3, 4], 200));
    // An answer, one that is truncated but counts what was cut off, one to a query that was not understood.
    assert!(answer(0x8180, [1, 2, 0, 1], 60));
    assert!(answer(0x8380, [1, 90, 0, 1], 16));
    assert!(answer(0x8181, [0, 0, 0, 0], 0));
    // No question or several, an answer in a question, an error in it, a reserved bit or operation, records without room.
    assert!(!query(0x0100, [0, 0, 0, 0], 16));
    assert!(!query(0x0100, [2, 0, 0, 0], 16));
    assert!(!query(0x0100, [1, 1, 0, 0], 40));
    assert!(!query(0x0103, [1, 0, 0, 0], 16));
    assert!(!query(0x0140, [1, 0, 0, 0], 16));
    assert!(!query(0x1800, [1, 0, 0, 0], 16));
    assert!(!query(0x0100, [1, 0, 0, 1], 15));
    assert!(!answer(0x8180, [2, 0, 0, 0], 60));
    assert!(!answer(0x8180, [1, 90, 0, 1], 60));
    // Multicast DNS asks several questions at once, and answers unasked.
    assert!(is_dns(5353, 5353, &message(0, [3, 2, 0, 0], 60)));
    assert!(is_dns(5353, 5353, &message(0x8400, [0, 4, 0, 2], 80)));
    assert!(!is_dns(5353, 5353, &message(0, [0xaaaa, 0, 0, 0], 60)));
    // WireGuard's handshake and data, VXLAN, noise.
    let data = |receiver: [u8; 4], counter: u64| {
        [
            &[4, 0, 0, 0],
            &receiver[..],
            &counter.to_le_bytes(),
            &[0xaa; 80],
        ]
        .concat()
    };
    assert!((0..1000).all(|counter| !is_dns(46596, 53, &data([7, 0x3c, 0xe5, 0x91], counter))));
    assert!(!is_dns(
        46596,
        53,
        &[&[1, 0, 0, 0, 0x3c, 7], &[0x5a; 142][..]].concat()
    ));
    assert!(!is_dns(
        46596,
        53,
        &[&[8, 0, 0, 0, 0, 0, 7, 0, 2, 0, 0, 0, 0, 1], &[0; 60][..]].concat()
    ));
    assert!(!is_dns(46596, 53, &[0xaa; 100]));
}

#[test]
fn options_of_a_syn() {
    let mut bytes = build(&spec(
        vec![],
        Transport::Tcp {
            src: 1,
            dst: 2,
            seq: 0,
            ack: 0,
            flags: TCP_SYN,
            window: 0,
            options: 5,
        },
    ))
    .bytes;
    let start = 14 + 20 + 20;
    bytes[start..start + 20].copy_from_slice(&[
        2, 4, 5, 180, 4, 2, 8, 10, 0, 0, 1, 2, 0, 0, 3, 4, 1, 3, 3, 7,
    ]);
    let packet = parse_ethernet(&bytes);
    let expected = TcpOptions {
        mss: Some(1460),
        timestamp: Some(0x102),
        timestamp_echo: Some(0x304),
        window_scale: Some(7),
    };
    assert_eq!(tcp_options(&bytes, packet.inner().unwrap()), expected);
    // Cut inside the timestamps: what is before them remains.
    let cut = tcp_options(&bytes[..start + 10], packet.inner().unwrap());
    assert_eq!(
        cut,
        TcpOptions {
            mss: Some(1460),
            ..TcpOptions::default()
        }
    );
    // Lengths of zero and beyond the end neither loop nor panic.
    for len in [0, 1, 255] {
        bytes[start + 1] = len;
        assert_eq!(tcp_options(&bytes, packet.inner().unwrap()).mss, None);
    }
}

#[test]
fn a_flow_has_one_hash_in_both_directions() {
    let hash = |src, dst, sport, dport, seed| {
        let built = frames::packet(&ipv4(src, dst), &tcp(sport, dport, 0), &[]);
        Packet::parse(&built.bytes, frame(Start::Ip, built.bytes.len()), &ports()).flow_hash(seed)
    };
    let request = hash(CLIENT, SERVER, 46596, 6379, 1);
    assert_eq!(request, hash(SERVER, CLIENT, 6379, 46596, 1));
    assert_ne!(request, hash(CLIENT, SERVER, 6379, 46596, 1));
    assert_ne!(request, hash(CLIENT, SERVER, 46597, 6379, 1));
    assert_ne!(request, hash(CLIENT, SERVER, 46596, 6379, 2));
    assert_eq!(Packet::EMPTY.flow_hash(1), 0);
}

/// Compares one layer with what etherparse reads from the same bytes.
fn check_with_etherparse(bytes: &[u8], layer: &Layer) -> Result<(), TestCaseError> {
    let sliced = SlicedPacket::from_ip(&bytes[usize::from(layer.offset)..])
        .map_err(|error| TestCaseError::fail(format!("etherparse: {error}")))?;
    let later = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            let header = ip.header();
            prop_assert_eq!(layer.version, 4);
            prop_assert_eq!(&layer.src[..4], &header.source());
            prop_assert_eq!(&layer.dst[..4], &header.destination());
            prop_assert_eq!(layer.packet_len, u32::from(header.total_len()));
            prop_assert_eq!(layer.ip_id, u32::from(header.identification()));
            prop_assert_eq!(
                (layer.ttl, layer.protocol),
                (header.ttl(), header.protocol().0)
            );
            prop_assert_eq!(layer.tos, header.dcp().value() << 2 | header.ecn().value());
            prop_assert_eq!(
                usize::from(layer.transport_offset - layer.offset),
                usize::from(header.ihl()) * 4
            );
            header.fragments_offset().value() != 0
        }
        Some(NetSlice::Ipv6(ip)) => {
            let header = ip.header();
            prop_assert_eq!(layer.version, 6);
            prop_assert_eq!(
                (layer.src, layer.dst),
                (header.source(), header.destination())
            );
            prop_assert_eq!(layer.packet_len, 40 + u32::from(header.payload_length()));
            prop_assert_eq!(layer.ttl, header.hop_limit());
            prop_assert_eq!(layer.tos, header.traffic_class());
            prop_assert_eq!(layer.protocol, ip.payload().ip_number.0);
            let rest = bytes.len() - usize::from(layer.transport_offset);
            prop_assert_eq!(rest, ip.payload().payload.len());
            layer.has(FLAG_LATER_FRAGMENT)
        }
        _ => return Err(TestCaseError::fail("etherparse found no IP header")),
    };
    prop_assert_eq!(layer.has(FLAG_LATER_FRAGMENT), later);
    match &sliced.transport {
        Some(TransportSlice::Tcp(header)) => {
            prop_assert_eq!(
                (layer.src_port, layer.dst_port),
                (header.source_port(), header.destination_port())
            );
            prop_assert_eq!(
                (layer.seq, layer.ack),
                (header.sequence_number(), header.acknowledgment_number())
            );
            prop_assert_eq!(layer.window, header.window_size());
            prop_assert_eq!(layer.tcp_flags & TCP_SYN != 0, header.syn());
            prop_assert_eq!(layer.tcp_flags & TCP_ACK != 0, header.ack());
            prop_assert_eq!(layer.payload_len as usize, header.payload().len());
        }
        Some(TransportSlice::Udp(header)) => {
            prop_assert_eq!(
                (layer.src_port, layer.dst_port),
                (header.source_port(), header.destination_port())
            );
            prop_assert_eq!(layer.payload_len as usize, header.payload().len());
        }
        Some(TransportSlice::Icmpv4(header)) => {
            prop_assert_eq!(
                (layer.icmp_type, layer.icmp_code),
                (header.type_u8(), header.code_u8())
            );
            prop_assert_eq!(layer.icmp_rest.to_be_bytes(), header.bytes5to8());
        }
        Some(TransportSlice::Icmpv6(header)) => {
            prop_assert_eq!(
                (layer.icmp_type, layer.icmp_code),
                (header.type_u8(), header.code_u8())
            );
            prop_assert_eq!(layer.icmp_rest.to_be_bytes(), header.bytes5to8());
        }
        // etherparse leaves the transport of a first fragment alone, as incomplete.
        _ => prop_assert!(
            layer.flags & (FLAG_FIRST_FRAGMENT | FLAG_LATER_FRAGMENT) != 0
                || ![IpProto::Tcp, IpProto::Udp, IpProto::Icmp, IpProto::Ipv6Icmp]
                    .map(|protocol| protocol as u8)
                    .contains(&layer.protocol)
        ),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn finds_what_was_built(spec in frames::any_spec()) {
        let built = build(&spec);
        let packet = parse_ethernet(&built.bytes);
        let whole = built.ends.iter().take_while(|end| **end <= HEADER_BYTES_MAX).count();
        // The last layer may be there in part; those before it are complete.
        prop_assert!(usize::from(packet.count) >= whole);
        prop_assert_eq!(&packet.layers()[..whole], &built.layers[..whole]);
        // Where no transport header is read, the end of the headers in front of it need not be captured.
        let reads_transport = !matches!(spec.transport, Transport::Other { .. })
            && !matches!(spec.inner.fragment, Fragment::Later(_));
        if whole == built.layers.len() {
            prop_assert_eq!(packet.status, Status::Complete);
            prop_assert_eq!(packet.layers().len(), whole);
        } else if reads_transport || packet.status != Status::Complete {
            prop_assert_eq!(packet.status, Status::Truncated);
        } else {
            prop_assert_eq!(packet.layers(), &built.layers[..]);
        }
        prop_assert_eq!(&packet.vlan_tci[..usize::from(packet.vlan_count)], &spec.vlans[..]);
        for layer in &packet.layers()[..whole] {
            check_with_etherparse(&built.bytes, layer)?;
        }
    }

    #[test]
    fn a_cut_frame_gives_fewer_fields_and_never_others(spec in frames::any_spec(), garbage in any::<u8>()) {
        let built = build(&spec);
        let whole = parse_ethernet(&built.bytes);
        for len in 0..=built.bytes.len().min(HEADER_BYTES_MAX + 8) {
            let cut = &built.bytes[..len];
            let packet = Packet::parse(cut, frame(Start::Ethernet, built.bytes.len()), &ports());
            // Nothing depends on what lies behind the captured bytes.
            prop_assert_eq!(packet, parse_scratch(cut, Start::Ethernet, built.bytes.len(), garbage));
            prop_assert!(packet.count <= whole.count);
            if let Some((last, complete)) = packet.layers().split_last() {
                prop_assert_eq!(complete, &whole.layers[..complete.len()]);
                check_part(last, &whole.layers[complete.len()])?;
            }
            if len < built.bytes.len() && packet != whole {
                prop_assert_eq!(packet.status, Status::Truncated);
            }
        }
    }

    #[test]
    fn the_packet_before_leaves_nothing_behind(
        before in frames::any_spec(),
        spec in frames::any_spec(),
        len in 0..=HEADER_BYTES_MAX,
    ) {
        let mut reused = parse_ethernet(&build(&before).bytes);
        let bytes = build(&spec).bytes;
        let cut = &bytes[..len.min(bytes.len())];
        let fresh = parse_ethernet(cut);
        parse(&cut, frame(Start::Ethernet, cut.len()), &ports(), &mut reused);
        prop_assert_eq!(reused.layers(), fresh.layers());
        prop_assert_eq!(reused.quoted(), fresh.quoted());
        prop_assert_eq!((reused.status, reused.ethertype), (fresh.status, fresh.ethertype));
        prop_assert_eq!(reused.vlan_count, fresh.vlan_count);
    }

    #[test]
    fn hostile_bytes_neither_panic_nor_depend_on_the_reader(
        bytes in vec(any::<u8>(), 0..300),
        ip in any::<bool>(),
        len_bytes in 0_usize..100_000,
        garbage in any::<u8>(),
    ) {
        let start = if ip { Start::Ip } else { Start::Ethernet };
        let packet = Packet::parse(&bytes, frame(start, len_bytes), &ports());
        prop_assert_eq!(packet, parse_scratch(&bytes, start, len_bytes, garbage));
        for layer in packet.layers().iter().chain(packet.quoted()) {
            tcp_options(&bytes, layer);
            dns_header(&bytes, layer);
        }
    }

    #[test]
    fn a_changed_byte_neither_panics_nor_depends_on_the_reader(
        spec in frames::any_spec(),
        changes in vec((0_usize..HEADER_BYTES_MAX, any::<u8>()), 1..4),
        garbage in any::<u8>(),
    ) {
        let mut bytes = build(&spec).bytes;
        for (offset, value) in changes {
            let len = bytes.len();
            bytes[offset % len] = value;
        }
        let packet = parse_ethernet(&bytes);
        prop_assert_eq!(packet, parse_scratch(&bytes, Start::Ethernet, bytes.len(), garbage));
        for layer in packet.layers().iter().chain(packet.quoted()) {
            tcp_options(&bytes, layer);
            dns_header(&bytes, layer);
        }
    }
}

/// A layer whose bytes are cut has the fields of the whole one, or none.
fn check_part(part: &Layer, whole: &Layer) -> Result<(), TestCaseError> {
    prop_assert_eq!(
        (part.src, part.dst, part.packet_len),
        (whole.src, whole.dst, whole.packet_len)
    );
    prop_assert_eq!(
        (part.ttl, part.tos, part.version),
        (whole.ttl, whole.tos, whole.version)
    );
    prop_assert_eq!(part.flags & !whole.flags, 0);
    if part.has(FLAG_PORTS) {
        prop_assert_eq!(
            (part.src_port, part.dst_port, part.seq),
            (whole.src_port, whole.dst_port, whole.seq)
        );
    } else {
        prop_assert_eq!((part.src_port, part.dst_port, part.seq), (0, 0, 0));
    }
    if part.has(FLAG_TRANSPORT) {
        prop_assert_eq!(
            (part.tcp_flags, part.ack, part.window),
            (whole.tcp_flags, whole.ack, whole.window)
        );
        prop_assert_eq!(
            (part.icmp_type, part.icmp_rest),
            (whole.icmp_type, whole.icmp_rest)
        );
    } else {
        prop_assert_eq!(
            (part.tcp_flags, part.ack, part.window, part.icmp_type),
            (0, 0, 0, 0)
        );
    }
    prop_assert!(part.tunnel == whole.tunnel || part.tunnel == Tunnel::None);
    Ok(())
}
