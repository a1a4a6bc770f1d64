//! The network of every scenario: two pods on two nodes behind a router, with a VXLAN between the nodes.
//!
//! ```text
//! pod-a            node-a                    underlay                   node-b           pod-b
//! eth0 ──── lxca · vx0 · ens0 ──── toa · (router) · tob ──── ens0 · vx0 · lxcb ──── eth0
//!                    ╰──────────── VXLAN, VNI 4096 ────────────────────────╯
//! ```
//!
//! The client lives in pod-a, the server in pod-b. Each pod has a default route through its node, and the nodes
//! route each other's pods through `vx0`, whose neighbours and forwarding entries are static: no packet of a test
//! waits for learning.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{LabError, Netns};

/// The VNI of `vx0` on both nodes: Calico's constant.
pub const VNI: u32 = 4096;

/// `02:00:00:00:00:0a` and `…:0b`: the MAC addresses of the two ends of the tunnel.
const TUNNEL_MAC_A: &str = "02:00:00:00:00:0a";
const TUNNEL_MAC_B: &str = "02:00:00:00:00:0b";

/// Which IP version the pods and the underlay speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4, inside and outside the tunnel.
    V4,
    /// IPv6, inside and outside the tunnel.
    V6,
}

/// The addresses of one lab. Labs with different numbers share no address, so that a filter tells them apart.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    lab: u8,
    family: Family,
}

/// The networks of a lab, each a /24 of `10.LAB.0.0/16` or a /48 of `fd00:LAB::/32`.
#[derive(Clone, Copy)]
enum Net {
    Tunnel = 0,
    PodA = 1,
    PodB = 2,
    Clients = 11,
    Servers = 12,
    Service = 96,
    UplinkA = 101,
    UplinkB = 102,
}

impl Plan {
    /// The addresses of lab number `lab`.
    pub fn new(lab: u8, family: Family) -> Self {
        Self { lab, family }
    }

    /// The IP version of this lab.
    pub fn family(self) -> Family {
        self.family
    }

    /// Where the client is: pod-a's address.
    pub fn client_ip(self) -> IpAddr {
        self.host(Net::PodA as u8, 2)
    }

    /// Where the server is: pod-b's address and a port.
    pub fn server(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.host(Net::PodB as u8, 2), port)
    }

    /// An address in pod-b's network that nobody has.
    pub fn nobody(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.host(Net::PodB as u8, 77), port)
    }

    /// The addresses of a client and a server that a test adds to pod-a and pod-b beside their own, each in a network
    /// that nothing routes yet: what is done to the way of one pair is done to that one alone.
    pub fn pair(self, number: u8) -> (IpAddr, IpAddr) {
        (
            self.host(Net::Clients as u8, number),
            self.host(Net::Servers as u8, number),
        )
    }

    /// The address of a service: no device has it, and only who translates it can reach it.
    pub fn service(self, port: u16) -> SocketAddr {
        SocketAddr::new(self.host(Net::Service as u8, 1), port)
    }

    /// node-a's address in the underlay, and its gateway there.
    pub fn uplink_a(self) -> (IpAddr, IpAddr) {
        (
            self.host(Net::UplinkA as u8, 2),
            self.host(Net::UplinkA as u8, 1),
        )
    }

    /// node-b's address in the underlay, and its gateway there.
    pub fn uplink_b(self) -> (IpAddr, IpAddr) {
        (
            self.host(Net::UplinkB as u8, 2),
            self.host(Net::UplinkB as u8, 1),
        )
    }

    /// node-b's address towards its pods, their gateway.
    pub fn gateway_b(self) -> IpAddr {
        self.host(Net::PodB as u8, 1)
    }

    /// The network of node-a's pods, in CIDR notation.
    pub fn pods_a(self) -> String {
        self.on_link(Net::PodA as u8, 0)
    }

    /// The network of node-b's pods, in CIDR notation.
    pub fn pods_b(self) -> String {
        self.on_link(Net::PodB as u8, 0)
    }

    /// The addresses of `vx0` on node-a and on node-b.
    pub fn tunnel(self) -> (IpAddr, IpAddr) {
        (
            self.host(Net::Tunnel as u8, 1),
            self.host(Net::Tunnel as u8, 2),
        )
    }

    /// A filter expression that selects this lab's traffic and no other's.
    pub fn filter(self) -> String {
        match self.family {
            Family::V4 => format!("net 10.{}.0.0/16", self.lab),
            Family::V6 => format!("net fd00:{}::/32", self.lab),
        }
    }

    /// A ruleset for the underlay's router that drops every SYN-ACK inside the VXLAN, and nothing else.
    pub fn drop_synack_in_tunnel(self) -> String {
        // From the outer UDP header: UDP 8, VXLAN 8, Ethernet 14, IP, then byte 13 of TCP are the flags.
        let inner_ip_len = match self.family {
            Family::V4 => 20,
            Family::V6 => 40,
        };
        let flags_at_bit = (8 + 8 + 14 + inner_ip_len + 13) * 8;
        format!(
            "add table inet fault\n\
             add chain inet fault forward {{ type filter hook forward priority 0; }}\n\
             add rule inet fault forward udp dport 4789 @th,{flags_at_bit},8 & 0x3f == 0x12 drop\n"
        )
    }

    /// `ip` or `ip6`: the word of nftables for this lab's addresses.
    pub fn nft_family(self) -> &'static str {
        match self.family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }

    /// Whether an address is of this lab.
    pub fn owns(self, addr: IpAddr) -> bool {
        match (addr, self.host(0, 0)) {
            (IpAddr::V4(one), IpAddr::V4(other)) => one.octets()[..2] == other.octets()[..2],
            (IpAddr::V6(one), IpAddr::V6(other)) => one.octets()[..4] == other.octets()[..4],
            _ => false,
        }
    }

    /// A host's address in a network of this lab.
    pub fn host(self, net: u8, host: u8) -> IpAddr {
        match self.family {
            Family::V4 => Ipv4Addr::new(10, self.lab, net, host).into(),
            // Written so that the decimal number of the lab can be read in the address: lab 12 is fd00:12::.
            Family::V6 => Ipv6Addr::new(
                0xfd00,
                decimal_as_hex(self.lab),
                decimal_as_hex(net),
                0,
                0,
                0,
                0,
                u16::from(host),
            )
            .into(),
        }
    }

    /// A host's address with the prefix length of its network, ready for `ip address add`; host 0 is the network itself.
    pub fn on_link(self, net: u8, host: u8) -> String {
        let prefix_len = match self.family {
            Family::V4 => 24,
            Family::V6 => 48,
        };
        format!("{}/{prefix_len}", self.host(net, host))
    }

    /// Undoes, before the first device, the defaults that distributions differ in and that a namespace inherits.
    pub fn set_defaults(self, netns: &Netns) -> Result<(), LabError> {
        match self.family {
            Family::V4 => {
                netns.sysctl("net/ipv4/conf/all/rp_filter", "0")?;
                netns.sysctl("net/ipv4/conf/default/rp_filter", "0")
            }
            Family::V6 => {
                // Duplicate detection would keep every new address, link-local ones too, unusable for a second; and
                // even without it they are usable only once a worker has run, but for those that are added `nodad`.
                netns.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
                netns.sysctl("net/ipv6/conf/default/dad_transmits", "0")
            }
        }
    }

    /// Makes a router of a namespace, or no longer.
    pub fn set_forwarding(self, netns: &Netns, on: bool) -> Result<(), LabError> {
        let sysctl = match self.family {
            Family::V4 => "net/ipv4/ip_forward",
            Family::V6 => "net/ipv6/conf/all/forwarding",
        };
        netns.sysctl(sysctl, if on { "1" } else { "0" })
    }

    /// What the tunnel's headers leave of the underlay's 1500 bytes.
    fn tunnel_mtu(self) -> u16 {
        match self.family {
            Family::V4 => 1450,
            Family::V6 => 1430,
        }
    }
}

fn decimal_as_hex(number: u8) -> u16 {
    let number = u16::from(number);
    (number / 100) << 8 | (number / 10 % 10) << 4 | (number % 10)
}

/// The five namespaces of a lab.
#[derive(Debug)]
pub struct Topology {
    /// Its addresses.
    pub plan: Plan,
    /// Holds the client, behind node-a's `lxca`.
    pub pod_a: Netns,
    /// The client's node.
    pub node_a: Netns,
    /// The router between the nodes, with `toa` and `tob`.
    pub underlay: Netns,
    /// The server's node.
    pub node_b: Netns,
    /// Holds the server, behind node-b's `lxcb`.
    pub pod_b: Netns,
}

impl Topology {
    /// Builds it, healthy, in the calling thread's sandbox.
    pub fn build(plan: Plan) -> Result<Self, LabError> {
        let topology = Self {
            plan,
            pod_a: Netns::add("pod-a")?,
            node_a: Netns::add("node-a")?,
            underlay: Netns::add("underlay")?,
            node_b: Netns::add("node-b")?,
            pod_b: Netns::add("pod-b")?,
        };
        for netns in topology.namespaces() {
            plan.set_defaults(netns)?;
        }
        for router in [&topology.node_a, &topology.underlay, &topology.node_b] {
            plan.set_forwarding(router, true)?;
        }
        // The kernel activates a veth at once only if its index is not, by chance, its peer's too
        // (linkwatch_urgent_event); else its queue drops everything for up to a second.
        topology.underlay.ip(&format!(
            "link add toa index 11 type veth peer name ens0 netns node-a\n\
             link add tob index 12 type veth peer name ens0 netns node-b\n\
             address add {} dev toa nodad\n\
             address add {} dev tob nodad\n\
             link set toa up\n\
             link set tob up",
            plan.on_link(Net::UplinkA as u8, 1),
            plan.on_link(Net::UplinkB as u8, 1),
        ))?;
        build_node(
            plan,
            &topology.node_a,
            &topology.pod_a,
            &Side {
                host_device: "lxca",
                uplink: (Net::UplinkA, plan.uplink_a().1),
                pods: Net::PodA,
                far_pods: plan.pods_b(),
                tunnel: (1, TUNNEL_MAC_A),
                far_tunnel: (2, TUNNEL_MAC_B),
                far_node: plan.uplink_b().0,
            },
        )?;
        build_node(
            plan,
            &topology.node_b,
            &topology.pod_b,
            &Side {
                host_device: "lxcb",
                uplink: (Net::UplinkB, plan.uplink_b().1),
                pods: Net::PodB,
                far_pods: plan.pods_a(),
                tunnel: (2, TUNNEL_MAC_B),
                far_tunnel: (1, TUNNEL_MAC_A),
                far_node: plan.uplink_a().0,
            },
        )?;
        for netns in topology.namespaces() {
            netns.wait_for_links()?;
        }
        Ok(topology)
    }

    /// All of them, from the client to the server.
    pub fn namespaces(&self) -> [&Netns; 5] {
        [
            &self.pod_a,
            &self.node_a,
            &self.underlay,
            &self.node_b,
            &self.pod_b,
        ]
    }
}

/// What differs between the two nodes.
struct Side<'a> {
    host_device: &'a str,
    uplink: (Net, IpAddr),
    pods: Net,
    far_pods: String,
    tunnel: (u8, &'a str),
    far_tunnel: (u8, &'a str),
    far_node: IpAddr,
}

fn build_node(plan: Plan, node: &Netns, pod: &Netns, side: &Side<'_>) -> Result<(), LabError> {
    let (uplink, gateway) = side.uplink;
    let mtu = plan.tunnel_mtu();
    let Side {
        host_device,
        far_pods,
        far_node,
        ..
    } = side;
    node.ip(&format!(
        "address add {uplink_address} dev ens0 nodad\n\
         link set ens0 up\n\
         route add default via {gateway}\n\
         link add {host_device} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {pod}\n\
         address add {pods_address} dev {host_device} nodad\n\
         link set {host_device} up\n\
         link add vx0 mtu {mtu} address {mac} type vxlan id {VNI} dstport 4789 local {near_node} remote {far_node} nolearning\n\
         address add {tunnel_address} dev vx0 nodad\n\
         link set vx0 up\n\
         neighbour replace {far_tunnel} lladdr {far_mac} dev vx0 nud permanent\n\
         route add {far_pods} via {far_tunnel} dev vx0",
        uplink_address = plan.on_link(uplink as u8, 2),
        near_node = plan.host(uplink as u8, 2),
        pods_address = plan.on_link(side.pods as u8, 1),
        tunnel_address = plan.on_link(Net::Tunnel as u8, side.tunnel.0),
        mac = side.tunnel.1,
        far_tunnel = plan.host(Net::Tunnel as u8, side.far_tunnel.0),
        far_mac = side.far_tunnel.1,
        pod = pod.name(),
    ))?;
    pod.ip(&format!(
        "address add {} dev eth0 nodad\n\
         link set eth0 up\n\
         route add default via {}",
        plan.on_link(side.pods as u8, 2),
        plan.host(side.pods as u8, 1),
    ))
}
