//! `net/core/skbuff.c`: packets that are freed, and why.

use core::ffi::c_void;

use aya_ebpf::{
    EbpfContext as _, helpers::generated::bpf_get_stack, macros::btf_tracepoint,
    programs::BtfTracePointContext,
};
use tracer_common::{
    event::{DropRecord, Kind, STACK_FRAMES_MAX},
    ledger::Counter,
};

use super::report;
use crate::{
    config::config,
    emit::{header, with_scratch},
    filter::{Admission, admits, watches},
    maps::count,
    skb::{Place, SkBuff},
};

/// `kfree_skb(skb, location, reason, …)`
#[btf_tracepoint(function = "kfree_skb")]
pub fn tracer_drop(ctx: BtfTracePointContext) -> i32 {
    let reason: u32 = ctx.arg(2);
    // Not every free that passes here is a loss.
    if reason == config!(reason_consumed) || reason == config!(reason_not_dropped) {
        return 0;
    }
    dropped(&ctx, reason);
    0
}

/// `kfree_skb(skb, location)` of kernels that do not say why.
#[btf_tracepoint(function = "kfree_skb")]
pub fn tracer_drop_old(ctx: BtfTracePointContext) -> i32 {
    dropped(&ctx, 0);
    0
}

#[inline(always)]
fn dropped(ctx: &BtfTracePointContext, reason: u32) {
    let skb = SkBuff::new(ctx.arg::<*const c_void>(0));
    if !skb.may_be_ip() {
        return;
    }
    let Some(window) = skb.freed_window() else {
        // Without a network header it is no packet yet (a segment that TCP has not sent, a message between
        // local sockets), unless its EtherType says otherwise.
        if skb.is_ip() && !skb.is_route_question() {
            count(Counter::Unreadable);
        }
        return;
    };
    with_scratch(|scratch| {
        if matches!(
            admits(scratch, Kind::Drop, skb, &window, 0),
            Admission::Refused
        ) {
            return;
        }
        let Some(place) = watched_place(skb) else {
            return;
        };
        let record = scratch.record::<DropRecord>();
        // SAFETY: the record lies in the scratch space, which is ours; the helper writes no more than it is told.
        unsafe {
            (&raw mut (*record).header).write(header(Kind::Drop, &place));
            (&raw mut (*record).skb).write(skb.info(&window, scratch));
            (&raw mut (*record).location).write(ctx.arg(1));
            (&raw mut (*record).reason).write(reason);
            let written = bpf_get_stack(
                ctx.as_ptr(),
                (&raw mut (*record).stack).cast(),
                (STACK_FRAMES_MAX * size_of::<u64>()) as u32,
                0,
            );
            (&raw mut (*record).stack_len).write(if written > 0 {
                (written / size_of::<u64>() as i64) as u32
            } else {
                0
            });
        }
        #[cfg(feature = "aya-log")]
        aya_log_ebpf::debug!(
            ctx,
            "kfree_skb: reason {}, {} bytes of headers",
            reason,
            scratch.header_len
        );
        scratch.emit::<DropRecord>(scratch.following());
    });
}

/// `consume_skb(skb, location)` of kernels that tell the location: all that matters is what
/// `tcp_rcv_state_process` consumes, so nearly every call is rejected by the first comparison.
#[btf_tracepoint(function = "consume_skb")]
pub fn tracer_consume(ctx: BtfTracePointContext) -> i32 {
    let location: u64 = ctx.arg(1);
    let start = config!(consume_start);
    if location.wrapping_sub(start) >= config!(consume_end).wrapping_sub(start) {
        return 0;
    }
    let skb = SkBuff::new(ctx.arg::<*const c_void>(0));
    let Some(window) = skb.network_window() else {
        return 0;
    };
    report(Kind::Consume, skb, &window, 0, false, || watched_place(skb));
    0
}

/// Where the skb is, if that is watched. It costs more to find than whether the packet is wanted, so it comes last.
#[inline(always)]
fn watched_place(skb: SkBuff) -> Option<Place> {
    let place = skb.place();
    watches(&place).then_some(place)
}
