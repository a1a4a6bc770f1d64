//! Deaths on a kernel that gives no reason (before 5.17): the function, the packet and what was answered must do.

use super::explain::{route, unroutable_so};
use super::*;
use crate::fact::RouteKind;

/// A death as such a kernel tells it.
fn freed_in(functions: &[&str]) -> Option<Death> {
    killed("", functions).map(|death| Death {
        reason: None,
        ..death
    })
}

fn cause_of(story: &Story, code: VerdictCode) -> CauseCode {
    let mut cause = None;
    story.check(code, Confidence::Proven, |judgement| {
        cause = judgement.cause.as_ref().map(|cause| cause.code);
    });
    cause.expect("a cause")
}

fn dropped(story: &Story) -> CauseCode {
    cause_of(story, VerdictCode::RequestDropped)
}

#[test]
fn a_packet_from_a_host_is_refused_by_the_way_back() {
    let death = freed_in(&["ip_rcv_finish_core", "ip_rcv_finish"]);
    assert_eq!(dropped(&unroutable_so(death.as_ref())), CauseCode::RpFilter);
}

#[test]
fn a_packet_from_nowhere_is_refused_for_its_source() {
    let death = freed_in(&["ip_rcv_finish_core", "ip_rcv_finish"]);
    // The last is the receiver's own.
    for source in [[127, 0, 0, 9], [224, 0, 0, 9], [255; 4], [192, 168, 0, 2]] {
        let mut story = Story::whole();
        story.client.set_ip(source.into());
        for at_ms in [0, 1_000] {
            story.see(at_ms, true, syn(at_ms), &THERE[..4], death.clone());
        }
        assert_eq!(dropped(&story), CauseCode::SourceInvalid, "{source:?}");
    }
}

#[test]
fn only_the_last_hop_dies_of_its_hops() {
    let die_with = |hops| {
        let mut story = Story::whole();
        story.hop_limit = hops;
        for at_ms in [0, 1_000] {
            story.see(
                at_ms,
                true,
                syn(at_ms),
                &THERE[..4],
                freed_in(&["ip_forward"]),
            );
        }
        dropped(&story)
    };
    assert_eq!(die_with(1), CauseCode::Ttl);
    assert_eq!(die_with(2), CauseCode::Unknown);
}

#[test]
fn functions_that_free_for_one_reason_tell_it() {
    for (function, code) in [
        ("ip_rcv_core", CauseCode::WrongMac),
        ("__netif_receive_skb_core", CauseCode::TcProgram),
        ("ip_finish_output", CauseCode::CgroupProgram),
        ("ip6_pkt_discard", CauseCode::NoRoute),
        ("ip6_pkt_prohibit", CauseCode::BlackholeRoute),
        ("nf_hook_slow", CauseCode::Netfilter),
        ("__dev_queue_xmit", CauseCode::Unknown),
    ] {
        assert_eq!(
            dropped(&unroutable_so(freed_in(&[function]).as_ref())),
            code,
            "{function}"
        );
    }
    // A kernel that gives reasons would have given one.
    for function in ["ip_rcv_finish_core", "__netif_receive_skb_core"] {
        let death = killed("NOT_SPECIFIED", &[function]);
        assert_eq!(
            dropped(&unroutable_so(death.as_ref())),
            CauseCode::Unknown,
            "{function}"
        );
    }
}

#[test]
fn the_routes_tell_why_a_packet_was_not_routed() {
    let death = freed_in(&["ip_error", "ip_rcv_finish"]);
    let found =
        |kind, asked_ms| dropped(&unroutable_so(death.as_ref()).found(route(kind, asked_ms)));
    assert_eq!(dropped(&unroutable_so(death.as_ref())), CauseCode::Unknown);
    assert_eq!(found(RouteKind::None, 1_005), CauseCode::NoRoute);
    for kind in [
        RouteKind::Blackhole,
        RouteKind::Unreachable,
        RouteKind::Prohibit,
    ] {
        assert_eq!(found(kind, 1_005), CauseCode::BlackholeRoute, "{kind:?}");
    }
    // Forwarding may be off.
    assert_eq!(found(RouteKind::Unicast, 1_005), CauseCode::Unknown);
    assert_eq!(
        found(RouteKind::None, 60_000),
        CauseCode::Unknown,
        "it may have gone since"
    );
}

#[test]
fn a_reset_tells_that_nobody_listens() {
    let refused = |death: Option<Death>| {
        let mut story = Story::whole();
        story.see(0, true, syn(0), &THERE[..6], death);
        let rst = segment(TcpFlags::RST | TcpFlags::ACK, 0, ISN + 1, 1);
        story.see(1, false, rst, &BACK, None);
        story.now_ns = 5 * MS;
        cause_of(&story, VerdictCode::Refused)
    };
    let stack = |function| freed_in(&[function, "ip_protocol_deliver_rcu"]);
    assert_eq!(refused(stack("tcp_v4_rcv")), CauseCode::NoListener);
    assert_eq!(refused(stack("tcp_v4_do_rcv")), CauseCode::Unknown);
    assert_eq!(refused(in_tcp("TCP_CSUM")), CauseCode::Checksum);
}
