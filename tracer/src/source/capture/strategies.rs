//! Any record at all.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::event::{
    Again, Death, DeviceId, Event, NetnsId, Process, Skb, SkbId, Socket, SocketHook, Symbol,
    TcpState, What,
};
use crate::fact::{
    Container, Lookup, NeighbourState, NextHop, Owner, Prefix, Route, RouteKind, Runtime,
    SocketOwner, Way, Wireguard, WireguardPeer,
};
use crate::record::{
    BlindSpot, CAPTURE_SCHEMA, ClockPair, Device, Fact, Header, Hook, HookState, Ledger, Record,
    StoppedBy, Trailer, View,
};

fn netns() -> impl Strategy<Value = NetnsId> {
    any::<(u32, u64)>().prop_map(|(inum, cookie)| NetnsId { inum, cookie })
}

fn device_id() -> impl Strategy<Value = DeviceId> {
    (netns(), any::<u32>()).prop_map(|(netns, ifindex)| DeviceId { netns, ifindex })
}

/// Any header, of the schema that is read.
pub(super) fn header() -> impl Strategy<Value = Header> {
    let view = prop_oneof![
        Just(View::Kernel),
        vec(netns(), 0..3).prop_map(|netns| View::Netns { netns }),
    ];
    let state = prop_oneof![
        Just(HookState::Attached),
        Just(HookState::Absent),
        Just(HookState::Failed)
    ];
    let hook = (
        any::<String>(),
        any::<String>(),
        state,
        option::of(any::<String>()),
    )
        .prop_map(|(name, kind, state, reason)| Hook {
            name,
            kind,
            state,
            reason,
        });
    let blind_spot =
        any::<(String, String)>().prop_map(|(code, summary)| BlindSpot { code, summary });
    (
        any::<[String; 7]>(),
        vec(any::<String>(), 0..3),
        view,
        vec(hook, 0..3),
        vec(blind_spot, 0..3),
        vec(device_id(), 0..3),
        any::<u64>(),
    )
        .prop_map(
            |(strings, command, view, hooks, blind_spots, tc_devices, start_ns)| {
                let [
                    tracer_version,
                    hostname,
                    machine_id,
                    boot_id,
                    kernel,
                    arch,
                    filter,
                ] = strings;
                Header {
                    schema: CAPTURE_SCHEMA.to_owned(),
                    tracer_version,
                    command,
                    hostname,
                    machine_id,
                    boot_id,
                    kernel,
                    arch,
                    filter,
                    view,
                    hooks,
                    blind_spots,
                    tc_devices,
                    start_ns,
                }
            },
        )
}

fn device() -> impl Strategy<Value = Device> {
    let names = (
        option::of(any::<String>()),
        any::<String>(),
        any::<String>(),
    );
    let below = (
        option::of(any::<u32>()),
        option::of(any::<u32>()),
        option::of(any::<u32>()),
        option::of(netns()),
    );
    (
        device_id(),
        names,
        any::<(u32, bool, bool)>(),
        option::of(any::<[u8; 6]>()),
        option::of(device_id()),
        below,
        option::of(any::<u16>()),
        vec(any::<IpAddr>(), 0..3),
    )
        .prop_map(
            |(
                id,
                (netns_name, name, kind),
                (mtu, up, removed),
                mac,
                peer,
                below,
                udp_port,
                addrs,
            )| Device {
                id,
                netns_name,
                name,
                kind,
                mtu,
                up,
                mac,
                peer,
                master_ifindex: below.0,
                vni: below.1,
                udp_port,
                underlay_ifindex: below.2,
                underlay_netns: below.3,
                addrs,
                removed,
            },
        )
}

fn symbol() -> impl Strategy<Value = Symbol> {
    any::<(String, u32)>().prop_map(|(function, offset)| Symbol { function, offset })
}

fn skb() -> impl Strategy<Value = Skb> {
    let headers = || vec(any::<u8>(), 0..=tracer_common::event::HEADER_BYTES_MAX);
    (
        any::<(u64, u32, u32, u16, u16, u16, u8, bool, bool)>(),
        headers(),
        headers(),
    )
        .prop_map(
            |(
                (
                    id,
                    len_bytes,
                    mark,
                    protocol,
                    vlan_tci,
                    gso_size,
                    pkt_type,
                    budget_spent,
                    ethernet,
                ),
                headers,
                sealed,
            )| Skb {
                id: SkbId(id),
                len_bytes,
                mark,
                protocol,
                vlan_tci,
                gso_size,
                pkt_type,
                budget_spent,
                ethernet,
                headers: Bytes::from(headers),
                sealed: Bytes::from(sealed),
            },
        )
}

fn process() -> impl Strategy<Value = Process> + Clone {
    any::<(u32, String)>().prop_map(|(pid, comm)| Process { pid, comm })
}

fn socket() -> impl Strategy<Value = Socket> {
    let state = || {
        option::of((1_u8..=12).prop_map(|number| TcpState::from_number(number).expect("a state")))
    };
    (
        any::<(IpAddr, u16, IpAddr, u16)>(),
        state(),
        state(),
        option::of(process()),
        option::of(any::<(u32, u32)>()),
    )
        .prop_map(
            |(
                (local_addr, local_port, remote_addr, remote_port),
                old_state,
                new_state,
                process,
                again,
            )| Socket {
                local_addr,
                local_port,
                remote_addr,
                remote_port,
                old_state,
                new_state,
                process,
                again: again.map(|(snd_una, seq)| Again { snd_una, seq }),
            },
        )
}

fn what() -> impl Strategy<Value = What> {
    let death = (option::of(any::<String>()), symbol(), vec(symbol(), 0..4)).prop_map(
        |(reason, location, callers)| Death {
            reason,
            location,
            callers,
            result: None,
        },
    );
    let hook = prop_oneof![
        Just(SocketHook::State),
        Just(SocketHook::RetransmitSkb),
        Just(SocketHook::RetransmitSynack),
        Just(SocketHook::ResetSent),
        Just(SocketHook::ResetReceived),
    ];
    prop_oneof![
        skb().prop_map(|skb| What::Xmit { skb }),
        skb().prop_map(|skb| What::Receive { skb }),
        skb().prop_map(|skb| What::Consume { skb }),
        (skb(), death).prop_map(|(skb, death)| What::Drop { skb, death }),
        any::<(u64, i32, Option<u32>)>().prop_map(|(id, result, len_bytes)| What::XmitFailed {
            skb: SkbId(id),
            result,
            len_bytes
        }),
        (hook, socket()).prop_map(|(hook, socket)| What::Socket { hook, socket }),
    ]
}

fn event() -> impl Strategy<Value = Event> {
    (
        any::<(u64, u16, u32)>(),
        option::of(netns()),
        option::of(any::<u32>()),
        what(),
    )
        .prop_map(|((time_ns, cpu, sequence), netns, ifindex, what)| Event {
            time_ns,
            cpu,
            sequence,
            netns,
            ifindex,
            what,
        })
}

/// Any fact.
fn fact() -> impl Strategy<Value = Fact> {
    let counter =
        (netns(), any::<(String, u64, u64)>()).prop_map(|(netns, (name, before, after))| {
            Fact::Counter {
                netns,
                name,
                before,
                after,
            }
        });
    let sysctl =
        (netns(), any::<(u64, String, i64)>()).prop_map(|(netns, (asked_ns, name, value))| {
            Fact::Sysctl {
                netns,
                asked_ns,
                name,
                value,
            }
        });
    let state = option::of(prop_oneof![
        Just(NeighbourState::Failed),
        Just(NeighbourState::Permanent),
    ]);
    let neighbour = (netns(), state, any::<(u64, u32, IpAddr, Option<[u8; 6]>)>()).prop_map(
        |(netns, state, (asked_ns, ifindex, addr, mac))| Fact::Neighbour {
            netns,
            asked_ns,
            ifindex,
            addr,
            state,
            mac,
        },
    );
    let way = prop_oneof![Just(Way::Input), Just(Way::Output), Just(Way::Reverse)];
    let addresses = any::<(IpAddr, u16, IpAddr, u16)>();
    let lookup = (way, addresses, any::<(Option<u32>, u8, u32)>()).prop_map(
        |(way, (src, src_port, dst, dst_port), (ifindex, protocol, mark))| Lookup {
            way,
            ifindex,
            protocol,
            src: SocketAddr::new(src, src_port),
            dst: SocketAddr::new(dst, dst_port),
            mark,
        },
    );
    let found = prop_oneof![
        Just(RouteKind::None),
        Just(RouteKind::Unicast),
        Just(RouteKind::Prohibit),
    ];
    let hops = vec(
        any::<(Option<IpAddr>, u32)>().prop_map(|(gateway, ifindex)| NextHop { gateway, ifindex }),
        0..3,
    );
    let prefix = option::of(any::<(IpAddr, u8)>().prop_map(|(addr, len)| Prefix { addr, len }));
    let flags = any::<(
        u64,
        Option<u32>,
        Option<(u32, String)>,
        Option<u32>,
        bool,
        bool,
        bool,
        bool,
    )>();
    let route = (netns(), lookup, found, hops, prefix, flags).prop_map(
        |(
            netns,
            lookup,
            found,
            hops,
            prefix,
            (asked_ns, table, rule, mtu, by_rule, ports_matter, uncertain, unreached),
        )| {
            let (rule, rule_selector) = rule.unzip();
            Fact::Route(Box::new(Route {
                netns,
                asked_ns,
                lookup,
                found,
                prefix,
                table,
                rule,
                rule_selector,
                by_rule,
                hops,
                mtu,
                ports_matter,
                uncertain,
                unreached,
            }))
        },
    );
    let device_counter =
        (device_id(), any::<(String, u64, u64)>()).prop_map(|(device, (name, before, after))| {
            Fact::DeviceCounter {
                device,
                name,
                before,
                after,
            }
        });
    prop_oneof![
        counter,
        device_counter,
        sysctl,
        neighbour,
        route,
        holder(),
        wireguard()
    ]
}

/// Any fact about who has a socket or a device.
fn holder() -> impl Strategy<Value = Fact> {
    let runtime = prop_oneof![Just(Runtime::CriO), Just(Runtime::Podman)];
    let container = (
        option::of(runtime),
        any::<(String, Option<String>, Option<String>)>(),
    )
        .prop_map(|(runtime, (id, pod_uid, pod))| Container {
            id,
            runtime,
            pod_uid,
            pod,
        });
    let owner = (process(), option::of(container))
        .prop_map(|(process, container)| Owner { process, container });
    let addresses = any::<(IpAddr, u16, Option<(IpAddr, u16)>)>();
    let socket = (netns(), addresses, any::<(u64, u8)>(), owner.clone()).prop_map(
        |(netns, (local, port, remote), (asked_ns, protocol), owner)| {
            Fact::Socket(Box::new(SocketOwner {
                netns,
                asked_ns,
                protocol,
                local: SocketAddr::new(local, port),
                remote: remote.map(|(remote, port)| SocketAddr::new(remote, port)),
                owner,
            }))
        },
    );
    let process = (any::<u64>(), owner.clone())
        .prop_map(|(asked_ns, owner)| Fact::Process { asked_ns, owner });
    let tun = (device_id(), any::<u64>(), owner).prop_map(|(device, asked_ns, owner)| Fact::Tun {
        device,
        asked_ns,
        owner,
    });
    // Strategies are as big as all that they are made of, and a test's stack is small.
    prop_oneof![socket, process, tun].boxed()
}

/// Any WireGuard device.
fn wireguard() -> impl Strategy<Value = Fact> {
    let address = || any::<(IpAddr, u8)>().prop_map(|(addr, len)| Prefix { addr, len });
    let peer = (
        any::<(String, Option<(IpAddr, u16)>, Option<u64>, u64, u64, u16)>(),
        vec(address(), 0..3),
    )
        .prop_map(
            |(
                (public_key, endpoint, latest_handshake_ns, rx_bytes, tx_bytes, keepalive_s),
                allowed_ips,
            )| {
                WireguardPeer {
                    public_key,
                    endpoint: endpoint.map(SocketAddr::from),
                    allowed_ips,
                    latest_handshake_ns,
                    rx_bytes,
                    tx_bytes,
                    keepalive_s,
                }
            },
        );
    let wireguard = (device_id(), vec(peer, 0..3), any::<(u64, u16, u32, bool)>()).prop_map(
        |(device, peers, (asked_ns, listen_port, fwmark, truncated))| {
            Fact::Wireguard(Box::new(Wireguard {
                device,
                asked_ns,
                listen_port,
                fwmark,
                peers,
                truncated,
            }))
        },
    );
    wireguard.boxed()
}

/// Any record but the header.
pub(super) fn record() -> impl Strategy<Value = Record> {
    let ledger = any::<[u64; 9]>().prop_map(
        |[
            time_ns,
            emitted,
            delivered,
            ring_full,
            missed,
            unreadable,
            undecodable,
            rate_limited,
            table_full,
        ]| Ledger {
            time_ns,
            emitted,
            delivered,
            ring_full,
            missed,
            unreadable,
            undecodable,
            rate_limited,
            table_full,
        },
    );
    let clock = any::<(u64, u64)>().prop_map(|(monotonic_ns, realtime_ns)| ClockPair {
        monotonic_ns,
        realtime_ns,
    });
    let stopped_by = prop_oneof![
        Just(StoppedBy::Duration),
        Just(StoppedBy::Signal),
        Just(StoppedBy::Verdict),
        Just(StoppedBy::Cut),
        Just(StoppedBy::Failure),
    ];
    prop_oneof![
        device().prop_map(|device| Record::Device(Box::new(device))),
        event().prop_map(|event| Record::Event(Box::new(event))),
        fact().prop_map(Record::Fact),
        ledger.prop_map(Record::Ledger),
        clock.prop_map(Record::Clock),
        (any::<u64>(), stopped_by)
            .prop_map(|(end_ns, stopped_by)| Record::Trailer(Trailer { end_ns, stopped_by })),
    ]
}
