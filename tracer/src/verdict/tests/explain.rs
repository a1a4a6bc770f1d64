//! What the kernel answered, and how much of it is believed.

use super::*;
use crate::fact::{Lookup, NeighbourState, NextHop, Prefix, Route, RouteKind, Way};
use crate::flow::pairing::Flow;
use crate::flow::table::FlowTable;
use crate::verdict::question::Questions;

const MAIN: u32 = 254;

/// A SYN that node-b cannot route on.
fn unroutable(reason: &str, function: &str) -> Story {
    unroutable_by(reason, &[function])
}

fn unroutable_by(reason: &str, functions: &[&str]) -> Story {
    unroutable_so(killed(reason, functions).as_ref())
}

pub(super) fn unroutable_so(death: Option<&Death>) -> Story {
    let mut story = Story::whole();
    for at_ms in [0, 1_000] {
        story.see(at_ms, true, syn(at_ms), &THERE[..4], death.cloned());
    }
    story
}

pub(super) fn route(found: RouteKind, asked_ms: u64) -> Route {
    Route {
        netns: NODE_B,
        asked_ns: asked_ms * MS,
        lookup: Lookup {
            way: Way::Input,
            ifindex: Some(NIC),
            protocol: 6,
            src: SocketAddr::new([10, 0, 1, 2].into(), 1),
            dst: SERVER.into(),
            mark: 0,
        },
        found,
        prefix: (found != RouteKind::None).then_some(Prefix {
            addr: [10, 0, 2, 0].into(),
            len: 24,
        }),
        table: (found != RouteKind::None).then_some(MAIN),
        rule: None,
        rule_selector: None,
        by_rule: false,
        hops: Vec::new(),
        mtu: None,
        ports_matter: false,
        uncertain: false,
        unreached: false,
    }
}

impl Story {
    fn answer(mut self, fact: Fact) -> Self {
        self.analysis.push(&Record::Fact(fact));
        self
    }

    pub(super) fn found(self, route: Route) -> Self {
        self.answer(Fact::Route(Box::new(route)))
    }

    /// The summary's end, the detail, and how much evidence there is beside the event.
    fn says(&self, code: CauseCode, phrase: &str, detail: Option<&str>, evidence: usize) {
        self.check(
            VerdictCode::RequestDropped,
            Confidence::Proven,
            |judgement| {
                let cause = judgement.cause.as_ref().expect("a cause");
                assert!(judgement.summary.ends_with(phrase), "{}", judgement.summary);
                assert_eq!(cause.code, code);
                assert_eq!(cause.detail.as_deref(), detail);
                assert_eq!(cause.evidence.len(), 1 + evidence);
            },
        );
    }
}

const REJECTED: &str = "by a blackhole, unreachable or prohibit route to 10.0.2.2";

#[test]
fn without_an_answer_the_kind_of_route_is_left_open() {
    unroutable("NOT_SPECIFIED", "ip_error").says(CauseCode::BlackholeRoute, REJECTED, None, 0);
}

#[test]
fn the_route_that_was_found_names_its_kind() {
    let check = |kind, phrase, detail| {
        unroutable("NOT_SPECIFIED", "ip_error")
            .found(route(kind, 1_005))
            .says(CauseCode::BlackholeRoute, phrase, Some(detail), 1);
    };
    check(
        RouteKind::Blackhole,
        "by a blackhole route to 10.0.2.2",
        "blackhole 10.0.2.0/24 in table main",
    );
    check(
        RouteKind::Unreachable,
        "by an unreachable route to 10.0.2.2",
        "unreachable 10.0.2.0/24 in table main",
    );
    check(
        RouteKind::Prohibit,
        "by a prohibit route to 10.0.2.2",
        "prohibit 10.0.2.0/24 in table main",
    );
}

#[test]
fn a_rule_is_named_unless_every_namespace_has_it() {
    let with = |rule, table| {
        unroutable("NOT_SPECIFIED", "ip_error").found(Route {
            rule,
            table: Some(table),
            ..route(RouteKind::Blackhole, 1_005)
        })
    };
    let phrase = "by a blackhole route to 10.0.2.2";
    let code = CauseCode::BlackholeRoute;
    with(Some(77), 100).says(
        code,
        phrase,
        Some("blackhole 10.0.2.0/24 in table 100, by rule 77"),
        1,
    );
    with(Some(32_766), MAIN).says(code, phrase, Some("blackhole 10.0.2.0/24 in table main"), 1);
}

#[test]
fn of_several_routes_that_may_have_rejected_it_none_is_named() {
    unroutable("NOT_SPECIFIED", "ip_error")
        .found(Route {
            prefix: None,
            table: None,
            ..route(RouteKind::Prohibit, 1_005)
        })
        .says(
            CauseCode::BlackholeRoute,
            "by a prohibit route to 10.0.2.2",
            Some("prohibit: there are several such routes to 10.0.2.2"),
            1,
        );
}

#[test]
fn an_answer_that_does_not_fit_the_drop_came_later() {
    let now = Route {
        hops: vec![NextHop {
            gateway: Some([192, 168, 0, 9].into()),
            ifindex: NIC,
        }],
        ..route(RouteKind::Unicast, 1_005)
    };
    unroutable("IP_INNOROUTES", "ip_error").found(now.clone()).says(
        CauseCode::NoRoute,
        "because there is no route to 10.0.2.2",
        Some("a route exists by now, which came after the drop: 10.0.2.0/24 via 192.168.0.9 dev ens3 in table main (asked 5.0 ms after the drop)"),
        1,
    );
    // A rule looks at what could not be asked: then the packet may have been routed otherwise all along.
    unroutable("IP_INNOROUTES", "ip_error")
        .found(Route { uncertain: true, ..now })
        .says(
            CauseCode::NoRoute,
            "because there is no route to 10.0.2.2",
            Some("a route exists by now: 10.0.2.0/24 via 192.168.0.9 dev ens3 in table main (asked 5.0 ms after the drop); it came after the drop, or a rule looked at what could not be asked"),
            1,
        );
    unroutable("NOT_SPECIFIED", "ip_error")
        .found(route(RouteKind::None, 1_005))
        .says(
            CauseCode::BlackholeRoute,
            REJECTED,
            Some("there is no such route any more (asked 5.0 ms after the drop)"),
            1,
        );
}

#[test]
fn an_answer_that_came_long_after_is_not_taken_for_the_route_that_the_packet_met() {
    unroutable("NOT_SPECIFIED", "ip_error")
        .found(route(RouteKind::Blackhole, 9_000))
        .says(
            CauseCode::BlackholeRoute,
            REJECTED,
            Some("8.00 s after the drop: blackhole 10.0.2.0/24 in table main"),
            1,
        );
}

#[test]
fn the_nearest_answer_counts() {
    unroutable("NOT_SPECIFIED", "ip_error")
        .found(route(RouteKind::Prohibit, 5))
        .found(route(RouteKind::Blackhole, 1_005))
        .found(route(RouteKind::Unreachable, 2_005))
        .says(
            CauseCode::BlackholeRoute,
            "by a blackhole route to 10.0.2.2",
            Some("blackhole 10.0.2.0/24 in table main"),
            1,
        );
}

#[test]
fn an_answer_about_another_packet_says_nothing() {
    let asked = route(RouteKind::Blackhole, 1_005);
    let others = [
        Route {
            netns: NODE_A,
            ..asked.clone()
        },
        Route {
            lookup: Lookup {
                mark: 1,
                ..asked.lookup
            },
            ..asked.clone()
        },
        Route {
            lookup: Lookup {
                ifindex: Some(LXC),
                ..asked.lookup
            },
            ..asked.clone()
        },
        // Its ports are others, and a rule looks at them.
        Route {
            ports_matter: true,
            ..asked
        },
    ];
    for other in others {
        unroutable("NOT_SPECIFIED", "ip_error").found(other).says(
            CauseCode::BlackholeRoute,
            REJECTED,
            None,
            0,
        );
    }
}

#[test]
fn what_only_discards_is_a_blackhole_unless_the_kernel_denies_it() {
    let story = || unroutable_by("NOT_SPECIFIED", &["dst_discard_out", "ip6_sublist_rcv"]);
    let phrase = "by a blackhole route to 10.0.2.2";
    let says =
        |story: Story, detail| story.says(CauseCode::BlackholeRoute, phrase, Some(detail), 1);
    says(
        story().found(route(RouteKind::Blackhole, 1_005)),
        "blackhole 10.0.2.0/24 in table main",
    );
    says(
        story().found(route(RouteKind::None, 1_005)),
        "there is no such route any more (asked 5.0 ms after the drop)",
    );
}

fn sysctl(name: &str, value: i64) -> Fact {
    Fact::Sysctl {
        netns: NODE_B,
        asked_ns: 1_005 * MS,
        name: format!("net.ipv4.conf.{name}"),
        value,
    }
}

#[test]
fn reverse_path_filtering_is_told_with_the_greater_of_its_two_values() {
    let back = |found, ifindex| Route {
        lookup: Lookup {
            way: Way::Reverse,
            ..route(found, 0).lookup
        },
        hops: vec![NextHop {
            gateway: None,
            ifindex,
        }],
        ..route(found, 1_005)
    };
    let story = || {
        unroutable("IP_RPFILTER", "ip_rcv_finish_core")
            .answer(sysctl("all.rp_filter", 2))
            .answer(sysctl("ens3.rp_filter", 1))
    };
    let says = |story: Story, detail, evidence| {
        let phrase = "by reverse path filtering (rp_filter)";
        story.says(CauseCode::RpFilter, phrase, Some(detail), evidence);
    };
    says(story(), "rp_filter is 2 on ens3 (all=2, ens3=1)", 2);
    says(
        story().found(back(RouteKind::Unicast, LXC)),
        "rp_filter is 2 on ens3 (all=2, ens3=1), and the route back to 10.0.1.2 leaves through lxcb (10.0.2.0/24 dev lxcb in table main)",
        3,
    );
    says(
        story().found(Route {
            uncertain: true,
            ..back(RouteKind::Unicast, LXC)
        }),
        "rp_filter is 2 on ens3 (all=2, ens3=1), and the route back to 10.0.1.2 leaves through lxcb (10.0.2.0/24 dev lxcb in table main), unless a rule looked at what could not be asked",
        3,
    );
    says(
        story().found(back(RouteKind::None, LXC)),
        "rp_filter is 2 on ens3 (all=2, ens3=1), and there is no route back to 10.0.1.2",
        3,
    );
    says(
        story().found(back(RouteKind::Unicast, NIC)),
        "rp_filter is 2 on ens3 (all=2, ens3=1), and 5.0 ms after the drop the route back to 10.0.1.2 leaves through ens3 all right (10.0.2.0/24 dev ens3 in table main)",
        3,
    );
}

#[test]
fn forwarding_that_is_on_by_now_is_told_so() {
    let story = |value| {
        unroutable("IP_INADDRERRORS", "ip_error")
            .answer(sysctl("all.forwarding", 1))
            .answer(sysctl("ens3.forwarding", value))
    };
    let phrase = "because forwarding is off";
    let code = CauseCode::ForwardingOff;
    story(0).says(
        code,
        phrase,
        Some("net.ipv4.conf.ens3.forwarding is 0 (all=1)"),
        2,
    );
    story(1).says(
        code,
        phrase,
        Some("net.ipv4.conf.ens3.forwarding has become 1 since (all=1)"),
        2,
    );
}

#[test]
fn the_gateways_entry_is_told_and_not_the_destinations() {
    let gateway = IpAddr::from([192, 168, 0, 9]);
    let story = |state| {
        let lookup = Lookup {
            way: Way::Output,
            ..route(RouteKind::Unicast, 0).lookup
        };
        unroutable("NEIGH_FAILED", "neigh_invalidate")
            .found(Route {
                lookup,
                hops: vec![NextHop {
                    gateway: Some(gateway),
                    ifindex: NIC,
                }],
                ..route(RouteKind::Unicast, 1_005)
            })
            .answer(Fact::Neighbour {
                netns: NODE_B,
                asked_ns: 1_005 * MS,
                ifindex: NIC,
                addr: gateway,
                state,
                mac: None,
            })
    };
    let check = |state, detail| {
        let phrase = "because the next hop's link-layer address never resolved";
        let story = story(state);
        story.says(CauseCode::NeighbourUnresolved, phrase, Some(detail), 2);
        story.check(
            VerdictCode::RequestDropped,
            Confidence::Proven,
            |judgement| {
                let next = judgement.next.as_deref();
                assert_eq!(
                    next,
                    Some("`ip neigh show to 192.168.0.9`; `ip route get 10.0.2.2`")
                );
            },
        );
    };
    check(
        Some(NeighbourState::Failed),
        "the next hop to 10.0.2.2 is the gateway 192.168.0.9, and its entry on ens3 is FAILED",
    );
    check(
        None,
        "the next hop to 10.0.2.2 is the gateway 192.168.0.9, and it has no entry on ens3",
    );
    check(
        Some(NeighbourState::Reachable),
        "the next hop to 10.0.2.2 is the gateway 192.168.0.9, and 5.0 ms after the drop its entry on ens3 was REACHABLE",
    );
}

/// The first sighting of a death.
fn death_of(story: &Story) -> Sighting {
    let groups: Vec<_> = story.analysis.flows.groups().collect();
    let all = groups
        .iter()
        .flat_map(|group| flows(group))
        .collect::<Vec<_>>();
    let mut sightings = all.iter().flat_map(Flow::sightings);
    sightings
        .find(|sighting| matches!(sighting.point, Point::Drop(_)))
        .expect("a death")
        .clone()
}

#[test]
fn a_death_is_asked_about_once_a_second_whatever_its_ports() {
    let story = unroutable("IP_INNOROUTES", "ip_error");
    let dead = death_of(&story);
    let devices = &story.analysis.devices;
    let flows = FlowTable::default();
    let mut questions = Questions::default();
    let at = |ms: u64, port| {
        let mut sighting = dead.clone();
        sighting.time_ns = ms * MS;
        sighting.tuple.src.set_port(port);
        sighting
    };
    questions.note(&at(0, 1), &flows, devices);
    questions.note(&at(999, 2), &flows, devices);
    assert!(questions.take().is_some());
    assert!(questions.take().is_none());
    questions.note(&at(1_000, 3), &flows, devices);
    assert!(questions.take().is_some());
    // Another mark may be routed otherwise.
    questions.note(
        &Sighting {
            mark: 1,
            ..at(1_001, 3)
        },
        &flows,
        devices,
    );
    assert!(questions.take().is_some());
    for mark in 2..1_000 {
        questions.note(
            &Sighting {
                mark,
                ..at(1_001, 3)
            },
            &flows,
            devices,
        );
    }
    let waiting = std::iter::from_fn(|| questions.take()).count();
    assert_eq!(waiting, 64);
}

#[test]
fn a_packet_in_a_tunnel_is_routed_by_the_tunnels_addresses() {
    let story = unroutable("IP_INNOROUTES", "ip_error");
    let mut dead = death_of(&story);
    dead.tunnels.push(crate::flow::Tunnel {
        kind: crate::flow::TunnelKind::Vxlan,
        udp_src_port: None,
        vni: Some(1),
        outer_src: [192, 168, 0, 1].into(),
        outer_dst: [192, 168, 0, 2].into(),
        udp_port: Some(4789),
    });
    let mut questions = Questions::default();
    questions.note(&dead, &FlowTable::default(), &story.analysis.devices);
    let Some(crate::fact::Question {
        about: crate::fact::About::Route(lookup),
        ..
    }) = questions.take()
    else {
        panic!("no question about a route");
    };
    assert_eq!(lookup.dst, SocketAddr::from(([192, 168, 0, 2], 4789)));
    assert_eq!(lookup.src.ip(), IpAddr::from([192, 168, 0, 1]));
}

fn device_counter(netns: NetnsId, ifindex: u32, name: &str) -> Fact {
    Fact::DeviceCounter {
        device: DeviceId { netns, ifindex },
        name: name.to_owned(),
        before: 3,
        after: 5,
    }
}

/// A SYN that node-b's driver took, and nothing after it.
fn left(ifindex: u32) -> Story {
    let mut story = Story::new(View::Netns {
        netns: vec![POD_A, NODE_A],
    });
    for at_ms in [0, 1_000, 3_000] {
        let mut way = THERE[..3].to_vec();
        way[2] = Xmit(NODE_A, ifindex);
        story.syn(at_ms, &way);
    }
    story
}

#[test]
fn a_counter_of_the_device_through_which_a_packet_left_suggests_a_loss_there() {
    let expect = |story: Story, detail: Option<&str>, evidence| {
        story.check(
            VerdictCode::RequestLeftNode,
            Confidence::Inferred,
            |judgement| {
                let cause = judgement.cause.as_ref();
                assert_eq!(cause.and_then(|cause| cause.detail.as_deref()), detail);
                assert_eq!(cause.map_or(0, |cause| cause.evidence.len()), evidence);
                assert!(cause.is_none_or(|cause| cause.code == CauseCode::Unknown));
            },
        );
    };
    expect(left(NIC), None, 0);
    expect(
        left(NIC)
            .answer(device_counter(NODE_A, NIC, "tx_dropped"))
            .answer(device_counter(NODE_A, NIC, "tx_carrier_errors")),
        Some(
            "tx_dropped of ens3 and tx_carrier_errors of ens3 rose during the trace, which suggests a loss there; a counter does not tell which packet moved it",
        ),
        2,
    );
    // The other direction, another device, another namespace.
    let elsewhere = left(NIC)
        .answer(device_counter(NODE_A, NIC, "rx_dropped"))
        .answer(device_counter(NODE_A, LXC, "tx_dropped"))
        .answer(device_counter(NODE_B, NIC, "tx_dropped"))
        .answer(Fact::Counter {
            netns: NODE_A,
            name: "softnet_dropped".to_owned(),
            before: 0,
            after: 1,
        });
    expect(elsewhere, None, 0);
}

#[test]
fn a_counter_of_the_peer_that_should_have_received_it_suggests_a_loss_there() {
    let mut story = Story::whole();
    for at_ms in [0, 1_000, 3_000] {
        story.syn(at_ms, &THERE[..5]);
    }
    story
        .answer(device_counter(POD_B, ETH0, "rx_dropped"))
        .answer(device_counter(NODE_B, LXC, "rx_dropped"))
        .check(VerdictCode::RequestNotAnswered, Confidence::Inferred, |judgement| {
            let cause = judgement.cause.as_ref().expect("a suspicion");
            assert_eq!(
                cause.detail.as_deref(),
                Some("rx_dropped of eth0 rose during the trace, which suggests a loss there; a counter does not tell which packet moved it")
            );
        });
}

#[test]
fn no_device_is_suspected_where_the_listener_has_the_packet() {
    let mut story = Story::whole();
    for at_ms in [0, 1_000, 3_000] {
        story.syn(at_ms, &THERE);
    }
    story
        .answer(device_counter(POD_B, ETH0, "rx_dropped"))
        .check(
            VerdictCode::RequestNotAnswered,
            Confidence::Inferred,
            |judgement| {
                assert!(judgement.cause.is_none());
            },
        );
}

#[test]
fn conntrack_is_suspected_only_where_no_rule_is_on_the_stack() {
    let dropped = || Fact::Counter {
        netns: NODE_B,
        name: "conntrack_insert_failed".to_owned(),
        before: 0,
        after: 2,
    };
    let by_rule = unroutable_by(
        "NETFILTER_DROP",
        &["nft_do_chain", "nf_hook_slow", "ip_forward"],
    );
    by_rule.answer(dropped()).says(
        CauseCode::Netfilter,
        "by a netfilter rule in FORWARD",
        None,
        0,
    );
    let itself = || unroutable_by("NETFILTER_DROP", &["nf_hook_slow", "ip_local_deliver"]);
    let detail = "no rule is on the stack, and conntrack dropped packets during the trace, perhaps this one: its table is full, or two entries clashed";
    itself().answer(dropped()).check(
        VerdictCode::RequestDropped,
        Confidence::Proven,
        |judgement| {
            let cause = judgement.cause.as_ref().expect("a cause");
            assert_eq!(cause.detail.as_deref(), Some(detail));
        },
    );
    itself().check(
        VerdictCode::RequestDropped,
        Confidence::Proven,
        |judgement| {
            assert!(judgement.cause.as_ref().expect("a cause").detail.is_none());
        },
    );
}
