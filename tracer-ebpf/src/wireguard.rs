//! Follows a packet through a WireGuard device, which hides everything that a flow is known by.
//!
//! WireGuard encrypts and decrypts in place: the skb that a WireGuard device is handed leaves as the datagram, and the skb
//! of a datagram that came in is the one that the device hands on (`wg_xmit()` to `send4()` and `wg_receive()` to
//! `napi_gro_receive()` in drivers/net/wireguard, Linux 5.10 to 7.3). In between lie queues, so it may be on another CPU
//! and much later: while there is no session, a packet waits for one. Not the same skb are the segments into which the
//! device cuts what is too large for it (`skb_gso_segment()`); their datagrams are not followed.
//!
//! - **Out:** a packet of a selected flow that is handed to a WireGuard device is remembered with its headers, by its skb
//!   ([`SEALED`]). The datagram that has this skb is reported with them, at every hop, until it is seen decrypted or dies.
//! - **In:** of a datagram to the port of a WireGuard device nobody knows yet whose it is. It is remembered as the record that
//!   it would be ([`DATAGRAMS`]), and reported, with the time and place at which it came in, once the device hands on a
//!   packet of a selected flow in its skb.
//!
//! An skb that is freed is soon another packet's, a datagram's that comes in among them. So beside the skb the datagram must
//! be as long as the packet makes it, must be seen to leave first, and has the same receiver and counter at every hop from
//! then on. A packet of another flow that is handed to the device in such an skb ends what was remembered of it.

use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use tracer_common::{
    event::{DATAGRAM_BYTES_MAX, HEADER_BYTES_MAX, Kind, PacketRecord},
    ledger::Counter,
    packet::{Layer, Packet, Tunnel},
};

use crate::{
    emit::{Scratch, now_ns},
    maps::{
        DATAGRAMS, SEALED, SEALED_COUNT, SEALED_MAX, SEALED_SINCE, WIREGUARD_DEVICES, count,
        increment,
    },
    skb::{Device, Place},
};

/// The first bytes of a message that carries a packet: `MESSAGE_DATA` (drivers/net/wireguard/messages.h), little endian.
const MESSAGE_DATA: [u8; 4] = [4, 0, 0, 0];
/// The header of such a message: the type, whose session it is, and a counter that no two messages of a session share
/// (`struct message_data`, there).
const MESSAGE_HEADER_BYTES: usize = 16;
/// What such a message adds to a packet: its own header, and the tag that authenticates it.
const OVERHEAD: u32 = MESSAGE_HEADER_BYTES as u32 + 16;
/// A packet is filled up to a multiple of this, but not beyond the MTU (`MESSAGE_PADDING_MULTIPLE`).
const PADDING: u32 = 16;
/// How long a packet may wait for a session: `REKEY_ATTEMPT_TIME`, and as long again until WireGuard gives up what waits.
const SEALED_FOR_NS: u64 = 180_000_000_000;
/// How long a datagram may take to be decrypted.
const DATAGRAM_FOR_NS: u64 = 10_000_000_000;
/// What is forgotten for want of room within this time is counted, unless its datagram was seen.
const CROWDED_NS: u64 = 5_000_000_000;

/// A packet that was handed to a WireGuard device.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Sealed {
    since_ns: u64,
    /// Its length: the outermost IP packet's.
    packet_len: u32,
    /// How many of `headers` are headers.
    header_len: u32,
    /// Where in [`SEALED_SINCE`] it is noted.
    slot: u32,
    reserved: u32,
    /// The header of its message, 0 until that is seen to leave.
    message: [u64; 2],
    /// From the IP header on.
    headers: [u8; HEADER_BYTES_MAX],
}

/// A datagram that came in: its record, and the bytes that follow it.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Datagram {
    record: PacketRecord,
    bytes: [u8; DATAGRAM_BYTES_MAX],
}

/// Whether this is a WireGuard device.
#[inline(always)]
pub fn is_device(dev: Device, place: &Place) -> bool {
    // SAFETY: only the presence of the key is used.
    dev.has_no_link_header() && unsafe { WIREGUARD_DEVICES.get(place.key()) }.is_some()
}

/// Whether what was parsed is a datagram from or to the port of a WireGuard device.
#[inline(always)]
pub fn is_datagram(scratch: &Scratch) -> bool {
    innermost(&scratch.packet).is_some_and(|layer| matches!(layer.tunnel, Tunnel::Wireguard))
}

/// [`Packet::inner`] for Linux 5.10, which does not see that the number of layers is not 0 where the compiler subtracts the
/// one together with the place of a field.
#[inline(always)]
fn innermost(packet: &Packet) -> Option<&Layer> {
    let index = core::hint::black_box(usize::from(packet.count).wrapping_sub(1));
    packet.layers.get(index)
}

/// What is to be done with a datagram.
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Ruling {
    /// It carries no packet, or that of a flow that is not selected.
    Ignore = 0,
    /// Its packet is known, and its headers follow those of the datagram in the scratch space.
    Report = 1,
    /// Its packet is not known yet.
    Remember = 2,
}

/// Says what is to be done with the datagram in the scratch space, and puts the headers of its packet there.
///
/// Not inlined, for the stack of its callers and so that the verifier walks it apart.
#[inline(never)]
pub fn rule(scratch: &mut Scratch, skb: u64, kind: Kind) -> Ruling {
    let Some(layer) = innermost(&scratch.packet) else {
        return Ruling::Ignore;
    };
    // The UDP header is complete, and a message's own is sixteen bytes.
    let len = u32::from(layer.transport_offset) + 8;
    let sealed_len = layer.payload_len.wrapping_sub(OVERHEAD);
    let header_len = len + MESSAGE_DATA.len() as u32;
    if header_len > DATAGRAM_BYTES_MAX as u32
        || u64::from(len) + MESSAGE_HEADER_BYTES as u64 > scratch.captured.len
        || layer.payload_len <= OVERHEAD
    {
        return Ruling::Ignore;
    }
    let at = core::hint::black_box(len as usize) & 0xff;
    let rest = scratch.captured.bytes.get(at..);
    let Some(message) = rest.and_then(|rest| rest.first_chunk::<MESSAGE_HEADER_BYTES>()) else {
        return Ruling::Ignore;
    };
    if message.first_chunk() != Some(&MESSAGE_DATA) {
        return Ruling::Ignore;
    }
    let message = halves(message);
    // The other half knows the message by these bytes as well.
    scratch.header_len = header_len;
    let Some(sealed) = SEALED.get_ptr_mut(skb) else {
        return Ruling::of_unknown(kind);
    };
    // SAFETY: the value stays readable while this program runs, and nobody but us writes the slot of this skb.
    let sealed = unsafe { &mut *sealed };
    let is_known = sealed.message != [0; 2];
    if is_known && sealed.message != message
        || !is_known && matches!(kind, Kind::Receive)
        || !fits(sealed_len, sealed.packet_len)
        || now_ns().wrapping_sub(sealed.since_ns) > SEALED_FOR_NS
    {
        return Ruling::of_unknown(kind);
    }
    sealed.message = message;
    if let Some(since) = SEALED_SINCE.get_ptr_mut(sealed.slot) {
        // SAFETY: as above; it is a number, which at worst another CPU replaces at the same time.
        unsafe { since.write(0) };
    }
    if !append(scratch, sealed.headers.as_ptr(), sealed.header_len) {
        return Ruling::Ignore;
    }
    match kind {
        Kind::Drop => {
            let _ = SEALED.remove(skb);
        }
        // What was remembered of this skb is another datagram.
        Kind::Receive => {
            let _ = DATAGRAMS.remove(skb);
        }
        _ => {}
    }
    Ruling::Report
}

/// The header of a message as two numbers, in whatever order.
#[inline(always)]
fn halves(header: &[u8; MESSAGE_HEADER_BYTES]) -> [u64; 2] {
    let half = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&header[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    [half(0), half(8)]
}

impl Ruling {
    #[inline(always)]
    fn of_unknown(kind: Kind) -> Self {
        if matches!(kind, Kind::Receive) {
            Self::Remember
        } else {
            Self::Ignore
        }
    }
}

/// Whether a packet of this length, filled up, is as long as what was encrypted.
#[inline(always)]
fn fits(sealed_len: u32, packet_len: u32) -> bool {
    sealed_len.wrapping_sub(packet_len) < PADDING
}

/// Puts `len` bytes from a map behind the datagram's headers in the scratch space.
#[inline(always)]
fn append(scratch: &mut Scratch, from: *const u8, len: u32) -> bool {
    let len = if len > HEADER_BYTES_MAX as u32 {
        HEADER_BYTES_MAX as u32
    } else {
        len
    };
    // The compiler knows that the mask changes nothing and would leave it out; the verifier does not know.
    let at = core::hint::black_box(scratch.header_len as usize) & 0xff;
    scratch.sealed_len = len;
    // SAFETY: at most HEADER_BYTES_MAX bytes are written behind at most 0xff in a buffer of twice HEADER_BYTES_MAX.
    unsafe {
        bpf_probe_read_kernel(
            scratch.captured.bytes.as_mut_ptr().byte_add(at).cast(),
            len,
            from.cast(),
        ) == 0
    }
}

/// Remembers the datagram whose record is in the scratch space.
#[inline(always)]
#[expect(
    clippy::needless_borrows_for_generic_args,
    reason = "by value it would lie on the stack, which has no room for it"
)]
pub fn remember(scratch: &mut Scratch, skb: u64) {
    let datagram: *const Datagram = scratch.record::<PacketRecord>().cast();
    // SAFETY: the record ends where the captured bytes begin, of which there is room for more.
    if DATAGRAMS.insert(skb, unsafe { &*datagram }, 0).is_err() {
        count(Counter::TableFull);
    }
}

/// Takes note of the packet in the scratch space, which is handed to a WireGuard device and was reported.
#[inline(never)]
#[expect(
    clippy::needless_borrows_for_generic_args,
    reason = "by value it would lie on the stack, which has no room for it"
)]
pub fn seal(scratch: &mut Scratch, skb: u64) {
    let Some(packet_len) = scratch.packet.outer().map(|layer| layer.packet_len) else {
        return;
    };
    let since_ns = now_ns();
    let slot = note(since_ns);
    let sealed = &mut scratch.sealed;
    sealed.since_ns = since_ns;
    sealed.packet_len = packet_len;
    sealed.header_len = scratch.header_len;
    sealed.slot = slot;
    sealed.reserved = 0;
    sealed.message = [0; 2];
    copy(&mut sealed.headers, scratch.captured.bytes.as_ptr());
    if SEALED.insert(skb, &scratch.sealed, 0).is_err() {
        count(Counter::TableFull);
    }
}

/// Forgets what was remembered of an skb: it is another packet's now.
#[inline(always)]
pub fn forget(skb: u64) {
    // Mostly there is nothing.
    let _ = SEALED.remove(skb);
}

/// Notes when a packet was remembered, in a ring as large as the table, and counts the one whose place it takes if that is
/// still needed. Two CPUs that do so at once may take one slot: then one packet is not counted, should it be evicted.
#[inline(always)]
fn note(since_ns: u64) -> u32 {
    let Some(counter) = SEALED_COUNT.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: the pointer is that of a map's value.
    let slot = unsafe { counter.read_volatile() } as u32 % SEALED_MAX;
    increment(counter);
    if let Some(since) = SEALED_SINCE.get_ptr_mut(slot) {
        // SAFETY: as above.
        let before = unsafe { since.read() };
        if before != 0 && since_ns.wrapping_sub(before) < CROWDED_NS {
            count(Counter::TableFull);
        }
        // SAFETY: as above.
        unsafe { since.write(since_ns) };
    }
    slot
}

/// Reports the datagram in which the packet in the scratch space came in, if it is remembered; the packet is in the scratch
/// space afterwards as it was.
#[inline(never)]
pub fn unseal(scratch: &mut Scratch, skb: u64) {
    let _ = SEALED.remove(skb);
    let Some(known) = DATAGRAMS.get_ptr(skb) else {
        return;
    };
    // SAFETY: the value stays readable while this program runs.
    let datagram = unsafe { &*known };
    let Some(packet_len) = scratch.packet.outer().map(|layer| layer.packet_len) else {
        return;
    };
    let header_len = scratch.header_len;
    let record = &datagram.record;
    // The datagram's length as the record has it, less the headers that the record keeps of it.
    let sealed_len = record
        .skb
        .len_bytes
        .wrapping_sub(u32::from(record.skb.header_len))
        .wrapping_sub(OVERHEAD - MESSAGE_DATA.len() as u32);
    if fits(sealed_len, packet_len)
        && now_ns().wrapping_sub(record.header.timestamp_ns) <= DATAGRAM_FOR_NS
    {
        copy(&mut scratch.sealed.headers, scratch.captured.bytes.as_ptr());
        let whole: *mut Datagram = scratch.record::<PacketRecord>().cast();
        // SAFETY: as in `remember`, and the source is the whole of a map's value.
        let read = unsafe {
            bpf_probe_read_kernel(whole.cast(), size_of::<Datagram>() as u32, known.cast())
        };
        scratch.header_len = u32::from(record.skb.header_len);
        let headers = scratch.sealed.headers.as_ptr();
        if read == 0 && append(scratch, headers, header_len) {
            // SAFETY: the record lies in the scratch space, which is ours.
            unsafe {
                (*scratch.record::<PacketRecord>()).skb.sealed_len = scratch.sealed_len as u16;
            }
            scratch.emit::<PacketRecord>(scratch.following());
        }
        scratch.header_len = header_len;
        scratch.sealed_len = 0;
        copy_back(scratch);
    }
    let _ = DATAGRAMS.remove(skb);
}

/// Puts the packet's bytes back where they were.
#[inline(always)]
fn copy_back(scratch: &mut Scratch) {
    let headers = scratch.sealed.headers.as_ptr();
    // SAFETY: both lie in the scratch space, apart from each other.
    unsafe {
        bpf_probe_read_kernel(
            scratch.captured.bytes.as_mut_ptr().cast(),
            HEADER_BYTES_MAX as u32,
            headers.cast(),
        );
    }
}

/// Copies headers within the scratch space by one call, where the compiler would write a loop.
#[inline(always)]
fn copy(to: &mut [u8; HEADER_BYTES_MAX], from: *const u8) {
    // SAFETY: both lie in the scratch space, apart from each other, and `from` has room for more than that.
    unsafe {
        bpf_probe_read_kernel(to.as_mut_ptr().cast(), HEADER_BYTES_MAX as u32, from.cast());
    }
}
