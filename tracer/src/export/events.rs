//! Writes every event as a line for people (`--events`): what was seen, as it was seen, judged by nobody.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::time::Duration;

use tracer_common::packet::{
    Layer, Packet, TCP_ACK, TCP_FIN, TCP_PSH, TCP_RST, TCP_SYN, Tunnel, TunnelPorts,
};

use crate::clock::Clock;
use crate::decode;
use crate::devices::{Devices, tunnel_port};
use crate::escape::Escaped;
use crate::event::{Death, DeviceId, Event, Skb, Socket, SocketHook, Symbol, What};
use crate::record::Record;
use crate::report::Time;

/// Turns the record stream into lines.
#[derive(Debug)]
pub struct EventLog<W> {
    output: W,
    devices: Devices,
    ports: TunnelPorts,
    clock: Clock,
}

impl<W: Write> EventLog<W> {
    /// Writes to `output`, a line at once for each event.
    pub fn new(output: W) -> Self {
        Self {
            output,
            devices: Devices::default(),
            ports: TunnelPorts::NONE,
            clock: Clock::default(),
        }
    }

    /// Writes an event, and remembers what else is needed to write the next ones.
    pub fn push(&mut self, record: &Record) -> io::Result<()> {
        match record {
            Record::Event(event) => {
                let line = self.line(event);
                writeln!(self.output, "{line}")?;
            }
            Record::Device(device) => {
                if let Some((port, tunnel)) = tunnel_port(device) {
                    self.ports.declare(port, tunnel);
                }
                self.devices.push(device);
            }
            // The latest pair is the nearest earlier one of whatever comes next.
            Record::Clock(pair) => self.clock = Clock::from_pairs(vec![*pair]),
            Record::Header(_) | Record::Fact(_) | Record::Ledger(_) | Record::Trailer(_) => {}
        }
        Ok(())
    }

    /// Makes all lines visible.
    pub fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }

    fn line(&self, event: &Event) -> String {
        let time = self
            .clock
            .realtime_ns(event.time_ns)
            .and_then(|realtime_ns| u64::try_from(realtime_ns).ok())
            .map_or_else(
                || format!("{:.6}", Duration::from_nanos(event.time_ns).as_secs_f64()),
                |realtime_ns| Time::from_unix_ns(realtime_ns).clock(),
            );
        let (word, details) = match &event.what {
            What::Xmit { skb } => ("xmit", self.packet(skb)),
            What::Receive { skb } => ("receive", self.packet(skb)),
            What::Consume { skb } => ("consume", self.packet(skb)),
            What::Drop { skb, death: dead } => {
                ("drop", format!("{}  {}", self.packet(skb), death(dead)))
            }
            What::XmitFailed { result, .. } => ("refused", format!("by the driver: {result}")),
            What::Socket { hook, socket: seen } => ("socket", socket(*hook, seen)),
        };
        format!("{time}  {word:<7}  {}  {details}", self.place(event))
    }

    fn place(&self, event: &Event) -> String {
        let device = event.netns.zip(event.ifindex).map(|(netns, ifindex)| {
            match self.devices.get(DeviceId { netns, ifindex }) {
                Some(device) => Escaped(&device.name).to_string(),
                None => format!("ifindex {ifindex}"),
            }
        });
        let netns = event
            .netns
            .map(|netns| match self.devices.netns_name(netns) {
                Some(name) => format!("netns {}", Escaped(name)),
                None => format!("netns {}", netns.inum),
            });
        match (device, netns) {
            (Some(device), Some(netns)) => format!("{device} ({netns})"),
            (Some(place), None) | (None, Some(place)) => place,
            (None, None) => "-".to_owned(),
        }
    }

    fn packet(&self, skb: &Skb) -> String {
        let packet = decode::parse(skb, &self.ports);
        let sealed = decode::sealed(skb, &self.ports);
        let Some(inner) = sealed.as_ref().unwrap_or(&packet).inner() else {
            return format!("ethertype 0x{:04x}  {} bytes", skb.protocol, skb.len_bytes);
        };
        let quoted = packet
            .quoted()
            .map(|quoted| format!("about {}", layer(quoted)));
        let layers = packet.layers().iter();
        let tunnels = layers.chain(sealed.iter().flat_map(Packet::layers));
        let tunnels = tunnels.filter_map(tunnel);
        let parts: Vec<String> = std::iter::once(layer(inner))
            .chain(quoted)
            .chain(tunnels)
            .collect();
        parts.join("  ")
    }
}

/// Addresses, protocol, kind of packet and size.
fn layer(layer: &Layer) -> String {
    let (src, dst) = (layer.src_addr(), layer.dst_addr());
    let (from, to) = (
        SocketAddr::new(src, layer.src_port),
        SocketAddr::new(dst, layer.dst_port),
    );
    let what = if layer.is_tcp() {
        format!(
            "{from} → {to} tcp {} seq {} ack {}",
            flags(layer),
            layer.seq,
            layer.ack
        )
    } else if layer.is_udp() {
        format!("{from} → {to} udp")
    } else if layer.is_icmp() {
        format!(
            "{src} → {dst} icmp type {} code {}",
            layer.icmp_type, layer.icmp_code
        )
    } else {
        format!("{src} → {dst} protocol {}", layer.protocol)
    };
    format!("{what}  {} bytes", layer.packet_len)
}

fn flags(layer: &Layer) -> String {
    let names = [
        (TCP_SYN, "SYN"),
        (TCP_FIN, "FIN"),
        (TCP_RST, "RST"),
        (TCP_PSH, "PSH"),
        (TCP_ACK, "ACK"),
    ];
    let set: Vec<&str> = names
        .iter()
        .filter(|(flag, _)| layer.tcp_flags & flag != 0)
        .map(|(_, name)| *name)
        .collect();
    if set.is_empty() {
        "no flags".to_owned()
    } else {
        set.join("-")
    }
}

/// The tunnel that a layer carries.
fn tunnel(layer: &Layer) -> Option<String> {
    let kind = match layer.tunnel {
        Tunnel::None => return None,
        Tunnel::Vxlan => "vxlan",
        Tunnel::Geneve => "geneve",
        Tunnel::IpInIp => "ipip",
        Tunnel::Wireguard => "wireguard",
    };
    let vni = if layer.tunnel.has_vni() {
        format!(" vni {}", layer.vni)
    } else {
        String::new()
    };
    Some(format!(
        "in {kind}{vni} {} → {}",
        layer.src_addr(),
        layer.dst_addr()
    ))
}

fn death(death: &Death) -> String {
    let reason = death.reason.as_deref().unwrap_or("no reason given");
    let frames: Vec<String> = std::iter::once(&death.location)
        .chain(&death.callers)
        .map(Symbol::to_string)
        .collect();
    format!("{} in {}", Escaped(reason), Escaped(&frames.join(" ← ")))
}

fn socket(hook: SocketHook, socket: &Socket) -> String {
    let hook = match hook {
        SocketHook::State => "state",
        SocketHook::RetransmitSkb => "retransmits",
        SocketHook::RetransmitSynack => "retransmits SYN-ACK",
        SocketHook::ResetSent => "sends RST",
        SocketHook::ResetReceived => "receives RST",
    };
    let states = match (socket.old_state, socket.new_state) {
        (Some(old), Some(new)) => format!(" {old:?} → {new:?}"),
        (None, Some(new)) => format!(" {new:?}"),
        (Some(old), None) => format!(" in {old:?}"),
        (None, None) => String::new(),
    };
    let process = socket
        .process
        .as_ref()
        .map(|process| format!("  {}[{}]", Escaped(&process.comm), process.pid));
    format!(
        "{hook}{states}  local {} remote {}{}",
        SocketAddr::new(socket.local_addr, socket.local_port),
        SocketAddr::new(socket.remote_addr, socket.remote_port),
        process.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use bytes::Bytes;

    use super::EventLog;
    use crate::event::{
        Death, DeviceId, Event, NetnsId, Process, Skb, SkbId, Socket, SocketHook, Symbol, TcpState,
        What,
    };
    use crate::record::{ClockPair, Device, Record};

    const NETNS: NetnsId = NetnsId {
        inum: 4_026_532_301,
        cookie: 1,
    };

    fn device() -> Device {
        Device {
            id: DeviceId {
                netns: NETNS,
                ifindex: 2,
            },
            netns_name: Some("redis\n".to_owned()),
            name: "eth0\u{1b}[2J".to_owned(),
            kind: "veth".to_owned(),
            mtu: 1500,
            up: true,
            mac: None,
            peer: None,
            master_ifindex: None,
            vni: None,
            udp_port: None,
            underlay_ifindex: None,
            underlay_netns: None,
            addrs: Vec::new(),
            removed: false,
        }
    }

    fn event(ifindex: Option<u32>, what: What) -> Record {
        Record::Event(Box::new(Event {
            time_ns: 1_000_000_000,
            cpu: 0,
            sequence: 1,
            netns: Some(NETNS),
            ifindex,
            what,
        }))
    }

    /// A SYN from 10.0.0.1:1234 to 10.0.0.2:80.
    fn syn() -> Skb {
        let headers = b"\x45\0\0\x28\0\0\0\0\x40\x06\0\0\x0a\0\0\x01\x0a\0\0\x02\
            \x04\xd2\0\x50\0\0\0\x07\0\0\0\0\x50\x02\0\0\0\0\0\0";
        Skb {
            id: SkbId(1),
            len_bytes: 40,
            mark: 0,
            protocol: 0x0800,
            vlan_tci: 0,
            gso_size: 0,
            pkt_type: 0,
            budget_spent: false,
            ethernet: false,
            headers: Bytes::from_static(headers),
            sealed: Bytes::new(),
        }
    }

    #[test]
    fn each_event_is_one_harmless_line() {
        let mut log = EventLog::new(Vec::new());
        let symbol = |function: &str| Symbol {
            function: function.to_owned(),
            offset: 16,
        };
        let records = [
            event(Some(2), What::Xmit { skb: syn() }),
            Record::Clock(ClockPair {
                monotonic_ns: 500_000_000,
                realtime_ns: 1_764_590_584_000_000_000,
            }),
            Record::Device(Box::new(device())),
            event(Some(2), What::Receive { skb: syn() }),
            event(
                None,
                What::Drop {
                    skb: Skb {
                        headers: Bytes::new(),
                        ..syn()
                    },
                    death: Death {
                        reason: Some("NETFILTER_DROP".to_owned()),
                        location: symbol("nf_hook_slow"),
                        callers: vec![symbol("ip_forward")],
                        result: None,
                    },
                },
            ),
            event(
                None,
                What::Socket {
                    hook: SocketHook::State,
                    socket: Socket {
                        local_addr: IpAddr::V4(Ipv4Addr::LOCALHOST),
                        local_port: 80,
                        remote_addr: IpAddr::V4(Ipv4Addr::LOCALHOST),
                        remote_port: 1234,
                        old_state: Some(TcpState::SynRecv),
                        new_state: Some(TcpState::Established),
                        process: Some(Process {
                            pid: 7,
                            comm: "\u{202e}x".to_owned(),
                        }),
                        again: None,
                    },
                },
            ),
        ];
        for record in &records {
            log.push(record).expect("memory takes everything");
        }
        let lines = String::from_utf8(log.output).expect("lines are UTF-8");
        insta::assert_snapshot!(lines);
    }
}
