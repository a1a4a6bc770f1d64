//! Reports made by hand.

use std::net::{IpAddr, Ipv4Addr};

use crate::fact::Runtime;
use crate::report::{
    At, BlindSpot, Cause, CauseCode, Confidence, Container, Endpoint, Evidence, Flow, Hook,
    HookState, Hop, HopTunnel, Ledger, Leg, Loss, Netns, Node, Observer, Outer, PacketKind,
    Process, Protocol, REPORT_SCHEMA, Report, Reset, Side, Stage, StoppedBy, Summary, Time, Tracer,
    Tunnel, TunnelKind, Verdict, VerdictCode, Window,
};

const START_NS: u64 = 1_764_590_584_000_000_000;

pub(crate) fn time(ms: u64) -> Time {
    Time::from_unix_ns(START_NS + ms * 1_000_000 + 123_456)
}

fn ip(last: [u8; 4]) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from(last))
}

pub(crate) fn report(flows: Vec<Flow>) -> Report {
    let hook = |name: &str, state, reason: Option<&str>| Hook {
        name: name.to_owned(),
        kind: "tp_btf".to_owned(),
        state,
        reason: reason.map(str::to_owned),
    };
    Report {
        schema: REPORT_SCHEMA.to_owned(),
        tracer: Tracer {
            version: "0.1.0".to_owned(),
            command: ["trace", "port", "6379"].map(str::to_owned).to_vec(),
        },
        node: Node {
            hostname: "worker1".to_owned(),
            machine_id: "5f3c".to_owned(),
            boot_id: "b4a1".to_owned(),
            kernel: "6.12.57".to_owned(),
            arch: "x86_64".to_owned(),
        },
        window: Window {
            start: Some(time(0)),
            end: Some(time(10_000)),
            duration_ns: 10_000_000_000,
            stopped_by: StoppedBy::Duration,
        },
        observer: Observer {
            filter: Some("port 6379".to_owned()),
            netns: None,
            hooks: vec![
                hook("net_dev_start_xmit", HookState::Attached, None),
                hook("netif_receive_skb", HookState::Attached, None),
                hook("kfree_skb", HookState::Attached, None),
                hook(
                    "tcp_retransmit_synack",
                    HookState::Absent,
                    Some("not in this kernel"),
                ),
            ],
            blind_spots: vec![BlindSpot {
                code: "netfilter".to_owned(),
                summary:
                    "which netfilter rule dropped a packet: the hook, but not the rule, is seen"
                        .to_owned(),
            }],
        },
        ledger: Ledger {
            emitted: 412,
            delivered: 412,
            ring_full: 0,
            missed: 0,
            unreadable: 0,
            undecodable: 0,
            rate_limited: 0,
            table_full: 0,
            clean: true,
        },
        devices: Vec::new(),
        summary: Summary::of(&flows),
        flows,
    }
}

pub(super) fn hop(
    ms: u64,
    stage: Stage,
    device: &str,
    ifindex: u32,
    netns: (u32, Option<&str>),
) -> Hop {
    Hop {
        time: Some(time(ms)),
        stage,
        device: Some(device.to_owned()),
        ifindex: Some(ifindex),
        netns: Some(netns.0),
        netns_name: netns.1.map(str::to_owned),
        function: None,
        len: Some(60),
        tunnel: None,
        outer: None,
        mark: None,
        delay_ns: None,
    }
}

fn in_geneve(mut hop: Hop, vni: u32, src: [u8; 4], dst: [u8; 4]) -> Hop {
    hop.tunnel = Some(HopTunnel {
        kind: TunnelKind::Geneve,
        vni: Some(vni),
    });
    hop.outer = Some(Outer {
        src: ip(src),
        dst: ip(dst),
        src_port: None,
        dst_port: None,
    });
    hop.len = Some(118);
    hop
}

fn endpoint(addr: [u8; 4], port: u16) -> Endpoint {
    Endpoint {
        addr: ip(addr),
        port: Some(port),
        process: None,
        container: None,
        pod: None,
        netns: None,
        netns_name: None,
    }
}

fn leg(kind: PacketKind, count: u64, ms: u64, path: Vec<Hop>) -> Leg {
    Leg {
        kind,
        count,
        first: Some(time(ms)),
        last: Some(time(ms + (count - 1) * 1_000)),
        path,
    }
}

fn verdict(code: VerdictCode, confidence: Confidence, summary: &str) -> Verdict {
    Verdict {
        code,
        confidence,
        summary: summary.to_owned(),
        next: None,
        at: None,
        cause: None,
    }
}

fn cause(code: CauseCode, detail: &str) -> Cause {
    Cause {
        code,
        drop_reason: None,
        function: None,
        callers: Vec::new(),
        detail: Some(detail.to_owned()),
        evidence: Vec::new(),
        packet_len: None,
        segment_len: None,
        mtu: None,
        gso: None,
        dont_fragment: None,
        icmp_sent: None,
        icmp_delivered: None,
        sizes: Vec::new(),
        icmp_fate: None,
    }
}

pub(super) fn flow(id: u64, verdict: Verdict) -> Flow {
    let port = 40_000 + u16::try_from(id).expect("few flows");
    Flow {
        id,
        protocol: Protocol::Tcp,
        exchange: None,
        client: endpoint([10, 244, 182, 26], port),
        server: endpoint([10, 244, 190, 4], 6379),
        translations: Vec::new(),
        tunnels: Vec::new(),
        request: Leg::never(PacketKind::Syn),
        reply: Leg::never(PacketKind::SynAck),
        ack: Some(Leg::never(PacketKind::Ack)),
        resets: Vec::new(),
        retransmits: 0,
        losses: Vec::new(),
        verdict,
    }
}

const HOST: (u32, Option<&str>) = (4_026_531_840, None);
const REDIS: (u32, Option<&str>) = (4_026_532_301, Some("redis"));
const OTHER_NODE: [u8; 4] = [192, 168, 50, 2];
const THIS_NODE: [u8; 4] = [192, 168, 50, 1];

/// The incident: the SYN-ACK leaves in the tunnel, and that is the last of it.
pub(crate) fn lost_in_underlay() -> Flow {
    let mut flow = flow(
        1,
        Verdict {
            next: Some(
                "run `sudo tracer trace --capture b.jsonl host 10.244.190.4` on 192.168.50.2 as well".to_owned(),
            ),
            at: Some(At {
                netns: Some(HOST.0),
                netns_name: None,
                device: Some("ens3".to_owned()),
                ifindex: Some(2),
                function: None,
                stage: Stage::Egress,
                time: Some(time(7)),
            }),
            ..verdict(
                VerdictCode::ReplyLeftNode,
                Confidence::Inferred,
                "reply lost: SYN-ACK left this node on ens3 and no ACK ever came",
            )
        },
    );
    flow.server.process = Some(Process {
        pid: 4242,
        comm: "redis-server".to_owned(),
    });
    flow.server.container = Some(Container {
        id: "3f2a9c1b0d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8".to_owned(),
        runtime: Some(Runtime::Containerd),
        pod_uid: Some("6d5bfd12-0c2e-4c56-9d5e-2f0f6f7c9a01".to_owned()),
    });
    flow.server.pod = Some("shop/redis-0".to_owned());
    flow.server.netns = Some(REDIS.0);
    flow.server.netns_name = REDIS.1.map(str::to_owned);
    flow.tunnels = vec![
        Tunnel {
            kind: TunnelKind::Geneve,
            vni: Some(813),
            vni_meaning: None,
            outer_src: ip(OTHER_NODE),
            outer_dst: ip(THIS_NODE),
            udp_dst_port: Some(6081),
        },
        Tunnel {
            kind: TunnelKind::Geneve,
            vni: Some(53_256),
            vni_meaning: None,
            outer_src: ip(THIS_NODE),
            outer_dst: ip(OTHER_NODE),
            udp_dst_port: Some(6081),
        },
    ];
    flow.request = leg(
        PacketKind::Syn,
        3,
        1,
        vec![
            in_geneve(
                hop(1, Stage::Ingress, "ens3", 2, HOST),
                813,
                OTHER_NODE,
                THIS_NODE,
            ),
            hop(1, Stage::Ingress, "geneve0", 5, HOST),
            hop(2, Stage::Egress, "lxc7f2", 9, HOST),
            hop(2, Stage::Ingress, "eth0", 2, REDIS),
            Hop {
                device: None,
                ifindex: None,
                ..hop(3, Stage::Listener, "", 0, REDIS)
            },
        ],
    );
    flow.reply = leg(
        PacketKind::SynAck,
        3,
        4,
        vec![
            hop(4, Stage::Egress, "eth0", 2, REDIS),
            hop(5, Stage::Ingress, "lxc7f2", 9, HOST),
            hop(6, Stage::Egress, "geneve0", 5, HOST),
            in_geneve(
                hop(7, Stage::Egress, "ens3", 2, HOST),
                53_256,
                THIS_NODE,
                OTHER_NODE,
            ),
        ],
    );
    flow.retransmits = 4;
    flow
}

/// The SYN-ACK never reaches a first device: a rule in the server's own OUTPUT chain eats it.
pub(crate) fn dropped_in_output() -> Flow {
    let function = "nf_hook_slow+0x9e";
    let mut flow = flow(
        2,
        Verdict {
            next: Some("`nft list ruleset` in netns redis: look at the output chains".to_owned()),
            at: Some(At {
                netns: Some(REDIS.0),
                netns_name: REDIS.1.map(str::to_owned),
                device: None,
                ifindex: None,
                function: Some(function.to_owned()),
                stage: Stage::LocalOut,
                time: Some(time(4)),
            }),
            cause: Some(Cause {
                drop_reason: Some("NETFILTER_DROP".to_owned()),
                function: Some(function.to_owned()),
                callers: [
                    "__ip_local_out+0x101",
                    "ip_build_and_send_pkt+0x1d0",
                    "tcp_v4_send_synack+0x1a2",
                ]
                .map(str::to_owned)
                .to_vec(),
                evidence: vec![Evidence::Counter {
                    device: None,
                    netns: REDIS.0,
                    netns_name: REDIS.1.map(str::to_owned),
                    name: "IpOutDiscards".to_owned(),
                    before: 0,
                    after: 3,
                }],
                ..cause(CauseCode::Netfilter, "a rule of an output chain dropped it")
            }),
            ..verdict(
                VerdictCode::ReplyDropped,
                Confidence::Proven,
                "reply dropped: a netfilter rule in the server's own namespace ate the SYN-ACK before its first device",
            )
        },
    );
    flow.client.process = Some(Process {
        pid: 991,
        comm: "registry".to_owned(),
    });
    flow.request = leg(
        PacketKind::Syn,
        3,
        1,
        vec![
            hop(1, Stage::Ingress, "eth0", 2, REDIS),
            hop(2, Stage::Listener, "eth0", 2, REDIS),
        ],
    );
    flow.reply = leg(
        PacketKind::SynAck,
        3,
        4,
        vec![Hop {
            device: None,
            ifindex: None,
            function: Some(function.to_owned()),
            ..hop(4, Stage::Drop, "", 0, REDIS)
        }],
    );
    flow.losses = vec![
        loss(PacketKind::SynAck, 4, false, "the reply"),
        loss(PacketKind::SynAck, 1_004, false, "the same rule again"),
        loss(
            PacketKind::Syn,
            1_001,
            true,
            "a copy of a SYN that was answered already",
        ),
        loss(
            PacketKind::Syn,
            2_001,
            true,
            "a copy of a SYN that was answered already",
        ),
    ];
    flow
}

fn loss(packet: PacketKind, ms: u64, innocent: bool, why: &str) -> Loss {
    Loss {
        packet,
        time: Some(time(ms)),
        at: None,
        cause: None,
        innocent,
        why: why.to_owned(),
    }
}

pub(crate) fn refused(id: u64) -> Flow {
    let mut flow = flow(
        id,
        Verdict {
            cause: Some(cause(
                CauseCode::NoListener,
                "no socket listens on 10.244.190.4:6379 in netns redis",
            )),
            ..verdict(
                VerdictCode::Refused,
                Confidence::Proven,
                "refused: nothing listens on 10.244.190.4:6379",
            )
        },
    );
    flow.request = leg(
        PacketKind::Syn,
        1,
        1,
        vec![hop(1, Stage::Ingress, "eth0", 2, REDIS)],
    );
    flow.resets = vec![Reset {
        from: Side::Server,
        count: 1,
        first: Some(time(2)),
        last: Some(time(2)),
        path: vec![
            hop(2, Stage::Egress, "eth0", 2, REDIS),
            hop(2, Stage::Ingress, "lxc7f2", 9, HOST),
            Hop {
                function: Some("tcp_v4_rcv+0x91".to_owned()),
                ..hop(3, Stage::Drop, "lxc7f2", 9, HOST)
            },
        ],
    }];
    flow.losses = vec![loss(
        PacketKind::Rst,
        3,
        true,
        "TCP has taken it, and frees it",
    )];
    flow
}

pub(super) fn answered(id: u64) -> Flow {
    let mut flow = flow(
        id,
        verdict(
            VerdictCode::Answered,
            Confidence::Proven,
            "answered in 0.2 ms",
        ),
    );
    let path = || vec![hop(1, Stage::Ingress, "eth0", 2, REDIS)];
    flow.request = leg(PacketKind::Syn, 1, 1, path());
    flow.reply = leg(PacketKind::SynAck, 1, 2, path());
    flow.ack = Some(leg(PacketKind::Ack, 1, 3, path()));
    flow
}

pub(super) fn answered_late(id: u64) -> Flow {
    let mut flow = answered(id);
    flow.request.count = 2;
    flow.retransmits = 1;
    flow.losses = vec![loss(PacketKind::Syn, 1, false, "the first SYN: cost 1.0 s")];
    flow.verdict.summary = "answered, slow: on the second try, after 1.0 s".to_owned();
    flow
}

pub(crate) fn inconclusive(id: u64) -> Flow {
    let mut flow = flow(
        id,
        verdict(
            VerdictCode::Inconclusive,
            Confidence::Inconclusive,
            "window closed 120 ms after the request",
        ),
    );
    flow.request = leg(
        PacketKind::Syn,
        1,
        9_880,
        vec![hop(9_880, Stage::Egress, "ens3", 2, HOST)],
    );
    flow
}

pub(super) fn watched_in_a_netns(report: &mut Report) {
    report.observer.netns = Some(vec![Netns {
        netns: REDIS.0,
        netns_name: REDIS.1.map(str::to_owned),
    }]);
}
