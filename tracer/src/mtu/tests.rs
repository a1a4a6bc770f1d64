//! Topologies in a few lines, and what is to be found in each. What is expected is arithmetic, done by hand.

use std::net::IpAddr;

use super::codes::FindingCode;
use super::findings::{Finding, find};
use super::model::{
    Association, Clamp, Device, Encap, IpsecTunnel, Namespace, Network, RouteMetrics, Underlay, Use,
};
use super::paths::{Fate, Step, walk};
use crate::event::{DeviceId, NetnsId};

fn netns(inum: u32) -> NetnsId {
    NetnsId { inum, cookie: 0 }
}

fn id(inum: u32, ifindex: u32) -> DeviceId {
    DeviceId {
        netns: netns(inum),
        ifindex,
    }
}

/// A device that is up.
pub(super) fn device(netns: u32, ifindex: u32, name: &str, kind: &str, mtu: u32) -> Device {
    Device {
        id: id(netns, ifindex),
        name: name.to_owned(),
        kind: kind.to_owned(),
        mtu,
        up: true,
        peer: None,
        master: None,
        below: None,
        addrs: Vec::new(),
        encap: None,
        underlays: Vec::new(),
    }
}

/// The node's namespace; pods are 101, 102, …
const NODE: u32 = 1;

/// A network that is built step by step.
#[derive(Default)]
struct Build(Network);

impl Build {
    /// A node that forwards, with a NIC (ifindex 2) and its default route.
    fn node(mtu: u32) -> Self {
        let mut build = Self::default();
        build.netns(NODE, "node", true);
        build.add(device(NODE, 2, "ens3", "physical", mtu));
        build.route(id(NODE, 2), default_v4());
        build
    }

    fn netns(&mut self, inum: u32, name: &str, forwards: bool) {
        self.0.namespaces.insert(
            netns(inum),
            Namespace {
                name: Some(name.to_owned()),
                forwards,
                clamps: Some(Vec::new()),
                tcp_mtu_probing: Some(0),
                ..Namespace::default()
            },
        );
    }

    fn of(&mut self, inum: u32) -> &mut Namespace {
        self.0
            .namespaces
            .get_mut(&netns(inum))
            .expect("a namespace")
    }

    fn add(&mut self, device: Device) -> DeviceId {
        let id = device.id;
        self.0.devices.insert(id, device);
        id
    }

    fn device(&mut self, id: DeviceId) -> &mut Device {
        self.0.devices.get_mut(&id).expect("a device")
    }

    fn route(&mut self, device: DeviceId, used: Use) {
        self.of(device.netns.inum).uses.insert(device.ifindex, used);
    }

    /// A pod with this number: its eth0, and lxcN on the node.
    fn pod(&mut self, number: u32, eth0: u32, lxc: u32) -> DeviceId {
        let inum = 100 + number;
        self.netns(inum, &format!("pod{number}"), false);
        let near = device(NODE, 10 + number, &format!("lxc{number}"), "veth", lxc);
        let far = device(inum, 2, "eth0", "veth", eth0);
        let (near_id, far_id) = (near.id, far.id);
        self.add(Device {
            peer: Some(far_id),
            ..near
        });
        self.add(Device {
            peer: Some(near_id),
            ..far
        });
        self.route(far_id, default_v4());
        // The route to the pod is one to a host.
        self.route(
            near_id,
            Use {
                v4: true,
                ..Use::default()
            },
        );
        far_id
    }

    /// A tunnel of the node (ifindex 5) with a route, over the NIC to this remote.
    fn tunnel(&mut self, kind: &str, mtu: u32, remote: Option<&str>) -> DeviceId {
        let remote: Option<IpAddr> = remote.map(|addr| addr.parse().expect("an address"));
        let tunnel = Device {
            encap: (kind != "wireguard").then(|| Encap {
                remotes: remote.into_iter().collect(),
                ..Encap::default()
            }),
            underlays: remote
                .map(|remote| Underlay {
                    remote: Some(remote),
                    device: id(NODE, 2),
                    mtu: None,
                })
                .into_iter()
                .collect(),
            ..device(NODE, 5, "tun5", kind, mtu)
        };
        let id = self.add(tunnel);
        self.route(id, routed());
        id
    }

    fn findings(&self) -> Vec<Finding> {
        find(&self.0, &walk(&self.0))
    }

    /// Exactly these codes, in this order.
    #[track_caller]
    fn finds(&self, codes: &[FindingCode]) -> Vec<Finding> {
        let findings = self.findings();
        let found: Vec<FindingCode> = findings.iter().map(|finding| finding.code).collect();
        assert_eq!(found, codes, "{findings:#?}");
        findings
    }
}

fn default_v4() -> Use {
    Use {
        default_v4: true,
        v4: true,
        unlimited: true,
        ..Use::default()
    }
}

fn default_v6() -> Use {
    Use {
        default_v6: true,
        v6: true,
        unlimited: true,
        ..Use::default()
    }
}

fn routed() -> Use {
    Use {
        v4: true,
        unlimited: true,
        ..Use::default()
    }
}

fn affected(finding: &Finding) -> Option<(u32, u32)> {
    let sizes = finding.affected.as_ref()?;
    Some((*sizes.start(), *sizes.end()))
}

#[test]
fn a_pod_that_sends_more_than_its_nodes_end_takes_loses_from_five_bytes_on() {
    use FindingCode::VethMismatch;
    for (eth0, lxc, expected) in [
        (1460, 1380, Some((1385, 1460))),
        (1385, 1380, Some((1385, 1385))),
        (1384, 1380, None),
        (1380, 1380, None),
    ] {
        let mut build = Build::node(1500);
        build.pod(1, eth0, lxc);
        let codes = if expected.is_some() {
            &[VethMismatch][..]
        } else {
            &[]
        };
        let findings = build.finds(codes);
        let found = findings.first();
        assert_eq!(found.and_then(affected), expected, "{eth0} {lxc}");
        if let Some(found) = found {
            assert_eq!(found.largest_passing, Some(1384));
            assert_eq!(found.fate, Some(Fate::Lost));
            assert_eq!(found.mend, ["ip -n pod1 link set dev eth0 mtu 1380"]);
            assert_eq!(found.devices, [id(101, 2), id(NODE, 11)]);
        }
    }
}

#[test]
fn a_node_that_sends_more_than_its_pod_takes_is_the_other_direction() {
    let mut build = Build::node(1500);
    build.pod(1, 1400, 1500);
    let found = build.finds(&[FindingCode::VethMismatch]);
    assert_eq!(affected(&found[0]), Some((1405, 1500)));
    assert_eq!(found[0].mend, ["ip -n node link set dev lxc1 mtu 1400"]);
    assert_eq!(found[0].devices, [id(NODE, 11), id(101, 2)]);
}

#[test]
fn a_route_that_limits_a_pod_makes_its_device_harmless() {
    // As Cilium does it: eth0 keeps the MTU of the NIC, the default route has that of the overlay.
    let mut build = Build::node(1500);
    let eth0 = build.pod(1, 1500, 1500);
    build.tunnel("vxlan", 1450, Some("192.0.2.2"));
    build.finds(&[FindingCode::MissingMssClamp]);
    build.route(
        eth0,
        Use {
            unlimited: false,
            largest_mtu: Some(1450),
            ..default_v4()
        },
    );
    build.finds(&[]);
}

#[test]
fn cables_that_are_down_or_lead_out_of_sight_are_not_judged() {
    let mut build = Build::node(1500);
    let eth0 = build.pod(1, 1460, 1380);
    build.device(eth0).up = false;
    build.finds(&[]);
    build.device(eth0).up = true;
    build.device(id(NODE, 11)).peer = None;
    build.device(eth0).peer = Some(id(NODE, 99));
    build.finds(&[]);
}

#[test]
fn netkit_does_not_measure() {
    let mut build = Build::node(1500);
    let eth0 = build.pod(1, 1460, 1380);
    build.device(eth0).kind = "netkit".to_owned();
    build.device(id(NODE, 11)).kind = "netkit".to_owned();
    build.finds(&[]);
}

#[test]
fn many_pods_of_one_size_are_one_finding() {
    let mut build = Build::node(1500);
    for number in 1..=50 {
        build.pod(number, 1460, 1380);
    }
    let found = build.finds(&[FindingCode::VethMismatch]);
    assert_eq!((found[0].devices.len(), found[0].mend.len()), (100, 50));
    assert!(
        found[0].summary.contains("and 47 more"),
        "{}",
        found[0].summary
    );
}

#[test]
fn each_tunnel_needs_its_own_room() {
    use FindingCode::TunnelAboveUnderlay;
    for (kind, remote, room) in [
        ("vxlan", "192.0.2.2", 50),
        ("vxlan", "2001:db8::2", 70),
        ("geneve", "192.0.2.2", 50),
        ("geneve", "2001:db8::2", 70),
        ("wireguard", "192.0.2.2", 60),
        ("wireguard", "2001:db8::2", 80),
        ("ipip", "192.0.2.2", 20),
        ("gre", "192.0.2.2", 24),
        ("gretap", "192.0.2.2", 38),
        ("ip6tnl", "2001:db8::2", 40),
        ("sit", "192.0.2.2", 20),
    ] {
        let mut build = Build::node(1500);
        build.tunnel(kind, 1500 - room, Some(remote));
        build.finds(&[]);
        let mut build = Build::node(1500);
        build.tunnel(kind, 1500 - room + 1, Some(remote));
        let found = build.finds(&[TunnelAboveUnderlay]);
        assert_eq!(
            found[0].largest_passing,
            Some(1500 - room),
            "{kind} {remote}"
        );
        assert_eq!(affected(&found[0]), Some((1501 - room, 1501 - room)));
        let mend = format!("ip -n node link set dev tun5 mtu {}", 1500 - room);
        assert_eq!(found[0].mend, [mend]);
    }
}

#[test]
fn a_wireguard_whose_endpoints_are_not_known_is_judged_by_what_is_certain() {
    let mut build = Build::node(1500);
    build.tunnel("wireguard", 1440, None);
    build.finds(&[]);
    let mut build = Build::node(1500);
    build.tunnel("wireguard", 1441, None);
    let found = build.finds(&[FindingCode::TunnelAboveUnderlay]);
    assert!(
        found[0].notes[0].contains("80 bytes"),
        "{:?}",
        found[0].notes
    );
    // Where there is only IPv6, it is certain to be that.
    let mut build = Build::node(1500);
    build.route(id(NODE, 2), default_v6());
    build.tunnel("wireguard", 1421, None);
    build.finds(&[FindingCode::TunnelAboveUnderlay]);
}

#[test]
fn a_path_mtu_that_icmp_has_told_counts_as_the_underlays() {
    let mut build = Build::node(1500);
    let tunnel = build.tunnel("vxlan", 1450, Some("192.0.2.2"));
    build.device(tunnel).underlays[0].mtu = Some(1400);
    let found = build.finds(&[FindingCode::TunnelAboveUnderlay]);
    assert_eq!(found[0].largest_passing, Some(1350));
}

#[test]
fn what_becomes_of_an_outer_packet_depends_on_df() {
    let mut build = Build::node(1500);
    let tunnel = build.tunnel("vxlan", 1500, Some("192.0.2.2"));
    let found = build.finds(&[FindingCode::TunnelAboveUnderlay]);
    assert_eq!(found[0].fate, Some(Fate::Fragmented));
    build
        .device(tunnel)
        .encap
        .as_mut()
        .expect("a tunnel")
        .dont_fragment = true;
    let found = build.finds(&[FindingCode::TunnelAboveUnderlay]);
    assert_eq!(found[0].fate, Some(Fate::TooBig));
}

#[test]
fn an_external_tunnel_is_measured_by_what_pods_send() {
    // Cilium's VXLAN device has 1500 whatever it can carry; the pods' routes hold the limit.
    let mut build = Build::node(1500);
    let tunnel = build.tunnel("vxlan", 1500, None);
    let encap = build.device(tunnel).encap.as_mut();
    encap.expect("a tunnel").external = true;
    build.route(tunnel, Use::default());
    build.finds(&[]);
    build.pod(1, 1450, 1450);
    build.finds(&[]);
    build.pod(2, 1500, 1500);
    let found = build.finds(&[FindingCode::TunnelAboveUnderlay]);
    assert_eq!(affected(&found[0]), Some((1451, 1500)));
}

#[test]
fn an_xfrm_device_is_measured_by_what_its_association_carries() {
    let build = |mtu: u32, if_id: u32| {
        let mut build = Build::node(1500);
        let xfrm = build.add(Device {
            encap: Some(Encap {
                if_id: Some(7),
                ..Encap::default()
            }),
            ..device(NODE, 5, "ipsec0", "xfrm", mtu)
        });
        build.route(xfrm, routed());
        build.of(NODE).ipsec = vec![IpsecTunnel {
            association: Association {
                src: [192, 0, 2, 1].into(),
                dst: [192, 0, 2, 2].into(),
                algorithm: "rfc4106(gcm(aes))".to_owned(),
                check_bytes: 16,
                in_udp: false,
                if_id: Some(if_id),
            },
            underlay: Some(Underlay {
                remote: Some([192, 0, 2, 2].into()),
                device: id(NODE, 2),
                mtu: None,
            }),
        }];
        build
    };
    build(1446, 7).finds(&[]);
    let found = build(1500, 7).finds(&[FindingCode::TunnelAboveUnderlay]);
    assert_eq!(affected(&found[0]), Some((1447, 1500)));
    assert_eq!(found[0].mend, ["ip -n node link set dev ipsec0 mtu 1446"]);
    // Another device's association.
    build(1500, 8).finds(&[]);
}

#[test]
fn overlays_in_overlays_add_up() {
    // Geneve inside WireGuard: 1500 - 60 - 50.
    let nested = |geneve: u32| {
        let mut build = Build::node(1500);
        let wireguard = build.tunnel("wireguard", 1440, Some("192.0.2.2"));
        let inner = build.add(Device {
            encap: Some(Encap::default()),
            underlays: vec![Underlay {
                remote: Some([100, 64, 0, 2].into()),
                device: wireguard,
                mtu: None,
            }],
            ..device(NODE, 6, "genev0", "geneve", geneve)
        });
        build.route(inner, routed());
        build.pod(1, geneve, geneve);
        build
    };
    nested(1390).finds(&[]);
    let build = nested(1400);
    let found = build.finds(&[FindingCode::NestedOverlays]);
    assert_eq!(affected(&found[0]), Some((1391, 1400)));
    // The pod's way shows each layer and what is left of it.
    let paths = walk(&build.0);
    let path = paths.paths.iter().find(|path| path.sender == netns(101));
    let way = &path.expect("the pod's path").ways[0];
    let around = |step: &Step, name: u32| {
        let next = step.next.iter().find(|next| next.device.ifindex == name);
        next.cloned()
            .unwrap_or_else(|| panic!("no {name} after {step:?}"))
    };
    let genev0 = around(&way.next[0], 6);
    let wg = around(&genev0, 5);
    let nic = around(&wg, 2);
    assert_eq!((genev0.passes, wg.passes, nic.passes), (1400, 1390, 1390));
    assert_eq!((genev0.around, wg.around, nic.around), (0, 50, 110));
    assert_eq!(wg.fate, Some(Fate::Fragmented));
}

#[test]
fn a_geneve_over_tailscale_is_nested_too() {
    let mut build = Build::node(1500);
    let tailscale = build.add(device(NODE, 4, "tailscale0", "tun", 1280));
    build.route(tailscale, routed());
    let geneve = build.tunnel("geneve", 1450, Some("100.64.0.2"));
    build.device(geneve).underlays[0].device = tailscale;
    let found = build.finds(&[FindingCode::NestedOverlays]);
    assert_eq!(found[0].largest_passing, Some(1230));
}

#[test]
fn a_bridge_is_held_against_its_ports() {
    let bridged = |bridge: u32, ports: [u32; 2]| {
        let mut build = Build::node(1500);
        let br0 = build.add(Device {
            addrs: vec![[10, 0, 0, 1].into()],
            ..device(NODE, 9, "br0", "bridge", bridge)
        });
        build.route(br0, routed());
        for (number, mtu) in (1..).zip(ports) {
            build.pod(number, mtu, mtu);
            build.device(id(NODE, 10 + number)).master = Some(br0);
        }
        build
    };
    bridged(1500, [1500, 1500]).finds(&[]);
    let found = bridged(1400, [1500, 1500]).finds(&[FindingCode::BridgeBelowPorts]);
    assert_eq!(affected(&found[0]), Some((1401, 1500)));
    assert_eq!(found[0].mend, ["ip -n node link set dev br0 mtu 1500"]);
    let found = bridged(1400, [1500, 1400]).finds(&[FindingCode::BridgePortBelow]);
    assert_eq!(affected(&found[0]), Some((1405, 1500)));
    assert_eq!(
        found[0].mend,
        [
            "ip -n pod1 link set dev eth0 mtu 1400",
            "ip -n node link set dev lxc1 mtu 1400"
        ]
    );
    // Four bytes are no matter.
    bridged(1496, [1500, 1496]).finds(&[]);
}

#[test]
fn what_lies_below_must_take_what_comes_from_above() {
    for kind in ["vlan", "macvlan", "ipvlan"] {
        let mut build = Build::node(1500);
        let mut upper = device(NODE, 7, "up0", kind, 1500);
        upper.below = Some(id(NODE, 2));
        let upper = build.add(upper);
        build.route(upper, routed());
        build.finds(&[]);
        build.device(upper).mtu = 1504;
        build.finds(&[FindingCode::LowerDeviceBelow]);
    }
    let mut build = Build::node(9000);
    let bond = build.add(device(NODE, 7, "bond0", "bond", 9000));
    build.device(id(NODE, 2)).master = Some(bond);
    build.finds(&[]);
    build.device(id(NODE, 2)).mtu = 1500;
    let found = build.finds(&[FindingCode::LowerDeviceBelow]);
    assert_eq!(affected(&found[0]), Some((1501, 9000)));
}

#[test]
fn forwarding_that_cuts_needs_a_clamp_on_what_comes_back() {
    use FindingCode::MissingMssClamp;
    let mut build = Build::node(1492);
    build.pod(1, 1500, 1500);
    let found = build.finds(&[MissingMssClamp]);
    assert_eq!(affected(&found[0]), Some((1493, 1500)));
    assert_eq!(found[0].devices, [id(101, 2), id(NODE, 2)]);
    let named = |iif: Option<&str>, oif: Option<&str>, size| Clamp {
        chain: "mangle forward".to_owned(),
        iif: iif.map(str::to_owned),
        oif: oif.map(str::to_owned),
        unclear: false,
        size,
    };
    for (clamp, is_enough) in [
        (named(None, None, None), true),
        (named(Some("ens3"), None, None), true),
        (named(Some("ens*"), None, None), true),
        (named(Some("wg0"), None, None), false),
        (named(None, Some("ens3"), None), false),
        (named(None, None, Some(1452)), true),
        (named(None, None, Some(1460)), false),
    ] {
        build.of(NODE).clamps = Some(vec![clamp.clone()]);
        let found = build.finds(if is_enough { &[] } else { &[MissingMssClamp] });
        let half = clamp.oif.is_some();
        let says_half = found.iter().any(|found| found.notes.len() == 2);
        assert_eq!(half, says_half, "{clamp:?}");
    }
    // What cannot be read is no evidence.
    build.of(NODE).clamps = None;
    build.finds(&[]);
}

#[test]
fn senders_themselves_know_their_own_mtu() {
    // A node that sends 1500 itself and has a tunnel of 1420: its sockets are told, no packet is lost.
    let mut build = Build::node(1500);
    build.tunnel("wireguard", 1420, Some("192.0.2.2"));
    build.finds(&[]);
}

#[test]
fn jumbo_frames_into_an_ordinary_nic_are_cut() {
    let mut build = Build::node(1500);
    build.pod(1, 9000, 9000);
    let found = build.finds(&[FindingCode::MissingMssClamp]);
    assert_eq!(affected(&found[0]), Some((1501, 9000)));
}

#[test]
fn routes_that_lie_are_named_with_the_command_that_changes_them() {
    let route = |dst: &str, mtu, advmss| RouteMetrics {
        dst: dst.to_owned(),
        table: 254,
        ifindex: 2,
        gateway: Some([192, 0, 2, 1].into()),
        priority: Some(100),
        mtu,
        advmss,
    };
    let check = |route: RouteMetrics, codes: &[FindingCode], mend: &[&str]| {
        let mut build = Build::node(1400);
        build.of(NODE).metrics = vec![route];
        let found = build.finds(codes);
        assert_eq!(found.first().map_or(&[][..], |found| &found.mend), mend);
    };
    check(route("0.0.0.0/0", Some(1400), None), &[], &[]);
    check(
        route("0.0.0.0/0", Some(1500), None),
        &[FindingCode::RouteMtuAboveDevice],
        &["ip -n node route change 0.0.0.0/0 via 192.0.2.1 dev ens3 metric 100 table 254 mtu 1400"],
    );
    check(route("0.0.0.0/0", None, Some(1360)), &[], &[]);
    check(
        route("0.0.0.0/0", None, Some(1361)),
        &[FindingCode::AdvmssAboveMtu],
        &[
            "ip -n node route change 0.0.0.0/0 via 192.0.2.1 dev ens3 metric 100 table 254 advmss 1360",
        ],
    );
    let six = RouteMetrics {
        gateway: None,
        priority: None,
        ..route("::/0", None, Some(1341))
    };
    check(
        six,
        &[FindingCode::AdvmssAboveMtu],
        &["ip -n node -6 route change ::/0 dev ens3 table 254 advmss 1340"],
    );
}

#[test]
fn ipv6_needs_1280() {
    let mut build = Build::node(1500);
    build.tunnel("wireguard", 1279, Some("192.0.2.2"));
    build.finds(&[]);
    build.route(id(NODE, 2), default_v6());
    build.finds(&[FindingCode::BelowIpv6Minimum]);
    build.device(id(NODE, 5)).mtu = 1280;
    build.finds(&[]);
}

/// The node of the second incident after so many restarts of its agent, with a pod of each generation.
fn ratcheted(restarts: u32, kind: &str) -> Build {
    let mut build = Build::node(1460);
    let base = 1460 - 80 * restarts;
    for restart in 0..=restarts {
        build.pod(restart + 1, 1460 - 80 * restart, base);
    }
    build.tunnel(kind, base - 80, None);
    // The agent of this node clamps; what is left is the ratchet itself.
    build.of(NODE).clamps = Some(vec![Clamp::default()]);
    build
}

#[test]
fn the_ratchet_is_named_from_its_first_step_on() {
    use FindingCode::{MtuRatchet, PodsOlderThanMtu, VethMismatch};
    for kind in ["wireguard", "tun"] {
        ratcheted(0, kind).finds(&[]);
        for restarts in 1_u32..=3 {
            let mut codes = vec![VethMismatch; restarts as usize];
            codes.extend([PodsOlderThanMtu, MtuRatchet]);
            let found = ratcheted(restarts, kind).finds(&codes);
            let ratchet = &found[found.len() - 1];
            let summary = &ratchet.summary;
            let times = format!("{} times the 80 bytes", restarts + 1);
            assert!(summary.contains(&times), "{summary}");
            assert_eq!(ratchet.mend, ["ip -n node link set dev tun5 mtu 1380"]);
            let older = &found[found.len() - 2];
            assert_eq!(older.devices.len(), restarts as usize);
            assert_eq!(affected(older), Some((1461 - 80 * restarts, 1460)));
        }
    }
}

#[test]
fn a_small_tunnel_without_steps_is_no_ratchet() {
    let mut build = Build::node(1500);
    build.tunnel("wireguard", 1340, Some("192.0.2.2"));
    build.pod(1, 1340, 1340);
    build.finds(&[]);
}

#[test]
fn a_path_ends_where_the_node_does_and_never_runs_in_circles() {
    let mut build = Build::node(1500);
    build.pod(1, 1500, 1500);
    let paths = walk(&build.0);
    let senders: Vec<u32> = paths.paths.iter().map(|path| path.sender.inum).collect();
    assert_eq!(senders, [101], "the node is on the pod's way");
    // Two namespaces that route to each other by default.
    let mut build = Build::default();
    for (inum, other) in [(1, 2), (2, 1)] {
        build.netns(inum, "ring", true);
        build.add(Device {
            peer: Some(id(other, 2)),
            ..device(inum, 2, "v", "veth", 1500)
        });
        build.route(id(inum, 2), default_v4());
    }
    build.finds(&[]);
    // A tunnel whose underlay is itself.
    let mut build = Build::node(1500);
    let tunnel = build.tunnel("vxlan", 1450, Some("192.0.2.2"));
    build.device(tunnel).underlays[0].device = tunnel;
    let _ = build.findings();
}

#[test]
fn names_that_cannot_be_typed_are_not_put_into_commands() {
    let mut build = Build::node(1500);
    let eth0 = build.pod(1, 1460, 1380);
    build.device(eth0).name = "$(reboot)".to_owned();
    let found = build.finds(&[FindingCode::VethMismatch]);
    assert_eq!(
        found[0].mend,
        ["ip -n pod1 link set dev '$(reboot)' mtu 1380"]
    );
    build.device(eth0).name = "\u{1b}[2J'".to_owned();
    let found = build.finds(&[FindingCode::VethMismatch]);
    assert_eq!(found[0].mend, ["ip -n pod1 link set dev if2 mtu 1380"]);
    build.of(101).name = Some("a'b\n".to_owned());
    let found = build.finds(&[FindingCode::VethMismatch]);
    assert!(found[0].mend.is_empty());
}

mod told {
    //! How it reads.

    use super::*;
    use crate::mtu::report::{MtuReport, build};
    use crate::mtu::text;
    use crate::record::BlindSpot;
    use crate::report::{Node, Style, Time, Tracer, write_json};

    fn report(mut network: Network) -> MtuReport {
        network.blind_spots.push(BlindSpot {
            code: "netns_unreachable".to_owned(),
            summary: "1 network namespaces could not be entered".to_owned(),
        });
        let tracer = Tracer {
            version: "0.1.0".to_owned(),
            command: vec!["mtu".to_owned()],
        };
        let node = Node {
            hostname: "worker1".to_owned(),
            machine_id: String::new(),
            boot_id: String::new(),
            kernel: "6.18.44".to_owned(),
            arch: "x86_64".to_owned(),
        };
        let time = Time::from_unix_ns(1_796_140_815_000_000_000);
        build(&network, tracer, node, time)
    }

    fn text_of(report: &MtuReport, style: Style) -> String {
        let mut output = Vec::new();
        text::write(report, style, &mut output).expect("memory takes everything");
        String::from_utf8(output).expect("text is UTF-8")
    }

    #[test]
    fn the_ratchet_reads_well() {
        let report = report(ratcheted(2, "wireguard").0);
        insta::assert_snapshot!("ratchet_text", text_of(&report, Style::PLAIN));
        let mut json = Vec::new();
        write_json(&report, &mut json).expect("memory takes everything");
        insta::assert_snapshot!("ratchet_json", String::from_utf8(json).expect("UTF-8"));
    }

    #[test]
    fn a_healthy_node_reads_well() {
        let mut network = Build::node(1500);
        for number in 1..=9 {
            network.pod(number, 1450, 1450);
        }
        network.tunnel("vxlan", 1450, Some("192.0.2.2"));
        insta::assert_snapshot!("healthy_text", text_of(&report(network.0), Style::PLAIN));
    }

    #[test]
    fn hostile_names_reach_no_terminal() {
        let mut network = Build::node(1500);
        let eth0 = network.pod(1, 1460, 1380);
        network.device(eth0).name = "\u{1b}[2J\u{202e}".to_owned();
        network.of(101).name = Some("p\r\nno MTU mismatch".to_owned());
        let report = report(network.0);
        let mut json = Vec::new();
        write_json(&report, &mut json).expect("memory takes everything");
        let json = String::from_utf8(json).expect("UTF-8");
        for shown in [text_of(&report, Style::PLAIN), json] {
            let harmful = |c: char| c != '\n' && crate::escape::is_harmful(c);
            assert!(!shown.contains(harmful), "{shown}");
        }
    }

    #[test]
    fn colour_only_adds_sequences() {
        let report = report(ratcheted(1, "wireguard").0);
        let coloured = text_of(
            &report,
            Style {
                colour: true,
                ..Style::PLAIN
            },
        );
        let stripped = anstream::adapter::strip_str(&coloured).to_string();
        assert_eq!(stripped, text_of(&report, Style::PLAIN));
    }
}
