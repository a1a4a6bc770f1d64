//! `net/ipv4/tcp*.c` and `net/ipv4/af_inet.c`: what TCP sockets say.

use core::ffi::c_void;

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use tracer_common::event::Kind;

use crate::{
    emit::with_scratch,
    filter::parse_window,
    skb::SkBuff,
    socket::{Again, Sock, Statement, TCP_CLOSE, receiver, report, report_with},
};

/// `inet_sock_set_state(sk, oldstate, newstate)`
#[btf_tracepoint(function = "inet_sock_set_state")]
pub fn tracer_state(ctx: BtfTracePointContext) -> i32 {
    let sock = Sock::new(ctx.arg::<*const c_void>(0));
    if sock.is_tcp() {
        let (old, new): (i32, i32) = (ctx.arg(1), ctx.arg(2));
        let mut ends = sock.ends();
        // Only now: a socket that connects again has the port of its first attempt in that field.
        if ends.local_port == 0 && new as u8 == TCP_CLOSE {
            ends.local_port = sock.port_before_close();
        }
        report(&Statement {
            kind: Kind::SockState,
            place: sock.place(),
            ends,
            old_state: old as u8,
            new_state: new as u8,
            owned: sock.address_of(),
        });
    }
    0
}

/// `tcp_retransmit_skb(sk, skb, …)`
#[btf_tracepoint(function = "tcp_retransmit_skb")]
pub fn tracer_rtx(ctx: BtfTracePointContext) -> i32 {
    let sock = Sock::new(ctx.arg::<*const c_void>(0));
    let skb = SkBuff::new(ctx.arg::<*const c_void>(1));
    report_with(&now(Kind::RetransmitSkb, sock, sock), || {
        Some(Again {
            snd_una: sock.snd_una()?,
            seq: skb.tcp_seq()?,
        })
    });
    0
}

/// `tcp_retransmit_synack(sk, req)`: the request socket has the ends, the listener `sk` has the owner.
#[btf_tracepoint(function = "tcp_retransmit_synack")]
pub fn tracer_rtx_sa(ctx: BtfTracePointContext) -> i32 {
    let listener = Sock::new(ctx.arg::<*const c_void>(0));
    let request = Sock::new(ctx.arg::<*const c_void>(1));
    report(&now(Kind::RetransmitSynack, request, listener));
    0
}

/// `tcp_receive_reset(sk)`
#[btf_tracepoint(function = "tcp_receive_reset")]
pub fn tracer_rst_in(ctx: BtfTracePointContext) -> i32 {
    let sock = Sock::new(ctx.arg::<*const c_void>(0));
    report(&now(Kind::ResetReceived, sock, sock));
    0
}

/// `tcp_send_reset(sk, skb, …)`: where no socket answers, `skb` is the packet that found none.
#[btf_tracepoint(function = "tcp_send_reset")]
pub fn tracer_rst_out(ctx: BtfTracePointContext) -> i32 {
    let sock = Sock::new(ctx.arg::<*const c_void>(0));
    if !sock.is_null() {
        report(&now(Kind::ResetSent, sock, sock));
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
            // The network header is that of the segment itself: there is nothing around it.
            ends = scratch.packet.outer().map(receiver);
        }
    });
    if let Some(ends) = ends {
        report(&Statement {
            kind: Kind::ResetSent,
            place: skb.place(),
            ends,
            old_state: 0,
            new_state: 0,
            owned: 0,
        });
    }
    0
}

/// What `sock` says in the state that it is in.
#[inline(always)]
fn now(kind: Kind, sock: Sock, owned: Sock) -> Statement {
    Statement {
        kind,
        place: sock.place(),
        ends: sock.ends(),
        old_state: 0,
        new_state: sock.state(),
        owned: owned.address_of(),
    }
}
