//! What a capture holds, sighting by sighting: for tests of what the hooks hand over rather than of what is made of it.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use tracer::decode;
use tracer::event::{Event, Skb, What};
use tracer::record::{Ledger, Record};
use tracer_common::packet::{Packet, Tunnel, TunnelPorts};

/// Where the lab's VXLAN is.
const VXLAN_PORT: u16 = 4789;

/// Every record of a capture that was not compressed.
#[derive(Debug)]
pub struct Captured(Vec<Record>);

/// A packet at a hook.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The event.
    pub event: &'a Event,
    /// Its skb.
    pub skb: &'a Skb,
    /// Its headers.
    pub packet: Packet,
}

impl Captured {
    /// Reads it.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)?;
        let records = text.lines().map(serde_json::from_str);
        Ok(Self(
            records
                .collect::<Result<_, _>>()
                .context("reading the capture")?,
        ))
    }

    /// All events, in the order of the ring.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.0.iter().filter_map(|record| match record {
            Record::Event(event) => Some(&**event),
            _ => None,
        })
    }

    /// The packets, in the order of the ring.
    pub fn packets(&self) -> impl Iterator<Item = Seen<'_>> {
        let mut ports = TunnelPorts::NONE;
        ports.declare(VXLAN_PORT, Tunnel::Vxlan);
        self.events().filter_map(move |event| {
            let skb = match &event.what {
                What::Xmit { skb }
                | What::Receive { skb }
                | What::Consume { skb }
                | What::Drop { skb, .. } => skb,
                What::XmitFailed { .. } | What::Socket { .. } => return None,
            };
            let packet = decode::parse(skb, &ports);
            Some(Seen { event, skb, packet })
        })
    }

    /// The packets of a flow that has this port at either end, and the ICMP errors that quote one of them.
    pub fn of_port(&self, port: u16) -> Vec<Seen<'_>> {
        let has_port = |seen: &Seen<'_>| {
            let flow = seen.packet.flow();
            flow.is_some_and(|layer| layer.src_port == port || layer.dst_port == port)
        };
        self.packets().filter(has_port).collect()
    }

    /// The last ledger.
    pub fn ledger(&self) -> Result<Ledger> {
        let mut ledgers = self.0.iter().rev().filter_map(|record| match record {
            Record::Ledger(ledger) => Some(*ledger),
            _ => None,
        });
        ledgers.next().context("a capture without a ledger")
    }
}
