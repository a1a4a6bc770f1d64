//! The user half of `tracer`: ring → source → decode → flow → verdict → report, one direction and no way back.
//! ARCHITECTURE.md shows the map.

pub mod analysis;
pub mod clock;
pub mod decode;
pub mod devices;
pub mod event;
pub mod exit;
pub mod flow;
pub mod lab;
pub mod record;
pub mod report;
pub mod verdict;
