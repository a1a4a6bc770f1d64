//! Routes that swallow, reject or lack: for the SYN and for the SYN-ACK, on either node.

use anyhow::Result;
use tracer::lab::{Family, Netns, Topology};
use tracer_tests::{
    Ends, Expected, Fault, Pair, SYN_ACK_LEFT_NODE_B, SYN_LEFT_NODE_A, Views, proven, side_by_side,
    unseen,
};

/// What becomes of the route to an address.
#[derive(Clone, Copy, PartialEq)]
enum Route {
    Blackhole,
    Unreachable,
    Prohibit,
    Missing,
}
use Route::{Blackhole, Missing, Prohibit, Unreachable};

const ROUTES: [Route; 4] = [Blackhole, Unreachable, Prohibit, Missing];

impl Route {
    const fn name(self) -> &'static str {
        match self {
            Blackhole => "blackhole",
            Unreachable => "unreachable",
            Prohibit => "prohibit",
            Missing => "missing",
        }
    }

    /// Puts it in the place of the route to an address.
    fn replace(self, netns: &Netns, to: std::net::IpAddr) -> Result<()> {
        netns.ip(&format!("route del {to}"))?;
        if self != Missing {
            netns.ip(&format!("route add {} {to}", self.name()))?;
        }
        Ok(())
    }

    /// A blackhole is silent; every other tells the sender by ICMP, which a client that waits for an answer heeds.
    const fn ends_for_the_client(self) -> Ends {
        match self {
            Blackhole => Ends::TimedOut,
            _ => Ends::Failed,
        }
    }

    /// IPv6 has one answer for an unreachable route and for none.
    const fn kills(self, code: &'static str, family: Family) -> Expected {
        match (self, family) {
            (Missing, _) | (Unreachable, Family::V6) => {
                proven(code).cause(&["no_route"]).reason("IP_INNOROUTES")
            }
            _ => proven(code).cause(&["blackhole_route"]),
        }
    }
}

fn of_the_syn(family: Family) -> Vec<Fault> {
    let mut faults = Vec::new();
    for route in ROUTES {
        let dropped = route.kills("request_dropped", family);
        let views = Views {
            full: dropped.at("node-a", &["lxca"]),
            server_node: unseen(),
            client_node: dropped.at("node-a", &["lxca"]),
        };
        let inject =
            move |lab: &Topology, pair: &Pair| route.replace(&lab.node_a, pair.server.ip());
        let name = format!("SYN: {} route on node-a", route.name());
        faults.push(Fault::new(name, views, inject).ends(route.ends_for_the_client()));

        let views = Views {
            full: dropped.at("node-b", &["vx0"]),
            server_node: dropped.at("node-b", &["vx0"]),
            // All that comes back there is the ICMP error.
            client_node: match route {
                Blackhole => SYN_LEFT_NODE_A,
                _ => proven("refused").at("node-a", &["ens0"]),
            },
        };
        let inject =
            move |lab: &Topology, pair: &Pair| route.replace(&lab.node_b, pair.server.ip());
        let name = format!("SYN: {} route on node-b", route.name());
        faults.push(Fault::new(name, views, inject).ends(route.ends_for_the_client()));
    }
    faults
}

fn of_the_syn_ack(family: Family) -> Vec<Fault> {
    let mut faults = Vec::new();
    for route in ROUTES {
        let dropped = route.kills("reply_dropped", family);
        let views = Views {
            full: dropped.at("node-b", &["lxcb"]),
            server_node: dropped.at("node-b", &["lxcb"]),
            client_node: SYN_LEFT_NODE_A,
        };
        let inject = move |lab: &Topology, pair: &Pair| route.replace(&lab.node_b, pair.client);
        faults.push(Fault::new(
            format!("SYN-ACK: {} route on node-b", route.name()),
            views,
            inject,
        ));

        let views = Views {
            full: dropped.at("node-a", &["vx0"]),
            server_node: SYN_ACK_LEFT_NODE_B,
            client_node: dropped.at("node-a", &["vx0"]),
        };
        let inject = move |lab: &Topology, pair: &Pair| route.replace(&lab.node_a, pair.client);
        faults.push(Fault::new(
            format!("SYN-ACK: {} route on node-a", route.name()),
            views,
            inject,
        ));
    }
    faults
}

fn all(family: Family) -> Result<()> {
    let mut faults = of_the_syn(family);
    faults.extend(of_the_syn_ack(family));
    side_by_side(family, faults)
}

#[test]
fn routes_that_lead_nowhere() -> Result<()> {
    all(Family::V4)
}

#[test]
fn routes_that_lead_nowhere_over_ipv6() -> Result<()> {
    all(Family::V6)
}
