//! The filter language: the part of tcpdump's that people use, and `vni`.
//!
//! ```text
//! expression = condition { ("and" | "or") condition }        from left to right, as tcpdump does
//! condition  = "not" condition | "(" expression ")" | primitive
//! primitive  = [protocol] [direction] [kind] value | protocol
//! protocol   = "ip" | "ip6" | "tcp" | "udp" | "icmp" | "icmp6"
//! direction  = "src" | "dst" | "src or dst" | "src and dst"
//! kind       = "host" | "net" | "port" | "portrange" | "vni"
//! ```
//!
//! `&&`, `||` and `!` stand for `and`, `or` and `not`. A value without a kind takes the qualifiers of the one before
//! it (`port 80 or 443`), or is an address. What a condition means on a packet with several headers, and in the two
//! directions of a flow, is said in [`tracer_common::filter`]; `not X` holds where X holds in neither direction.
//!
//! # Where it differs from tcpdump
//!
//! `tests/cases/tcpdump.rs` holds the two against each other, and has a packet for each of these:
//!
//! | | here | tcpdump |
//! |---|---|---|
//! | the other direction of a flow | selected as well; `not` hides both | a packet of its own |
//! | VLAN tags | looked through | need `vlan` |
//! | extension headers of IPv6, the fragment header included | looked through | hide the ports |
//! | tunnels | each header is looked at | the outer one |
//! | ICMP errors | belong to the flow that they quote | ICMP |
//! | `port` | TCP and UDP | SCTP as well |
//! | ARP | never selected | `host` and `net` do |
//!
//! This module reads an expression and compiles it. It looks up no names: DNS may be what is broken.

mod compile;
mod error;
mod expr;
mod lex;
mod parse;
mod qualifiers;
#[cfg(test)]
mod tests;
mod value;

pub use error::FilterError;
use tracer_common::filter::FilterProgram;

/// Compiles an expression; the empty one matches every packet.
pub fn compile(expression: &str) -> Result<FilterProgram, FilterError> {
    match parse::parse(expression)? {
        Some(expr) => compile::compile(&expr).map_err(|size| size.into_error(expression)),
        None => Ok(FilterProgram::ALL),
    }
}
