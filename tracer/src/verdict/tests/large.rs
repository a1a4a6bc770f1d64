//! Packets that are too big, and what their senders are told.

use super::data::{acknowledges, data_of, established};
use super::*;
use crate::fact::{Lookup, Route, RouteKind, Way};

/// A full segment.
const LEN: u32 = 1450;
const PAYLOAD: u32 = LEN - 52;

const ROUTER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 168, 0, 2));

fn set_mtu(story: &mut Story, netns: NetnsId, ifindex: u32, mtu: u32) {
    let id = DeviceId { netns, ifindex };
    let device = story.analysis.devices.get(id).expect("a device").clone();
    story
        .analysis
        .push(&Record::Device(Box::new(Device { mtu, ..device })));
}

fn full(at_ms: u64) -> Segment {
    data_of(PAYLOAD, 0, at_ms)
}

/// The client's full segment dies on each try.
fn dies(story: &mut Story, times_ms: &[u64], places: &[At], death: Option<&Death>) {
    story.len = LEN;
    for at_ms in times_ms {
        story.see(*at_ms, true, full(*at_ms), places, death.cloned());
    }
    story.len = 60;
}

/// An ICMP error of the router says that the client's full segment was too big.
fn too_big_error(story: &mut Story, at_ms: u64, quoted_ms: u64, way: &[At], death: Option<Death>) {
    story.icmp = Some(IcmpError {
        version: 4,
        kind: 3,
        code: 4,
        from: ROUTER,
        to: story.client.ip(),
        mtu: Some(1400),
    });
    story.see(at_ms, true, full(quoted_ms), way, death);
    story.icmp = None;
}

fn wire() -> Option<Death> {
    killed("NOT_SPECIFIED", &["__dev_forward_skb2", "veth_xmit"])
}

fn too_big() -> Option<Death> {
    killed("PKT_TOO_BIG", &["ip_forward", "ip_rcv_finish"])
}

fn says(judgement: &Judgement<'_>, words: &str) {
    assert!(judgement.summary.contains(words), "{}", judgement.summary);
}

#[test]
fn a_wire_with_a_narrow_end_says_which_and_what_to_type() {
    let mut story = established(View::Kernel);
    set_mtu(&mut story, NODE_A, LXC, 1380);
    dies(&mut story, &[100, 300], &THERE[..1], wire().as_ref());
    story.check(VerdictCode::MtuDropped, Confidence::Proven, |judgement| {
        says(
            judgement,
            "1450 bytes are too many for lxca, whose MTU is 1380",
        );
        says(judgement, "no ICMP can say so: it died below IP");
        let next = judgement.next.as_deref().expect("a command");
        assert!(next.starts_with("`ip link set eth0 mtu 1380`"), "{next}");
    });
}

#[test]
fn a_wire_takes_four_bytes_more_and_what_is_still_to_be_cut() {
    for (mtu, dies_of_it) in [(1446, false), (1445, true)] {
        let mut story = established(View::Kernel);
        set_mtu(&mut story, NODE_A, LXC, mtu);
        dies(&mut story, &[100, 300], &THERE[..1], wire().as_ref());
        let code = if dies_of_it {
            VerdictCode::MtuDropped
        } else {
            VerdictCode::DataDropped
        };
        story.check(code, Confidence::Proven, |_| {});
    }
}

#[test]
fn a_port_of_a_bridge_is_measured_by_itself() {
    let mut story = established(View::Kernel);
    set_mtu(&mut story, NODE_B, LXC, 1400);
    let death = killed(
        "NOT_SPECIFIED",
        &["br_dev_queue_push_xmit", "br_forward_finish"],
    );
    dies(
        &mut story,
        &[100, 300],
        &[THERE[3], Unseen(NODE_B, LXC)],
        death.as_ref(),
    );
    story.check(VerdictCode::MtuDropped, Confidence::Proven, |judgement| {
        says(judgement, "too many for lxcb, whose MTU is 1400");
    });
}

#[test]
fn a_port_of_a_bridge_with_netfilter_has_no_room_to_spare() {
    let mut story = established(View::Kernel);
    set_mtu(&mut story, NODE_B, LXC, LEN - 1);
    let death = killed(
        "NOT_SPECIFIED",
        &["br_nf_dev_queue_xmit", "br_nf_post_routing"],
    );
    dies(
        &mut story,
        &[100, 300],
        &[THERE[3], Unseen(NODE_B, LXC)],
        death.as_ref(),
    );
    story.check(VerdictCode::MtuDropped, Confidence::Proven, |_| {});
}

#[test]
fn an_icmp_error_that_dies_in_the_pod_is_told_with_its_place() {
    let mut story = established(View::Kernel);
    dies(&mut story, &[100, 300], &THERE[..4], too_big().as_ref());
    let input = killed(
        "NETFILTER_DROP",
        &["nft_do_chain", "nf_hook_slow", "ip_local_deliver"],
    );
    for at_ms in [100, 300] {
        too_big_error(&mut story, at_ms, at_ms, &BACK[2..], input.clone());
    }
    story.check(VerdictCode::MtuDropped, Confidence::Proven, |judgement| {
        says(judgement, "the ICMP that says so was killed on eth0");
        let next = judgement.next.as_deref().expect("a command");
        assert!(next.contains("icmp type destination-unreachable"), "{next}");
    });
}

#[test]
fn no_route_back_is_what_the_kernel_answered() {
    let mut story = established(View::Kernel);
    dies(&mut story, &[100, 300], &THERE[..4], too_big().as_ref());
    story.check(VerdictCode::MtuDropped, Confidence::Proven, |judgement| {
        says(judgement, "no ICMP to 10.0.1.2 was seen");
    });
    story
        .analysis
        .push(&Record::Fact(Fact::Route(Box::new(Route {
            netns: NODE_B,
            asked_ns: 310 * MS,
            lookup: Lookup {
                way: Way::Output,
                ifindex: None,
                protocol: 1,
                src: ([0, 0, 0, 0], 0).into(),
                dst: (CLIENT.0, 0).into(),
                mark: 0,
            },
            found: RouteKind::None,
            prefix: None,
            table: None,
            rule: None,
            rule_selector: None,
            by_rule: false,
            hops: Vec::new(),
            mtu: None,
            ports_matter: false,
            uncertain: false,
            unreached: false,
        }))));
    story.check(VerdictCode::MtuDropped, Confidence::Proven, |judgement| {
        says(judgement, "there is no route back to 10.0.1.2");
    });
}

#[test]
fn a_sender_that_ignores_icmp_is_told_apart() {
    let mut story = established(View::Kernel);
    dies(
        &mut story,
        &[100, 300, 700],
        &THERE[..4],
        too_big().as_ref(),
    );
    too_big_error(&mut story, 100, 100, &BACK[2..], None);
    story.check(VerdictCode::MtuDropped, Confidence::Proven, |judgement| {
        says(
            judgement,
            "ICMP told the sender, which goes on sending packets as large",
        );
    });
}

#[test]
fn a_flow_that_healed_itself_is_answered_with_a_note() {
    let mut story = established(View::Kernel);
    dies(&mut story, &[100], &THERE[..4], too_big().as_ref());
    too_big_error(&mut story, 100, 100, &BACK[2..], None);
    story.len = 1400;
    story.see(101, true, data_of(1348, 0, 101), &THERE[..6], None);
    story.see(102, true, data_of(50, 1348, 102), &THERE[..6], None);
    story.see(103, false, acknowledges(PAYLOAD, 103), &BACK, None);
    story.check(VerdictCode::Answered, Confidence::Proven, |judgement| {
        says(judgement, "one packet was killed on ens3");
        says(judgement, "at most 1400 bytes (path MTU discovery)");
    });
}

#[test]
fn a_router_out_of_view_proves_by_icmp_that_a_packet_was_too_big() {
    let mut story = established(View::Netns {
        netns: vec![POD_A, NODE_A],
    });
    dies(&mut story, &[100, 300, 700, 1_500], &THERE[..3], None);
    let input = killed(
        "NETFILTER_DROP",
        &["nft_do_chain", "nf_hook_slow", "ip_local_deliver"],
    );
    too_big_error(&mut story, 100, 100, &BACK[3..], input);
    story.check(VerdictCode::MtuDropped, Confidence::Proven, |judgement| {
        says(
            judgement,
            "192.168.0.2 says by ICMP that its way on takes 1400 bytes",
        );
        says(judgement, "the ICMP that says so was killed on eth0");
    });
}

/// A small segment that is acknowledged, and full ones that leave the node again and again.
fn leaves_again_and_again(first_len: u32) -> Story {
    let mut story = established(View::Netns {
        netns: vec![POD_A, NODE_A],
    });
    let payload = first_len - 52;
    story.len = first_len;
    story.see(50, true, data_of(payload, 0, 50), &THERE[..3], None);
    story.len = 60;
    story.see(60, false, acknowledges(payload, 60), &BACK[3..], None);
    story.len = LEN;
    for at_ms in [100, 300, 700, 1_500] {
        story.see(
            at_ms,
            true,
            data_of(PAYLOAD, payload, at_ms),
            &THERE[..3],
            None,
        );
    }
    story
}

#[test]
fn large_packets_that_are_never_acknowledged_beside_small_ones_that_are() {
    let story = leaves_again_and_again(200);
    story.check(
        VerdictCode::LargePacketsLost,
        Confidence::Inferred,
        |judgement| {
            says(
                judgement,
                "1450 bytes from the client left this node on ens3",
            );
            says(judgement, "while up to 200 bytes were");
            let next = judgement.next.as_deref().expect("a command");
            assert!(
                next.starts_with("`ping -I 10.0.1.2 -M do -c 3 -s 1422 10.0.2.2`"),
                "{next}"
            );
        },
    );
}

#[test]
fn where_as_large_packets_were_acknowledged_it_is_not_their_size() {
    let story = leaves_again_and_again(LEN);
    story.check(VerdictCode::Stalled, Confidence::Inferred, |_| {});
}

#[test]
fn large_packets_lost_needs_a_clean_ledger() {
    let mut story = leaves_again_and_again(200);
    story.analysis.push(&Record::Ledger(Ledger {
        time_ns: 1_000 * MS,
        ring_full: 1,
        ..Ledger::default()
    }));
    story.check(VerdictCode::Inconclusive, Confidence::Inconclusive, |_| {});
}
