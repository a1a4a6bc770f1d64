//! Devices as the namespaces tell them, in any order.

use super::*;

const HOST: NetnsId = NetnsId {
    inum: 1,
    cookie: 10,
};
const POD: NetnsId = NetnsId {
    inum: 2,
    cookie: 20,
};
const OTHER: NetnsId = NetnsId {
    inum: 3,
    cookie: 30,
};

fn table() -> Table {
    Table::new(Limits {
        devices: 4,
        addresses: 3,
    })
}

fn veth(ifindex: u32, over_ifindex: u32, over_nsid: Option<i32>) -> Change {
    Change::Link(Box::new(Link {
        ifindex,
        name: format!("veth{ifindex}"),
        kind: "veth".to_owned(),
        mtu: 1500,
        up: true,
        over_ifindex: Some(over_ifindex),
        over_nsid,
        ..Link::default()
    }))
}

fn id(netns: NetnsId, ifindex: u32) -> DeviceId {
    DeviceId { netns, ifindex }
}

/// (device, peer, removed) of each record.
fn peers(records: &[Device]) -> Vec<(DeviceId, Option<DeviceId>, bool)> {
    let triple = |device: &Device| (device.id, device.peer, device.removed);
    records.iter().map(triple).collect()
}

/// A veth between HOST (ifindex 7) and POD (ifindex 2).
fn cable(table: &mut Table) {
    table.apply(HOST, veth(7, 2, Some(0)));
    table.apply(POD, veth(2, 7, Some(5)));
    table.resolve(HOST, 0, POD);
    table.resolve(POD, 5, HOST);
    table.connect_all(HOST);
    table.connect_all(POD);
}

#[test]
fn a_peer_in_another_namespace_is_known_once_both_numbers_are() {
    let mut table = table();
    table.apply(HOST, veth(7, 2, Some(0)));
    table.apply(POD, veth(2, 7, Some(5)));
    assert_eq!(
        table.take_unresolved(),
        BTreeSet::from([(HOST, 0), (POD, 5)])
    );
    assert_eq!(
        peers(&table.changes()),
        [(id(HOST, 7), None, false), (id(POD, 2), None, false)]
    );
    table.resolve(HOST, 0, POD);
    table.resolve(POD, 5, HOST);
    table.connect_all(HOST);
    table.connect_all(POD);
    table.ask_again();
    assert!(table.take_unresolved().is_empty());
    assert_eq!(
        peers(&table.changes()),
        [
            (id(HOST, 7), Some(id(POD, 2)), false),
            (id(POD, 2), Some(id(HOST, 7)), false),
        ]
    );
    assert!(table.changes().is_empty());
}

#[test]
fn an_unknown_namespace_is_asked_for_again_when_there_are_new_ones() {
    let mut table = table();
    table.apply(HOST, veth(7, 2, Some(0)));
    assert_eq!(table.take_unresolved().len(), 1);
    assert!(table.take_unresolved().is_empty());
    table.ask_again();
    assert_eq!(table.take_unresolved(), BTreeSet::from([(HOST, 0)]));
}

#[test]
fn a_peer_that_moves_is_followed_though_only_its_side_is_told() {
    let mut table = table();
    cable(&mut table);
    table.changes();
    table.apply(POD, Change::LinkGone(2));
    assert_eq!(
        peers(&table.changes()),
        [(id(HOST, 7), None, false), (id(POD, 2), None, true)]
    );
    table.resolve(OTHER, 0, HOST);
    table.apply(OTHER, veth(2, 7, Some(0)));
    assert_eq!(
        peers(&table.changes()),
        [
            (id(HOST, 7), Some(id(OTHER, 2)), false),
            (id(OTHER, 2), Some(id(HOST, 7)), false),
        ]
    );
}

#[test]
fn the_order_in_which_namespaces_are_heard_does_not_matter() {
    let mut table = table();
    cable(&mut table);
    table.resolve(OTHER, 0, HOST);
    // The peer's mtu was set in POD, then it moved to OTHER, and OTHER is heard first.
    table.apply(OTHER, veth(4, 7, Some(0)));
    table.apply(POD, veth(2, 7, Some(5)));
    table.apply(POD, Change::LinkGone(2));
    assert_eq!(
        peers(&table.changes()),
        [
            (id(HOST, 7), Some(id(OTHER, 4)), false),
            (id(OTHER, 4), Some(id(HOST, 7)), false),
        ]
    );
}

#[test]
fn an_end_that_was_told_before_the_cable_was_complete_is_connected() {
    let mut table = table();
    let incomplete = Link {
        ifindex: 2,
        kind: "veth".to_owned(),
        ..Link::default()
    };
    table.apply(POD, Change::Link(Box::new(incomplete)));
    table.changes();
    table.resolve(HOST, 0, POD);
    table.apply(HOST, veth(7, 2, Some(0)));
    assert_eq!(
        peers(&table.changes()),
        [
            (id(HOST, 7), Some(id(POD, 2)), false),
            (id(POD, 2), Some(id(HOST, 7)), false),
        ]
    );
}

#[test]
fn a_stale_claim_is_not_believed() {
    let mut table = table();
    // HOST's veth still names ifindex 2 of POD, where another device has that number by now.
    table.resolve(HOST, 0, POD);
    table.apply(POD, veth(2, 9, None));
    table.apply(POD, veth(9, 2, None));
    table.apply(HOST, veth(7, 2, Some(0)));
    assert_eq!(
        peers(&table.changes()),
        [
            (id(HOST, 7), None, false),
            (id(POD, 2), Some(id(POD, 9)), false),
            (id(POD, 9), Some(id(POD, 2)), false),
        ]
    );
}

#[test]
fn a_device_that_came_and_went_between_two_calls_is_no_news() {
    let mut table = table();
    table.apply(HOST, veth(7, 8, None));
    table.apply(HOST, Change::LinkGone(7));
    assert!(table.changes().is_empty());
    table.apply(HOST, veth(7, 8, None));
    assert_eq!(table.changes().len(), 1);
    // The same again (a flapping carrier) is none either.
    table.apply(HOST, veth(7, 8, None));
    assert!(table.changes().is_empty());
}

#[test]
fn what_does_not_fit_is_counted_and_room_comes_back() {
    let mut table = table();
    for ifindex in 1..=5 {
        table.apply(HOST, veth(ifindex, 99, None));
    }
    for last in 1..=4 {
        table.apply(HOST, Change::Address(1, IpAddr::from([10, 0, 0, last])));
    }
    let refused = Refused {
        devices: 1,
        addresses: 1,
    };
    assert_eq!(table.refused(), refused);
    assert_eq!(table.devices().len(), 4);
    table.apply(HOST, Change::LinkGone(1));
    table.apply(HOST, veth(5, 99, None));
    table.apply(HOST, Change::Address(5, IpAddr::from([10, 0, 0, 9])));
    assert_eq!(table.refused(), refused);
    assert_eq!(table.devices().len(), 4);
}

#[test]
fn a_released_namespace_is_not_said_to_be_gone() {
    let mut table = table();
    cable(&mut table);
    table.take_unresolved();
    table.changes();
    table.release(POD);
    assert_eq!(peers(&table.changes()), [(id(HOST, 7), None, false)]);
    assert_eq!(table.devices().len(), 1);
    // Its number in HOST may be given to another namespace now.
    table.ask_again();
    assert_eq!(table.take_unresolved(), BTreeSet::from([(HOST, 0)]));
}

#[test]
fn a_namespace_that_is_heard_anew_loses_what_does_not_come_back() {
    let mut table = table();
    table.apply(HOST, veth(1, 2, None));
    table.apply(HOST, veth(2, 1, None));
    table.apply(POD, veth(1, 99, None));
    table.changes();
    table.forget(HOST);
    table.apply(HOST, veth(1, 99, None));
    assert_eq!(
        peers(&table.changes()),
        [(id(HOST, 1), None, false), (id(HOST, 2), None, true)]
    );
    assert_eq!(table.devices().len(), 2);
}
