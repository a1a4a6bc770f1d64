//! The kernel half of tracer: every hook reads the little that the filter needs, rejects early, and hands what is
//! left to the ring. It decides nothing else.
#![no_std]
#![no_main]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![allow(
    missing_docs,
    reason = "aya's macros generate public functions without documentation"
)]
#![allow(
    clippy::inline_always,
    reason = "what is not inlined is a BPF subprogram, which the verifier checks without what its caller knows"
)]
#![allow(
    clippy::needless_pass_by_value,
    reason = "aya's macros hand a program its context by value"
)]
#![allow(
    clippy::cast_sign_loss,
    clippy::cast_possible_wrap,
    reason = "the kernel's tracepoints and helpers have small numbers in signed integers"
)]

mod config;
mod emit;
mod filter;
mod hooks;
mod maps;
mod skb;
mod socket;
mod translation;
mod wireguard;

/// The kernel half has no panics: what could panic does not pass the verifier, which sees an endless loop here.
#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

/// Tracing helpers are for GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
