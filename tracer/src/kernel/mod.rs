//! Facts about the running kernel: where its fields are, what its functions and drop reasons are called.

pub mod btf;
pub mod drop_reasons;
pub mod features;
pub mod symbols;
