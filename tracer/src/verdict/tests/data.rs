//! What an established connection carries.

use super::*;
use crate::event::Again;

const LEN: u32 = 100;

/// The client's bytes from this offset on.
fn data(offset: u32, at_ms: u64) -> Segment {
    data_of(LEN, offset, at_ms)
}

/// So many of the client's bytes from this offset on.
pub(super) fn data_of(payload_len: u32, offset: u32, at_ms: u64) -> Segment {
    Segment {
        payload_len,
        ..segment(TcpFlags::ACK, ISN + 1 + offset, SERVER_ISN + 1, at_ms)
    }
}

/// The server's acknowledgement of so many bytes.
pub(super) fn acknowledges(len: u32, at_ms: u64) -> Segment {
    segment(TcpFlags::ACK, SERVER_ISN + 1, ISN + 1 + len, at_ms)
}

pub(super) fn established(view: View) -> Story {
    let mut story = Story::new(view);
    story.syn(0, &THERE);
    story.syn_ack(1, &BACK);
    story.ack(2, &THERE[..6]);
    story
}

fn killed_at(story: &mut Story, times_ms: &[u64]) {
    for at_ms in times_ms {
        story.see(*at_ms, true, data(0, *at_ms), &THERE[..4], nft_forward());
    }
}

/// The client's socket sends again, and waits for the byte at this offset.
fn again(story: &mut Story, at_ms: u64, offset: u32) {
    story.sequence += 1;
    let (local, remote) = (story.client, story.server);
    let event = Event {
        time_ns: at_ms * MS,
        cpu: 0,
        sequence: story.sequence,
        netns: Some(POD_A),
        ifindex: None,
        what: What::Socket {
            hook: SocketHook::RetransmitSkb,
            socket: Socket {
                local_addr: local.ip(),
                local_port: local.port(),
                remote_addr: remote.ip(),
                remote_port: remote.port(),
                old_state: None,
                new_state: Some(TcpState::Established),
                process: None,
                again: Some(Again {
                    snd_una: ISN + 1 + offset,
                    seq: ISN + 1 + offset,
                }),
            },
        },
    };
    story.analysis.push(&Record::Event(Box::new(event)));
}

/// On a busy machine the copy that arrives may wait for its turn; that it is the same packet, its timestamp says.
#[test]
fn a_flooded_copy_of_data_is_innocent_however_late_the_other_comes() {
    let mut story = established(View::Kernel);
    let floods = [Xmit(NODE_B, LXC), Receive(POD_A, ETH0)];
    let otherhost = killed("OTHERHOST", &["ip_rcv_core", "ip_rcv"]);
    story.see(100, true, data(0, 100), &floods, otherhost);
    story.see(400, true, data(0, 100), &THERE[4..6], None);
    story.see(401, false, acknowledges(LEN, 401), &BACK, None);
    story.check(VerdictCode::Answered, Confidence::Proven, |judgement| {
        assert!(judgement.losses.iter().all(|loss| loss.innocent));
        assert_eq!(judgement.losses.len(), 1);
    });
}

#[test]
fn data_that_dies_on_every_try_is_dropped() {
    let mut story = established(View::Kernel);
    killed_at(&mut story, &[100, 300]);
    story.check(VerdictCode::DataDropped, Confidence::Proven, |judgement| {
        assert!(
            judgement
                .summary
                .starts_with("data dropped: 100 bytes from the client (bytes 1–100) killed on"),
            "{}",
            judgement.summary
        );
        assert!(
            judgement.summary.ends_with(", twice"),
            "{}",
            judgement.summary
        );
    });
}

#[test]
fn data_that_was_acknowledged_in_the_end_is_no_fault() {
    let mut story = established(View::Kernel);
    killed_at(&mut story, &[100, 300]);
    story.see(700, true, data(0, 700), &THERE[..6], None);
    story.see(701, false, acknowledges(LEN, 701), &BACK, None);
    story.check(VerdictCode::Answered, Confidence::Proven, |judgement| {
        assert_eq!(judgement.losses.len(), 2);
    });
}

#[test]
fn one_death_is_final_only_if_nothing_follows() {
    let mut story = established(View::Kernel);
    killed_at(&mut story, &[100]);
    story.now_ns = 400 * MS;
    story.check(VerdictCode::Answered, Confidence::Proven, |_| {});
    story.now_ns = 3_700 * MS;
    story.check(VerdictCode::DataDropped, Confidence::Proven, |_| {});
}

#[test]
fn only_the_part_that_is_not_acknowledged_counts() {
    let mut story = established(View::Kernel);
    killed_at(&mut story, &[100, 300]);
    story.see(301, true, data(LEN, 301), &THERE[..6], None);
    // A selective acknowledgement does not move the number.
    story.see(302, false, acknowledges(0, 302), &BACK, None);
    story.check(VerdictCode::DataDropped, Confidence::Proven, |judgement| {
        assert!(
            judgement.summary.contains("(bytes 1–100)"),
            "{}",
            judgement.summary
        );
    });
}

#[test]
fn data_that_leaves_again_and_again_stalls() {
    let mut story = established(View::Netns {
        netns: vec![POD_A, NODE_A],
    });
    for at_ms in [100, 300, 700, 1_500] {
        story.see(at_ms, true, data(0, at_ms), &THERE[..3], None);
    }
    story.check(VerdictCode::Stalled, Confidence::Inferred, |judgement| {
        assert!(
            judgement.summary.contains("left this node on ens3"),
            "{}",
            judgement.summary
        );
        assert!(
            judgement.summary.contains("sent 4 times in 1.40 s"),
            "{}",
            judgement.summary
        );
    });
}

#[test]
fn acknowledgements_that_die_are_dropped_data() {
    let mut story = established(View::Kernel);
    for at_ms in [100, 300, 700] {
        story.see(at_ms, true, data(0, at_ms), &THERE[..6], None);
        let ack = acknowledges(LEN, at_ms);
        story.see(at_ms + 1, false, ack, &BACK[..2], nft_forward());
    }
    story.check(VerdictCode::DataDropped, Confidence::Proven, |judgement| {
        assert!(
            judgement
                .summary
                .contains("acknowledgements of what the client sent killed on lxcb"),
            "{}",
            judgement.summary
        );
    });
}

#[test]
fn data_for_a_socket_that_is_gone_is_no_loss() {
    let mut story = established(View::Kernel);
    for at_ms in [100, 300] {
        story.see(
            at_ms,
            true,
            data(0, at_ms),
            &THERE[..6],
            in_tcp("NO_SOCKET"),
        );
    }
    story.check(VerdictCode::Answered, Confidence::Proven, |_| {});
}

#[test]
fn data_that_no_device_can_carry_is_too_big() {
    let mut story = established(View::Kernel);
    for at_ms in [100, 300] {
        let too_big = killed("PKT_TOO_BIG", &["ip_forward", "ip_rcv_finish"]);
        story.see(at_ms, true, data(0, at_ms), &THERE[..4], too_big);
    }
    story.check(VerdictCode::MtuDropped, Confidence::Proven, |_| {});
}

/// A connection of which more packets passed than are kept, and some data that died afterwards.
fn sampled(view: View, deaths_ms: &[u64]) -> Story {
    let mut story = established(view);
    for at_ms in 10..10 + u64::try_from(crate::flow::table::PASSING_MAX).expect("small") {
        story.see(at_ms, true, data(LEN, at_ms), &THERE[..1], None);
    }
    killed_at(&mut story, deaths_ms);
    story
}

#[test]
fn where_packets_are_missing_only_the_socket_knows_what_was_sent_again() {
    let mut story = sampled(View::Kernel, &[1_000, 2_000, 3_000]);
    again(&mut story, 2_000, 0);
    again(&mut story, 3_000, 0);
    story.check(VerdictCode::DataDropped, Confidence::Proven, |_| {});
    // What is sent once more and does not die may have arrived: nothing that passes is seen any more.
    again(&mut story, 3_400, 0);
    story.check(VerdictCode::Answered, Confidence::Proven, |_| {});
}

#[test]
fn where_packets_are_missing_a_copy_for_somebody_else_proves_nothing() {
    let mut story = sampled(View::Kernel, &[]);
    // A mirror's own device, which no packet of the handshake's way passed.
    for at_ms in [1_000, 2_000, 3_000] {
        story.see(
            at_ms,
            true,
            data(0, at_ms),
            &[Xmit(NODE_B, ETH0)],
            nft_forward(),
        );
    }
    story.check(VerdictCode::Answered, Confidence::Proven, |_| {});
}

#[test]
fn a_socket_that_went_on_has_its_bytes_acknowledged() {
    let mut story = sampled(View::Kernel, &[1_000, 2_000, 3_000]);
    again(&mut story, 3_400, LEN);
    story.check(VerdictCode::Answered, Confidence::Proven, |_| {});
}

#[test]
fn where_packets_are_missing_a_sender_out_of_view_says_nothing() {
    let story = sampled(View::Kernel, &[1_000, 2_000, 3_000]);
    story.check(VerdictCode::DataDropped, Confidence::Proven, |_| {});
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_B, POD_B],
    });
    story.syn(0, &THERE[3..]);
    story.syn_ack(1, &BACK[..3]);
    story.ack(2, &THERE[3..6]);
    for at_ms in 10..10 + u64::try_from(crate::flow::table::PASSING_MAX).expect("small") {
        story.see(at_ms, true, data(LEN, at_ms), &THERE[3..4], None);
    }
    for at_ms in [1_000, 2_000, 3_000] {
        story.see(at_ms, true, data(0, at_ms), &THERE[3..4], nft_forward());
    }
    story.check(VerdictCode::Answered, Confidence::Proven, |_| {});
}

#[test]
fn a_socket_that_sends_the_same_bytes_again_and_again_stalls() {
    let mut story = sampled(View::Kernel, &[]);
    for at_ms in [1_000, 1_400, 2_200] {
        again(&mut story, at_ms, 0);
    }
    story.now_ns = 3_000 * MS;
    story.check(VerdictCode::Stalled, Confidence::Inferred, |judgement| {
        assert!(judgement.at.is_none());
    });
    // The next try is overdue, so the last one has arrived.
    story.now_ns = 8_000 * MS;
    story.check(VerdictCode::Answered, Confidence::Proven, |_| {});
}
