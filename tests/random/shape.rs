//! A random network between a client's pod and a server's pod, and every place on its way where a rule can be put.
//!
//! ```text
//! pod-a          node-a                 router-1 … router-3              node-b          pod-b
//! eth0 ── lxca (br0) · (vx0) · ens0 ── left · right ── left · right ── ens0 · (vx0) · (br0) lxcb ── eth0
//! ```

use std::fmt;

use tracer::lab::Family;

use crate::rng::Rng;

/// Whether node-a translates the addresses that the client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nat {
    None,
    /// The service's address into the server's.
    Destination,
    /// And the client's into node-a's.
    Both,
}

/// What differs between networks.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub family: Family,
    /// A VXLAN between the nodes; else the routers know the pods.
    pub tunnel: bool,
    /// 1 to 3.
    pub routers: usize,
    /// The pods' devices are ports of a bridge.
    pub bridge: bool,
    pub nat: Nat,
    pub mtu: u16,
}

impl Shape {
    pub fn choose(rng: &mut Rng) -> Self {
        Self {
            family: rng.pick(&[Family::V4, Family::V6]),
            tunnel: rng.chance(50),
            routers: rng.pick(&[1, 1, 2, 3]),
            bridge: rng.chance(33),
            nat: rng.pick(&[Nat::None, Nat::None, Nat::Destination, Nat::Both]),
            mtu: rng.pick(&[1500, 1500, 1400, 9000]),
        }
    }

    /// The index of pod-b.
    pub fn last(&self) -> usize {
        self.routers + 3
    }

    pub fn name(&self, netns: usize) -> &'static str {
        names(self.routers)[netns]
    }

    /// The namespaces in the order in which packets pass them.
    pub fn way(&self, direction: Direction) -> Vec<usize> {
        let all = 0..=self.last();
        match direction {
            Direction::Request => all.collect(),
            Direction::Reply => all.rev().collect(),
        }
    }

    /// The device through which packets of a direction enter a namespace, as IP sees it, outside a tunnel.
    pub fn in_device(&self, netns: usize, direction: Direction) -> &'static str {
        self.out_device(netns, opposite(direction))
    }

    /// The device through which packets of a direction leave a namespace, outside a tunnel. For the last it is the one
    /// through which its answers leave.
    pub fn out_device(&self, netns: usize, direction: Direction) -> &'static str {
        let (towards_client, towards_server) = if netns == 0 || netns == self.last() {
            ("eth0", "eth0")
        } else if netns == 1 {
            (self.pod_device("lxca"), "ens0")
        } else if netns == self.last() - 1 {
            ("ens0", self.pod_device("lxcb"))
        } else {
            ("left", "right")
        };
        match direction {
            Direction::Request => towards_server,
            Direction::Reply => towards_client,
        }
    }

    /// The device behind which packets of a direction have left a namespace.
    pub fn exit(&self, netns: usize, direction: Direction) -> &'static str {
        let way = self.way(direction);
        if self.bridge && netns == way[way.len() - 2] {
            match direction {
                Direction::Request => "lxcb",
                Direction::Reply => "lxca",
            }
        } else {
            self.out_device(netns, direction)
        }
    }

    pub fn pod_device(&self, port: &'static str) -> &'static str {
        if self.bridge { "br0" } else { port }
    }

    /// Every hook that packets of a direction pass, in their order.
    pub fn spots(&self, direction: Direction) -> Vec<Spot> {
        let way = self.way(direction);
        let last = way.len() - 1;
        let mut spots = Vec::new();
        for (step, netns) in way.into_iter().enumerate() {
            let (near, far) = match direction {
                Direction::Request => ("lxca", "lxcb"),
                Direction::Reply => ("lxcb", "lxca"),
            };
            let (into, out) = (
                self.in_device(netns, direction),
                self.out_device(netns, direction),
            );
            let tunnel = self.tunnel;
            let mut add = |table, hook, is_outer, devices: &[&'static str]| {
                spots.push(Spot {
                    netns,
                    table,
                    hook,
                    is_outer,
                    devices: devices.to_vec(),
                });
            };
            if step == 0 {
                // In OUTPUT the skb has no device yet.
                add(Table::Inet, "output", false, &["null", "eth0"]);
                add(Table::Inet, "postrouting", false, &["eth0"]);
                add(Table::Netdev("eth0"), "egress", false, &["eth0"]);
            } else if step == last {
                add(Table::Netdev("eth0"), "ingress", false, &["eth0"]);
                add(Table::Inet, "prerouting", false, &["eth0"]);
                add(Table::Inet, "input", false, &["eth0"]);
            } else if step == 1 {
                add(Table::Netdev(near), "ingress", false, &[near]);
                if self.bridge {
                    add(Table::Bridge, "prerouting", false, &[near]);
                    add(Table::Bridge, "input", false, &[near, "br0"]);
                }
                add(Table::Inet, "prerouting", false, &[into]);
                add(Table::Inet, "forward", false, &[into]);
                if tunnel {
                    add(Table::Inet, "postrouting", false, &["vx0"]);
                    add(Table::Netdev("vx0"), "egress", false, &["vx0"]);
                    add(Table::Inet, "output", true, &["null", "vx0", "ens0"]);
                }
                add(Table::Inet, "postrouting", tunnel, &["ens0"]);
                add(Table::Netdev("ens0"), "egress", tunnel, &["ens0"]);
            } else if step == last - 1 {
                add(Table::Netdev("ens0"), "ingress", tunnel, &["ens0"]);
                add(Table::Inet, "prerouting", tunnel, &["ens0"]);
                if tunnel {
                    add(Table::Inet, "input", true, &["ens0"]);
                    add(Table::Netdev("vx0"), "ingress", false, &["vx0"]);
                    add(Table::Inet, "prerouting", false, &["vx0"]);
                }
                let through = if tunnel { "vx0" } else { "ens0" };
                add(Table::Inet, "forward", false, &[through]);
                add(Table::Inet, "postrouting", false, &[out]);
                if self.bridge {
                    add(Table::Bridge, "output", false, &[far, "br0"]);
                    add(Table::Bridge, "postrouting", false, &[far]);
                }
                add(Table::Netdev(far), "egress", false, &[far]);
            } else {
                add(Table::Netdev(into), "ingress", tunnel, &[into]);
                add(Table::Inet, "prerouting", tunnel, &[into]);
                add(Table::Inet, "forward", tunnel, &[into]);
                add(Table::Inet, "postrouting", tunnel, &[out]);
                add(Table::Netdev(out), "egress", tunnel, &[out]);
            }
        }
        spots
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            family,
            routers,
            mtu,
            ..
        } = self;
        write!(f, "{family:?}, {routers} routers, MTU {mtu}")?;
        for (has, what) in [
            (self.tunnel, "VXLAN"),
            (self.bridge, "bridges"),
            (self.nat == Nat::Destination, "DNAT"),
            (self.nat == Nat::Both, "DNAT and masquerade"),
        ] {
            if has {
                write!(f, ", {what}")?;
            }
        }
        Ok(())
    }
}

/// Whose packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The client's, from pod-a to pod-b.
    Request,
    /// The server's.
    Reply,
}

/// The family of an nftables table, and the device that a chain of it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Inet,
    Bridge,
    Netdev(&'static str),
}

/// A netfilter hook that the packets of one direction pass.
#[derive(Clone, Debug)]
pub struct Spot {
    /// An index into the namespaces, which are ordered from the client to the server.
    pub netns: usize,
    pub table: Table,
    pub hook: &'static str,
    /// The packets have a VXLAN header here.
    pub is_outer: bool,
    /// The device that a packet which dies here may be said to be on; `null` is none.
    pub devices: Vec<&'static str>,
}

/// Whom a connection asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The server that faults are about.
    Main,
    /// A server beside it.
    Other,
    /// A port on which nobody listens.
    Closed,
    /// A listener whose accept queue is full.
    Full,
    /// An address that nobody has.
    Nobody,
}

impl Target {
    pub const ALL: [Self; 5] = [
        Self::Main,
        Self::Other,
        Self::Closed,
        Self::Full,
        Self::Nobody,
    ];

    /// The port in pod-b.
    pub fn port(self) -> u16 {
        6379 + self as u16
    }

    /// The port of the service, where there is one.
    pub fn service_port(self) -> u16 {
        443 + self as u16
    }
}

fn opposite(direction: Direction) -> Direction {
    match direction {
        Direction::Request => Direction::Reply,
        Direction::Reply => Direction::Request,
    }
}

pub fn names(routers: usize) -> Vec<&'static str> {
    let routers = &["router-1", "router-2", "router-3"][..routers];
    [&["pod-a", "node-a"], routers, &["node-b", "pod-b"]].concat()
}
