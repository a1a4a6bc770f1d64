//! Verdicts on hand-made flows: a client pod and a server pod on two nodes, and what each of the rules of product.md
//! makes of what was seen.

mod copies;
mod data;
mod datagrams;
mod egress;
mod explain;
mod large;
mod reasonless;
mod wireguard;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::{Judgement, Scene, judge};
use crate::analysis::Analysis;
use crate::codes::{CauseCode, Confidence, PacketKind, Stage, VerdictCode};
use crate::event::{
    Death, DeviceId, Event, NetnsId, SkbId, Socket, SocketHook, Symbol, TcpState, What,
};
use crate::flow::pairing::flows;
use crate::flow::{FiveTuple, IcmpError, Message, Point, Segment, Sighting, TcpFlags};
use crate::record::{Device, Fact, Header, Hook, HookState, Ledger, Record, View};

const POD_A: NetnsId = NetnsId {
    inum: 0xf000_0001,
    cookie: 1,
};
const NODE_A: NetnsId = NetnsId {
    inum: 0xf000_0002,
    cookie: 2,
};
const NODE_B: NetnsId = NetnsId {
    inum: 0xf000_0003,
    cookie: 3,
};
const POD_B: NetnsId = NetnsId {
    inum: 0xf000_0004,
    cookie: 4,
};

const ETH0: u32 = 2;
const LXC: u32 = 3;
const NIC: u32 = 4;

const CLIENT: ([u8; 4], u16) = ([10, 0, 1, 2], 40_000);
const SERVER: ([u8; 4], u16) = ([10, 0, 2, 2], 6379);

const MS: u64 = 1_000_000;
const ISN: u32 = 1_000;
const SERVER_ISN: u32 = 9_000;

/// A place that a packet passes.
#[derive(Clone, Copy)]
enum At {
    Xmit(NetnsId, u32),
    Receive(NetnsId, u32),
    Consume(NetnsId, u32),
    /// There, before any hook but a death sees it.
    Unseen(NetnsId, u32),
}
use At::{Consume, Receive, Unseen, Xmit};

/// The whole way from the client to the server.
const THERE: [At; 7] = [
    Xmit(POD_A, ETH0),
    Receive(NODE_A, LXC),
    Xmit(NODE_A, NIC),
    Receive(NODE_B, NIC),
    Xmit(NODE_B, LXC),
    Receive(POD_B, ETH0),
    Consume(POD_B, ETH0),
];
/// And back.
const BACK: [At; 6] = [
    Xmit(POD_B, ETH0),
    Receive(NODE_B, LXC),
    Xmit(NODE_B, NIC),
    Receive(NODE_A, NIC),
    Xmit(NODE_A, LXC),
    Receive(POD_A, ETH0),
];

/// What a test sees happening.
struct Story {
    analysis: Analysis,
    sequence: u32,
    skb: u64,
    now_ns: u64,
    /// What the packets that are seen next are, if not segments.
    icmp: Option<IcmpError>,
    /// How many hops they have left.
    hop_limit: u8,
    /// Their mark.
    mark: u32,
    /// How long they are.
    len: u32,
    /// The two ends as they are addressed from now on.
    client: SocketAddr,
    server: SocketAddr,
}

impl Story {
    fn new(view: View) -> Self {
        let hooks = [
            "net_dev_start_xmit",
            "netif_receive_skb",
            "kfree_skb",
            "consume_skb",
            "tcp_retransmit_skb",
        ];
        let header = Header {
            schema: crate::record::CAPTURE_SCHEMA.to_owned(),
            tracer_version: String::new(),
            command: Vec::new(),
            hostname: String::new(),
            machine_id: String::new(),
            boot_id: String::new(),
            kernel: String::new(),
            arch: String::new(),
            filter: String::new(),
            view,
            hooks: hooks
                .map(|name| Hook {
                    name: name.to_owned(),
                    kind: "tp_btf".to_owned(),
                    state: HookState::Attached,
                    reason: None,
                })
                .to_vec(),
            blind_spots: Vec::new(),
            tc_devices: Vec::new(),
            start_ns: 0,
        };
        let mut analysis = Analysis::new(header);
        let device = |netns,
                      ifindex,
                      name: &str,
                      kind: &str,
                      peer: Option<(NetnsId, u32)>,
                      addr: Option<[u8; 4]>| {
            Record::Device(Box::new(Device {
                id: DeviceId { netns, ifindex },
                netns_name: None,
                name: name.to_owned(),
                kind: kind.to_owned(),
                mtu: 1500,
                up: true,
                mac: None,
                peer: peer.map(|(netns, ifindex)| DeviceId { netns, ifindex }),
                master_ifindex: None,
                vni: None,
                udp_port: None,
                underlay_ifindex: None,
                underlay_netns: None,
                addrs: addr.map(Into::into).into_iter().collect(),
                removed: false,
            }))
        };
        for record in [
            device(
                POD_A,
                ETH0,
                "eth0",
                "veth",
                Some((NODE_A, LXC)),
                Some(CLIENT.0),
            ),
            device(NODE_A, LXC, "lxca", "veth", Some((POD_A, ETH0)), None),
            device(
                NODE_A,
                NIC,
                "ens3",
                "physical",
                None,
                Some([192, 168, 0, 1]),
            ),
            device(
                NODE_B,
                NIC,
                "ens3",
                "physical",
                None,
                Some([192, 168, 0, 2]),
            ),
            device(NODE_B, LXC, "lxcb", "veth", Some((POD_B, ETH0)), None),
            device(
                POD_B,
                ETH0,
                "eth0",
                "veth",
                Some((NODE_B, LXC)),
                Some(SERVER.0),
            ),
        ] {
            analysis.push(&record);
        }
        Self {
            analysis,
            sequence: 0,
            skb: 100,
            now_ns: 10_000 * MS,
            icmp: None,
            hop_limit: 64,
            mark: 0,
            len: 60,
            client: CLIENT.into(),
            server: SERVER.into(),
        }
    }

    fn whole() -> Self {
        Self::new(View::Kernel)
    }

    fn see(
        &mut self,
        at_ms: u64,
        from_client: bool,
        message: impl Into<Message>,
        places: &[At],
        death: Option<Death>,
    ) {
        let message = message.into();
        self.skb += 1;
        let (src, dst) = if from_client {
            (self.client, self.server)
        } else {
            (self.server, self.client)
        };
        let points = places.iter().filter_map(|place| match *place {
            Xmit(netns, ifindex) => Some((netns, ifindex, Point::Xmit)),
            Receive(netns, ifindex) => Some((netns, ifindex, Point::Receive)),
            Consume(netns, ifindex) => Some((netns, ifindex, Point::Consume)),
            Unseen(..) => None,
        });
        let (netns, ifindex) = match places.last() {
            Some(
                Xmit(netns, ifindex)
                | Receive(netns, ifindex)
                | Consume(netns, ifindex)
                | Unseen(netns, ifindex),
            ) => (*netns, Some(*ifindex)),
            None => (if from_client { POD_A } else { POD_B }, None),
        };
        let death = death.map(|death| (netns, ifindex, Point::Drop(Box::new(death))));
        let sightings = points
            .map(|(netns, ifindex, point)| (netns, Some(ifindex), point))
            .chain(death);
        for (netns, ifindex, point) in sightings {
            self.sequence += 1;
            self.analysis.flows.push(Sighting {
                time_ns: at_ms * MS + u64::from(self.sequence),
                cpu: 0,
                sequence: self.sequence,
                netns: Some(netns),
                ifindex,
                skb: SkbId(self.skb),
                point,
                packet_len: self.len,
                inner_len: self.len,
                skb_len: self.len + 14,
                gso_size: 0,
                dont_fragment: true,
                mark: self.mark,
                tuple: FiveTuple {
                    protocol: protocol(message),
                    src,
                    dst,
                },
                hop_limit: self.hop_limit,
                message,
                icmp: self.icmp,
                tunnels: Vec::new(),
                dst_mac: None,
            });
        }
    }

    fn syn(&mut self, at_ms: u64, places: &[At]) {
        self.see(at_ms, true, syn(at_ms), places, None);
    }

    fn syn_ack(&mut self, at_ms: u64, places: &[At]) {
        self.see(at_ms, false, syn_ack(at_ms), places, None);
    }

    fn ack(&mut self, at_ms: u64, places: &[At]) {
        self.see(at_ms, true, ack(at_ms), places, None);
    }

    /// The client's socket enters a state.
    fn socket(&mut self, at_ms: u64, new_state: TcpState) {
        self.state(at_ms, (POD_A, self.client, self.server), new_state);
    }

    /// The server's socket enters a state.
    fn server_socket(&mut self, at_ms: u64, new_state: TcpState) {
        self.state(at_ms, (POD_B, self.server, self.client), new_state);
    }

    fn state(
        &mut self,
        at_ms: u64,
        (netns, local, remote): (NetnsId, SocketAddr, SocketAddr),
        new_state: TcpState,
    ) {
        self.sequence += 1;
        let event = Event {
            time_ns: at_ms * MS + u64::from(self.sequence),
            cpu: 0,
            sequence: self.sequence,
            netns: Some(netns),
            ifindex: None,
            what: What::Socket {
                hook: SocketHook::State,
                socket: Socket {
                    local_addr: local.ip(),
                    local_port: local.port(),
                    remote_addr: remote.ip(),
                    remote_port: remote.port(),
                    old_state: None,
                    new_state: Some(new_state),
                    process: None,
                    again: None,
                },
            },
        };
        self.analysis.push(&Record::Event(Box::new(event)));
    }

    fn check(&self, code: VerdictCode, confidence: Confidence, then: impl FnOnce(&Judgement<'_>)) {
        let scene = Scene {
            analysis: &self.analysis,
            now_ns: self.now_ns,
        };
        let group = self.analysis.flows.groups().next().expect("a flow");
        let flows = flows(&group);
        let judgement = judge(flows.last().expect("a flow"), &scene);
        assert_eq!(
            (judgement.code, judgement.confidence),
            (code, confidence),
            "{judgement:#?}"
        );
        then(&judgement);
    }
}

impl From<Segment> for Message {
    fn from(segment: Segment) -> Self {
        Self::Tcp(segment)
    }
}

fn protocol(message: Message) -> u8 {
    match message {
        Message::Tcp(_) => 6,
        Message::Udp(_) => 17,
        Message::Echo(_) => 1,
    }
}

fn segment(flags: TcpFlags, seq: u32, ack: u32, at_ms: u64) -> Segment {
    Segment {
        seq,
        ack,
        flags,
        payload_len: 0,
        tsval: u32::try_from(at_ms).ok(),
    }
}

fn syn(at_ms: u64) -> Segment {
    segment(TcpFlags::SYN, ISN, 0, at_ms)
}

fn syn_ack(at_ms: u64) -> Segment {
    segment(TcpFlags::SYN | TcpFlags::ACK, SERVER_ISN, ISN + 1, at_ms)
}

fn ack(at_ms: u64) -> Segment {
    segment(TcpFlags::ACK, ISN + 1, SERVER_ISN + 1, at_ms)
}

#[expect(
    clippy::unnecessary_wraps,
    reason = "it stands where a story may have no death"
)]
fn killed(reason: &str, functions: &[&str]) -> Option<Death> {
    let mut symbols = functions.iter().map(|name| Symbol {
        function: (*name).to_owned(),
        offset: 0x10,
    });
    Some(Death {
        reason: Some(reason.to_owned()),
        location: symbols.next().expect("a function"),
        callers: symbols.collect(),
        result: None,
    })
}

fn nft_forward() -> Option<Death> {
    killed(
        "NETFILTER_DROP",
        &["nft_do_chain", "nf_hook_slow", "ip_forward", "ip_rcv"],
    )
}

fn in_tcp(reason: &str) -> Option<Death> {
    killed(
        reason,
        &[
            "tcp_v4_rcv",
            "ip_protocol_deliver_rcu",
            "ip_local_deliver_finish",
        ],
    )
}

#[test]
fn a_complete_handshake_is_answered() {
    let mut story = Story::whole();
    story.syn(0, &THERE);
    story.syn_ack(1, &BACK);
    story.ack(2, &THERE[..6]);
    story.check(VerdictCode::Answered, Confidence::Proven, |judgement| {
        assert!(judgement.losses.is_empty());
        assert!(judgement.is_final);
        assert!(
            judgement.summary.starts_with("answered in 1.0 ms"),
            "{}",
            judgement.summary
        );
    });
}

#[test]
fn a_reply_that_dies_twice_is_final_before_the_deadline() {
    let mut story = Story::whole();
    for at_ms in [0, 1_000] {
        story.syn(at_ms, &THERE);
        story.see(
            at_ms + 1,
            false,
            syn_ack(at_ms + 1),
            &BACK[..2],
            nft_forward(),
        );
    }
    story.now_ns = 1_200 * MS;
    story.check(VerdictCode::ReplyDropped, Confidence::Proven, |judgement| {
        assert!(judgement.is_final);
        let cause = judgement.cause.as_ref().expect("a cause");
        assert_eq!(
            (cause.code, cause.stage),
            (CauseCode::Netfilter, Stage::Forward)
        );
        assert_eq!(judgement.at.expect("a place").sighting.netns, Some(NODE_B));
    });
}

#[test]
fn one_death_before_the_deadline_is_no_verdict_yet() {
    let mut story = Story::whole();
    story.syn(0, &THERE);
    story.see(1, false, syn_ack(1), &BACK[..2], nft_forward());
    story.now_ns = 812 * MS;
    story.check(
        VerdictCode::Inconclusive,
        Confidence::Inconclusive,
        |judgement| {
            assert!(
                judgement.summary.contains("window closed 81"),
                "{}",
                judgement.summary
            );
            assert!(!judgement.is_final);
        },
    );
    story.now_ns = 3_600 * MS;
    story.check(VerdictCode::ReplyDropped, Confidence::Proven, |_| {});
}

#[test]
fn the_deadline_moves_with_the_latest_request() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_A, POD_A],
    });
    story.syn(0, &THERE[..3]);
    story.syn(3_400, &THERE[..3]);
    story.now_ns = 3_600 * MS;
    story.check(VerdictCode::Inconclusive, Confidence::Inconclusive, |_| {});
    story.now_ns = 3_950 * MS;
    story.check(VerdictCode::RequestLeftNode, Confidence::Inferred, |_| {});
}

#[test]
fn a_reply_that_dies_before_its_first_device_is_dropped_in_local_out() {
    let mut story = Story::whole();
    let output = || {
        killed(
            "NETFILTER_DROP",
            &[
                "nft_do_chain",
                "nf_hook_slow",
                "__ip_local_out",
                "ip_build_and_send_pkt",
            ],
        )
    };
    for at_ms in [0, 1_000, 3_000] {
        story.syn(at_ms, &THERE);
        story.see(at_ms + 1, false, syn_ack(at_ms + 1), &[], output());
    }
    story.check(VerdictCode::ReplyDropped, Confidence::Proven, |judgement| {
        let place = judgement.at.expect("a place");
        assert_eq!(
            (place.stage, place.sighting.netns),
            (Stage::LocalOut, Some(POD_B))
        );
    });
}

#[test]
fn a_reply_that_leaves_a_restricted_view_has_left_the_node() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_B, POD_B],
    });
    for at_ms in [0, 1_000, 3_000] {
        story.syn(at_ms, &THERE[3..]);
        story.syn_ack(at_ms + 1, &BACK[..3]);
    }
    story.check(VerdictCode::ReplyLeftNode, Confidence::Inferred, |judgement| {
        assert_eq!(judgement.summary, "reply lost: SYN-ACK left this node on ens3 in netns 4026531843 and no ACK ever came");
        assert!(judgement.cause.is_none());
    });
}

#[test]
fn a_repeated_syn_that_meets_the_pending_request_is_innocent() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_B, POD_B],
    });
    story.syn(0, &THERE[3..]);
    story.syn_ack(1, &BACK[..3]);
    story.see(
        1_000,
        true,
        syn(1_000),
        &THERE[3..6],
        in_tcp("NOT_SPECIFIED"),
    );
    story.syn_ack(1_001, &BACK[..3]);
    story.check(
        VerdictCode::ReplyLeftNode,
        Confidence::Inferred,
        |judgement| {
            assert_eq!(judgement.losses.len(), 1);
            assert!(judgement.losses[0].innocent);
        },
    );
}

#[test]
fn a_reply_after_the_client_gave_up_proves_nothing() {
    let mut story = Story::whole();
    story.socket(0, TcpState::SynSent);
    story.syn(0, &THERE);
    story.socket(500, TcpState::Close);
    story.see(700, false, syn_ack(700), &BACK, in_tcp("NO_SOCKET"));
    story.check(
        VerdictCode::Inconclusive,
        Confidence::Inconclusive,
        |judgement| {
            assert!(judgement.losses[0].innocent);
        },
    );
}

#[test]
fn a_reply_to_a_raw_socket_is_not_called_lost() {
    let mut story = Story::whole();
    story.syn(0, &THERE);
    story.see(1, false, syn_ack(1), &BACK, in_tcp("NO_SOCKET"));
    story.check(VerdictCode::Inconclusive, Confidence::Inconclusive, |_| {});
}

#[test]
fn a_trace_that_begins_after_the_client_gave_up_sees_nothing_wrong() {
    let mut story = Story::whole();
    story.see(0, false, syn_ack(0), &BACK, in_tcp("NO_SOCKET"));
    story.see(
        0,
        true,
        segment(TcpFlags::RST, ISN + 1, 0, 1),
        &THERE[..6],
        in_tcp("TCP_RESET"),
    );
    story.check(VerdictCode::Inconclusive, Confidence::Inconclusive, |_| {});
}

#[test]
fn a_listener_that_stays_silent_has_not_answered() {
    let mut story = Story::whole();
    for at_ms in [0, 1_000, 3_000] {
        story.syn(at_ms, &THERE);
    }
    story.check(
        VerdictCode::RequestNotAnswered,
        Confidence::Inferred,
        |judgement| {
            assert!(judgement.cause.is_none());
            assert_eq!(judgement.at.expect("a place").stage, Stage::Listener);
        },
    );
    story.analysis.push(&Record::Fact(Fact::Counter {
        netns: POD_B,
        name: "TcpExtListenOverflows".to_owned(),
        before: 1,
        after: 4,
    }));
    story.check(
        VerdictCode::RequestNotAnswered,
        Confidence::Inferred,
        |judgement| {
            assert_eq!(
                judgement.cause.as_ref().expect("a cause").code,
                CauseCode::AcceptQueueFull
            );
        },
    );
}

#[test]
fn a_counter_of_another_namespace_explains_nothing() {
    let mut story = Story::whole();
    story.syn(0, &THERE);
    story.analysis.push(&Record::Fact(Fact::Counter {
        netns: POD_A,
        name: "TcpExtListenOverflows".to_owned(),
        before: 1,
        after: 4,
    }));
    story.check(
        VerdictCode::RequestNotAnswered,
        Confidence::Inferred,
        |judgement| assert!(judgement.cause.is_none()),
    );
}

#[test]
fn a_closed_port_refuses() {
    let mut story = Story::whole();
    story.see(0, true, syn(0), &THERE[..6], in_tcp("NO_SOCKET"));
    story.see(
        1,
        false,
        segment(TcpFlags::RST | TcpFlags::ACK, 0, ISN + 1, 1),
        &BACK,
        None,
    );
    story.now_ns = 5 * MS;
    story.check(VerdictCode::Refused, Confidence::Proven, |judgement| {
        assert_eq!(
            judgement.cause.as_ref().expect("a cause").code,
            CauseCode::NoListener
        );
        assert!(judgement.is_final);
    });
}

#[test]
fn a_reset_of_another_attempt_refuses_nothing() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_A, POD_A],
    });
    story.syn(0, &THERE[..3]);
    story.see(
        1,
        false,
        segment(TcpFlags::RST | TcpFlags::ACK, 0, ISN + 7, 1),
        &BACK[3..],
        None,
    );
    story.check(VerdictCode::RequestLeftNode, Confidence::Inferred, |_| {});
}

#[test]
fn an_ack_that_always_dies_leaves_the_handshake_incomplete() {
    let mut story = Story::whole();
    story.socket(0, TcpState::SynSent);
    story.syn(0, &THERE);
    story.syn_ack(1, &BACK);
    story.socket(1, TcpState::Established);
    for at_ms in [2, 1_002] {
        story.see(at_ms, true, ack(at_ms), &THERE[..4], nft_forward());
    }
    story.check(VerdictCode::AckDropped, Confidence::Proven, |judgement| {
        assert_eq!(judgement.at.expect("a place").sighting.netns, Some(NODE_B));
    });
    // Data that gets through ends the matter.
    let data = Segment {
        payload_len: 5,
        ..ack(1_100)
    };
    story.see(1_100, true, data, &THERE[..6], None);
    story.check(VerdictCode::Answered, Confidence::Proven, |_| {});
}

#[test]
fn an_ack_that_the_server_defers_is_not_lost() {
    let deferred = |reason| {
        let mut story = Story::whole();
        story.socket(0, TcpState::SynSent);
        story.syn(0, &THERE);
        story.syn_ack(1, &BACK);
        story.socket(1, TcpState::Established);
        story.see(2, true, ack(2), &THERE[..6], in_tcp(reason));
        story
    };
    let mut silent = deferred("NOT_SPECIFIED");
    silent.check(VerdictCode::Inconclusive, Confidence::Inconclusive, |_| {});
    let data = Segment {
        payload_len: 5,
        ..ack(1_100)
    };
    silent.see(1_100, true, data, &THERE[..6], None);
    silent.check(VerdictCode::Answered, Confidence::Proven, |_| {});
    // What TCP gives a reason for, it has not put aside.
    deferred("TCP_RFC7323_PAWS").check(VerdictCode::AckDropped, Confidence::Proven, |_| {});
}

#[test]
fn a_second_try_that_is_answered_is_healthy_and_slow() {
    let mut story = Story::whole();
    story.see(0, true, syn(0), &THERE[..4], nft_forward());
    story.syn(1_000, &THERE);
    story.syn_ack(1_001, &BACK);
    story.ack(1_002, &THERE[..6]);
    story.check(VerdictCode::Answered, Confidence::Proven, |judgement| {
        assert_eq!(judgement.losses.len(), 1);
        assert_eq!(judgement.losses[0].packet, PacketKind::Syn);
        assert!(!judgement.losses[0].innocent);
        assert!(
            judgement.summary.contains("slowly: 1.00 s"),
            "{}",
            judgement.summary
        );
    });
}

#[test]
fn a_flooded_copy_that_dies_elsewhere_is_not_the_death() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_B, POD_B],
    });
    story.syn(0, &THERE[3..]);
    // A second skb of the same SYN dies on a host that it was not meant for.
    story.see(
        0,
        true,
        syn(0),
        &[Xmit(NODE_B, LXC), Receive(POD_A, ETH0)],
        killed("OTHERHOST", &["ip_rcv_core", "ip_rcv"]),
    );
    story.check(
        VerdictCode::RequestNotAnswered,
        Confidence::Inferred,
        |_| {},
    );
}

#[test]
fn what_was_lost_spoils_every_inference_and_every_death() {
    for dies in [false, true] {
        let mut story = Story::new(View::Netns {
            netns: vec![NODE_B, POD_B],
        });
        for at_ms in [0, 1_000, 3_000] {
            story.syn(at_ms, &THERE[3..]);
            story.see(
                at_ms + 1,
                false,
                syn_ack(at_ms + 1),
                &BACK[..2],
                dies.then(nft_forward).flatten(),
            );
        }
        let ledger = Ledger {
            time_ns: 2_000 * MS,
            ring_full: 1,
            ..Ledger::default()
        };
        story.analysis.push(&Record::Ledger(ledger));
        story.check(VerdictCode::Inconclusive, Confidence::Inconclusive, |_| {});
    }
}

#[test]
fn what_was_lost_before_the_flow_spoils_nothing() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_B, POD_B],
    });
    let lost = Ledger {
        time_ns: 100 * MS,
        ring_full: 1,
        ..Ledger::default()
    };
    story.analysis.push(&Record::Ledger(lost));
    story.syn(500, &THERE[3..]);
    story.syn_ack(501, &BACK[..3]);
    story.analysis.push(&Record::Ledger(Ledger {
        time_ns: 9_000 * MS,
        ..lost
    }));
    story.check(VerdictCode::ReplyLeftNode, Confidence::Inferred, |_| {});
}

#[test]
fn without_a_core_hook_absence_proves_nothing() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_B, POD_B],
    });
    story.analysis.header.hooks[2].state = HookState::Absent;
    story.syn(0, &THERE[3..]);
    story.syn_ack(1, &BACK[..3]);
    story.check(
        VerdictCode::Inconclusive,
        Confidence::Inconclusive,
        |judgement| {
            assert!(
                judgement.summary.contains("kfree_skb"),
                "{}",
                judgement.summary
            );
        },
    );
}

#[test]
fn a_connection_from_before_the_trace_is_answered_if_its_data_is_acknowledged() {
    let mut story = Story::whole();
    let data = Segment {
        payload_len: 100,
        ..segment(TcpFlags::ACK, 50, 70, 0)
    };
    story.see(0, true, data, &THERE[..6], None);
    story.check(VerdictCode::Inconclusive, Confidence::Inconclusive, |_| {});
    story.see(1, false, segment(TcpFlags::ACK, 70, 150, 1), &BACK, None);
    story.check(VerdictCode::Answered, Confidence::Inferred, |_| {});
}

#[test]
fn a_port_used_again_is_another_attempt() {
    let mut story = Story::whole();
    story.syn(0, &THERE);
    story.syn_ack(1, &BACK);
    story.ack(2, &THERE[..6]);
    story.see(
        5_000,
        true,
        segment(TcpFlags::SYN, 77_777, 0, 5_000),
        &THERE[..4],
        nft_forward(),
    );
    story.see(
        6_000,
        true,
        segment(TcpFlags::SYN, 77_777, 0, 6_000),
        &THERE[..4],
        nft_forward(),
    );
    story.check(VerdictCode::RequestDropped, Confidence::Proven, |_| {});
}

#[test]
fn silence_behind_a_vlan_is_a_blind_spot() {
    let mut story = Story::whole();
    story.syn(0, &THERE);
    story.syn_ack(1, &BACK[..4]);
    story.check(VerdictCode::ReplyNotDelivered, Confidence::Inferred, |_| {});
    let vlan = Device {
        kind: "vlan".to_owned(),
        id: DeviceId {
            netns: NODE_A,
            ifindex: 9,
        },
        underlay_ifindex: Some(NIC),
        ..story
            .analysis
            .devices
            .get(DeviceId {
                netns: NODE_A,
                ifindex: NIC,
            })
            .expect("ens3")
            .clone()
    };
    story.analysis.push(&Record::Device(Box::new(vlan)));
    story.check(VerdictCode::Inconclusive, Confidence::Inconclusive, |_| {});
}

#[test]
fn the_copy_that_came_furthest_speaks() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_B, POD_B],
    });
    story.syn(0, &THERE[3..]);
    story.syn_ack(1, &BACK[..3]);
    story.see(1_001, false, syn_ack(1_001), &BACK[..2], nft_forward());
    story.check(
        VerdictCode::ReplyLeftNode,
        Confidence::Inferred,
        |judgement| {
            assert_eq!(judgement.losses.len(), 1);
        },
    );
}

#[test]
fn without_timestamps_a_repeated_hop_begins_another_transmission() {
    let mut story = Story::whole();
    let bare = |segment: Segment| Segment {
        tsval: None,
        ..segment
    };
    for at_ms in [0, 1_000] {
        story.see(at_ms, true, bare(syn(at_ms)), &THERE[..4], nft_forward());
    }
    story.now_ns = 1_100 * MS;
    story.check(
        VerdictCode::RequestDropped,
        Confidence::Proven,
        |judgement| assert!(judgement.is_final),
    );
}

#[test]
fn two_transmissions_of_one_millisecond_are_two() {
    let mut story = Story::whole();
    story.syn(0, &THERE);
    story.see(0, false, syn_ack(0), &BACK[..2], nft_forward());
    // The answer to a repeated SYN and the timer's own repetition, both at 1.000 s.
    for _ in 0..2 {
        story.see(1_000, false, syn_ack(1_000), &BACK[..2], nft_forward());
        // The second has the address of the first, which is free by then.
        story.skb -= 1;
    }
    story.now_ns = 1_001 * MS;
    story.check(VerdictCode::ReplyDropped, Confidence::Proven, |judgement| {
        assert_eq!(judgement.losses.len(), 3);
        assert!(judgement.is_final);
    });
}

#[test]
fn an_skb_that_is_sent_once_more_where_it_was_sent_is_another_packet() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_B, POD_B],
    });
    story.syn(0, &THERE[3..]);
    for copy in [200, 300] {
        // Both leave at 1.000 s, and the pod's skb of the second has the address that the first has left free.
        story.skb = 100;
        story.see(1_000, false, syn_ack(1_000), &BACK[..1], None);
        story.skb = copy;
        story.see(1_000, false, syn_ack(1_000), &BACK[1..3], None);
    }
    story.check(
        VerdictCode::ReplyLeftNode,
        Confidence::Inferred,
        |judgement| {
            assert_eq!(
                judgement.at.expect("a place").sighting.ifindex,
                Some(NIC),
                "{judgement:#?}"
            );
        },
    );
}

#[test]
fn a_copy_that_a_veth_makes_before_it_kills_it_is_the_packet() {
    let mut story = Story::whole();
    story.syn(0, &THERE[..1]);
    let xdp = killed("NOT_SPECIFIED", &["veth_xdp_rcv_skb", "veth_xdp_rcv"]);
    story.see(0, true, syn(0), &[Unseen(NODE_A, LXC)], xdp);
    story.check(
        VerdictCode::RequestDropped,
        Confidence::Proven,
        |judgement| {
            assert_eq!(
                judgement.cause.as_ref().expect("a cause").code,
                CauseCode::XdpProgram
            );
        },
    );
}

#[test]
fn a_copy_that_still_waits_does_not_hide_the_deaths_of_the_others() {
    let mut story = Story::whole();
    let neigh = || killed("NEIGH_FAILED", &["neigh_invalidate", "neigh_timer_handler"]);
    for at_ms in [0, 1_000, 3_000] {
        story.see(at_ms, true, syn(at_ms), &THERE[..4], neigh());
    }
    story.syn(3_100, &THERE[..4]);
    story.check(
        VerdictCode::RequestDropped,
        Confidence::Proven,
        |judgement| {
            assert_eq!(
                judgement.cause.as_ref().expect("a cause").code,
                CauseCode::NeighbourUnresolved
            );
        },
    );
}

#[test]
fn a_refusal_answers_the_syn_that_died_last_before_it() {
    let mut story = Story::whole();
    story.see(0, true, syn(0), &THERE[..4], nft_forward());
    story.see(1_000, true, syn(1_000), &THERE[..6], in_tcp("NO_SOCKET"));
    story.see(
        1_001,
        false,
        segment(TcpFlags::RST | TcpFlags::ACK, 0, ISN + 1, 1),
        &BACK,
        None,
    );
    story.check(VerdictCode::Refused, Confidence::Proven, |judgement| {
        assert_eq!(
            judgement.cause.as_ref().expect("a cause").code,
            CauseCode::NoListener
        );
    });
}

#[test]
fn a_connection_from_before_the_trace_is_not_inferred_healthy_where_events_were_lost() {
    let mut story = Story::whole();
    let data = Segment {
        payload_len: 100,
        ..segment(TcpFlags::ACK, 50, 70, 0)
    };
    story.see(0, true, data, &THERE[..6], None);
    story.see(1, false, segment(TcpFlags::ACK, 70, 150, 1), &BACK, None);
    story.analysis.push(&Record::Ledger(Ledger {
        time_ns: 2_000 * MS,
        ring_full: 1,
        ..Ledger::default()
    }));
    story.check(VerdictCode::Inconclusive, Confidence::Inconclusive, |_| {});
}

const PROHIBITED: Option<IcmpError> = Some(IcmpError {
    version: 4,
    kind: 3,
    code: 13,
    from: IpAddr::V4(Ipv4Addr::new(192, 168, 0, 2)),
    to: IpAddr::V4(Ipv4Addr::new(10, 0, 1, 2)),
    mtu: None,
});

#[test]
fn a_rule_that_rejects_with_icmp_refuses() {
    let mut story = Story::whole();
    story.see(0, true, syn(0), &THERE[..4], nft_forward());
    story.icmp = PROHIBITED;
    story.see(0, true, syn(0), &BACK[2..], None);
    story.now_ns = 5 * MS;
    story.check(VerdictCode::Refused, Confidence::Proven, |judgement| {
        assert_eq!(
            judgement.cause.as_ref().expect("a cause").code,
            CauseCode::Rejected
        );
        assert_eq!(judgement.at.expect("a place").sighting.netns, Some(NODE_B));
    });
}

#[test]
fn an_icmp_error_from_outside_the_view_refuses() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_A, POD_A],
    });
    story.syn(0, &THERE[..3]);
    story.icmp = PROHIBITED;
    story.see(1, true, syn(0), &BACK[3..], None);
    story.check(VerdictCode::Refused, Confidence::Proven, |judgement| {
        assert!(
            judgement.summary.contains("192.168.0.2"),
            "{}",
            judgement.summary
        );
    });
}

#[test]
fn a_client_that_hears_of_a_syn_in_circles_is_refused() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_A, POD_A],
    });
    story.syn(0, &THERE[..3]);
    story.icmp = PROHIBITED.map(|error| IcmpError {
        kind: 11,
        code: 0,
        ..error
    });
    story.see(1, true, syn(0), &BACK[3..], None);
    story.check(VerdictCode::Refused, Confidence::Proven, |judgement| {
        assert_eq!(
            judgement.cause.as_ref().expect("a cause").code,
            CauseCode::Ttl
        );
    });
}

#[test]
fn a_packet_that_goes_in_circles_is_one_packet() {
    let mut story = Story::whole();
    story.syn(0, &THERE[..4]);
    // From node-b back to node-a and there again, in the same skb, until node-b has no hop left to give.
    let circle = [
        Xmit(NODE_B, NIC),
        Receive(NODE_A, NIC),
        Xmit(NODE_A, NIC),
        Receive(NODE_B, NIC),
    ];
    for (hops, death) in [
        (62, None),
        (60, killed("IP_INHDR", &["ip_forward", "ip_rcv"])),
    ] {
        story.skb -= 1;
        story.hop_limit = hops;
        story.see(0, true, syn(0), &circle, death);
    }
    story.check(
        VerdictCode::RequestDropped,
        Confidence::Proven,
        |judgement| {
            let cause = judgement.cause.as_ref().expect("a cause");
            assert_eq!(cause.code, CauseCode::Ttl);
        },
    );
    let group = story.analysis.flows.groups().next().expect("a flow");
    assert_eq!(flows(&group)[0].request.len(), 1);
}

#[test]
fn an_icmp_error_about_a_death_that_was_seen_is_not_the_cause() {
    let mut story = Story::whole();
    story.see(
        0,
        true,
        syn(0),
        &THERE[..4],
        killed("NEIGH_FAILED", &["neigh_invalidate"]),
    );
    story.icmp = PROHIBITED;
    story.see(3_000, true, syn(0), &BACK[2..], None);
    story.check(VerdictCode::RequestDropped, Confidence::Proven, |_| {});
}

#[test]
fn too_big_refuses_nothing() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_A, POD_A],
    });
    story.syn(0, &THERE[..3]);
    story.icmp = PROHIBITED.map(|error| IcmpError { code: 4, ..error });
    story.see(1, true, syn(0), &BACK[3..], None);
    story.check(VerdictCode::RequestLeftNode, Confidence::Inferred, |_| {});
}

#[test]
fn a_flow_that_began_while_the_hooks_were_attached_is_not_inferred() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_B, POD_B],
    });
    story.analysis.header.start_ns = 100 * MS;
    story.syn(99, &THERE[3..]);
    story.check(VerdictCode::Inconclusive, Confidence::Inconclusive, |_| {});
}

const CLUSTER_IP: ([u8; 4], u16) = ([10, 96, 0, 1], 443);
const NODE_A_PORT: ([u8; 4], u16) = ([192, 168, 0, 1], 50_000);

impl Story {
    /// A packet that node-a translates: the pod's side of its way, and the other, in one skb.
    fn translated(
        &mut self,
        at_ms: u64,
        from_client: bool,
        segment: Segment,
        pod_side: &[At],
        far_side: &[At],
    ) {
        let sides = if from_client {
            [(true, pod_side), (false, far_side)]
        } else {
            [(false, far_side), (true, pod_side)]
        };
        for (in_pod, places) in sides {
            self.client = if in_pod { CLIENT } else { NODE_A_PORT }.into();
            self.server = if in_pod { CLUSTER_IP } else { SERVER }.into();
            self.see(at_ms, from_client, segment, places, None);
            self.skb -= 1;
        }
        self.skb += 1;
    }
}

#[test]
fn a_translated_connection_is_one_flow() {
    let mut story = Story::whole();
    story.translated(0, true, syn(0), &THERE[..2], &THERE[2..]);
    story.check(
        VerdictCode::RequestNotAnswered,
        Confidence::Inferred,
        |judgement| {
            assert_eq!(judgement.at.expect("a place").sighting.netns, Some(POD_B));
        },
    );
    story.translated(1, false, syn_ack(1), &BACK[4..], &BACK[..4]);
    story.translated(2, true, ack(2), &THERE[..2], &THERE[2..6]);
    story.check(VerdictCode::Answered, Confidence::Proven, |_| {});
    assert_eq!(story.analysis.flows.groups().count(), 1);
    let group = story.analysis.flows.groups().next().expect("a flow");
    let flows = flows(&group);
    assert_eq!(flows.len(), 1);
    assert_eq!(
        (flows[0].client, flows[0].server),
        (CLIENT.into(), CLUSTER_IP.into())
    );
    assert_eq!(flows[0].forward.len(), 2);
}

/// It waits for a neighbour, and is not seen under its new addresses before it is given up.
#[test]
fn a_translated_packet_may_wait_for_a_neighbour() {
    let mut story = Story::whole();
    story.server = CLUSTER_IP.into();
    story.see(0, true, syn(0), &THERE[..2], None);
    story.skb -= 1;
    story.server = SERVER.into();
    let given_up = killed("NEIGH_FAILED", &["neigh_invalidate", "neigh_timer_handler"]);
    story.see(3_050, true, syn(0), &[Unseen(NODE_A, NIC)], given_up);
    assert_eq!(story.analysis.flows.groups().count(), 1);
}

#[test]
fn two_connections_through_one_translated_port_are_two() {
    let mut story = Story::whole();
    story.translated(0, true, syn(0), &THERE[..2], &THERE[2..]);
    story.translated(1, false, syn_ack(1), &BACK[4..], &BACK[..4]);
    story.translated(2, true, ack(2), &THERE[..2], &THERE[2..6]);
    let second = Segment {
        seq: 88_888,
        ..syn(3_000)
    };
    story.translated(3_000, true, second, &THERE[..2], &THERE[2..]);
    story.check(
        VerdictCode::RequestNotAnswered,
        Confidence::Inferred,
        |_| {},
    );
    let group = story.analysis.flows.groups().next().expect("a flow");
    assert_eq!(flows(&group).len(), 2);
}

#[test]
fn a_reply_that_nothing_translates_back_is_dropped_by_the_client() {
    let mut story = Story::whole();
    story.server = CLUSTER_IP.into();
    story.socket(0, TcpState::SynSent);
    for at_ms in [0, 1_000] {
        story.server = CLUSTER_IP.into();
        story.see(at_ms, true, syn(at_ms), &THERE[..2], None);
        story.skb -= 1;
        story.server = SERVER.into();
        story.see(at_ms, true, syn(at_ms), &THERE[2..], None);
        story.see(
            at_ms + 1,
            false,
            syn_ack(at_ms + 1),
            &BACK,
            in_tcp("NO_SOCKET"),
        );
    }
    story.check(VerdictCode::ReplyDropped, Confidence::Proven, |judgement| {
        assert!(
            judgement.summary.contains("nothing translated it back"),
            "{}",
            judgement.summary
        );
    });
}

#[test]
fn an_skb_that_was_freed_joins_nothing() {
    let mut story = Story::whole();
    story.see(0, true, syn(0), &THERE[..4], nft_forward());
    story.skb -= 1;
    story.server = CLUSTER_IP.into();
    story.see(0, true, syn(0), &THERE[..2], None);
    assert_eq!(story.analysis.flows.groups().count(), 2);
}

#[test]
fn a_client_that_rejects_the_reply_has_it() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_B, POD_B],
    });
    story.syn(0, &THERE[3..]);
    story.syn_ack(500, &BACK[..3]);
    story.see(
        501,
        true,
        segment(TcpFlags::RST, ISN + 1, 0, 501),
        &THERE[3..6],
        None,
    );
    story.check(
        VerdictCode::Inconclusive,
        Confidence::Inconclusive,
        |judgement| {
            assert!(judgement.summary.contains("RST"), "{}", judgement.summary);
        },
    );
}

#[test]
fn a_client_that_goes_on_sending_its_syn_has_not_rejected_the_reply() {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_B, POD_B],
    });
    for at_ms in [0, 1_000, 2_000] {
        story.syn(at_ms, &THERE[3..]);
        story.syn_ack(at_ms + 1, &BACK[..3]);
        let reset = segment(TcpFlags::RST, ISN + 1, 0, at_ms + 2);
        story.see(at_ms + 2, true, reset, &THERE[3..6], None);
    }
    story.check(
        VerdictCode::ReplyLeftNode,
        Confidence::Inferred,
        |judgement| {
            assert!(
                judgement.summary.contains("rejects"),
                "{}",
                judgement.summary
            );
        },
    );
}

#[test]
fn a_sniffer_that_cannot_keep_up_kills_no_packet() {
    let mut story = Story::whole();
    let sniffer = || killed("PACKET_SOCK_ERROR", &["tpacket_rcv", "dev_queue_xmit_nit"]);
    story.syn(0, &THERE);
    story.see(0, true, syn(0), &THERE[..1], sniffer());
    story.check(
        VerdictCode::RequestNotAnswered,
        Confidence::Inferred,
        |judgement| {
            assert!(judgement.losses[0].innocent);
        },
    );
}

#[test]
fn two_namespaces_with_the_same_addresses_keep_their_connections_apart() {
    let mut story = Story::whole();
    let other = |segment: Segment| Segment {
        seq: segment.seq.wrapping_add(1 << 30),
        ..segment
    };
    story.syn(0, &THERE);
    story.see(1, true, other(syn(1)), &THERE[..4], nft_forward());
    story.syn_ack(2, &BACK);
    // Later than both SYNs, and of the first connection.
    story.ack(3, &THERE[..6]);
    story.see(1_001, true, other(syn(1_001)), &THERE[..4], nft_forward());
    story.check(VerdictCode::RequestDropped, Confidence::Proven, |_| {});
}

/// A connection with the addresses of another, elsewhere and at the same time.
fn with_isn(segment: Segment, shift: u32) -> Segment {
    Segment {
        seq: segment.seq.wrapping_add(shift),
        ack: segment.ack.wrapping_add(shift),
        ..segment
    }
}

#[test]
fn data_of_another_connection_with_the_same_addresses_is_not_an_answer() {
    let elsewhere = 0x5000_0000;
    let mut story = Story::whole();
    story.see(0, true, with_isn(syn(0), elsewhere), &THERE[..1], None);
    story.see(1, false, with_isn(syn_ack(1), elsewhere), &BACK[5..], None);
    story.see(2, true, with_isn(ack(2), elsewhere), &THERE[..1], None);
    story.see(3, true, syn(3), &THERE[..6], nft_forward());
    let data = Segment {
        payload_len: 10,
        seq: ISN + 11,
        ..ack(4)
    };
    story.see(4, true, with_isn(data, elsewhere), &THERE[..1], None);
    story.check(VerdictCode::RequestDropped, Confidence::Proven, |_| {});
    // And if its handshake was not seen.
    let mut story = Story::whole();
    story.see(3, true, syn(3), &THERE[..6], nft_forward());
    story.see(4, true, with_isn(data, elsewhere), &THERE[..1], None);
    story.check(VerdictCode::RequestDropped, Confidence::Proven, |_| {});
}

#[test]
fn a_socket_of_another_namespace_with_the_same_addresses_is_not_an_answer() {
    let mut story = Story::whole();
    // The packets pass node-a only; the socket in pod-a has the same addresses and is established.
    story.see(0, true, syn(0), &THERE[2..3], nft_forward());
    story.socket(1, TcpState::Established);
    story.check(VerdictCode::RequestDropped, Confidence::Proven, |_| {});
}

#[test]
fn a_socket_that_closes_just_before_another_attempt_belongs_to_the_one_before() {
    let mut story = Story::whole();
    story.socket(0, TcpState::SynSent);
    story.syn(0, &THERE);
    story.socket(300, TcpState::Close);
    story.socket(300, TcpState::SynSent);
    story.see(300, true, with_isn(syn(300), 77), &THERE, None);
    story.see(
        400,
        false,
        syn_ack(400),
        &BACK,
        in_tcp("TCP_INVALID_ACK_SEQUENCE"),
    );
    let group = story.analysis.flows.groups().next().expect("a flow");
    let flows = flows(&group);
    let scene = Scene {
        analysis: &story.analysis,
        now_ns: story.now_ns,
    };
    let judgement = judge(&flows[0], &scene);
    assert_eq!(judgement.code, VerdictCode::Inconclusive, "{judgement:#?}");
}

#[test]
fn a_firewall_that_rejects_the_reply_speaks_in_the_clients_name() {
    let mut story = Story::whole();
    for at_ms in [0, 1_000] {
        story.syn(at_ms, &THERE);
        story.see(at_ms, false, syn_ack(at_ms), &BACK[..4], nft_forward());
        let reset = segment(TcpFlags::RST, ISN + 1, 0, at_ms);
        story.see(at_ms, true, reset, &THERE[2..6], None);
    }
    story.check(VerdictCode::ReplyDropped, Confidence::Proven, |_| {});
}

#[test]
fn data_in_a_syn_is_acknowledged_with_it() {
    let fast_open = Segment {
        payload_len: 4,
        ..syn(0)
    };
    let reply = Segment {
        ack: ISN + 5,
        ..syn_ack(1)
    };
    let mut story = Story::whole();
    story.see(0, true, fast_open, &THERE, None);
    story.see(1, false, reply, &BACK[..2], nft_forward());
    story.check(VerdictCode::ReplyDropped, Confidence::Proven, |_| {});
    let mut story = Story::whole();
    story.see(0, true, fast_open, &THERE, None);
    story.see(1, false, reply, &BACK, None);
    let ack = Segment {
        seq: ISN + 5,
        ..ack(2)
    };
    story.see(2, true, ack, &THERE[..6], None);
    story.check(VerdictCode::Answered, Confidence::Proven, |_| {});
    let group = story.analysis.flows.groups().next().expect("a flow");
    assert_eq!(flows(&group).len(), 1);
}

#[test]
fn a_reply_that_dies_half_translated_is_of_the_same_flow() {
    let mut story = Story::whole();
    story.translated(0, true, syn(0), &THERE[..2], &THERE[2..]);
    // The source is translated back only when it leaves: in FORWARD the packet has addresses that no SYN had.
    story.client = NODE_A_PORT.into();
    story.server = SERVER.into();
    story.see(1, false, syn_ack(1), &BACK[..4], None);
    story.skb -= 1;
    story.client = CLIENT.into();
    story.see(1, false, syn_ack(1), &[], nft_forward());
    story.check(VerdictCode::ReplyDropped, Confidence::Proven, |_| {});
    let group = story.analysis.flows.groups().next().expect("a flow");
    assert_eq!(flows(&group).len(), 1);
}

#[test]
fn an_ack_that_dies_half_translated_is_of_the_same_flow() {
    let mut story = Story::whole();
    story.translated(0, true, syn(0), &THERE[..2], &THERE[2..]);
    story.translated(1, false, syn_ack(1), &BACK[4..], &BACK[..4]);
    story.client = CLIENT.into();
    story.server = CLUSTER_IP.into();
    story.see(2, true, ack(2), &THERE[..2], None);
    story.skb -= 1;
    story.server = SERVER.into();
    story.see(2, true, ack(2), &[], nft_forward());
    story.check(VerdictCode::AckDropped, Confidence::Proven, |_| {});
}

#[test]
fn a_flow_that_no_watched_namespace_showed_is_not_of_the_view() {
    let mut elsewhere = Story::whole();
    let ack = segment(TcpFlags::ACK, 1, 1, 0);
    elsewhere.see(0, true, ack, &[], in_tcp("NOT_SPECIFIED"));
    let dead = elsewhere.analysis.flows.groups().next();
    let dead = dead.expect("a flow").sightings().next().cloned();
    for (view, netns, shown) in [
        (View::Kernel, None, true),
        (View::Netns { netns: vec![POD_B] }, None, false),
        (View::Netns { netns: vec![POD_B] }, Some(POD_B), true),
    ] {
        let mut story = Story::new(view);
        let dead = dead.clone().expect("a sighting");
        story.analysis.flows.push(Sighting { netns, ..dead });
        let scene = Scene {
            analysis: &story.analysis,
            now_ns: story.now_ns,
        };
        let group = story.analysis.flows.groups().next().expect("a flow");
        assert_eq!(scene.shows(&flows(&group)[0]), shown, "{netns:?}");
    }
}

#[test]
fn an_ack_that_a_closing_connection_has_read_is_innocent() {
    let mut story = Story::whole();
    story.syn(0, &THERE);
    story.syn_ack(1, &BACK);
    story.ack(2, &THERE);
    let last = segment(TcpFlags::ACK, ISN + 5, 500, 3);
    story.see(3, true, last, &THERE[..6], in_tcp("NOT_SPECIFIED"));
    story.check(VerdictCode::Answered, Confidence::Proven, |judgement| {
        assert!(judgement.losses.iter().all(|loss| loss.innocent));
    });
}

#[test]
fn what_ran_when_the_queues_were_run_is_no_cause() {
    let mut story = Story::whole();
    let stack = [
        "ip_forward",
        "__netif_receive_skb_one_core",
        "process_backlog",
        "__napi_poll",
        "net_rx_action",
        "do_softirq.part.0",
        "__local_bh_enable_ip",
        "__neigh_event_send",
    ];
    story.see(0, true, syn(0), &THERE[..2], killed("IP_INHDR", &stack));
    story.check(
        VerdictCode::RequestDropped,
        Confidence::Proven,
        |judgement| {
            let cause = judgement.cause.as_ref().expect("a cause");
            assert_eq!(cause.code, CauseCode::Ttl);
        },
    );
    let mut story = Story::whole();
    story.see(
        0,
        true,
        syn(0),
        &THERE[..2],
        killed("NOT_SPECIFIED", &stack),
    );
    story.check(
        VerdictCode::RequestDropped,
        Confidence::Proven,
        |judgement| {
            let cause = judgement.cause.as_ref().expect("a cause");
            assert_eq!(cause.code, CauseCode::Unknown);
        },
    );
}

#[test]
fn a_time_at_the_end_of_all_times_is_no_panic() {
    let mut story = Story::whole();
    story.syn(0, &THERE[..1]);
    let group = story.analysis.flows.groups().next().expect("a flow");
    let seen = group.sightings().next().expect("a sighting").clone();
    story.analysis.flows.push(Sighting {
        time_ns: u64::MAX,
        hop_limit: 64,
        message: Message::Tcp(syn(1_000)),
        ..seen
    });
    story.check(VerdictCode::Inconclusive, Confidence::Inconclusive, |_| {});
}

#[test]
fn netfilter_among_the_callers_is_no_cause() {
    // A bridge with br_netfilter hands the packet to IP from within a hook (`ip_sabotage_in`).
    let through_a_bridge = |reason: &str, function: &str| {
        killed(
            reason,
            &[
                function,
                "ip_sabotage_in",
                "nf_hook_slow",
                "ipv6_rcv",
                "br_handle_frame_finish",
                "br_nf_hook_thresh",
            ],
        )
    };
    for (reason, function, cause) in [
        ("IP_INADDRERRORS", "ip6_forward", CauseCode::ForwardingOff),
        ("NOT_SPECIFIED", "ip6_forward", CauseCode::Unknown),
        ("NOT_SPECIFIED", "ip_error", CauseCode::BlackholeRoute),
        ("NOT_SPECIFIED", "dst_discard", CauseCode::BlackholeRoute),
    ] {
        let mut story = Story::whole();
        for at_ms in [0, 1_000] {
            let death = through_a_bridge(reason, function);
            story.see(at_ms, true, syn(at_ms), &THERE[..2], death);
        }
        story.check(
            VerdictCode::RequestDropped,
            Confidence::Proven,
            |judgement| {
                let found = judgement.cause.as_ref().expect("a cause");
                assert_eq!(found.code, cause, "{found:?}");
            },
        );
    }
}

#[test]
fn an_ack_that_the_clients_own_rst_overtook_is_not_lost() {
    let mut story = Story::whole();
    story.syn(0, &THERE);
    story.syn_ack(1, &BACK);
    story.socket(2, TcpState::Established);
    let reset = segment(TcpFlags::RST | TcpFlags::ACK, ISN + 1, SERVER_ISN + 1, 3);
    story.see(3, true, reset, &THERE[..6], in_tcp("NOT_SPECIFIED"));
    let late = killed("TCP_FLAGS", &["tcp_v4_do_rcv", "tcp_v4_rcv"]);
    story.see(4, true, ack(4), &THERE[..6], late);
    story.check(VerdictCode::Answered, Confidence::Proven, |judgement| {
        assert!(
            judgement.losses.iter().all(|loss| loss.innocent),
            "{:#?}",
            judgement.losses
        );
    });
}

#[test]
fn an_ack_that_the_server_did_not_need_is_not_lost() {
    let cases = [
        (
            "TCP_OLD_SEQUENCE",
            vec!["tcp_validate_incoming", "tcp_rcv_established"],
            true,
        ),
        ("TCP_FLAGS", vec!["tcp_v6_do_rcv", "tcp_v6_rcv"], true),
        // Before there were reasons.
        ("", vec!["tcp_drop", "tcp_validate_incoming"], true),
        ("TCP_CSUM", vec!["tcp_v4_rcv"], false),
        ("TCP_LISTEN_OVERFLOW", vec!["tcp_v4_rcv"], false),
    ];
    for (reason, callers, is_innocent) in cases {
        let mut story = Story::whole();
        story.syn(0, &THERE);
        story.syn_ack(1, &BACK);
        story.socket(2, TcpState::Established);
        story.see(3, true, ack(3), &THERE[..6], killed(reason, &callers));
        story.server_socket(4, TcpState::Established);
        story.see(5, true, ack(5), &THERE, None);
        story.check(VerdictCode::Answered, Confidence::Proven, |judgement| {
            let losses = &judgement.losses;
            assert_eq!(losses.len(), 1);
            assert_eq!(losses[0].innocent, is_innocent, "{losses:#?}");
        });
    }
}

#[test]
fn an_ack_and_the_data_after_it_die_of_one_moment() {
    let data = |at_ms| Segment {
        payload_len: 4,
        ..ack(at_ms)
    };
    let mut story = Story::whole();
    story.syn(0, &THERE);
    story.syn_ack(1, &BACK);
    story.see(2, true, ack(2), &THERE[..2], nft_forward());
    story.see(3, true, data(3), &THERE[..2], nft_forward());
    story.now_ns = 100 * MS;
    story.check(
        VerdictCode::Inconclusive,
        Confidence::Inconclusive,
        |judgement| assert!(!judgement.is_final),
    );
    story.see(210, true, data(210), &THERE[..2], nft_forward());
    story.now_ns = 300 * MS;
    story.check(VerdictCode::AckDropped, Confidence::Proven, |judgement| {
        assert!(judgement.is_final);
    });
}

#[test]
fn an_icmp_error_about_a_reply_belongs_to_its_attempt() {
    let mut story = Story::whole();
    story.syn(0, &THERE);
    story.syn_ack(1, &BACK[..4]);
    story.icmp = Some(IcmpError {
        version: 4,
        kind: 3,
        code: 1,
        from: IpAddr::V4(Ipv4Addr::new(192, 168, 0, 1)),
        to: story.server.ip(),
        mtu: None,
    });
    story.see(2, false, syn_ack(1), &THERE[2..6], None);
    let group = story.analysis.flows.groups().next().expect("a group");
    let flows = flows(&group);
    assert_eq!(flows.len(), 1);
    assert_eq!(flows[0].errors_back.len(), 4);
}

#[test]
fn a_reply_in_a_queue_that_a_neighbour_empties_is_lost() {
    let purged = |functions: &[&str]| killed("QUEUE_PURGE", functions);
    let mut story = Story::whole();
    for at_ms in [0, 1_000] {
        story.syn(at_ms, &THERE);
        let by_neighbour = purged(&["skb_queue_purge_reason", "neigh_destroy", "neigh_flush_dev"]);
        story.see(
            at_ms + 1,
            false,
            syn_ack(at_ms + 1),
            &BACK[..2],
            by_neighbour,
        );
    }
    story.check(VerdictCode::ReplyDropped, Confidence::Proven, |judgement| {
        assert!(judgement.losses.iter().all(|loss| !loss.innocent));
    });
    let by_socket = purged(&[
        "skb_queue_purge_reason",
        "inet_sock_destruct",
        "__sk_destruct",
    ]);
    let mut story = Story::whole();
    story.syn(0, &THERE);
    story.syn_ack(1, &BACK);
    story.ack(2, &THERE[..6]);
    let data = Segment {
        payload_len: 4,
        ..segment(TcpFlags::ACK, ISN + 1, SERVER_ISN + 1, 3)
    };
    story.see(3, true, data, &THERE[..6], by_socket);
    story.check(VerdictCode::Answered, Confidence::Proven, |judgement| {
        assert!(judgement.losses.iter().all(|loss| loss.innocent));
    });
}

#[test]
fn a_bridge_without_a_port_that_is_up_is_no_tunnel() {
    let mut story = Story::whole();
    for at_ms in [0, 1_000] {
        let no_port = killed("NO_TX_TARGET", &["br_dev_xmit", "dev_hard_start_xmit"]);
        story.see(at_ms, true, syn(at_ms), &THERE[..4], no_port);
    }
    story.check(
        VerdictCode::RequestDropped,
        Confidence::Proven,
        |judgement| {
            let cause = judgement.cause.as_ref().expect("a cause");
            assert_eq!(cause.code, CauseCode::Unknown);
            assert!(
                judgement.summary.contains("none of whose ports"),
                "{}",
                judgement.summary
            );
        },
    );
    let no_end = killed("NO_TX_TARGET", &["vxlan_xmit", "dev_hard_start_xmit"]);
    let mut story = Story::whole();
    for at_ms in [0, 1_000] {
        story.see(at_ms, true, syn(at_ms), &THERE[..4], no_end.clone());
    }
    story.check(
        VerdictCode::RequestDropped,
        Confidence::Proven,
        |judgement| {
            let cause = judgement.cause.as_ref().expect("a cause");
            assert_eq!(cause.code, CauseCode::TunnelNoRoute);
        },
    );
}

#[test]
fn two_that_open_a_connection_at_once_have_one() {
    let mut story = Story::whole();
    let open = |seq, at_ms| segment(TcpFlags::SYN, seq, 0, at_ms);
    let accept = |seq, ack, at_ms| segment(TcpFlags::SYN | TcpFlags::ACK, seq, ack, at_ms);
    story.see(0, true, open(ISN, 0), &THERE[..6], None);
    story.see(0, false, open(SERVER_ISN, 0), &BACK, None);
    let (there, back) = (
        accept(ISN, SERVER_ISN + 1, 1),
        accept(SERVER_ISN, ISN + 1, 1),
    );
    story.see(1, true, there, &THERE[..6], None);
    story.see(1, false, back, &BACK, None);
    let group = story.analysis.flows.groups().next().expect("a flow");
    assert_eq!(flows(&group).len(), 1);
    drop(group);
    story.socket(2, TcpState::Established);
    story.check(VerdictCode::Answered, Confidence::Proven, |judgement| {
        assert!(judgement.losses.is_empty(), "{judgement:#?}");
    });
}
