//! The fixed part of a DNS message (RFC 1035), by which a question and its answer are paired. No name is read: the
//! kernel half does not even hand it over.

use super::{Layer, Reader, transport::UDP_LEN};

/// The ports of DNS and of multicast DNS (RFC 6762), which has the same header.
const PORTS: [u16; 2] = [53, 5353];

/// The length of the header, in front of the question.
pub(super) const DNS_LEN: usize = 12;

/// What is read of the header of a DNS message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DnsHeader {
    /// Chosen by the client, repeated in the answer. Multicast DNS has 0 here (RFC 6762).
    pub id: u16,
    /// QR: this is an answer.
    pub is_response: bool,
    /// OPCODE: 0 is a query.
    pub opcode: u8,
    /// RCODE of an answer: 0 is no error, 2 SERVFAIL, 3 NXDOMAIN, 5 REFUSED.
    pub response_code: u8,
}

/// Whether the datagram is one of DNS by its ports, which is all that can be known without its payload.
#[inline(always)]
pub fn is_dns(layer: &Layer) -> bool {
    layer.is_udp()
        && (PORTS[0] == layer.src_port
            || PORTS[0] == layer.dst_port
            || PORTS[1] == layer.src_port
            || PORTS[1] == layer.dst_port)
}

/// Reads the DNS header behind the UDP header of `layer`; `None` where it is none by its ports, is shorter than that
/// or was not captured. What something else sends from or to these ports is read as if it were DNS.
pub fn dns_header(bytes: &[u8], layer: &Layer) -> Option<DnsHeader> {
    if !is_dns(layer) || layer.payload_len < DNS_LEN as u32 {
        return None;
    }
    let at = usize::from(layer.transport_offset) + UDP_LEN as usize;
    let [id_high, id_low, flags_high, flags_low, ..] = (&bytes).bytes::<DNS_LEN>(at)?;
    Some(DnsHeader {
        id: u16::from_be_bytes([id_high, id_low]),
        is_response: flags_high & 0x80 != 0,
        opcode: flags_high >> 3 & 0x0f,
        response_code: flags_low & 0x0f,
    })
}
