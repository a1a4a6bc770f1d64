//! Applies faults to a network and takes them away again, and counts what their rules took.

use std::collections::HashMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde_json::Value;
use tracer::lab::{Family, Netns, VNI};

use crate::fault::{Fault, Kind, Packet, Route, Scope, What};
use crate::network::{Network, WRONG_MAC};
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

/// Breaks the network.
pub fn apply(network: &Network, number: usize, fault: &Fault) -> Result<()> {
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
            add_rule(network, number, spot, what.direction(), &rule)
        }
        Kind::Reject { spot, with, scope } => {
            let selected = selection(network, false, What::Only(Packet::Syn), *scope);
            let rule = format!("{selected} {{count}} reject with {with}");
            add_rule(network, number, spot, Direction::Request, &rule)
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
        Kind::NoListener | Kind::QueueFull | Kind::NobodyThere => Ok(()),
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
fn add_rule(
    network: &Network,
    number: usize,
    spot: &Spot,
    direction: Direction,
    rule: &str,
) -> Result<()> {
    let table = table_of(number, spot);
    let port = client_port(network, spot.is_outer, direction);
    let kind = if spot.is_outer {
        format!("typeof {port}")
    } else {
        "type inet_service".to_owned()
    };
    let device = match spot.table {
        Table::Netdev(device) => format!("device {device} "),
        _ => String::new(),
    };
    let hook = spot.hook;
    Ok(network.namespaces[spot.netns].nft(&format!(
        "add table {table}\n\
         add set {table} taken {{ {kind}; size 65535; flags dynamic; }}\n\
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

fn client_port(network: &Network, is_outer: bool, direction: Direction) -> String {
    let (tcp, _) = inner_bits(network);
    match (is_outer, direction) {
        (false, Direction::Request) => "tcp sport".to_owned(),
        (false, Direction::Reply) => "tcp dport".to_owned(),
        (true, Direction::Request) => format!("@th,{tcp},16"),
        (true, Direction::Reply) => format!("@th,{},16", tcp + 16),
    }
}

/// The match for the packets that a rule takes.
fn selection(network: &Network, is_outer: bool, what: What, scope: Scope) -> String {
    let (tcp, protocol) = inner_bits(network);
    let direction = what.direction();
    let server_port = match (is_outer, direction) {
        (false, Direction::Request) => "tcp dport".to_owned(),
        (false, Direction::Reply) => "tcp sport".to_owned(),
        (true, Direction::Request) => format!("@th,{},16", tcp + 16),
        (true, Direction::Reply) => format!("@th,{tcp},16"),
    };
    let mut words = Vec::new();
    if is_outer {
        words.push(format!("udp dport 4789 @th,{protocol},8 6"));
    }
    let flags = |mask: u8, value: u8| {
        if is_outer {
            format!("@th,{},8 & {mask} == {value}", tcp + 13 * 8)
        } else {
            format!("tcp flags & {mask} == {value}")
        }
    };
    match what {
        What::Only(Packet::Syn) => words.push(flags(0x17, 0x02)),
        What::Only(Packet::SynAck) => words.push(flags(0x17, 0x12)),
        What::Only(Packet::Ack) => words.push(flags(0x16, 0x10)),
        What::AllFrom(_) => {}
    }
    let targets: &[Target] = match &scope {
        Scope::Asking(target) => &[*target],
        Scope::Everybody | Scope::From(_) => &Target::ALL,
    };
    let ports: Vec<String> = targets
        .iter()
        .flat_map(|target| [target.port(), target.service_port()])
        .map(|port| port.to_string())
        .collect();
    words.push(format!("{server_port} {{ {} }}", ports.join(", ")));
    if let Scope::From(port) = scope {
        words.push(format!(
            "{} {port}",
            client_port(network, is_outer, direction)
        ));
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

/// Counts, in both pods, what each port sends and what arrives: the truth that no tracer has a part in.
pub fn count_handshakes(network: &Network) -> Result<()> {
    for (pod, hooks) in [
        (
            network.pod_a(),
            [
                ("output", Packet::Syn, "syn"),
                ("output", Packet::Ack, "ack"),
                ("prerouting", Packet::SynAck, "synack"),
            ],
        ),
        (
            network.pod_b(),
            [
                ("prerouting", Packet::Syn, "syn"),
                ("prerouting", Packet::Ack, "ack"),
                ("output", Packet::SynAck, "synack"),
            ],
        ),
    ] {
        let mut rules = String::from("add table inet truth\n");
        for hook in ["output", "prerouting"] {
            writeln!(
                rules,
                "add chain inet truth {hook} {{ type filter hook {hook} priority -300; }}"
            )?;
        }
        for (hook, packet, set) in hooks {
            let selected = selection(network, false, What::Only(packet), Scope::Everybody);
            let port = client_port(network, false, packet.direction());
            write!(
                rules,
                "add set inet truth {set} {{ type inet_service; size 65535; flags dynamic; }}\n\
                 add rule inet truth {hook} {selected} update @{set} {{ {port} counter }}\n"
            )?;
        }
        pod.nft(&rules)?;
    }
    Ok(())
}

/// What the pods counted.
#[derive(Clone, Debug, Default)]
pub struct Handshakes {
    sent: [ByPort; 3],
    arrived: [ByPort; 3],
}

impl Handshakes {
    pub fn read(network: &Network) -> Result<Self> {
        let (a, b) = (network.pod_a(), network.pod_b());
        let set = |pod, name: &str| read_set(pod, &format!("inet truth {name}"));
        Ok(Self {
            sent: [set(a, "syn")?, set(b, "synack")?, set(a, "ack")?],
            arrived: [set(b, "syn")?, set(a, "synack")?, set(b, "ack")?],
        })
    }

    pub fn sent(&self, packet: Packet, port: u16) -> u64 {
        self.sent[packet as usize].get(&port).copied().unwrap_or(0)
    }

    pub fn arrived(&self, packet: Packet, port: u16) -> u64 {
        self.arrived[packet as usize]
            .get(&port)
            .copied()
            .unwrap_or(0)
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
