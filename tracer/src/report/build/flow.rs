//! A flow as the report tells it: its ends, its legs, its losses and its verdict.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use tracer_common::packet::IpProto;

use super::super::{
    At, Cause, CauseCode, Container, Endpoint, Evidence, Exchange, Flow, Hop, HopSizes, HopTunnel,
    Leg, Loss, Outer, PacketKind, Process, Protocol, Reset, Side, Stage, Translation, Tunnel,
    TunnelKind, Tuple, Verdict,
};
use super::Builder;
use crate::event::{NetnsId, SocketHook, Symbol};
use crate::fact::SocketOwner;
use crate::flow::copies::{End, Transmission};
use crate::flow::pairing::Flow as Attempt;
use crate::flow::{FiveTuple, Point, Sighting, Tunnel as SeenTunnel, TunnelKind as SeenKind};
use crate::owners::SocketId;
use crate::verdict::told::Told;
use crate::verdict::{self, Diagnosis, Judgement, Place, diagnosis, size};

impl Builder<'_> {
    pub(super) fn flow(&self, attempt: &Attempt<'_>, id: u64, judgement: Judgement<'_>) -> Flow {
        let request_kind = if attempt.request.is_empty() {
            PacketKind::Unseen
        } else {
            attempt.request_kind()
        };
        Flow {
            id,
            protocol: protocol(attempt.protocol),
            exchange: exchange(attempt),
            client: self.client(attempt),
            server: self.server(attempt),
            translations: self.translations(attempt),
            tunnels: tunnels(attempt),
            request: self.leg(request_kind, &attempt.request),
            reply: self.leg(attempt.reply_kind(), &attempt.reply),
            ack: attempt
                .is_tcp()
                .then(|| self.leg(PacketKind::Ack, &attempt.ack)),
            resets: self.resets(attempt),
            retransmits: retransmits(attempt),
            losses: judgement
                .losses
                .iter()
                .map(|loss| self.loss(loss, attempt))
                .collect(),
            verdict: self.verdict(judgement, attempt),
        }
    }

    fn client(&self, attempt: &Attempt<'_>) -> Endpoint {
        let sent_from = attempt
            .request
            .first()
            .map(Transmission::first)
            .filter(|first| first.point == Point::Xmit)
            .and_then(|first| first.netns);
        self.endpoint(attempt, attempt.client, true, sent_from)
    }

    fn server(&self, attempt: &Attempt<'_>) -> Endpoint {
        let is_local = |at: &Sighting| {
            let netns = at.netns.zip(Some(at.tuple.dst.ip()));
            netns.is_some_and(|(netns, addr)| self.analysis.devices.is_local(netns, addr))
        };
        let arrived = attempt
            .request
            .iter()
            .find_map(|request| match self.scene.end(request) {
                End::Consumed(at) | End::Delivered(at) => at.netns,
                // What dies on its last steps has found its host as well.
                End::Died(at) if is_local(at) => at.netns,
                _ => None,
            });
        self.endpoint(attempt, attempt.server, false, arrived)
    }

    /// One end, with what its socket told; the packets know its namespace where no socket did.
    fn endpoint(
        &self,
        attempt: &Attempt<'_>,
        address: SocketAddr,
        is_client: bool,
        seen_in: Option<NetnsId>,
    ) -> Endpoint {
        let socket = attempt
            .sockets
            .iter()
            .find(|seen| attempt.is_client(seen) == is_client && seen.socket.process.is_some());
        let during_ns = (attempt.first_ns(), attempt.last_ns());
        let seen_in = socket.and_then(|seen| seen.netns).or(seen_in);
        let (netns, process, container) = match socket.and_then(|seen| seen.socket.process.as_ref())
        {
            Some(process) => {
                let container = self.analysis.owners.container_of(process, during_ns);
                (seen_in, Some(process), container)
            }
            None => match self.socket_owner(attempt, is_client, seen_in) {
                Some(SocketOwner { netns, owner, .. }) => {
                    (Some(*netns), Some(&owner.process), owner.container.as_ref())
                }
                None => (seen_in, None, None),
            },
        };
        Endpoint {
            addr: address.ip(),
            port: has_ports(attempt.protocol).then_some(address.port()),
            process: process.map(|process| Process {
                pid: process.pid,
                comm: process.comm.clone(),
            }),
            container: container.map(|container| Container {
                id: container.id.clone(),
                runtime: container.runtime,
                pod_uid: container.pod_uid.clone(),
            }),
            pod: container.and_then(|container| container.pod.clone()),
            netns: netns.map(|netns| netns.inum),
            netns_name: netns.and_then(|netns| self.netns_name(netns)),
        }
    }

    /// Who had the socket of an end, by whichever of its addresses it has in its namespace; where that is not known, in any
    /// namespace that the flow was seen in, and there rather the connection itself than a listener.
    fn socket_owner(
        &self,
        attempt: &Attempt<'_>,
        is_client: bool,
        seen_in: Option<NetnsId>,
    ) -> Option<&SocketOwner> {
        let during_ns = (attempt.first_ns(), attempt.last_ns());
        let anywhere = || attempt.sightings().filter_map(|seen| seen.netns).collect();
        let namespaces: BTreeSet<NetnsId> = seen_in.map_or_else(anywhere, |netns| [netns].into());
        let sockets = namespaces.into_iter().flat_map(|netns| {
            attempt.forward.iter().map(move |tuple| {
                let (local, remote) = if is_client {
                    (tuple.src, tuple.dst)
                } else {
                    (tuple.dst, tuple.src)
                };
                SocketId {
                    netns,
                    protocol: tuple.protocol,
                    local,
                    remote,
                }
            })
        });
        sockets
            .filter_map(|socket| self.analysis.owners.of_socket(&socket, during_ns))
            .min_by_key(|answer| answer.remote.is_none())
    }

    /// Where the addresses changed on the way there and on the way back.
    fn translations(&self, attempt: &Attempt<'_>) -> Vec<Translation> {
        let furthest = [&attempt.request, &attempt.reply].map(|part| self.scene.furthest(part));
        let steps = furthest
            .into_iter()
            .flatten()
            .flat_map(|transmission| transmission.sightings().windows(2));
        let changes = steps.filter(|step| step[0].tuple != step[1].tuple);
        let told = |step: &[&Sighting]| Translation {
            stage: Stage::Nat,
            from: tuple(step[0].tuple),
            to: tuple(step[1].tuple),
            hop: self.hop(step[1]),
        };
        changes.map(told).collect()
    }

    fn leg(&self, kind: PacketKind, transmissions: &[Transmission<'_>]) -> Leg {
        let Some(furthest) = self.scene.furthest(transmissions) else {
            return Leg::never(kind);
        };
        Leg {
            kind,
            count: transmissions.len() as u64,
            first: transmissions
                .iter()
                .map(|each| each.first().time_ns)
                .min()
                .and_then(|first| self.time(first)),
            last: transmissions
                .iter()
                .map(|each| each.last().time_ns)
                .max()
                .and_then(|last| self.time(last)),
            path: self.path(furthest.sightings()),
        }
    }

    fn path(&self, sightings: &[&Sighting]) -> Vec<Hop> {
        let mut before_ns = None;
        let hops = sightings.iter().map(|sighting| {
            let since = before_ns.replace(sighting.time_ns);
            Hop {
                delay_ns: since.map(|since| sighting.time_ns.saturating_sub(since)),
                ..self.hop(sighting)
            }
        });
        hops.collect()
    }

    fn resets(&self, attempt: &Attempt<'_>) -> Vec<Reset> {
        let all: Vec<&Transmission<'_>> = attempt.refusals.iter().chain(&attempt.resets).collect();
        [Side::Client, Side::Server]
            .into_iter()
            .filter_map(|side| {
                let from_client = side == Side::Client;
                let mine =
                    |each: &&&Transmission<'_>| attempt.is_from_client(each.first()) == from_client;
                let mine: Vec<Transmission<'_>> =
                    all.iter().filter(mine).copied().cloned().collect();
                let leg = self.leg(PacketKind::Rst, &mine);
                (leg.count > 0).then_some(Reset {
                    from: side,
                    count: leg.count,
                    first: leg.first,
                    last: leg.last,
                    path: leg.path,
                })
            })
            .collect()
    }

    fn hop(&self, sighting: &Sighting) -> Hop {
        // What is around a WireGuard datagram's packet is seen again where it is decrypted.
        let outermost = sighting.tunnels.first();
        let tunnel = outermost
            .filter(|tunnel| tunnel.kind == SeenKind::Wireguard)
            .or(sighting.tunnels.last());
        Hop {
            time: self.time(sighting.time_ns),
            delay_ns: None,
            stage: self.stage(sighting),
            device: self.device_name(sighting),
            ifindex: sighting.ifindex,
            netns: sighting.netns.map(|netns| netns.inum),
            netns_name: sighting.netns.and_then(|netns| self.netns_name(netns)),
            function: location(sighting).map(Symbol::to_string),
            len: Some(sighting.packet_len),
            tunnel: tunnel.map(|tunnel| HopTunnel {
                kind: kind(tunnel.kind),
                vni: tunnel.vni,
            }),
            outer: tunnel.map(|tunnel| Outer {
                src: tunnel.outer_src,
                dst: tunnel.outer_dst,
                src_port: tunnel.udp_src_port,
                dst_port: tunnel.udp_src_port.and(tunnel.udp_port),
            }),
            mark: Some(sighting.mark).filter(|mark| *mark != 0),
        }
    }

    fn stage(&self, sighting: &Sighting) -> Stage {
        let tunnel = sighting
            .device()
            .is_some_and(|id| self.analysis.devices.is_tunnel(id));
        match sighting.point {
            Point::Xmit if tunnel => Stage::Encap,
            Point::Xmit => Stage::Egress,
            Point::Receive if tunnel => Stage::Decap,
            Point::Receive => Stage::Ingress,
            Point::Consume => Stage::Listener,
            Point::Refused(_) | Point::Drop(_) => Stage::Drop,
        }
    }

    fn device_name(&self, sighting: &Sighting) -> Option<String> {
        Some(self.analysis.devices.get(sighting.device()?)?.name.clone())
    }

    fn loss(&self, loss: &verdict::Loss<'_>, attempt: &Attempt<'_>) -> Loss {
        let place = Place {
            sighting: loss.sighting,
            stage: loss.diagnosis.stage,
        };
        Loss {
            packet: loss.packet,
            time: self.time(loss.sighting.time_ns),
            at: Some(self.at(place)),
            cause: Some(self.cause(&loss.diagnosis, loss.sighting, attempt)),
            innocent: loss.innocent,
            why: loss.why.clone(),
        }
    }

    fn verdict(&self, judgement: Judgement<'_>, attempt: &Attempt<'_>) -> Verdict {
        let cause = judgement.cause.as_ref().zip(judgement.at);
        Verdict {
            code: judgement.code,
            confidence: judgement.confidence,
            at: judgement.at.map(|place| self.at(place)),
            cause: cause.map(|(cause, place)| Cause {
                sizes: self.sizes(cause, place.sighting, attempt),
                ..self.cause(cause, place.sighting, attempt)
            }),
            summary: judgement.summary,
            next: judgement.next,
        }
    }

    fn at(&self, place: Place<'_>) -> At {
        let sighting = place.sighting;
        At {
            netns: sighting.netns.map(|netns| netns.inum),
            netns_name: sighting.netns.and_then(|netns| self.netns_name(netns)),
            device: self.device_name(sighting),
            ifindex: sighting.ifindex,
            function: location(sighting).map(Symbol::to_string),
            stage: place.stage,
            time: self.time(sighting.time_ns),
        }
    }

    fn cause(&self, cause: &Diagnosis, sighting: &Sighting, attempt: &Attempt<'_>) -> Cause {
        let death = match &sighting.point {
            Point::Drop(death) => Some(death),
            _ => None,
        };
        let devices = &self.analysis.devices;
        let here = || sighting.device().and_then(|id| devices.get(id));
        let told = (cause.code == CauseCode::Mtu).then(|| Told::of(attempt, sighting, &self.scene));
        let mtu = match &told {
            Some(told) => told.mtu,
            None => here().map(|device| device.mtu),
        };
        Cause {
            code: cause.code,
            drop_reason: death.and_then(|death| death.reason.clone()),
            function: death.map(|death| death.location.to_string()),
            callers: death
                .map(|death| death.own_callers().iter().map(Symbol::to_string).collect())
                .unwrap_or_default(),
            detail: cause.detail.clone(),
            evidence: cause
                .evidence
                .iter()
                .map(|evidence| self.evidence(evidence))
                .collect(),
            packet_len: Some(sighting.packet_len),
            segment_len: told.as_ref().map(|_| sighting.wire_len()),
            mtu,
            gso: told.as_ref().map(|_| sighting.is_gso()),
            dont_fragment: told.as_ref().map(|_| sighting.dont_fragment),
            icmp_sent: told.as_ref().map(|told| told.fate.is_sent()),
            icmp_delivered: told.as_ref().map(|told| told.fate.is_delivered()),
            sizes: Vec::new(),
            icmp_fate: told.map(|told| told.fate),
        }
    }

    fn sizes(
        &self,
        cause: &Diagnosis,
        sighting: &Sighting,
        attempt: &Attempt<'_>,
    ) -> Vec<HopSizes> {
        if cause.code != CauseCode::Mtu {
            return Vec::new();
        }
        let devices = &self.analysis.devices;
        let hops = size::by_hop(attempt, sighting, devices);
        let told = |hop: size::HopSizes| HopSizes {
            netns: hop.device.netns.inum,
            netns_name: self.netns_name(hop.device.netns),
            device: devices.get(hop.device).map(|device| device.name.clone()),
            ifindex: hop.device.ifindex,
            largest_seen: hop.seen,
            smallest_died: hop.died,
        };
        hops.into_iter().map(told).collect()
    }

    fn evidence(&self, evidence: &diagnosis::Evidence) -> Evidence {
        match evidence {
            diagnosis::Evidence::Event { time_ns, summary } => Evidence::Event {
                time: self.time(*time_ns),
                summary: summary.clone(),
            },
            diagnosis::Evidence::Fact(fact) => self.fact(fact),
        }
    }
}

fn protocol(number: u8) -> Protocol {
    match number {
        n if n == IpProto::Udp as u8 => Protocol::Udp,
        n if n == IpProto::Icmp as u8 => Protocol::Icmp,
        n if n == IpProto::Ipv6Icmp as u8 => Protocol::Icmp6,
        _ => Protocol::Tcp,
    }
}

fn has_ports(number: u8) -> bool {
    matches!(protocol(number), Protocol::Tcp | Protocol::Udp)
}

/// An echo's addresses have its identifier where those of others have ports.
fn port(protocol: u8, addr: SocketAddr) -> Option<u16> {
    has_ports(protocol).then_some(addr.port())
}

/// What tells the exchange from others between the same ends.
fn exchange(attempt: &Attempt<'_>) -> Option<Exchange> {
    // The numbers come from fields of 16 bits.
    let number = u16::try_from(attempt.number?).ok()?;
    match attempt.request_kind() {
        PacketKind::Query => Some(Exchange::Dns { id: number }),
        PacketKind::EchoRequest => Some(Exchange::Echo {
            id: attempt.client.port(),
            seq: number,
        }),
        _ => None,
    }
}

fn tuple(tuple: FiveTuple) -> Tuple {
    Tuple {
        src: tuple.src.ip(),
        src_port: port(tuple.protocol, tuple.src),
        dst: tuple.dst.ip(),
        dst_port: port(tuple.protocol, tuple.dst),
    }
}

fn location(sighting: &Sighting) -> Option<&Symbol> {
    match &sighting.point {
        Point::Drop(death) => Some(&death.location),
        _ => None,
    }
}

/// The copies beyond the first of each handshake packet, and the retransmissions that the sockets told beyond those of the SYN.
fn retransmits(attempt: &Attempt<'_>) -> u64 {
    // Datagrams without a number may all be different ones.
    let counts = attempt.is_tcp() || attempt.number.is_some();
    let again = |transmissions: &[Transmission<'_>]| {
        transmissions.len().saturating_sub(1) * usize::from(counts)
    };
    let told = attempt
        .sockets
        .iter()
        .filter(|seen| seen.hook == SocketHook::RetransmitSkb)
        .count();
    let data = told.saturating_sub(again(&attempt.request));
    (again(&attempt.request) + again(&attempt.reply) + data) as u64
}

const fn kind(kind: SeenKind) -> TunnelKind {
    match kind {
        SeenKind::Vxlan => TunnelKind::Vxlan,
        SeenKind::Geneve => TunnelKind::Geneve,
        SeenKind::IpInIp => TunnelKind::IpInIp,
        SeenKind::Wireguard => TunnelKind::Wireguard,
    }
}

fn tunnels(attempt: &Attempt<'_>) -> Vec<Tunnel> {
    let mut seen: Vec<SeenTunnel> = Vec::new();
    let mut sightings: Vec<&Sighting> = attempt.sightings().collect();
    sightings.sort_by_key(|sighting| sighting.order());
    for tunnel in sightings.iter().flat_map(|sighting| &sighting.tunnels) {
        if !seen.contains(tunnel) {
            seen.push(*tunnel);
        }
    }
    let told = |tunnel: SeenTunnel| Tunnel {
        kind: kind(tunnel.kind),
        vni: tunnel.vni,
        vni_meaning: tunnel
            .vni
            .and_then(|vni| vni_meaning(tunnel.kind, vni))
            .map(str::to_owned),
        outer_src: tunnel.outer_src,
        outer_dst: tunnel.outer_dst,
        udp_dst_port: tunnel.udp_port,
    };
    seen.into_iter().map(told).collect()
}

/// What a VNI stands for in the data planes that people run. A number alone proves nothing, so each names its condition.
fn vni_meaning(kind: SeenKind, vni: u32) -> Option<&'static str> {
    match (kind, vni) {
        // FelixConfiguration `vxlanVNI`.
        (SeenKind::Vxlan, 4096) => Some("Calico's default for every pod"),
        // flannel's backend option `VNI`.
        (SeenKind::Vxlan, 1) => Some("flannel's default for every pod"),
        // Cilium writes the source's numeric identity into the tunnel key, so the two directions differ.
        (SeenKind::Geneve | SeenKind::Vxlan, _) => {
            Some("with Cilium, the sender's security identity")
        }
        (SeenKind::IpInIp | SeenKind::Wireguard, _) => None,
    }
}
