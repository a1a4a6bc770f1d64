//! The globals that userspace freezes before it loads the programs. They are read with volatile loads, field by
//! field: the compiler must not fold what it sees here, and the verifier folds what userspace wrote.

use tracer_common::{config::Config, filter::FilterProgram};

#[unsafe(no_mangle)]
pub static CONFIG: Config = Config::UNKNOWN;

#[unsafe(no_mangle)]
pub static FILTER: FilterProgram = FilterProgram::ALL;

/// One field of [`CONFIG`].
macro_rules! config {
    ($($field:ident).+) => {{
        // SAFETY: the pointer is that of a field of a static.
        unsafe { core::ptr::read_volatile(&raw const $crate::config::CONFIG.$($field).+) }
    }};
}
pub(crate) use config;

/// The filter, behind a pointer of which the compiler knows nothing.
#[inline(always)]
pub fn filter() -> &'static FilterProgram {
    core::hint::black_box(&FILTER)
}
