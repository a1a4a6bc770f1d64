//! Where records come from: the running kernel, or a capture.

pub mod capture;
pub mod ring;
