//! How much of a packet is headers, which is all of it that leaves the kernel.

use super::{FLAG_PORTS, Packet, Status, Tunnel, dns};

impl Packet {
    /// How many of the `captured` bytes are headers: up to the end of the innermost transport header, or of the one that
    /// an ICMP error quotes; the header of a DNS message counts as one. What the parser does not follow is kept whole.
    #[inline(always)]
    pub fn headers_len(&self, captured: u32) -> u32 {
        if !matches!(self.status, Status::Complete) {
            return captured;
        }
        let Some(layer) = self.flow() else {
            return captured;
        };
        let end = if !matches!(layer.tunnel, Tunnel::None) {
            // A tunnel without an inner layer carries no IP.
            captured
        } else if layer.payload_len == 0 && !layer.has(FLAG_PORTS) && !layer.is_icmp() {
            u32::from(layer.transport_offset)
        } else {
            // The IP packet less its payload.
            let dns = if dns::is_dns(layer) {
                layer.payload_len.min(dns::DNS_LEN as u32)
            } else {
                0
            };
            u32::from(layer.offset)
                .wrapping_add(layer.packet_len)
                .wrapping_sub(layer.payload_len)
                .wrapping_add(dns)
        };
        if end > captured { captured } else { end }
    }
}
