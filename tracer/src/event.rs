//! What was seen, in this program's own terms: an [`Event`] is one ring record with everything that only this
//! process could resolve already resolved. It owns its bytes and is what a capture stores.
//!
//! No kernel address is in it: skb addresses are mixed with a key of the run ([`SkbId`]), and code addresses
//! are named ([`Symbol`]).

use std::fmt;
use std::net::IpAddr;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A network namespace. Inode numbers are reused, so the kernel's cookie goes with them.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct NetnsId {
    /// `net->ns.inum`, the number in `/proc/PID/ns/net`.
    pub inum: u32,
    /// `net->net_cookie`; 0 on kernels that have none (before 5.12).
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cookie: u64,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
fn is_zero(cookie: &u64) -> bool {
    *cookie == 0
}

/// A device: an ifindex means nothing without its namespace.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct DeviceId {
    /// The namespace that the device is in.
    pub netns: NetnsId,
    /// The interface index in that namespace, from 1.
    pub ifindex: u32,
}

/// Stands for the address of an skb: equal where the address was equal, and nothing else can be told from it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct SkbId(pub u64);

/// A place in the kernel's code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Symbol {
    /// The function's name in kallsyms, or empty where the address belongs to none.
    pub function: String,
    /// Bytes from the start of the function.
    pub offset: u32,
}

impl Symbol {
    /// The function's name without the suffixes that compilers add (`.isra.0`, `.constprop.0`, `.cold`).
    pub fn plain_name(&self) -> &str {
        self.function.split('.').next().unwrap_or_default()
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.function.is_empty() {
            return f.write_str("?");
        }
        write!(f, "{}+0x{:x}", self.function, self.offset)
    }
}

/// One thing that the kernel reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Event {
    /// CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// The CPU that reported it.
    pub cpu: u16,
    /// Orders the events of one CPU.
    pub sequence: u32,
    /// The namespace, where the packet or socket told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netns: Option<NetnsId>,
    /// The device, where the packet had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifindex: Option<u32>,
    /// What happened.
    #[serde(flatten)]
    pub what: What,
}

/// What happened, by hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum What {
    /// The skb was handed to a device's driver.
    Xmit {
        /// The packet.
        skb: Skb,
    },
    /// The skb entered the receive path of a device.
    Receive {
        /// The packet.
        skb: Skb,
    },
    /// The TCP state machine took the skb: a listener accepted a SYN for processing.
    Consume {
        /// The packet.
        skb: Skb,
    },
    /// The skb was freed as dropped.
    Drop {
        /// The packet.
        skb: Skb,
        /// Why and where.
        death: Death,
    },
    /// A driver refused the skb. The skb may be gone already, so only its identity is known.
    XmitFailed {
        /// The packet's identity, to be joined with the `Xmit` just before it on the same CPU.
        skb: SkbId,
        /// The driver's result (`netdev_tx_t`, or a negative errno).
        result: i32,
        /// The skb's length as it was handed over; captures of before it was told have none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        len_bytes: Option<u32>,
    },
    /// A TCP socket said something.
    Socket {
        /// Which hook.
        hook: SocketHook,
        /// The socket.
        socket: Socket,
    },
}

/// The hooks that report sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SocketHook {
    /// `inet_sock_set_state`.
    State,
    /// `tcp_retransmit_skb`.
    RetransmitSkb,
    /// `tcp_retransmit_synack`.
    RetransmitSynack,
    /// `tcp_send_reset`.
    ResetSent,
    /// `tcp_receive_reset`.
    ResetReceived,
}

/// A packet at a hook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Skb {
    /// Which skb.
    pub id: SkbId,
    /// The length of the skb from the first byte of `headers` on. Padding counts, so the IP header's own length is
    /// the packet's size.
    pub len_bytes: u32,
    /// `skb->mark`.
    #[serde(default, skip_serializing_if = "is_zero_u32")]
    pub mark: u32,
    /// `skb->protocol`, an EtherType.
    pub protocol: u16,
    /// The VLAN tag in metadata, or 0.
    #[serde(default, skip_serializing_if = "is_zero_u16")]
    pub vlan_tci: u16,
    /// The size of the segments that this packet will be cut into, or 0.
    #[serde(default, skip_serializing_if = "is_zero_u16")]
    pub gso_size: u16,
    /// `skb->pkt_type`.
    pub pkt_type: u8,
    /// This sighting took the last of its flow's budget: what followed may have been held back, for how long says
    /// [`tracer_common::budget`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub budget_spent: bool,
    /// Whether `headers` begin with an Ethernet header (else with an IP header).
    pub ethernet: bool,
    /// The packet's first bytes: headers only.
    #[serde(with = "hex")]
    #[schemars(with = "String", regex(pattern = "^([0-9a-f]{2})*$"))]
    pub headers: Bytes,
    /// Where this is a WireGuard datagram: the first bytes of the packet that is encrypted in it, from its IP header on, as
    /// the device had it before it was encrypted or after it was decrypted; headers only. Else empty.
    #[serde(with = "hex", default, skip_serializing_if = "Bytes::is_empty")]
    #[schemars(with = "String", regex(pattern = "^([0-9a-f]{2})*$"))]
    pub sealed: Bytes,
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
fn is_zero_u32(value: &u32) -> bool {
    *value == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes fields by reference"
)]
fn is_zero_u16(value: &u16) -> bool {
    *value == 0
}

/// Why an skb was freed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Death {
    /// The name in the running kernel's `enum skb_drop_reason` without its prefix, or `None` where the kernel gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The function that freed it.
    pub location: Symbol,
    /// Its callers, nearest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<Symbol>,
    /// What the driver that freed it returned, which another event tells: the flow's table adds it.
    #[serde(skip)]
    pub result: Option<i32>,
}

/// Where the kernel takes up a packet that waited: what called these was busy with something else, if only with the packet
/// whose transmission happened to run the queues.
const BEGINNINGS: [&str; 6] = [
    "process_backlog",
    "net_rx_action",
    "net_tx_action",
    "handle_softirqs",
    "__do_softirq",
    "do_softirq",
];

impl Death {
    /// Whether the kernel says why.
    pub fn has_reason(&self) -> bool {
        self.reason
            .as_deref()
            .is_some_and(|reason| !matches!(reason, "" | "NOT_SPECIFIED"))
    }

    /// The callers that worked on this packet, nearest first.
    pub fn own_callers(&self) -> &[Symbol] {
        let begins = |symbol: &Symbol| BEGINNINGS.contains(&symbol.plain_name());
        let end = self.callers.iter().position(begins);
        &self.callers[..end.unwrap_or(self.callers.len())]
    }
}

/// A TCP socket, as seen from its own side.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Socket {
    /// The local address; unspecified where the hook had none.
    pub local_addr: IpAddr,
    /// The local port.
    pub local_port: u16,
    /// The remote address.
    pub remote_addr: IpAddr,
    /// The remote port.
    pub remote_port: u16,
    /// The TCP state before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old_state: Option<TcpState>,
    /// The TCP state now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new_state: Option<TcpState>,
    /// Who opened it with `connect` or `listen`, where that was seen. A listener's requests are its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// What the socket sends again, where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Again>,
}

/// A segment that a socket sends again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Again {
    /// The first sequence number that the other end has not acknowledged.
    pub snd_una: u32,
    /// The first sequence number of the segment.
    pub seq: u32,
}

/// A process. The name is untrusted: it is escaped wherever it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Process {
    /// The thread group id in the initial pid namespace.
    pub pid: u32,
    /// `task->comm`.
    pub comm: String,
}

/// `include/net/tcp_states.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TcpState {
    /// `TCP_ESTABLISHED`
    Established,
    /// `TCP_SYN_SENT`
    SynSent,
    /// `TCP_SYN_RECV`
    SynRecv,
    /// `TCP_FIN_WAIT1`
    FinWait1,
    /// `TCP_FIN_WAIT2`
    FinWait2,
    /// `TCP_TIME_WAIT`
    TimeWait,
    /// `TCP_CLOSE`
    Close,
    /// `TCP_CLOSE_WAIT`
    CloseWait,
    /// `TCP_LAST_ACK`
    LastAck,
    /// `TCP_LISTEN`
    Listen,
    /// `TCP_CLOSING`
    Closing,
    /// `TCP_NEW_SYN_RECV`
    NewSynRecv,
}

impl TcpState {
    /// The state with this number in the kernel, or `None` for any other number.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Established,
            2 => Self::SynSent,
            3 => Self::SynRecv,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Close,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            12 => Self::NewSynRecv,
            _ => return None,
        })
    }
}

/// Header bytes as lower-case hexadecimal.
mod hex {
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    const DIGITS: &[u8; 16] = b"0123456789abcdef";

    pub(super) fn serialize<S: Serializer>(
        bytes: &Bytes,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let text: String = bytes
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .map(|nibble| char::from(DIGITS[usize::from(nibble)]))
            .collect();
        serializer.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Bytes, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |byte: u8| {
            char::from(byte)
                .to_digit(16)
                .and_then(|value| u8::try_from(value).ok())
        };
        if !text.len().is_multiple_of(2) {
            return Err(D::Error::custom("an odd number of hexadecimal digits"));
        }
        if text.len() > 2 * tracer_common::event::HEADER_BYTES_MAX {
            return Err(D::Error::custom(
                "more header bytes than an event can carry",
            ));
        }
        text.as_bytes()
            .chunks_exact(2)
            .map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?))
            .collect::<Option<Vec<u8>>>()
            .map(Bytes::from)
            .ok_or_else(|| D::Error::custom("not a hexadecimal digit"))
    }
}
