//! What is written while a trace runs: the capture, and the events as lines.

pub mod capture;
pub mod events;
