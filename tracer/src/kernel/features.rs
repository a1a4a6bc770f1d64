//! What the running kernel offers to the programs: where its fields are, which of its numbers matter, and what
//! its tracepoints hand over. Everything is looked up by name; a version is never asked for.

use std::ops::Range;

use tracer_common::config::{MISSING, Offsets};

use super::{btf::Btf, symbols::Symbols};

/// `net/ipv4/tcp_input.c`: frees with `consume_skb` a SYN that a listener accepted.
const CONSUMER: &str = "tcp_rcv_state_process";

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// Where the fields are.
    pub offsets: Offsets,
    /// Fields that this kernel lacks, as `structure.path`.
    pub missing: Vec<&'static str>,
    /// `SKB_NOT_DROPPED_YET`, or [`MISSING`].
    pub reason_not_dropped: u32,
    /// `SKB_CONSUMED`, or [`MISSING`].
    pub reason_consumed: u32,
    /// Whether `kfree_skb` tells a reason (since 5.17).
    pub drop_has_reason: bool,
    /// Whether `consume_skb` tells who consumed (since 6.3).
    pub consume_has_location: bool,
    /// The addresses of `tcp_rcv_state_process`, which consumes what a socket's state machine took; `None` where
    /// the kernel hides them.
    pub consumer: Option<Range<u64>>,
}

/// The fields without which nothing can be said of a packet.
const PACKET_FIELDS: &[&str] = &[
    "sk_buff.len",
    "sk_buff.head",
    "sk_buff.data",
    "sk_buff.tail",
    "sk_buff.protocol",
    "sk_buff.network_header",
];

/// The fields without which nothing can be said of a socket.
const SOCKET_FIELDS: &[&str] = &[
    "sock.__sk_common.skc_family",
    "sock.__sk_common.skc_daddr",
    "sock.__sk_common.skc_rcv_saddr",
    "sock.__sk_common.skc_dport",
    "sock.__sk_common.skc_num",
];

/// The fields without which a packet or socket belongs to no known namespace.
const NETNS_FIELDS: &[&str] = &["net.ns.inum", "net_device.nd_net.net", "net_device.ifindex"];

impl Features {
    /// Looks everything up.
    pub fn of(btf: &Btf, symbols: &Symbols) -> Self {
        let mut missing = Vec::new();
        let offsets = offsets(btf, &mut missing);
        let reason = |name| {
            btf.enumerator("skb_drop_reason", name)
                .and_then(|value| u32::try_from(value).ok())
                .unwrap_or(MISSING)
        };
        Self {
            offsets,
            missing,
            reason_not_dropped: reason("SKB_NOT_DROPPED_YET"),
            reason_consumed: reason("SKB_CONSUMED"),
            drop_has_reason: btf.tracepoint_arg_is_enum("kfree_skb", 2, "skb_drop_reason"),
            consume_has_location: btf
                .tracepoint_args("consume_skb")
                .is_some_and(|args| args > 1),
            consumer: symbols.range(CONSUMER),
        }
    }

    /// The first field of a packet that this kernel lacks and that nothing works without.
    pub fn lacks_packet_field(&self) -> Option<&'static str> {
        self.first_missing(PACKET_FIELDS)
    }

    /// The first field of a socket that this kernel lacks and that nothing works without.
    pub fn lacks_socket_field(&self) -> Option<&'static str> {
        self.first_missing(SOCKET_FIELDS)
    }

    /// The first field that leads to a namespace and that this kernel lacks.
    pub fn lacks_netns_field(&self) -> Option<&'static str> {
        self.first_missing(NETNS_FIELDS)
    }

    fn first_missing(&self, needed: &[&'static str]) -> Option<&'static str> {
        needed
            .iter()
            .find(|field| self.missing.contains(field))
            .copied()
    }
}

/// Fills in [`Offsets`] field by field, and names what is not there.
fn offsets(btf: &Btf, missing: &mut Vec<&'static str>) -> Offsets {
    let mut offsets = Offsets::UNKNOWN;
    macro_rules! fields {
        ($($field:ident = $tag:literal . $path:literal : $bytes:literal;)+) => {
            $(match btf.offset($tag, $path, $bytes) {
                Some(offset) => offsets.$field = offset,
                None => missing.push(concat!($tag, ".", $path)),
            })+
        };
    }
    fields! {
        skb_dev = "sk_buff"."dev": 8;
        skb_sk = "sk_buff"."sk": 8;
        skb_refdst = "sk_buff"."_skb_refdst": 8;
        skb_len = "sk_buff"."len": 4;
        skb_head = "sk_buff"."head": 8;
        skb_data = "sk_buff"."data": 8;
        skb_tail = "sk_buff"."tail": 4;
        skb_end = "sk_buff"."end": 4;
        skb_mark = "sk_buff"."mark": 4;
        skb_protocol = "sk_buff"."protocol": 2;
        skb_vlan_tci = "sk_buff"."vlan_tci": 2;
        skb_vlan_proto = "sk_buff"."vlan_proto": 2;
        skb_mac_header = "sk_buff"."mac_header": 2;
        skb_network_header = "sk_buff"."network_header": 2;
        shinfo_gso_size = "skb_shared_info"."gso_size": 2;
        dev_ifindex = "net_device"."ifindex": 4;
        dev_net = "net_device"."nd_net.net": 8;
        dev_type = "net_device"."type": 2;
        net_inum = "net"."ns.inum": 4;
        net_cookie = "net"."net_cookie": 8;
        net_loopback_dev = "net"."loopback_dev": 8;
        dst_dev = "dst_entry"."dev": 8;
        sock_family = "sock"."__sk_common.skc_family": 2;
        sock_state = "sock"."__sk_common.skc_state": 1;
        sock_daddr = "sock"."__sk_common.skc_daddr": 4;
        sock_rcv_saddr = "sock"."__sk_common.skc_rcv_saddr": 4;
        sock_v6_daddr = "sock"."__sk_common.skc_v6_daddr": 16;
        sock_v6_rcv_saddr = "sock"."__sk_common.skc_v6_rcv_saddr": 16;
        sock_dport = "sock"."__sk_common.skc_dport": 2;
        sock_num = "sock"."__sk_common.skc_num": 2;
        sock_net = "sock"."__sk_common.skc_net.net": 8;
        sock_protocol = "sock"."sk_protocol": 2;
        inet_sport = "inet_sock"."inet_sport": 2;
        tcp_snd_una = "tcp_sock"."snd_una": 4;
        skb_tcp_seq = "sk_buff"."cb": 48;
    }
    // TCP keeps its own structure there.
    match btf.offset("tcp_skb_cb", "seq", 4) {
        Some(seq) if offsets.skb_tcp_seq != MISSING => offsets.skb_tcp_seq += seq,
        _ => {
            offsets.skb_tcp_seq = MISSING;
            missing.push("tcp_skb_cb.seq");
        }
    }
    match bitfield(btf, "pkt_type", 3) {
        Some((byte, shift)) => {
            offsets.skb_pkt_type = byte;
            offsets.skb_pkt_type_shift = shift;
        }
        None => missing.push("sk_buff.pkt_type"),
    }
    // Later kernels clear the tag itself instead, so this one is not missed.
    if let Some((byte, shift)) = bitfield(btf, "vlan_present", 1) {
        offsets.skb_vlan_present = byte;
        offsets.skb_vlan_present_shift = shift;
    }
    offsets
}

/// The byte of a bitfield of `sk_buff` and its lowest bit in it, where it does not cross into the next byte.
fn bitfield(btf: &Btf, name: &str, bits: u32) -> Option<(u32, u32)> {
    let field = btf.field("sk_buff", name)?;
    let shift = field.offset_bits % 8;
    // On a little-endian machine, the only kind that the programs are built for so far.
    (field.size_bits == bits && shift + bits <= 8).then_some((field.offset_bits / 8, shift))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::kernel::btf::SYSFS;

    #[test]
    fn the_running_kernel_has_what_every_hook_needs() {
        if !Path::new(SYSFS).join("vmlinux").exists() {
            // This machine's kernel has no BTF; on it, tracer says so and stops.
            return;
        }
        let btf = Btf::of_kernel().unwrap();
        let features = Features::of(&btf, &Symbols::default());
        assert_eq!(features.lacks_packet_field(), None);
        assert_eq!(features.lacks_socket_field(), None);
        assert_eq!(features.lacks_netns_field(), None);
        // What is not essential has been there since 5.10 all the same.
        assert_eq!(features.missing, Vec::<&str>::new());
        assert_eq!(features.consumer, None, "no symbols, no addresses");
    }
}
