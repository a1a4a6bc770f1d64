//! One flow in full.

use std::net::{IpAddr, SocketAddr};

use super::path::{self, netns};
use super::{Item, Row, Section, Tone};
use crate::report::{
    At, Cause, CauseCode, Confidence, Container, Endpoint, Evidence, Exchange, Flow, Hop, IcmpFate,
    Leg, Loss, PacketKind, Side, Stage, Time, Tuple, VerdictCode, WireguardPeer,
};

/// Pieces of evidence, losses or translations that are shown for a flow.
const DETAILS: usize = 6;

/// As many digits of a container's id as its tools show.
const SHORT_ID: usize = 12;

/// The flow in full.
pub(super) fn section(flow: &Flow) -> Section {
    let verdict = &flow.verdict;
    let mut rows = vec![Row::new("", tuple(flow))];
    rows.extend(endpoint("client", &flow.client));
    rows.extend(endpoint("server", &flow.server));
    rows.extend(legs(flow));

    let mut facts = Vec::new();
    facts.extend(capped(&flow.translations, "nat", |translation| {
        let place = translation
            .hop
            .device
            .as_deref()
            .map(|device| format!(" (seen at {device})"));
        format!(
            "{} became {}{}",
            addresses(&translation.from),
            addresses(&translation.to),
            place.unwrap_or_default()
        )
    }));
    let meanings = flow
        .tunnels
        .iter()
        .filter_map(|tunnel| Some((tunnel.vni?, tunnel.vni_meaning.as_deref()?)));
    // The two directions of a tunnel often share one.
    facts.extend(
        counted(meanings)
            .into_iter()
            .map(|((vni, meaning), _)| Row::new("vni", format!("{vni}: {meaning}"))),
    );
    facts.extend(verdict.at.as_ref().map(|at| place(flow, at)));
    if let Some(cause) = &verdict.cause {
        facts.extend(cause_rows(cause));
    }
    facts.extend(losses(flow));
    facts.extend(verdict.next.as_deref().map(|next| Row::new("next", next)));
    if let Some(first) = facts.first_mut() {
        first.apart = true;
    }
    rows.extend(facts);

    Section {
        title: verdict.summary.clone(),
        tone: match verdict.confidence {
            Confidence::Inconclusive => Tone::Open,
            _ if verdict.code.is_fault() => Tone::Bad,
            _ => Tone::Good,
        },
        confidence: Some(verdict.confidence),
        rows,
    }
}

/// The flow in one line.
pub(super) fn line(flow: &Flow) -> String {
    format!("{}  {}", tuple(flow), flow.verdict.summary)
}

/// Who talks to whom.
pub(super) fn tuple(flow: &Flow) -> String {
    let which = match flow.exchange {
        Some(Exchange::Dns { id }) => format!(", DNS id {id}"),
        Some(Exchange::Echo { id, seq }) => format!(" echo, id {id} seq {seq}"),
        None => String::new(),
    };
    format!(
        "{} → {} {}{which}",
        address(flow.client.addr, flow.client.port),
        address(flow.server.addr, flow.server.port),
        flow.protocol.name()
    )
}

/// Whether nothing of the flow was sent twice or lost.
pub(super) fn is_smooth(flow: &Flow) -> bool {
    flow.verdict.code == VerdictCode::Answered
        && flow.retransmits == 0
        && flow.request.count <= 1
        && flow.losses.iter().all(|loss| loss.innocent)
}

fn address(addr: IpAddr, port: Option<u16>) -> String {
    port.map_or_else(
        || addr.to_string(),
        |port| SocketAddr::new(addr, port).to_string(),
    )
}

fn addresses(tuple: &Tuple) -> String {
    format!(
        "{} → {}",
        address(tuple.src, tuple.src_port),
        address(tuple.dst, tuple.dst_port)
    )
}

fn endpoint(label: &str, endpoint: &Endpoint) -> Option<Row> {
    let known: Vec<String> = [
        endpoint
            .process
            .as_ref()
            .map(|process| format!("{}[{}]", process.comm, process.pid)),
        pod(endpoint),
        endpoint.container.as_ref().map(container),
        netns(endpoint.netns_name.as_deref(), endpoint.netns),
    ]
    .into_iter()
    .flatten()
    .collect();
    (!known.is_empty()).then(|| Row::new(label, known.join(", ")))
}

/// "pod shop/redis-0", or its uid where it has no name.
fn pod(endpoint: &Endpoint) -> Option<String> {
    let uid = || endpoint.container.as_ref()?.pod_uid.as_deref();
    match &endpoint.pod {
        Some(name) => Some(format!("pod {name}")),
        None => uid().map(|uid| format!("pod uid {uid}")),
    }
}

/// "container 3f2a9c1b0d4e (containerd)", as its tools list it.
fn container(container: &Container) -> String {
    let short: String = container.id.chars().take(SHORT_ID).collect();
    let runtime = container
        .runtime
        .map_or_else(String::new, |runtime| format!(" ({})", runtime.name()));
    format!("container {short}{runtime}")
}

fn legs(flow: &Flow) -> Vec<Row> {
    let mut rows: Vec<Row> = [Some(&flow.request), Some(&flow.reply), flow.ack.as_ref()]
        .into_iter()
        .flatten()
        .map(|leg| leg_row(flow, leg))
        .collect();
    rows.extend(flow.resets.iter().map(|reset| {
        let mut row = path::row("RST", &reset.path, reset.count, &flow.losses);
        let from = match reset.from {
            Side::Client => "from the client",
            Side::Server => "from the server",
        };
        row.items.insert(0, Item::new(from, Tone::Plain));
        row
    }));
    if let Some(first) = rows.first_mut() {
        first.apart = true;
    }
    rows
}

fn leg_row(flow: &Flow, leg: &Leg) -> Row {
    if leg.kind == PacketKind::Unseen {
        Row::new(leg.kind.name(), "not seen").toned(Tone::Weak)
    } else if leg.count == 0 {
        Row::new(leg.kind.name(), "never").toned(Tone::Bad)
    } else {
        path::row(leg.kind.name(), &leg.path, leg.count, &flow.losses)
    }
}

/// Where the packet that decided was seen last, or died.
fn place(flow: &Flow, at: &At) -> Row {
    let hop = decisive_hop(flow, at);
    let device = at.device.as_deref();
    let bytes = hop
        .and_then(|hop| hop.len)
        .map(|len| format!(" {len} bytes"))
        .unwrap_or_default();
    let outer = hop.and_then(|hop| hop.outer);
    let on = device
        .map(|device| format!(" on {device}"))
        .unwrap_or_default();
    let died = at.stage == Stage::Drop || at.function.is_some();
    let what = match at.stage {
        Stage::Egress if died => format!("on the way out{on}"),
        Stage::Ingress if died => format!("on the way in{on}"),
        Stage::Egress => {
            let to = outer
                .map(|outer| format!(" to {}", outer.dst))
                .unwrap_or_default();
            format!("{} transmitted{bytes}{to}", device.unwrap_or("a device"))
        }
        Stage::Ingress => {
            let from = outer
                .map(|outer| format!(" from {}", outer.src))
                .unwrap_or_default();
            format!("{} received{bytes}{from}", device.unwrap_or("a device"))
        }
        Stage::Drop => format!("freed{on}"),
        Stage::LocalOut => format!("in the sender's own stack{on}"),
        Stage::Forward => format!("on the way through{on}"),
        Stage::Nat => format!("in address translation{on}"),
        Stage::Encap => format!("on the way into a tunnel{on}"),
        Stage::Decap => format!("on the way out of a tunnel{on}"),
        Stage::LocalIn => format!("on the way to a socket{on}"),
        Stage::Listener => "at the listener".to_owned(),
        Stage::Socket => "at the socket".to_owned(),
    };
    let within = netns(at.netns_name.as_deref(), at.netns).map(|netns| format!(", {netns}"));
    let label = match flow.verdict.code {
        VerdictCode::Refused => "refused",
        _ if died => "died",
        _ => "last seen",
    };
    Row::new(
        label,
        timed(at.time, &format!("{what}{}", within.unwrap_or_default())),
    )
}

fn decisive_hop<'a>(flow: &'a Flow, at: &At) -> Option<&'a Hop> {
    [Some(&flow.request), Some(&flow.reply), flow.ack.as_ref()]
        .into_iter()
        .flatten()
        .flat_map(|leg| &leg.path)
        .find(|hop| hop.time == at.time && hop.ifindex == at.ifindex && hop.stage == at.stage)
}

fn cause_rows(cause: &Cause) -> Vec<Row> {
    let mut rows = Vec::new();
    let detail = cause.detail.as_deref().map(|detail| format!(": {detail}"));
    rows.push(Row::new(
        "cause",
        format!("{}{}", cause.code.name(), detail.unwrap_or_default()),
    ));
    if cause.drop_reason.is_some() || cause.function.is_some() {
        let reason = cause.drop_reason.as_deref().unwrap_or("no reason given");
        let mut row = Row::new("kernel", reason);
        let frames = cause.function.iter().chain(&cause.callers);
        row.items.extend(frames.enumerate().map(|(depth, frame)| {
            let (arrow, tone) = if depth == 0 {
                ("in", Tone::Plain)
            } else {
                ("←", Tone::Weak)
            };
            Item::new(format!("{arrow} {frame}"), tone)
        }));
        rows.push(row);
    }
    rows.extend(size(cause));
    rows.extend(sizes(cause));
    let evidence: Vec<&Evidence> = cause
        .evidence
        .iter()
        .filter(|evidence| !repeats_kernel(cause, evidence))
        .collect();
    rows.extend(capped(&evidence, "evidence", |evidence| {
        evidence_words(evidence)
    }));
    rows
}

fn evidence_words(evidence: &Evidence) -> String {
    let within = |name: &Option<String>, inum: u32| {
        netns(name.as_deref(), Some(inum)).map_or_else(String::new, |netns| format!(" in {netns}"))
    };
    match evidence {
        Evidence::Event { time, summary } => timed(*time, summary),
        Evidence::Counter {
            netns,
            netns_name,
            device,
            name,
            before,
            after,
        } => {
            let device = device
                .as_ref()
                .map_or_else(String::new, |device| format!(" of {device}"));
            format!(
                "{name}{device} {before} → {after}{}",
                within(netns_name, *netns)
            )
        }
        Evidence::Route {
            time,
            netns,
            netns_name,
            to,
            summary,
            mark,
            ..
        } => {
            let marked = match mark {
                0 => String::new(),
                mark => format!(" with mark {mark:#x}"),
            };
            timed(
                *time,
                &format!(
                    "asked for the route to {to}{marked}{}: {summary}",
                    within(netns_name, *netns)
                ),
            )
        }
        Evidence::Sysctl {
            time,
            netns,
            netns_name,
            name,
            value,
        } => timed(
            *time,
            &format!("{name} = {value}{}", within(netns_name, *netns)),
        ),
        Evidence::Wireguard {
            time,
            netns,
            netns_name,
            device,
            listen_port,
            peers,
            ..
        } => {
            let device = device.as_deref().unwrap_or("a WireGuard device");
            let peers: Vec<String> = peers.iter().map(peer_words).collect();
            let peers = if peers.is_empty() {
                "no such peer".to_owned()
            } else {
                peers.join("; ")
            };
            timed(
                *time,
                &format!(
                    "{device}{} (port {listen_port}): {peers}",
                    within(netns_name, *netns)
                ),
            )
        }
        Evidence::Neighbour {
            time,
            netns,
            netns_name,
            device,
            addr,
            state,
            mac,
        } => {
            let device = device.as_deref().unwrap_or("a device");
            let mac = mac
                .as_ref()
                .map_or_else(String::new, |mac| format!(" at {mac}"));
            let state = state.as_deref().unwrap_or("no entry");
            timed(
                *time,
                &format!(
                    "neighbour {addr} on {device}{}: {state}{mac}",
                    within(netns_name, *netns)
                ),
            )
        }
    }
}

/// "peer BwcHBwcHBw… at 192.0.2.7:51820, no handshake, 0 bytes from it, 148 to it, AllowedIPs 10.0.0.0/8".
fn peer_words(peer: &WireguardPeer) -> String {
    let endpoint = peer.endpoint.map_or_else(
        || "without an endpoint".to_owned(),
        |endpoint| format!("at {endpoint}"),
    );
    let handshake = peer.latest_handshake.map_or_else(
        || "no handshake".to_owned(),
        |time| format!("latest handshake {}", time.clock()),
    );
    let allowed = &peer.allowed_ips;
    let more = if allowed.len() > DETAILS { ", …" } else { "" };
    let allowed = allowed[..allowed.len().min(DETAILS)].join(", ");
    let allowed = if allowed.is_empty() { "none" } else { &allowed };
    format!(
        "peer {}… {endpoint}, {handshake}, {} bytes from it, {} to it, AllowedIPs {allowed}{more}",
        peer.public_key, peer.rx_bytes, peer.tx_bytes
    )
}

/// Whether a piece of evidence is the very event that the `kernel` row has told already.
fn repeats_kernel(cause: &Cause, evidence: &Evidence) -> bool {
    match (evidence, &cause.drop_reason, &cause.function) {
        (Evidence::Event { summary, .. }, Some(reason), Some(function)) => {
            summary.starts_with(&format!("{reason} in {function}"))
        }
        _ => false,
    }
}

fn size(cause: &Cause) -> Option<Row> {
    let said = |flag: Option<bool>, yes: &str, no: &str| {
        flag.map(|flag| if flag { yes } else { no }.to_owned())
    };
    if cause.code != CauseCode::Mtu {
        return None;
    }
    let parts: Vec<String> = [
        cause
            .segment_len
            .or(cause.packet_len)
            .map(|len| format!("{len} bytes")),
        cause.mtu.map(|mtu| format!("mtu {mtu}")),
        cause
            .packet_len
            .filter(|_| cause.gso == Some(true))
            .map(|len| format!("one of the segments of {len} bytes (GSO)")),
        said(
            cause.dont_fragment,
            "must not be fragmented",
            "may be fragmented",
        ),
        cause.icmp_fate.map(|fate| icmp_words(fate).to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect();
    Some(Row::new("size", parts.join(", ")))
}

/// What a person wants to know of the ICMP error that tells the sender.
const fn icmp_words(fate: IcmpFate) -> &'static str {
    match fate {
        IcmpFate::LinkLayer => "no ICMP from below IP",
        IcmpFate::TunnelEnd => "ICMP goes to the tunnel's end",
        IcmpFate::NoRouteBack => "no ICMP for want of a route back",
        IcmpFate::NotSent => "no ICMP seen",
        IcmpFate::Dropped => "the ICMP died on its way",
        IcmpFate::LeftNode => "the ICMP left this node",
        IcmpFate::NotDelivered => "the ICMP was not seen to arrive",
        IcmpFate::Delivered => "the ICMP reached the sender",
        IcmpFate::Ignored => "the ICMP reached the sender, which ignores it",
        IcmpFate::ActedUpon => "the ICMP reached the sender, which sends less",
    }
}

/// Which sizes came how far: the way of the largest packet, and where it ended.
fn sizes(cause: &Cause) -> Option<Row> {
    let mut row = Row::new("sizes", "");
    row.items.clear();
    let mut known_netns = None;
    for hop in &cause.sizes {
        let within = known_netns.replace(hop.netns) != Some(hop.netns);
        let within = match &hop.netns_name {
            Some(name) if within => format!(" (netns {name})"),
            None if within => format!(" (netns {})", hop.netns),
            _ => String::new(),
        };
        let device = hop.device.as_deref().unwrap_or("a device");
        let died = hop
            .smallest_died
            .map_or_else(String::new, |died| format!(", {died} ✗"));
        row.items.push(Item::new(
            format!("{device}{within} {}{died}", hop.largest_seen),
            if hop.smallest_died.is_some() {
                Tone::Bad
            } else {
                Tone::Plain
            },
        ));
    }
    (!row.items.is_empty()).then_some(row)
}

/// The losses that cost something, then how many mean nothing.
fn losses(flow: &Flow) -> Vec<Row> {
    let decided = flow.verdict.at.as_ref().and_then(|at| at.time);
    let (innocent, costly): (Vec<&Loss>, Vec<&Loss>) =
        flow.losses.iter().partition(|loss| loss.innocent);
    let other: Vec<&Loss> = costly
        .into_iter()
        .filter(|loss| !flow.verdict.code.is_fault() || loss.time != decided)
        .collect();
    let place = |at: Option<&At>| at.map(|at| (at.netns, at.ifindex, at.stage));
    let (alike, other): (Vec<&Loss>, Vec<&Loss>) = other.into_iter().partition(|loss| {
        flow.verdict.code.is_fault() && place(loss.at.as_ref()) == place(flow.verdict.at.as_ref())
    });
    let alike = counted(
        alike
            .into_iter()
            .map(|loss| (loss.packet.name(), "in the same place")),
    );
    let other = counted(
        other
            .into_iter()
            .map(|loss| (loss.packet.name(), loss.why.as_str())),
    );
    let other = [alike, other].concat();
    let innocent = counted(
        innocent
            .into_iter()
            .map(|loss| (loss.packet.name(), loss.why.as_str())),
    );
    let words = |((packet, why), count): &((&str, &str), usize)| match count {
        1 => format!("{packet}: {why}"),
        _ => format!("{count} × {packet}: {why}"),
    };
    let mut rows = capped(&other, "also lost", words);
    rows.extend(
        capped(&innocent, "harmless", words)
            .into_iter()
            .map(|row| row.toned(Tone::Weak)),
    );
    rows
}

/// Each thing once, in the order of first appearance, and how often it came.
fn counted<T: PartialEq>(things: impl Iterator<Item = T>) -> Vec<(T, usize)> {
    let mut counted: Vec<(T, usize)> = Vec::new();
    for thing in things {
        match counted.iter_mut().find(|(known, _)| *known == thing) {
            Some((_, count)) => *count += 1,
            None => counted.push((thing, 1)),
        }
    }
    counted
}

fn timed(time: Option<Time>, what: &str) -> String {
    time.map_or_else(
        || what.to_owned(),
        |time| format!("{}  {what}", time.clock()),
    )
}

/// One row each, the first with the label, and how many more there are.
fn capped<T>(things: &[T], label: &str, words: impl Fn(&T) -> String) -> Vec<Row> {
    let more = things.len().saturating_sub(DETAILS);
    let mut rows: Vec<Row> = things
        .iter()
        .take(DETAILS)
        .map(|thing| Row::new(label, words(thing)))
        .collect();
    if more > 0 {
        rows.push(Row::new(label, format!("and {more} more")).toned(Tone::Weak));
    }
    rows
}
