//! The records that the kernel half writes to the ring and the user half decodes: one header, one
//! `#[repr(C)]` record per shape. Integers are in host byte order; addresses and captured header bytes are in
//! wire order. Every record starts with [`EventHeader`], whose `kind` says which record it is.

#[cfg(feature = "user")]
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most header bytes that one packet record carries.
///
/// Enough for Ethernet, IPv6, UDP and VXLAN twice over plus an inner TCP header with options.
pub const HEADER_BYTES_MAX: usize = 256;

/// The most header bytes of a WireGuard datagram, which end with the type of its message behind the UDP header.
///
/// Enough for Ethernet with a VLAN tag and IPv6, or for a VXLAN of IPv4 around the datagram.
pub const DATAGRAM_BYTES_MAX: usize = 128;

/// The most return addresses that a drop record carries: some are the tracepoint's and ours, and a netfilter drop is
/// named by its fourth caller or later.
pub const STACK_FRAMES_MAX: usize = 16;

/// `TASK_COMM_LEN` of the kernel.
pub const COMM_LEN: usize = 16;

/// What happened. The numbers are the ABI between the two halves and appear nowhere else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// `net_dev_start_xmit`: the skb is handed to a device's driver. A [`PacketRecord`].
    Xmit = 1,
    /// `net_dev_xmit` with a result other than `NETDEV_TX_OK`. A [`XmitFailedRecord`].
    XmitFailed = 2,
    /// `netif_receive_skb`: the skb enters the receive path of a device. A [`PacketRecord`].
    Receive = 3,
    /// `kfree_skb`: the skb is dropped. A [`DropRecord`].
    Drop = 4,
    /// `consume_skb` inside `tcp_rcv_state_process`: a listener (or a connecting socket) took the skb. A [`PacketRecord`].
    Consume = 5,
    /// `inet_sock_set_state`. A [`SocketRecord`].
    SockState = 6,
    /// `tcp_retransmit_skb`. A [`SocketRecord`].
    RetransmitSkb = 7,
    /// `tcp_retransmit_synack`. A [`SocketRecord`].
    RetransmitSynack = 8,
    /// `tcp_send_reset`. A [`SocketRecord`], all zero but for the header where the reset has no socket.
    ResetSent = 9,
    /// `tcp_receive_reset`. A [`SocketRecord`].
    ResetReceived = 10,
}

impl Kind {
    /// The kind with this number, or `None` for a number that no hook writes.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Xmit,
            2 => Self::XmitFailed,
            3 => Self::Receive,
            4 => Self::Drop,
            5 => Self::Consume,
            6 => Self::SockState,
            7 => Self::RetransmitSkb,
            8 => Self::RetransmitSynack,
            9 => Self::ResetSent,
            10 => Self::ResetReceived,
            _ => return None,
        })
    }
}

/// The captured bytes begin with an Ethernet header.
pub const START_ETHERNET: u8 = 0;
/// The captured bytes begin with an IPv4 or IPv6 header.
pub const START_IP: u8 = 1;

/// Starts every record.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, KnownLayout, Immutable))]
#[repr(C)]
pub struct EventHeader {
    /// `bpf_ktime_get_ns`, that is CLOCK_MONOTONIC.
    pub timestamp_ns: u64,
    /// `net->net_cookie` of the namespace, or 0 where the kernel has none or the namespace is unknown.
    pub netns_cookie: u64,
    /// `net->ns.inum`, or 0 where the skb tells no namespace (an skb in OUTPUT has no device yet).
    pub netns_inum: u32,
    /// `dev->ifindex`, or 0 where the skb has no device.
    pub ifindex: u32,
    /// Counts the records written on this CPU, so that equal timestamps keep their order.
    pub sequence: u32,
    /// The CPU that wrote the record.
    pub cpu: u16,
    /// A [`Kind`] as its number.
    pub kind: u8,
    /// Zero.
    pub reserved: u8,
}

/// What is read from a `struct sk_buff`.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, KnownLayout, Immutable))]
#[repr(C)]
pub struct SkbInfo {
    /// The address of the skb. Reused at once after a free: it joins nothing without an invariant beside it.
    pub skb: u64,
    /// The length of the packet from its first captured byte on: `skb->len`, plus what was pulled off in front of
    /// `skb->data` or less what was pushed there.
    pub len_bytes: u32,
    /// `skb->mark`.
    pub mark: u32,
    /// `skb->protocol` (an EtherType) in host order.
    pub protocol: u16,
    /// `skb->vlan_tci` where the tag is in metadata, else 0.
    pub vlan_tci: u16,
    /// `skb_shinfo(skb)->gso_size`, or 0 for a packet that will not be segmented.
    pub gso_size: u16,
    /// How many bytes of headers follow the record.
    pub header_len: u16,
    /// [`START_ETHERNET`] or [`START_IP`].
    pub start: u8,
    /// `skb->pkt_type` (`PACKET_HOST` 0, `PACKET_OTHERHOST` 3, …), or 255 where it could not be read.
    pub pkt_type: u8,
    /// 1 where this sighting took the last of its flow's budget, see [`crate::budget`], else 0.
    pub budget_spent: u8,
    /// Zero.
    pub reserved: u8,
    /// How many bytes of headers follow those of a WireGuard datagram: the packet's that is encrypted in it, from its IP
    /// header on. 0 where there is no such packet, or it is not known.
    pub sealed_len: u16,
    /// Zero.
    pub reserved_too: u16,
}

/// An skb at a hook; `skb.header_len` bytes of headers follow it in the ring.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, KnownLayout, Immutable))]
#[repr(C)]
pub struct PacketRecord {
    /// Starts the record.
    pub header: EventHeader,
    /// The skb.
    pub skb: SkbInfo,
}

/// A dropped skb; `skb.header_len` bytes of headers follow it in the ring.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, KnownLayout, Immutable))]
#[repr(C)]
pub struct DropRecord {
    /// Starts the record.
    pub header: EventHeader,
    /// The skb.
    pub skb: SkbInfo,
    /// The address that freed the skb: the tracepoint's `location`.
    pub location: u64,
    /// Return addresses, innermost first; the frames that belong to the tracepoint itself are still in it.
    pub stack: [u64; STACK_FRAMES_MAX],
    /// `enum skb_drop_reason` of the running kernel, or 0 where the kernel has no reasons.
    pub reason: u32,
    /// How many entries of `stack` are valid.
    pub stack_len: u32,
}

/// A device refused an skb.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, KnownLayout, Immutable))]
#[repr(C)]
pub struct XmitFailedRecord {
    /// Starts the record.
    pub header: EventHeader,
    /// The address of the skb, which may be freed already and is never read.
    pub skb: u64,
    /// The driver's result, `netdev_tx_t` or a negative errno.
    pub result: i32,
    /// `skb_len` of the tracepoint.
    pub len_bytes: u32,
}

/// In [`SocketRecord::known`]: the socket was opened while the trace ran, so that `pid` and `comm` are known.
pub const SOCKET_HAS_OWNER: u32 = 1;
/// In [`SocketRecord::known`]: `seq` and `snd_una` were read.
pub const SOCKET_SENDS_AGAIN: u32 = 2;

/// A TCP socket, request socket or time-wait socket.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "user", derive(FromBytes, IntoBytes, KnownLayout, Immutable))]
#[repr(C)]
pub struct SocketRecord {
    /// Starts the record; `ifindex` is 0.
    pub header: EventHeader,
    /// The local address in wire order; IPv4 in the first four bytes.
    pub local_addr: [u8; 16],
    /// The remote address in wire order; IPv4 in the first four bytes.
    pub remote_addr: [u8; 16],
    /// The local port.
    pub local_port: u16,
    /// The remote port.
    pub remote_port: u16,
    /// `AF_INET` (2) or `AF_INET6` (10).
    pub family: u16,
    /// The TCP state before, or 0 where the hook has none.
    pub old_state: u8,
    /// The TCP state now, or 0 where the hook has none.
    pub new_state: u8,
    /// The thread group that opened the socket with `connect` or `listen`, or 0.
    pub pid: u32,
    /// `SOCKET_HAS_*`.
    pub known: u32,
    /// The name of that process, NUL-padded.
    pub comm: [u8; COMM_LEN],
    /// `tcp_sock.snd_una`, the first sequence number that the other end has not acknowledged; valid with
    /// [`SOCKET_SENDS_AGAIN`].
    pub snd_una: u32,
    /// `tcp_skb_cb.seq` of the segment that is sent again; valid with [`SOCKET_SENDS_AGAIN`].
    pub seq: u32,
}

/// A device as the key of a map: its namespace's inode number and its ifindex.
pub const fn device_key(netns_inum: u32, ifindex: u32) -> u64 {
    (netns_inum as u64) << 32 | ifindex as u64
}

const _: () = {
    assert!(size_of::<EventHeader>() == 32);
    assert!(size_of::<SkbInfo>() == 32);
    assert!(size_of::<PacketRecord>() == 64);
    assert!(size_of::<DropRecord>() == 64 + 8 + 8 * STACK_FRAMES_MAX + 8);
    assert!(size_of::<XmitFailedRecord>() == 48);
    assert!(size_of::<SocketRecord>() == 104);
};
