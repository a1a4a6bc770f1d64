//! The fixed part of a DNS message (RFC 1035), by which a question and its answer are paired. No name is read: the
//! kernel half does not even hand it over.

use super::{Layer, Reader, transport::UDP_LEN};

/// The port of DNS.
const PORT: u16 = 53;

/// The port of multicast DNS (RFC 6762), which has the same header.
const MULTICAST_PORT: u16 = 5353;

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
        && (PORT == layer.src_port
            || PORT == layer.dst_port
            || MULTICAST_PORT == layer.src_port
            || MULTICAST_PORT == layer.dst_port)
}

/// Reads the DNS header behind the UDP header of `layer`; `None` where it is none by its ports, was not captured, or cannot
/// be one by what it says: tunnels like these ports, since firewalls let them pass.
pub fn dns_header(bytes: &[u8], layer: &Layer) -> Option<DnsHeader> {
    if !is_dns(layer) || layer.payload_len < DNS_LEN as u32 {
        return None;
    }
    let udp_at = usize::from(layer.transport_offset);
    // Fragmentation changes what is here, and not this length.
    let [_, _, _, _, len_high, len_low, ..] = (&bytes).bytes::<{ UDP_LEN as usize }>(udp_at)?;
    let message_len = u32::from(u16::from_be_bytes([len_high, len_low])).checked_sub(UDP_LEN)?;
    let header = (&bytes).bytes::<DNS_LEN>(udp_at + UDP_LEN as usize)?;
    let is_multicast = layer.src_port == MULTICAST_PORT || layer.dst_port == MULTICAST_PORT;
    if !can_be_dns(header, message_len, is_multicast) {
        return None;
    }
    let [id_high, id_low, flags_high, flags_low, ..] = header;
    Some(DnsHeader {
        id: u16::from_be_bytes([id_high, id_low]),
        is_response: flags_high & 0x80 != 0,
        opcode: flags_high >> 3 & 0x0f,
        response_code: flags_low & 0x0f,
    })
}

/// Whether a header can be that of a DNS message of this length: it asks one question (RFC 9619), uses no reserved bit and
/// no operation but QUERY, NOTIFY and UPDATE (RFC 1996, RFC 2136), and the records that it counts have room. Of random
/// bytes hardly one in a million can be.
fn can_be_dns(header: [u8; DNS_LEN], message_len: u32, is_multicast: bool) -> bool {
    let [_, _, flags_high, flags_low, counts @ ..] = header;
    let [questions, answers, authorities, additional] = [
        u32::from(u16::from_be_bytes([counts[0], counts[1]])),
        u32::from(u16::from_be_bytes([counts[2], counts[3]])),
        u32::from(u16::from_be_bytes([counts[4], counts[5]])),
        u32::from(u16::from_be_bytes([counts[6], counts[7]])),
    ];
    let is_response = flags_high & 0x80 != 0;
    let is_truncated = flags_high & 0x02 != 0;
    let opcode = flags_high >> 3 & 0x0f;
    let response_code = flags_low & 0x0f;
    // Bit 6 of the lower byte is the one that is still reserved.
    if flags_low & 0x40 != 0 || !matches!(opcode, 0 | 4 | 5) {
        return false;
    }
    // Four bytes behind a name of at least one, ten behind that of a record. A truncated message may count what was cut off.
    let records = answers + authorities + additional;
    let has_room = message_len >= DNS_LEN as u32 + 5 * questions + 11 * records;
    if is_multicast {
        return has_room;
    }
    if is_response {
        return questions <= 1 && (has_room || is_truncated);
    }
    // A query for a zone's changes shows the version that it has (RFC 1995); OPT and signatures are additional.
    let asks_only = opcode != 0 || answers == 0 && authorities <= 1 && additional <= 3;
    questions == 1 && response_code == 0 && asks_only && has_room
}
