//! What one rtnetlink message says about a device or an address, and nothing else: no socket, no state.
//!
//! Attributes are read one by one instead of through a typed message: a device with a name that is not UTF-8, or
//! with an attribute that a newer kernel writes in another form, must not vanish from the topology.

use std::{
    ffi::CStr,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use netlink_packet_core::{NlaBuffer, NlasIterator, Parseable as _};
use netlink_packet_route::{
    AddressFamily,
    link::{InfoGeneve, InfoVxlan, LinkFlags, LinkHeader, LinkLayerType},
};

use crate::mtu::model::Encap;

use super::{encap, netlink::Message};

/// `sizeof(struct ifinfomsg)`
pub(super) const LINK_HEADER_BYTES: usize = 16;

/// `sizeof(struct ifaddrmsg)`
const ADDRESS_HEADER_BYTES: usize = 8;

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// The device exists, and this is all of it but its addresses.
    Link(Box<Link>),
    /// The device with this ifindex is gone from the namespace.
    LinkGone(u32),
    /// The device has this address.
    Address(u32, IpAddr),
    /// The device does not have this address any more.
    AddressGone(u32, IpAddr),
}

/// A device as its own namespace tells it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub ifindex: u32,
    pub name: String,
    pub kind: String,
    pub mtu: u32,
    pub up: bool,
    pub mac: Option<[u8; 6]>,
    pub master_ifindex: Option<u32>,
    /// `IFLA_LINK`: the peer of a veth or netkit, the device below any other.
    pub over_ifindex: Option<u32>,
    /// `IFLA_LINK_NETNSID`: where that device is, if not in this namespace.
    pub over_nsid: Option<i32>,
    pub vni: Option<u32>,
    pub udp_port: Option<u16>,
    /// What a tunnel puts around each packet.
    pub encap: Option<Box<Encap>>,
}

impl Link {
    /// Whether `IFLA_LINK` is the other end of a cable and not a device below.
    pub(super) fn has_peer(&self) -> bool {
        matches!(self.kind.as_str(), "veth" | "netkit")
    }
}

/// Reads a message; `None` for one that is about something else.
pub(super) fn parse(message: Message<'_>) -> Option<Change> {
    match message.kind {
        libc::RTM_NEWLINK => link(message.payload).map(|link| Change::Link(Box::new(link))),
        libc::RTM_DELLINK => link(message.payload).map(|link| Change::LinkGone(link.ifindex)),
        libc::RTM_NEWADDR => {
            address(message.payload).map(|(ifindex, addr)| Change::Address(ifindex, addr))
        }
        libc::RTM_DELADDR => {
            address(message.payload).map(|(ifindex, addr)| Change::AddressGone(ifindex, addr))
        }
        _ => None,
    }
}

fn link(payload: &[u8]) -> Option<Link> {
    let header = LinkHeader::parse(payload).ok()?;
    // AF_BRIDGE messages come through the same group and speak of a bridge's port: RTM_DELLINK then says that the
    // device left the bridge, not that it is gone.
    if header.interface_family != AddressFamily::Unspec {
        return None;
    }
    let mut link = Link {
        ifindex: header.index,
        up: header.flags.contains(LinkFlags::Up),
        kind: if header.flags.contains(LinkFlags::Loopback) {
            "loopback".to_owned()
        } else {
            "physical".to_owned()
        },
        ..Link::default()
    };
    for attribute in attributes(payload.get(LINK_HEADER_BYTES..)?) {
        let value = attribute.value();
        match attribute.kind() {
            libc::IFLA_IFNAME => link.name = text(value),
            libc::IFLA_MTU => link.mtu = number(value)?,
            libc::IFLA_ADDRESS if header.link_layer_type == LinkLayerType::Ether => {
                link.mac = value.try_into().ok();
            }
            libc::IFLA_MASTER => link.master_ifindex = ifindex(value),
            libc::IFLA_LINK => link.over_ifindex = ifindex(value),
            libc::IFLA_LINK_NETNSID => {
                link.over_nsid = value.try_into().ok().map(i32::from_ne_bytes);
            }
            libc::IFLA_LINKINFO => link_info(value, &mut link),
            // A wireless event has only a name: it is not the whole device.
            libc::IFLA_WIRELESS => return None,
            _ => {}
        }
    }
    Some(link)
}

fn link_info(value: &[u8], link: &mut Link) {
    let find = |kind| {
        attributes(value)
            .find(|attribute| attribute.kind() == kind)
            .map(|attribute| attribute.value().to_vec())
    };
    let Some(kind) = find(libc::IFLA_INFO_KIND) else {
        return;
    };
    link.kind = text(&kind);
    let Some(data) = find(libc::IFLA_INFO_DATA) else {
        return;
    };
    link.encap = encap::parse(&link.kind, &data).map(Box::new);
    match link.kind.as_str() {
        "vxlan" => vxlan(&data, link),
        "geneve" => geneve(&data, link),
        _ => {}
    }
}

fn vxlan(data: &[u8], link: &mut Link) {
    let mut external = false;
    for attribute in attributes(data) {
        match InfoVxlan::parse(&attribute) {
            Ok(InfoVxlan::Id(vni)) => link.vni = Some(vni),
            Ok(InfoVxlan::Port(port)) => link.udp_port = Some(port),
            Ok(InfoVxlan::Link(ifindex)) if ifindex != 0 => link.over_ifindex = Some(ifindex),
            Ok(InfoVxlan::CollectMetadata(on)) => external |= on,
            _ => {}
        }
    }
    if external {
        link.vni = None;
    }
}

fn geneve(data: &[u8], link: &mut Link) {
    let mut external = false;
    for attribute in attributes(data) {
        match InfoGeneve::parse(&attribute) {
            Ok(InfoGeneve::Id(vni)) => link.vni = Some(vni),
            Ok(InfoGeneve::Port(port)) => link.udp_port = Some(port),
            Ok(InfoGeneve::CollectMetadata) => external = true,
            _ => {}
        }
    }
    if external {
        link.vni = None;
    }
}

fn address(payload: &[u8]) -> Option<(u32, IpAddr)> {
    // struct ifaddrmsg: family, prefix length, flags, scope, and the ifindex.
    let header: &[u8; ADDRESS_HEADER_BYTES] = payload.first_chunk()?;
    let [family, _, _, _, index @ ..] = *header;
    let mut local = None;
    let mut address = None;
    for attribute in attributes(&payload[ADDRESS_HEADER_BYTES..]) {
        match attribute.kind() {
            // The device's own address where the two differ (point-to-point).
            libc::IFA_LOCAL => local = ip(family, attribute.value()),
            libc::IFA_ADDRESS => address = ip(family, attribute.value()),
            _ => {}
        }
    }
    Some((u32::from_ne_bytes(index), local.or(address)?))
}

pub(super) fn ip(family: u8, value: &[u8]) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => <[u8; 4]>::try_from(value)
            .ok()
            .map(|octets| Ipv4Addr::from(octets).into()),
        libc::AF_INET6 => <[u8; 16]>::try_from(value)
            .ok()
            .map(|octets| Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

/// The attributes of a message or of a nest, up to the first that does not fit.
pub(super) fn attributes(bytes: &[u8]) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    NlasIterator::new(bytes).map_while(Result::ok)
}

pub(super) fn number(value: &[u8]) -> Option<u32> {
    value.try_into().ok().map(u32::from_ne_bytes)
}

/// An ifindex; 0 means that there is none.
pub(super) fn ifindex(value: &[u8]) -> Option<u32> {
    number(value).filter(|index| *index != 0)
}

/// A string that may lack its end, with whatever is not UTF-8 replaced.
pub(super) fn text(value: &[u8]) -> String {
    match CStr::from_bytes_until_nul(value) {
        Ok(string) => string.to_string_lossy().into_owned(),
        Err(_) => String::from_utf8_lossy(value).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::Emitable as _;
    use netlink_packet_route::{
        address::{AddressAttribute, AddressMessage},
        link::{InfoData, InfoKind, LinkAttribute, LinkInfo, LinkMessage},
    };
    use proptest::prelude::*;

    use super::*;

    fn bytes(message: &LinkMessage) -> Vec<u8> {
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        bytes
    }

    /// A device with ifindex 7 and these attributes.
    fn message(attributes: Vec<LinkAttribute>) -> LinkMessage {
        let mut message = LinkMessage::default();
        message.header.index = 7;
        message.header.link_layer_type = LinkLayerType::Ether;
        message.attributes = attributes;
        message
    }

    fn parsed(attributes: Vec<LinkAttribute>) -> Link {
        link(&bytes(&message(attributes))).expect("a device")
    }

    fn kind(kind: InfoKind, data: InfoData) -> LinkAttribute {
        LinkAttribute::LinkInfo(vec![LinkInfo::Kind(kind), LinkInfo::Data(data)])
    }

    #[test]
    fn geneve_tells_its_vni_and_port_and_external_has_no_vni() {
        let geneve = |mut options: Vec<InfoGeneve>| {
            options.extend([InfoGeneve::Id(813), InfoGeneve::Port(6081)]);
            parsed(vec![kind(InfoKind::Geneve, InfoData::Geneve(options))])
        };
        let fixed = geneve(vec![]);
        assert_eq!(
            (fixed.kind.as_str(), fixed.vni, fixed.udp_port),
            ("geneve", Some(813), Some(6081))
        );
        let external = geneve(vec![InfoGeneve::CollectMetadata]);
        assert_eq!((external.vni, external.udp_port), (None, Some(6081)));
    }

    #[test]
    fn a_wireguard_device_has_neither_mac_nor_device_below() {
        let mut message = message(vec![
            LinkAttribute::IfName("wg0".to_owned()),
            LinkAttribute::Mtu(1420),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Wireguard)]),
        ]);
        message.header.link_layer_type = LinkLayerType::None;
        message.header.flags = LinkFlags::Up;
        assert_eq!(
            link(&bytes(&message)),
            Some(Link {
                ifindex: 7,
                name: "wg0".to_owned(),
                kind: "wireguard".to_owned(),
                mtu: 1420,
                up: true,
                ..Link::default()
            })
        );
    }

    #[test]
    fn a_device_without_a_kind_is_physical() {
        let nic = parsed(vec![LinkAttribute::Address(vec![2, 0, 0, 0, 0, 1])]);
        assert_eq!(
            (nic.kind.as_str(), nic.mac),
            ("physical", Some([2, 0, 0, 0, 0, 1]))
        );
    }

    #[test]
    fn a_name_that_is_not_utf8_hides_nothing() {
        // IFLA_IFNAME "a\xff" and IFLA_MTU 1500, which a typed parser refuses as a whole.
        let mut bytes = bytes(&message(vec![]));
        bytes.extend([7, 0, 3, 0, b'a', 0xff, 0, 0]);
        bytes.extend([8, 0, 4, 0]);
        bytes.extend(1500_u32.to_ne_bytes());
        let device = link(&bytes).expect("a device");
        assert_eq!((device.name.as_str(), device.mtu), ("a\u{fffd}", 1500));
    }

    #[test]
    fn a_port_that_leaves_its_bridge_is_not_gone() {
        let mut message = message(vec![]);
        message.header.interface_family = AddressFamily::Bridge;
        let bytes = bytes(&message);
        let message = |kind| Message {
            kind,
            payload: &bytes,
        };
        assert_eq!(parse(message(libc::RTM_DELLINK)), None);
        assert_eq!(parse(message(libc::RTM_NEWLINK)), None);
    }

    #[test]
    fn the_own_address_of_a_point_to_point_device_is_the_local_one() {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.index = 7;
        let [own, other] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        message.attributes = vec![
            AddressAttribute::Address(other),
            AddressAttribute::Local(own),
        ];
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        let said = |kind| {
            parse(Message {
                kind,
                payload: &bytes,
            })
        };
        assert_eq!(said(libc::RTM_NEWADDR), Some(Change::Address(7, own)));
        assert_eq!(said(libc::RTM_DELADDR), Some(Change::AddressGone(7, own)));
    }

    proptest! {
        #[test]
        fn no_message_stops_the_parser(
            kind in 16_u16..22,
            payload in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = parse(Message { kind, payload: &payload });
        }

        #[test]
        fn a_message_that_is_cut_stops_nothing(cut in 0_usize..120) {
            let vxlan = InfoData::Vxlan(vec![InfoVxlan::Id(42), InfoVxlan::Port(4789)]);
            let whole = bytes(&message(vec![
                LinkAttribute::IfName("vx".to_owned()),
                kind(InfoKind::Vxlan, vxlan),
            ]));
            let device = link(&whole[..cut.min(whole.len())]);
            prop_assert!(device.is_none_or(|device| device.ifindex == 7));
        }
    }
}
