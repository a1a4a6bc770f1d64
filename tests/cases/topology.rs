//! What tracer knows of namespaces and devices, against namespaces that are built here: every field of every record.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use tracer::event::{DeviceId, NetnsId};
use tracer::lab::{Netns, sandbox};
use tracer::record::{Device, Fact, Record, View};
use tracer::topology::{Counters, Topology, tunnel_ports};
use tracer_common::packet::Tunnel;
use tracer_tests::Tracer;

/// How long a change may take to be noticed.
const SOON: Duration = Duration::from_secs(20);

fn open() -> Result<Topology> {
    Ok(Topology::open()?)
}

fn id_of(topology: &Topology, name: &str) -> Result<NetnsId> {
    topology
        .namespaces()
        .find_map(|(id, other)| (other == Some(name)).then_some(id))
        .with_context(|| format!("{name} is not in the topology"))
}

/// A device that is up, has an MTU of 1500 and nothing else.
fn device(netns: (NetnsId, &str), ifindex: u32, name: &str, kind: &str) -> Device {
    Device {
        id: id(netns.0, ifindex),
        netns_name: Some(netns.1.to_owned()),
        name: name.to_owned(),
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
        addrs: Vec::new(),
        removed: false,
    }
}

fn loopback(netns: (NetnsId, &str)) -> Device {
    Device {
        mtu: 65536,
        addrs: addrs(&["127.0.0.1", "::1"]),
        ..device(netns, 1, "lo", "loopback")
    }
}

fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}

fn addrs(texts: &[&str]) -> Vec<IpAddr> {
    let parsed = texts.iter().map(|text| text.parse());
    parsed.collect::<Result<_, _>>().expect("addresses")
}

fn id(netns: NetnsId, ifindex: u32) -> DeviceId {
    DeviceId { netns, ifindex }
}

/// The devices of these namespaces, in this order of namespaces.
fn in_namespaces(devices: &[Device], netns: &[NetnsId]) -> Vec<Device> {
    let inside = |netns| {
        devices
            .iter()
            .filter(move |device| device.id.netns == netns)
    };
    netns.iter().copied().flat_map(inside).cloned().collect()
}

/// Two namespaces joined by a veth pair with known MAC addresses and no addresses of its own making: `near` is
/// ifindex 2 of topo-a and `far` ifindex 2 of topo-b.
fn cable() -> Result<(Netns, Netns)> {
    let (a, b) = (Netns::add("topo-a")?, Netns::add("topo-b")?);
    a.ip(
        "link add near address 02:00:00:00:00:01 type veth peer name far address 02:00:00:00:00:02 netns topo-b
         link set near addrgenmode none up",
    )?;
    b.ip("link set far addrgenmode none up")?;
    Ok((a, b))
}

/// Polls until `done` likes all that was said so far.
fn poll_until(topology: &mut Topology, done: impl Fn(&[Device]) -> bool) -> Result<Vec<Device>> {
    let end = Instant::now() + SOON;
    let mut heard = Vec::new();
    while !done(&heard) {
        ensure!(Instant::now() < end, "only this was heard: {heard:#?}");
        thread::sleep(Duration::from_millis(10));
        heard.extend(topology.poll());
    }
    Ok(heard)
}

#[test]
fn every_field_of_every_device_is_as_the_kernel_has_it() -> Result<()> {
    sandbox::run(|| {
        let (a, b) = cable()?;
        a.ip("link add br0 address 02:00:00:00:00:03 type bridge
             link set near mtu 1400 master br0
             link add v1 address 02:00:00:00:00:04 type veth peer name v2 address 02:00:00:00:00:05
             link add vx address 02:00:00:00:00:06 type vxlan id 42 dev v1 dstport 4789
             link add meta address 02:00:00:00:00:07 type vxlan external dstport 8472
             link add link v1 name mv address 02:00:00:00:00:08 netns topo-b type macvlan
             link add link v1 name mw address 02:00:00:00:00:09 type macvlan
             tuntap add tun0 mode tun
             addr add 192.0.2.1 peer 192.0.2.2 dev v1
             addr add 2001:db8::1/64 dev v1 nodad
             addr add 192.0.2.9/24 dev v1")?;
        let topology = open()?;
        let (a_id, b_id) = (id_of(&topology, "topo-a")?, id_of(&topology, "topo-b")?);
        ensure!(u64::from(a_id.inum) == a.inum()? && u64::from(b_id.inum) == b.inum()?);
        let cookies = [topology.own().cookie, a_id.cookie, b_id.cookie, 0];
        assert_eq!(BTreeSet::from(cookies).len(), 4, "{cookies:?}");
        let (a, b) = ((a_id, "topo-a"), (b_id, "topo-b"));
        let down = |device: Device| Device {
            up: false,
            ..device
        };
        let expected = [
            loopback(a),
            Device {
                mtu: 1400,
                mac: Some(mac(1)),
                peer: Some(id(b_id, 2)),
                master_ifindex: Some(3),
                ..device(a, 2, "near", "veth")
            },
            Device {
                mtu: 1400,
                mac: Some(mac(3)),
                ..down(device(a, 3, "br0", "bridge"))
            },
            Device {
                mac: Some(mac(5)),
                peer: Some(id(a_id, 5)),
                ..down(device(a, 4, "v2", "veth"))
            },
            Device {
                mac: Some(mac(4)),
                peer: Some(id(a_id, 4)),
                addrs: addrs(&["192.0.2.1", "192.0.2.9", "2001:db8::1"]),
                ..down(device(a, 5, "v1", "veth"))
            },
            Device {
                mtu: 1450,
                mac: Some(mac(6)),
                vni: Some(42),
                udp_port: Some(4789),
                underlay_ifindex: Some(5),
                ..down(device(a, 6, "vx", "vxlan"))
            },
            Device {
                mac: Some(mac(7)),
                udp_port: Some(8472),
                ..down(device(a, 7, "meta", "vxlan"))
            },
            Device {
                mac: Some(mac(9)),
                underlay_ifindex: Some(5),
                ..down(device(a, 8, "mw", "macvlan"))
            },
            down(device(a, 9, "tun0", "tun")),
            loopback(b),
            Device {
                mac: Some(mac(2)),
                peer: Some(id(a_id, 2)),
                ..device(b, 2, "far", "veth")
            },
            // The device below is in another namespace.
            Device {
                mac: Some(mac(8)),
                underlay_ifindex: Some(5),
                underlay_netns: Some(a_id),
                ..down(device(b, 3, "mv", "macvlan"))
            },
        ];
        let devices = in_namespaces(&topology.devices(), &[a_id, b_id]);
        assert_eq!(devices, expected);
        let (ports, beyond) = tunnel_ports(&devices);
        assert_eq!(beyond, 0);
        assert_eq!(ports.lookup(4789), Tunnel::Vxlan);
        assert_eq!(ports.lookup(8472), Tunnel::Vxlan);
        assert_eq!(ports.lookup(6081), Tunnel::None);
        Ok(())
    })?
}

#[test]
fn changes_are_heard_and_a_peer_is_followed_into_another_namespace() -> Result<()> {
    sandbox::run(|| {
        let (a, b) = cable()?;
        let c = Netns::add("topo-c")?;
        let mut topology = open()?;
        let [a_id, b_id, c_id] = [
            id_of(&topology, "topo-a")?,
            id_of(&topology, "topo-b")?,
            id_of(&topology, "topo-c")?,
        ];
        let ours = [a_id, b_id, c_id];
        let near = Device {
            mac: Some(mac(1)),
            peer: Some(id(b_id, 2)),
            ..device((a_id, "topo-a"), 2, "near", "veth")
        };
        let far = Device {
            mac: Some(mac(2)),
            peer: Some(id(a_id, 2)),
            ..device((b_id, "topo-b"), 2, "far", "veth")
        };

        a.ip("link set near mtu 1300\naddr add 192.0.2.1/24 dev near")?;
        let shrunk = Device {
            mtu: 1300,
            addrs: addrs(&["192.0.2.1"]),
            ..near.clone()
        };
        let heard = poll_until(&mut topology, |heard| heard.contains(&shrunk))?;
        let heard = in_namespaces(&heard, &ours);
        ensure!(heard.iter().all(|heard| heard.id == near.id), "{heard:#?}");

        b.ip("link set far netns topo-c name moved")?;
        let moved = Device {
            name: "moved".to_owned(),
            netns_name: Some("topo-c".to_owned()),
            up: false,
            id: id(c_id, 2),
            ..far.clone()
        };
        let followed = Device {
            peer: Some(moved.id),
            ..shrunk.clone()
        };
        let gone = |heard: &Device, id| heard.id == id && heard.removed;
        poll_until(&mut topology, |heard| {
            let from_b = heard.iter().any(|heard| gone(heard, far.id));
            from_b && heard.contains(&moved) && heard.contains(&followed)
        })?;

        c.ip("link del moved")?;
        poll_until(&mut topology, |heard| {
            let both = [near.id, moved.id];
            both.iter()
                .all(|id| heard.iter().any(|heard| gone(heard, *id)))
        })?;
        let left = in_namespaces(&topology.devices(), &ours);
        assert_eq!(
            left,
            [
                loopback((a_id, "topo-a")),
                loopback((b_id, "topo-b")),
                loopback((c_id, "topo-c")),
            ]
        );
        ensure!(in_namespaces(&topology.poll(), &ours).is_empty());
        Ok(())
    })?
}

#[test]
fn more_changes_than_a_socket_holds_leave_the_truth_all_the_same() -> Result<()> {
    sandbox::run(|| {
        let (a, _b) = cable()?;
        let mut topology = open()?;
        let a_id = id_of(&topology, "topo-a")?;
        let lines = |verb: &str, range: std::ops::Range<u16>| {
            let line = |number: u16| {
                let [high, low] = number.to_be_bytes();
                format!("addr {verb} 198.18.{high}.{low}/32 dev near")
            };
            range.map(line).collect::<Vec<_>>().join("\n")
        };
        a.ip(&lines("add", 0..1500))?;
        a.ip(&lines("del", 500..1500))?;
        a.ip("link del near")?;
        a.ip("link add near address 02:00:00:00:00:07 type veth peer name other")?;
        a.ip(&lines("add", 0..700))?;
        let heard = poll_until(&mut topology, |heard| {
            let near = |heard: &&Device| heard.id.netns == a_id && heard.name == "near";
            let last = heard.iter().rfind(near);
            last.is_some_and(|near| near.addrs.len() == 700)
        })?;
        ensure!(
            heard
                .iter()
                .any(|heard| heard.id.netns == a_id && heard.removed)
        );
        let now = in_namespaces(&topology.devices(), &[a_id]);
        let names: BTreeSet<&str> = now.iter().map(|device| device.name.as_str()).collect();
        assert_eq!(names, BTreeSet::from(["lo", "near", "other"]));
        // Other tests do the same in namespaces that are known here as well.
        let end = Instant::now() + SOON;
        while !topology.blind_spots().is_empty() {
            ensure!(Instant::now() < end, "{:?}", topology.blind_spots());
            topology.poll();
        }
        Ok(())
    })?
}

#[test]
fn a_view_is_named_by_name_or_path_and_pods_hang_from_it_by_their_default_route() -> Result<()> {
    sandbox::run(|| {
        let (a, b) = cable()?;
        // A namespace behind a veth whose default route leads elsewhere, and one whose only route is IPv6.
        let (c, d) = (Netns::add("topo-c")?, Netns::add("topo-d")?);
        a.ip("link add nearc type veth peer name farc netns topo-c
             link add neard type veth peer name fard netns topo-d
             link set nearc up
             link set neard up")?;
        b.ip("addr add 192.0.2.2/24 dev far\nroute add default via 192.0.2.1")?;
        c.ip("link set farc up
             link add v1 type veth peer name v2
             link set v1 up
             link set v2 up
             addr add 192.0.2.2/24 dev v1
             route add default via 192.0.2.1")?;
        d.ip("link set fard up\naddr add 2001:db8::2/64 dev fard nodad\nroute add ::/0 via 2001:db8::1")?;

        let mut topology = open()?;
        let [a_id, b_id, d_id] = [
            id_of(&topology, "topo-a")?,
            id_of(&topology, "topo-b")?,
            id_of(&topology, "topo-d")?,
        ];
        let mut view = |names: &[&str], pods| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            topology.view(&names, pods)
        };
        let exactly = |netns: &[NetnsId]| {
            let sorted: BTreeSet<NetnsId> = netns.iter().copied().collect();
            View::Netns {
                netns: sorted.into_iter().collect(),
            }
        };
        assert_eq!(view(&[], false)?, View::Kernel);
        assert_eq!(view(&["topo-a"], false)?, exactly(&[a_id]));
        assert_eq!(
            view(&["/run/netns/topo-b", "topo-a", "topo-a"], false)?,
            exactly(&[a_id, b_id])
        );
        assert_eq!(view(&["topo-a"], true)?, exactly(&[a_id, b_id, d_id]));
        // From the pod's side, the node is no pod: it has no default route at all.
        assert_eq!(view(&["topo-b"], true)?, exactly(&[b_id]));

        let mut said = |name: &str| match view(&[name], false) {
            Ok(view) => format!("{view:?}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(
            said("topo-x"),
            "no network namespace \"topo-x\"; there are \"topo-a\", \"topo-b\", \"topo-c\", \"topo-d\""
        );
        assert_eq!(said("4294967295"), "no process 4294967295");
        assert_eq!(said("/dev/null"), "/dev/null is not a network namespace");
        Netns::add("topo-later")?;
        assert_eq!(
            said("topo-later"),
            "the network namespace \"topo-later\" could not be opened: it was not there when tracer looked"
        );
        Ok(())
    })?
}

#[test]
fn only_the_counters_that_moved_are_told() -> Result<()> {
    sandbox::run(|| {
        let (a, _b) = cable()?;
        let topology = open()?;
        let a_id = id_of(&topology, "topo-a")?;
        let view = View::Netns { netns: vec![a_id] };
        let nowhere = || -> Result<()> {
            a.run(|| -> Result<()> {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                ensure!(socket.send_to(b"x", "203.0.113.1:9").is_err());
                Ok(())
            })?
        };
        nowhere()?;
        let mut counters = Counters::open(&topology, &view);
        counters.begin();
        ensure!(counters.finish().is_empty());
        nowhere()?;
        nowhere()?;
        assert_eq!(
            counters.finish(),
            [Fact::Counter {
                netns: a_id,
                name: "IpOutNoRoutes".to_owned(),
                before: 1,
                after: 3,
            }]
        );
        Ok(())
    })?
}

#[test]
fn a_namespace_born_during_a_trace_is_known_though_tracer_has_no_privilege_by_then() -> Result<()> {
    sandbox::run(|| {
        let (a, _b) = cable()?;
        let directory = tempfile::tempdir()?;
        let capture = directory.path().join("born.jsonl");
        let path = capture.to_str().context("a UTF-8 path")?;
        // The filter matches nothing: the devices are known without any packet.
        let mut tracer = Tracer::start(&["trace", "--for", "0", "--capture", path, "port", "1"])?;
        tracer.wait_until_ready()?;
        let helper = only_child(tracer.pid())?;
        let born = Netns::add("topo-born")?;
        a.ip("link add nearb address 02:00:00:00:00:03 type veth peer name farb address 02:00:00:00:00:04 netns topo-born")?;
        let end = Instant::now() + SOON;
        let (near, far) = loop {
            let devices = devices_in(&capture)?;
            // Another run of this test beside this one may have devices of the same names.
            let last = |inum: u64, name: &str| {
                let ours = |device: &&Device| {
                    u64::from(device.id.netns.inum) == inum && device.name == name
                };
                devices.iter().rfind(ours).cloned()
            };
            match (last(a.inum()?, "nearb"), last(born.inum()?, "farb")) {
                (Some(near), Some(far)) if near.peer.is_some() && far.netns_name.is_some() => {
                    break (near, far);
                }
                heard => ensure!(Instant::now() < end, "{heard:#?}"),
            }
            thread::sleep(Duration::from_millis(50));
        };
        ensure!(far.id.netns.cookie != 0);
        let down = |device: Device| Device {
            up: false,
            ..device
        };
        assert_eq!(
            far,
            Device {
                mac: Some(mac(4)),
                peer: Some(near.id),
                ..down(device((far.id.netns, "topo-born"), 2, "farb", "veth"))
            }
        );
        assert_eq!(near.peer, Some(far.id));
        tracer.interrupt()?;
        ensure!(!Path::new("/proc").join(helper).exists());
        Ok(())
    })?
}

#[test]
fn a_namespace_that_ends_during_a_trace_is_not_kept_alive_by_it() -> Result<()> {
    sandbox::run(|| {
        let (a, b) = cable()?;
        let inum = a.inum()?;
        let directory = tempfile::tempdir()?;
        let capture = directory.path().join("ends.jsonl");
        let path = capture.to_str().context("a UTF-8 path")?;
        let mut tracer = Tracer::start(&["trace", "--for", "0", "--capture", path, "port", "1"])?;
        tracer.wait_until_ready()?;
        drop(b);
        a.command("ip", &["netns", "del", "topo-b"])?;
        // The kernel takes the far end away with its namespace, and the near end with the far one.
        let end = Instant::now() + SOON;
        let is_gone = |device: &Device| {
            u64::from(device.id.netns.inum) == inum && device.name == "near" && device.removed
        };
        while !devices_in(&capture)?.iter().any(is_gone) {
            ensure!(Instant::now() < end, "the namespace lives on");
            thread::sleep(Duration::from_millis(100));
        }
        tracer.interrupt()?;
        Ok(())
    })?
}

/// The process id of the only child of a process.
fn only_child(pid: u32) -> Result<String> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let mut children = children.split_whitespace();
    let (only, none) = (children.next(), children.next());
    ensure!(none.is_none(), "there is more than one child");
    Ok(only.context("there is no child")?.to_owned())
}

/// The device records of a capture that is still being written.
fn devices_in(capture: &Path) -> Result<Vec<Device>> {
    let text = fs::read_to_string(capture)?;
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let records = whole.lines().map(serde_json::from_str::<Record>);
    let mut devices = Vec::new();
    for record in records {
        if let Record::Device(device) = record? {
            devices.push(*device);
        }
    }
    Ok(devices)
}
