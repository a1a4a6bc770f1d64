//! The lab of tracer.
