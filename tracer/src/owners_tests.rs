use std::net::IpAddr;

use super::*;
use crate::event::{SkbId, Socket, SocketHook};
use crate::flow::{FiveTuple, IcmpError, Message, Segment, Tunnel, TunnelKind};

const POD: NetnsId = NetnsId { inum: 1, cookie: 1 };
const NODE: NetnsId = NetnsId { inum: 2, cookie: 2 };
const TCP: u8 = IpProto::Tcp as u8;
const SECOND: u64 = 1_000_000_000;

fn client() -> SocketAddr {
    ([10, 0, 1, 2], 40_000).into()
}

fn server() -> SocketAddr {
    ([10, 0, 2, 2], 6379).into()
}

fn device(netns: NetnsId, kind: &str, addr: Option<IpAddr>) -> Device {
    Device {
        id: DeviceId { netns, ifindex: 2 },
        netns_name: None,
        name: "dev".to_owned(),
        kind: kind.to_owned(),
        mtu: 1500,
        up: true,
        mac: None,
        peer: None,
        master_ifindex: None,
        vni: None,
        udp_port: None,
        underlay_ifindex: None,
        underlay_netns: None,
        addrs: addr.into_iter().collect(),
        removed: false,
    }
}

/// The server's pod has its address, and the node in front of it has none of the two.
fn devices() -> Devices {
    let mut devices = Devices::default();
    devices.push(&device(POD, "veth", Some(server().ip())));
    devices.push(&device(NODE, "tun", None));
    devices
}

/// A segment of the client that arrives.
fn segment(netns: NetnsId, flags: TcpFlags, time_ns: u64) -> Sighting {
    Sighting {
        time_ns,
        cpu: 0,
        sequence: 0,
        netns: Some(netns),
        ifindex: Some(2),
        skb: SkbId(1),
        point: Point::Receive,
        packet_len: 60,
        skb_len: 60,
        inner_len: 60,
        gso_size: 0,
        dont_fragment: true,
        mark: 0,
        hop_limit: 64,
        tuple: FiveTuple {
            protocol: TCP,
            src: client(),
            dst: server(),
        },
        message: Message::Tcp(Segment {
            flags,
            ..Segment::NONE
        }),
        icmp: None,
        tunnels: Vec::new(),
        dst_mac: None,
    }
}

fn of_server() -> SocketId {
    SocketId {
        netns: POD,
        protocol: TCP,
        local: server(),
        remote: client(),
    }
}

fn owner(pid: u32) -> Owner {
    Owner {
        process: Process {
            pid,
            comm: "redis".to_owned(),
        },
        container: Some(Container {
            id: format!("c{pid}"),
            runtime: None,
            pod_uid: None,
            pod: None,
        }),
    }
}

fn has_socket(pid: u32, asked_ns: u64, remote: Option<SocketAddr>) -> Fact {
    Fact::Socket(Box::new(SocketOwner {
        netns: POD,
        asked_ns,
        protocol: TCP,
        local: server(),
        remote,
        owner: owner(pid),
    }))
}

#[test]
fn a_packet_is_of_a_socket_only_where_its_address_is() {
    let mut owners = Owners::default();
    owners.note(&segment(NODE, TcpFlags::SYN, 0), &devices());
    let mut inside = segment(POD, TcpFlags::SYN, 0);
    inside.tunnels.push(Tunnel {
        kind: TunnelKind::Vxlan,
        vni: Some(1),
        outer_src: client().ip(),
        outer_dst: server().ip(),
        udp_src_port: None,
        udp_port: Some(4789),
    });
    owners.note(&inside, &devices());
    let mut error = segment(POD, TcpFlags::SYN, 0);
    error.icmp = Some(IcmpError {
        version: 4,
        kind: 3,
        code: 3,
        from: client().ip(),
        to: server().ip(),
        mtu: None,
    });
    owners.note(&error, &devices());
    assert_eq!(owners.take(), None);
    owners.note(&segment(POD, TcpFlags::SYN, 0), &devices());
    assert_eq!(owners.take(), Some(Whom::Socket(of_server(), 2)));
    assert_eq!(owners.take(), None);
}

#[test]
fn a_socket_is_asked_for_again_only_after_a_while() {
    let mut owners = Owners::default();
    for time_ns in [0, SECOND, 9 * SECOND] {
        owners.note(&segment(POD, TcpFlags::ACK, time_ns), &devices());
    }
    assert!(owners.take().is_some());
    assert_eq!(owners.take(), None);
    owners.note(&segment(POD, TcpFlags::ACK, 10 * SECOND), &devices());
    assert!(owners.take().is_some());
}

#[test]
fn what_begins_at_a_listener_that_is_known_is_not_asked_for() {
    let mut owners = Owners::default();
    // Raised before the answer came.
    owners.note(&segment(POD, TcpFlags::SYN, 0), &devices());
    assert!(owners.learn(&has_socket(7, SECOND, None)));
    assert_eq!(owners.take(), None);
    for flags in [TcpFlags::SYN, TcpFlags::ACK] {
        owners.note(&segment(POD, flags, 2 * SECOND), &devices());
    }
    assert_eq!(owners.take(), None);
    // A connection from before belongs to whoever accepted it.
    let mut owners = Owners::default();
    owners.learn(&has_socket(7, SECOND, None));
    owners.note(&segment(POD, TcpFlags::ACK, 2 * SECOND), &devices());
    assert!(owners.take().is_some());
}

#[test]
fn of_a_socket_that_told_its_process_only_the_container_is_asked_for() {
    let mut owners = Owners::default();
    owners.note(&segment(POD, TcpFlags::ACK, 0), &devices());
    owners.note_socket(&SocketSighting {
        time_ns: 0,
        cpu: 0,
        sequence: 0,
        netns: Some(POD),
        hook: SocketHook::State,
        socket: Socket {
            local_addr: server().ip(),
            local_port: server().port(),
            remote_addr: client().ip(),
            remote_port: client().port(),
            old_state: None,
            new_state: None,
            process: Some(owner(7).process),
            again: None,
        },
    });
    assert_eq!(owners.take(), Some(Whom::Process(7)));
    assert_eq!(owners.take(), None);
    owners.learn(&Fact::Process {
        asked_ns: SECOND,
        owner: owner(7),
    });
    let container = |process: &Process| owners.container_of(process, (0, 0));
    assert_eq!(container(&owner(7).process), owner(7).container.as_ref());
    // The id is used by another one by now.
    let other = Process {
        comm: "curl".to_owned(),
        ..owner(7).process
    };
    assert_eq!(container(&other), None);
}

#[test]
fn what_leaves_through_a_tun_device_raises_the_question_who_holds_it() {
    let mut owners = Owners::default();
    owners.note(&segment(NODE, TcpFlags::SYN, 0), &devices());
    assert_eq!(owners.take(), None);
    let mut sent = segment(NODE, TcpFlags::SYN, 0);
    sent.point = Point::Xmit;
    owners.note(&sent, &devices());
    let device = DeviceId {
        netns: NODE,
        ifindex: 2,
    };
    assert_eq!(owners.take(), Some(Whom::Tun(device)));
    owners.learn(&Fact::Tun {
        device,
        asked_ns: SECOND,
        owner: owner(7),
    });
    assert_eq!(owners.of_tun(device, (0, 0)), Some((SECOND, &owner(7))));
    assert_eq!(owners.of_tun(device, (20 * SECOND, 20 * SECOND)), None);
}

#[test]
fn the_connections_own_answer_counts_before_the_listeners_and_then_the_nearest() {
    let mut owners = Owners::default();
    for fact in [
        has_socket(1, 0, None),
        has_socket(2, 30 * SECOND, None),
        has_socket(3, 31 * SECOND, Some(client())),
        has_socket(4, 30 * SECOND, Some(server())),
    ] {
        owners.learn(&fact);
    }
    let pid = |from: u64, to: u64| {
        let answer = owners.of_socket(&of_server(), (from * SECOND, to * SECOND));
        answer.map(|answer| answer.owner.process.pid)
    };
    assert_eq!(pid(5, 6), Some(1));
    assert_eq!(pid(15, 16), None);
    assert_eq!(pid(20, 20), Some(2));
    assert_eq!(pid(29, 35), Some(3));
    assert_eq!(pid(0, 60), Some(3));
}

#[test]
fn nothing_grows_without_bound() {
    let mut owners = Owners::default();
    for number in 0..3 * ANSWERS_MAX {
        let mut syn = segment(POD, TcpFlags::SYN, 0);
        let port = u16::try_from(number % 60_000).expect("a port");
        syn.tuple.src.set_port(port);
        owners.note(&syn, &devices());
        owners.learn(&has_socket(1, number as u64, Some(syn.tuple.src)));
    }
    assert_eq!(owners.waiting.len(), WAITING_MAX);
    assert!(owners.raised.len() <= REMEMBERED_MAX);
    let kept: usize = owners.sockets.by_key.values().map(VecDeque::len).sum();
    assert_eq!(
        (kept, owners.sockets.order.len()),
        (ANSWERS_MAX, ANSWERS_MAX)
    );
}
