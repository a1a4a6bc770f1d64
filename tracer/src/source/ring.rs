//! Empties the ring and turns its records into [`Event`]s: the only place that knows both.
//!
//! What a record says is checked by length, kind and range; one that does not hold is counted and skipped. Kernel
//! addresses end here: an skb becomes an [`SkbId`], and code becomes a [`Symbol`].

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::Arc,
};

use aya::maps::{MapData, RingBuf};
use bytes::Bytes;
use tracer_common::event::{
    DropRecord, EventHeader, HEADER_BYTES_MAX, Kind, PacketRecord, SOCKET_HAS_OWNER,
    SOCKET_SENDS_AGAIN, START_ETHERNET, START_IP, SkbInfo, SocketRecord, XmitFailedRecord,
};
use zerocopy::FromBytes;

use crate::{
    event::{
        Again, Death, Event, NetnsId, Process, Skb, SkbId, Socket, SocketHook, Symbol, TcpState,
        What,
    },
    kernel::{drop_reasons::DropReasons, symbols::Symbols},
};

/// How many records one call of [`Ring::drain`] takes at most, so that the caller gets to do other things.
const DRAIN_MAX: usize = 65_536;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// The ring of a running trace. Nothing wakes its reader while it is less than half full: it is to be drained
/// every 10 ms, and whenever its descriptor is readable.
pub struct Ring {
    records: RingBuf<MapData>,
    decoder: Decoder,
    delivered: u64,
    undecodable: u64,
}

impl Ring {
    /// Takes over the ring's map.
    pub fn new(records: RingBuf<MapData>, symbols: Arc<Symbols>, reasons: DropReasons) -> Self {
        Self {
            records,
            decoder: Decoder {
                key: SkbKey::random(),
                symbols,
                reasons,
            },
            delivered: 0,
            undecodable: 0,
        }
    }

    /// Hands over what waits in the ring, at most a bounded number of events, and says whether it is empty now.
    pub fn drain(&mut self, mut sink: impl FnMut(Event)) -> bool {
        for _ in 0..DRAIN_MAX {
            let Some(record) = self.records.next() else {
                return true;
            };
            self.delivered += 1;
            match self.decoder.decode(&record) {
                Some(event) => sink(event),
                None => self.undecodable += 1,
            }
        }
        false
    }

    /// How many records were taken out of the ring so far.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// How many of them could not be decoded.
    pub fn undecodable(&self) -> u64 {
        self.undecodable
    }
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.records.as_fd()
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.records.as_raw_fd()
    }
}

/// What it takes to understand a record.
struct Decoder {
    key: SkbKey,
    symbols: Arc<Symbols>,
    reasons: DropReasons,
}

impl Decoder {
    /// The event in a record, or `None` for a record that no hook writes.
    fn decode(&self, record: &[u8]) -> Option<Event> {
        let (header, _) = EventHeader::read_from_prefix(record).ok()?;
        let what = match Kind::from_number(header.kind)? {
            Kind::Xmit => What::Xmit {
                skb: self.packet(record)?,
            },
            Kind::Receive => What::Receive {
                skb: self.packet(record)?,
            },
            Kind::Consume => What::Consume {
                skb: self.packet(record)?,
            },
            Kind::Drop => self.dropped(record)?,
            Kind::XmitFailed => {
                let (record, _) = XmitFailedRecord::read_from_prefix(record).ok()?;
                What::XmitFailed {
                    skb: self.key.mix(record.skb),
                    result: record.result,
                    len_bytes: Some(record.len_bytes),
                }
            }
            Kind::SockState => socket(SocketHook::State, record)?,
            Kind::RetransmitSkb => socket(SocketHook::RetransmitSkb, record)?,
            Kind::RetransmitSynack => socket(SocketHook::RetransmitSynack, record)?,
            Kind::ResetSent => socket(SocketHook::ResetSent, record)?,
            Kind::ResetReceived => socket(SocketHook::ResetReceived, record)?,
        };
        Some(Event {
            time_ns: header.timestamp_ns,
            cpu: header.cpu,
            sequence: header.sequence,
            netns: (header.netns_inum != 0).then_some(NetnsId {
                inum: header.netns_inum,
                cookie: header.netns_cookie,
            }),
            ifindex: (header.ifindex != 0).then_some(header.ifindex),
            what,
        })
    }

    fn packet(&self, record: &[u8]) -> Option<Skb> {
        let (record, rest) = PacketRecord::read_from_prefix(record).ok()?;
        self.skb(&record.skb, rest)
    }

    fn dropped(&self, record: &[u8]) -> Option<What> {
        let (record, rest) = DropRecord::read_from_prefix(record).ok()?;
        let stack = record.stack.get(..record.stack_len as usize)?;
        Some(What::Drop {
            skb: self.skb(&record.skb, rest)?,
            death: Death {
                reason: self.reasons.name(record.reason),
                location: self.symbols.caller(record.location),
                callers: self.callers(record.location, stack),
                result: None,
            },
        })
    }

    /// The frames behind the one that freed the packet. Those before it are the tracepoint's and ours; where none
    /// is the one that freed it, all of them may be. Nor does a frame without a name tell anything.
    fn callers(&self, location: u64, stack: &[u64]) -> Vec<Symbol> {
        let own = stack.iter().position(|frame| *frame == location);
        let frames = match own {
            Some(own) if !self.symbols.is_empty() => &stack[own + 1..],
            _ => &[],
        };
        frames
            .iter()
            .map(|frame| self.symbols.caller(*frame))
            .collect()
    }

    fn skb(&self, info: &SkbInfo, rest: &[u8]) -> Option<Skb> {
        let ethernet = match info.start {
            START_ETHERNET => true,
            START_IP => false,
            _ => return None,
        };
        let header_len = usize::from(info.header_len);
        let sealed_len = usize::from(info.sealed_len);
        if header_len > HEADER_BYTES_MAX || sealed_len > HEADER_BYTES_MAX {
            return None;
        }
        // The ring pads what follows to eight bytes.
        let (headers, rest) = rest.split_at_checked(header_len)?;
        Some(Skb {
            id: self.key.mix(info.skb),
            len_bytes: info.len_bytes,
            mark: info.mark,
            protocol: info.protocol,
            vlan_tci: info.vlan_tci,
            gso_size: info.gso_size,
            pkt_type: info.pkt_type,
            budget_spent: info.budget_spent == 1,
            ethernet,
            headers: Bytes::copy_from_slice(headers),
            sealed: Bytes::copy_from_slice(rest.get(..sealed_len)?),
        })
    }
}

fn socket(hook: SocketHook, record: &[u8]) -> Option<What> {
    let (record, _) = SocketRecord::read_from_prefix(record).ok()?;
    let address = |bytes: [u8; 16]| {
        let [a, b, c, d, ..] = bytes;
        match record.family {
            AF_INET => Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d))),
            AF_INET6 => Some(IpAddr::V6(Ipv6Addr::from(bytes))),
            _ => None,
        }
    };
    Some(What::Socket {
        hook,
        socket: Socket {
            local_addr: address(record.local_addr)?,
            local_port: record.local_port,
            remote_addr: address(record.remote_addr)?,
            remote_port: record.remote_port,
            old_state: TcpState::from_number(record.old_state),
            new_state: TcpState::from_number(record.new_state),
            process: (record.known & SOCKET_HAS_OWNER != 0).then(|| Process {
                pid: record.pid,
                comm: comm(&record.comm),
            }),
            again: (record.known & SOCKET_SENDS_AGAIN != 0).then_some(Again {
                snd_una: record.snd_una,
                seq: record.seq,
            }),
        },
    })
}

/// The name up to its first NUL, whatever its bytes are.
fn comm(bytes: &[u8]) -> String {
    let name = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// A permutation of 64-bit numbers that differs from run to run: a Feistel network over the two halves.
struct SkbKey([u64; 4]);

impl SkbKey {
    fn random() -> Self {
        // The standard library keys this hasher from the system's randomness.
        let random = RandomState::new();
        Self([0u8, 1, 2, 3].map(|round| random.hash_one(round)))
    }

    fn mix(&self, address: u64) -> SkbId {
        let (mut left, mut right) = ((address >> 32) as u32, address as u32);
        for key in self.0 {
            let mut round = (u64::from(right) ^ key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            round ^= round >> 29;
            round = round.wrapping_add(key).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (left, right) = (right, left ^ (round >> 32) as u32);
        }
        SkbId(u64::from(left) << 32 | u64::from(right))
    }
}

#[cfg(test)]
#[path = "ring_tests.rs"]
mod tests;
