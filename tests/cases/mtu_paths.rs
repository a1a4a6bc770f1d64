//! Packets that are too big for their way, on every path by which this kernel drops for size, and what became of the ICMP
//! errors that should have told their senders.
//!
//! The pairs' packets leave the tunnel and are routed by the underlay, where a route of their own has the smaller MTU; the
//! pods' devices take 1450 bytes (1430 over IPv6).

use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd as _;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use tracer::lab::{Family, Netns, Outcome, Server, Topology, UdpServer, connect, udp_socket};
use tracer_tests::faults;
use tracer_tests::socket::never_fragment;
use tracer_tests::{
    Expected, Fault, Observers, Pair, Views, answered, both, echo, inferred, proven, side_by_side,
    with_lab,
};

/// Longer than what goes out of one moment together may be apart.
const PAUSE: Duration = Duration::from_millis(300);

const PATIENCE: Duration = Duration::from_millis(3400);

/// What the underlay's routes take.
const NARROW: u16 = 1400;

/// More than one packet, and what a device cuts into segments.
const MUCH: usize = 20_000;

/// Three packets, that none of them is held back by the budget of a busy connection.
const LITTLE: usize = 4_000;

/// A fault of the way from the server to the client.
const TOO_BIG: Expected = proven("mtu_dropped").cause(&["mtu"]);

/// The client's node sees nothing but that its own bytes are acknowledged.
fn on_the_way_back(full: Expected, server_node: Expected) -> Views {
    Views {
        full,
        server_node,
        client_node: answered(),
    }
}

/// Takes the packets of a pair past the tunnel, through a route in the underlay that takes `mtu` bytes towards the client.
fn routed(lab: &Topology, pair: &Pair, mtu: u16) -> Result<()> {
    let (server, client) = (pair.server.ip(), pair.client);
    let ((uplink_a, gateway_a), (uplink_b, gateway_b)) = (lab.plan.uplink_a(), lab.plan.uplink_b());
    lab.underlay.ip(&format!(
        "route add {client} via {uplink_a} mtu {mtu}\n\
         route add {server} via {uplink_b}"
    ))?;
    lab.node_a
        .ip(&format!("route replace {server} via {gateway_a}"))?;
    lab.node_b
        .ip(&format!("route replace {client} via {gateway_b}"))?;
    Ok(())
}

/// nftables: the ICMP error that tells the server of a pair that its packets are too big.
fn too_big_for(pair: &Pair) -> String {
    let server = pair.server.ip();
    if server.is_ipv4() {
        format!("ip daddr {server} icmp type destination-unreachable")
    } else {
        format!("ip6 daddr {server} icmpv6 type packet-too-big")
    }
}

#[test]
fn routed_packets_that_are_too_big() -> Result<()> {
    both(|family| {
        let healed = answered().says("path MTU discovery");
        side_by_side(
            family,
            vec![
                Fault::new(
                    "a way that is wide enough",
                    Views::all(answered()),
                    |lab, pair| routed(lab, pair, 1500),
                )
                .transfers(MUCH),
                Fault::new(
                    "a sender that hears ICMP",
                    on_the_way_back(healed, healed),
                    |lab, pair| routed(lab, pair, NARROW),
                )
                .transfers(MUCH),
                Fault::new(
                    "ICMP dropped by the router that sends it",
                    on_the_way_back(
                        TOO_BIG
                            .at("underlay", &["tob", "toa"])
                            .mtu(1400)
                            .icmp("dropped"),
                        inferred("large_packets_lost").at("node-b", &["ens0"]),
                    ),
                    |lab, pair| {
                        faults::netfilter(
                            &lab.underlay,
                            "output",
                            &format!("{} drop", too_big_for(pair)),
                        )?;
                        routed(lab, pair, NARROW)
                    },
                )
                .stalls(MUCH),
                Fault::new(
                    "ICMP dropped in the pod",
                    on_the_way_back(
                        TOO_BIG
                            .at("underlay", &["tob", "toa"])
                            .mtu(1400)
                            .icmp("dropped"),
                        TOO_BIG.at("node-b", &["ens0"]).mtu(1400).icmp("dropped"),
                    ),
                    |lab, pair| {
                        faults::netfilter(
                            &lab.pod_b,
                            "input",
                            &format!("{} drop", too_big_for(pair)),
                        )?;
                        routed(lab, pair, NARROW)
                    },
                )
                .stalls(MUCH),
                Fault::new(
                    "a router without a route back",
                    on_the_way_back(
                        TOO_BIG
                            .at("underlay", &["tob", "toa"])
                            .mtu(1400)
                            .icmp("no_route_back"),
                        inferred("large_packets_lost").at("node-b", &["ens0"]),
                    ),
                    |lab, pair| {
                        let (uplink_a, _) = lab.plan.uplink_a();
                        let (_, gateway_b) = lab.plan.uplink_b();
                        lab.underlay.ip(&format!(
                            "route add {} via {uplink_a} mtu {NARROW}",
                            pair.client
                        ))?;
                        lab.node_b
                            .ip(&format!("route replace {} via {gateway_b}", pair.client))?;
                        Ok(())
                    },
                )
                .stalls(MUCH),
            ],
        )
    })
}

/// A connection from pod-a to the server in pod-b over which a small message is echoed.
fn open(lab: &Topology) -> Result<(SocketAddr, TcpStream)> {
    let attempt = connect(&lab.pod_a, 0, lab.plan.server(6379))?;
    let client = attempt.local;
    let Outcome::Connected(stream) = attempt.wait(PATIENCE) else {
        bail!("the lab does not work while it is healthy");
    };
    stream.set_read_timeout(Some(PATIENCE))?;
    ensure!(echo(&stream, 5)?, "small replies are lost, too");
    Ok((client, stream))
}

/// Has much echoed by a healthy lab, breaks it, and has a little echoed over another connection, which must end as said.
fn broken_by(
    family: Family,
    prepare: impl Fn(&Topology) -> Result<()> + Send + Sync,
    fault: impl Fn(&Topology) -> Result<()> + Send + Sync,
    comes_back: bool,
    views: &Views,
) -> Result<()> {
    with_lab(family, move |lab| {
        prepare(lab)?;
        let _server = Server::start(&lab.pod_b, lab.plan.server(6379))?;
        let observers = Observers::start(lab)?;
        let (healthy, stream) = open(lab)?;
        ensure!(
            echo(&stream, MUCH)?,
            "the lab does not work while it is healthy"
        );
        let (broken, stream) = open(lab)?;
        fault(lab)?;
        ensure!(
            echo(&stream, LITTLE)? == comes_back,
            "the fault {}",
            if comes_back {
                "stops everything"
            } else {
                "stops nothing"
            }
        );
        observers
            .stop()?
            .check(&[(healthy, Views::all(answered())), (broken, *views)])
    })
}

/// Segments of their own, as devices without segmentation offload send them.
fn without_gso(netns: &Netns) -> Result<()> {
    netns.ip("link set eth0 gso_max_segs 1")?;
    Ok(())
}

#[test]
fn a_wire_whose_end_at_the_node_is_narrower() -> Result<()> {
    both(|family| {
        let too_big = TOO_BIG
            .at("pod-b", &["eth0"])
            .mtu(1380)
            .icmp("link_layer")
            .next("`ip netns exec pod-b ip link set eth0 mtu 1380`");
        broken_by(
            family,
            |lab| without_gso(&lab.pod_b),
            |lab| Ok(lab.node_b.ip("link set lxcb mtu 1380").map(drop)?),
            false,
            &on_the_way_back(too_big, too_big),
        )
    })
}

#[test]
fn a_wire_whose_end_in_the_pod_is_narrower() -> Result<()> {
    both(|family| {
        let too_big = TOO_BIG
            .at("node-b", &["lxcb"])
            .mtu(1380)
            .icmp("link_layer")
            .next("`ip netns exec node-b ip link set lxcb mtu 1380`");
        broken_by(
            family,
            |lab| without_gso(&lab.pod_a),
            |lab| Ok(lab.pod_b.ip("link set eth0 mtu 1380").map(drop)?),
            false,
            &Views {
                full: too_big,
                server_node: too_big,
                client_node: inferred("large_packets_lost")
                    .at("node-a", &["ens0"])
                    .next("ip netns exec pod-a ping -I"),
            },
        )
    })
}

#[test]
fn segments_that_are_cut_behind_a_narrow_wire_pass_it() -> Result<()> {
    both(|family| {
        broken_by(
            family,
            |_| Ok(()),
            |lab| Ok(lab.node_b.ip("link set lxcb mtu 1380").map(drop)?),
            true,
            &Views::all(answered()),
        )
    })
}

#[test]
fn four_bytes_more_than_its_mtu_pass_a_wire() -> Result<()> {
    both(|family| {
        let mtu = match family {
            Family::V4 => 1446,
            Family::V6 => 1426,
        };
        broken_by(
            family,
            |lab| without_gso(&lab.pod_b),
            move |lab| {
                Ok(lab
                    .node_b
                    .ip(&format!("link set lxcb mtu {mtu}"))
                    .map(drop)?)
            },
            true,
            &Views::all(answered()),
        )
    })
}

/// Over IPv4: with `br_netfilter`, as here, a bridge fragments what IPv6 has too large for a port.
#[test]
fn a_bridge_whose_port_is_narrower() -> Result<()> {
    let too_big = TOO_BIG
        .at("node-b", &["port"])
        .mtu(1380)
        .icmp("link_layer")
        .next("`ip netns exec node-b ip link set port mtu");
    broken_by(
        Family::V4,
        |lab| {
            without_gso(&lab.pod_b)?;
            // pod-b's wire leads into a bridge, and the node is behind another port of it.
            let gateway = lab.plan.gateway_b();
            let prefix_len = if gateway.is_ipv4() { 24 } else { 48 };
            lab.node_b.ip(&format!(
                "address del {gateway}/{prefix_len} dev lxcb\n\
                     link add br0 type bridge forward_delay 0 mcast_snooping 0\n\
                     link set lxcb master br0\n\
                     link add port mtu 1450 type veth peer name inner mtu 1450\n\
                     link set port master br0\n\
                     link set br0 up\n\
                     link set port up\n\
                     link set inner up\n\
                     address add {gateway}/{prefix_len} dev inner nodad"
            ))?;
            lab.node_b.wait_for_links()?;
            Ok(())
        },
        |lab| Ok(lab.node_b.ip("link set port mtu 1380").map(drop)?),
        false,
        &on_the_way_back(too_big, too_big),
    )
}

#[test]
fn datagrams_that_must_not_be_fragmented() -> Result<()> {
    both(|family| {
        with_lab(family, |lab| {
            let address = lab.plan.server(7777);
            let _server = UdpServer::start(&lab.pod_b, address, |_| {})?;
            let observers = Observers::start(lab)?;
            let client = || {
                let socket = udp_socket(&lab.pod_a, SocketAddr::new(lab.plan.client_ip(), 0))?;
                never_fragment(socket.as_fd(), family)?;
                socket.set_read_timeout(Some(PAUSE))?;
                anyhow::Ok(socket)
            };
            let (healthy, broken) = (client()?, client()?);
            healthy.send_to(&[0; 1372], address)?;
            ensure!(
                healthy.recv_from(&mut [0; 2048]).is_ok(),
                "the lab does not work while it is healthy"
            );
            lab.pod_b.ip("link set eth0 mtu 1380")?;
            // A wait between them, so that the second is not of one moment with the first.
            for _ in 0..2 {
                broken.send_to(&[0; 1372], address)?;
                ensure!(
                    broken.recv_from(&mut [0; 2048]).is_err(),
                    "the MTU stops nothing"
                );
            }
            let too_big = TOO_BIG.at("node-b", &["lxcb"]).mtu(1380).icmp("link_layer");
            observers.stop()?.check(&[
                (
                    healthy.local_addr()?,
                    Views {
                        server_node: inferred("answered"),
                        ..Views::all(answered())
                    },
                ),
                (
                    broken.local_addr()?,
                    Views {
                        full: too_big,
                        server_node: too_big,
                        client_node: inferred("one_way"),
                    },
                ),
            ])
        })
    })
}
