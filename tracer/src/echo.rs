//! ICMP and ICMPv6 echo messages, as raw sockets send and receive them.

/// The bytes of an echo message before its data.
pub const HEADER_BYTES: usize = 8;

/// An echo request with this many bytes of data.
pub fn request(ipv6: bool, id: u16, seq: u16, data_bytes: usize) -> Vec<u8> {
    let mut message = vec![0; HEADER_BYTES + data_bytes];
    message[0] = if ipv6 { 128 } else { 8 };
    message[4..6].copy_from_slice(&id.to_be_bytes());
    message[6..8].copy_from_slice(&seq.to_be_bytes());
    // For ICMPv6 the kernel overwrites it with the right one.
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// Whether what a raw socket received is the reply to the request with these numbers.
pub fn is_reply(ipv6: bool, received: &[u8], id: u16, seq: u16) -> bool {
    // A raw IPv4 socket gets the IP header as well.
    let ip_header = match received.first() {
        Some(first) if !ipv6 => usize::from(first & 15) * 4,
        _ => 0,
    };
    let reply = if ipv6 { 129 } else { 0 };
    let message = received.get(ip_header..).unwrap_or_default();
    message.first() == Some(&reply)
        && message.get(4..6) == Some(&id.to_be_bytes())
        && message.get(6..8) == Some(&seq.to_be_bytes())
}

/// RFC 1071.
fn checksum(message: &[u8]) -> u16 {
    let words = message.chunks(2).map(|pair| {
        let [high, low] = [pair[0], pair.get(1).copied().unwrap_or(0)];
        u32::from(u16::from_be_bytes([high, low]))
    });
    let sum = words.fold(0, |sum: u32, word| {
        let sum = sum + word;
        (sum & 0xffff) + (sum >> 16)
    });
    !u16::try_from(sum).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_sums_up_and_its_reply_is_known() {
        for bytes in [0, 1, 56, 65_000] {
            let message = request(false, 0x1234, 7, bytes);
            assert_eq!(message.len(), HEADER_BYTES + bytes);
            assert_eq!(checksum(&message), 0, "{bytes}");
        }
        let mut reply = vec![0x45; 20];
        reply.extend([0, 0, 0, 0, 0x12, 0x34, 0, 7]);
        assert!(is_reply(false, &reply, 0x1234, 7));
        assert!(!is_reply(false, &reply, 0x1234, 8));
        assert!(is_reply(true, &[129, 0, 0, 0, 0x12, 0x34, 0, 7], 0x1234, 7));
        assert!(!is_reply(
            true,
            &[128, 0, 0, 0, 0x12, 0x34, 0, 7],
            0x1234,
            7
        ));
        for cut in 0..reply.len() {
            assert!(!is_reply(false, &reply[..cut], 0x1234, 7));
        }
    }
}
