//! The exit codes, a contract with scripts.

use crate::config::ConfigError;

/// No fault.
pub const OK: u8 = 0;
/// The tracer itself failed.
pub const ERROR: u8 = 1;
/// What was typed makes no sense; clap uses the same number.
pub const USAGE: u8 = 2;
/// A flow has a fault.
pub const FAULT: u8 = 10;
/// A flow stayed inconclusive, or no packet matched; a fault wins over it.
pub const INCONCLUSIVE: u8 = 11;

/// `mtu` found a mismatch.
pub const MTU: u8 = 12;

/// The exit code that an error asks for.
pub fn of(error: &anyhow::Error) -> u8 {
    match error.downcast_ref::<ConfigError>() {
        Some(ConfigError::Usage(_) | ConfigError::Filter(_)) => USAGE,
        _ => ERROR,
    }
}
