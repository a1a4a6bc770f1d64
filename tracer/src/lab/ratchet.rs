//! The node of the MTU ratchet: an agent that takes the MTU of its own WireGuard device for the new base at each restart.
//!
//! ```text
//! pod-0  eth0 1460 ──── lxc0 ·
//! pod-1  eth0 1380 ──── lxc1 ·  node  · ens3 1460 ──── tor  client
//! …                          · cilium_wg0
//! ```
//!
//! Each restart lowers `cilium_wg0` and the node's ends of all veths by 80; a pod keeps the `eth0` with which it was made.
//! `cilium_wg0` is a tun device, which is what a process that speaks WireGuard has, since not every kernel has the module.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use super::{LabError, Netns};

/// The MTU of the NIC, and what WireGuard takes of it.
const NIC: u16 = 1460;
const STEP: u16 = 80;

/// The network of the pods and the node's uplink are in 10.LAB.0.0/16.
#[derive(Debug)]
pub struct Ratchet {
    lab: u8,
    /// Where the node's uplink leads to.
    pub client: Netns,
    /// The node.
    pub node: Netns,
    /// A pod of each generation, the oldest first.
    pub pods: Vec<Netns>,
}

impl Ratchet {
    /// Builds it in the calling thread's sandbox, as it is before the first restart, with one pod.
    pub fn build(lab: u8) -> Result<Self, LabError> {
        let mut ratchet = Self {
            lab,
            client: Netns::add("client")?,
            node: Netns::add("node")?,
            pods: Vec::new(),
        };
        let [uplink, far] = [1, 2].map(|host| ratchet.addr(50, host));
        ratchet.node.sysctl("net/ipv4/ip_forward", "1")?;
        for netns in [&ratchet.client, &ratchet.node] {
            without_ipv6(netns)?;
        }
        // One index must not be the other's too, lest the devices are activated late (linkwatch_urgent_event).
        ratchet.node.ip(&format!(
            "link add ens3 index 11 mtu {NIC} type veth peer name tor mtu {NIC} netns client
             addr add {uplink}/24 dev ens3
             link set ens3 up
             tuntap add cilium_wg0 mode tun
             link set cilium_wg0 mtu {} up
             route add 10.{lab}.5.0/24 dev cilium_wg0",
            NIC - STEP
        ))?;
        ratchet.client.ip(&format!(
            "addr add {far}/24 dev tor
             link set tor up
             route add 10.{lab}.4.0/24 via {uplink}"
        ))?;
        ratchet.node.ip(&format!("route add default via {far}"))?;
        ratchet.add_pod()?;
        ratchet.client.wait_for_links()?;
        Ok(ratchet)
    }

    /// Restarts the agent, and makes a pod afterwards.
    pub fn restart(&mut self) -> Result<(), LabError> {
        let base = self.base() - STEP;
        let mut lines = format!("link set cilium_wg0 mtu {}", base - STEP);
        for number in 0..self.pods.len() {
            let _ = write!(lines, "\nlink set lxc{number} mtu {base}");
        }
        self.node.ip(&lines)?;
        self.add_pod()
    }

    /// The MTU of the node's ends, and of the next pod: what the agent takes for the base.
    pub fn base(&self) -> u16 {
        NIC - STEP * u16::try_from(self.pods.len().saturating_sub(1)).unwrap_or(0)
    }

    /// Where a pod is reached.
    pub fn pod(&self, number: u8, port: u16) -> SocketAddr {
        SocketAddr::new(self.addr(4, 10 + number).into(), port)
    }

    /// Every namespace: the client, the node, and the pods.
    pub fn namespaces(&self) -> impl Iterator<Item = &Netns> {
        [&self.client, &self.node].into_iter().chain(&self.pods)
    }

    fn addr(&self, net: u8, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, self.lab, net, host)
    }

    fn add_pod(&mut self) -> Result<(), LabError> {
        let number = u8::try_from(self.pods.len()).unwrap_or(u8::MAX);
        let name = format!("pod-{number}");
        let pod = Netns::add(&name)?;
        without_ipv6(&pod)?;
        let mtu = NIC - STEP * u16::from(number);
        let [gateway, addr] = [self.addr(4, 1), self.addr(4, 10 + number)];
        self.node.ip(&format!(
            "link add lxc{number} index {index} mtu {mtu} type veth peer name eth0 mtu {mtu} netns {name}
             link set lxc{number} up
             addr add {gateway}/32 dev lxc{number}
             route add {addr} dev lxc{number}",
            index = 20 + u32::from(number),
        ))?;
        pod.ip(&format!(
            "link set eth0 up
             addr add {addr}/32 dev eth0
             route add {gateway} dev eth0
             route add default via {gateway}"
        ))?;
        pod.wait_for_links()?;
        self.pods.push(pod);
        Ok(())
    }
}

/// Below 1280 bytes IPv6 would have a word of its own to say.
fn without_ipv6(netns: &Netns) -> Result<(), LabError> {
    netns.sysctl("net/ipv6/conf/all/disable_ipv6", "1")?;
    netns.sysctl("net/ipv6/conf/default/disable_ipv6", "1")
}
