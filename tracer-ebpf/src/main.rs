//! The kernel half of tracer.
#![no_std]
#![no_main]
#![allow(
    missing_docs,
    reason = "aya's macros generate public functions without documentation"
)]

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

/// A packet is handed to a device's driver.
#[btf_tracepoint(function = "net_dev_start_xmit")]
pub fn net_dev_start_xmit(_ctx: BtfTracePointContext) -> i32 {
    0
}

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
