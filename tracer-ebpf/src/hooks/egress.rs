//! `net/core/dev.c`, `xmit_one`: packets handed to drivers.

use core::ffi::c_void;

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tracer_common::{
    event::{Kind, XmitFailedRecord},
    ledger::Counter,
};

use super::report;
use crate::{
    emit::{emit, header},
    filter::watches,
    maps::count,
    skb::{Device, SkBuff},
    wireguard,
};

/// `net_dev_start_xmit(skb, dev)`
#[btf_tracepoint(function = "net_dev_start_xmit")]
pub fn tracer_xmit(ctx: BtfTracePointContext) -> i32 {
    let skb = SkBuff::new(ctx.arg::<*const c_void>(0));
    let dev = Device::new(ctx.arg::<*const c_void>(1));
    if !skb.may_be_ip() {
        return 0;
    }
    let place = dev.place();
    if !watches(&place) {
        return 0;
    }
    match skb.transmit_window(dev) {
        Some(window) => {
            let sealing = wireguard::is_device(dev, &place);
            report(Kind::Xmit, skb, &window, place.netns_inum, sealing, || {
                Some(place)
            });
        }
        None => count(Counter::Unreadable),
    }
    0
}

/// `net_dev_xmit(skb, rc, dev, skb_len)`, which fires once the driver is done with the skb: it is never read here.
#[btf_tracepoint(function = "net_dev_xmit")]
pub fn tracer_xmit_err(ctx: BtfTracePointContext) -> i32 {
    let result: i32 = ctx.arg(1);
    if result == 0 {
        return 0;
    }
    let place = Device::new(ctx.arg::<*const c_void>(2)).place();
    if watches(&place) {
        emit(&XmitFailedRecord {
            header: header(Kind::XmitFailed, &place),
            skb: ctx.arg(0),
            result,
            len_bytes: ctx.arg(3),
        });
    }
    0
}
