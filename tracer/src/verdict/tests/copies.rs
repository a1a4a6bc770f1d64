//! Copies of one packet: what each says of it.

use super::*;

const MIRROR: u32 = 9;
const BRIDGE: u32 = 8;

impl Story {
    /// Another device of node-a, that leads out of the view.
    fn with_wire(mut self, ifindex: u32, master_ifindex: Option<u32>) -> Self {
        let device = Record::Device(Box::new(Device {
            id: DeviceId {
                netns: NODE_A,
                ifindex,
            },
            netns_name: None,
            name: format!("wire{ifindex}"),
            kind: "physical".to_owned(),
            mtu: 1500,
            up: true,
            mac: None,
            peer: None,
            master_ifindex,
            vni: None,
            udp_port: None,
            underlay_ifindex: None,
            underlay_netns: None,
            addrs: Vec::new(),
            removed: false,
        }));
        self.analysis.push(&device);
        self
    }
}

#[test]
fn a_copy_for_a_mirror_port_does_not_hide_a_death() {
    let mut story = Story::whole().with_wire(MIRROR, None);
    for at_ms in [0, 1_000] {
        story.see(at_ms, true, syn(at_ms), &THERE[..2], None);
        story.see(at_ms, true, syn(at_ms), &[Xmit(NODE_A, MIRROR)], None);
        story.skb -= 2;
        story.see(at_ms, true, syn(at_ms), &THERE[1..2], nft_forward());
        story.skb += 1;
    }
    story.check(VerdictCode::RequestDropped, Confidence::Proven, |_| {});
}

#[test]
fn a_copy_that_a_bridge_floods_may_have_been_the_one_that_counts() {
    let mut story = Story::whole().with_wire(MIRROR, Some(BRIDGE));
    story.see(0, true, syn(0), &THERE[..2], None);
    story.see(0, true, syn(0), &[Xmit(NODE_A, MIRROR)], None);
    story.skb -= 2;
    story.see(0, true, syn(0), &THERE[1..2], nft_forward());
    story.check(
        VerdictCode::RequestLeftNode,
        Confidence::Inferred,
        |judgement| {
            assert!(judgement.losses[0].innocent);
        },
    );
    // But not if one died where it was to go.
    story.skb += 2;
    let in_input = || killed("NETFILTER_DROP", &["nft_do_chain", "ip_local_deliver"]);
    story.see(0, true, syn(0), &THERE[4..6], in_input());
    story.check(
        VerdictCode::RequestDropped,
        Confidence::Proven,
        |judgement| {
            assert_eq!(judgement.at.expect("a place").sighting.netns, Some(POD_B));
        },
    );
}
