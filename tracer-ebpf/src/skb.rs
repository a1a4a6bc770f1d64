//! The only reader of packets' kernel structures (`sk_buff`, `net_device`, `net`, `dst_entry`); `socket` reads
//! sockets with the same two primitives.
//!
//! A pointer that the verifier knows the type of is loaded through directly; one of which it knows nothing is read with
//! `bpf_probe_read_kernel`. What may be stale, because its field shares a union with something else, is believed only if
//! the namespace that it leads to points back at itself.

use core::ffi::c_void;

use aya_ebpf::helpers::bpf_probe_read_kernel;
use tracer_common::{
    config::MISSING,
    event::{HEADER_BYTES_MAX, SkbInfo, device_key},
    packet::Start,
};

use crate::{config::config, emit::Scratch};

/// `ARPHRD_ETHER` and `ARPHRD_LOOPBACK`, whose frames begin with an Ethernet header.
const ARPHRD_ETHER: u16 = 1;
const ARPHRD_LOOPBACK: u16 = 772;

/// `ARPHRD_NONE`
const ARPHRD_NONE: u16 = 0xfffe;

const ETH_HLEN: u32 = 14;

/// `skb->pkt_type` of a frame that is addressed to another host.
const PACKET_OTHERHOST: u8 = 3;
const ETH_P_IP: u16 = 0x0800;
const ETH_P_IPV6: u16 = 0x86dd;
const ETH_P_8021Q: u16 = 0x8100;
const ETH_P_8021AD: u16 = 0x88a8;

/// `skb->mac_header` where it is not set.
const HEADER_UNSET: u16 = u16::MAX;

/// Below this no namespace has its inode number: `PROC_DYNAMIC_FIRST`, less the fixed numbers of the initial
/// namespaces that newer kernels keep right below it.
const NETNS_INUM_MIN: u32 = 0xefff_fff0;
/// Beyond this no ifindex has been seen.
const IFINDEX_MAX: u32 = 1 << 24;

/// Loads a field through a pointer that the verifier knows the type of; zero where this kernel lacks the field.
#[inline(always)]
pub fn load<T: Copy + Default>(base: *const c_void, offset: u32) -> T {
    if offset == MISSING {
        return T::default();
    }
    // SAFETY: the verifier checks the access against the kernel's own type, and a fault reads as zero.
    unsafe { base.byte_add(offset as usize).cast::<T>().read_volatile() }
}

/// Reads a field behind an address of which nothing is known.
#[inline(always)]
pub fn probe<T>(base: u64, offset: u32) -> Option<T> {
    if base == 0 || offset == MISSING {
        return None;
    }
    // SAFETY: the helper checks every address that it reads.
    unsafe { bpf_probe_read_kernel(base.wrapping_add(u64::from(offset)) as *const T) }.ok()
}

/// A kernel structure that is alive while the hook runs.
#[derive(Clone, Copy)]
struct Structure {
    address: *const c_void,
    /// Whether the verifier knows its type. A constant wherever it is used.
    is_typed: bool,
}

impl Structure {
    const fn typed(address: *const c_void) -> Self {
        Self {
            address,
            is_typed: true,
        }
    }

    /// A field; zero where this kernel lacks it.
    #[inline(always)]
    fn load<T: Copy + Default>(self, offset: u32) -> T {
        if self.is_typed {
            load(self.address, offset)
        } else {
            probe(self.address as u64, offset).unwrap_or_default()
        }
    }

    /// The structure that a field points to.
    #[inline(always)]
    fn follow(self, offset: u32) -> Self {
        let address = if self.is_typed {
            load_pointer(self.address, offset)
        } else {
            self.load::<u64>(offset) as *const c_void
        };
        Self { address, ..self }
    }
}

/// Where something happened; zeros where that is not known.
#[derive(Clone, Copy)]
pub struct Place {
    pub netns_cookie: u64,
    pub netns_inum: u32,
    pub ifindex: u32,
}

impl Place {
    const UNKNOWN: Self = Self {
        netns_cookie: 0,
        netns_inum: 0,
        ifindex: 0,
    };

    /// A device's key in a map.
    pub fn key(&self) -> u64 {
        device_key(self.netns_inum, self.ifindex)
    }

    /// The namespace behind a pointer that the verifier knows as a `struct net`.
    #[inline(always)]
    pub fn of_net(net: *const c_void) -> Self {
        Self::of_live_net(Structure::typed(net))
    }

    #[inline(always)]
    fn of_live_net(net: Structure) -> Self {
        if net.address.is_null() {
            return Self::UNKNOWN;
        }
        Self {
            netns_cookie: net.load(config!(offsets.net_cookie)),
            netns_inum: net.load(config!(offsets.net_inum)),
            ifindex: 0,
        }
    }

    /// The namespace at an address that may be anything: its loopback device must lead back to it.
    #[inline(always)]
    fn of_stale_net(net: u64) -> Option<Self> {
        let netns_inum: u32 = probe(net, config!(offsets.net_inum))?;
        if netns_inum < NETNS_INUM_MIN {
            return None;
        }
        let loopback: u64 = probe(net, config!(offsets.net_loopback_dev))?;
        if probe::<u64>(loopback, config!(offsets.dev_net))? != net {
            return None;
        }
        Some(Self {
            netns_cookie: probe(net, config!(offsets.net_cookie)).unwrap_or(0),
            netns_inum,
            ifindex: 0,
        })
    }

    /// The device at an address that may be anything.
    #[inline(always)]
    fn of_stale_device(dev: u64) -> Option<Self> {
        let net: u64 = probe(dev, config!(offsets.dev_net))?;
        let place = Self::of_stale_net(net)?;
        let ifindex: u32 = probe(dev, config!(offsets.dev_ifindex))?;
        if ifindex == 0 || ifindex >= IFINDEX_MAX {
            return None;
        }
        Some(Self { ifindex, ..place })
    }
}

/// A `struct net_device` that the hook vouches for.
#[derive(Clone, Copy)]
pub struct Device(Structure);

impl Device {
    /// The argument of a tracepoint.
    pub const fn new(dev: *const c_void) -> Self {
        Self(Structure::typed(dev))
    }

    /// Its address, which names it until it is gone.
    pub fn address_of(self) -> u64 {
        self.0.address as u64
    }

    /// The device and its namespace.
    #[inline(always)]
    pub fn place(self) -> Place {
        Place {
            ifindex: self.0.load(config!(offsets.dev_ifindex)),
            ..Place::of_live_net(self.0.follow(config!(offsets.dev_net)))
        }
    }

    /// Whether it has no link header, as tun and WireGuard devices have none.
    #[inline(always)]
    pub fn has_no_link_header(self) -> bool {
        let kind: u16 = self.0.load(config!(offsets.dev_type));
        kind == ARPHRD_NONE
    }

    #[inline(always)]
    fn is_ethernet(self) -> bool {
        let kind: u16 = self.0.load(config!(offsets.dev_type));
        kind == ARPHRD_ETHER || kind == ARPHRD_LOOPBACK
    }
}

/// Loads a pointer, which keeps the type that the verifier gives it.
#[inline(always)]
pub fn load_pointer(base: *const c_void, offset: u32) -> *const c_void {
    if offset == MISSING {
        return core::ptr::null();
    }
    // SAFETY: as in `load`.
    unsafe {
        base.byte_add(offset as usize)
            .cast::<*const c_void>()
            .read_volatile()
    }
}

/// The captured part of a packet.
#[derive(Clone, Copy)]
pub struct Window {
    /// Its first byte.
    pub address: u64,
    /// How many bytes can be read there; at most [`HEADER_BYTES_MAX`].
    pub captured: u32,
    /// How long the packet is from there on.
    pub len_bytes: u32,
    /// What it begins with.
    pub start: Start,
}

/// A `struct sk_buff` that is alive while the hook runs.
#[derive(Clone, Copy)]
pub struct SkBuff(Structure);

impl SkBuff {
    /// The argument of a tracepoint.
    pub const fn new(skb: *const c_void) -> Self {
        Self(Structure::typed(skb))
    }

    /// The one at this address, of which the hook knows that it is one and the verifier does not.
    pub const fn at(address: u64) -> Self {
        Self(Structure {
            address: address as *const c_void,
            is_typed: false,
        })
    }

    /// Whether there is one.
    pub fn is_null(self) -> bool {
        self.0.address.is_null()
    }

    /// Its address, which names it until it is freed.
    pub fn address_of(self) -> u64 {
        self.0.address as u64
    }

    /// The first sequence number of a segment that lies in its socket's queue, where TCP keeps it beside the packet.
    #[inline(always)]
    pub fn tcp_seq(self) -> Option<u32> {
        let offset = config!(offsets.skb_tcp_seq);
        (offset != MISSING).then(|| self.0.load(offset))
    }

    /// Whether the EtherType allows for an IP packet; it is 0 where nobody has set it yet.
    #[inline(always)]
    pub fn may_be_ip(self) -> bool {
        matches!(
            self.protocol(),
            0 | ETH_P_IP | ETH_P_IPV6 | ETH_P_8021Q | ETH_P_8021AD
        )
    }

    /// Whether the EtherType says that this is an IP packet.
    #[inline(always)]
    pub fn is_ip(self) -> bool {
        matches!(self.protocol(), ETH_P_IP | ETH_P_IPV6)
    }

    #[inline(always)]
    fn protocol(self) -> u16 {
        u16::from_be(self.0.load(config!(offsets.skb_protocol)))
    }

    /// `skb->dev` where the hook vouches for it.
    #[inline(always)]
    pub fn device(self) -> Device {
        Device(self.0.follow(config!(offsets.skb_dev)))
    }

    /// What a driver is handed: the whole frame of an Ethernet device; of any other kind, whose link header this
    /// parser does not read, the IP packet.
    #[inline(always)]
    pub fn transmit_window(self, dev: Device) -> Option<Window> {
        if !dev.is_ethernet() {
            return self.network_window();
        }
        let layout = self.layout();
        layout.window(layout.data, Start::Ethernet)
    }

    /// The packet that enters the receive path, whose link header is pulled already. A VLAN tag that is still in
    /// the frame belongs to the link header, so the frame is read from its start then.
    #[inline(always)]
    pub fn receive_window(self, dev: Device) -> Option<Window> {
        let layout = self.layout();
        if matches!(self.protocol(), ETH_P_8021Q | ETH_P_8021AD) {
            let mac: u16 = self.0.load(config!(offsets.skb_mac_header));
            let frame = u32::from(mac) + ETH_HLEN == layout.data;
            return if mac != HEADER_UNSET && frame && dev.is_ethernet() {
                layout.window(u32::from(mac), Start::Ethernet)
            } else {
                None
            };
        }
        layout.window(layout.data, Start::Ip)
    }

    /// The IP packet, wherever the skb is: from its network header on.
    #[inline(always)]
    pub fn network_window(self) -> Option<Window> {
        let network: u16 = self.0.load(config!(offsets.skb_network_header));
        // Unset is 0 in a new skb and all ones in some reused ones; no header lies at the very start of the
        // buffer, where the headroom is.
        if network == 0 || network == HEADER_UNSET {
            return None;
        }
        self.layout().window(u32::from(network), Start::Ip)
    }

    /// Whether this is what `ip route get` asks about, which IPv4 lays out like a packet and frees like a lost one
    /// (`inet_rtm_getroute()` in net/ipv4/route.c): a link header at the very start of the buffer, where no device puts one.
    #[inline(always)]
    pub fn is_route_question(self) -> bool {
        let mac: u16 = self.0.load(config!(offsets.skb_mac_header));
        let network: u16 = self.0.load(config!(offsets.skb_network_header));
        mac == 0 && network == 0
    }

    /// What is freed: the IP packet, and the frame around it where the packet was received though it is addressed to
    /// another host, since that address is why.
    #[inline(always)]
    pub fn freed_window(self) -> Option<Window> {
        if self.pkt_type() == PACKET_OTHERHOST {
            let mac: u16 = self.0.load(config!(offsets.skb_mac_header));
            let network: u16 = self.0.load(config!(offsets.skb_network_header));
            let head: u64 = self.0.load(config!(offsets.skb_head));
            let mac_len = u32::from(network).wrapping_sub(u32::from(mac));
            // The device may be gone, so the frame itself has to tell that it is one.
            let ether_type = probe::<u16>(head, u32::from(mac).wrapping_add(ETH_HLEN - 2));
            if mac_len == ETH_HLEN && ether_type.map(u16::from_be) == Some(self.protocol()) {
                return self.layout().window(u32::from(mac), Start::Ethernet);
            }
        }
        self.network_window()
    }

    #[inline(always)]
    fn layout(self) -> Layout {
        let head: u64 = self.0.load(config!(offsets.skb_head));
        let data: u64 = self.0.load(config!(offsets.skb_data));
        Layout {
            head,
            data: data.wrapping_sub(head) as u32,
            tail: self.0.load(config!(offsets.skb_tail)),
            len: self.0.load(config!(offsets.skb_len)),
        }
    }

    /// Where an skb is of which no hook says so. Its device comes first: a packet that crossed a veth still has
    /// the sender's socket. In OUTPUT and in socket queues `dev` is empty or the field of another union member,
    /// so next comes the socket, then the route.
    #[inline(always)]
    pub fn place(self) -> Place {
        let dev: u64 = self.0.load(config!(offsets.skb_dev));
        if let Some(place) = Place::of_stale_device(dev) {
            return place;
        }
        let sk: u64 = self.0.load(config!(offsets.skb_sk));
        if let Some(net) = probe::<u64>(sk, config!(offsets.sock_net))
            && let Some(place) = Place::of_stale_net(net)
        {
            return place;
        }
        // The lowest bit says whether the skb holds a reference (`SKB_DST_NOREF`).
        let refdst: u64 = self.0.load(config!(offsets.skb_refdst));
        if let Some(dev) = probe::<u64>(refdst & !1, config!(offsets.dst_dev))
            && let Some(place) = Place::of_stale_device(dev)
        {
            // The route's device is where the packet would go, not where it is.
            return Place {
                ifindex: 0,
                ..place
            };
        }
        Place::UNKNOWN
    }

    /// What a record says of the skb; the bytes that follow it are in the scratch space.
    #[inline(always)]
    pub fn info(self, window: &Window, scratch: &Scratch) -> SkbInfo {
        let head: u64 = self.0.load(config!(offsets.skb_head));
        let end: u32 = self.0.load(config!(offsets.skb_end));
        let shared_info = head.wrapping_add(u64::from(end));
        SkbInfo {
            skb: self.address_of(),
            len_bytes: window.len_bytes,
            mark: self.0.load(config!(offsets.skb_mark)),
            protocol: self.protocol(),
            vlan_tci: self.vlan_tci(),
            gso_size: probe(shared_info, config!(offsets.shinfo_gso_size)).unwrap_or(0),
            header_len: scratch.header_len as u16,
            start: window.start as u8,
            pkt_type: self.pkt_type(),
            budget_spent: scratch.budget_spent as u8,
            reserved: 0,
            sealed_len: scratch.sealed_len as u16,
            reserved_too: 0,
        }
    }

    #[inline(always)]
    fn vlan_tci(self) -> u16 {
        let offset = config!(offsets.skb_vlan_present);
        let present = if offset == MISSING {
            self.0.load::<u16>(config!(offsets.skb_vlan_proto)) != 0
        } else {
            self.bits(offset, config!(offsets.skb_vlan_present_shift)) & 1 != 0
        };
        if present {
            self.0.load(config!(offsets.skb_vlan_tci))
        } else {
            0
        }
    }

    #[inline(always)]
    fn pkt_type(self) -> u8 {
        let offset = config!(offsets.skb_pkt_type);
        if offset == MISSING {
            return u8::MAX;
        }
        self.bits(offset, config!(offsets.skb_pkt_type_shift)) & 7
    }

    /// The bitfields in one byte, shifted down to the one that is wanted.
    #[inline(always)]
    fn bits(self, offset: u32, shift: u32) -> u8 {
        let byte: u8 = self.0.load(offset);
        byte >> (shift & 7)
    }
}

/// Offsets in an skb's buffer, all from `head`.
struct Layout {
    head: u64,
    data: u32,
    tail: u32,
    len: u32,
}

impl Layout {
    /// The linear bytes from `from` on, or `None` where there are none.
    #[inline(always)]
    fn window(&self, from: u32, start: Start) -> Option<Window> {
        if from >= self.tail {
            return None;
        }
        let linear = self.tail - from;
        Some(Window {
            address: self.head.wrapping_add(u64::from(from)),
            captured: if linear > HEADER_BYTES_MAX as u32 {
                HEADER_BYTES_MAX as u32
            } else {
                linear
            },
            // `len` counts from `data`, which headers are pulled from and pushed to.
            len_bytes: self.len.wrapping_add(self.data).wrapping_sub(from),
            start,
        })
    }
}
