//! The loss ledger: what the kernel half could not hand over, counted per CPU in one array map. Userspace sums
//! the CPUs. `EMITTED` counts records that reached the ring, so that emitted = delivered holds exactly, and
//! emitted + `RING_FULL` is all that the hooks wanted to say.

/// Indices of the ledger map, one counter each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counter {
    /// Records submitted to the ring.
    Emitted = 0,
    /// Records lost because the ring was full.
    RingFull = 1,
    /// Packets whose headers could not be read or did not parse far enough to be matched with the filter.
    Unreadable = 2,
    /// Packets held back by their flow's budget.
    RateLimited = 3,
    /// Entries of kernel tables that were evicted or could not be inserted.
    TableFull = 4,
}

/// The number of counters, which is the size of the ledger map.
pub const COUNTERS: u32 = 5;
