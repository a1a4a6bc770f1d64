//! The bounded source of header bytes.

/// A bounded run of captured header bytes.
pub trait Reader {
    /// How many bytes there are.
    fn len(&self) -> u32;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The `N` bytes from `offset` on, or `None` unless all of them were captured.
    fn bytes<const N: usize>(&self, offset: u32) -> Option<[u8; N]>;
}

impl Reader for &[u8] {
    fn len(&self) -> u32 {
        u32::try_from((**self).len()).unwrap_or(u32::MAX)
    }

    fn bytes<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        let start = usize::try_from(offset).ok()?;
        self.get(start..)?.first_chunk().copied()
    }
}

/// The most bytes of a header that are read at once (an IPv6 header).
const READ_MAX: usize = 40;

/// Reads a scratch buffer in the form that the verifier follows: the offset is masked to one byte, so every
/// access lies within 256 bytes plus the largest header whatever the verifier knows of the offset.
#[derive(Debug)]
pub struct MaskedReader {
    scratch: *const u8,
    len: u32,
}

impl MaskedReader {
    /// The most bytes that are read; a longer capture is cut here.
    pub const LEN_MAX: u32 = 256;

    /// How large the buffer must be: masking confines only the offset, and a header follows it.
    pub const SCRATCH_BYTES: usize = 512;

    /// Reads the first `len` bytes of a scratch buffer, of which at most [`Self::LEN_MAX`] count.
    ///
    /// # Safety
    ///
    /// `scratch` must point to [`Self::SCRATCH_BYTES`] initialised bytes that nothing writes to while this reader lives.
    pub const unsafe fn new(scratch: *const u8, len: u32) -> Self {
        let len = if len > Self::LEN_MAX {
            Self::LEN_MAX
        } else {
            len
        };
        Self { scratch, len }
    }
}

impl Reader for MaskedReader {
    fn len(&self) -> u32 {
        self.len
    }

    #[inline(always)]
    fn bytes<const N: usize>(&self, offset: u32) -> Option<[u8; N]> {
        const {
            assert!(N <= READ_MAX && 255 + READ_MAX <= Self::SCRATCH_BYTES);
        }
        if offset >= Self::LEN_MAX || offset + N as u32 > self.len {
            return None;
        }
        // SAFETY: the masked offset is at most 255 and N at most READ_MAX, which the assertion above keeps inside
        // the SCRATCH_BYTES bytes that the caller of `new` promised; `[u8; N]` needs no alignment.
        Some(unsafe {
            self.scratch
                .add((offset & 0xff) as usize)
                .cast::<[u8; N]>()
                .read()
        })
    }
}
