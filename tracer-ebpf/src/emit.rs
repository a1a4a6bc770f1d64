//! The scratch space of a running hook, and the one way into the ring.

use core::ffi::c_void;

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::{
        bpf_get_smp_processor_id, bpf_ktime_get_ns, generated::bpf_probe_read_kernel,
        generated::bpf_ringbuf_output,
    },
};
use tracer_common::{
    event::{DATAGRAM_BYTES_MAX, DropRecord, EventHeader, HEADER_BYTES_MAX, Kind},
    ledger::Counter,
    packet::{self, Packet},
};

use crate::{
    config::config,
    maps::{EVENTS, SCRATCH, SCRATCH_BUSY, count, counted},
    skb::{Place, Window},
    wireguard::Sealed,
};

/// How often a CPU looks whether the ring fills up, in records.
const FILL_CHECK_INTERVAL: u64 = 32;

/// The most bytes that follow a record.
const EMITTED_BYTES_MAX: u32 = (DATAGRAM_BYTES_MAX + HEADER_BYTES_MAX) as u32;

/// Where one running hook works. The captured bytes follow the record, so that both leave together.
#[repr(C)]
pub struct Scratch {
    /// What was parsed.
    pub packet: Packet,
    /// 1 if this sighting takes the last of its flow's budget, else 0.
    pub budget_spent: u64,
    /// How many of the captured bytes are headers.
    pub header_len: u32,
    /// How many bytes behind those are the headers of the packet that a WireGuard datagram carries.
    pub sealed_len: u32,
    /// Where a packet is kept that is to be remembered, or to make room for a datagram.
    pub sealed: Sealed,
    record: [u64; size_of::<DropRecord>() / 8],
    /// What it was parsed from.
    pub captured: packet::Scratch,
}

const _: () = assert!(
    size_of::<DropRecord>().is_multiple_of(8)
        && core::mem::offset_of!(Scratch, captured)
            == core::mem::offset_of!(Scratch, record) + size_of::<DropRecord>()
        && core::mem::offset_of!(packet::Scratch, bytes) == 0
);

impl Scratch {
    /// Copies the window's bytes here; `false` where the memory cannot be read.
    #[inline(always)]
    pub fn fill(&mut self, window: &Window) -> bool {
        let mut len = window.captured;
        if len > HEADER_BYTES_MAX as u32 {
            len = HEADER_BYTES_MAX as u32;
        }
        self.captured.len = u64::from(len);
        // SAFETY: at most HEADER_BYTES_MAX bytes are written to a buffer of twice as many.
        unsafe {
            bpf_probe_read_kernel(
                self.captured.bytes.as_mut_ptr().cast(),
                len,
                window.address as *const c_void,
            ) == 0
        }
    }

    /// The record of type `T` that ends where the bytes begin.
    #[inline(always)]
    pub fn record<T>(&mut self) -> *mut T {
        const { assert!(size_of::<T>() <= size_of::<DropRecord>() && align_of::<T>() <= 8) };
        let skipped = size_of::<DropRecord>() - size_of::<T>();
        // SAFETY: the result stays inside `record`, by the assertion above.
        unsafe { self.record.as_mut_ptr().byte_add(skipped).cast() }
    }

    /// How many bytes of headers follow a packet's record.
    #[inline(always)]
    pub fn following(&self) -> u32 {
        self.header_len.wrapping_add(self.sealed_len)
    }

    /// Writes the record of type `T` and the first `len` bytes behind it to the ring.
    #[inline(always)]
    pub fn emit<T>(&mut self, len: u32) {
        let len = if len > EMITTED_BYTES_MAX {
            EMITTED_BYTES_MAX
        } else {
            len
        };
        let record: *mut T = self.record();
        output(record.cast(), size_of::<T>() as u64 + u64::from(len));
    }
}

/// Runs `work` with a scratch space that no interrupted hook is using; an interrupt gives its own back before the
/// interrupted hook goes on.
///
/// The number of the space is computed without a branch, so that the verifier walks the rest of a program once.
#[inline(always)]
pub fn with_scratch(work: impl FnOnce(&mut Scratch)) {
    let Some(busy) = SCRATCH_BUSY.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: the pointer is this CPU's map value, and what interrupts this hook leaves the value as it was.
    let before = unsafe { busy.read_volatile() };
    // The lowest bit that is not set; beyond the last space the lookup finds nothing.
    let bit = !before & before.wrapping_add(1);
    let Some(scratch) = SCRATCH.get_ptr_mut(bit >> 1) else {
        count(Counter::Unreadable);
        return;
    };
    // SAFETY: as above; and nobody else uses a space while its bit is set.
    unsafe {
        busy.write_volatile(before | bit);
        work(&mut *scratch);
        busy.write_volatile(busy.read_volatile() & !bit);
    }
}

/// CLOCK_MONOTONIC, which takes longer to read than a map.
#[inline(always)]
pub fn now_ns() -> u64 {
    // SAFETY: the helper only returns a number.
    unsafe { bpf_ktime_get_ns() }
}

/// The header of a record that is written now.
#[inline(always)]
pub fn header(kind: Kind, place: &Place) -> EventHeader {
    EventHeader {
        timestamp_ns: now_ns(),
        netns_cookie: place.netns_cookie,
        netns_inum: place.netns_inum,
        ifindex: place.ifindex,
        sequence: counted(Counter::Emitted) as u32,
        // SAFETY: the helper only returns a number.
        cpu: unsafe { bpf_get_smp_processor_id() } as u16,
        kind: kind as u8,
        reserved: 0,
    }
}

/// Writes a record that is small enough for the stack.
#[inline(always)]
pub fn emit<T>(record: &T) {
    output(core::ptr::from_ref(record).cast(), size_of::<T>() as u64);
}

/// Userspace empties the ring by the clock and is not woken for a record: waking is what makes tracers slow. Only
/// when the ring fills up faster than that is it called.
#[inline(always)]
fn output(record: *const c_void, len: u64) {
    let mut flags = u64::from(BPF_RB_NO_WAKEUP);
    if counted(Counter::Emitted).is_multiple_of(FILL_CHECK_INTERVAL)
        && EVENTS.query(u64::from(BPF_RB_AVAIL_DATA)) > u64::from(config!(wakeup_bytes))
    {
        flags = u64::from(BPF_RB_FORCE_WAKEUP);
    }
    // SAFETY: the verifier checks that `len` bytes can be read at `record`.
    let result = unsafe {
        bpf_ringbuf_output(
            (&raw const EVENTS).cast_mut().cast(),
            record.cast_mut(),
            len,
            flags,
        )
    };
    count(if result == 0 {
        Counter::Emitted
    } else {
        Counter::RingFull
    });
}
