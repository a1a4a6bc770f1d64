//! Tunnels whose two ends do not agree, for the SYN and for the SYN-ACK: each pair has its own, beside the one that works.

use std::net::IpAddr;

use anyhow::Result;
use tracer::lab::{Family, Netns, Topology};
use tracer_tests::{
    Expected, Fault, Pair, SYN_ACK_LEFT_NODE_B, SYN_LEFT_NODE_A, Views, proven, side_by_side,
    unseen,
};

/// Which packet goes through the tunnel.
#[derive(Clone, Copy, PartialEq)]
enum Packet {
    Syn,
    SynAck,
}
use Packet::{Syn, SynAck};

/// The end that sends and the one that should receive.
struct Ends<'a> {
    near: &'a Netns,
    far: &'a Netns,
    near_underlay: IpAddr,
    near_gateway: IpAddr,
    far_underlay: IpAddr,
    far_gateway: IpAddr,
    /// An address that stands for the far end inside the tunnel, and what is reached through it.
    hop: IpAddr,
    to: IpAddr,
    vni: u32,
    device: String,
}

impl<'a> Ends<'a> {
    fn of(packet: Packet, lab: &'a Topology, pair: &Pair) -> Self {
        let plan = lab.plan;
        let ((a, gateway_a), (b, gateway_b)) = (plan.uplink_a(), plan.uplink_b());
        let vni = 5000 + u32::from(pair.number);
        // A link-local address may lie behind any device.
        let hop = match pair.client {
            IpAddr::V4(_) => IpAddr::from([169, 254, 0, pair.number]),
            IpAddr::V6(_) => IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 1, u16::from(pair.number)]),
        };
        let device = format!("vx{}", pair.number);
        match packet {
            Syn => Self {
                near: &lab.node_a,
                far: &lab.node_b,
                near_underlay: a,
                near_gateway: gateway_a,
                far_underlay: b,
                far_gateway: gateway_b,
                hop,
                to: pair.server.ip(),
                vni,
                device,
            },
            SynAck => Self {
                near: &lab.node_b,
                far: &lab.node_a,
                near_underlay: b,
                near_gateway: gateway_b,
                far_underlay: a,
                far_gateway: gateway_a,
                hop,
                to: pair.client,
                vni,
                device,
            },
        }
    }

    /// Sends the pair's packets into a new tunnel with these options (`remote …`), for the far end's MAC address.
    fn send(&self, options: &str, mac: &str) -> Result<()> {
        let Self { device, hop, .. } = self;
        Ok(self.near.ip(&format!(
            "link add {device} mtu 1400 type vxlan id {} local {} nolearning {options}\n\
             link set {device} up\n\
             neighbour replace {hop} lladdr {mac} dev {device} nud permanent\n\
             route replace {} via {hop} dev {device} onlink",
            self.vni, self.near_underlay, self.to
        ))?)
    }

    /// Makes the far end that would take them.
    fn receive(&self, state: &str) -> Result<()> {
        let Self { device, .. } = self;
        Ok(self.far.ip(&format!(
            "link add {device} mtu 1400 address {MAC} type vxlan id {} dstport 4789 local {} nolearning\n\
             link set {device} {state}",
            self.vni, self.far_underlay
        ))?)
    }
}

const MAC: &str = "02:00:00:00:01:0f";
const OTHER_MAC: &str = "02:de:ad:be:ef:02";

impl Packet {
    /// A death of the packet on the node that should receive it.
    const fn dies_at_the_far_end(
        self,
        expected: Expected,
        device: &'static [&'static str],
    ) -> Views {
        match self {
            Syn => Views::on_the_servers_node(expected.at("node-b", device), SYN_LEFT_NODE_A),
            SynAck => {
                Views::on_the_clients_node(expected.at("node-a", device), SYN_ACK_LEFT_NODE_B)
            }
        }
    }

    /// A death on the router between the nodes.
    const fn dies_underway(self, expected: Expected, device: &'static [&'static str]) -> Views {
        let full = expected.at("underlay", device);
        match self {
            Syn => Views {
                full,
                server_node: unseen(),
                client_node: SYN_LEFT_NODE_A,
            },
            SynAck => Views {
                full,
                server_node: SYN_ACK_LEFT_NODE_B,
                client_node: SYN_LEFT_NODE_A,
            },
        }
    }

    /// A death on the node that sends it.
    const fn dies_at_the_near_end(self, expected: Expected) -> Views {
        match self {
            Syn => Views::on_the_clients_node(expected.at("node-a", &[]), unseen()),
            SynAck => Views::on_the_servers_node(expected.at("node-b", &[]), SYN_LEFT_NODE_A),
        }
    }

    const fn code(self) -> &'static str {
        match self {
            Syn => "request_dropped",
            SynAck => "reply_dropped",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Syn => "SYN",
            SynAck => "SYN-ACK",
        }
    }

    /// The devices of the router that lead towards the far end, and from the near end.
    const fn router(self) -> [&'static [&'static str]; 2] {
        match self {
            Syn => [&["tob"], &["toa"]],
            SynAck => [&["toa"], &["tob"]],
        }
    }

    fn fault(
        self,
        what: &str,
        views: &Views,
        inject: impl Fn(&Ends<'_>, &Topology) -> Result<()> + Send + Sync + 'static,
    ) -> Fault {
        let name = format!("{}: {what}", self.name());
        Fault::new(name, *views, move |lab, pair| {
            inject(&Ends::of(self, lab, pair), lab)
        })
    }
}

fn of(packet: Packet, number: u8) -> Vec<Fault> {
    let died = proven(packet.code());
    let decap = died.stage("decap");
    let [towards, from] = packet.router();
    // The far end's device of the fault that needs its name.
    let far_devices: &'static [&'static str] = match number {
        4 => &["vx4"],
        _ => &["vx13"],
    };
    vec![
        packet.fault(
            "nobody has the VNI",
            &packet.dies_at_the_far_end(
                decap.cause(&["unknown_vni"]).reason("VXLAN_VNI_NOT_FOUND"),
                &["ens0"],
            ),
            |ends, _| ends.send(&format!("dstport 4789 remote {}", ends.far_underlay), MAC),
        ),
        packet.fault(
            "the device with the VNI is down",
            &packet.dies_at_the_far_end(
                decap.cause(&["tunnel_down"]).reason("VXLAN_VNI_NOT_FOUND"),
                &["ens0"],
            ),
            |ends, _| {
                ends.receive("down")?;
                ends.send(&format!("dstport 4789 remote {}", ends.far_underlay), MAC)
            },
        ),
        packet.fault(
            "another UDP port",
            &packet
                .dies_at_the_far_end(decap.cause(&["no_listener"]).reason("NO_SOCKET"), &["ens0"]),
            move |ends, _| {
                // Each end opens the port that it sends to.
                let port = if packet == Syn { 8472 } else { 8473 };
                ends.receive("up")?;
                ends.send(&format!("dstport {port} remote {}", ends.far_underlay), MAC)
            },
        ),
        packet.fault(
            "another MAC address",
            &packet
                .dies_at_the_far_end(died.cause(&["wrong_mac"]).reason("OTHERHOST"), far_devices),
            |ends, _| {
                ends.receive("up")?;
                ends.send(
                    &format!("dstport 4789 remote {}", ends.far_underlay),
                    OTHER_MAC,
                )
            },
        ),
        packet.fault(
            "the router's address instead of the far end's",
            &packet.dies_underway(decap.cause(&["no_listener"]).reason("NO_SOCKET"), from),
            |ends, _| {
                let Ends {
                    far_gateway,
                    near_gateway,
                    ..
                } = ends;
                ends.near
                    .ip(&format!("route add {far_gateway} via {near_gateway}"))?;
                ends.send(&format!("dstport 4789 remote {far_gateway}"), MAC)
            },
        ),
        packet.fault(
            "an address that nobody has instead of the far end's",
            &packet.dies_underway(died.cause(&["neighbour_unresolved"]), towards),
            |ends, _| {
                let nobody = neighbour_of(ends.far_underlay);
                ends.near
                    .ip(&format!("route add {nobody} via {}", ends.near_gateway))?;
                ends.send(&format!("dstport 4789 remote {nobody}"), MAC)
            },
        ),
        packet.fault(
            "no route to the far end",
            &packet.dies_at_the_near_end(
                died.stage("encap")
                    .cause(&["tunnel_no_route"])
                    .reason("IP_OUTNOROUTES"),
            ),
            |ends, _| {
                let nowhere = match ends.far_underlay {
                    IpAddr::V4(_) => "192.0.2.1",
                    IpAddr::V6(_) => "2001:db8::1",
                };
                ends.send(&format!("dstport 4789 remote {nowhere}"), MAC)
            },
        ),
        packet.fault(
            "no far end for the MAC address",
            &packet.dies_at_the_near_end(
                died.stage("encap")
                    .cause(&["tunnel_no_route"])
                    .reason("NO_TX_TARGET"),
            ),
            |ends, _| ends.send("dstport 4789", MAC),
        ),
        packet.fault(
            "the router writes a wrong UDP checksum",
            &packet.dies_at_the_far_end(decap.cause(&["checksum"]).reason("UDP_CSUM"), &["ens0"]),
            move |ends, lab| {
                ends.receive("up")?;
                // IPv6 has it anyway.
                ends.send(
                    &format!("dstport 4789 remote {} udpcsum", ends.far_underlay),
                    MAC,
                )?;
                tracer_tests::offload::send_checksums(ends.near, "ens0")?;
                let pod = if packet == Syn {
                    &lab.pod_a
                } else {
                    &lab.pod_b
                };
                tracer_tests::offload::send_checksums(pod, "eth0")?;
                // The VNI follows eight bytes of UDP and four of VXLAN.
                tracer_tests::faults::netfilter(
                    &lab.underlay,
                    "forward",
                    &format!(
                        "udp dport 4789 @th,96,24 {} udp checksum set 0xdead",
                        ends.vni
                    ),
                )
            },
        ),
    ]
}

/// An address of the same network that nobody has.
fn neighbour_of(addr: IpAddr) -> IpAddr {
    match addr {
        IpAddr::V4(addr) => {
            let [a, b, c, _] = addr.octets();
            IpAddr::from([a, b, c, 77])
        }
        IpAddr::V6(addr) => {
            let mut segments = addr.segments();
            segments[7] = 0x77;
            IpAddr::from(segments)
        }
    }
}

fn all(family: Family) -> Result<()> {
    let mut faults = of(Syn, 4);
    faults.extend(of(SynAck, 13));
    side_by_side(family, faults)
}

#[test]
fn tunnels_that_do_not_agree() -> Result<()> {
    all(Family::V4)
}

#[test]
fn tunnels_that_do_not_agree_over_ipv6() -> Result<()> {
    all(Family::V6)
}
