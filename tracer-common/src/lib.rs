//! What the kernel half and the user half of `tracer` share: the records that cross the ring, the
//! configuration that is frozen into the programs, the indices of the loss ledger, the header parser and
//! the filter. Nothing here allocates, does I/O or reads a clock.
#![no_std]
#![allow(
    clippy::inline_always,
    reason = "a BPF subprogram has five argument registers and its own verification: what is one is chosen, not left to a heuristic"
)]

pub mod budget;
pub mod config;
pub mod event;
pub mod filter;
pub mod ledger;
pub mod packet;
