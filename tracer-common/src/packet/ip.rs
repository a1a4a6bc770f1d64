//! IPv4 with options and IPv6 with extension headers.

use network_types::ip::{IpProto, Ipv4Hdr, Ipv6Hdr};

use super::{
    FLAG_DONT_FRAGMENT, FLAG_FIRST_FRAGMENT, FLAG_LATER_FRAGMENT, Layer, Reader, Status, transport,
};

/// The most IPv6 extension headers that are followed.
const EXTENSIONS_MAX: usize = 4;

const HOP_BY_HOP: u8 = IpProto::HopOpt as u8;
const ROUTING: u8 = IpProto::Ipv6Route as u8;
const DESTINATION: u8 = IpProto::Ipv6Opts as u8;
const FRAGMENT: u8 = IpProto::Ipv6Frag as u8;
const AUTHENTICATION: u8 = IpProto::Ah as u8;

/// Reads the IP header at `at` and the transport header behind it. `layer.version` stays 0 unless the IP header
/// was read. `version` is what the link header announced, or 0; `frame_len` stands in for an IP length of zero.
#[inline(never)]
pub(super) fn parse<R: Reader>(
    reader: &R,
    at: u32,
    version: u8,
    frame_len: u32,
    layer: &mut Layer,
) -> Status {
    *layer = Layer::EMPTY;
    let Some([first]) = reader.bytes::<1>(at) else {
        return Status::Truncated;
    };
    let found = first >> 4;
    if version != 0 && version != found {
        return Status::Malformed;
    }
    layer.offset = at as u16;
    let status = match found {
        4 => v4(reader, at, frame_len, layer),
        6 => v6(reader, at, frame_len, layer),
        _ => Status::Malformed,
    };
    if !matches!(status, Status::Complete) || layer.has(FLAG_LATER_FRAGMENT) {
        return status;
    }
    transport::parse(reader, layer)
}

#[inline(always)]
fn v4<R: Reader>(reader: &R, at: u32, frame_len: u32, layer: &mut Layer) -> Status {
    let Some(header) = reader.bytes::<{ Ipv4Hdr::LEN }>(at) else {
        return Status::Truncated;
    };
    let header_len = u32::from(header[0] & 0x0f) * 4;
    if header_len < Ipv4Hdr::LEN as u32 {
        return Status::Malformed;
    }
    let total = u32::from(u16::from_be_bytes([header[2], header[3]]));
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    layer.version = 4;
    layer.tos = header[1];
    layer.packet_len = if total == 0 {
        frame_len.saturating_sub(at)
    } else {
        total
    };
    layer.ip_id = u32::from(u16::from_be_bytes([header[4], header[5]]));
    if fragment & 0x4000 != 0 {
        layer.flags |= FLAG_DONT_FRAGMENT;
    }
    layer.flags |= fragment_flags(fragment & 0x1fff, fragment & 0x2000 != 0);
    layer.ttl = header[8];
    layer.protocol = header[9];
    layer.src[..4].copy_from_slice(&header[12..16]);
    layer.dst[..4].copy_from_slice(&header[16..20]);
    layer.transport_offset = (at + header_len) as u16;
    Status::Complete
}

#[inline(always)]
fn v6<R: Reader>(reader: &R, at: u32, frame_len: u32, layer: &mut Layer) -> Status {
    let Some(header) = reader.bytes::<{ Ipv6Hdr::LEN }>(at) else {
        return Status::Truncated;
    };
    let payload = u32::from(u16::from_be_bytes([header[4], header[5]]));
    let next = header[6];
    layer.version = 6;
    layer.tos = (header[0] << 4) | (header[1] >> 4);
    layer.packet_len = if payload == 0 && next != IpProto::Ipv6NoNxt as u8 {
        frame_len.saturating_sub(at)
    } else {
        Ipv6Hdr::LEN as u32 + payload
    };
    // Routers never fragment IPv6.
    layer.flags |= FLAG_DONT_FRAGMENT;
    layer.ttl = header[7];
    layer.src.copy_from_slice(&header[8..24]);
    layer.dst.copy_from_slice(&header[24..40]);
    extensions(reader, at + Ipv6Hdr::LEN as u32, next, layer)
}

/// Follows the extension headers from `at` on, the first of which is `next`.
#[inline(always)]
fn extensions<R: Reader>(reader: &R, mut at: u32, mut next: u8, layer: &mut Layer) -> Status {
    let mut status = Status::TooDeep;
    for _ in 0..=EXTENSIONS_MAX {
        if !matches!(
            next,
            HOP_BY_HOP | ROUTING | DESTINATION | FRAGMENT | AUTHENTICATION
        ) {
            status = Status::Complete;
            break;
        }
        let Some(header) = reader.bytes::<8>(at) else {
            status = Status::Truncated;
            break;
        };
        let len = u32::from(header[1]);
        at += match next {
            FRAGMENT => 8,
            // RFC 4302 counts 32-bit words less two, RFC 8200 64-bit words less one.
            AUTHENTICATION => (len + 2) * 4,
            _ => (len + 1) * 8,
        };
        if next == FRAGMENT {
            let fragment = u16::from_be_bytes([header[2], header[3]]);
            layer.flags |= fragment_flags(fragment >> 3, fragment & 1 != 0);
            layer.ip_id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
        }
        next = header[0];
        if layer.has(FLAG_LATER_FRAGMENT) {
            status = Status::Complete;
            break;
        }
    }
    layer.protocol = next;
    layer.transport_offset = at as u16;
    status
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
