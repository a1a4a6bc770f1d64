//! The configuration that userspace freezes into the programs before they are loaded: where this kernel keeps
//! its fields, and what this run wants. The verifier treats it as constants, so what is switched off costs nothing.

#[cfg(feature = "user")]
use zerocopy::{Immutable, IntoBytes};

/// Stands for an offset, an enumerator or a number that this kernel does not have.
pub const MISSING: u32 = u32::MAX;

/// Byte offsets in the structures of the running kernel, [`MISSING`] where it has no such field.
///
/// A field is also missing where its size is not the one that the programs load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(IntoBytes, Immutable))]
#[repr(C)]
pub struct Offsets {
    /// `sk_buff.dev`
    pub skb_dev: u32,
    /// `sk_buff.sk`
    pub skb_sk: u32,
    /// `sk_buff._skb_refdst`
    pub skb_refdst: u32,
    /// `sk_buff.len`
    pub skb_len: u32,
    /// `sk_buff.head`
    pub skb_head: u32,
    /// `sk_buff.data`
    pub skb_data: u32,
    /// `sk_buff.tail`, an offset from `head`
    pub skb_tail: u32,
    /// `sk_buff.end`, an offset from `head`
    pub skb_end: u32,
    /// `sk_buff.mark`
    pub skb_mark: u32,
    /// `sk_buff.protocol`
    pub skb_protocol: u32,
    /// `sk_buff.vlan_tci`
    pub skb_vlan_tci: u32,
    /// `sk_buff.vlan_proto`
    pub skb_vlan_proto: u32,
    /// The byte that holds `sk_buff.vlan_present`, which kernels before 6.2 have
    pub skb_vlan_present: u32,
    /// The bit of `sk_buff.vlan_present` in that byte
    pub skb_vlan_present_shift: u32,
    /// `sk_buff.mac_header`
    pub skb_mac_header: u32,
    /// `sk_buff.network_header`
    pub skb_network_header: u32,
    /// The byte that holds `sk_buff.pkt_type`
    pub skb_pkt_type: u32,
    /// The lowest bit of `sk_buff.pkt_type` in that byte
    pub skb_pkt_type_shift: u32,
    /// `skb_shared_info.gso_size`
    pub shinfo_gso_size: u32,
    /// `net_device.ifindex`
    pub dev_ifindex: u32,
    /// `net_device.nd_net`
    pub dev_net: u32,
    /// `net_device.type`
    pub dev_type: u32,
    /// `net.ns.inum`
    pub net_inum: u32,
    /// `net.net_cookie`
    pub net_cookie: u32,
    /// `net.loopback_dev`
    pub net_loopback_dev: u32,
    /// `dst_entry.dev`
    pub dst_dev: u32,
    /// `sock.__sk_common.skc_family`
    pub sock_family: u32,
    /// `sock.__sk_common.skc_state`
    pub sock_state: u32,
    /// `sock.__sk_common.skc_daddr`
    pub sock_daddr: u32,
    /// `sock.__sk_common.skc_rcv_saddr`
    pub sock_rcv_saddr: u32,
    /// `sock.__sk_common.skc_v6_daddr`
    pub sock_v6_daddr: u32,
    /// `sock.__sk_common.skc_v6_rcv_saddr`
    pub sock_v6_rcv_saddr: u32,
    /// `sock.__sk_common.skc_dport`
    pub sock_dport: u32,
    /// `sock.__sk_common.skc_num`
    pub sock_num: u32,
    /// `sock.__sk_common.skc_net`
    pub sock_net: u32,
    /// `sock.sk_protocol`
    pub sock_protocol: u32,
    /// `inet_sock.inet_sport`
    pub inet_sport: u32,
    /// `tcp_sock.snd_una`
    pub tcp_snd_una: u32,
    /// `tcp_skb_cb.seq` in `sk_buff.cb`
    pub skb_tcp_seq: u32,
}

impl Offsets {
    /// A kernel of which nothing is known.
    pub const UNKNOWN: Self = Self {
        skb_dev: MISSING,
        skb_sk: MISSING,
        skb_refdst: MISSING,
        skb_len: MISSING,
        skb_head: MISSING,
        skb_data: MISSING,
        skb_tail: MISSING,
        skb_end: MISSING,
        skb_mark: MISSING,
        skb_protocol: MISSING,
        skb_vlan_tci: MISSING,
        skb_vlan_proto: MISSING,
        skb_vlan_present: MISSING,
        skb_vlan_present_shift: MISSING,
        skb_mac_header: MISSING,
        skb_network_header: MISSING,
        skb_pkt_type: MISSING,
        skb_pkt_type_shift: MISSING,
        shinfo_gso_size: MISSING,
        dev_ifindex: MISSING,
        dev_net: MISSING,
        dev_type: MISSING,
        net_inum: MISSING,
        net_cookie: MISSING,
        net_loopback_dev: MISSING,
        dst_dev: MISSING,
        sock_family: MISSING,
        sock_state: MISSING,
        sock_daddr: MISSING,
        sock_rcv_saddr: MISSING,
        sock_v6_daddr: MISSING,
        sock_v6_rcv_saddr: MISSING,
        sock_dport: MISSING,
        sock_num: MISSING,
        sock_net: MISSING,
        sock_protocol: MISSING,
        inet_sport: MISSING,
        tcp_snd_una: MISSING,
        skb_tcp_seq: MISSING,
    };
}

/// Everything that is frozen into the programs beside the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(IntoBytes, Immutable))]
#[repr(C)]
pub struct Config {
    /// Where `tcp_rcv_state_process` begins.
    pub consume_start: u64,
    /// The first address behind `tcp_rcv_state_process`; equal to the start where it is unknown.
    pub consume_end: u64,
    /// Differs from run to run, so that nobody can aim for a flow's slot in the budget's table.
    pub flow_seed: u64,
    /// The fields.
    pub offsets: Offsets,
    /// `SKB_NOT_DROPPED_YET`, or [`MISSING`].
    pub reason_not_dropped: u32,
    /// `SKB_CONSUMED`, or [`MISSING`].
    pub reason_consumed: u32,
    /// The budget of a TCP connection, see [`crate::budget`]; 0 for no limit.
    pub budget: u32,
    /// The budget per second of any other flow; 0 for no limit.
    pub budget_per_second: u32,
    /// 1 where only the namespaces in the set are watched, else 0.
    pub netns_restricted: u32,
    /// Userspace is woken once this many bytes wait in the ring.
    pub wakeup_bytes: u32,
    /// 1 where devices are watched by `tc` as well, else 0.
    pub tc_devices: u32,
}

impl Config {
    /// What the object holds until userspace fills it in.
    pub const UNKNOWN: Self = Self {
        consume_start: 0,
        consume_end: 0,
        flow_seed: 0,
        offsets: Offsets::UNKNOWN,
        reason_not_dropped: MISSING,
        reason_consumed: MISSING,
        budget: 0,
        budget_per_second: 0,
        netns_restricted: 0,
        wakeup_bytes: u32::MAX,
        tc_devices: 0,
    };
}
