//! What a WireGuard device did with a packet, by its events and by what it told of its peers.

use super::*;
use crate::fact::{Prefix, Wireguard, WireguardPeer};

const WG0: u32 = 9;
const DEVICE: DeviceId = DeviceId {
    netns: NODE_A,
    ifindex: WG0,
};
const PORT: u16 = 51_820;
const ENOKEY: i32 = -126;
const EDESTADDRREQ: i32 = -89;

/// The way to the device that encrypts.
const TO_WG0: [At; 3] = [Xmit(POD_A, ETH0), Receive(NODE_A, LXC), Xmit(NODE_A, WG0)];

/// A peer that has the server's network.
fn peer(latest_handshake_ms: Option<u64>) -> WireguardPeer {
    WireguardPeer {
        public_key: "BwcHBwcHBw".to_owned(),
        endpoint: Some(([192, 0, 2, 7], PORT).into()),
        allowed_ips: vec![Prefix {
            addr: [10, 0, 2, 0].into(),
            len: 24,
        }],
        latest_handshake_ns: latest_handshake_ms.map(|ms| ms * MS),
        rx_bytes: 0,
        tx_bytes: 0,
        keepalive_s: 0,
    }
}

impl Story {
    /// node-a with a WireGuard device.
    fn with_wg0() -> Self {
        let mut story = Self::whole();
        story.analysis.push(&Record::Device(Box::new(Device {
            id: DEVICE,
            netns_name: None,
            name: "wg0".to_owned(),
            kind: "wireguard".to_owned(),
            mtu: 1420,
            up: true,
            mac: None,
            peer: None,
            master_ifindex: None,
            vni: None,
            udp_port: Some(PORT),
            underlay_ifindex: None,
            underlay_netns: None,
            addrs: Vec::new(),
            removed: false,
        })));
        story
    }

    /// What the device told of its peers.
    fn told(&mut self, at_ms: u64, peers: Vec<WireguardPeer>) {
        self.analysis
            .push(&Record::Fact(Fact::Wireguard(Box::new(Wireguard {
                device: DEVICE,
                asked_ns: at_ms * MS,
                listen_port: PORT,
                fwmark: 0,
                peers,
                truncated: false,
            }))));
    }

    /// The device frees the SYN, and returns this.
    fn refused_by_wg0(&mut self, at_ms: u64, result: Option<i32>) {
        self.see(
            at_ms,
            true,
            syn(at_ms),
            &TO_WG0,
            killed("NOT_SPECIFIED", &["wg_xmit", "dev_hard_start_xmit"]),
        );
        self.sequence += 1;
        if let Some(result) = result {
            let event = Event {
                time_ns: at_ms * MS + u64::from(self.sequence),
                cpu: 0,
                sequence: self.sequence,
                netns: Some(NODE_A),
                ifindex: Some(WG0),
                what: What::XmitFailed {
                    skb: SkbId(self.skb),
                    result,
                    len_bytes: Some(74),
                },
            };
            self.analysis.push(&Record::Event(Box::new(event)));
        }
    }
}

fn never_came_out(before: Option<u64>, after: Option<u64>) -> Story {
    let mut story = Story::with_wg0();
    // A handshake may be older than the trace: the story begins an hour after boot.
    story.told(3_600_000, vec![peer(before)]);
    for at_ms in [3_600_100, 3_601_100] {
        story.syn(at_ms, &TO_WG0);
    }
    story.told(3_605_000, vec![peer(after)]);
    story.now_ns = 3_605_000 * MS;
    story
}

#[test]
fn what_waits_for_a_handshake_that_never_was_is_lost() {
    let story = never_came_out(None, None);
    story.check(
        VerdictCode::RequestDropped,
        Confidence::Inferred,
        |judgement| {
            let cause = judgement.cause.as_ref().expect("a cause");
            assert_eq!(cause.code, CauseCode::WireguardNoSession);
            assert_eq!(cause.stage, Stage::Encap);
            assert!(
                judgement
                    .summary
                    .ends_with("no session with peer BwcHBwcHBw… (192.0.2.7:51820): no handshake has ever succeeded"),
                "{}",
                judgement.summary
            );
        },
    );
}

#[test]
fn a_session_that_is_too_old_is_none() {
    let story = never_came_out(Some(3_600_000 - 181_000), Some(3_600_000 - 181_000));
    story.check(
        VerdictCode::RequestDropped,
        Confidence::Inferred,
        |judgement| assert!(judgement.summary.contains("the latest handshake was 18")),
    );
}

#[test]
fn a_packet_that_had_a_session_did_not_die_of_having_none() {
    for (before, after) in [(Some(3_599_000), Some(3_599_000)), (None, Some(3_602_000))] {
        never_came_out(before, after).check(
            VerdictCode::RequestNotAnswered,
            Confidence::Inferred,
            |judgement| assert!(judgement.cause.is_none()),
        );
    }
}

#[test]
fn a_session_that_was_thrown_away_is_none() {
    never_came_out(Some(3_599_000), None).check(
        VerdictCode::RequestDropped,
        Confidence::Inferred,
        |_judgement| {},
    );
}

#[test]
fn a_device_whose_port_is_not_known_tells_nothing_by_silence() {
    let mut story = never_came_out(Some(3_599_000), Some(3_599_000));
    let mut device = story.analysis.devices.get(DEVICE).expect("wg0").clone();
    device.udp_port = None;
    story.analysis.push(&Record::Device(Box::new(device)));
    story.check(
        VerdictCode::Inconclusive,
        Confidence::Inconclusive,
        |_judgement| {},
    );
}

#[test]
fn what_the_device_returns_says_why_it_freed_a_packet() {
    for (result, code) in [
        (Some(ENOKEY), CauseCode::WireguardAllowedIps),
        (Some(EDESTADDRREQ), CauseCode::WireguardNoPeer),
        (Some(-93), CauseCode::Unknown),
        (None, CauseCode::Unknown),
    ] {
        let mut story = Story::with_wg0();
        for at_ms in [0, 1_000] {
            story.refused_by_wg0(at_ms, result);
        }
        story.check(
            VerdictCode::RequestDropped,
            Confidence::Proven,
            |judgement| {
                let cause = judgement.cause.as_ref().expect("a cause");
                assert_eq!(cause.code, code, "{judgement:#?}");
                assert_eq!(cause.stage, Stage::Encap);
            },
        );
    }
}

#[test]
fn the_longest_prefix_decides_whose_an_address_is() {
    let with = |key: &str, prefixes: &[([u8; 4], u8)]| WireguardPeer {
        public_key: key.to_owned(),
        allowed_ips: prefixes
            .iter()
            .map(|(addr, len)| Prefix {
                addr: (*addr).into(),
                len: *len,
            })
            .collect(),
        ..peer(None)
    };
    let device = Wireguard {
        device: DEVICE,
        asked_ns: 0,
        listen_port: PORT,
        fwmark: 0,
        peers: vec![
            with("all", &[([0, 0, 0, 0], 0)]),
            with("one", &[([10, 0, 2, 2], 32)]),
            with("net", &[([10, 0, 2, 0], 24), ([10, 9, 0, 0], 16)]),
        ],
        truncated: false,
    };
    let whose = |addr: [u8; 4]| device.peer_of(addr.into()).map(|peer| &*peer.public_key);
    assert_eq!(whose([10, 0, 2, 2]), Some("one"));
    assert_eq!(whose([10, 0, 2, 3]), Some("net"));
    assert_eq!(whose([192, 0, 2, 1]), Some("all"));
    assert!(device.peer_of(IpAddr::from([0_u16; 8])).is_none());
}
