//! `net/ipv4/tcp*.c` and `net/ipv4/af_inet.c`: what TCP sockets say.

use core::ffi::c_void;

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tracer_common::event::Kind;

use crate::{
    emit::with_scratch,
    filter::parse_window,
    skb::SkBuff,
    socket::{Sock, receiver, report},
};

/// `inet_sock_set_state(sk, oldstate, newstate)`
#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn tracer_state(ctx: BtfTracePointContext) -> i32 {
    let sock = Sock::new(ctx.arg::<*const c_void>(0));
    if sock.is_tcp() {
        let (old, new): (i32, i32) = (ctx.arg(1), ctx.arg(2));
        report(
            Kind::SockState,
            &sock.place(),
            &sock.ends(),
            old as u8,
            new as u8,
        );
    }
    0
}

/// `tcp_retransmit_skb(sk, skb, …)`
#[btf_tracepoint(function = "tcp_retransmit_skb")]
pub fn tracer_rtx(ctx: BtfTracePointContext) -> i32 {
    now(Kind::RetransmitSkb, Sock::new(ctx.arg::<*const c_void>(0)));
    0
}

/// `tcp_retransmit_synack(sk, req)`: the request socket has the ends, `sk` is the listener.
#[btf_tracepoint(function = "tcp_retransmit_synack")]
pub fn tracer_rtx_sa(ctx: BtfTracePointContext) -> i32 {
    now(
        Kind::RetransmitSynack,
        Sock::new(ctx.arg::<*const c_void>(1)),
    );
    0
}

/// `tcp_receive_reset(sk)`
#[btf_tracepoint(function = "tcp_receive_reset")]
pub fn tracer_rst_in(ctx: BtfTracePointContext) -> i32 {
    now(Kind::ResetReceived, Sock::new(ctx.arg::<*const c_void>(0)));
    0
}

/// `tcp_send_reset(sk, skb, …)`: where no socket answers, `skb` is the packet that found none.
#[btf_tracepoint(function = "tcp_send_reset")]
pub fn tracer_rst_out(ctx: BtfTracePointContext) -> i32 {
    let sock = Sock::new(ctx.arg::<*const c_void>(0));
    if !sock.is_null() {
        now(Kind::ResetSent, sock);
        return 0;
    }
    let skb = SkBuff::new(ctx.arg::<*const c_void>(1));
    if skb.is_null() {
        return 0;
    }
    let Some(window) = skb.network_window() else {
        return 0;
    };
    let mut ends = None;
    with_scratch(|scratch| {
        if parse_window(scratch, &window) {
            ends = scratch.packet.inner().map(receiver);
        }
    });
    if let Some(ends) = ends {
        report(Kind::ResetSent, &skb.place(), &ends, 0, 0);
    }
    0
}

#[inline(always)]
fn now(kind: Kind, sock: Sock) {
    report(kind, &sock.place(), &sock.ends(), 0, sock.state());
}
