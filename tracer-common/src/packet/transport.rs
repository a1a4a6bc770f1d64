//! The TCP, UDP and ICMP headers.

use network_types::{icmp::Icmpv4Hdr, ip::IpProto, tcp::TcpHdr, udp::UdpHdr};

use super::{FLAG_PORTS, FLAG_TRANSPORT, Layer, Reader, Status};

/// The length of an ICMP and of an ICMPv6 header.
pub(super) const ICMP_LEN: usize = Icmpv4Hdr::LEN;
/// The length of a UDP header.
pub(super) const UDP_LEN: u32 = UdpHdr::LEN as u32;
const TCP_LEN: u32 = TcpHdr::LEN as u32;

const TCP: u8 = IpProto::Tcp as u8;
const UDP: u8 = IpProto::Udp as u8;
const ICMP: u8 = IpProto::Icmp as u8;
const ICMPV6: u8 = IpProto::Ipv6Icmp as u8;

/// Reads the transport header of a layer whose IP header was read. A protocol without a parser is complete.
#[inline(always)]
pub(super) fn parse<R: Reader>(reader: &R, layer: &mut Layer) -> Status {
    let at = usize::from(layer.transport_offset);
    let header_len = u32::from(layer.transport_offset - layer.offset);
    // What follows the IP packet in the frame (Ethernet padding) is no transport header.
    let Some(available) = layer.packet_len.checked_sub(header_len) else {
        return Status::Malformed;
    };
    match (layer.protocol, layer.version) {
        (TCP, _) => tcp(reader, at, available, layer),
        (UDP, _) => udp(reader, at, available, layer),
        (ICMP, 4) | (ICMPV6, 6) => icmp(reader, at, available, layer),
        _ => Status::Complete,
    }
}

#[inline(always)]
fn tcp<R: Reader>(reader: &R, at: usize, available: u32, layer: &mut Layer) -> Status {
    if available < TCP_LEN {
        return Status::Malformed;
    }
    // An ICMP error need quote only eight bytes of the transport header (RFC 792).
    let Some(header) = reader.bytes::<8>(at) else {
        return Status::Truncated;
    };
    layer.src_port = u16::from_be_bytes([header[0], header[1]]);
    layer.dst_port = u16::from_be_bytes([header[2], header[3]]);
    layer.seq = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    layer.flags |= FLAG_PORTS;
    let Some(header) = reader.bytes::<12>(at + 8) else {
        return Status::Truncated;
    };
    let header_len = u32::from(header[4] >> 4) * 4;
    layer.ack = u32::from_be_bytes([header[0], header[1], header[2], header[3]]);
    layer.tcp_flags = header[5];
    layer.window = u16::from_be_bytes([header[6], header[7]]);
    layer.flags |= FLAG_TRANSPORT;
    if header_len < TCP_LEN || header_len > available {
        return Status::Malformed;
    }
    layer.payload_len = available - header_len;
    Status::Complete
}

#[inline(always)]
fn udp<R: Reader>(reader: &R, at: usize, available: u32, layer: &mut Layer) -> Status {
    if available < UDP_LEN {
        return Status::Malformed;
    }
    let Some(header) = reader.bytes::<{ UDP_LEN as usize }>(at) else {
        return Status::Truncated;
    };
    layer.src_port = u16::from_be_bytes([header[0], header[1]]);
    layer.dst_port = u16::from_be_bytes([header[2], header[3]]);
    layer.payload_len = available - UDP_LEN;
    layer.flags |= FLAG_PORTS | FLAG_TRANSPORT;
    Status::Complete
}

#[inline(always)]
fn icmp<R: Reader>(reader: &R, at: usize, available: u32, layer: &mut Layer) -> Status {
    if available < ICMP_LEN as u32 {
        return Status::Malformed;
    }
    let Some(header) = reader.bytes::<ICMP_LEN>(at) else {
        return Status::Truncated;
    };
    layer.icmp_type = header[0];
    layer.icmp_code = header[1];
    layer.icmp_rest = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
    layer.payload_len = available - ICMP_LEN as u32;
    layer.flags |= FLAG_TRANSPORT;
    Status::Complete
}
