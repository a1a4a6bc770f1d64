//! IPv4 with options and IPv6 with extension headers.

use network_types::ip::{IpProto, Ipv4Hdr, Ipv6Hdr};

use super::{
    FLAG_DONT_FRAGMENT, FLAG_FIRST_FRAGMENT, FLAG_LATER_FRAGMENT, Layer, Next, Reader, Status,
    Tunnel, reload, transport,
};

/// The most IPv6 extension headers that are followed.
const EXTENSIONS_MAX: usize = 4;

const HOP_BY_HOP: u8 = IpProto::HopOpt as u8;
const ROUTING: u8 = IpProto::Ipv6Route as u8;
const DESTINATION: u8 = IpProto::Ipv6Opts as u8;
const FRAGMENT: u8 = IpProto::Ipv6Frag as u8;
const AUTHENTICATION: u8 = IpProto::Ah as u8;

/// Reads the IP header at `offset` and the transport header behind it. `layer.version` is 0 unless the IP header was
/// read. `next` is the IP header that was announced there; `frame_len` stands in for an IP length of zero.
///
/// A subprogram, so that its code is there once. It has five arguments, which is all that there are: the verifier
/// takes a call to read all five registers, and would tell calls apart by what is left in an unused one.
#[inline(never)]
pub(super) fn parse<R: Reader>(
    reader: &R,
    frame_len: u32,
    offset: u16,
    next: Next,
    layer: &mut Layer,
) -> Status {
    let at = usize::from(offset);
    begin(layer, offset);
    let Some([first]) = reader.bytes::<1>(at) else {
        return Status::Truncated;
    };
    let found = first >> 4;
    if next != Next::Ip && next as u8 != found {
        return Status::Malformed;
    }
    let status = match found {
        4 => v4(reader, at, frame_len, layer),
        6 => v6(reader, at, frame_len, layer),
        _ => Status::Malformed,
    };
    let (reader, layer) = reload(reader, layer);
    if !matches!(status, Status::Complete) || layer.has(FLAG_LATER_FRAGMENT) {
        return status;
    }
    transport::parse(reader, layer)
}

/// Clears what not every IP header sets.
#[inline(always)]
fn begin(layer: &mut Layer, offset: u16) {
    // LLVM would gather constant zeros into a call that clears byte by byte.
    let zero = core::hint::black_box(0_u32);
    layer.offset = offset;
    layer.version = 0;
    layer.payload_len = zero;
    layer.seq = zero;
    layer.ack = zero;
    layer.icmp_rest = zero;
    layer.vni = zero;
    layer.src_port = zero as u16;
    layer.dst_port = zero as u16;
    layer.window = zero as u16;
    layer.tcp_flags = zero as u8;
    layer.icmp_type = zero as u8;
    layer.icmp_code = zero as u8;
    layer.tunnel = Tunnel::None;
}

#[inline(always)]
fn v4<R: Reader>(reader: &R, at: usize, frame_len: u32, layer: &mut Layer) -> Status {
    let Some(header) = reader.bytes::<{ Ipv4Hdr::LEN }>(at) else {
        return Status::Truncated;
    };
    let header_len = usize::from(header[0] & 0x0f) * 4;
    if header_len < Ipv4Hdr::LEN {
        return Status::Malformed;
    }
    let total = u32::from(u16::from_be_bytes([header[2], header[3]]));
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    layer.version = 4;
    layer.tos = header[1];
    layer.packet_len = if total == 0 {
        frame_len.saturating_sub(at as u32)
    } else {
        total
    };
    layer.ip_id = u32::from(u16::from_be_bytes([header[4], header[5]]));
    layer.flags = fragment_flags(fragment & 0x1fff, fragment & 0x2000 != 0);
    if fragment & 0x4000 != 0 {
        layer.flags |= FLAG_DONT_FRAGMENT;
    }
    layer.ttl = header[8];
    layer.protocol = header[9];
    layer.src = widen([header[12], header[13], header[14], header[15]]);
    layer.dst = widen([header[16], header[17], header[18], header[19]]);
    layer.transport_offset = (at + header_len) as u16;
    Status::Complete
}

#[inline(always)]
fn v6<R: Reader>(reader: &R, at: usize, frame_len: u32, layer: &mut Layer) -> Status {
    let Some(header) = reader.bytes::<{ Ipv6Hdr::LEN }>(at) else {
        return Status::Truncated;
    };
    layer.src.copy_from_slice(&header[8..24]);
    layer.dst.copy_from_slice(&header[24..40]);
    let payload = u32::from(u16::from_be_bytes([header[4], header[5]]));
    let next = header[6];
    layer.version = 6;
    layer.tos = (header[0] << 4) | (header[1] >> 4);
    layer.packet_len = if payload == 0 && next != IpProto::Ipv6NoNxt as u8 {
        frame_len.saturating_sub(at as u32)
    } else {
        Ipv6Hdr::LEN as u32 + payload
    };
    // Routers never fragment IPv6.
    layer.flags = FLAG_DONT_FRAGMENT;
    layer.ip_id = 0;
    layer.ttl = header[7];
    layer.protocol = next;
    layer.transport_offset = (at + Ipv6Hdr::LEN) as u16;
    extensions(reader, layer)
}

/// Follows the extension headers, from `layer.transport_offset` on, the first of which is `layer.protocol`.
#[inline(always)]
fn extensions<R: Reader>(reader: &R, layer: &mut Layer) -> Status {
    for _ in 0..EXTENSIONS_MAX {
        let (reader, layer) = reload(reader, &mut *layer);
        let at = usize::from(layer.transport_offset);
        let kind = layer.protocol;
        if !has_extension(layer) {
            return Status::Complete;
        }
        let Some(header) = reader.bytes::<8>(at) else {
            return Status::Truncated;
        };
        let len = usize::from(header[1]);
        let len = match kind {
            FRAGMENT => 8,
            // RFC 4302 counts 32-bit words less two, RFC 8200 64-bit words less one.
            AUTHENTICATION => (len + 2) * 4,
            _ => (len + 1) * 8,
        };
        if kind == FRAGMENT {
            let fragment = u16::from_be_bytes([header[2], header[3]]);
            layer.flags |= fragment_flags(fragment >> 3, fragment & 1 != 0);
            layer.ip_id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        }
        layer.protocol = header[0];
        layer.transport_offset = (at + len) as u16;
    }
    if has_extension(layer) {
        Status::TooDeep
    } else {
        Status::Complete
    }
}

/// Whether an extension header is next. In a later fragment nothing is: what follows are bytes of the payload.
#[inline(always)]
fn has_extension(layer: &Layer) -> bool {
    !layer.has(FLAG_LATER_FRAGMENT)
        && matches!(
            layer.protocol,
            HOP_BY_HOP | ROUTING | DESTINATION | FRAGMENT | AUTHENTICATION
        )
}

/// An IPv4 address in the form of [`Layer::src`].
#[inline(always)]
fn widen(address: [u8; 4]) -> [u8; 16] {
    // See `begin` for why this is no constant.
    let zero = core::hint::black_box(0_u32).to_ne_bytes();
    let mut wide = [0; 16];
    wide.copy_from_slice([address, zero, zero, zero].as_flattened());
    wide
}

/// What a fragment offset and the more-fragments bit mean.
#[inline(always)]
fn fragment_flags(offset: u16, more: bool) -> u8 {
    if offset != 0 {
        FLAG_LATER_FRAGMENT
    } else if more {
        FLAG_FIRST_FRAGMENT
    } else {
        0
    }
}
