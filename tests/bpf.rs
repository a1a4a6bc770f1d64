//! Small BPF programs that kill the packets whose bytes are the given ones, and where they are attached. Each lives as
//! long as the descriptor of its link, so that not even SIGKILL leaves one behind.

use std::fs;
use std::io;
use std::mem::size_of;
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::libc;
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use tracer::lab::{Family, Netns};

use crate::pairs::Pair;

/// `enum bpf_cmd`
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_PROG_QUERY: libc::c_long = 16;
const BPF_LINK_CREATE: libc::c_long = 28;

/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE`
const XDP_GENERIC: u32 = 1 << 1;
const XDP_NATIVE: u32 = 1 << 2;

/// `TH_SYN` and `TH_SYN | TH_ACK`
const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;

/// `IPPROTO_TCP`
const TCP: u8 = 6;

/// A byte of a packet, counted from its IP header.
#[derive(Clone, Copy, Debug)]
struct Byte {
    offset: u16,
    value: u8,
}

/// Which packets a program kills: those with these bytes.
#[derive(Clone, Debug)]
pub struct Victims(Vec<Byte>);

impl Victims {
    /// The SYN of a pair's client.
    pub fn syn(pair: &Pair) -> Self {
        Self::new(pair.client, pair.server.ip(), SYN)
    }

    /// The SYN-ACK of a pair's server.
    pub fn syn_ack(pair: &Pair) -> Self {
        Self::new(pair.server.ip(), pair.client, SYN_ACK)
    }

    /// The SYNs, or the SYN-ACKs, of everybody.
    pub fn of_all(family: Family, answers: bool) -> Self {
        let (version, protocol_at, flags_at) = match family {
            Family::V4 => (0x45, 9, 20 + 13),
            Family::V6 => (0x60, 6, 40 + 13),
        };
        let flags = if answers { SYN_ACK } else { SYN };
        let bytes = [(0, version), (protocol_at, TCP), (flags_at, flags)];
        Self(bytes.map(|(offset, value)| Byte { offset, value }).to_vec())
    }

    fn new(src: IpAddr, dst: IpAddr, tcp_flags: u8) -> Self {
        // The version, both addresses, and byte 13 of a TCP header behind an IP header without options.
        let (version, src, dst, source_at, flags_at) = match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => (
                0x45,
                src.octets().to_vec(),
                dst.octets().to_vec(),
                12,
                20 + 13,
            ),
            (src, dst) => {
                let octets = |addr| match addr {
                    IpAddr::V4(addr) => addr.to_ipv6_mapped().octets().to_vec(),
                    IpAddr::V6(addr) => addr.octets().to_vec(),
                };
                (0x60, octets(src), octets(dst), 8, 40 + 13)
            }
        };
        let addresses = (source_at..).zip(src.into_iter().chain(dst));
        let bytes = [(0, version)]
            .into_iter()
            .chain(addresses)
            .chain([(flags_at, tcp_flags)]);
        Self(
            bytes
                .map(|(offset, value)| Byte { offset, value })
                .collect(),
        )
    }

    /// An eBPF program that returns `kill` for a victim and `spare` for any other packet, whose bytes lie between the
    /// two pointers at these offsets of the context and begin with `link_bytes` of a link header.
    fn program(
        &self,
        (data, data_end): (u16, u16),
        link_bytes: u16,
        kill: u32,
        spare: u32,
    ) -> Vec<u64> {
        let last = self.0.iter().map(|byte| byte.offset).max().unwrap_or(0);
        let mut code = vec![
            instruction(LOAD_WORD, 2, 1, data, 0),
            instruction(LOAD_WORD, 3, 1, data_end, 0),
            instruction(MOVE, 4, 2, 0, 0),
            instruction(ADD, 4, 0, 0, u32::from(link_bytes + last + 1)),
        ];
        // Each of two instructions a byte, the bounds check and the two of the kill are jumped over to the spare.
        let checks = u16::try_from(self.0.len()).unwrap_or(u16::MAX);
        code.push(instruction(JUMP_IF_GREATER, 4, 3, 2 * checks + 2, 0));
        for (done, byte) in (1..).zip(&self.0) {
            code.push(instruction(LOAD_BYTE, 5, 2, link_bytes + byte.offset, 0));
            code.push(instruction(
                JUMP_UNLESS_EQUAL,
                5,
                0,
                2 * (checks - done) + 2,
                u32::from(byte.value),
            ));
        }
        for result in [kill, spare] {
            code.push(instruction(SET, 0, 0, 0, result));
            code.push(instruction(EXIT, 0, 0, 0, 0));
        }
        code
    }

    /// The same for `tc`, as a classic program behind an Ethernet header that returns `victim` or `other`.
    fn bytecode(&self, victim: u32, other: u32) -> String {
        let mut lines = vec![(2 * self.0.len() + 2).to_string()];
        for (left, byte) in (0..self.0.len()).rev().zip(&self.0) {
            // `ldb`, then `jeq` that goes on or to the last instruction.
            lines.push(format!("48 0 0 {}", 14 + byte.offset));
            lines.push(format!("21 0 {} {}", 2 * left + 1, byte.value));
        }
        lines.push(format!("6 0 0 {victim}"));
        lines.push(format!("6 0 0 {other}"));
        lines.join(",")
    }
}

/// `BPF_LDX | BPF_MEM | BPF_W` and `BPF_B`, and the others of `linux/bpf.h`.
const LOAD_WORD: u8 = 0x61;
const LOAD_BYTE: u8 = 0x71;
const MOVE: u8 = 0xbf;
const ADD: u8 = 0x07;
const SET: u8 = 0xb7;
const JUMP_IF_GREATER: u8 = 0x2d;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// `bpf_redirect_peer`, since Linux 5.10
const REDIRECT_PEER: u32 = 155;

/// `struct bpf_insn`
fn instruction(code: u8, dst: u8, src: u8, offset: u16, immediate: u32) -> u64 {
    u64::from(code)
        | u64::from(dst | src << 4) << 8
        | u64::from(offset) << 16
        | u64::from(immediate) << 32
}

/// What the kernel calls a kind of program, where it is attached, and what it says of a packet.
#[derive(Clone, Copy)]
struct Kind {
    program_type: u32,
    attach_type: u32,
    data: (u16, u16),
    link_bytes: u16,
    kill: u32,
    spare: u32,
}

/// `BPF_PROG_TYPE_XDP`, `BPF_XDP`, `struct xdp_md`, `XDP_DROP`, `XDP_PASS`
const XDP: Kind = Kind {
    program_type: 6,
    attach_type: 37,
    data: (0, 4),
    link_bytes: 14,
    kill: 1,
    spare: 2,
};

/// `BPF_PROG_TYPE_SCHED_CLS`, `BPF_TCX_INGRESS`, `struct __sk_buff`, `TCX_DROP`, `TCX_NEXT`
const TCX_INGRESS: Kind = Kind {
    program_type: 3,
    attach_type: 46,
    data: (76, 80),
    link_bytes: 14,
    kill: 2,
    spare: u32::MAX,
};

/// `BPF_TCX_EGRESS`
const TCX_EGRESS: Kind = Kind {
    attach_type: 47,
    ..TCX_INGRESS
};

/// `BPF_PROG_TYPE_CGROUP_SKB`, `BPF_CGROUP_INET_INGRESS`; the packet begins with its IP header.
const CGROUP_INGRESS: Kind = Kind {
    program_type: 8,
    attach_type: 0,
    data: (76, 80),
    link_bytes: 0,
    kill: 0,
    spare: 1,
};

/// `BPF_CGROUP_INET_EGRESS`
const CGROUP_EGRESS: Kind = Kind {
    attach_type: 1,
    ..CGROUP_INGRESS
};

/// Has the generic XDP hook of a device drop them: they are skbs already.
pub fn xdp_generic(netns: &Netns, device: &str, victims: &Victims) -> Result<OwnedFd> {
    at_device(netns, device, XDP, XDP_GENERIC, victims)
}

/// Has the driver's XDP hook of a device drop them.
pub fn xdp_native(netns: &Netns, device: &str, victims: &Victims) -> Result<OwnedFd> {
    at_device(netns, device, XDP, XDP_NATIVE, victims)
}

/// Has a tcx program drop them as they come in by a device.
pub fn tcx_ingress(netns: &Netns, device: &str, victims: &Victims) -> Result<OwnedFd> {
    at_device(netns, device, TCX_INGRESS, 0, victims)
}

/// Has a tcx program drop them as they go out by a device.
pub fn tcx_egress(netns: &Netns, device: &str, victims: &Victims) -> Result<OwnedFd> {
    at_device(netns, device, TCX_EGRESS, 0, victims)
}

/// Hands everything that comes in by a device to the other end of a veth of the same namespace, as Cilium's host routing
/// does: it arrives there without having been sent or received.
pub fn redirect_to_peer(netns: &Netns, device: &str, veth: &str) -> Result<OwnedFd> {
    let link = netns.run(|| -> Result<OwnedFd> {
        let code = [
            instruction(SET, 1, 0, 0, nix::net::if_::if_nametoindex(veth)?),
            instruction(SET, 2, 0, 0, 0),
            instruction(CALL, 0, 0, 0, REDIRECT_PEER),
            instruction(EXIT, 0, 0, 0, 0),
        ];
        let program = load_code(TCX_INGRESS, &code)?;
        let ifindex = nix::net::if_::if_nametoindex(device)?;
        attach(&program, ifindex, TCX_INGRESS, 0)
    })?;
    link.with_context(|| format!("attaching a program to {device} of {}", netns.name()))
}

/// How many programs are at the tcx ingress of a device.
pub fn count_at_tcx_ingress(netns: &Netns, device: &str) -> Result<u32> {
    let count = netns.run(|| -> Result<u32> {
        let mut attr = QueryAttr {
            target: nix::net::if_::if_nametoindex(device)?,
            attach_type: TCX_INGRESS.attach_type,
            ..QueryAttr::default()
        };
        call(BPF_PROG_QUERY, &raw mut attr)?;
        Ok(attr.count)
    })?;
    count.with_context(|| format!("asking for the programs at {device} of {}", netns.name()))
}

/// Has a filter of `tc` drop them at a hook (`ingress`, `egress`) of a device.
pub fn tc(netns: &Netns, device: &str, hook: &str, victims: &Victims) -> Result<()> {
    const SHOT: u32 = 2;
    const UNSPEC: u32 = u32::MAX;
    // Whoever comes second finds the qdisc there.
    let _ = netns.command("tc", &["qdisc", "add", "dev", device, "clsact"]);
    let bytecode = victims.bytecode(SHOT, UNSPEC);
    let filter = [
        "filter", "add", "dev", device, hook, "bpf", "da", "bytecode",
    ];
    netns.command("tc", &[&filter[..], &[&bytecode]].concat())?;
    Ok(())
}

/// Has the queueing discipline of a device refuse them: they have a queue of their own that holds no packet.
pub fn full_queue(netns: &Netns, device: &str, victims: &Victims) -> Result<()> {
    /// "This is one of the class that the filter names", and "this is none of mine".
    const MATCH: u32 = u32::MAX;
    const NO_MATCH: u32 = 0;
    let bytecode = victims.bytecode(MATCH, NO_MATCH);
    for line in [
        format!("qdisc add dev {device} root handle 1: htb default 1"),
        format!("class add dev {device} parent 1: classid 1:1 htb rate 1gbit"),
        format!("class add dev {device} parent 1: classid 1:2 htb rate 1gbit"),
        format!("qdisc add dev {device} parent 1:2 tbf rate 8bit burst 10 limit 1"),
    ] {
        netns.command("tc", &line.split(' ').collect::<Vec<_>>())?;
    }
    let filter = [
        "filter", "add", "dev", device, "parent", "1:", "bpf", "bytecode",
    ];
    netns.command("tc", &[&filter[..], &[&bytecode, "flowid", "1:2"]].concat())?;
    Ok(())
}

fn at_device(
    netns: &Netns,
    device: &str,
    kind: Kind,
    flags: u32,
    victims: &Victims,
) -> Result<OwnedFd> {
    let program = load(kind, victims)?;
    let link = netns.run(|| -> Result<OwnedFd> {
        let ifindex = nix::net::if_::if_nametoindex(device)?;
        attach(&program, ifindex, kind, flags)
    })?;
    link.with_context(|| format!("attaching a program to {device} of {}", netns.name()))
}

/// A control group of this process, whose sockets belong to it from now on.
#[derive(Debug)]
pub struct Cgroup {
    before: PathBuf,
    path: PathBuf,
    _turn: Turn,
}

/// A process is in one group at a time: tests that share a process wait for each other.
#[derive(Debug)]
struct Turn;

static TAKEN: AtomicBool = AtomicBool::new(false);

impl Turn {
    fn wait_for() -> Self {
        while TAKEN.swap(true, Ordering::Acquire) {
            thread::sleep(Duration::from_millis(20));
        }
        Self
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        TAKEN.store(false, Ordering::Release);
    }
}

const CGROUP_PREFIX: &str = "tracer-lab-";

impl Cgroup {
    /// Makes one and moves this process into it until it is dropped.
    pub fn enter() -> Result<Self> {
        let turn = Turn::wait_for();
        let root = unified_hierarchy()?;
        remove_left_over(&root)?;
        let before = fs::read_to_string("/proc/self/cgroup")?;
        let before = before
            .lines()
            .find_map(|line| line.strip_prefix("0::/"))
            .context("this process is in no group of the unified hierarchy")?;
        let path = root.join(format!("{CGROUP_PREFIX}{}", process::id()));
        fs::create_dir(&path).with_context(|| format!("making {}", path.display()))?;
        let before = root.join(before);
        let group = Self {
            before,
            path,
            _turn: turn,
        };
        move_into(&group.path)?;
        Ok(group)
    }

    /// Has the group's ingress hook drop them.
    pub fn drop_incoming(path: &Path, victims: &Victims) -> Result<OwnedFd> {
        at_cgroup(path, CGROUP_INGRESS, victims)
    }

    /// Has the group's egress hook drop them.
    pub fn drop_outgoing(path: &Path, victims: &Victims) -> Result<OwnedFd> {
        at_cgroup(path, CGROUP_EGRESS, victims)
    }

    /// What the two above take.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A group that is left over is empty, and the next run removes it.
        let _ = move_into(&self.before).and_then(|()| fs::remove_dir(&self.path));
    }
}

fn move_into(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0")
}

/// Removes the empty groups of runs that were killed.
fn remove_left_over(root: &Path) -> Result<()> {
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if entry
            .file_name()
            .to_string_lossy()
            .starts_with(CGROUP_PREFIX)
        {
            // One that somebody is in stays.
            let _ = fs::remove_dir(entry.path());
        }
    }
    Ok(())
}

fn at_cgroup(path: &Path, kind: Kind, victims: &Victims) -> Result<OwnedFd> {
    let program = load(kind, victims)?;
    let group = fs::File::open(path)?;
    let target = u32::try_from(group.as_raw_fd())?;
    attach(&program, target, kind, 0).with_context(|| format!("attaching to {}", path.display()))
}

/// Where the unified hierarchy of control groups is mounted.
pub(crate) fn unified_hierarchy() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let path = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (_, path, kind) = (fields.next()?, fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(path))
    });
    path.context("no cgroup2 file system is mounted")
}

/// The beginning of `union bpf_attr` for `BPF_PROG_LOAD`.
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    program_type: u32,
    instruction_count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    ifindex: u32,
    expected_attach_type: u32,
}

/// The beginning of `union bpf_attr` for `BPF_LINK_CREATE`, with room for what the kinds add.
#[repr(C)]
#[derive(Default)]
struct LinkAttr {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    more: [u64; 4],
}

/// The beginning of `union bpf_attr` for `BPF_PROG_QUERY`.
#[repr(C)]
#[derive(Default)]
struct QueryAttr {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    more: [u32; 9],
}

fn load(kind: Kind, victims: &Victims) -> Result<OwnedFd> {
    let code = victims.program(kind.data, kind.link_bytes, kind.kill, kind.spare);
    load_code(kind, &code)
}

fn load_code(kind: Kind, code: &[u64]) -> Result<OwnedFd> {
    // Before 5.11 programs count as locked memory, of which even root may have little. Where the limit
    // cannot be raised, loading says whether it was too low.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);
    let mut log = vec![0_u8; 64 * 1024];
    let attr = LoadAttr {
        program_type: kind.program_type,
        instruction_count: u32::try_from(code.len())?,
        instructions: code.as_ptr() as u64,
        license: c"Dual MIT/GPL".as_ptr() as u64,
        log_level: 1,
        log_size: u32::try_from(log.len())?,
        log: log.as_mut_ptr() as u64,
        expected_attach_type: kind.attach_type,
        ..LoadAttr::default()
    };
    bpf(BPF_PROG_LOAD, &attr).map_err(|error| {
        let log = String::from_utf8_lossy(&log);
        anyhow::anyhow!("loading a program: {error}; {}", log.trim_end_matches('\0'))
    })
}

fn attach(program: &OwnedFd, target: u32, kind: Kind, flags: u32) -> Result<OwnedFd> {
    let attr = LinkAttr {
        program: u32::try_from(program.as_raw_fd())?,
        target,
        attach_type: kind.attach_type,
        flags,
        ..LinkAttr::default()
    };
    Ok(bpf(BPF_LINK_CREATE, &attr)?)
}

/// bpf(2) with a command that answers with a descriptor.
fn bpf<A>(command: libc::c_long, attr: &A) -> io::Result<OwnedFd> {
    let result = call(command, std::ptr::from_ref(attr).cast_mut())?;
    let fd = RawFd::try_from(result).map_err(io::Error::other)?;
    // SAFETY: the kernel has just opened it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// bpf(2)
fn call<A>(command: libc::c_long, attr: *mut A) -> io::Result<libc::c_long> {
    // SAFETY: the attributes are a plain structure of at least the size that is told, and what they point to outlives
    // the call; the kernel writes into the log, which its owner does not read meanwhile, and of the commands here into
    // the attributes of a query alone, which its caller may write.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attr, size_of::<A>()) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}
