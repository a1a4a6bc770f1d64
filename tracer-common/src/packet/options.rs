//! The TCP options that tell copies of a packet apart. For the host only: the kernel half captures them as bytes.

use super::{Layer, Reader};

/// What is read of the options of one TCP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// The maximum segment size in bytes (RFC 9293).
    pub mss: Option<u16>,
    /// The sender's timestamp, TSval (RFC 7323).
    pub timestamp: Option<u32>,
    /// The timestamp that is echoed, TSecr (RFC 7323).
    pub timestamp_echo: Option<u32>,
    /// The window scale shift (RFC 7323).
    pub window_scale: Option<u8>,
}

/// Reads the options behind the TCP header of `layer`; those beyond the captured bytes are absent.
pub fn tcp_options(bytes: &[u8], layer: &Layer) -> TcpOptions {
    let mut options = TcpOptions::default();
    if !layer.is_tcp() {
        return options;
    }
    let start = usize::from(layer.transport_offset);
    let Some([data_offset]) = (&bytes).bytes::<1>(start + 12) else {
        return options;
    };
    let end = bytes.len().min(start + usize::from(data_offset >> 4) * 4);
    let mut rest = bytes.get(start + 20..end).unwrap_or_default();
    loop {
        rest = match rest {
            [] | [0, ..] => break,
            [1, rest @ ..] => rest,
            [kind, len, ..] => {
                let Some((option, rest)) = rest.split_at_checked(usize::from(*len).max(2)) else {
                    break;
                };
                match (kind, &option[2..]) {
                    (2, &[a, b]) => options.mss = Some(u16::from_be_bytes([a, b])),
                    (3, &[shift]) => options.window_scale = Some(shift),
                    (8, values) if values.len() == 8 => {
                        options.timestamp = values.first_chunk().copied().map(u32::from_be_bytes);
                        options.timestamp_echo =
                            values.last_chunk().copied().map(u32::from_be_bytes);
                    }
                    _ => {}
                }
                rest
            }
            [_] => break,
        };
    }
    options
}
