//! The filter, compiled to a bounded program.
