//! Applies faults to a network and takes them away again, and counts what their rules took.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tracer::lab::{Family, Netns, VNI};
use tracer_tests::bpf::{self, Victims};

use crate::fault::{Carrier, Fault, Hook, Kind, Packet, Route, Scope, What};
use crate::network::{DNS_PORT, Network, WRONG_MAC};
use crate::shape::{Direction, Spot, Table, Target};

/// How many packets, by the client's port.
pub type ByPort = HashMap<u16, u64>;

/// The table of a fault's rule.
fn table_of(number: usize, spot: &Spot) -> String {
    let family = match spot.table {
        Table::Inet => "inet",
        Table::Bridge => "bridge",
        Table::Netdev(_) => "netdev",
    };
    format!("{family} fault{number}")
}

/// Breaks the network, for as long as what it returns is held if it returns something.
pub fn apply(network: &Network, number: usize, fault: &Fault) -> Result<Option<OwnedFd>> {
    if let Kind::Program {
        netns,
        device,
        hook,
        packet,
    } = &fault.kind
    {
        let attach = match hook {
            Hook::TcxIngress => bpf::tcx_ingress,
            Hook::TcxEgress => bpf::tcx_egress,
            Hook::Xdp => bpf::xdp_generic,
        };
        let victims = Victims::of_all(network.shape.family, *packet == Packet::SynAck);
        return attach(&network.namespaces[*netns], device, &victims).map(Some);
    }
    change(network, number, fault).map(|()| None)
}

/// What stays until it is changed back.
fn change(network: &Network, number: usize, fault: &Fault) -> Result<()> {
    let shape = network.shape;
    let in_netns = |netns: usize| &network.namespaces[netns];
    match &fault.kind {
        Kind::Drop {
            spot,
            what,
            scope,
            percent,
        } => {
            let sometimes = percent
                .map(|percent| format!("numgen random mod 100 < {percent} "))
                .unwrap_or_default();
            let selected = selection(network, spot.is_outer, *what, *scope);
            let rule = format!("{selected} {sometimes}{{count}} drop");
            add_rule(network, number, spot, *what, &rule)
        }
        Kind::Reject { spot, with, scope } => {
            let selected = selection(network, false, What::Only(Packet::Syn), *scope);
            let rule = format!("{selected} {{count}} reject with {with}");
            add_rule(network, number, spot, What::Only(Packet::Syn), &rule)
        }
        Kind::Route {
            netns,
            direction,
            route,
        } => {
            let there = network.destination(*netns, *direction);
            let way = shape.way(*direction);
            let in_tunnel = shape.tunnel && *netns == way[1];
            let line = match route {
                Route::Blackhole => format!("route add blackhole {there}"),
                Route::Unreachable => format!("route add unreachable {there}"),
                Route::Prohibit => format!("route add prohibit {there}"),
                Route::Missing => format!("route del {}", network.pods(*direction)),
                Route::Nobody if in_tunnel => {
                    format!("route add {there} via {} dev vx0", network.tunnel_nobody())
                }
                Route::Nobody => format!(
                    "route add {there} via {} dev {}",
                    network.nobody(*netns, *direction),
                    shape.out_device(*netns, *direction)
                ),
            };
            Ok(in_netns(*netns).ip(&line)?)
        }
        Kind::TunnelNeighbour(direction) => {
            let node = shape.way(*direction)[1];
            let far = match direction {
                Direction::Request => network.nodes()[1],
                Direction::Reply => network.nodes()[0],
            };
            let via = network.nobody(node, *direction);
            Ok(in_netns(node).ip(&format!("route add {far} via {via} dev ens0"))?)
        }
        Kind::RpFilter { netns } => {
            let way = shape.way(Direction::Request);
            let leaves_tunnel = shape.tunnel && *netns == way[way.len() - 2];
            let (device, back_via, back_device) = if leaves_tunnel {
                let gateway = network.next_hop(*netns, Direction::Reply);
                ("vx0", gateway, "ens0")
            } else {
                (
                    shape.in_device(*netns, Direction::Request),
                    network.next_hop(*netns, Direction::Request),
                    shape.out_device(*netns, Direction::Request),
                )
            };
            let is_outer = shape.tunnel && *netns > 1 && !leaves_tunnel;
            let source = if is_outer {
                network.nodes()[0]
            } else {
                network.plan.client_ip()
            };
            let netns = in_netns(*netns);
            netns.ip(&format!(
                "route add {source} via {back_via} dev {back_device}"
            ))?;
            Ok(netns.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "1")?)
        }
        Kind::ForwardingOff { netns } => {
            Ok(network.plan.set_forwarding(in_netns(*netns), false)?)
        }
        Kind::WrongVni(direction) => {
            other_tunnel(network, *direction, &format!("id {} dstport 4789", VNI + 1))
        }
        Kind::WrongUdpPort(direction) => {
            other_tunnel(network, *direction, &format!("id {VNI} dstport 8472"))
        }
        Kind::WrongMac {
            netns,
            direction,
            inside_tunnel,
        } => {
            let (next, device) = if *inside_tunnel {
                (network.tunnel_end(*direction), "vx0")
            } else {
                (
                    network.next_hop(*netns, *direction),
                    shape.out_device(*netns, *direction),
                )
            };
            Ok(in_netns(*netns).ip(&format!(
                "neighbour replace {next} lladdr {WRONG_MAC} dev {device} nud permanent"
            ))?)
        }
        Kind::RouterDown { netns } => Ok(in_netns(*netns).ip("link set right down")?),
        Kind::ServerPodDown => Ok(network.pod_b().ip("link set eth0 down")?),
        Kind::TunnelDown(direction) => {
            Ok(in_netns(shape.way(*direction)[1]).ip("link set vx0 down")?)
        }
        Kind::HopLimit { direction, hops } => {
            let pod = shape.way(*direction)[0];
            let gateway = network.next_hop(pod, *direction);
            Ok(in_netns(pod).ip(&format!(
                "route del default via {gateway}\nroute add default via {gateway} hoplimit {hops}"
            ))?)
        }
        Kind::NoRouteBack => {
            let gateway = network.next_hop(shape.last(), Direction::Reply);
            Ok(network
                .pod_b()
                .ip(&format!("route del default via {gateway}"))?)
        }
        Kind::Program { .. } | Kind::NoListener | Kind::QueueFull | Kind::NobodyThere => Ok(()),
    }
}

/// Takes a fault away that can be taken away.
pub fn heal(network: &Network, number: usize, fault: &Fault) -> Result<()> {
    match &fault.kind {
        Kind::Drop { spot, .. } => Ok(network.namespaces[spot.netns]
            .nft(&format!("flush chain {} rules\n", table_of(number, spot)))?),
        Kind::Route {
            netns,
            direction,
            route,
        } => {
            let line = match route {
                Route::Missing => network.route_to_pods(*netns, *direction),
                _ => format!("route del {}", network.destination(*netns, *direction)),
            };
            Ok(network.namespaces[*netns].ip(&line)?)
        }
        Kind::ForwardingOff { netns } => Ok(network
            .plan
            .set_forwarding(&network.namespaces[*netns], true)?),
        _ => Ok(()),
    }
}

/// A tunnel to which the other node has no counterpart, for the packets of a direction.
fn other_tunnel(network: &Network, direction: Direction, parameters: &str) -> Result<()> {
    let node = network.shape.way(direction)[1];
    let [a, b] = network.nodes();
    let (local, remote) = match direction {
        Direction::Request => (a, b),
        Direction::Reply => (b, a),
    };
    let end = network.unknown();
    Ok(network.namespaces[node].ip(&format!(
        "link add vx1 mtu {} type vxlan {parameters} local {local} remote {remote} nolearning\n\
         link set vx1 up\n\
         neighbour replace {end} lladdr {mac} dev vx1 nud permanent\n\
         route add {there} via {end} dev vx1 onlink",
        network.pod_mtu(),
        mac = Network::tunnel_mac(direction),
        there = network.destination(node, direction),
    ))?)
}

/// Puts a rule at a spot; `{count}` in it becomes what counts the packets by the client's port.
fn add_rule(network: &Network, number: usize, spot: &Spot, what: What, rule: &str) -> Result<()> {
    let table = table_of(number, spot);
    let port = client_port(network, spot.is_outer, what);
    let device = match spot.table {
        Table::Netdev(device) => format!("device {device} "),
        _ => String::new(),
    };
    let hook = spot.hook;
    Ok(network.namespaces[spot.netns].nft(&format!(
        "add table {table}\n\
         add set {table} taken {{ typeof {port}; size 65535; flags dynamic; }}\n\
         add chain {table} rules {{ type filter hook {hook} {device}priority 0; }}\n\
         add rule {table} rules {}\n",
        rule.replace("{count}", &format!("update @taken {{ {port} counter }}"))
    ))?)
}

/// The bit, counted from the outer UDP header, at which the TCP header inside a VXLAN begins; and that of the IP
/// header's protocol.
fn inner_bits(network: &Network) -> (u32, u32) {
    let ip = 8 + 8 + 14;
    match network.shape.family {
        Family::V4 => ((ip + 20) * 8, (ip + 9) * 8),
        Family::V6 => ((ip + 40) * 8, (ip + 6) * 8),
    }
}

/// What names the client: its port, or the number of its echo.
fn client_port(network: &Network, is_outer: bool, what: What) -> String {
    let (ports, _) = inner_bits(network);
    let from_client = what.direction() == Direction::Request;
    match (is_outer, what.carrier()) {
        (_, Carrier::Echo) => format!("{} id", icmp(network)),
        (true, _) => format!("@th,{},16", if from_client { ports } else { ports + 16 }),
        (false, carrier) => {
            let protocol = if carrier == Carrier::Udp {
                "udp"
            } else {
                "tcp"
            };
            let end = if from_client { "sport" } else { "dport" };
            format!("{protocol} {end}")
        }
    }
}

/// nftables' name of ICMP.
fn icmp(network: &Network) -> &'static str {
    match network.shape.family {
        Family::V4 => "icmp",
        Family::V6 => "icmpv6",
    }
}

/// The match for the packets that a rule takes.
fn selection(network: &Network, is_outer: bool, what: What, scope: Scope) -> String {
    let (transport, protocol) = inner_bits(network);
    let from_client = what.direction() == Direction::Request;
    let carrier = what.carrier();
    if carrier == Carrier::Echo {
        let kind = if from_client { "request" } else { "reply" };
        return format!("{} type echo-{kind}", icmp(network));
    }
    let mut words = Vec::new();
    let (name, number) = if carrier == Carrier::Udp {
        ("udp", 17)
    } else {
        ("tcp", 6)
    };
    if is_outer {
        words.push(format!("udp dport 4789 @th,{protocol},8 {number}"));
    }
    let flags = |mask: u8, value: u8| {
        if is_outer {
            format!("@th,{},8 & {mask} == {value}", transport + 13 * 8)
        } else {
            format!("tcp flags & {mask} == {value}")
        }
    };
    match what {
        What::Only(Packet::Syn) => words.push(flags(0x17, 0x02)),
        What::Only(Packet::SynAck) => words.push(flags(0x17, 0x12)),
        What::Only(Packet::Ack) => words.push(flags(0x16, 0x10)),
        What::AllFrom(_) | What::Datagrams(_) | What::Echoes(_) => {}
    }
    let server_port = if is_outer {
        format!(
            "@th,{},16",
            if from_client {
                transport + 16
            } else {
                transport
            }
        )
    } else {
        format!("{name} {}", if from_client { "dport" } else { "sport" })
    };
    let targets: &[Target] = match &scope {
        Scope::Asking(target) => &[*target],
        Scope::Everybody | Scope::From(_) => &Target::ALL,
    };
    let ports: Vec<String> = match carrier {
        Carrier::Udp => vec![DNS_PORT.to_string()],
        _ => targets
            .iter()
            .flat_map(|target| [target.port(), target.service_port()])
            .map(|port| port.to_string())
            .collect(),
    };
    words.push(format!("{server_port} {{ {} }}", ports.join(", ")));
    if let Scope::From(port) = scope {
        words.push(format!("{} {port}", client_port(network, is_outer, what)));
    }
    words.join(" ")
}

/// What a fault's rule took.
pub fn taken(network: &Network, number: usize, fault: &Fault) -> Result<ByPort> {
    match &fault.kind {
        Kind::Drop { spot, .. } | Kind::Reject { spot, .. } => read_set(
            &network.namespaces[spot.netns],
            &format!("{} taken", table_of(number, spot)),
        ),
        _ => Ok(ByPort::new()),
    }
}

/// Every kind of packet that the pods count, with the name of its set.
const COUNTED: [(What, &str); 7] = [
    (What::Only(Packet::Syn), "syn"),
    (What::Only(Packet::SynAck), "synack"),
    (What::Only(Packet::Ack), "ack"),
    (What::Datagrams(Direction::Request), "query"),
    (What::Datagrams(Direction::Reply), "answer"),
    (What::Echoes(Direction::Request), "ping"),
    (What::Echoes(Direction::Reply), "pong"),
];

/// The pods that send and get the packets of a direction.
fn ends(network: &Network, what: What) -> (&Netns, &Netns) {
    match what.direction() {
        Direction::Request => (network.pod_a(), network.pod_b()),
        Direction::Reply => (network.pod_b(), network.pod_a()),
    }
}

/// Counts, in both pods, what each client sends and what arrives: the truth that no tracer has a part in.
pub fn count_packets(network: &Network) -> Result<()> {
    for pod in [network.pod_a(), network.pod_b()] {
        let mut rules = String::from("add table inet truth\n");
        for hook in ["output", "prerouting"] {
            writeln!(
                rules,
                "add chain inet truth {hook} {{ type filter hook {hook} priority -300; }}"
            )?;
        }
        for (what, set) in COUNTED {
            let sends = ends(network, what).0.name() == pod.name();
            let hook = if sends { "output" } else { "prerouting" };
            let selected = selection(network, false, what, Scope::Everybody);
            let client = client_port(network, false, what);
            writeln!(
                rules,
                "add set inet truth {set} {{ typeof {client}; size 65535; flags dynamic; }}\n\
                 add rule inet truth {hook} {selected} update @{set} {{ {client} counter }}"
            )?;
        }
        pod.nft(&rules)?;
    }
    Ok(())
}

/// What the pods counted.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Each kind of packet, as it was sent and as it arrived.
    packets: Vec<(What, ByPort, ByPort)>,
}

impl Counted {
    pub fn read(network: &Network) -> Result<Self> {
        let packets = COUNTED
            .into_iter()
            .map(|(what, set)| {
                let (sender, receiver) = ends(network, what);
                let set = format!("inet truth {set}");
                Ok((what, read_set(sender, &set)?, read_set(receiver, &set)?))
            })
            .collect::<Result<_>>()?;
        Ok(Self { packets })
    }

    /// How many packets of a client were sent, and how many arrived.
    pub fn of(&self, what: What, client: u16) -> (u64, u64) {
        let counts = self.packets.iter().find(|(of, ..)| *of == what);
        counts.map_or((0, 0), |(_, sent, arrived)| {
            let count = |counts: &ByPort| counts.get(&client).copied().unwrap_or(0);
            (count(sent), count(arrived))
        })
    }
}

fn read_set(netns: &Netns, set: &str) -> Result<ByPort> {
    let [family, table, name] = set.split(' ').collect::<Vec<_>>()[..] else {
        anyhow::bail!("{set} names no set");
    };
    let text = netns.command("nft", &["-j", "list", "set", family, table, name])?;
    let listed: Value = serde_json::from_str(&text).context("nft lists a set")?;
    let elements = listed["nftables"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|entry| entry["set"]["elem"].as_array())
        .flatten();
    elements
        .map(|element| {
            let element = &element["elem"];
            let port = element["val"].as_u64().context("a port")?;
            let packets = element["counter"]["packets"]
                .as_u64()
                .context("a counter")?;
            Ok((u16::try_from(port)?, packets))
        })
        .collect()
}
