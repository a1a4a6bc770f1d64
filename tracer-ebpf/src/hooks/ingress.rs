//! `net/core/dev.c`, `__netif_receive_skb_core`: packets that enter the receive path.

use core::ffi::c_void;

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tracer_common::{event::Kind, ledger::Counter};

use super::{report, tc};
use crate::{
    config::config,
    filter::watches,
    maps::count,
    skb::{Device, SkBuff, Window},
    wireguard,
};

/// `netif_receive_skb(skb)`
#[btf_tracepoint(function = "netif_receive_skb")]
pub fn tracer_receive(ctx: BtfTracePointContext) -> i32 {
    let skb = SkBuff::new(ctx.arg::<*const c_void>(0));
    let dev = skb.device();
    if config!(tc_devices) != 0 {
        tc::arrived_at(dev);
    }
    received(skb, dev, || skb.receive_window(dev));
    0
}

/// Reports a packet that has come to a device.
#[inline(always)]
pub fn received(skb: SkBuff, dev: Device, window: impl FnOnce() -> Option<Window>) {
    if !skb.may_be_ip() {
        return;
    }
    let place = dev.place();
    if !watches(&place) {
        return;
    }
    match window() {
        Some(window) => {
            let sealing = wireguard::is_device(dev, &place);
            report(
                Kind::Receive,
                skb,
                &window,
                place.netns_inum,
                sealing,
                || Some(place),
            );
        }
        None => count(Counter::Unreadable),
    }
}
