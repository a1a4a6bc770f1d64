//! Loads the kernel half, attaches every hook that this kernel lets us attach, and says which it does not.
//!
//! Privilege begins and ends here. Nothing is pinned: programs and maps live as long as the descriptors in
//! [`Attached`], which the kernel closes even after SIGKILL.

use std::{
    collections::{BTreeSet, hash_map::RandomState},
    fs::File,
    hash::BuildHasher as _,
    io::{self, Read as _, Seek as _, SeekFrom},
    sync::Arc,
    thread,
};

use aya::{
    Ebpf, EbpfLoader, VerifierLogLevel, include_bytes_aligned,
    maps::{Array, HashMap, MapData, MapError, PerCpuArray, RingBuf},
};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};
use thiserror::Error;
use tracer_common::{
    config::{Config, MISSING},
    event::device_key,
    filter::FilterProgram,
    ledger::{COUNTERS, Counter},
    packet::TunnelPorts,
};
use zerocopy::IntoBytes as _;

use crate::{
    event::DeviceId,
    kernel::{btf::Btf, drop_reasons::DropReasons, features::Features, symbols::Symbols},
    record::{BlindSpot, Hook, HookState, Ledger},
    source::ring::Ring,
    topology::Entrance,
};

mod error;
#[cfg(feature = "aya-log")]
mod kernel_log;
mod programs;
mod tc;

pub use error::AttachError;
use error::{explain_load, in_map};
use programs::Programs;

/// The kernel half, as built by this crate's build script.
static OBJECT: &[u8] = include_bytes_aligned!(concat!(env!("OUT_DIR"), "/tracer-ebpf"));

/// How many sightings of a TCP connection, beside those that open or end it, are handed over unless `--all-packets` asks
/// for all.
pub const BUDGET: u32 = 64;

/// How many sightings of any other flow are handed over in a second: of a request and its answer, a dozen at ten hops each.
const BUDGET_PER_SECOND: u32 = 256;

/// How much the ring holds unless the user chooses.
pub const RING_BYTES: u32 = 8 << 20;

/// Far below what the kernel would give (`RINGBUF_MAX_DATA_SZ`): a larger number is a mistake.
const RING_BYTES_MAX: u32 = 1 << 30;

/// What to attach, and what to look for.
#[derive(Clone, Debug)]
pub struct AttachOptions {
    /// Which flows.
    pub filter: FilterProgram,
    /// Inode numbers of the namespaces to watch; `None` for all. What has no namespace is seen in any case.
    pub netns: Option<Vec<u32>>,
    /// Whether events carry the cookie of their namespace.
    pub netns_cookies: bool,
    /// The size of the ring; rounded up to what the kernel takes, a power of two of at least a page.
    pub ring_bytes: u32,
    /// Sightings of a TCP connection before the rest is held back, see [`tracer_common::budget`]; 0 for all of every flow.
    pub budget: u32,
    /// The tunnels that are known already; [`Control::set_tunnel_ports`] adds those that appear later.
    pub tunnel_ports: TunnelPorts,
    /// The WireGuard devices that are known already; [`Control::set_wireguard_devices`] adds those that appear later.
    pub wireguard_devices: Vec<DeviceId>,
    /// The devices to watch at their `tc` hook.
    pub entrances: Vec<Entrance>,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self {
            filter: FilterProgram::ALL,
            netns: None,
            netns_cookies: true,
            ring_bytes: RING_BYTES,
            budget: BUDGET,
            tunnel_ports: TunnelPorts::NONE,
            wireguard_devices: Vec::new(),
            entrances: Vec::new(),
        }
    }
}

/// A running trace. Dropping it detaches everything.
pub struct Attached {
    /// Every hook that this kernel offers or lacks.
    pub hooks: Vec<Hook>,
    /// What follows from those that are not attached.
    pub blind_spots: Vec<BlindSpot>,
    /// What the hooks report.
    pub ring: Ring,
    /// What can be asked and told while they run.
    pub control: Control,
}

impl Attached {
    /// How many hooks are attached, and how many this kernel offers.
    pub fn count(&self) -> (usize, usize) {
        let with = |state| self.hooks.iter().filter(|hook| hook.state == state).count();
        let attached = with(HookState::Attached);
        (attached, attached + with(HookState::Failed))
    }
}

/// Holds the programs. Reading the ledger and replacing the tunnel ports needs no capability from Linux 5.19 on,
/// and `CAP_BPF` before.
pub struct Control {
    /// Programs and links live as long as this.
    programs: Option<Ebpf>,
    ledger: PerCpuArray<MapData, u64>,
    tunnel_ports: Array<MapData, PortBytes>,
    wireguard: WireguardDevices,
    /// `/proc/self/fdinfo` of each program, opened while that is allowed.
    program_info: Vec<File>,
    /// How many runs the kernel had skipped when the programs were last asked.
    missed_runs: u64,
    #[cfg(feature = "aya-log")]
    log: kernel_log::KernelLog,
}

impl Control {
    /// What was lost so far, as of `time_ns` (CLOCK_MONOTONIC).
    pub fn ledger(&mut self, ring: &Ring, time_ns: u64) -> Result<Ledger, LedgerError> {
        #[cfg(feature = "aya-log")]
        self.log.flush();
        let mut sums = [0u64; COUNTERS as usize];
        for (index, sum) in (0..COUNTERS).zip(&mut sums) {
            *sum = self.ledger.get(&index, 0)?.iter().sum();
        }
        let of = |counter: Counter| sums[counter as usize];
        if self.programs.is_some() {
            self.missed_runs = self.count_missed_runs()?;
        }
        Ok(Ledger {
            time_ns,
            emitted: of(Counter::Emitted),
            delivered: ring.delivered(),
            ring_full: of(Counter::RingFull),
            missed: self.missed_runs,
            unreadable: of(Counter::Unreadable),
            undecodable: ring.undecodable(),
            rate_limited: of(Counter::RateLimited),
            table_full: of(Counter::TableFull),
        })
    }

    /// Takes the hooks away, so that what is still in the ring is the last of it. The ledger can be read afterwards.
    pub fn detach(&mut self) -> Result<(), LedgerError> {
        // A program tells its statistics only as long as it is loaded.
        self.missed_runs = self.count_missed_runs()?;
        self.programs = None;
        Ok(())
    }

    fn count_missed_runs(&mut self) -> io::Result<u64> {
        self.program_info.iter_mut().map(recursion_misses).sum()
    }

    /// Declares the UDP ports that tunnels listen on, in place of those declared before.
    pub fn set_tunnel_ports(&mut self, ports: &TunnelPorts) -> Result<(), MapError> {
        declare(&mut self.tunnel_ports, ports)
    }

    /// Says which WireGuard devices there are, in place of what was said before.
    pub fn set_wireguard_devices(&mut self, devices: &[DeviceId]) -> Result<(), MapError> {
        self.wireguard.set(devices)
    }
}

/// The set of WireGuard devices in the kernel, and what is in it.
struct WireguardDevices {
    map: HashMap<MapData, u64, u8>,
    keys: BTreeSet<u64>,
}

impl WireguardDevices {
    fn set(&mut self, devices: &[DeviceId]) -> Result<(), MapError> {
        let keys = devices.iter();
        let keys: BTreeSet<u64> = keys
            .map(|id| device_key(id.netns.inum, id.ifindex))
            .collect();
        for key in self.keys.difference(&keys) {
            self.map.remove(key)?;
        }
        for key in keys.difference(&self.keys) {
            self.map.insert(key, 1, 0)?;
        }
        self.keys = keys;
        Ok(())
    }
}

/// [`TunnelPorts`] as the library lets a map hold it.
type PortBytes = [u8; size_of::<TunnelPorts>()];

fn declare(map: &mut Array<MapData, PortBytes>, ports: &TunnelPorts) -> Result<(), MapError> {
    let mut bytes: PortBytes = [0; size_of::<TunnelPorts>()];
    bytes.copy_from_slice(ports.as_bytes());
    map.set(0, bytes, 0)
}

/// Why the ledger could not be read. Without it nothing may be inferred.
#[derive(Debug, Error)]
pub enum LedgerError {
    /// The counters.
    #[error("cannot read the loss counters: {0}")]
    Counters(#[from] MapError),
    /// The programs' own statistics.
    #[error("cannot read the programs' statistics: {0}")]
    Programs(#[from] io::Error),
}

/// Loads and attaches everything.
pub fn attach(options: &AttachOptions) -> Result<Attached, AttachError> {
    // Kernels before 5.11 count maps against this limit; later ones do not care, and nor do we.
    let _ = setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY);

    // Three files of several megabytes are read and parsed: by us, for the symbols, and once more by the library.
    let (btf, symbols, mut loader) = thread::scope(|scope| {
        let symbols = scope.spawn(|| Symbols::of_kernel().unwrap_or_default());
        let btf = Btf::of_kernel();
        let loader = EbpfLoader::new();
        let symbols = symbols.join().unwrap_or_default();
        (btf, symbols, loader)
    });
    let btf = btf?;
    let symbols = Arc::new(symbols);
    let features = Features::of(&btf, &symbols);

    let ring_bytes = options
        .ring_bytes
        .clamp(page_bytes()?, RING_BYTES_MAX)
        .next_power_of_two();
    let config = config(options, &features, ring_bytes);
    let mut ebpf = loader
        // No program relocates against the kernel's types: `Features` has done that.
        .btf(None)
        .verifier_log_level(VerifierLogLevel::STATS)
        .override_global("CONFIG", config.as_bytes(), true)
        .override_global("FILTER", options.filter.as_bytes(), true)
        .map_max_entries("EVENTS", ring_bytes)
        .map_max_entries("NETNS_SET", netns_entries(options))
        .load(OBJECT)
        .map_err(explain_load)?;

    if let Some(inums) = &options.netns {
        fill_netns_set(&mut ebpf, inums)?;
    }
    let ring = RingBuf::try_from(take(&mut ebpf, "EVENTS")?).map_err(in_map("EVENTS"))?;
    let ledger = PerCpuArray::try_from(take(&mut ebpf, "LEDGER")?).map_err(in_map("LEDGER"))?;
    let mut tunnel_ports =
        Array::try_from(take(&mut ebpf, "TUNNEL_PORTS")?).map_err(in_map("TUNNEL_PORTS"))?;
    declare(&mut tunnel_ports, &options.tunnel_ports).map_err(in_map("TUNNEL_PORTS"))?;

    let map = take(&mut ebpf, "WIREGUARD_DEVICES")?;
    let mut wireguard = WireguardDevices {
        map: HashMap::try_from(map).map_err(in_map("WIREGUARD_DEVICES"))?,
        keys: BTreeSet::new(),
    };
    wireguard
        .set(&options.wireguard_devices)
        .map_err(in_map("WIREGUARD_DEVICES"))?;

    let Programs {
        mut hooks,
        mut blind_spots,
        info: program_info,
    } = programs::attach(&mut ebpf, &btf, &features)?;
    if !options.entrances.is_empty() {
        hooks.extend(tc::attach(&mut ebpf, &options.entrances)?);
    }
    blind_spots.extend(general_blind_spots(&features, &symbols));
    Ok(Attached {
        hooks,
        blind_spots,
        ring: Ring::new(ring, symbols, DropReasons::of(&btf)),
        control: Control {
            #[cfg(feature = "aya-log")]
            log: kernel_log::open(&mut ebpf)?,
            programs: Some(ebpf),
            missed_runs: 0,
            ledger,
            tunnel_ports,
            wireguard,
            program_info,
        },
    })
}

/// What is frozen into the programs.
fn config(options: &AttachOptions, features: &Features, ring_bytes: u32) -> Config {
    let consumer = features.consumer.clone().unwrap_or_default();
    let mut offsets = features.offsets;
    if !options.netns_cookies {
        offsets.net_cookie = MISSING;
    }
    Config {
        consume_start: consumer.start,
        consume_end: consumer.end,
        flow_seed: RandomState::new().hash_one(ring_bytes),
        offsets,
        reason_not_dropped: features.reason_not_dropped,
        reason_consumed: features.reason_consumed,
        budget: options.budget,
        budget_per_second: if options.budget == 0 {
            0
        } else {
            BUDGET_PER_SECOND
        },
        netns_restricted: u32::from(options.netns.is_some()),
        wakeup_bytes: ring_bytes / 2,
        tc_devices: u32::from(!options.entrances.is_empty()),
    }
}

/// What is missed although its hook is attached.
fn general_blind_spots(features: &Features, symbols: &Symbols) -> Vec<BlindSpot> {
    let mut spots = Vec::new();
    let mut add = |code: &str, summary: String| {
        spots.push(BlindSpot {
            code: code.to_owned(),
            summary,
        });
    };
    if symbols.is_empty() {
        add(
            "symbols_hidden",
            "the kernel hides its addresses, so the function that dropped a packet cannot be named"
                .to_owned(),
        );
    }
    if let Some(field) = features.lacks_netns_field() {
        add(
            "netns_unknown",
            format!(
                "this kernel's type information lacks {field}: namespaces and devices are not told apart"
            ),
        );
    }
    if !features.drop_has_reason {
        add(
            "drop_reason_unknown",
            "this kernel does not say why it drops a packet, only where".to_owned(),
        );
    }
    spots
}

/// The set's size; a map cannot have none.
fn netns_entries(options: &AttachOptions) -> u32 {
    let inums = options.netns.as_ref().map_or(0, Vec::len);
    u32::try_from(inums).unwrap_or(u32::MAX).max(1)
}

fn fill_netns_set(ebpf: &mut Ebpf, inums: &[u32]) -> Result<(), AttachError> {
    // Borrowed, not taken: the programs still have to be loaded with it.
    let map = ebpf
        .map_mut("NETNS_SET")
        .ok_or_else(|| absent("NETNS_SET"))?;
    let mut set: HashMap<&mut MapData, u32, u8> =
        HashMap::try_from(map).map_err(in_map("NETNS_SET"))?;
    for inum in inums {
        set.insert(inum, 1, 0).map_err(in_map("NETNS_SET"))?;
    }
    Ok(())
}

fn take(ebpf: &mut Ebpf, map: &'static str) -> Result<aya::maps::Map, AttachError> {
    ebpf.take_map(map).ok_or_else(|| absent(map))
}

fn absent(map: &'static str) -> AttachError {
    in_map(map)(MapError::InvalidName {
        name: map.to_owned(),
    })
}

/// How often the kernel skipped a program because it was running already; kernels before 5.12 do not count it.
fn recursion_misses(info: &mut File) -> io::Result<u64> {
    let mut text = String::new();
    info.seek(SeekFrom::Start(0))?;
    info.read_to_string(&mut text)?;
    let misses = text
        .lines()
        .find_map(|line| line.strip_prefix("recursion_misses:"))
        .and_then(|number| number.trim().parse().ok());
    Ok(misses.unwrap_or(0))
}

fn page_bytes() -> io::Result<u32> {
    let bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE)?;
    bytes
        .and_then(|bytes| u32::try_from(bytes).ok())
        .ok_or_else(|| io::Error::other("the size of a page is unknown"))
}
