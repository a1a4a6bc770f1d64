//! Replies that leave through another device than their requests came in on.

use super::*;
use crate::fact::{About, Lookup, NextHop, Prefix, Question, Route, RouteKind, Way};
use crate::flow::table::FlowTable;
use crate::verdict::question::Questions;

const OTHER_NIC: u32 = 5;
const MARK: u32 = 0x8_0001;

/// What the server's node sees of SYNs that come in on ens3, and of SYN-ACKs that leave on ens4, which this makes of it.
fn astray(change: impl FnOnce(&mut Device)) -> Story {
    let mut story = Story::new(View::Netns {
        netns: vec![NODE_B, POD_B],
    });
    let nic = DeviceId {
        netns: NODE_B,
        ifindex: NIC,
    };
    let mut other = Device {
        id: DeviceId {
            ifindex: OTHER_NIC,
            ..nic
        },
        name: "ens4".to_owned(),
        ..story.analysis.devices.get(nic).expect("ens3").clone()
    };
    change(&mut other);
    story.analysis.push(&Record::Device(Box::new(other)));
    story
}

fn send(story: &mut Story) {
    send_over(story, &[Xmit(NODE_B, OTHER_NIC)]);
}

fn send_over(story: &mut Story, way_out: &[At]) {
    let way = [&BACK[..2], way_out].concat();
    for at_ms in [0, 1_000, 3_000] {
        story.syn(at_ms, &THERE[3..]);
        story.mark = MARK;
        story.syn_ack(at_ms + 1, &way);
        story.mark = 0;
    }
}

fn lookup(mark: u32) -> Lookup {
    Lookup {
        way: Way::Input,
        ifindex: Some(LXC),
        protocol: 6,
        src: SERVER.into(),
        dst: CLIENT.into(),
        mark,
    }
}

fn route(mark: u32, ifindex: u32, table: u32) -> Route {
    Route {
        netns: NODE_B,
        asked_ns: 3_005 * MS,
        lookup: lookup(mark),
        found: RouteKind::Unicast,
        prefix: Some(Prefix {
            addr: [0, 0, 0, 0].into(),
            len: 0,
        }),
        table: Some(table),
        rule: Some(table),
        rule_selector: Some(format!("from all fwmark {table:#x}")),
        by_rule: false,
        hops: vec![NextHop {
            gateway: None,
            ifindex,
        }],
        mtu: None,
        ports_matter: false,
        uncertain: false,
        unreached: false,
    }
}

/// The cause, how the summary ends, the detail, and how many routes are evidence.
fn says(routes: &[Route], code: CauseCode, phrase: &str, detail: &str, evidence: usize) {
    let mut story = astray(|_| {});
    send(&mut story);
    for route in routes {
        let fact = Fact::Route(Box::new(route.clone()));
        story.analysis.push(&Record::Fact(fact));
    }
    story.check(
        VerdictCode::ReplyLeftNode,
        Confidence::Inferred,
        |judgement| {
            let cause = judgement.cause.as_ref().expect("a cause");
            assert_eq!(cause.code, code);
            assert!(judgement.summary.ends_with(phrase), "{}", judgement.summary);
            assert_eq!(cause.detail.as_deref(), Some(detail));
            assert_eq!(cause.evidence.len(), 2 + evidence);
        },
    );
}

const WAYS: &str = "the SYN came in on ens3, the SYN-ACK went out on ens4";

#[test]
fn without_an_answer_the_two_devices_are_told() {
    let phrase = "perhaps because the SYN had come in on ens3";
    says(&[], CauseCode::AsymmetricEgress, phrase, WAYS, 0);
}

#[test]
fn a_mark_that_alone_decides_is_a_conflict() {
    says(
        &[route(MARK, OTHER_NIC, 100), route(0, NIC, 52)],
        CauseCode::MarkConflict,
        "perhaps because its mark 0x80001 met rule 100 (from all fwmark 0x64): without the mark it would have left on ens3, where its request had come in",
        &format!(
            "{WAYS} by the route default dev ens4 in table 100, by rule 100 (from all fwmark 0x64); without the mark it would take default dev ens3 in table 52, by rule 52 (from all fwmark 0x34)"
        ),
        2,
    );
}

#[test]
fn a_mark_that_changes_nothing_is_none() {
    says(
        &[route(MARK, OTHER_NIC, 100), route(0, OTHER_NIC, 100)],
        CauseCode::AsymmetricEgress,
        "perhaps because the SYN had come in on ens3, and rule 100 (from all fwmark 0x64) sends the SYN-ACK elsewhere",
        &format!(
            "{WAYS} by the route default dev ens4 in table 100, by rule 100 (from all fwmark 0x64)"
        ),
        2,
    );
}

#[test]
fn a_route_to_which_no_rule_leads_is_told() {
    let unreached = Route {
        rule: None,
        unreached: true,
        ..route(MARK, NIC, 52)
    };
    says(
        &[
            route(MARK, OTHER_NIC, 254),
            route(0, OTHER_NIC, 254),
            unreached,
        ],
        CauseCode::AsymmetricEgress,
        "and no routing rule leads the SYN-ACK to table 52, which has a route through ens3",
        &format!(
            "{WAYS} by the route default dev ens4 in table main, by rule 254 (from all fwmark 0xfe); default dev ens3 in table 52, to which no rule leads it"
        ),
        3,
    );
}

#[test]
fn a_route_that_has_changed_since_explains_nothing() {
    says(
        &[route(MARK, NIC, 52), route(0, NIC, 52)],
        CauseCode::AsymmetricEgress,
        "perhaps because the SYN had come in on ens3",
        &format!(
            "{WAYS}; 4.0 ms after that its route was another: default dev ens3 in table 52, by rule 52 (from all fwmark 0x34)"
        ),
        2,
    );
}

/// The questions that the sightings raise, filed one after another.
fn raised(story: &Story) -> Vec<Question> {
    let mut all: Vec<Sighting> = {
        let groups = story.analysis.flows.groups();
        groups
            .flat_map(|group| group.sightings().cloned().collect::<Vec<_>>())
            .collect()
    };
    all.sort_by_key(Sighting::order);
    let (mut flows, mut questions) = (FlowTable::default(), Questions::default());
    for sighting in all {
        questions.note(&sighting, &flows, &story.analysis.devices);
        flows.push(sighting);
    }
    std::iter::from_fn(|| questions.take()).collect()
}

#[test]
fn the_kernel_is_asked_when_the_reply_is_sent_again() {
    let asked = Question {
        netns: NODE_B,
        about: About::Egress {
            lookup: lookup(MARK),
            entered: NIC,
        },
    };
    let mut story = astray(|_| {});
    send(&mut story);
    // The second and the third time.
    assert_eq!(raised(&story), [asked, asked]);
    // Of a reply that is answered nothing is asked.
    let mut story = astray(|_| {});
    story.syn(0, &THERE[3..]);
    story.syn_ack(1, &[BACK[0], BACK[1], Xmit(NODE_B, OTHER_NIC)]);
    assert!(raised(&story).is_empty());
}

#[test]
fn what_shares_a_wire_is_one_way() {
    let on_ens3 = |kind: &'static str| {
        move |device: &mut Device| {
            device.kind = kind.to_owned();
            device.underlay_ifindex = Some(NIC);
        }
    };
    let mut story = astray(on_ens3("vlan"));
    send_over(&mut story, &[Xmit(NODE_B, OTHER_NIC), Xmit(NODE_B, NIC)]);
    assert!(raised(&story).is_empty());
    story.check(
        VerdictCode::ReplyLeftNode,
        Confidence::Inferred,
        |judgement| {
            assert!(judgement.cause.is_none(), "{judgement:#?}");
        },
    );
    // What a tunnel sends goes out below it, but is another packet there.
    let mut story = astray(on_ens3("ipip"));
    send(&mut story);
    assert!(!raised(&story).is_empty());
}

#[test]
fn the_ports_of_a_bond_are_one_way_and_those_of_a_vrf_are_not() {
    for (kind, questions) in [("bond", 0), ("vrf", 2)] {
        let mut story = astray(|device| device.master_ifindex = Some(9));
        let id = |ifindex| DeviceId {
            netns: NODE_B,
            ifindex,
        };
        let nic = story.analysis.devices.get(id(NIC)).expect("ens3").clone();
        let master = Device {
            id: id(9),
            kind: kind.to_owned(),
            ..nic.clone()
        };
        let port = Device {
            master_ifindex: Some(9),
            ..nic
        };
        for device in [master, port] {
            story.analysis.push(&Record::Device(Box::new(device)));
        }
        send(&mut story);
        assert_eq!(raised(&story).len(), questions, "{kind}");
    }
}
