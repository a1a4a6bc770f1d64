//! The exact command that mends, or at least checks, what a packet was too big for.

use super::size::{self, Check};
use super::told::Told;
use super::{Place, Scene, diagnosis};
use crate::codes::{CauseCode, IcmpFate, Stage};
use crate::event::DeviceId;
use crate::flow::pairing::Flow;
use crate::flow::{Point, Sighting};
use crate::record::Device;

/// What to type for a packet that was too big.
pub(super) fn command(
    flow: &Flow<'_>,
    place: Place<'_>,
    told: &Told<'_>,
    scene: &Scene<'_>,
) -> Option<String> {
    let packet = place.sighting;
    let too_big = size::too_big(packet, scene.devices());
    if let Some(narrow) = too_big
        .filter(|too_big| too_big.check == Check::Link)
        .and_then(|too_big| too_big.narrow)
    {
        return wire(packet, narrow, scene);
    }
    let router = scene.enter(place);
    let clamp = or_clamp(flow, packet, told, scene);
    let sender = packet.tuple.src.ip();
    match told.fate {
        IcmpFate::TunnelEnd => tunnel(flow, packet, told, scene),
        IcmpFate::NoRouteBack => Some(format!(
            "`{router}ip route get {sender}`: without a route back it cannot tell the sender{clamp}"
        )),
        IcmpFate::Dropped => {
            let (_, dead) = told.seen?;
            let cause = scene.diagnose(dead)?;
            let there = scene.enter(Place {
                sighting: dead,
                stage: cause.stage,
            });
            Some(match cause.code {
                CauseCode::Netfilter => format!(
                    "`{there}nft list ruleset`, and let `{}` pass there{}",
                    if sender.is_ipv4() {
                        "icmp type destination-unreachable"
                    } else {
                        "icmpv6 type packet-too-big"
                    },
                    clamp
                ),
                code => format!(
                    "{}{}",
                    diagnosis::next(code, &there, dead, scene.device_name(dead), None)
                        .unwrap_or_else(|| "find out why the ICMP error died".to_owned()),
                    clamp
                ),
            })
        }
        IcmpFate::Ignored | IcmpFate::Delivered | IcmpFate::ActedUpon => {
            let here =
                sender_place(flow, packet).map_or_else(String::new, |place| scene.enter(place));
            Some(format!(
                "`{here}ip route get {}` on the sender shows the MTU that it has learned (`lock` ignores ICMP){}",
                packet.tuple.dst.ip(),
                clamp
            ))
        }
        IcmpFate::LeftNode | IcmpFate::NotDelivered | IcmpFate::NotSent | IcmpFate::LinkLayer => {
            Some(format!(
                "run `sudo tracer trace host {sender}` on the way back to {sender}: does the ICMP error get there?{clamp}"
            ))
        }
    }
}

/// What shows whether it is the size: the largest packet that gets there, tried by hand.
pub(super) fn check(flow: &Flow<'_>, place: Place<'_>, scene: &Scene<'_>) -> String {
    let packet = place.sighting;
    let sender = sender_place(flow, packet).unwrap_or(place);
    let ns = scene.enter(sender);
    let to = packet.tuple.dst.ip();
    // IP and ICMP headers.
    let headers = if to.is_ipv4() { 28 } else { 48 };
    let size = packet.segment_len().saturating_sub(headers);
    format!(
        "`{ns}ping -I {} -M do -c 3 -s {size} {to}` loses what `-s 56` gets back, if it is the size; then trace at {to}, or look along the way for the device that takes less: `tracer mtu`",
        packet.tuple.src.ip()
    )
}

/// The two ends of a wire, or a bridge's port, differ: what makes them agree.
fn wire(packet: &Sighting, narrow: &Device, scene: &Scene<'_>) -> Option<String> {
    let own = packet.device()?;
    let (there, name) = (enter_device(narrow.id, scene), word(&narrow.name));
    if own == narrow.id {
        // A bridge's port: what is connected to it must take as much.
        let other = narrow.peer.and_then(|id| scene.devices().get(id));
        let other = other.filter(|other| other.mtu < packet.packet_len);
        let other = other.map_or_else(String::new, |other| {
            format!(
                ", and `{}ip link set {} mtu {}` at its other end",
                enter_device(other.id, scene),
                word(&other.name),
                packet.packet_len
            )
        });
        return Some(format!(
            "`{there}ip link set {name} mtu {}`{other}; or give whatever sends through that bridge an MTU of {}",
            packet.packet_len, narrow.mtu
        ));
    }
    let wide = scene.devices().get(own)?;
    let here = enter_device(own, scene);
    Some(format!(
        "`{here}ip link set {} mtu {}` makes both ends of the wire agree, and IP can tell who sends too much; or `{there}ip link set {name} mtu {}`, if the way behind it takes as much",
        word(&wide.name),
        narrow.mtu,
        wide.mtu
    ))
}

/// The tunnel's own MTU is what its headers leave.
fn tunnel(
    flow: &Flow<'_>,
    packet: &Sighting,
    told: &Told<'_>,
    scene: &Scene<'_>,
) -> Option<String> {
    let from_client = flow.is_from_client(packet);
    let entered = |seen: &Sighting| {
        seen.point == Point::Xmit
            && seen.icmp.is_none()
            && seen.tunnels.is_empty()
            && flow.is_from_client(seen) == from_client
            && seen
                .device()
                .is_some_and(|id| scene.devices().is_tunnel(id))
    };
    let entered = flow
        .sightings()
        .filter(|seen| entered(seen))
        .max_by_key(|seen| seen.order())?;
    let headers = packet.packet_len.saturating_sub(packet.inner_len);
    let ns = scene.enter(Place {
        sighting: entered,
        stage: Stage::Encap,
    });
    let device = word(scene.device_name(entered)?);
    let mtu = told.mtu.map_or_else(
        || format!("N`, {headers} less than the underlay takes"),
        |mtu| {
            format!(
                "{}`: the tunnel's headers take {headers} bytes of {mtu}",
                mtu.saturating_sub(headers)
            )
        },
    );
    Some(format!("`{ns}ip link set {device} mtu {mtu}"))
}

/// What helps TCP whatever becomes of ICMP: every SYN names the segments that its sender takes, and a router may lower that.
fn or_clamp(flow: &Flow<'_>, packet: &Sighting, told: &Told<'_>, scene: &Scene<'_>) -> String {
    let sender = packet.tuple.src.ip();
    let is_router = |netns| !scene.devices().is_local(netns, sender);
    let Some(netns) = packet
        .netns
        .filter(|netns| flow.is_tcp() && is_router(*netns))
    else {
        return String::new();
    };
    let (iptables, headers) = if sender.is_ipv4() {
        ("iptables", 40)
    } else {
        ("ip6tables", 60)
    };
    // Only the router whose way on is narrow knows by itself how narrow it is.
    let clamp = match told.mtu {
        Some(mtu) if !matches!(packet.point, Point::Drop(_)) => {
            format!("--set-mss {}", mtu.saturating_sub(headers))
        }
        _ => "--clamp-mss-to-pmtu".to_owned(),
    };
    format!(
        "; new connections are helped by `{}{iptables} -t mangle -A FORWARD -p tcp --tcp-flags SYN,RST SYN -j TCPMSS {clamp}`",
        scene.enter_netns(Some(netns))
    )
}

/// Where the sender of a packet was seen to send.
fn sender_place<'a>(flow: &Flow<'a>, packet: &Sighting) -> Option<Place<'a>> {
    let from_client = flow.is_from_client(packet);
    let first = flow
        .sightings()
        .filter(|seen| {
            seen.icmp.is_none()
                && seen.point == Point::Xmit
                && flow.is_from_client(seen) == from_client
        })
        .min_by_key(|seen| seen.order())?;
    Some(Place {
        sighting: first,
        stage: Stage::LocalOut,
    })
}

/// What enters the namespace of a device.
fn enter_device(id: DeviceId, scene: &Scene<'_>) -> String {
    scene.enter_netns(Some(id.netns))
}

/// A device's name, if a shell takes it as one word: it is untrusted.
fn word(name: &str) -> &str {
    if super::words::is_plain(name) {
        name
    } else {
        "DEV"
    }
}
