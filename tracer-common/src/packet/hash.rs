//! A hash of the flow that a packet belongs to.

use super::{Layer, Packet};

impl Packet {
    /// A hash of the flow's five-tuple, the same for both directions: protocol, the two ends as an unordered pair,
    /// and the identifier of an ICMP echo. `seed` makes it unpredictable. 0 where there is no IP header.
    ///
    /// Flows may share a hash: it may decide what is shown, never what a packet belongs to.
    #[inline(always)]
    pub fn flow_hash(&self, seed: u64) -> u64 {
        let Some(layer) = self.flow() else {
            return 0;
        };
        let ends = end_hash(&layer.src, layer.src_port, seed).wrapping_add(end_hash(
            &layer.dst,
            layer.dst_port,
            seed,
        ));
        let echo = flow_echo_id(layer);
        mix(ends ^ u64::from(layer.protocol) << 16 ^ u64::from(echo))
    }
}

/// The identifier by which the flows of ICMP echoes are told apart, 0 in any other packet.
#[inline(always)]
pub const fn flow_echo_id(layer: &Layer) -> u16 {
    if layer.is_echo_request() || layer.is_echo_reply() {
        layer.echo_id()
    } else {
        0
    }
}

/// [`Packet::flow_hash`] of a flow of which nothing else is known.
#[inline(always)]
pub fn flow_hash(
    src: (&[u8; 16], u16),
    dst: (&[u8; 16], u16),
    protocol: u8,
    echo_id: u16,
    seed: u64,
) -> u64 {
    let ends = end_hash(src.0, src.1, seed).wrapping_add(end_hash(dst.0, dst.1, seed));
    mix(ends ^ u64::from(protocol) << 16 ^ u64::from(echo_id))
}

#[inline(always)]
fn end_hash(address: &[u8; 16], port: u16, seed: u64) -> u64 {
    let [high, low] = halves(address);
    mix(mix(mix(seed ^ u64::from(port)) ^ high) ^ low)
}

/// An address as two words, since BPF has none of 128 bits.
#[inline(always)]
pub fn halves(address: &[u8; 16]) -> [u64; 2] {
    let (high, low) = address.split_at(8);
    [high, low].map(|half| {
        half.first_chunk()
            .map_or(0, |half| u64::from_ne_bytes(*half))
    })
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit changes half of the output bits.
#[inline(always)]
const fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
