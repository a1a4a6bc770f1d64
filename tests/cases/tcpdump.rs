//! The filter language against tcpdump's own: random expressions on random packets, and a table of where the two differ
//! on purpose. tcpdump looks at a frame as it is; `tracer_common::filter` says how a flow is looked at.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Stdio;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use tracer::filter::compile;
use tracer::lab::mortal;
use tracer_common::filter::matches_either_direction;
use tracer_common::packet::{Frame, Packet, Start};

#[path = "../../tracer-common/tests/frames/mod.rs"]
#[allow(
    dead_code,
    clippy::cast_possible_truncation,
    reason = "the builder of frames belongs to the parser's tests, which use all of it"
)]
mod frames;

use frames::{Encap, Extension, Fragment, Ip, Spec, Transport, build, ports};

const EXPRESSIONS: usize = 150;
const PACKETS: usize = 200;

/// `src`, `dst`, or what tcpdump says for both.
#[derive(Clone, Copy, Debug)]
enum Direction {
    Src,
    Dst,
    Or,
    And,
}

/// One primitive, but for its direction.
#[derive(Clone, Debug)]
struct Primitive {
    protocol: &'static str,
    direction: Option<Direction>,
    /// The kind and the value, or nothing behind a protocol that stands alone.
    rest: String,
}

#[derive(Clone, Debug)]
enum Expression {
    Primitive(Primitive),
    Not(Box<Self>),
    /// `a and b or c`, which both languages read from left to right.
    Chain(Box<Self>, Vec<(&'static str, Self)>),
}

impl Expression {
    /// The expression as one types it.
    fn typed(&self) -> String {
        match self {
            Self::Primitive(Primitive {
                protocol,
                direction,
                rest,
            }) => {
                let direction = match direction {
                    None => "",
                    Some(Direction::Src) => "src",
                    Some(Direction::Dst) => "dst",
                    Some(Direction::Or) => "src or dst",
                    Some(Direction::And) => "src and dst",
                };
                let words = [*protocol, direction, rest];
                let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
                words.join(" ")
            }
            Self::Not(inner) => format!("not {}", inner.in_parentheses(Self::typed)),
            Self::Chain(first, others) => {
                let others = others
                    .iter()
                    .map(|(word, other)| format!(" {word} {}", other.in_parentheses(Self::typed)));
                first.in_parentheses(Self::typed) + &others.collect::<String>()
            }
        }
    }

    /// What tcpdump calls the same on each of a flow's two directions: `not X` holds for a flow if X holds for
    /// neither, while tcpdump looks at one packet.
    fn in_tcpdumps_words(&self) -> String {
        match self {
            Self::Primitive(_) => self.typed(),
            Self::Not(inner) => format!(
                "not ({} or {})",
                inner.in_parentheses(Self::in_tcpdumps_words),
                inner.turned().in_parentheses(Self::in_tcpdumps_words)
            ),
            Self::Chain(first, others) => {
                let others = others.iter().map(|(word, other)| {
                    format!(" {word} {}", other.in_parentheses(Self::in_tcpdumps_words))
                });
                first.in_parentheses(Self::in_tcpdumps_words) + &others.collect::<String>()
            }
        }
    }

    fn in_parentheses(&self, write: fn(&Self) -> String) -> String {
        match self {
            Self::Chain(..) => format!("({})", write(self)),
            _ => write(self),
        }
    }

    /// With source and destination exchanged.
    fn turned(&self) -> Self {
        match self {
            Self::Primitive(primitive) => Self::Primitive(Primitive {
                direction: primitive.direction.map(|direction| match direction {
                    Direction::Src => Direction::Dst,
                    Direction::Dst => Direction::Src,
                    both => both,
                }),
                ..primitive.clone()
            }),
            Self::Not(inner) => Self::Not(Box::new(inner.turned())),
            Self::Chain(first, others) => Self::Chain(
                Box::new(first.turned()),
                others
                    .iter()
                    .map(|(word, other)| (*word, other.turned()))
                    .collect(),
            ),
        }
    }
}

/// Few values, so that terms and packets often agree.
fn any_primitive() -> impl Strategy<Value = Primitive> {
    let direction = option::of(prop_oneof![
        Just(Direction::Src),
        Just(Direction::Dst),
        Just(Direction::Or),
        Just(Direction::And)
    ]);
    let alone = prop::sample::select(vec!["ip", "ip6", "tcp", "udp", "icmp", "icmp6"])
        .prop_map(|protocol| (protocol, String::new()));
    let host4 = (prop::sample::select(vec!["", "ip"]), 1..4)
        .prop_map(|(protocol, last)| (protocol, format!("host 10.0.0.{last}")));
    let host6 = (prop::sample::select(vec!["", "ip6"]), 1..4)
        .prop_map(|(protocol, last)| (protocol, format!("host fd00::{last}")));
    let net = prop::sample::select(vec![
        ("", "net 10.0.0.2/31"),
        ("ip", "net 10.0.0.0/8"),
        ("", "net 10.0.0.0 mask 255.255.255.254"),
        ("", "net 192.168.0.0/16"),
        ("", "net fd00::2/127"),
        ("ip6", "net fd00::/16"),
    ])
    .prop_map(|(protocol, net)| (protocol, net.to_owned()));
    let port = (prop::sample::select(vec!["", "tcp", "udp"]), 1..5)
        .prop_map(|(protocol, port)| (protocol, format!("port {port}")));
    let range = (prop::sample::select(vec!["", "tcp", "udp"]), 1..4, 1..3)
        .prop_map(|(protocol, low, more)| (protocol, format!("portrange {low}-{}", low + more)));
    prop_oneof![
        1 => alone.prop_map(|(protocol, rest)| (protocol, None, rest)),
        4 => (prop_oneof![host4, host6, net, port, range], direction)
            .prop_map(|((protocol, rest), direction)| (protocol, direction, rest)),
    ]
    .prop_map(|(protocol, direction, rest)| Primitive {
        protocol,
        direction,
        rest,
    })
}

fn any_expression() -> impl Strategy<Value = Expression> {
    let primitive = any_primitive().prop_map(Expression::Primitive);
    primitive.prop_recursive(3, 8, 3, |inner| {
        let word = prop::sample::select(vec!["and", "or", "&&", "||"]);
        prop_oneof![
            1 => inner.clone().prop_map(|inner| Expression::Not(Box::new(inner))),
            3 => (inner.clone(), vec((word, inner), 1..3))
                .prop_map(|(first, others)| Expression::Chain(Box::new(first), others)),
        ]
    })
}

fn any_address(version: u8) -> impl Strategy<Value = [u8; 16]> {
    (1_u8..5).prop_map(move |last| address(version, last))
}

fn address(version: u8, last: u8) -> [u8; 16] {
    let mut address = [0; 16];
    if version == 4 {
        address[..4].copy_from_slice(&[10, 0, 0, last]);
    } else {
        address[0] = 0xfd;
        address[15] = last;
    }
    address
}

fn any_transport(version: u8) -> impl Strategy<Value = Transport> {
    let echo = if version == 4 { [8, 0] } else { [128, 129] };
    let port = || 1_u16..6;
    prop_oneof![
        3 => (port(), port(), any::<u8>(), 0_u8..4).prop_map(|(src, dst, flags, options)| Transport::Tcp {
            src, dst, seq: 1, ack: 2, flags, window: 3, options,
        }),
        3 => (port(), port()).prop_map(|(src, dst)| Transport::Udp { src, dst }),
        1 => prop::sample::select(echo.to_vec()).prop_map(|kind| Transport::Icmp { kind, code: 0, rest: 9 }),
        1 => prop::sample::select(vec![47, 50, 89, 253]).prop_map(|protocol| Transport::Other { protocol }),
    ]
}

fn any_packet() -> impl Strategy<Value = Spec> {
    let of_version = |version| {
        let fragment = prop_oneof![
            4 => Just(Fragment::None),
            1 => Just(Fragment::First),
            1 => (1_u16..200).prop_map(Fragment::Later),
        ];
        let extensions = prop_oneof![
            2 => Just(Vec::new()),
            1 => Just(vec![Extension::Options(0, 0)]),
            1 => Just(vec![Extension::Options(60, 1), Extension::Authentication(1)]),
        ];
        (
            (any_address(version), any_address(version)),
            (fragment, 0_u8..3, extensions),
            any_transport(version),
            (vec(any::<u16>(), 0..=2), vec(any::<u8>(), 0..24)),
        )
            .prop_map(
                move |(
                    (src, dst),
                    (fragment, options, extensions),
                    transport,
                    (vlans, payload),
                )| {
                    let inner = Ip {
                        version,
                        src,
                        dst,
                        ttl: 64,
                        tos: 0,
                        id: 7,
                        dont_fragment: false,
                        fragment,
                        options,
                        extensions,
                    };
                    Spec {
                        vlans,
                        outer: Vec::new(),
                        inner,
                        transport,
                        payload,
                    }
                },
            )
    };
    prop_oneof![of_version(4), of_version(6)]
}

/// The packet as tcpdump must be given it to see what we see; see [`DIFFERENCES`].
fn without_what_tcpdump_does_not_read(spec: &Spec) -> Spec {
    let mut spec = spec.clone();
    spec.vlans.clear();
    spec.inner.extensions.clear();
    if spec.inner.version == 6 && spec.inner.fragment == Fragment::First {
        spec.inner.fragment = Fragment::None;
    }
    spec
}

/// The packet that goes the other way.
fn reversed(spec: &Spec) -> Spec {
    let mut spec = spec.clone();
    std::mem::swap(&mut spec.inner.src, &mut spec.inner.dst);
    if let Transport::Tcp { src, dst, .. } | Transport::Udp { src, dst } = &mut spec.transport {
        std::mem::swap(src, dst);
    }
    spec
}

/// A pcap file of Ethernet frames, the numbers of which are their times in seconds.
fn pcap(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (number, frame) in (0_u32..).zip(frames) {
        let len = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        for word in [number, 0, len, len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

/// The numbers of the frames that tcpdump selects.
fn selected_by_tcpdump(file: &[u8], expression: &str) -> Result<BTreeSet<usize>> {
    let mut tcpdump = mortal("tcpdump")
        .args(["-n", "-Z", "root", "-r", "-", "-w", "-", expression])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("starting tcpdump, which `cargo xtask setup` installs")?;
    let mut stdin = tcpdump.stdin.take().context("no pipe to tcpdump")?;
    let output = thread::scope(|scope| {
        scope.spawn(move || {
            // It reads nothing of a file whose filter it refuses.
            let _ = stdin.write_all(file);
        });
        tcpdump.wait_with_output()
    })?;
    let said = String::from_utf8_lossy(&output.stderr);
    // What can never hold is an error to libpcap.
    if said.contains("expression rejects all packets") {
        return Ok(BTreeSet::new());
    }
    if !output.status.success() {
        bail!("tcpdump refuses {expression:?}: {said}");
    }
    let word = |at: usize| {
        let bytes = output.stdout.get(at..)?.first_chunk()?;
        usize::try_from(u32::from_le_bytes(*bytes)).ok()
    };
    let mut at = 24;
    let mut selected = BTreeSet::new();
    while let (Some(number), Some(len)) = (word(at), word(at + 8)) {
        selected.insert(number);
        at += 16 + len;
    }
    Ok(selected)
}

fn selected_by_us(frame: &[u8], expression: &str) -> Result<bool> {
    let program = compile(expression)?;
    let packet = parse(frame);
    Ok(matches_either_direction(&program, &packet))
}

fn parse(frame: &[u8]) -> Packet {
    let whole = Frame {
        start: Start::Ethernet,
        len_bytes: u32::try_from(frame.len()).unwrap_or(u32::MAX),
    };
    Packet::parse(frame, whole, &ports())
}

#[test]
fn tcpdump_selects_the_same_flows() -> Result<()> {
    let mut runner = TestRunner::deterministic();
    let mut packets = Vec::new();
    for _ in 0..PACKETS {
        let tree = any_packet().new_tree(&mut runner);
        packets.push(tree.map_err(anyhow::Error::msg)?.current());
    }
    let parsed: Vec<Packet> = packets
        .iter()
        .map(|packet| parse(&build(packet).bytes))
        .collect();
    // Each packet and its reverse, one after the other.
    let frames: Vec<Vec<u8>> = packets
        .iter()
        .map(without_what_tcpdump_does_not_read)
        .flat_map(|packet| [build(&packet).bytes, build(&reversed(&packet)).bytes])
        .collect();
    let file = pcap(&frames);

    let (mut compared, mut selected) = (0, 0);
    for _ in 0..EXPRESSIONS {
        let tree = any_expression().new_tree(&mut runner);
        let expression = tree.map_err(anyhow::Error::msg)?.current();
        let typed = expression.typed();
        // Too large an expression is refused, which other tests look at.
        let Ok(program) = compile(&typed) else {
            continue;
        };
        let words = expression.in_tcpdumps_words();
        let theirs = selected_by_tcpdump(&file, &words)?;
        for (number, packet) in parsed.iter().enumerate() {
            let ours = matches_either_direction(&program, packet);
            let theirs = theirs.contains(&(2 * number)) || theirs.contains(&(2 * number + 1));
            ensure!(
                ours == theirs,
                "{typed:?} {} {:?}, unlike {words:?} of tcpdump",
                if ours { "selects" } else { "does not select" },
                packets[number]
            );
            selected += usize::from(ours);
        }
        compared += 1;
    }
    ensure!(compared * 10 >= EXPRESSIONS * 9, "only {compared} compared");
    // Else the agreement would say little.
    let all = compared * PACKETS;
    ensure!(
        selected * 5 > all && selected * 5 < all * 4,
        "{selected} of {all} selected"
    );
    Ok(())
}

/// Where an expression means something else than to tcpdump, and why.
struct Difference {
    why: &'static str,
    frame: fn() -> Vec<u8>,
    expression: &'static str,
    ours: bool,
    theirs: bool,
}

fn ip(version: u8) -> Ip {
    Ip {
        version,
        src: address(version, 1),
        dst: address(version, 2),
        ..frames::ipv4([10, 0, 0, 1], [10, 0, 0, 2])
    }
}

fn frame_of(inner: Ip, transport: Transport) -> Spec {
    Spec {
        vlans: Vec::new(),
        outer: Vec::new(),
        inner,
        transport,
        payload: vec![0; 8],
    }
}

fn datagram(version: u8) -> Spec {
    frame_of(ip(version), Transport::Udp { src: 3, dst: 4 })
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        why: "a filter selects flows, so the answer as well",
        frame: || build(&datagram(4)).bytes,
        expression: "src host 10.0.0.2",
        ours: true,
        theirs: false,
    },
    Difference {
        why: "and hides them in both directions",
        frame: || build(&datagram(4)).bytes,
        expression: "not src host 10.0.0.2",
        ours: false,
        theirs: true,
    },
    Difference {
        why: "the tag of a VLAN hides nothing; tcpdump wants the word vlan",
        frame: || {
            let spec = Spec {
                vlans: vec![5],
                ..datagram(4)
            };
            build(&spec).bytes
        },
        expression: "host 10.0.0.2 and port 4",
        ours: true,
        theirs: false,
    },
    Difference {
        why: "nor does an extension header of IPv6",
        frame: || {
            let inner = Ip {
                extensions: vec![Extension::Options(0, 0)],
                ..ip(6)
            };
            build(&Spec {
                inner,
                ..datagram(6)
            })
            .bytes
        },
        expression: "udp port 4",
        ours: true,
        theirs: false,
    },
    Difference {
        why: "the first fragment has ports, in IPv6 as well",
        frame: || {
            let inner = Ip {
                fragment: Fragment::First,
                ..ip(6)
            };
            build(&Spec {
                inner,
                ..datagram(6)
            })
            .bytes
        },
        expression: "udp port 4",
        ours: true,
        theirs: false,
    },
    Difference {
        why: "a packet in a tunnel is matched by its own addresses",
        frame: || {
            let outer = frames::ipv4([192, 168, 0, 1], [192, 168, 0, 2]);
            let spec = Spec {
                outer: vec![(outer, 9, Encap::Vxlan { vni: 7 })],
                ..datagram(4)
            };
            build(&spec).bytes
        },
        expression: "host 10.0.0.2",
        ours: true,
        theirs: false,
    },
    Difference {
        why: "an ICMP error belongs to the flow that it quotes",
        frame: || {
            let mut quoted = build(&datagram(4)).bytes;
            quoted.drain(..14);
            let error = Transport::Icmp {
                kind: 3,
                code: 1,
                rest: 0,
            };
            let router = frames::ipv4([192, 168, 0, 1], [10, 0, 0, 1]);
            let spec = Spec {
                payload: quoted,
                ..frame_of(router, error)
            };
            build(&spec).bytes
        },
        expression: "udp port 4",
        ours: true,
        theirs: false,
    },
    Difference {
        why: "only TCP and UDP are looked at for ports, not SCTP",
        frame: || {
            let spec = Spec {
                payload: vec![0, 3, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0],
                ..frame_of(ip(4), Transport::Other { protocol: 132 })
            };
            build(&spec).bytes
        },
        expression: "port 4",
        ours: false,
        theirs: true,
    },
    Difference {
        why: "only IP packets are looked at, not ARP",
        frame: || {
            let mut frame = frames::ethernet(&[], 0x0806);
            frame.extend([0, 1, 8, 0, 6, 4, 0, 1]);
            frame.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
            frame.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
            frame
        },
        expression: "host 10.0.0.2",
        ours: false,
        theirs: true,
    },
];

#[test]
fn where_tcpdump_differs_it_is_on_purpose() -> Result<()> {
    for Difference {
        why,
        frame,
        expression,
        ours,
        theirs,
    } in DIFFERENCES
    {
        let frame = frame();
        let file = pcap(std::slice::from_ref(&frame));
        let found = (
            selected_by_us(&frame, expression)?,
            !selected_by_tcpdump(&file, expression)?.is_empty(),
        );
        ensure!(
            found == (*ours, *theirs),
            "{expression:?}, {why}: ours and tcpdump's are {found:?}"
        );
    }
    Ok(())
}
