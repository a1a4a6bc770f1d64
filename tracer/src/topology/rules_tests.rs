//! What rules say about packets.

use proptest::prelude::*;

use super::*;
use crate::topology::routes::Metrics;

/// A rule as Linux 6.18 dumps it: `struct fib_rule_hdr`, then attributes of four bytes each.
fn rule(action: u8, table: u8, priority: u32, more: &[(u16, u32)]) -> Rule {
    bytes_of_rule(action, table, priority, more, [0, 0])
}

fn bytes_of_rule(
    action: u8,
    table: u8,
    priority: u32,
    more: &[(u16, u32)],
    [dst_len, src_len]: [u8; 2],
) -> Rule {
    let mut payload = vec![2, dst_len, src_len, 0, table, 0, 0, action, 0, 0, 0, 0];
    let unset = [
        (kind::SUPPRESS_PREFIXLEN, u32::MAX),
        (kind::PRIORITY, priority),
    ];
    for (kind, value) in unset.iter().chain(more) {
        payload.extend([8, 0]);
        payload.extend(kind.to_ne_bytes());
        payload.extend(value.to_ne_bytes());
    }
    parse(Message {
        kind: libc::RTM_NEWRULE,
        payload: &payload,
    })
    .expect("a rule")
}

/// The rules that every namespace has.
fn defaults() -> [Rule; 3] {
    [
        rule(1, 255, 0, &[]),
        rule(1, 254, 32_766, &[]),
        rule(1, 253, 32_767, &[]),
    ]
}

fn packet() -> Packet<'static> {
    Packet {
        src: [10, 1, 0, 7].into(),
        src_unasked: false,
        dst: [10, 9, 0, 5].into(),
        iif: "eth0",
        oif: None,
        mark: 0,
        protocol: 6,
        src_port: 40_000,
        dst_port: 80,
    }
}

fn from_10_1() -> (u16, u32) {
    (kind::SRC, u32::from_ne_bytes([10, 1, 0, 0]))
}

fn blackhole(addr: [u8; 4], len: u8, table: u32) -> Entry {
    Entry {
        kind: RouteKind::Blackhole,
        dst: Prefix {
            addr: addr.into(),
            len,
        },
        src: None,
        table,
        hops: Vec::new(),
        metrics: Metrics::default(),
        expires_s: None,
    }
}

/// A decision, with the rule by its priority.
type Decided = (Option<Prefix>, Option<u32>, Option<u32>, bool);

fn rejecting_of(rules: &[Rule], routes: &[Entry]) -> Option<Decided> {
    let decision = rejecting(rules, routes, RouteKind::Blackhole, &packet())?;
    let rule = decision.rule.map(Rule::priority);
    Some((decision.prefix, decision.table, rule, decision.by_rule))
}

#[test]
fn a_single_route_that_rejects_is_the_one() {
    let routes = [
        blackhole([10, 0, 0, 0], 8, 254),
        blackhole([10, 9, 0, 0], 24, 254),
        blackhole([10, 8, 0, 0], 24, 254),
        blackhole([10, 9, 0, 0], 24, 100),
    ];
    assert_eq!(
        rejecting_of(&defaults(), &routes),
        Some((Some(routes[1].dst), Some(254), Some(32_766), false))
    );
    assert_eq!(rejecting_of(&defaults(), &routes[2..]), None);
}

#[test]
fn of_several_tables_none_is_claimed() {
    let routes = [
        blackhole([10, 9, 0, 0], 24, 254),
        blackhole([10, 9, 0, 0], 24, 253),
    ];
    assert_eq!(
        rejecting_of(&defaults(), &routes),
        Some((None, None, None, false))
    );
}

#[test]
fn a_rule_for_other_packets_leads_nowhere() {
    let routes = [blackhole([10, 9, 0, 0], 24, 100)];
    let with = |more: &[(u16, u32)], lens| {
        let rules = [
            vec![bytes_of_rule(1, 100, 77, more, lens)],
            defaults().to_vec(),
        ]
        .concat();
        rejecting_of(&rules, &routes)
    };
    let found = |rule| Some((Some(routes[0].dst), Some(100), rule, false));
    assert_eq!(with(&[from_10_1()], [0, 16]), found(Some(77)));
    assert_eq!(with(&[from_10_1()], [0, 32]), None);
    // fwmark 1/1, and 0/1, which is what the packet has.
    assert_eq!(with(&[(kind::FWMARK, 1), (kind::FWMASK, 1)], [0, 0]), None);
    assert_eq!(
        with(&[(kind::FWMARK, 0), (kind::FWMASK, 1)], [0, 0]),
        found(Some(77))
    );
    // Something newer than this program: it may lead there, and that it did is not claimed.
    assert_eq!(with(&[(99, 1)], [0, 0]), found(None));
}

#[test]
fn a_rule_may_reject_by_itself() {
    let rules = [vec![rule(6, 0, 50, &[])], defaults().to_vec()].concat();
    assert_eq!(
        rejecting_of(&rules, &[]),
        Some((None, None, Some(50), true))
    );
}

#[test]
fn the_first_rule_for_a_table_led_there_unless_its_finding_did_not_count() {
    let found = Prefix {
        addr: [0, 0, 0, 0].into(),
        len: 0,
    };
    let lead = |rules: &[Rule]| leading_to(rules, &packet(), found, 254).map(Rule::priority);
    let suppressing = rule(1, 254, 10, &[(kind::SUPPRESS_PREFIXLEN, 0)]);
    let rules = [vec![suppressing], defaults().to_vec()].concat();
    assert_eq!(lead(&rules), Some(32_766));
    let twice = [vec![rule(1, 254, 10, &[])], defaults().to_vec()].concat();
    assert_eq!(lead(&twice), Some(10));
    // FR_ACT_GOTO
    let jumping = [vec![rule(2, 0, 10, &[])], defaults().to_vec()].concat();
    assert_eq!(lead(&jumping), None);
    assert!(are_uncertain(&jumping, &packet()));
    assert!(!are_uncertain(&defaults(), &packet()));
}

#[test]
fn a_route_in_a_table_to_which_no_rule_leads_is_unreached() {
    let unicast = |addr, len, table| Entry {
        kind: RouteKind::Unicast,
        ..blackhole(addr, len, table)
    };
    let routes = [
        unicast([10, 9, 0, 0], 16, 52),
        unicast([10, 9, 0, 0], 24, 52),
        unicast([10, 8, 0, 0], 24, 52),
        unicast([10, 9, 0, 5], 32, 254),
    ];
    let by_mark = rule(1, 52, 70, &[(kind::FWMARK, 1), (kind::FWMASK, 1)]);
    let rules = [vec![by_mark], defaults().to_vec()].concat();
    assert_eq!(unreached(&rules, &routes, &packet()), Some(&routes[1]));
    let marked = Packet {
        mark: 1,
        ..packet()
    };
    assert_eq!(unreached(&rules, &routes, &marked), None);
    // Something newer than this program may lead there.
    let newer = [vec![rule(1, 52, 77, &[(99, 1)])], defaults().to_vec()].concat();
    assert_eq!(unreached(&newer, &routes, &packet()), None);
}

#[test]
fn a_rule_says_which_packets_it_is_for_as_ip_rule_does() {
    let words = |more: &[(u16, u32)], lens| bytes_of_rule(1, 52, 70, more, lens).selector();
    assert_eq!(words(&[], [0, 0]), "from all");
    assert_eq!(words(&[from_10_1()], [0, 16]), "from 10.1.0.0/16");
    let dst = (kind::DST, u32::from_ne_bytes([10, 9, 0, 5]));
    let mark = [(kind::FWMARK, 0x8_0000), (kind::FWMASK, 0xff_0000)];
    let all = [&[dst], &mark[..]].concat();
    assert_eq!(
        words(&all, [32, 0]),
        "from all to 10.9.0.5 fwmark 0x80000/0xff0000"
    );
    assert_eq!(words(&[(99, 1)], [0, 0]), "from all and more");
}

#[test]
fn a_source_that_was_not_asked_makes_rules_about_it_uncertain() {
    let rules = [bytes_of_rule(1, 100, 77, &[from_10_1()], [0, 16])];
    let unasked = Packet {
        src_unasked: true,
        ..packet()
    };
    assert!(!are_uncertain(&rules, &packet()));
    assert!(are_uncertain(&rules, &unasked));
    let elsewhere = Packet {
        src: [10, 2, 0, 7].into(),
        ..unasked
    };
    assert!(!are_uncertain(&rules, &elsewhere));
}

proptest! {
    #[test]
    fn no_message_stops_the_parser(payload in proptest::collection::vec(any::<u8>(), 0..120)) {
        let _ = parse(Message { kind: libc::RTM_NEWRULE, payload: &payload });
    }
}
