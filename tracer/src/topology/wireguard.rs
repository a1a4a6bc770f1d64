//! The endpoints of WireGuard's peers, which generic netlink tells (`WG_CMD_GET_DEVICE`, include/uapi/linux/wireguard.h):
//! by them the size of the outer headers is known. Keys come along in the answers and are not looked at.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use netlink_packet_core::NLM_F_DUMP;
use nix::{errno::Errno, sys::socket::SockProtocol};

use super::{
    links::attributes,
    netlink::{Message, Netlink},
};

/// `GENL_ID_CTRL`, `CTRL_CMD_GETFAMILY`, `CTRL_ATTR_FAMILY_ID` and `CTRL_ATTR_FAMILY_NAME` (linux/genetlink.h).
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;

/// `WG_GENL_NAME` with its end, padded to a multiple of four.
const NAME: &[u8; 12] = b"wireguard\0\0\0";

/// `WGDEVICE_A_IFINDEX`, `WGDEVICE_A_PEERS`, `WGPEER_A_ENDPOINT`.
const IFINDEX: u16 = 1;
const PEERS: u16 = 8;
const ENDPOINT: u16 = 4;

/// `sizeof(struct genlmsghdr)`
pub(super) const HEADER_BYTES: usize = 4;

/// The type bits of an attribute, without `NLA_F_NESTED`.
pub(super) const TYPE_MASK: u16 = 0x3fff;

/// The most endpoints of one device that are kept.
const ENDPOINTS_MAX: usize = 64;

/// The endpoints of these devices of the calling thread's namespace, by ifindex. A kernel that does not tell has none.
pub(super) fn endpoints(devices: &[u32], buffer: &mut [u8]) -> HashMap<u32, Vec<IpAddr>> {
    let mut found = HashMap::new();
    if devices.is_empty() {
        return found;
    }
    let Ok(mut socket) = Netlink::open(SockProtocol::NetlinkGeneric, 0) else {
        return found;
    };
    let Ok(family) = family(&mut socket, buffer) else {
        return found;
    };
    for ifindex in devices {
        let endpoints: &mut Vec<IpAddr> = found.entry(*ifindex).or_default();
        // What was told before an error holds all the same.
        let _ = ask_device(&mut socket, family, *ifindex, buffer, &mut |message| {
            let room = ENDPOINTS_MAX.saturating_sub(endpoints.len());
            endpoints.extend(parse(message.payload).into_iter().take(room));
        });
    }
    found
}

/// The number of WireGuard's family.
pub(super) fn family(socket: &mut Netlink, buffer: &mut [u8]) -> Result<u16, Errno> {
    let mut family = None;
    let mut request = vec![GET_FAMILY, 1, 0, 0, 14, 0];
    request.extend(FAMILY_NAME.to_ne_bytes());
    request.extend(NAME);
    socket.ask(CONTROL, 0, &request, buffer, &mut |message| {
        family = family.or_else(|| family_id(message.payload));
    })?;
    family.ok_or(Errno::ENOENT)
}

/// Asks for everything about a device. The private key and the preshared keys are in the answer, and so in `buffer`.
pub(super) fn ask_device(
    socket: &mut Netlink,
    family: u16,
    ifindex: u32,
    buffer: &mut [u8],
    each: &mut dyn FnMut(Message<'_>),
) -> Result<(), Errno> {
    let mut request = vec![0, 1, 0, 0, 8, 0];
    request.extend(IFINDEX.to_ne_bytes());
    request.extend(ifindex.to_ne_bytes());
    socket.ask(family, NLM_F_DUMP, &request, buffer, each)
}

fn family_id(payload: &[u8]) -> Option<u16> {
    let id =
        attributes(payload.get(HEADER_BYTES..)?).find(|attribute| attribute.kind() == FAMILY_ID)?;
    id.value().try_into().ok().map(u16::from_ne_bytes)
}

fn parse(payload: &[u8]) -> Vec<IpAddr> {
    let device = payload.get(HEADER_BYTES..).unwrap_or_default();
    let mut endpoints = Vec::new();
    for peers in attributes(device).filter(|nest| nest.kind() & TYPE_MASK == PEERS) {
        for peer in attributes(peers.value()) {
            let endpoint = attributes(peer.value()).find(|attribute| attribute.kind() == ENDPOINT);
            endpoints.extend(endpoint.and_then(|endpoint| address(endpoint.value())));
        }
    }
    endpoints
}

/// The address of a `struct sockaddr_in` or `sockaddr_in6`: behind the family and the port, and the flow label.
fn address(value: &[u8]) -> Option<IpAddr> {
    let family = u16::from_ne_bytes(*value.first_chunk()?);
    match i32::from(family) {
        libc::AF_INET => {
            let octets: [u8; 4] = value.get(4..8)?.try_into().ok()?;
            Some(Ipv4Addr::from(octets).into())
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = value.get(8..24)?.try_into().ok()?;
            Some(Ipv6Addr::from(octets).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = u16::try_from(4 + value.len()).expect("a short value");
        let mut bytes = [len.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn the_endpoints_of_all_peers_are_read_and_their_keys_are_not() {
        let v4 = [2, 0, 0xca, 0x6c, 192, 168, 50, 2, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut v6 = vec![10, 0, 0xca, 0x6c, 0, 0, 0, 0];
        v6.extend([0xfd; 16]);
        v6.extend([0; 4]);
        let key = attribute(1, &[7; 32]);
        let peers = [
            attribute(0x8000, &[key.clone(), attribute(ENDPOINT, &v4)].concat()),
            attribute(0x8000, &[key.clone(), attribute(ENDPOINT, &v6)].concat()),
            attribute(0x8000, &key),
        ];
        let message = [
            vec![0, 1, 0, 0],
            attribute(IFINDEX, &3_u32.to_ne_bytes()),
            attribute(0x8000 | PEERS, &peers.concat()),
        ]
        .concat();
        assert_eq!(
            parse(&message),
            [IpAddr::from([192, 168, 50, 2]), IpAddr::from([0xfd; 16])]
        );
    }

    #[test]
    fn a_kernel_without_wireguard_has_no_endpoints() {
        let found = endpoints(&[u32::MAX], &mut vec![0; 65536]);
        assert!(found.values().all(Vec::is_empty), "{found:?}");
    }

    proptest! {
        #[test]
        fn no_message_stops_the_parser(payload in proptest::collection::vec(any::<u8>(), 0..160)) {
            let _ = (parse(&payload), family_id(&payload), address(&payload));
        }
    }
}
