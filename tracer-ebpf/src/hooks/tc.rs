//! `net/core/dev.c`, `sch_handle_ingress`: packets that come to a device of `--tc` without having entered the receive path
//! there. `bpf_redirect_peer`, a VLAN, a macvlan and a bond hand a packet to another device inside
//! `__netif_receive_skb_core`, behind its tracepoint.

use aya_ebpf::{
    EbpfContext as _, bindings::TC_ACT_UNSPEC, macros::classifier, programs::TcContext,
};

use super::ingress::received;
use crate::{
    maps::ARRIVAL,
    skb::{Device, SkBuff},
};

/// What this CPU knows of the packet in its receive path; there is one at a time.
#[repr(C)]
pub struct Arrival {
    /// The `net_device` that it entered the path on.
    device: u64,
    /// The skb, as the classifier was handed it.
    skb: u64,
}

/// Notes where the packet enters the receive path.
#[inline(always)]
pub fn arrived_at(dev: Device) {
    if let Some(arrival) = ARRIVAL.get_ptr_mut(0) {
        // SAFETY: the slot is this CPU's, aligned and never freed.
        unsafe { (&raw mut (*arrival).device).write_volatile(dev.address_of()) }
    }
}

/// A classifier that leaves every packet, and every decision on it, to those behind it.
#[classifier]
pub fn tracer_tc(ctx: TcContext) -> i32 {
    taken_over(&ctx);
    TC_ACT_UNSPEC
}

#[inline(always)]
fn taken_over(ctx: &TcContext) {
    let Some(arrival) = ARRIVAL.get_ptr_mut(0) else {
        return;
    };
    // A classifier's context is the skb itself. By way of a map, the verifier takes its address for a number, which may
    // be read with the helper.
    // SAFETY: the slot is this CPU's, aligned and never freed.
    let (entered, skb) = unsafe {
        (&raw mut (*arrival).skb).write_volatile(ctx.as_ptr() as u64);
        (
            (&raw const (*arrival).device).read_volatile(),
            SkBuff::at((&raw const (*arrival).skb).read_volatile()),
        )
    };
    let dev = skb.device();
    if dev.address_of() != entered {
        // The link header was pushed back for the classifiers: the packet begins where its network header does.
        received(skb, dev, || skb.network_window());
    }
}
