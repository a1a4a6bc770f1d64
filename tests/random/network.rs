//! Builds the namespaces of a shape, and knows their addresses.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use tracer::lab::{Family, Netns, Plan, VNI};

use crate::shape::{Direction, Nat, Shape, Target, names};

const POD_A: u8 = 1;
const POD_B: u8 = 2;
const TUNNEL: u8 = 0;
/// The network of `node-a` and the first router; every router opens the next one.
const FIRST_UPLINK: u8 = 101;
/// Where DNS queries are answered.
pub const DNS_PORT: u16 = 53;
/// Nobody has this host number in any network.
const NOBODY: u8 = 77;
/// `vx0` on node-a and on node-b.
const TUNNEL_MACS: [&str; 2] = ["02:00:00:00:00:0a", "02:00:00:00:00:0b"];
/// Nobody has this MAC address.
pub const WRONG_MAC: &str = "02:de:ad:be:ef:02";

/// The namespaces, built.
pub struct Network {
    pub plan: Plan,
    pub shape: Shape,
    /// From the client to the server.
    pub namespaces: Vec<Netns>,
}

impl Network {
    /// Builds it, healthy, in the calling thread's sandbox.
    pub fn build(number: u8, shape: Shape) -> Result<Self> {
        let plan = Plan::new(number, shape.family);
        let names = names(shape.routers);
        let namespaces = names
            .iter()
            .map(|name| Ok(Netns::add(name)?))
            .collect::<Result<Vec<_>>>()?;
        let network = Self {
            plan,
            shape,
            namespaces,
        };
        for netns in &network.namespaces {
            plan.set_defaults(netns)?;
        }
        for router in &network.namespaces[1..=shape.routers + 2] {
            plan.set_forwarding(router, true)?;
        }
        network.build_links()?;
        network.build_routers()?;
        network.build_node(Direction::Request)?;
        network.build_node(Direction::Reply)?;
        network.translate()?;
        for netns in &network.namespaces {
            netns.wait_for_links()?;
        }
        Ok(network)
    }

    pub fn pod_a(&self) -> &Netns {
        &self.namespaces[0]
    }

    pub fn pod_b(&self) -> &Netns {
        &self.namespaces[self.shape.last()]
    }

    /// The address of the next hop's device in a namespace's link of a direction.
    pub fn next_hop(&self, netns: usize, direction: Direction) -> IpAddr {
        let last = self.shape.last();
        let (net, host) = match (netns, direction) {
            (0, _) => (POD_A, 1),
            (1, Direction::Reply) => (POD_A, 2),
            (netns, _) if netns == last => (POD_B, 1),
            (netns, Direction::Request) if netns == last - 1 => (POD_B, 2),
            // Of the two ends of an uplink, the left has 2 if it is node-a, and the right has 2 always.
            (netns, Direction::Request) => (uplink(netns), 2 - u8::from(netns == 1)),
            (2, Direction::Reply) => (uplink(1), 2),
            (netns, Direction::Reply) => (uplink(netns - 1), 1),
        };
        self.plan.host(net, host)
    }

    /// An address that nobody has in a namespace's link of a direction.
    pub fn nobody(&self, netns: usize, direction: Direction) -> IpAddr {
        let last = self.shape.last();
        let net = match (netns, direction) {
            (0, _) | (1, Direction::Reply) => POD_A,
            (netns, _) if netns == last => POD_B,
            (netns, Direction::Request) if netns == last - 1 => POD_B,
            (netns, Direction::Request) => uplink(netns),
            (netns, Direction::Reply) => uplink(netns - 1),
        };
        self.plan.host(net, NOBODY)
    }

    /// The pod that packets of a direction are for, in its network, as `ip route` names it.
    pub fn pods(&self, direction: Direction) -> String {
        self.plan.on_link(
            match direction {
                Direction::Request => POD_B,
                Direction::Reply => POD_A,
            },
            0,
        )
    }

    /// Where packets of a direction are going, as a namespace that routes them sees it.
    pub fn destination(&self, netns: usize, direction: Direction) -> IpAddr {
        match direction {
            Direction::Request => self.plan.server(0).ip(),
            Direction::Reply if self.shape.nat != Nat::Both || netns <= 1 => self.plan.client_ip(),
            Direction::Reply if self.shape.tunnel => self.tunnel_end(Direction::Reply),
            Direction::Reply => self.nodes()[0],
        }
    }

    /// An address outside every network that the namespaces know.
    pub fn unknown(&self) -> IpAddr {
        self.plan.host(200, NOBODY)
    }

    /// An address that nobody has in the tunnel.
    pub fn tunnel_nobody(&self) -> IpAddr {
        self.plan.host(TUNNEL, NOBODY)
    }

    /// The addresses of node-a and node-b in the underlay.
    pub fn nodes(&self) -> [IpAddr; 2] {
        [
            self.plan.host(FIRST_UPLINK, 2),
            self.plan.host(uplink(self.shape.routers + 1), 2),
        ]
    }

    /// The far end of the tunnel, for packets of a direction.
    pub fn tunnel_end(&self, direction: Direction) -> IpAddr {
        self.plan.host(
            TUNNEL,
            match direction {
                Direction::Request => 2,
                Direction::Reply => 1,
            },
        )
    }

    /// The MAC address of the far end of the tunnel.
    pub fn tunnel_mac(direction: Direction) -> &'static str {
        match direction {
            Direction::Request => TUNNEL_MACS[1],
            Direction::Reply => TUNNEL_MACS[0],
        }
    }

    /// What is left of the links' MTU by the tunnel's headers.
    pub fn pod_mtu(&self) -> u16 {
        match (self.shape.tunnel, self.shape.family) {
            (false, _) => self.shape.mtu,
            (true, Family::V4) => self.shape.mtu - 50,
            (true, Family::V6) => self.shape.mtu - 70,
        }
    }

    fn build_links(&self) -> Result<()> {
        let mtu = self.shape.mtu;
        let last_router = self.shape.routers + 1;
        for router in 2..=last_router {
            let here = &self.namespaces[router];
            // The kernel activates a veth at once only if its index is not, by chance, its peer's too.
            let (left_peer, right_peer) =
                (&self.namespaces[router - 1], &self.namespaces[router + 1]);
            if router == 2 {
                here.ip(&format!(
                    "link add left index 11 mtu {mtu} type veth peer name ens0 mtu {mtu} netns {}",
                    left_peer.name()
                ))?;
            }
            let (peer, index) = if router == last_router {
                ("ens0", "")
            } else {
                ("left", " index 21")
            };
            here.ip(&format!(
                "link add right index 12 mtu {mtu} type veth peer name {peer}{index} mtu {mtu} netns {}\n\
                 address add {left} dev left nodad\n\
                 address add {right} dev right nodad\n\
                 link set left up\n\
                 link set right up",
                right_peer.name(),
                left = self
                    .plan
                    .on_link(uplink(router - 1), if router == 2 { 1 } else { 2 }),
                right = self.plan.on_link(uplink(router), 1),
            ))?;
        }
        Ok(())
    }

    fn build_routers(&self) -> Result<()> {
        for router in 2..=self.shape.routers + 1 {
            let (left, right) = (
                self.next_hop(router, Direction::Reply),
                self.next_hop(router, Direction::Request),
            );
            let mut lines = String::new();
            let first = usize::from(FIRST_UPLINK);
            for segment in 1..=self.shape.routers + 1 {
                let via = match segment {
                    near if near == router || near == router - 1 => continue,
                    to_the_left if to_the_left < router => left,
                    _ => right,
                };
                let net = u8::try_from(first + segment - 1)?;
                writeln!(lines, "route add {} via {via}", self.plan.on_link(net, 0))?;
            }
            if !self.shape.tunnel {
                write!(
                    lines,
                    "route add {} via {left}\nroute add {} via {right}\n",
                    self.plan.on_link(POD_A, 0),
                    self.plan.on_link(POD_B, 0)
                )?;
            }
            self.namespaces[router].ip(&lines)?;
        }
        Ok(())
    }

    /// The node where packets of a direction begin, and its pod.
    fn build_node(&self, direction: Direction) -> Result<()> {
        let way = self.shape.way(direction);
        let (pod, node) = (&self.namespaces[way[0]], &self.namespaces[way[1]]);
        let (port, net, this) = match direction {
            Direction::Request => ("lxca", POD_A, 0),
            Direction::Reply => ("lxcb", POD_B, 1),
        };
        let (gateway, nodes) = (self.next_hop(way[1], direction), self.nodes());
        let (mtu, far) = (self.pod_mtu(), 1 - this);
        let far_uplink = [FIRST_UPLINK, uplink(self.shape.routers + 1)][far];
        let inside = self.shape.pod_device(port);
        let mut lines = format!(
            "address add {} dev ens0 nodad\n\
             link set ens0 up\n\
             route add {} via {gateway}\n",
            self.plan
                .on_link([FIRST_UPLINK, uplink(self.shape.routers + 1)][this], 2),
            self.plan.on_link(far_uplink, 0),
        );
        if self.shape.bridge {
            write!(
                lines,
                "link add br0 mtu {mtu} type bridge\nlink set br0 up\n"
            )?;
        }
        writeln!(
            lines,
            "link add {port} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {}",
            pod.name()
        )?;
        if self.shape.bridge {
            writeln!(lines, "link set {port} master br0")?;
        }
        write!(
            lines,
            "link set {port} up\naddress add {} dev {inside} nodad\n",
            self.plan.on_link(net, 1)
        )?;
        if self.shape.tunnel {
            write!(
                lines,
                "link add vx0 mtu {mtu} address {} type vxlan id {VNI} dstport 4789 local {} remote {} nolearning\n\
                 address add {} dev vx0 nodad\n\
                 link set vx0 up\n\
                 neighbour replace {} lladdr {} dev vx0 nud permanent\n",
                TUNNEL_MACS[this],
                nodes[this],
                nodes[far],
                self.plan.on_link(TUNNEL, [1, 2][this]),
                self.tunnel_end(direction),
                Self::tunnel_mac(direction),
            )?;
        }
        lines.push_str(&self.route_to_pods(way[1], direction));
        node.ip(&lines)?;
        pod.ip(&format!(
            "address add {} dev eth0 nodad\nlink set eth0 up\nroute add default via {}",
            self.plan.on_link(net, 2),
            self.plan.host(net, 1)
        ))?;
        Ok(())
    }

    /// The command that gives a node or a router its way to the far pods.
    pub fn route_to_pods(&self, netns: usize, direction: Direction) -> String {
        let pods = self.pods(direction);
        if self.shape.tunnel {
            format!(
                "route replace {pods} via {} dev vx0",
                self.tunnel_end(direction)
            )
        } else {
            format!(
                "route replace {pods} via {}",
                self.next_hop(netns, direction)
            )
        }
    }

    fn translate(&self) -> Result<()> {
        if self.shape.nat == Nat::None {
            return Ok(());
        }
        let ip = self.plan.nft_family();
        let mut rules = format!(
            "add table {ip} nat\n\
             add chain {ip} nat prerouting {{ type nat hook prerouting priority -100; }}\n"
        );
        for target in Target::ALL {
            let (service, backend) = (self.service(target), self.backend(target));
            writeln!(
                rules,
                "add rule {ip} nat prerouting {ip} daddr {} tcp dport {} dnat to {backend}",
                service.ip(),
                service.port()
            )?;
        }
        writeln!(
            rules,
            "add rule {ip} nat prerouting {ip} daddr {} udp dport {DNS_PORT} dnat to {}",
            self.plan.service(DNS_PORT).ip(),
            self.plan.server(DNS_PORT),
        )?;
        if self.shape.nat == Nat::Both {
            let device = if self.shape.tunnel { "vx0" } else { "ens0" };
            // What the node itself sends (the tunnel's packets) has its own address already.
            write!(
                rules,
                "add chain {ip} nat postrouting {{ type nat hook postrouting priority 100; }}\n\
                 add rule {ip} nat postrouting oifname {device} {ip} saddr {} masquerade\n",
                self.plan.on_link(POD_A, 0)
            )?;
        }
        Ok(self.namespaces[1].nft(&rules)?)
    }

    fn service(&self, target: Target) -> SocketAddr {
        self.plan.service(target.service_port())
    }

    /// Where a server is, or should be.
    pub fn backend(&self, target: Target) -> SocketAddr {
        match target {
            Target::Nobody => self.plan.nobody(target.port()),
            _ => self.plan.server(target.port()),
        }
    }

    /// Where the client sends DNS queries.
    pub fn resolver(&self) -> SocketAddr {
        match self.shape.nat {
            Nat::None => self.plan.server(DNS_PORT),
            _ => self.plan.service(DNS_PORT),
        }
    }

    /// What the client asks.
    pub fn asked(&self, target: Target) -> SocketAddr {
        match self.shape.nat {
            Nat::None => self.backend(target),
            _ => self.service(target),
        }
    }
}

/// The number of the network to the right of a node or router.
fn uplink(netns: usize) -> u8 {
    FIRST_UPLINK + u8::try_from(netns - 1).unwrap_or(0)
}
