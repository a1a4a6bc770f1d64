//! The security associations of a namespace (`ip xfrm state`), as far as they say how large their packets are. Keys come
//! along in the answers and are not looked at.

use netlink_packet_core::NLM_F_DUMP;
use nix::errno::Errno;

use crate::mtu::model::Association;

use super::{
    links::{attributes, ip, number, text},
    netlink::Netlink,
};

/// `XFRM_MSG_GETSA`, and `sizeof(struct xfrm_usersa_id)` (include/uapi/linux/xfrm.h).
const GET_SA: u16 = 0x12;
const ID_BYTES: usize = 24;

/// `sizeof(struct xfrm_usersa_info)`, and the offsets of what is read of it: `id.daddr`, `id.proto`, `saddr`, `family` and
/// `mode`.
const INFO_BYTES: usize = 224;
const DADDR: usize = 56;
const PROTO: usize = 76;
const SADDR: usize = 80;
const FAMILY: usize = 212;
const MODE: usize = 214;

/// `XFRMA_ALG_CRYPT`, `XFRMA_ENCAP`, `XFRMA_ALG_AEAD`, `XFRMA_ALG_AUTH_TRUNC`, `XFRMA_IF_ID`.
const ALG_CRYPT: u16 = 2;
const ENCAP: u16 = 4;
const ALG_AEAD: u16 = 18;
const ALG_AUTH_TRUNC: u16 = 20;
const IF_ID: u16 = 31;

/// The name in each `struct xfrm_algo*`, and where the bits of the check value are.
const NAME_BYTES: usize = 64;
const CHECK_BITS: usize = 68;

/// `IPPROTO_ESP` and `XFRM_MODE_TUNNEL`.
const ESP: u8 = 50;
const TUNNEL: u8 = 1;

/// The most associations of one namespace that are kept.
const ASSOCIATIONS_MAX: usize = 1_024;

/// Reads the ESP tunnels of the calling thread's namespace; a kernel without IPsec has none.
pub(super) fn read(buffer: &mut [u8]) -> Result<Vec<Association>, Errno> {
    let mut found = Vec::new();
    let mut socket = match Netlink::open_by_number(libc::NETLINK_XFRM) {
        Ok(socket) => socket,
        Err(Errno::EPROTONOSUPPORT) => return Ok(found),
        Err(errno) => return Err(errno),
    };
    socket.ask(GET_SA, NLM_F_DUMP, &[0; ID_BYTES], buffer, &mut |message| {
        if found.len() < ASSOCIATIONS_MAX {
            found.extend(parse(message.payload));
        }
    })?;
    Ok(found)
}

/// Reads an association; `None` for one that is no ESP tunnel.
fn parse(payload: &[u8]) -> Option<Association> {
    let info = payload.get(..INFO_BYTES)?;
    if info[PROTO] != ESP || info[MODE] != TUNNEL {
        return None;
    }
    let family = u16::from_ne_bytes(*info.get(FAMILY..)?.first_chunk()?);
    let family = u8::try_from(family).ok()?;
    let bytes = if i32::from(family) == libc::AF_INET {
        4
    } else {
        16
    };
    let address = |at: usize| ip(family, info.get(at..at + bytes)?);
    let mut association = Association {
        src: address(SADDR)?,
        dst: address(DADDR)?,
        algorithm: String::new(),
        check_bytes: 0,
        in_udp: false,
        if_id: None,
    };
    for attribute in attributes(&payload[INFO_BYTES..]) {
        let value = attribute.value();
        let name = || value.get(..NAME_BYTES).map_or_else(String::new, text);
        let check = || {
            let bits = value.get(CHECK_BITS..CHECK_BITS + 4).and_then(number);
            bits.map_or(0, |bits| bits.div_ceil(8))
        };
        match attribute.kind() {
            ALG_CRYPT => association.algorithm = name(),
            ALG_AEAD => (association.algorithm, association.check_bytes) = (name(), check()),
            ALG_AUTH_TRUNC => association.check_bytes = check(),
            ENCAP => association.in_udp = true,
            IF_ID => association.if_id = number(value),
            _ => {}
        }
    }
    Some(association)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(4 + value.len()).expect("a short value");
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn algorithm(name: &str, check_bits: u32) -> Vec<u8> {
        let mut bytes = name.as_bytes().to_vec();
        bytes.resize(NAME_BYTES, 0);
        bytes.extend(160_u32.to_ne_bytes());
        bytes.extend(check_bits.to_ne_bytes());
        bytes.extend([7; 20]);
        bytes
    }

    fn message(mode: u8, more: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![0; INFO_BYTES];
        bytes[DADDR..DADDR + 4].copy_from_slice(&[10, 0, 0, 2]);
        bytes[SADDR..SADDR + 4].copy_from_slice(&[10, 0, 0, 1]);
        bytes[PROTO] = ESP;
        bytes[FAMILY..FAMILY + 2].copy_from_slice(&2_u16.to_ne_bytes());
        bytes[MODE] = mode;
        bytes.extend(more.concat());
        bytes
    }

    #[test]
    fn an_association_tells_its_ends_and_its_algorithms() {
        let aead = attribute(ALG_AEAD, &algorithm("rfc4106(gcm(aes))", 128));
        let if_id = attribute(IF_ID, &42_u32.to_ne_bytes());
        let found = parse(&message(TUNNEL, &[aead, if_id])).expect("a tunnel");
        assert_eq!(
            found,
            Association {
                src: IpAddr::from([10, 0, 0, 1]),
                dst: IpAddr::from([10, 0, 0, 2]),
                algorithm: "rfc4106(gcm(aes))".to_owned(),
                check_bytes: 16,
                in_udp: false,
                if_id: Some(42),
            }
        );
        let crypt = attribute(ALG_CRYPT, &algorithm("cbc(aes)", 0));
        let auth = attribute(ALG_AUTH_TRUNC, &algorithm("hmac(sha1)", 96));
        let udp = attribute(ENCAP, &[0; 24]);
        let found = parse(&message(TUNNEL, &[auth, crypt, udp])).expect("a tunnel");
        assert_eq!(
            (found.algorithm.as_str(), found.check_bytes),
            ("cbc(aes)", 12)
        );
        assert!(found.in_udp);
        assert_eq!(parse(&message(0, &[])), None);
    }

    #[test]
    fn the_running_kernel_answers() {
        // Not every kernel has IPsec, and not every user may ask.
        match read(&mut vec![0; 65_536]) {
            Ok(found) => assert!(found.len() <= ASSOCIATIONS_MAX),
            Err(errno) => assert_eq!(errno, Errno::EPERM),
        }
    }

    proptest! {
        #[test]
        fn no_message_stops_the_parser(payload in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&payload);
        }
    }
}
