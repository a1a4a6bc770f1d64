//! What a packet must pass before it costs a record: the namespaces, the filter, the budget of its flow.

use tracer_common::{
    event::Kind,
    filter::matches_either_direction,
    ledger::Counter,
    packet::{FLAG_PORTS, Frame, Packet, Status, TCP_FIN, TCP_RST, TCP_SYN, parse},
};

use crate::{
    config::{config, filter},
    emit::Scratch,
    maps::{FLOWS, NETNS_SET, TUNNEL_PORTS, count},
    skb::{Place, SkBuff, Window},
    translation::{follow, is_followed},
};

/// Whether the namespace is watched. What has none may belong to any, so it is.
#[inline(always)]
pub fn watches(place: &Place) -> bool {
    if config!(netns_restricted) == 0 || place.netns_inum == 0 {
        return true;
    }
    // SAFETY: only the presence of the key is used.
    unsafe { NETNS_SET.get(place.netns_inum) }.is_some()
}

/// Reads and parses the packet into the scratch space, and says whether it is wanted.
#[inline(always)]
pub fn admits(scratch: &mut Scratch, kind: Kind, skb: SkBuff, window: &Window) -> bool {
    if !parse_window(scratch, window) {
        return false;
    }
    let packet = &scratch.packet;
    let dies = matches!(kind, Kind::Drop | Kind::Consume);
    let program = filter();
    if !program.matches_all()
        && !follow(
            packet,
            skb.address_of(),
            matches_either_direction(program, packet),
            dies,
        )
    {
        if matches!(packet.status, Status::Truncated | Status::TooDeep)
            && packet.inner().is_some_and(|layer| !layer.has(FLAG_PORTS))
        {
            count(Counter::Unreadable);
        }
        return false;
    }
    dies || within_budget(packet)
}

/// Whether the flow of what a socket says is selected.
#[inline(always)]
pub fn selects(packet: &Packet) -> bool {
    let program = filter();
    program.matches_all() || matches_either_direction(program, packet) || is_followed(packet)
}

/// Reads and parses the packet; `false` where it is no IP packet, or none that can be read, which is counted.
#[inline(always)]
pub fn parse_window(scratch: &mut Scratch, window: &Window) -> bool {
    if !scratch.fill(window) {
        count(Counter::Unreadable);
        return false;
    }
    let Some(ports) = TUNNEL_PORTS.get(0) else {
        return false;
    };
    let frame = Frame {
        start: window.start,
        len_bytes: window.len_bytes,
    };
    let status = parse(&scratch.captured, frame, ports, &mut scratch.packet);
    if scratch.packet.count == 0 {
        if !matches!(status, Status::NotIp) {
            count(Counter::Unreadable);
        }
        return false;
    }
    true
}

/// Whether the flow may still be reported at this length. Only the middle of a TCP connection is ever held back.
#[inline(always)]
fn within_budget(packet: &Packet) -> bool {
    let budget = config!(budget);
    if budget == 0 {
        return true;
    }
    let Some(layer) = packet.inner() else {
        return true;
    };
    if !layer.is_tcp() || layer.tcp_flags & (TCP_SYN | TCP_RST | TCP_FIN) != 0 {
        return true;
    }
    let flow = packet.flow_hash(config!(flow_seed));
    let Some(spent) = FLOWS.get_ptr_mut(flow) else {
        if FLOWS.insert(flow, 1u32, 0).is_err() {
            count(Counter::TableFull);
        }
        return true;
    };
    // SAFETY: the value stays readable while this program runs; two CPUs may count one event between them.
    unsafe {
        let so_far = spent.read_volatile();
        if so_far >= budget {
            count(Counter::RateLimited);
            return false;
        }
        spent.write_volatile(so_far + 1);
    }
    true
}
