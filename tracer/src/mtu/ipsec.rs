//! What an ESP tunnel can carry: by its algorithms, as `xfrm_state_mtu()` and `esp4_init_state()` (net/xfrm/xfrm_state.c,
//! net/ipv4/esp4.c) have it. Only arithmetic.

use super::model::{Association, Device, IpsecTunnel, Network};

/// An IPv4 and an IPv6 header, and UDP's where ESP passes address translation.
const IPV4: u32 = 20;
const IPV6: u32 = 40;
const UDP: u32 = 8;
/// SPI and sequence number; padding length and next header.
const ESP_HEADER: u32 = 8;
const ESP_TRAILER: u32 = 2;

/// The initialisation vector and the block that an algorithm pads to, ESP's own four bytes at least (RFC 4303); `None` for
/// one that is not known here.
fn vector_and_block(algorithm: &str) -> Option<(u32, u32)> {
    Some(match algorithm {
        // Modes of a counter: RFC 4106, 4309, 4543, 3686, 7634.
        "rfc4106(gcm(aes))"
        | "rfc4309(ccm(aes))"
        | "rfc4543(gcm(aes))"
        | "rfc3686(ctr(aes))"
        | "rfc7539esp(chacha20,poly1305)" => (8, 4),
        "cbc(aes)" | "cbc(camellia)" | "cbc(twofish)" | "cbc(serpent)" => (16, 16),
        "cbc(des3_ede)" | "cbc(des)" | "cbc(blowfish)" | "cbc(cast5)" => (8, 8),
        "cipher_null" | "ecb(cipher_null)" => (0, 4),
        _ => return None,
    })
}

/// The largest inner packet of a tunnel whose outer packets may have `mtu` bytes.
pub(super) fn carries(association: &Association, mtu: u32) -> Option<u32> {
    let (vector, block) = vector_and_block(&association.algorithm)?;
    let outer = if association.dst.is_ipv4() {
        IPV4
    } else {
        IPV6
    };
    let udp = if association.in_udp { UDP } else { 0 };
    let around = outer + udp + ESP_HEADER + vector + association.check_bytes;
    let padded = mtu.checked_sub(around)? / block * block;
    padded.checked_sub(ESP_TRAILER)
}

/// What carries a tunnel, how much that takes, and how much of it is left inside.
pub(super) fn room<'a>(
    network: &'a Network,
    tunnel: &IpsecTunnel,
) -> Option<(&'a Device, u32, u32)> {
    let underlay = tunnel.underlay?;
    let device = network.devices.get(&underlay.device)?;
    let limit = underlay.mtu.map_or(device.mtu, |told| told.min(device.mtu));
    let inside = carries(&tunnel.association, limit)?;
    Some((device, limit, inside))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_algorithm_leaves_its_own_room() {
        let check = |algorithm: &str, check_bytes, v6: bool, in_udp, expected| {
            let addr: std::net::IpAddr = if v6 {
                [0xfd; 16].into()
            } else {
                [10, 0, 0, 1].into()
            };
            let association = Association {
                src: addr,
                dst: addr,
                algorithm: algorithm.to_owned(),
                check_bytes,
                in_udp,
                if_id: None,
            };
            assert_eq!(carries(&association, 1500), expected, "{algorithm}");
        };
        // 1500 - 20 - 8 - 8 - 16 = 1448, a multiple of 4.
        check("rfc4106(gcm(aes))", 16, false, false, Some(1446));
        // 1500 - 40 - 8 - 8 - 16 = 1428.
        check("rfc4106(gcm(aes))", 16, true, false, Some(1426));
        // 1500 - 20 - 8 - 8 - 8 - 16 = 1440.
        check("rfc4106(gcm(aes))", 16, false, true, Some(1438));
        // 1500 - 20 - 8 - 16 - 12 = 1444, of which 1440 are whole blocks.
        check("cbc(aes)", 12, false, false, Some(1438));
        // 1500 - 20 - 8 - 8 - 12 = 1452, of which 1448 are whole blocks.
        check("cbc(des3_ede)", 12, false, false, Some(1446));
        check("cipher_null", 12, false, false, Some(1458));
        check("rot13", 0, false, false, None);
        let tiny = Association {
            src: [10, 0, 0, 1].into(),
            dst: [10, 0, 0, 1].into(),
            algorithm: "cbc(aes)".to_owned(),
            check_bytes: 16,
            in_udp: false,
            if_id: None,
        };
        assert_eq!(carries(&tiny, 30), None);
    }
}
