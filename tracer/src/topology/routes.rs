//! What one rtnetlink message says about a default route.

use netlink_packet_core::Parseable as _;
use netlink_packet_route::{
    AddressFamily,
    route::{RouteAttribute, RouteHeader, RouteMessage, RouteType},
};

use super::rtnetlink::Message;

/// The devices that a route to everywhere leaves through, in any table; none for every other route.
pub(super) fn default_route_devices(message: Message<'_>) -> Vec<u32> {
    if message.kind != libc::RTM_NEWROUTE {
        return Vec::new();
    }
    // The header is looked at first: a node may have a million routes, of which a few have no prefix.
    let is_default = RouteHeader::parse(message.payload).is_ok_and(|header| {
        header.destination_prefix_length == 0
            && header.kind == RouteType::Unicast
            && matches!(
                header.address_family,
                AddressFamily::Inet | AddressFamily::Inet6
            )
    });
    if !is_default {
        return Vec::new();
    }
    let Ok(route) = RouteMessage::parse(message.payload) else {
        return Vec::new();
    };
    route
        .attributes
        .into_iter()
        .flat_map(|attribute| match attribute {
            RouteAttribute::Oif(ifindex) => vec![ifindex],
            RouteAttribute::MultiPath(hops) => {
                hops.into_iter().map(|hop| hop.interface_index).collect()
            }
            _ => Vec::new(),
        })
        .collect()
}
