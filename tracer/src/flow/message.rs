//! What a packet says to its flow: a TCP segment, a UDP datagram or an ICMP echo.

use std::fmt;
use std::ops::BitOr;

/// What a packet says. Two packets of one flow that say the same are copies of each other, or one sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Message {
    /// A TCP segment.
    Tcp(Segment),
    /// A UDP datagram.
    Udp(Datagram),
    /// An ICMP or ICMPv6 echo, request or reply.
    Echo(Echo),
}

impl Message {
    /// What a sender puts into each transmission of a message anew, where it does: the TCP timestamp, or the IP
    /// identification. Equal for all copies of one transmission, since nothing on the way changes it.
    pub fn transmission(self) -> Option<u32> {
        match self {
            Self::Tcp(segment) => segment.tsval,
            Self::Udp(Datagram { ip_id, .. }) | Self::Echo(Echo { ip_id, .. }) => {
                Some(u32::from(ip_id)).filter(|id| *id != 0)
            }
        }
    }

    /// Whether it answers another, where it says so itself.
    pub fn is_answer(self) -> Option<bool> {
        match self {
            Self::Echo(echo) => Some(echo.is_reply),
            Self::Udp(datagram) => datagram.dns.map(|dns| dns.is_response),
            Self::Tcp(_) => None,
        }
    }

    /// The message without what differs from one transmission to the next.
    #[must_use]
    pub const fn content(self) -> Self {
        match self {
            Self::Tcp(segment) => Self::Tcp(Segment {
                tsval: None,
                ..segment
            }),
            Self::Udp(datagram) => Self::Udp(Datagram {
                ip_id: 0,
                ..datagram
            }),
            Self::Echo(echo) => Self::Echo(Echo { ip_id: 0, ..echo }),
        }
    }
}

/// What identifies a UDP datagram within its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Datagram {
    /// The length by the UDP header, which fragmentation does not change.
    pub udp_len: u16,
    /// The identification of the IPv4 header; 0 where the sender set none (a socket that is not connected) and in IPv6.
    pub ip_id: u16,
    /// The head of the DNS message that it carries, where the ports say that it is one and the head itself does not belie them.
    pub dns: Option<Dns>,
    /// It travels in fragments, of which only the first has ports and is seen here.
    pub fragmented: bool,
}

/// The head of a DNS message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dns {
    /// What joins an answer to its query.
    pub id: u16,
    /// An answer.
    pub is_response: bool,
}

/// What identifies an ICMP echo within its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Echo {
    /// A reply.
    pub is_reply: bool,
    /// What joins a reply to its request.
    pub seq: u16,
    /// Bytes behind the ICMP header.
    pub payload_len: u32,
    /// As in [`Datagram`].
    pub ip_id: u16,
}

/// The flag bits of a TCP header.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset the connection.
    pub const RST: Self = Self(0x04);
    /// The acknowledgement number counts.
    pub const ACK: Self = Self(0x10);

    /// Whether all of these flags are set.
    pub const fn has(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for TcpFlags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Debug for TcpFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpFlags(0x{:02x})", self.0)
    }
}

/// What identifies a TCP segment within its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// The sequence number.
    pub seq: u32,
    /// The acknowledgement number, meaningful with [`TcpFlags::ACK`].
    pub ack: u32,
    /// The flags.
    pub flags: TcpFlags,
    /// Bytes of data.
    pub payload_len: u32,
    /// The timestamp option's value.
    pub tsval: Option<u32>,
}

impl Segment {
    /// No TCP segment: it has no flag and no data.
    pub const NONE: Self = Self {
        seq: 0,
        ack: 0,
        flags: TcpFlags(0),
        payload_len: 0,
        tsval: None,
    };

    /// Whether this is the packet that opens a connection.
    pub const fn is_syn(self) -> bool {
        self.flags.has(TcpFlags::SYN) && !self.flags.has(TcpFlags::ACK)
    }

    /// Whether this answers one.
    pub const fn is_syn_ack(self) -> bool {
        self.flags.has(TcpFlags(TcpFlags::SYN.0 | TcpFlags::ACK.0))
    }

    /// Whether this refuses or ends a connection at once.
    pub const fn is_reset(self) -> bool {
        self.flags.has(TcpFlags::RST)
    }
}
