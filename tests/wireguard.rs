//! WireGuard in a process: a tun device on one side of it, UDP on the other. What goes through the tunnel ends at the
//! device, since nothing else of it is in the kernel.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MsFlags, mount};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tracer::lab::{Netns, Topology, mortal};

/// Where wireguard-go listens for its configuration, by the name of its device.
const SOCKETS: &str = "/run/wireguard";

/// The UDP port of both ends.
pub const PORT: u16 = 51820;

/// The keys of the two nodes, private and public: of no use outside the lab.
const KEYS_A: [&str; 2] = [
    "uIakdCQqbGvdjvfpmkAJgRL3zpfUaC8RcIU/i/nz1kY=",
    "LjUHO5gz3P3jV3KUvA92QXvOuQxB997GqRDjeE35pUE=",
];
const KEYS_B: [&str; 2] = [
    "wHsmvTmpo+L/RLwlZiBgHWsJfUUvhXo5HVLrjYZkBUI=",
    "w9906154z792f3MRlWOyP0ImtULVTi88+GowW6B4jDU=",
];

const READY_WITHIN: Duration = Duration::from_secs(10);

/// One end. The process ends with it.
#[derive(Debug)]
pub struct Wireguard {
    process: Child,
}

impl Wireguard {
    /// Has the process do nothing any more.
    pub fn hang(&self) -> Result<()> {
        let pid = Pid::from_raw(self.process.id().try_into()?);
        kill(pid, Signal::SIGSTOP)?;
        // A thread on a busy machine stops when it has its turn.
        let deadline = Instant::now() + READY_WITHIN;
        while !self.is_stopped()? {
            ensure!(Instant::now() < deadline, "{pid} does not stop");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Whether every thread is in the state `T` of `/proc/PID/task/TID/stat`, which follows the name in parentheses.
    fn is_stopped(&self) -> Result<bool> {
        for thread in fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let stat = fs::read_to_string(thread?.path().join("stat"))?;
            let state = stat.rsplit_once(") ").map(|(_, rest)| rest.chars().next());
            if state != Some(Some('T')) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl Drop for Wireguard {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Both nodes' ends, `wga` and `wgb`: what goes from pods to pods goes through them.
pub fn between_the_nodes(lab: &Topology) -> Result<[Wireguard; 2]> {
    let plan = lab.plan;
    // Each sandbox has its own, so that the devices of two labs may have the same names.
    fs::create_dir_all(SOCKETS)?;
    mount(
        Some("tmpfs"),
        SOCKETS,
        Some("tmpfs"),
        MsFlags::empty(),
        None::<&str>,
    )?;
    let a = Wireguard::start(&lab.node_a, "wga", &plan.pods_b())?;
    let b = Wireguard::start(&lab.node_b, "wgb", &plan.pods_a())?;
    allow_from_b(lab, &plan.pods_b())?;
    allow_from_a(lab, &plan.pods_a())?;
    Ok([a, b])
}

/// Has node-a's end send to and take from node-b's what is in this network.
pub fn allow_from_b(lab: &Topology, allowed: &str) -> Result<()> {
    let far = lab.plan.uplink_b().0;
    configure(&lab.node_a, "wga", KEYS_A[0], KEYS_B[1], far, allowed)
}

/// Has node-b's end send to and take from node-a's what is in this network.
pub fn allow_from_a(lab: &Topology, allowed: &str) -> Result<()> {
    let near = lab.plan.uplink_a().0;
    configure(&lab.node_b, "wgb", KEYS_B[0], KEYS_A[1], near, allowed)
}

fn configure(
    netns: &Netns,
    device: &str,
    private: &str,
    peer: &str,
    endpoint: IpAddr,
    allowed: &str,
) -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(
        file.path(),
        format!(
            "[Interface]\nPrivateKey = {private}\nListenPort = {PORT}\n\
             [Peer]\nPublicKey = {peer}\nEndpoint = {}\nAllowedIPs = {allowed}\n",
            SocketAddr::new(endpoint, PORT)
        ),
    )?;
    let path = file.path().to_str().context("a path that is text")?;
    netns.command("wg", &["setconf", device, path])?;
    Ok(())
}

impl Wireguard {
    fn start(netns: &Netns, device: &str, routes: &str) -> Result<Self> {
        let process = mortal("ip")
            .args(["netns", "exec", netns.name(), "wireguard-go", "-f", device])
            .env("LOG_LEVEL", "silent")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("starting wireguard-go")?;
        let end = Self { process };
        let socket = format!("{SOCKETS}/{device}.sock");
        let deadline = Instant::now() + READY_WITHIN;
        while !Path::new(&socket).exists() {
            ensure!(
                Instant::now() < deadline,
                "wireguard-go has no {socket} after {READY_WITHIN:?}"
            );
            thread::sleep(Duration::from_millis(5));
        }
        netns.ip(&format!(
            "link set {device} mtu 1400 up\nroute replace {routes} dev {device}"
        ))?;
        Ok(end)
    }
}
