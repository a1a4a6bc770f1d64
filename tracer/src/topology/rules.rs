//! The rules by which a namespace chooses its routing tables (`ip rule`), and what they say about one packet. It does no
//! I/O.
//!
//! What a rule looks at and we do not know is never guessed: such a rule may match or not, and nothing that depends on
//! it is claimed.

use std::{collections::BTreeSet, net::IpAddr, ops::RangeInclusive};

use crate::fact::{Prefix, RouteKind};

use super::{
    links::{attributes, ip, number, text},
    netlink::Message,
    routes::{Entry, contains},
};

/// `sizeof(struct fib_rule_hdr)`
const HEADER_BYTES: usize = 12;

/// `FIB_RULE_INVERT`: the rule is for what it does not describe.
const INVERT: u32 = 2;

/// `FRA_*` (include/uapi/linux/fib_rules.h), those that are read.
mod kind {
    pub(super) const DST: u16 = 1;
    pub(super) const SRC: u16 = 2;
    pub(super) const IIFNAME: u16 = 3;
    pub(super) const PRIORITY: u16 = 6;
    pub(super) const FWMARK: u16 = 10;
    /// Realms: what the rule sets, not what it looks at.
    pub(super) const FLOW: u16 = 11;
    pub(super) const SUPPRESS_PREFIXLEN: u16 = 14;
    pub(super) const TABLE: u16 = 15;
    pub(super) const FWMASK: u16 = 16;
    pub(super) const OIFNAME: u16 = 17;
    pub(super) const PAD: u16 = 18;
    /// Who made the rule.
    pub(super) const PROTOCOL: u16 = 21;
    pub(super) const IP_PROTO: u16 = 22;
    pub(super) const SPORT_RANGE: u16 = 23;
    pub(super) const DPORT_RANGE: u16 = 24;
}

/// What a rule does with the packets that it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Table(u32),
    Nothing,
    Rejects(RouteKind),
    /// Goes on elsewhere in the list, or does something newer than this program.
    Unknown,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    priority: u32,
    action: Action,
    dst: Option<Prefix>,
    src: Option<Prefix>,
    iif: Option<String>,
    oif: Option<String>,
    mark: u32,
    mask: u32,
    protocol: Option<u8>,
    src_ports: Option<RangeInclusive<u16>>,
    dst_ports: Option<RangeInclusive<u16>>,
    /// What its table finds with a prefix of at most this length does not count.
    suppress_prefix_len: Option<u32>,
    invert: bool,
    /// It looks at something that we do not know.
    unknown: bool,
}

/// A packet as the rules see it.
#[derive(Clone, Debug)]
pub(super) struct Packet<'a> {
    pub src: IpAddr,
    /// The kernel was asked without the source, which it takes only where it is its own.
    pub src_unasked: bool,
    pub dst: IpAddr,
    /// The device that it came in on, by name; `lo` for what the namespace itself sends.
    pub iif: &'a str,
    pub oif: Option<&'a str>,
    pub mark: u32,
    pub protocol: u8,
    pub src_port: u16,
    pub dst_port: u16,
}

/// Reads a message; `None` for one that is about something else.
pub(super) fn parse(message: Message<'_>) -> Option<Rule> {
    if message.kind != libc::RTM_NEWRULE {
        return None;
    }
    // struct fib_rule_hdr: family, dst_len, src_len, tos, table, two that are reserved, action, flags.
    let header: &[u8; HEADER_BYTES] = message.payload.first_chunk()?;
    let [
        family,
        dst_len,
        src_len,
        tos,
        table,
        _,
        _,
        action,
        flags @ ..,
    ] = *header;
    let flags = u32::from_ne_bytes(flags);
    let mut rule = Rule {
        priority: 0,
        action: Action::Unknown,
        dst: None,
        src: None,
        iif: None,
        oif: None,
        mark: 0,
        mask: 0,
        protocol: None,
        src_ports: None,
        dst_ports: None,
        suppress_prefix_len: None,
        invert: flags & INVERT != 0,
        unknown: tos != 0,
    };
    let mut table = u32::from(table);
    let prefix = |value: &[u8], len| {
        let addr = ip(family, value)?;
        Some(Prefix { addr, len })
    };
    for attribute in attributes(&message.payload[HEADER_BYTES..]) {
        let value = attribute.value();
        match attribute.kind() {
            kind::DST => rule.dst = prefix(value, dst_len),
            kind::SRC => rule.src = prefix(value, src_len),
            kind::IIFNAME => rule.iif = Some(text(value)),
            kind::OIFNAME => rule.oif = Some(text(value)),
            kind::PRIORITY => rule.priority = number(value)?,
            kind::FWMARK => rule.mark = number(value)?,
            kind::FWMASK => rule.mask = number(value)?,
            kind::TABLE => table = number(value)?,
            kind::SUPPRESS_PREFIXLEN => {
                rule.suppress_prefix_len = number(value).filter(|len| *len != u32::MAX);
            }
            kind::IP_PROTO => rule.protocol = value.first().copied(),
            kind::SPORT_RANGE => rule.src_ports = Some(ports(value)?),
            kind::DPORT_RANGE => rule.dst_ports = Some(ports(value)?),
            kind::FLOW | kind::PAD | kind::PROTOCOL => {}
            _ => rule.unknown = true,
        }
    }
    // FR_ACT_*
    rule.action = match action {
        1 => Action::Table(table),
        3 => Action::Nothing,
        6 => Action::Rejects(RouteKind::Blackhole),
        7 => Action::Rejects(RouteKind::Unreachable),
        8 => Action::Rejects(RouteKind::Prohibit),
        _ => Action::Unknown,
    };
    Some(rule)
}

/// struct fib_rule_port_range
fn ports(value: &[u8]) -> Option<RangeInclusive<u16>> {
    let [start, end] = *value.as_chunks::<2>().0 else {
        return None;
    };
    Some(u16::from_ne_bytes(start)..=u16::from_ne_bytes(end))
}

impl Rule {
    /// Whether the rule is for this packet, as `fib_rule_match()` in net/core/fib_rules.c decides; `None` where that is not
    /// known.
    fn is_for(&self, packet: &Packet<'_>) -> Option<bool> {
        let within =
            |prefix: Option<Prefix>, addr| prefix.is_none_or(|prefix| contains(prefix, addr));
        let port = |range: &Option<RangeInclusive<u16>>, port| {
            range.as_ref().is_none_or(|range| range.contains(&port))
        };
        let known = within(self.dst, packet.dst)
            && within(self.src, packet.src)
            && self.iif.as_deref().is_none_or(|iif| iif == packet.iif)
            && (self.oif.is_none() || self.oif.as_deref() == packet.oif)
            && (self.mark ^ packet.mark) & self.mask == 0
            && self
                .protocol
                .is_none_or(|protocol| protocol == packet.protocol)
            && port(&self.src_ports, packet.src_port)
            && port(&self.dst_ports, packet.dst_port);
        let unasked = packet.src_unasked && self.src.is_some();
        if known && (self.unknown || unasked) {
            return None;
        }
        Some(known != self.invert)
    }

    fn looks_at_ports(&self) -> bool {
        self.protocol.is_some() || self.src_ports.is_some() || self.dst_ports.is_some()
    }

    /// Where it stands among the rules.
    pub(super) const fn priority(&self) -> u32 {
        self.priority
    }

    /// Which packets it is for, in the words and the order of `ip rule`; the name of a device is untrusted.
    pub(super) fn selector(&self) -> String {
        let mut words = Vec::new();
        if self.invert {
            words.push("not".to_owned());
        }
        // `ip rule` writes a host without its prefix length, and "from all" where nothing is said of the source.
        let network = |prefix: Prefix| match (prefix.addr, prefix.len) {
            (IpAddr::V4(addr), 32) => addr.to_string(),
            (IpAddr::V6(addr), 128) => addr.to_string(),
            _ => format!("{}/{}", prefix.addr, prefix.len),
        };
        let src = self.src.map_or_else(|| "all".to_owned(), network);
        words.push(format!("from {src}"));
        words.extend(self.dst.map(|dst| format!("to {}", network(dst))));
        match (self.mark, self.mask) {
            (0, 0) => {}
            (mark, u32::MAX) => words.push(format!("fwmark {mark:#x}")),
            (mark, mask) => words.push(format!("fwmark {mark:#x}/{mask:#x}")),
        }
        words.extend(self.iif.as_ref().map(|iif| format!("iif {iif}")));
        words.extend(self.oif.as_ref().map(|oif| format!("oif {oif}")));
        words.extend(
            self.protocol
                .map(|protocol| format!("ipproto {}", protocol_words(protocol))),
        );
        let ports = |word: &str, range: &RangeInclusive<u16>| match (range.start(), range.end()) {
            (start, end) if start == end => format!("{word} {start}"),
            (start, end) => format!("{word} {start}-{end}"),
        };
        words.extend(self.src_ports.as_ref().map(|range| ports("sport", range)));
        words.extend(self.dst_ports.as_ref().map(|range| ports("dport", range)));
        if self.unknown {
            words.push("and more".to_owned());
        }
        words.join(" ")
    }

    /// Whether it may lead this packet to a table.
    fn may_lead_to(&self, packet: &Packet<'_>, table: u32) -> bool {
        let leads = match self.action {
            Action::Table(of) => of == table,
            Action::Unknown => true,
            Action::Nothing | Action::Rejects(_) => false,
        };
        leads && self.is_for(packet) != Some(false)
    }
}

fn protocol_words(protocol: u8) -> String {
    match i32::from(protocol) {
        libc::IPPROTO_TCP => "tcp".to_owned(),
        libc::IPPROTO_UDP => "udp".to_owned(),
        libc::IPPROTO_ICMP => "icmp".to_owned(),
        libc::IPPROTO_ICMPV6 => "ipv6-icmp".to_owned(),
        number => number.to_string(),
    }
}

/// What decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision<'a> {
    pub prefix: Option<Prefix>,
    pub table: Option<u32>,
    pub rule: Option<&'a Rule>,
    pub by_rule: bool,
}

/// The route that would take the packet if a rule led it to the route's table, the longest prefix first; `None` also where
/// it is not known of some rule whether it leads there.
pub(super) fn unreached<'r>(
    rules: &[Rule],
    routes: &'r [Entry],
    packet: &Packet<'_>,
) -> Option<&'r Entry> {
    let reached = |table| rules.iter().any(|rule| rule.may_lead_to(packet, table));
    routes
        .iter()
        .filter(|route| route.takes(packet.src, packet.dst) && !reached(route.table))
        .max_by_key(|route| route.dst.len)
}

/// Whether some rule looks at ports or protocols.
pub(super) fn look_at_ports(rules: &[Rule]) -> bool {
    rules.iter().any(Rule::looks_at_ports)
}

/// Whether it is not known of some rule whether it is for this packet.
pub(super) fn are_uncertain(rules: &[Rule], packet: &Packet<'_>) -> bool {
    let uncertain = |rule: &Rule| {
        rule.is_for(packet).is_none()
            || rule.action == Action::Unknown && rule.is_for(packet) != Some(false)
    };
    rules.iter().any(uncertain)
}

/// The rule that led to a route in a table. The first rule for this packet with that table did: a later one would find
/// the same again. `None` where a rule on the way there is uncertain.
pub(super) fn leading_to<'r>(
    rules: &'r [Rule],
    packet: &Packet<'_>,
    found: Prefix,
    table: u32,
) -> Option<&'r Rule> {
    for rule in rules {
        match (rule.is_for(packet), rule.action) {
            (Some(false), _) => {}
            (_, Action::Unknown) => return None,
            (is_for, Action::Table(of)) if of == table => {
                let suppressed = rule
                    .suppress_prefix_len
                    .is_some_and(|len| u32::from(found.len) <= len);
                if !suppressed {
                    return is_for.map(|_| rule);
                }
            }
            _ => {}
        }
    }
    None
}

/// Which route or rule rejected a packet in this way; `None` where nothing there does, or where several might have
/// (then the second part of the pair says so).
///
/// The kernel only says in which way. A route that rejects and that a table finds is the longest of its kind there
/// that has the destination, so where a single table has one, it is that one.
pub(super) fn rejecting<'r>(
    rules: &'r [Rule],
    routes: &[Entry],
    kind: RouteKind,
    packet: &Packet<'_>,
) -> Option<Decision<'r>> {
    let mut candidates = Vec::new();
    let mut tables = BTreeSet::new();
    for rule in rules {
        let is_for = rule.is_for(packet);
        if is_for == Some(false) {
            continue;
        }
        match rule.action {
            Action::Rejects(of) if of == kind => candidates.push(Decision {
                rule: is_for.map(|_| rule),
                by_rule: true,
                ..Decision::default()
            }),
            Action::Table(table) if tables.insert(table) => {
                let longest = routes
                    .iter()
                    .filter(|route| route.kind == kind && route.table == table)
                    .filter(|route| route.takes(packet.src, packet.dst))
                    .max_by_key(|route| route.dst.len);
                candidates.extend(longest.map(|route| Decision {
                    prefix: Some(route.dst),
                    table: Some(table),
                    rule: leading_to(rules, packet, route.dst, table),
                    by_rule: false,
                }));
            }
            _ => {}
        }
    }
    match candidates.as_slice() {
        [] => None,
        [only] => Some(*only),
        // One of several: that it was rejected in this way is certain, and no more.
        _ => Some(Decision::default()),
    }
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
