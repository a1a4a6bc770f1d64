//! Every map. Their names are the ABI with `tracer/src/attach.rs`.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf},
};
use tracer_common::{
    budget::Spending,
    ledger::{COUNTERS, Counter},
    packet::TunnelPorts,
};

use crate::{
    emit::Scratch,
    hooks::Arrival,
    socket::Owner,
    translation::Passing,
    wireguard::{Datagram, Sealed},
};

/// How many hooks can run inside each other on one CPU: in a task, in a softirq and in a hard interrupt. The
/// numbers of the spaces are those that [`crate::emit::with_scratch`] makes of the bits 0, 1 and 2.
const SCRATCH_SLOTS: u32 = 3;

/// Flows whose budget is remembered; the least recently seen is forgotten, and begins anew.
const FLOWS_MAX: u32 = 65_536;

/// Namespaces that one run can be restricted to.
const NETNS_MAX: u32 = 4096;

/// Sockets whose owner is remembered.
const OWNERS_MAX: u32 = 16_384;

/// Skbs whose packet may still be translated. The least recently seen is forgotten, which is safe: an skb lives for
/// microseconds between two hooks, and what is sent again is followed as well.
const PASSING_MAX: u32 = 16_384;

/// Translated flows that are followed. What does not fit is counted.
const TRANSLATED_MAX: u32 = 16_384;

/// WireGuard devices that are known.
const WIREGUARD_DEVICES_MAX: u32 = 1024;

/// Packets that are being encrypted, or wait for a session. Of those that are forgotten too early `wireguard::note` has a
/// count.
pub const SEALED_MAX: u32 = 4096;

/// Datagrams that are being decrypted: a device's queue holds 1024 (`MAX_QUEUED_PACKETS`). Of one that is forgotten too
/// early only its hop is missing.
const DATAGRAMS_MAX: u32 = 4096;

/// The records; userspace chooses the size.
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// The counters of [`Counter`].
#[map]
pub static LEDGER: PerCpuArray<u64> = PerCpuArray::with_max_entries(COUNTERS, 0);

/// Where a hook that is too large for the stack works.
#[map]
pub static SCRATCH: PerCpuArray<Scratch> = PerCpuArray::with_max_entries(SCRATCH_SLOTS, 0);

/// A bit for each of this CPU's scratch spaces that is in use.
#[map]
pub static SCRATCH_BUSY: PerCpuArray<u32> = PerCpuArray::with_max_entries(1, 0);

/// The inode numbers of the watched namespaces, where the run is restricted.
#[map]
pub static NETNS_SET: HashMap<u32, u8> = HashMap::with_max_entries(NETNS_MAX, 0);

/// What each flow had of its budget.
#[map]
pub static FLOWS: LruHashMap<u64, Spending> = LruHashMap::with_max_entries(FLOWS_MAX, 0);

/// Who opened a socket, by its address, until it is closed.
#[map]
pub static OWNERS: LruHashMap<u64, Owner> = LruHashMap::with_max_entries(OWNERS_MAX, 0);

/// Packets by the address of their skb, so that their translation is noticed.
#[map]
pub static PASSING: LruHashMap<u64, Passing> = LruHashMap::with_max_entries(PASSING_MAX, 0);

/// The datagram that this CPU received last.
#[map]
pub static LAST_RECEIVED: PerCpuArray<Passing> = PerCpuArray::with_max_entries(1, 0);

/// The flows that are selected under other addresses, by the hash of these.
#[map]
pub static TRANSLATED: HashMap<u64, u8> = HashMap::with_max_entries(TRANSLATED_MAX, 0);

/// Whether there is any in [`TRANSLATED`], and any datagram in [`PASSING`]: one load each, where there is none.
#[map]
pub static FOLLOWING: Array<u32> = Array::with_max_entries(2, 0);

/// The WireGuard devices, by [`tracer_common::event::device_key`]; userspace says which there are.
#[map]
pub static WIREGUARD_DEVICES: HashMap<u64, u8> =
    HashMap::with_max_entries(WIREGUARD_DEVICES_MAX, 0);

/// Packets that a WireGuard device was handed, by the address of their skb.
#[map]
pub static SEALED: LruHashMap<u64, Sealed> = LruHashMap::with_max_entries(SEALED_MAX, 0);

/// When each of the latest of them was remembered; 0 once its datagram was seen.
#[map]
pub static SEALED_SINCE: Array<u64> = Array::with_max_entries(SEALED_MAX, 0);

/// How many there were so far.
#[map]
pub static SEALED_COUNT: Array<u64> = Array::with_max_entries(1, 0);

/// Datagrams to the ports of WireGuard devices, by the address of their skb.
#[map]
pub static DATAGRAMS: LruHashMap<u64, Datagram> = LruHashMap::with_max_entries(DATAGRAMS_MAX, 0);

/// The packet in this CPU's receive path, for the devices of `--tc`.
#[map]
pub static ARRIVAL: PerCpuArray<Arrival> = PerCpuArray::with_max_entries(1, 0);

/// The UDP ports that tunnels listen on; userspace may replace them at any time.
#[map]
pub static TUNNEL_PORTS: Array<TunnelPorts> = Array::with_max_entries(1, 0);

/// Adds one to a counter of this CPU.
#[inline(always)]
pub fn count(counter: Counter) {
    if let Some(slot) = LEDGER.get_ptr_mut(counter as u32) {
        increment(slot);
    }
}

/// Adds one atomically, since an interrupt may count between a load and a store. `AtomicU64` cannot: the target
/// promises no more than loads and stores, although every kernel knows this instruction.
#[cfg(target_arch = "bpf")]
#[inline(always)]
pub fn increment(slot: *mut u64) {
    // SAFETY: the slot is a u64 in a map, aligned and never freed.
    unsafe {
        core::arch::asm!(
            "lock *(u64 *)({slot} + 0) += {one}",
            slot = in(reg) slot,
            one = in(reg) 1u64,
        );
    }
}

/// Lets the crate be checked on the host, where it never runs.
#[cfg(not(target_arch = "bpf"))]
pub fn increment(slot: *mut u64) {
    // SAFETY: as above.
    unsafe { *slot += 1 }
}

/// What a counter of this CPU stands at.
#[inline(always)]
pub fn counted(counter: Counter) -> u64 {
    LEDGER.get_ptr(counter as u32).map_or(0, |slot| {
        // SAFETY: as in `increment`.
        unsafe { slot.read_volatile() }
    })
}
