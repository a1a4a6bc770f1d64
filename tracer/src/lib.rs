//! The user half of `tracer`: ring → source → decode → flow → verdict → report, one direction and no way back.
//! ARCHITECTURE.md shows the map.

pub mod analysis;
pub mod attach;
pub mod check;
pub mod cli;
pub mod clock;
pub mod codes;
pub mod config;
pub mod decode;
pub mod demo;
pub mod devices;
pub mod echo;
pub mod escape;
pub mod event;
pub mod exit;
pub mod export;
pub mod fact;
pub mod filter;
pub mod flow;
pub mod host;
pub mod kernel;
pub mod lab;
pub mod manual;
pub mod mtu;
pub mod owners;
pub mod privilege;
pub mod probes;
pub mod record;
pub mod replay;
pub mod report;
pub mod session;
pub mod source;
pub mod topology;
pub mod trace;
pub mod verdict;
pub mod watch;
