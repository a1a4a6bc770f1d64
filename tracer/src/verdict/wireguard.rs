//! What a WireGuard device did with a packet. It hardly says so itself: what has no peer dies with an event, what has no
//! session waits and is dropped later, and what comes from an address that its peer may not have is consumed and counted.

use std::net::{IpAddr, SocketAddr};

use super::diagnosis::{Diagnosis, Evidence};
use super::question::routed;
use super::{Scene, words};
use crate::codes::{CauseCode, Stage};
use crate::event::DeviceId;
use crate::fact::{Fact, Wireguard, WireguardPeer};
use crate::flow::{Point, Sighting, TunnelKind};

/// The kind of a WireGuard device.
const KIND: &str = "wireguard";

/// `wg_xmit()` (drivers/net/wireguard/device.c): no peer has the destination among its AllowedIPs.
const ENOKEY: i32 = -126;
/// The peer that has it has no endpoint.
const EDESTADDRREQ: i32 = -89;

/// What killed a packet in `wg_xmit()`, by what that returned.
pub(super) const fn code_of_result(result: Option<i32>) -> CauseCode {
    match result {
        Some(ENOKEY) => CauseCode::WireguardAllowedIps,
        Some(EDESTADDRREQ) => CauseCode::WireguardNoPeer,
        _ => CauseCode::Unknown,
    }
}

impl Scene<'_> {
    /// What was read of a WireGuard device, oldest first.
    fn readings(&self, device: DeviceId) -> impl Iterator<Item = &Wireguard> {
        let facts = self.analysis.answers.iter();
        facts.filter_map(move |fact| match fact {
            Fact::Wireguard(reading) if reading.device == device => Some(&**reading),
            _ => None,
        })
    }

    /// The reading that is nearest to a time.
    fn reading(&self, device: DeviceId, time_ns: u64) -> Option<&Wireguard> {
        self.readings(device)
            .min_by_key(|reading| reading.asked_ns.abs_diff(time_ns))
    }

    /// Whether a packet was seen last when a WireGuard device was handed it.
    pub(super) fn is_in_wireguard(&self, at: &Sighting) -> bool {
        let device = at.device().and_then(|id| self.devices().get(id));
        at.point == Point::Xmit && device.is_some_and(|device| device.kind == KIND)
    }

    /// Whether nothing tells the datagrams of the WireGuard device in which a packet was seen last: its port is not known.
    pub(super) fn is_in_unread_wireguard(&self, at: &Sighting) -> bool {
        let device = at.device().and_then(|id| self.devices().get(id));
        self.is_in_wireguard(at) && device.is_some_and(|device| device.udp_port.is_none())
    }

    /// Why a packet that was seen last at a WireGuard device, or in one's datagram, was lost there without an event.
    pub(super) fn lost_in_wireguard(&self, at: &Sighting) -> Option<Diagnosis> {
        if self.is_in_wireguard(at) {
            self.no_session(at)
        } else {
            self.refused_source(at)
        }
    }

    /// The packet was handed to a device whose peer has no session: it waits for a handshake. Segments that the device cuts
    /// are not followed, so of what is to be cut nothing is known.
    fn no_session(&self, at: &Sighting) -> Option<Diagnosis> {
        let device = at.device()?;
        let dst = routed(at).1.ip();
        let reading = self.reading(device, self.now_ns)?;
        let peer = reading.peer_of(dst)?;
        let may_have_session = |reading: &Wireguard| {
            let of_it = reading.peers.iter();
            let mut of_it = of_it.filter(|other| other.public_key == peer.public_key);
            of_it.any(|peer| peer.may_have_session(at.time_ns))
        };
        // A session that was there before may have been thrown away with its peer, but one that is there afterwards would
        // have taken the packet along.
        let latest_ns = self
            .readings(device)
            .map(|reading| reading.asked_ns)
            .max()?;
        let since_ns = at.time_ns.min(latest_ns);
        let mut since = self.readings(device);
        if at.is_gso()
            || since.any(|reading| reading.asked_ns >= since_ns && may_have_session(reading))
        {
            return None;
        }
        let sent = self.moved(device, peer, |peer| peer.tx_bytes);
        let came = self.moved(device, peer, |peer| peer.rx_bytes);
        let heard = match (sent, came) {
            (Some(sent @ 1..), Some(0)) => format!(
                "{sent} bytes of handshakes were sent to it during the trace and nothing that it accepts came back: its address or port is wrong, something on the way eats them, it is down, or one of the two has a wrong public key for the other"
            ),
            _ => "see whether it is up, and whether each has the other's public key".to_owned(),
        };
        let latest = match peer.latest_handshake_ns {
            None => "no handshake has ever succeeded".to_owned(),
            Some(latest_ns) => format!(
                "the latest handshake was {} before",
                words::duration(at.time_ns.saturating_sub(latest_ns))
            ),
        };
        Some(Diagnosis {
            code: CauseCode::WireguardNoSession,
            stage: Stage::Encap,
            phrase: format!(
                "WireGuard has no session with peer {}: {latest}",
                peer_words(peer)
            ),
            detail: Some(heard),
            evidence: vec![evidence(reading, &[peer])],
        })
    }

    /// By how much a number of a peer rose from the first reading to the last; `None` where there is only one.
    fn moved(
        &self,
        device: DeviceId,
        peer: &WireguardPeer,
        number: impl Fn(&WireguardPeer) -> u64,
    ) -> Option<u64> {
        let mut numbers = self.readings(device).filter_map(|reading| {
            let mut peers = reading.peers.iter();
            let same = peers.find(|other| other.public_key == peer.public_key)?;
            Some(number(same))
        });
        let first = numbers.next()?;
        Some(numbers.last()?.saturating_sub(first))
    }

    /// The packet came in a datagram whose sender may not have its source address (`wg_packet_consume_data_done()`): the
    /// device counts that, and tells nothing else.
    fn refused_source(&self, at: &Sighting) -> Option<Diagnosis> {
        let tunnel = at.tunnels.first()?;
        if tunnel.kind != TunnelKind::Wireguard || at.point != Point::Receive {
            return None;
        }
        let port = tunnel.udp_port?;
        let mut here = self.devices().iter().filter(|device| {
            Some(device.id.netns) == at.netns
                && device.kind == KIND
                && device.udp_port == Some(port)
        });
        let device = here.next()?;
        let counter = self.analysis.facts.iter().find(|fact| {
            matches!(fact, Fact::DeviceCounter { device: of, name, .. }
                if *of == device.id && name == "rx_frame_errors")
        })?;
        let src = source_inside(at);
        let reading = self.reading(device.id, at.time_ns)?;
        let is_sender = |peer: &&WireguardPeer| {
            peer.endpoint.is_some_and(|endpoint| {
                endpoint.ip() == tunnel.outer_src && Some(endpoint.port()) == tunnel.udp_src_port
            })
        };
        let sender = reading.peers.iter().find(is_sender);
        let owner = reading.peer_of(src);
        if owner.is_some() && owner == sender || reading.truncated {
            return None;
        }
        let whose = match owner {
            Some(owner) => format!("it belongs to peer {}", peer_words(owner)),
            None => "no peer has it".to_owned(),
        };
        let from = sender.map_or_else(
            || format!("the peer at {}", tunnel.outer_src),
            |sender| format!("peer {}", peer_words(sender)),
        );
        let known: Vec<&WireguardPeer> = sender.into_iter().chain(owner).collect();
        Some(Diagnosis {
            code: CauseCode::WireguardAllowedIps,
            stage: Stage::Decap,
            phrase: format!(
                "{} does not take {src} from {from}: AllowedIPs there do not say that it has this address ({whose})",
                device.name
            ),
            detail: Some(format!(
                "rx_frame_errors of {} rose during the trace, which counts such packets but does not tell which",
                device.name
            )),
            evidence: vec![Evidence::Fact(counter.clone()), evidence(reading, &known)],
        })
    }

    /// Says more of a death in `wg_xmit()`, or of one in the queue of a peer without a session.
    pub(super) fn explain_wireguard(&self, dead: &Sighting, diagnosis: &mut Diagnosis) {
        let Some(device) = dead.device() else {
            return;
        };
        let dst = routed(dead).1.ip();
        let Some(reading) = self.reading(device, dead.time_ns) else {
            return;
        };
        let peer = reading.peer_of(dst);
        // What was read fits the death only where nothing changed in between.
        match (diagnosis.code, peer) {
            (CauseCode::WireguardAllowedIps, None) if !reading.truncated => {
                let known: Vec<&WireguardPeer> = reading.peers.iter().collect();
                diagnosis.evidence.push(evidence(reading, &known));
            }
            (CauseCode::WireguardNoPeer, Some(peer)) if peer.endpoint.is_none() => {
                diagnosis.phrase = format!(
                    "because nobody told WireGuard the endpoint of peer {}, which has {dst}, and the peer has not called yet",
                    peer_words(peer)
                );
                diagnosis.evidence.push(evidence(reading, &[peer]));
            }
            (CauseCode::WireguardNoSession, Some(peer)) => {
                diagnosis.phrase = format!(
                    "by WireGuard, which gave up waiting for a session with peer {}",
                    peer_words(peer)
                );
                diagnosis.evidence.push(evidence(reading, &[peer]));
            }
            _ => {}
        }
    }
}

/// The source of the packet inside, by which WireGuard judges it.
fn source_inside(at: &Sighting) -> IpAddr {
    let inner = at.tunnels.get(1).map(|tunnel| tunnel.outer_src);
    inner
        .or(at.icmp.map(|icmp| icmp.from))
        .unwrap_or(at.tuple.src.ip())
}

/// "BwcHBwcHBw… (192.0.2.7:51820)"
fn peer_words(peer: &WireguardPeer) -> String {
    let key = &peer.public_key;
    match peer.endpoint {
        Some(endpoint) => format!("{key}… ({endpoint})"),
        None => format!("{key}…"),
    }
}

/// " to WireGuard peer 192.0.2.7:51820", for a packet that left in a datagram to it; else nothing.
pub(super) fn to_peer(at: &Sighting) -> String {
    let outermost = at.tunnels.first();
    let datagram = outermost.filter(|tunnel| tunnel.kind == TunnelKind::Wireguard);
    let endpoint = datagram.and_then(|tunnel| Some((tunnel.outer_dst, tunnel.udp_port?)));
    endpoint.map_or_else(String::new, |endpoint| {
        format!(" to WireGuard peer {}", SocketAddr::from(endpoint))
    })
}

/// A reading, with these peers only.
fn evidence(reading: &Wireguard, peers: &[&WireguardPeer]) -> Evidence {
    let mut known: Vec<WireguardPeer> = Vec::new();
    for peer in peers {
        if !known.contains(*peer) {
            known.push((*peer).clone());
        }
    }
    Evidence::Fact(Fact::Wireguard(Box::new(Wireguard {
        peers: known,
        ..reading.clone()
    })))
}

/// What to run where WireGuard lost a packet.
pub(super) fn next(code: CauseCode, ns: &str, at: &Sighting, device: &str) -> String {
    let (src, dst) = (routed(at).0.ip(), routed(at).1.ip());
    match code {
        CauseCode::WireguardAllowedIps if at.point == Point::Receive => format!(
            "`{ns}wg show`: add {} to the AllowedIPs of the peer that has it, or see why the sender uses that address",
            source_inside(at)
        ),
        CauseCode::WireguardAllowedIps => format!(
            "`{ns}wg show {device} allowed-ips`: {dst} must be in those of one peer; if none should have it, `{ns}ip route get {dst} from {src}` tells why it is routed into {device}"
        ),
        CauseCode::WireguardNoPeer => format!(
            "`{ns}wg show {device} endpoints`, then `{ns}wg set {device} peer KEY endpoint HOST:PORT`, or let the peer call first (PersistentKeepalive there)"
        ),
        _ => format!(
            "`{ns}wg show {device}` here and on the peer: each must have the other's public key, and this endpoint must reach its listening port (a firewall on the way that lets UDP through both ways)"
        ),
    }
}
