//! DNS, ICMP echo and other UDP.

use super::*;
use crate::flow::{Datagram, Dns, Echo};

const THERE: &[At] = super::THERE.split_at(6).0;

impl From<Datagram> for Message {
    fn from(datagram: Datagram) -> Self {
        Self::Udp(datagram)
    }
}

impl From<Echo> for Message {
    fn from(echo: Echo) -> Self {
        Self::Echo(echo)
    }
}

fn datagram(ip_id: u16) -> Datagram {
    Datagram {
        udp_len: 40,
        ip_id,
        dns: None,
        fragmented: false,
    }
}

fn query(id: u16, ip_id: u16) -> Datagram {
    let dns = Some(Dns {
        id,
        is_response: false,
    });
    Datagram {
        dns,
        ..datagram(ip_id)
    }
}

fn answer(id: u16, ip_id: u16) -> Datagram {
    let dns = Some(Dns {
        id,
        is_response: true,
    });
    Datagram {
        dns,
        ..datagram(ip_id)
    }
}

fn echo(seq: u16, is_reply: bool) -> Echo {
    Echo {
        is_reply,
        seq,
        payload_len: 56,
        ip_id: 0,
    }
}

fn dns_story() -> Story {
    let mut story = Story::whole();
    story.server.set_port(53);
    story
}

/// An ICMP error of the server's host about a datagram of the client.
fn port_unreachable(story: &mut Story, at_ms: u64, about: Datagram) {
    story.icmp = Some(IcmpError {
        version: 4,
        kind: 3,
        code: 3,
        from: story.server.ip(),
        to: story.client.ip(),
        mtu: None,
    });
    story.see(at_ms, true, about, &BACK, None);
    story.icmp = None;
}

fn in_udp(reason: &str) -> Option<Death> {
    killed(reason, &["__udp4_lib_rcv", "ip_protocol_deliver_rcu"])
}

#[test]
fn an_answered_query_is_answered() {
    let mut story = dns_story();
    story.see(0, true, query(7, 1), THERE, None);
    story.see(3, false, answer(7, 1), &BACK, None);
    story.check(VerdictCode::Answered, Confidence::Proven, |judgement| {
        assert!(
            judgement.summary.starts_with("answered in 3.0 ms"),
            "{}",
            judgement.summary
        );
    });
}

#[test]
fn of_two_queries_on_one_socket_the_one_without_an_answer_is_named() {
    let mut story = dns_story();
    story.see(0, true, query(7, 1), THERE, None);
    story.see(0, true, query(8, 2), THERE, None);
    story.see(3, false, answer(7, 3), &BACK, None);
    story.see(3, false, answer(8, 4), &BACK[..2], nft_forward());
    let scene = Scene {
        analysis: &story.analysis,
        now_ns: story.now_ns,
    };
    let group = story.analysis.flows.groups().next().expect("a group");
    let codes: Vec<_> = flows(&group)
        .iter()
        .map(|flow| (flow.number, judge(flow, &scene).code))
        .collect();
    assert_eq!(
        codes,
        [
            (Some(7), VerdictCode::Answered),
            (Some(8), VerdictCode::ReplyDropped)
        ]
    );
}

#[test]
fn a_query_without_an_answer_is_a_fault_only_after_five_seconds() {
    let mut story = dns_story();
    story.see(0, true, query(7, 1), THERE, None);
    story.now_ns = 4_000 * MS;
    story.check(VerdictCode::Inconclusive, Confidence::Inconclusive, |_| {});
    story.now_ns = 5_100 * MS;
    story.check(
        VerdictCode::RequestNotAnswered,
        Confidence::Inferred,
        |_| {},
    );
}

#[test]
fn a_datagram_without_an_answer_is_one_way() {
    let mut story = Story::whole();
    for ip_id in 1..4 {
        story.see(u64::from(ip_id), true, datagram(ip_id), THERE, None);
    }
    story.check(VerdictCode::OneWay, Confidence::Inferred, |judgement| {
        assert!(
            judgement.summary.contains("3 datagrams arrived"),
            "{}",
            judgement.summary
        );
    });
}

#[test]
fn a_stream_that_loses_datagrams_says_how_many() {
    let mut story = Story::whole();
    story.see(0, true, datagram(1), THERE, None);
    story.see(1, true, datagram(2), THERE, in_udp("SOCKET_RCVBUFF"));
    story.see(2, true, datagram(3), THERE, in_udp("SOCKET_RCVBUFF"));
    story.check(VerdictCode::DataDropped, Confidence::Proven, |judgement| {
        assert!(
            judgement.summary.starts_with("2 of 3 datagrams dropped"),
            "{}",
            judgement.summary
        );
        assert_eq!(
            judgement.cause.as_ref().map(|cause| cause.code),
            Some(CauseCode::SocketBuffer)
        );
    });
}

#[test]
fn silence_after_answers_is_a_fault_once_the_client_asked_again() {
    let mut story = Story::whole();
    story.see(0, true, datagram(1), THERE, None);
    story.see(1, false, datagram(2), &BACK, None);
    story.see(100, true, datagram(3), THERE, None);
    story.check(VerdictCode::Answered, Confidence::Proven, |_| {});
    story.see(1_100, true, datagram(4), THERE, None);
    story.check(
        VerdictCode::RequestNotAnswered,
        Confidence::Inferred,
        |judgement| {
            assert!(
                judgement
                    .summary
                    .starts_with("answered before, but not since"),
                "{}",
                judgement.summary
            );
        },
    );
}

#[test]
fn a_port_without_a_socket_refuses() {
    let mut story = Story::whole();
    story.see(0, true, datagram(1), THERE, in_udp("NO_SOCKET"));
    port_unreachable(&mut story, 0, datagram(1));
    story.check(VerdictCode::Refused, Confidence::Proven, |judgement| {
        assert_eq!(
            judgement.cause.as_ref().map(|cause| cause.code),
            Some(CauseCode::NoListener)
        );
    });
}

#[test]
fn a_reply_to_a_closed_socket_is_no_fault() {
    let mut story = dns_story();
    story.see(0, true, query(7, 1), THERE, None);
    story.see(3, false, answer(7, 1), &BACK, in_udp("NO_SOCKET"));
    story.check(
        VerdictCode::Inconclusive,
        Confidence::Inconclusive,
        |judgement| {
            assert!(
                judgement.summary.contains("after the client had given up"),
                "{}",
                judgement.summary
            );
            assert!(judgement.losses.iter().all(|loss| loss.innocent));
        },
    );
}

#[test]
fn an_echo_reply_that_icmp_frees_was_delivered() {
    let mut story = Story::whole();
    story.see(0, true, echo(1, false), THERE, None);
    story.see(
        1,
        false,
        echo(1, true),
        &BACK,
        killed("NO_SOCKET", &["ping_rcv", "icmp_rcv"]),
    );
    story.check(VerdictCode::Answered, Confidence::Proven, |_| {});
}

#[test]
fn a_reply_that_its_socket_never_read_was_delivered() {
    let mut story = dns_story();
    let closed = killed("QUEUE_PURGE", &["inet_sock_destruct", "__sk_destruct"]);
    story.see(0, true, query(7, 1), THERE, None);
    story.see(3, false, answer(7, 1), &BACK, closed);
    story.check(VerdictCode::Answered, Confidence::Proven, |judgement| {
        assert!(judgement.losses.iter().all(|loss| loss.innocent));
    });
}

#[test]
fn a_lost_echo_reply_is_named_beside_the_answered_ones() {
    let mut story = Story::whole();
    story.see(0, true, echo(1, false), THERE, None);
    story.see(1, false, echo(1, true), &BACK, None);
    story.see(1_000, true, echo(2, false), THERE, None);
    story.see(1_001, false, echo(2, true), &BACK[..2], nft_forward());
    story.check(VerdictCode::ReplyDropped, Confidence::Proven, |judgement| {
        assert!(
            judgement.summary.contains("echo reply killed"),
            "{}",
            judgement.summary
        );
    });
}

#[test]
fn an_answer_that_leaves_the_view_is_answered_unless_the_query_comes_again() {
    let node_b = View::Netns {
        netns: vec![NODE_B, POD_B],
    };
    let mut story = Story::new(node_b);
    story.server.set_port(53);
    story.see(0, true, query(7, 1), &THERE[3..], None);
    story.see(1, false, answer(7, 2), &BACK[..3], None);
    story.check(VerdictCode::Answered, Confidence::Inferred, |_| {});
    story.see(5_000, true, query(7, 3), &THERE[3..], None);
    story.see(5_001, false, answer(7, 4), &BACK[..3], None);
    story.check(VerdictCode::ReplyLeftNode, Confidence::Inferred, |_| {});
}

#[test]
fn of_a_query_in_fragments_only_the_first_is_followed() {
    let mut story = dns_story();
    let first = Datagram {
        fragmented: true,
        ..query(7, 1)
    };
    story.see(0, true, first, THERE, None);
    story.check(
        VerdictCode::Inconclusive,
        Confidence::Inconclusive,
        |judgement| {
            assert!(
                judgement.summary.contains("first fragment"),
                "{}",
                judgement.summary
            );
        },
    );
}

#[test]
fn a_host_that_pings_itself_answers_itself() {
    let mut story = Story::whole();
    story.server = story.client;
    let on_lo = [Xmit(POD_A, ETH0), Receive(POD_A, ETH0)];
    story.see(0, true, echo(1, false), &on_lo, None);
    let by_icmp = killed("NO_SOCKET", &["ping_rcv", "icmp_rcv"]);
    story.see(1, false, echo(1, true), &on_lo, by_icmp);
    story.check(VerdictCode::Answered, Confidence::Proven, |judgement| {
        assert!(
            judgement.summary.starts_with("answered in"),
            "{}",
            judgement.summary
        );
    });
}

/// It has no route back, for example: the request did not die of that.
#[test]
fn an_echo_request_that_the_host_cannot_answer_is_not_answered() {
    let mut story = Story::whole();
    let by_icmp = killed("NOT_SPECIFIED", &["icmpv6_rcv", "ip6_protocol_deliver_rcu"]);
    story.see(0, true, echo(1, false), THERE, by_icmp);
    let after = |judgement: &Judgement<'_>| assert!(judgement.losses[0].innocent);
    story.check(VerdictCode::RequestNotAnswered, Confidence::Inferred, after);

    let mut story = Story::whole();
    let bad_checksum = killed("ICMP_CSUM", &["icmpv6_rcv", "ip6_protocol_deliver_rcu"]);
    story.see(0, true, echo(1, false), THERE, bad_checksum);
    story.check(VerdictCode::RequestDropped, Confidence::Proven, |_| {});
}

#[test]
fn a_lossy_ledger_takes_the_proof_from_an_answer() {
    let mut story = dns_story();
    story.see(0, true, query(7, 1), THERE, None);
    story.see(3, false, answer(7, 1), &BACK, None);
    story.analysis.push(&Record::Ledger(Ledger {
        time_ns: 5 * MS,
        ring_full: 3,
        ..Ledger::default()
    }));
    story.check(VerdictCode::Answered, Confidence::Inferred, |_| {});
}

#[test]
fn a_query_that_a_bridge_translated_is_one_flow_and_two_queries_in_one_skb_are_two() {
    const BRIDGE: u32 = 9;
    let service = SocketAddr::from(([10, 96, 0, 10], 53));
    let translated_on = |device, segment: Datagram| {
        let mut story = dns_story();
        let backend = story.server;
        story.server = service;
        story.see(0, true, query(7, 1), &THERE[..2], None);
        story.skb -= 1;
        story.server = backend;
        story.see(0, true, segment, &[Receive(NODE_A, device)], None);
        story.analysis.flows.groups().count()
    };
    assert_eq!(translated_on(BRIDGE, query(7, 1)), 1);
    // The skb of one that was delivered may be the next that comes in.
    assert_eq!(translated_on(LXC, query(7, 1)), 2);
    assert_eq!(translated_on(BRIDGE, query(8, 1)), 2);
}

/// What a node sends into a tunnel is cloned for the room of its header, so the skb is free while no event says so.
#[test]
fn the_next_datagram_in_the_skb_of_an_answer_is_no_translation_of_it() {
    let mut story = Story::whole();
    story.see(0, false, datagram(0), &BACK[..2], None);
    story.skb -= 1;
    story.client.set_port(50_000);
    story.hop_limit = 63;
    story.see(70, true, datagram(0), &[Receive(NODE_B, NIC)], None);
    assert_eq!(story.analysis.flows.groups().count(), 2);
}

#[test]
fn a_clone_in_the_skb_of_an_earlier_datagram_is_no_translation_of_it() {
    let mut story = Story::whole();
    story.see(0, true, datagram(0), &THERE[..2], None);
    let freed = story.skb;
    story.client.set_port(50_000);
    story.see(500, true, datagram(0), &THERE[..2], None);
    story.skb = freed - 1;
    story.hop_limit = 63;
    story.see(500, true, datagram(0), &THERE[2..3], None);
    assert_eq!(story.analysis.flows.groups().count(), 2);
}

#[test]
fn what_a_new_tunnel_sends_is_not_seen_before_its_port_is_known() {
    const TUNNEL: u32 = 9;
    let mut story = Story::whole();
    story.syn(0, &[THERE[0], THERE[1], Xmit(NODE_A, TUNNEL)]);
    story.socket(1, TcpState::SynSent);
    let template = story
        .analysis
        .devices
        .iter()
        .find(|device| device.id.netns == NODE_A)
        .expect("a device")
        .clone();
    story.analysis.push(&Record::Device(Box::new(Device {
        id: DeviceId {
            netns: NODE_A,
            ifindex: TUNNEL,
        },
        name: "vx1".to_owned(),
        kind: "vxlan".to_owned(),
        peer: None,
        udp_port: Some(8472),
        ..template
    })));
    story.check(
        VerdictCode::Inconclusive,
        Confidence::Inconclusive,
        |judgement| {
            assert!(judgement.summary.contains("new"), "{}", judgement.summary);
        },
    );
}

/// Adds a tunnel of the server's node, after the events that there are.
fn add_tunnel(story: &mut Story) {
    let nic = DeviceId {
        netns: NODE_B,
        ifindex: NIC,
    };
    let template = story.analysis.devices.get(nic).expect("a device").clone();
    story.analysis.push(&Record::Device(Box::new(Device {
        id: DeviceId { ifindex: 9, ..nic },
        name: "vx1".to_owned(),
        kind: "vxlan".to_owned(),
        udp_port: Some(8472),
        ..template
    })));
}

#[test]
fn what_comes_back_in_a_new_tunnel_is_not_seen_before_its_port_is_known() {
    let client_node = View::Netns {
        netns: vec![POD_A, NODE_A],
    };
    let mut story = Story::new(client_node.clone());
    story.see(0, true, echo(1, false), &THERE[..3], None);
    // An event whose time the record's is taken to be.
    story.socket(1, TcpState::Close);
    add_tunnel(&mut story);
    story.check(
        VerdictCode::Inconclusive,
        Confidence::Inconclusive,
        |judgement| {
            assert!(
                judgement.summary.contains("vx1 was new"),
                "{}",
                judgement.summary
            );
        },
    );
    // One that was known long before, or came long after, could have carried nothing unseen.
    for (asked_ms, tunnel_ms) in [(500, 1), (0, 5_000)] {
        let mut story = Story::new(client_node.clone());
        story.see(asked_ms, true, echo(1, false), &THERE[..3], None);
        story.socket(tunnel_ms, TcpState::Close);
        add_tunnel(&mut story);
        story.check(VerdictCode::RequestLeftNode, Confidence::Inferred, |_| {});
    }
}

#[test]
fn a_query_that_was_cloned_while_it_was_translated_is_one_flow() {
    let service = SocketAddr::from(([10, 96, 0, 10], 53));
    let cloned_into = |translated: Datagram, hop_limit: u8, dies: bool| {
        let mut story = dns_story();
        let backend = story.server;
        story.server = service;
        story.see(0, true, query(7, 1), &THERE[..2], None);
        story.server = backend;
        story.hop_limit = hop_limit;
        if dies {
            // Before the device is handed it, in its egress hook.
            let place = [Unseen(NODE_A, NIC)];
            story.see(0, true, translated, &place, nft_forward());
        } else {
            story.see(0, true, translated, &THERE[2..3], None);
        }
        story.analysis.flows.groups().count()
    };
    assert_eq!(cloned_into(query(7, 1), 63, false), 1);
    assert_eq!(cloned_into(query(7, 1), 63, true), 1);
    assert_eq!(cloned_into(query(7, 1), 64, false), 2, "it was not routed");
    assert_eq!(
        cloned_into(query(8, 1), 63, false),
        2,
        "it says something else"
    );
    assert_eq!(
        cloned_into(query(8, 1), 63, true),
        2,
        "it says something else"
    );
}
