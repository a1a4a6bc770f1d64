//! The bounded sources of header bytes.

use crate::event::HEADER_BYTES_MAX;

/// A bounded run of captured header bytes.
pub trait Reader {
    /// The `N` bytes from `offset` on, or `None` unless all of them were captured.
    fn bytes<const N: usize>(&self, offset: usize) -> Option<[u8; N]>;
}

/// The first [`HEADER_BYTES_MAX`] bytes: a longer capture parses as the kernel half parsed it.
impl Reader for &[u8] {
    fn bytes<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let headers = self.get(..HEADER_BYTES_MAX).unwrap_or(self);
        headers.get(offset..)?.first_chunk().copied()
    }
}

/// The most bytes that are read at once (an IPv6 header).
const READ_MAX: usize = 40;

/// The size of [`Scratch::bytes`]: a masked offset and the largest header behind it, and as much room again.
pub const SCRATCH_BYTES: usize = 2 * HEADER_BYTES_MAX;

/// The kernel half's copy of a packet's headers, in a per-CPU map.
///
/// It is read in the form that the verifier follows: the length comes from the map with every check, so that all
/// lengths are one state, and the offset is masked, so that a read lies within the map whatever is known of it.
#[derive(Clone, Debug)]
#[repr(C, align(8))]
pub struct Scratch {
    /// The captured bytes; what lies behind them is of no meaning.
    pub bytes: [u8; SCRATCH_BYTES],
    /// How many bytes were captured, at most [`HEADER_BYTES_MAX`]; what lies beyond that is not read.
    pub len: u64,
}

impl Scratch {
    /// Nothing captured.
    pub const EMPTY: Self = Self {
        bytes: [0; SCRATCH_BYTES],
        len: 0,
    };
}

impl Reader for Scratch {
    #[inline(always)]
    fn bytes<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        const {
            assert!(N <= READ_MAX && HEADER_BYTES_MAX == 0x100);
            assert!(0xff + READ_MAX <= SCRATCH_BYTES);
        }
        if offset > 0xff || (offset + N) as u64 > self.len {
            return None;
        }
        // The compiler knows that the mask changes nothing and would leave it out; the verifier does not know.
        let masked = core::hint::black_box(offset) & 0xff;
        self.bytes.get(masked..)?.first_chunk().copied()
    }
}
