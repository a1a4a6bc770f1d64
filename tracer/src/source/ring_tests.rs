//! Records made by hand: what a hook would write, and what none would.

use std::collections::HashSet;

use tracer_common::event::{COMM_LEN, STACK_FRAMES_MAX};
use zerocopy::IntoBytes;

use super::*;

fn decoder() -> Decoder {
    let symbols = Symbols::read(
        "ffffffff82000000 T kfree_skb_reason\nffffffff82000100 T tcp_v4_rcv\n\
         ffffffff82000200 T ip_local_deliver\nffffffff82000300 T end\n"
            .as_bytes(),
    );
    Decoder {
        key: SkbKey([1, 2, 3, 4]),
        symbols: Arc::new(symbols.unwrap()),
        reasons: DropReasons::default(),
    }
}

fn header(kind: u8) -> EventHeader {
    EventHeader {
        timestamp_ns: 7,
        netns_cookie: 11,
        netns_inum: 0xf000_0001,
        ifindex: 3,
        sequence: 5,
        cpu: 1,
        kind,
        reserved: 0,
    }
}

fn skb(header_len: u16) -> SkbInfo {
    SkbInfo {
        skb: 0xffff_8880_1234_5600,
        len_bytes: 60,
        mark: 9,
        protocol: 0x0800,
        vlan_tci: 0,
        gso_size: 0,
        header_len,
        start: START_IP,
        pkt_type: 0,
        budget_spent: 0,
        reserved: 0,
        sealed_len: 0,
        reserved_too: 0,
    }
}

fn packet(kind: Kind, info: SkbInfo, bytes: &[u8]) -> Vec<u8> {
    let record = PacketRecord {
        header: header(kind as u8),
        skb: info,
    };
    [record.as_bytes(), bytes].concat()
}

fn dropped(stack: &[u64], location: u64) -> Vec<u8> {
    let mut frames = [0; STACK_FRAMES_MAX];
    frames[..stack.len()].copy_from_slice(stack);
    let record = DropRecord {
        header: header(Kind::Drop as u8),
        skb: skb(2),
        location,
        stack: frames,
        reason: 3,
        stack_len: u32::try_from(stack.len()).unwrap(),
    };
    [record.as_bytes(), &[0x45, 0x00]].concat()
}

fn socket_record(family: u16, owner: u32) -> Vec<u8> {
    let mut comm = [0; COMM_LEN];
    comm[..5].copy_from_slice(b"a\x1b[\xffb");
    SocketRecord {
        header: header(Kind::SockState as u8),
        local_addr: [10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        remote_addr: [10, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2],
        local_port: 41_000,
        remote_port: 6379,
        family,
        old_state: 7,
        new_state: 2,
        pid: 4242,
        known: owner,
        snd_una: 0,
        seq: 0,
        comm,
    }
    .as_bytes()
    .to_vec()
}

#[test]
fn a_packet_keeps_its_headers_and_loses_the_padding_of_the_ring() {
    let record = packet(Kind::Receive, skb(3), &[0x45, 1, 2, 0, 0, 0, 0, 0]);
    let event = decoder().decode(&record).unwrap();
    assert_eq!((event.time_ns, event.cpu, event.sequence), (7, 1, 5));
    assert_eq!(event.ifindex, Some(3));
    let netns = event.netns.unwrap();
    assert_eq!((netns.inum, netns.cookie), (0xf000_0001, 11));
    let What::Receive { skb } = event.what else {
        panic!("not what was written: {:?}", event.what);
    };
    assert_eq!(&skb.headers[..], &[0x45, 1, 2]);
    assert!(!skb.ethernet);
    assert_ne!(skb.id.0, 0xffff_8880_1234_5600, "the address itself");
}

#[test]
fn zero_means_that_the_packet_told_no_namespace_or_device() {
    let mut header = header(Kind::Xmit as u8);
    header.netns_inum = 0;
    header.ifindex = 0;
    let record = PacketRecord {
        header,
        skb: skb(0),
    };
    let event = decoder().decode(record.as_bytes()).unwrap();
    assert_eq!((event.netns, event.ifindex), (None, None));
}

#[test]
fn the_stack_begins_behind_the_frame_that_freed_the_packet() {
    let location = 0xffff_ffff_8200_0110;
    let stack = [
        0xffff_ffff_a000_0001,
        0xffff_ffff_8200_0010,
        location,
        0xffff_ffff_8200_0210,
    ];
    let event = decoder().decode(&dropped(&stack, location)).unwrap();
    let What::Drop { death, .. } = event.what else {
        panic!("not what was written: {:?}", event.what);
    };
    assert_eq!(death.location.to_string(), "tcp_v4_rcv+0x10");
    let callers: Vec<String> = death.callers.iter().map(ToString::to_string).collect();
    assert_eq!(callers, ["ip_local_deliver+0x10"]);
    assert_eq!(death.reason, None, "a kernel without reasons");
}

#[test]
fn a_stack_without_the_frame_that_freed_the_packet_tells_no_callers() {
    let event = decoder().decode(&dropped(&[0xffff_ffff_8200_0010], 0xffff_ffff_8200_0110));
    let What::Drop { death, .. } = event.unwrap().what else {
        panic!("not what was written");
    };
    assert!(death.callers.is_empty());
}

#[test]
fn a_socket_is_read_in_its_own_family() {
    let of = |record: Vec<u8>| match decoder().decode(&record)?.what {
        What::Socket { socket, .. } => Some(socket),
        _ => None,
    };
    let v4 = of(socket_record(AF_INET, 1)).unwrap();
    assert_eq!(v4.local_addr.to_string(), "10.0.0.1");
    assert_eq!(
        (v4.old_state, v4.new_state),
        (Some(TcpState::Close), Some(TcpState::SynSent))
    );
    assert_eq!(v4.process.unwrap().comm, "a\u{1b}[\u{fffd}b");
    let v6 = of(socket_record(AF_INET6, 0)).unwrap();
    assert_eq!(v6.remote_addr.to_string(), "a00:2::2");
    assert_eq!(v6.process, None);
    assert_eq!(of(socket_record(1, 0)), None, "a Unix socket");
}

#[test]
fn what_no_hook_writes_is_not_decoded() {
    let decoder = decoder();
    let whole = packet(Kind::Xmit, skb(2), &[0x45, 0]);
    assert!(decoder.decode(&whole).is_some());
    for len in 0..whole.len() {
        assert_eq!(decoder.decode(&whole[..len]), None, "cut to {len} bytes");
    }
    assert_eq!(
        decoder.decode(&packet(Kind::Xmit, skb(3), &[0x45, 0])),
        None
    );
    let too_long = vec![0; HEADER_BYTES_MAX + 1];
    let len = u16::try_from(too_long.len()).unwrap();
    assert_eq!(
        decoder.decode(&packet(Kind::Xmit, skb(len), &too_long)),
        None
    );
    let nowhere = SkbInfo { start: 2, ..skb(0) };
    assert_eq!(decoder.decode(&packet(Kind::Xmit, nowhere, &[])), None);
    for kind in [0, 11, 255] {
        let mut record = whole.clone();
        record[size_of::<EventHeader>() - 2] = kind;
        assert_eq!(decoder.decode(&record), None, "kind {kind}");
    }
    let mut record = dropped(&[], 0);
    let stack_len = size_of::<DropRecord>() - 4;
    record[stack_len] = STACK_FRAMES_MAX as u8 + 1;
    assert_eq!(
        decoder.decode(&record),
        None,
        "more frames than there is room for"
    );
}

#[test]
fn skbs_stay_apart_and_differ_from_run_to_run() {
    let key = SkbKey([1, 2, 3, 4]);
    let addresses = (0..10_000u64).map(|index| 0xffff_8880_0000_0000 + index * 256);
    let ids: HashSet<SkbId> = addresses.map(|address| key.mix(address)).collect();
    assert_eq!(ids.len(), 10_000);
    let address = 0xffff_8880_1234_5600;
    assert_eq!(key.mix(address), key.mix(address));
    assert_ne!(key.mix(address), SkbKey([1, 2, 3, 5]).mix(address));
    assert_ne!(SkbKey::random().mix(address), SkbKey::random().mix(address));
}
