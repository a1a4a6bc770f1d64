//! WireGuard between the two nodes of a lab, and what lies over it: Geneve or nothing. The pods' way then leads through it
//! instead of the lab's VXLAN.

use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use tracer::lab::{Netns, Topology, mortal};

use crate::kernel::has_module;

/// The ports at which the nodes listen, which differ as they may.
pub const PORT_A: u16 = 51871;
/// As above, of node-b.
pub const PORT_B: u16 = 51872;

/// The network of `wg0`, and that of `gnv0`, by the numbers that the lab's plan counts networks with.
const NET: u8 = 200;
const GENEVE_NET: u8 = 201;

/// The VNI of `gnv0` on both nodes.
const VNI: u32 = 53256;

/// A key of these tests and of nothing else.
#[derive(Clone, Copy, Debug)]
struct Key {
    private: &'static str,
    public: &'static str,
}

const KEY_A: Key = Key {
    private: "mMpah7fUHVYJ5qlhlVXucRMKswwEvSlyzPhwHdyi0GU=",
    public: "nlX3rmFiHlV0i6VvZTjzLLOiM8ocxlAcaS/ZfbVVrTE=",
};
const KEY_B: Key = Key {
    private: "+ET+SIJsUF/3HNzECpyaiZWtNn6frV34cpoZbs34LUw=",
    public: "7N2AZCvXFaJ4tloyDiXN0DrSqhOir0n2c6x5t67K4Ts=",
};
/// Nobody's.
const OTHER_PUBLIC_KEY: &str = "UpVW67NQOLbZ/0SD6Tp9TahOX7ya04uu8GY7pskwRkc=";

/// Whether this kernel has WireGuard and Geneve, as a module or built in; says so where it has not. What should be there and
/// does not work is a failure of the test that needs it.
pub fn is_available() -> Result<bool> {
    let available = has_module("wireguard")? && has_module("geneve")?;
    if !available {
        writeln!(
            io::stdout(),
            "skipped: this kernel has no WireGuard or no Geneve; `cargo xtask vm` has kernels with both"
        )?;
    }
    Ok(available)
}

/// One node's end.
struct End<'a> {
    node: &'a Netns,
    key: Key,
    port: u16,
    uplink: IpAddr,
    host: u8,
    pods: String,
}

fn ends(lab: &Topology) -> [End<'_>; 2] {
    let plan = lab.plan;
    [
        End {
            node: &lab.node_a,
            key: KEY_A,
            port: PORT_A,
            uplink: plan.uplink_a().0,
            host: 1,
            pods: plan.pods_a(),
        },
        End {
            node: &lab.node_b,
            key: KEY_B,
            port: PORT_B,
            uplink: plan.uplink_b().0,
            host: 2,
            pods: plan.pods_b(),
        },
    ]
}

impl End<'_> {
    fn endpoint(&self) -> SocketAddr {
        SocketAddr::new(self.uplink, self.port)
    }

    /// Its address on `wg0`, as a network of one.
    fn own(&self, lab: &Topology) -> String {
        network_of(lab.plan.host(NET, self.host))
    }
}

fn network_of(addr: IpAddr) -> String {
    match addr {
        IpAddr::V4(addr) => format!("{addr}/32"),
        IpAddr::V6(addr) => format!("{addr}/128"),
    }
}

/// Runs `wg` inside a namespace.
pub fn wg(netns: &Netns, arguments: &str, input: &str) -> Result<()> {
    let words: Vec<&str> = arguments.split_whitespace().collect();
    let ran = netns.run(|| -> io::Result<_> {
        let mut child = mortal("wg")
            .args(&words)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes())?;
        }
        child.wait_with_output()
    })?;
    let output = ran.context("`wg` does not start: it is in Debian's wireguard-tools")?;
    if !output.status.success() {
        bail!(
            "wg {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

/// Leads the pods' way through `wg0`, over Geneve or directly.
fn build(lab: &Topology, geneve: bool) -> Result<()> {
    let plan = lab.plan;
    let ends = ends(lab);
    // A tracer knows the functions of the modules that were there when it started.
    lab.underlay.nft("add table inet fault\n")?;
    for (end, other) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
        end.node.ip(&format!(
            "link add wg0 mtu 1420 type wireguard\n\
             address add {} dev wg0 nodad",
            plan.on_link(NET, end.host)
        ))?;
        let mut allowed = other.own(lab);
        if !geneve {
            allowed = format!("{allowed}, {}", other.pods);
        }
        let config = format!(
            "[Interface]\nPrivateKey = {}\nListenPort = {}\n[Peer]\nPublicKey = {}\nEndpoint = {}\nAllowedIPs = {allowed}\n",
            end.key.private,
            end.port,
            other.key.public,
            other.endpoint(),
        );
        wg(end.node, "setconf wg0 /proc/self/fd/0", &config)?;
        end.node.ip("link set wg0 up")?;
        if geneve {
            let far = plan.host(GENEVE_NET, other.host);
            end.node.ip(&format!(
                "link add gnv0 mtu 1300 address 02:00:00:00:02:0{own} type geneve id {VNI} remote {remote}\n\
                 address add {address} dev gnv0 nodad\n\
                 link set gnv0 up\n\
                 neighbour replace {far} lladdr 02:00:00:00:02:0{peer} dev gnv0 nud permanent\n\
                 route replace {pods} via {far} dev gnv0",
                own = end.host,
                peer = other.host,
                remote = plan.host(NET, other.host),
                address = plan.on_link(GENEVE_NET, end.host),
                pods = other.pods,
            ))?;
        } else {
            end.node
                .ip(&format!("route replace {} dev wg0", other.pods))?;
        }
    }
    Ok(())
}

/// Pods over Geneve over WireGuard.
pub fn with_geneve(lab: &Topology) -> Result<()> {
    build(lab, true)
}

/// Pods over WireGuard.
pub fn alone(lab: &Topology) -> Result<()> {
    build(lab, false)
}

/// Makes node-a forget its session: its peer is node-b anew, with what `peer` says of it.
fn anew(lab: &Topology, peer: &str) -> Result<()> {
    let [_, b] = ends(lab);
    wg(
        &lab.node_a,
        &format!("set wg0 peer {} remove", b.key.public),
        "",
    )?;
    wg(
        &lab.node_a,
        &format!(
            "set wg0 peer {} allowed-ips {},{} {peer}",
            b.key.public,
            b.own(lab),
            b.pods
        ),
        "",
    )
}

/// node-b's peer is somebody else than node-a.
pub fn wrong_key(lab: &Topology) -> Result<()> {
    let [a, b] = ends(lab);
    wg(
        &lab.node_b,
        &format!("set wg0 peer {} remove", a.key.public),
        "",
    )?;
    wg(
        &lab.node_b,
        &format!("set wg0 peer {OTHER_PUBLIC_KEY} allowed-ips {}", a.own(lab)),
        "",
    )?;
    anew(lab, &format!("endpoint {}", b.endpoint()))
}

/// node-a sends to a port at which nobody listens.
pub fn wrong_endpoint(lab: &Topology) -> Result<()> {
    let [_, b] = ends(lab);
    anew(lab, &format!("endpoint {}", SocketAddr::new(b.uplink, 9)))
}

/// node-b's device is down.
pub fn peer_down(lab: &Topology) -> Result<()> {
    let [_, b] = ends(lab);
    lab.node_b.ip("link set wg0 down")?;
    anew(lab, &format!("endpoint {}", b.endpoint()))
}

/// Nobody told node-a where node-b is.
pub fn no_endpoint(lab: &Topology) -> Result<()> {
    anew(lab, "")
}

/// At node-a the addresses of node-b and its pods are nobody's.
pub fn not_allowed_out(lab: &Topology) -> Result<()> {
    let [_, b] = ends(lab);
    let elsewhere = network_of(lab.plan.host(NET, 99));
    let peer = b.key.public;
    wg(
        &lab.node_a,
        &format!("set wg0 peer {peer} allowed-ips {elsewhere}"),
        "",
    )
}

/// At node-b the addresses of node-a and its pods are nobody's.
pub fn not_allowed_in(lab: &Topology) -> Result<()> {
    let [a, _] = ends(lab);
    let elsewhere = network_of(lab.plan.host(NET, 99));
    let peer = a.key.public;
    wg(
        &lab.node_b,
        &format!("set wg0 peer {peer} allowed-ips {elsewhere}"),
        "",
    )
}

/// The underlay's router lets no datagram from node-b through: the reply is lost outside of both nodes.
pub fn eaten_in_the_underlay(lab: &Topology) -> Result<()> {
    Ok(lab.underlay.nft(&format!(
        "add table inet fault\n\
         add chain inet fault forward {{ type filter hook forward priority 0; }}\n\
         add rule inet fault forward udp sport {PORT_B} drop\n"
    ))?)
}
