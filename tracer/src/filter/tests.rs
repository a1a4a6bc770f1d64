//! The language, and the compiled program against the expression that it was compiled from.

use std::net::IpAddr;

use proptest::prelude::*;
use tracer_common::filter::{CLAUSES_MAX, End, Subject, TERMS_MAX, Term, matches_either_direction};
use tracer_common::packet::{FLAG_PORTS, IpProto, Layer, Packet, Tunnel};

use super::expr::{self, Expr, Network};
use super::{compile, compile::compile as compile_expr, parse::parse};

/// An expression in one notation: fully parenthesised, `=` and `!=` for the term that is compared.
fn show(expr: &Expr) -> String {
    match expr {
        Expr::Term(term) => show_term(term),
        Expr::And(left, right) => format!("({} and {})", show(left), show(right)),
        Expr::Or(left, right) => format!("({} or {})", show(left), show(right)),
        Expr::Not(inner) => format!("not {}", show(inner)),
    }
}

fn show_term(term: &Term) -> String {
    let end = match term.end {
        End::Either => "",
        End::Source => "src ",
        End::Destination => "dst ",
    };
    let not = if term.negated { "not " } else { "" };
    let body = match term.subject {
        Subject::Version => format!("ip{}", term.low),
        Subject::Protocol => format!("proto{}", term.low),
        Subject::Vni => format!("vni {}", term.low),
        Subject::Port if term.low == term.high => format!("{end}port {}", term.low),
        Subject::Port => format!("{end}port {}-{}", term.low, term.high),
        Subject::Address => {
            let layer = Layer {
                version: term.low as u8,
                src: term.address,
                ..Layer::EMPTY
            };
            let ones: u32 = term.mask.iter().map(|byte| byte.count_ones()).sum();
            format!("{end}{}/{ones}", layer.src_addr())
        }
    };
    format!("{not}{body}")
}

#[track_caller]
fn check(input: &str, expect: &str) {
    match parse(input) {
        Ok(expr) => assert_eq!(expr.as_ref().map(show).unwrap_or_default(), expect),
        Err(error) => panic!("{error}"),
    }
}

/// Checks the whole message, without its first line's `filter: `.
#[track_caller]
fn check_error(input: &str, expect: &str) {
    let error = compile(input).expect_err("an expression that is wrong");
    assert_eq!(
        error
            .to_string()
            .strip_prefix("filter: ")
            .unwrap_or_default(),
        expect
    );
}

/// Checks the program, one line a clause.
#[track_caller]
fn check_program(input: &str, expect: &[&str]) {
    let program = compile(input).expect("an expression that is right");
    let clauses: Vec<String> = program.clauses[..program.len as usize]
        .iter()
        .map(|clause| {
            let terms = &clause.terms[..clause.len as usize];
            terms.iter().map(show_term).collect::<Vec<_>>().join(", ")
        })
        .collect();
    assert_eq!(clauses, expect);
}

#[test]
fn nothing_is_every_packet() {
    for input in ["", "  \t "] {
        assert!(compile(input).expect("nothing").matches_all());
    }
}

#[test]
fn protocols() {
    check("tcp", "proto6");
    check("udp or icmp or icmp6", "((proto17 or proto1) or proto58)");
    check("ip6 and not ip", "(ip6 and not ip4)");
}

#[test]
fn hosts_and_nets() {
    check("host 10.244.190.4", "10.244.190.4/32");
    check("10.244.190.4", "10.244.190.4/32");
    check("host fd00::4", "fd00::4/128");
    check("src 10.0.0.1", "src 10.0.0.1/32");
    check("dst host ::1", "dst ::1/128");
    check("net 10.0.0.0/8", "10.0.0.0/8");
    check("10.0.0.0/8", "10.0.0.0/8");
    check("src net 10", "src 10.0.0.0/8");
    check("net 172.16 mask 255.240.0.0", "172.16.0.0/12");
    check("net 192.168", "192.168.0.0/16");
    check("net 192.168.1.1", "192.168.1.1/32");
    check("net fd00::/8 or 0.0.0.0/0", "(fd00::/8 or 0.0.0.0/0)");
    check("ip6 host fd00::4", "(ip6 and fd00::4/128)");
    check("ip host 10.0.0.1", "(ip4 and 10.0.0.1/32)");
}

#[test]
fn ports_and_vnis() {
    check("port 80", "port 80");
    check("tcp port 80", "(proto6 and port 80)");
    check("udp dst port 53", "(proto17 and dst port 53)");
    check("portrange 8000-8080", "port 8000-8080");
    check("src portrange 1-1", "src port 1");
    check("vni 813", "vni 813");
    check("vni 0xffffff", "vni 16777215");
}

#[test]
fn directions() {
    check("src or dst host 10.0.0.1", "10.0.0.1/32");
    check("dst or src port 80", "port 80");
    check("src and dst port 53", "(src port 53 and dst port 53)");
    check(
        "src 10.0.0.1 or dst 10.0.0.2",
        "(src 10.0.0.1/32 or dst 10.0.0.2/32)",
    );
    check(
        "tcp src and dst net 10",
        "(proto6 and (src 10.0.0.0/8 and dst 10.0.0.0/8))",
    );
}

#[test]
fn and_binds_no_tighter_than_or() {
    check(
        "tcp or udp and port 53",
        "((proto6 or proto17) and port 53)",
    );
    check(
        "tcp or (udp and port 53)",
        "(proto6 or (proto17 and port 53))",
    );
    check("not tcp and udp", "(not proto6 and proto17)");
    check(
        "tcp && !(port 22 || port 23)",
        "(proto6 and not (port 22 or port 23))",
    );
    check("!tcp&&udp", "(not proto6 and proto17)");
    check("not not tcp", "not not proto6");
}

#[test]
fn a_value_takes_the_qualifiers_before_it() {
    check("port 80 or 443", "(port 80 or port 443)");
    check(
        "tcp dst port 80 or 443",
        "((proto6 and dst port 80) or (proto6 and dst port 443))",
    );
    check("not port 80 and 443", "(not port 80 and port 443)");
    check(
        "src host 10.0.0.1 or 10.0.0.2",
        "(src 10.0.0.1/32 or src 10.0.0.2/32)",
    );
    check(
        "src 10.0.0.1 or 10.0.0.2",
        "(src 10.0.0.1/32 or src 10.0.0.2/32)",
    );
    check("10.0.0.1 and 10.0.0.2", "(10.0.0.1/32 and 10.0.0.2/32)");
    check(
        "port (80 or 443) and host 10.0.0.1",
        "((port 80 or port 443) and 10.0.0.1/32)",
    );
    check(
        "host (10.0.0.1 or 10.0.0.2)",
        "(10.0.0.1/32 or 10.0.0.2/32)",
    );
    check("vni 813 or 53256", "(vni 813 or vni 53256)");
    check("net 10 or 192.168", "(10.0.0.0/8 or 192.168.0.0/16)");
    check(
        "port 6379 and 10.244.190.4",
        "(port 6379 and 10.244.190.4/32)",
    );
    check("portrange 1-2 or 5-6", "(port 1-2 or port 5-6)");
}

#[test]
fn an_unknown_word_is_shown_with_the_nearest_one() {
    check_error(
        "host 1.2.3.4 and prot 80",
        "unknown word `prot`\n  host 1.2.3.4 and prot 80\n                   ^^^^ did you mean `port`?",
    );
    check_error(
        "HOST 1.2.3.4",
        "unknown word `HOST`\n  HOST 1.2.3.4\n  ^^^^ did you mean `host`?",
    );
    check_error(
        "redis",
        "unknown word `redis`\n  redis\n  ^^^^^ a name is not looked up: give its address",
    );
}

#[test]
fn names_are_not_looked_up() {
    check_error(
        "host redis.default",
        "`redis.default` is no IP address, and names are not looked up\n  host redis.default\n       \
         ^^^^^^^^^^^^^ DNS may be what is broken: give the address",
    );
    check_error(
        "tcp port http",
        "`http` is no port number, and names of services are not looked up\n  tcp port http\n           ^^^^",
    );
    check_error(
        "net home",
        "`home` is no network address, and names are not looked up\n  net home\n      ^^^^",
    );
}

#[test]
fn what_is_missing_is_named() {
    check_error(
        "host",
        "the expression ends where an IPv4 or IPv6 address is expected\n  host\n      ^",
    );
    check_error(
        "tcp and",
        "a condition is missing at the end\n  tcp and\n         ^",
    );
    check_error(
        "and tcp",
        "a condition is missing before `and`\n  and tcp\n  ^^^",
    );
    check_error(
        "tcp or ) udp",
        "a condition is missing before `)`\n  tcp or ) udp\n         ^",
    );
    check_error(
        "(tcp or udp",
        "this `(` is never closed\n  (tcp or udp\n  ^",
    );
    check_error(
        "tcp) or udp",
        "there is no `(` for this `)`\n  tcp) or udp\n     ^",
    );
    check_error(
        "tcp udp",
        "`and` or `or` is missing before `udp`\n  tcp udp\n      ^^^",
    );
    check_error(
        "host 10.0.0.1 port 80",
        "`and` or `or` is missing before `port`\n  host 10.0.0.1 port 80\n                ^^^^",
    );
    check_error(
        "(tcp udp)",
        "`and`, `or` or `)` is missing before `udp`\n  (tcp udp)\n       ^^^",
    );
    check_error(
        "src and tcp",
        "expected an address, or `host`, `net`, `port` or `portrange` before `and`\n  src and tcp\n      ^^^",
    );
    check_error(
        "host port 80",
        "expected an IPv4 or IPv6 address before `port`\n  host port 80\n       ^^^^",
    );
}

#[test]
fn values_are_checked() {
    check_error(
        "port 65536",
        "port 65536 is beyond 65535\n  port 65536\n       ^^^^^",
    );
    check_error(
        "port 80-90",
        "`port` takes a single port\n  port 80-90\n       ^^^^^ did you mean `portrange 80-90`?",
    );
    check_error(
        "portrange 90-80",
        "the range ends before it begins\n  portrange 90-80\n            ^^^^^ did you mean `80-90`?",
    );
    check_error(
        "vni 16777216",
        "`16777216` is no VNI: 0 to 16777215\n  vni 16777216\n      ^^^^^^^^",
    );
    check_error(
        "vni 0x+1",
        "`0x+1` is no VNI: 0 to 16777215\n  vni 0x+1\n      ^^^^",
    );
    check_error(
        "net 10.1.2.3/8",
        "10.1.2.3 has bits outside of a network of length 8\n  net 10.1.2.3/8\n      ^^^^^^^^^^ did you mean `net 10.0.0.0/8`?",
    );
    check_error(
        "net 10.0.0.0/33",
        "the length of this network is 0 to 32\n  net 10.0.0.0/33\n      ^^^^^^^^^^^",
    );
    check_error(
        "net 10 mask 255.0.255.0",
        "`255.0.255.0` is no IPv4 network mask, like 255.255.0.0\n  net 10 mask 255.0.255.0\n              ^^^^^^^^^^^",
    );
    check_error(
        "host 10.0.0.0/8",
        "`host` takes a single address\n  host 10.0.0.0/8\n       ^^^^^^^^^^ did you mean `net 10.0.0.0/8`?",
    );
    check_error(
        "tcp or 80",
        "`80` alone says nothing\n  tcp or 80\n         ^^ did you mean `port 80`?",
    );
    check_error(
        "ip host ::1",
        "such a packet has no address of this IP version\n  ip host ::1\n          ^^^",
    );
    check_error(
        "icmp port 80",
        "ICMP has no ports\n  icmp port 80\n  ^^^^^^^^^",
    );
    check_error(
        "src vni 5",
        "a VNI has no direction\n  src vni 5\n  ^^^^^^^",
    );
}

#[test]
fn what_only_tcpdump_has_is_named() {
    check_error(
        "tcp and vlan 5",
        "tcpdump's `vlan` is no condition here\n  tcp and vlan 5\n          ^^^^",
    );
    check_error(
        "geneve",
        "`geneve` is no condition here\n  geneve\n  ^^^^^^ use `vni N`",
    );
    check_error(
        "tcp[tcpflags] == 2",
        "a filter selects flows and cannot look into single packets\n  tcp[tcpflags] == 2\n  ^^^^^^^^^^^^^",
    );
}

#[test]
fn hostile_expressions_are_shown_harmless() {
    check_error(
        "host \u{1b}[2J",
        "`\\u{1b}[2J` is no IP address, and names are not looked up\n  host \\u{1b}[2J\n       ^^^^^^^^^ DNS may be what is broken: give the address",
    );
    let deep = "(".repeat(100_000) + "tcp";
    assert_eq!(
        compile(&deep).expect_err("too deep").message,
        "nested more than 32 deep"
    );
    let deep = "not ".repeat(100_000) + "tcp";
    assert_eq!(
        compile(&deep).expect_err("too deep").message,
        "nested more than 32 deep"
    );
    let long = |count| vec!["tcp"; count].join(" or ");
    check_program(&long(256), &["proto6"]);
    let message = compile(&long(100_000)).expect_err("too long").message;
    assert_eq!(message, "too large: more than 256 conditions");
}

#[test]
fn programs_are_alternatives_of_conjunctions() {
    check_program(
        "tcp port 80 or 443",
        &["proto6, port 80", "proto6, port 443"],
    );
    check_program(
        "(host 10.0.0.1 or host 10.0.0.2) and (port 80 or port 443)",
        &[
            "10.0.0.1/32, port 80",
            "10.0.0.1/32, port 443",
            "10.0.0.2/32, port 80",
            "10.0.0.2/32, port 443",
        ],
    );
    check_program("not (tcp and port 22)", &["not proto6", "not port 22"]);
    check_program("not (tcp or port 22)", &["not proto6, not port 22"]);
    check_program("tcp or tcp and port 22 or tcp", &["proto6"]);
}

#[test]
fn a_negation_excludes_both_directions() {
    check_program(
        "not src host 10.0.0.1",
        &["not src 10.0.0.1/32, not dst 10.0.0.1/32"],
    );
    check_program("not host 10.0.0.1", &["not 10.0.0.1/32"]);
    check_program("not not src port 80", &["src port 80", "dst port 80"]);
}

#[test]
fn a_filter_that_is_too_large_says_so() {
    let ports = |count: u16| {
        (1..=count)
            .map(|port| format!("port {}", port * 2))
            .collect::<Vec<_>>()
    };
    assert!(compile(&ports(CLAUSES_MAX as u16).join(" or ")).is_ok());
    assert!(compile(&ports(TERMS_MAX as u16).join(" and ")).is_ok());
    let message = |expression: &str| compile(expression).expect_err("too large").message;
    assert_eq!(
        message(&ports(17).join(" or ")),
        "too large: it has 17 alternatives when written out, and 16 are possible"
    );
    assert_eq!(
        message(&ports(13).join(" and ")),
        "too large: more than 12 conditions must hold together"
    );
    let conjunctions: Vec<String> = (1..40)
        .map(|port| format!("(port {port} or host 10.0.0.{port})"))
        .collect();
    assert_eq!(
        message(&conjunctions[..20].join(" and ")),
        "too large: it has hundreds of alternatives when written out, and 16 are possible"
    );
}

/// What a term means on one header, said independently of the program.
fn term_on(term: &Term, layer: &Layer, turned: bool) -> bool {
    let ends = match (term.end, turned) {
        (End::Either, _) => [true, true],
        (End::Source, false) | (End::Destination, true) => [true, false],
        (End::Destination, false) | (End::Source, true) => [false, true],
    };
    let either = |source: bool, destination: bool| ends[0] && source || ends[1] && destination;
    match term.subject {
        Subject::Version => u32::from(layer.version) == term.low,
        Subject::Protocol => u32::from(layer.protocol) == term.low,
        Subject::Port => {
            let inside = |port: u16| (term.low..=term.high).contains(&u32::from(port));
            layer.has(FLAG_PORTS) && either(inside(layer.src_port), inside(layer.dst_port))
        }
        Subject::Address => {
            let inside = |address: [u8; 16]| {
                let bits = |bytes: [u8; 16]| u128::from_be_bytes(bytes);
                bits(address) & bits(term.mask) == bits(term.address)
            };
            u32::from(layer.version) == term.low && either(inside(layer.src), inside(layer.dst))
        }
        Subject::Vni => unreachable!("a VNI is on no header"),
    }
}

fn vni_on(term: &Term, packet: &Packet) -> bool {
    packet.layers().iter().any(|layer| {
        matches!(layer.tunnel, Tunnel::Vxlan | Tunnel::Geneve) && layer.vni == term.low
    })
}

/// Whether an expression holds, its positive terms on `layer` and its negated ones on the flow's header.
fn holds(expr: &Expr, packet: &Packet, layer: Option<&Layer>, turned: bool) -> bool {
    match expr {
        Expr::Term(term) if term.subject == Subject::Vni => vni_on(term, packet),
        Expr::Term(term) => layer.is_some_and(|layer| term_on(term, layer, turned)),
        Expr::And(a, b) => holds(a, packet, layer, turned) && holds(b, packet, layer, turned),
        Expr::Or(a, b) => holds(a, packet, layer, turned) || holds(b, packet, layer, turned),
        Expr::Not(a) => fails(a, packet, layer, turned) && fails(a, packet, layer, !turned),
    }
}

fn fails(expr: &Expr, packet: &Packet, layer: Option<&Layer>, turned: bool) -> bool {
    match expr {
        Expr::Term(term) if term.subject == Subject::Vni => !vni_on(term, packet),
        Expr::Term(term) => !packet
            .flow()
            .is_some_and(|layer| term_on(term, layer, turned)),
        Expr::And(a, b) => fails(a, packet, layer, turned) || fails(b, packet, layer, turned),
        Expr::Or(a, b) => fails(a, packet, layer, turned) && fails(b, packet, layer, turned),
        Expr::Not(a) => holds(a, packet, layer, turned) || holds(a, packet, layer, !turned),
    }
}

/// What the documentation of the filter promises.
fn selects(expr: &Expr, packet: &Packet) -> bool {
    let headers = packet
        .layers()
        .iter()
        .chain(packet.quoted())
        .map(Some)
        .chain([None]);
    headers.into_iter().any(|layer| {
        [false, true]
            .iter()
            .any(|turned| holds(expr, packet, layer, *turned))
    })
}

/// Few values, so that terms and headers often agree.
fn any_address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        (1_u8..4).prop_map(|last| IpAddr::from([10, 0, 0, last])),
        (1_u8..3).prop_map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(last)])),
    ]
}

fn any_expr() -> impl Strategy<Value = Expr> {
    let end = || prop_oneof![Just(End::Either), Just(End::Source), Just(End::Destination)];
    let term = prop_oneof![
        prop_oneof![Just(4), Just(6)].prop_map(expr::version),
        prop_oneof![Just(6), Just(17)].prop_map(expr::protocol),
        (
            any_address(),
            prop_oneof![Just(32_u8), Just(31), Just(8)],
            end()
        )
            .prop_map(|(address, len, end)| {
                let len = if address.is_ipv4() { len } else { len + 96 };
                expr::network(Network::containing(address, len), end)
            }),
        (1_u16..4, 0_u16..3, end()).prop_map(|(low, more, end)| expr::ports(low, low + more, end)),
        (1_u32..3).prop_map(expr::vni),
    ];
    term.prop_recursive(4, 12, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| a.and(b)),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| a.or(b)),
            inner.prop_map(Expr::negate),
        ]
    })
}

fn any_layer() -> impl Strategy<Value = Layer> {
    let bytes = |address: IpAddr| match address {
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
        IpAddr::V6(address) => address.octets(),
    };
    let tunnel = prop_oneof![
        Just(Tunnel::None),
        Just(Tunnel::Vxlan),
        Just(Tunnel::Geneve),
        Just(Tunnel::IpInIp)
    ];
    let protocol = prop_oneof![Just(IpProto::Tcp), Just(IpProto::Udp), Just(IpProto::Icmp)];
    (
        (any_address(), any_address()),
        (1_u16..6, 1_u16..6),
        protocol,
        any::<bool>(),
        (tunnel, 0_u32..4),
    )
        .prop_map(
            move |((src, dst), (src_port, dst_port), protocol, ports, (tunnel, vni))| Layer {
                version: if src.is_ipv4() { 4 } else { 6 },
                src: bytes(src),
                dst: bytes(dst),
                src_port,
                dst_port,
                protocol: protocol as u8,
                flags: if ports { FLAG_PORTS } else { 0 },
                tunnel,
                vni,
                ..Layer::EMPTY
            },
        )
}

prop_compose! {
    fn any_packet()(
        layers in [any_layer(), any_layer(), any_layer()],
        quoted in any_layer(),
        count in 0_u8..=3,
        has_quoted in prop_oneof![3 => Just(false), 1 => Just(true)],
    ) -> Packet {
        let mut packet = Packet::EMPTY;
        packet.layers = layers;
        packet.quoted = quoted;
        packet.count = count;
        packet.has_quoted = has_quoted && count > 0;
        packet
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_program_says_what_the_expression_says(expr in any_expr(), packets in prop::collection::vec(any_packet(), 4)) {
        let Ok(program) = compile_expr(&expr) else {
            // Too large is an answer too; that small ones are not refused is held by the tests above.
            return Ok(());
        };
        for packet in &packets {
            prop_assert_eq!(matches_either_direction(&program, packet), selects(&expr, packet), "{}", show(&expr));
        }
    }

    #[test]
    fn both_directions_of_a_flow_are_selected_alike(expr in any_expr(), packet in any_packet()) {
        let Ok(program) = compile_expr(&expr) else {
            return Ok(());
        };
        let mut reply = packet;
        for layer in reply.layers.iter_mut().chain([&mut reply.quoted]) {
            std::mem::swap(&mut layer.src, &mut layer.dst);
            std::mem::swap(&mut layer.src_port, &mut layer.dst_port);
        }
        prop_assert_eq!(matches_either_direction(&program, &packet), matches_either_direction(&program, &reply));
    }

    #[test]
    fn no_expression_panics(input in "(host|net|port|src|dst|or|and|not|!|\\(|\\)|tcp|10\\.0\\.0\\.1|fd00::1|/8|-|80|vni|mask|é|\\[| ){0,24}") {
        if let Err(error) = compile(&input) {
            let text = error.to_string();
            prop_assert!(input.get(error.span.clone()).is_some());
            prop_assert_eq!(text.lines().count(), 3, "{}", text);
        }
    }

    #[test]
    fn no_text_panics(input in "\\PC{0,40}") {
        let _ = compile(&input).map_err(|error| error.to_string());
    }
}
