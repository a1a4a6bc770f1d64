//! Fills a [`Report`] from what the records said and what was concluded. It decides nothing: it names devices, turns
//! monotonic times into wall-clock times and folds transmissions into legs.

mod evidence;
mod flow;

use std::collections::BTreeSet;

use super::{
    BlindSpot, Device, Flow, Hook, Ledger, Netns, Node, Observer, Peer, REPORT_SCHEMA, Report,
    Summary, Time, Tracer, Window,
};
use crate::analysis::Analysis;
use crate::clock::Clock;
use crate::event::{DeviceId, NetnsId};
use crate::flow::Sighting;
use crate::flow::pairing::{Flow as Attempt, flows};
use crate::record::{StoppedBy, View};
use crate::verdict::{self, Judgement, Scene};

/// Judges every flow as of the end of the window.
pub fn build(analysis: &Analysis) -> Report {
    let end = analysis.end();
    let builder = Builder {
        analysis,
        clock: Clock::from_pairs(analysis.clocks.clone()),
        scene: Scene {
            analysis,
            now_ns: end.end_ns,
        },
    };
    let start_ns = analysis.header.start_ns;
    let header = &analysis.header;
    let (flows, named) = builder.flows();
    Report {
        schema: REPORT_SCHEMA.to_owned(),
        tracer: Tracer {
            version: header.tracer_version.clone(),
            command: header.command.clone(),
        },
        node: Node {
            hostname: header.hostname.clone(),
            machine_id: header.machine_id.clone(),
            boot_id: header.boot_id.clone(),
            kernel: header.kernel.clone(),
            arch: header.arch.clone(),
        },
        window: Window {
            start: builder.time(start_ns),
            end: builder.time(end.end_ns),
            duration_ns: end.end_ns.saturating_sub(start_ns),
            stopped_by: end.stopped_by.into(),
        },
        observer: builder.observer(),
        ledger: builder.ledger(end.stopped_by),
        devices: builder.devices(named),
        summary: Summary::of(&flows),
        flows,
    }
}

/// One flow as of `scene.now_ns`, for a live view: it has no number.
pub fn flow_now(attempt: &Attempt<'_>, judgement: Judgement<'_>, scene: Scene<'_>) -> Flow {
    let builder = Builder {
        analysis: scene.analysis,
        clock: Clock::from_pairs(scene.analysis.clocks.clone()),
        scene,
    };
    builder.flow(attempt, 0, judgement)
}

/// Whether a flow has a fault that no later event can undo: what `--until-verdict` waits for.
pub fn has_final_fault(analysis: &Analysis, now_ns: u64) -> bool {
    let scene = Scene { analysis, now_ns };
    analysis
        .flows
        .groups()
        .flat_map(|group| flows(&group))
        .filter(|attempt| scene.shows(attempt))
        .any(|attempt| {
            let judgement = verdict::judge(&attempt, &scene);
            judgement.is_final && judgement.code.is_fault()
        })
}

struct Builder<'a> {
    analysis: &'a Analysis,
    clock: Clock,
    scene: Scene<'a>,
}

impl Builder<'_> {
    fn time(&self, monotonic_ns: u64) -> Option<Time> {
        let realtime_ns = self.clock.realtime_ns(monotonic_ns)?;
        u64::try_from(realtime_ns).ok().map(Time::from_unix_ns)
    }

    fn netns_name(&self, netns: NetnsId) -> Option<String> {
        self.analysis.devices.netns_name(netns).map(str::to_owned)
    }

    /// The flows in the order of their first packets, and the devices that their hops name.
    fn flows(&self) -> (Vec<Flow>, BTreeSet<DeviceId>) {
        let mut attempts: Vec<Attempt<'_>> = self
            .analysis
            .flows
            .groups()
            .flat_map(|group| flows(&group))
            .filter(|attempt| self.scene.shows(attempt))
            .collect();
        attempts.sort_by_key(Attempt::first_ns);
        let named = attempts
            .iter()
            .flat_map(Attempt::sightings)
            .filter_map(Sighting::device)
            .collect();
        let flows = attempts
            .iter()
            .zip(1..)
            .map(|(attempt, id)| self.flow(attempt, id, verdict::judge(attempt, &self.scene)))
            .collect();
        (flows, named)
    }

    fn observer(&self) -> Observer {
        let header = &self.analysis.header;
        let named = |netns: &NetnsId| Netns {
            netns: netns.inum,
            netns_name: self.netns_name(*netns),
        };
        Observer {
            filter: Some(header.filter.clone()).filter(|filter| !filter.is_empty()),
            netns: match &header.view {
                View::Kernel => None,
                View::Netns { netns } => Some(netns.iter().map(named).collect()),
            },
            hooks: header
                .hooks
                .iter()
                .map(|hook| Hook {
                    name: hook.name.clone(),
                    kind: hook.kind.clone(),
                    state: hook.state.into(),
                    reason: hook.reason.clone(),
                })
                .collect(),
            blind_spots: header
                .blind_spots
                .iter()
                .map(|spot| BlindSpot {
                    code: spot.code.clone(),
                    summary: spot.summary.clone(),
                })
                .collect(),
        }
    }

    fn ledger(&self, stopped_by: StoppedBy) -> Ledger {
        let ledger = self.analysis.ledger();
        Ledger {
            emitted: ledger.emitted,
            delivered: ledger.delivered,
            ring_full: ledger.ring_full,
            missed: ledger.missed,
            unreadable: ledger.unreadable,
            undecodable: ledger.undecodable,
            rate_limited: ledger.rate_limited,
            table_full: ledger.table_full,
            // What a killed writer had not written yet is not known.
            clean: ledger.lost() == 0 && stopped_by != StoppedBy::Cut,
        }
    }

    fn devices(&self, mut named: BTreeSet<DeviceId>) -> Vec<Device> {
        let known = &self.analysis.devices;
        let underlays: Vec<DeviceId> = named
            .iter()
            .filter_map(|id| known.get(*id)?.underlay())
            .collect();
        named.extend(underlays);
        named
            .iter()
            .filter_map(|id| known.get(*id))
            .map(|device| self.device(device))
            .collect()
    }

    fn device(&self, device: &crate::record::Device) -> Device {
        Device {
            netns: device.id.netns.inum,
            netns_name: self.netns_name(device.id.netns),
            ifindex: device.id.ifindex,
            name: device.name.clone(),
            kind: device.kind.clone(),
            mtu: device.mtu,
            peer: device.peer.map(|peer| Peer {
                netns: peer.netns.inum,
                ifindex: peer.ifindex,
            }),
            vni: device.vni,
            underlay_ifindex: device.underlay_ifindex,
            underlay_netns: device.underlay_netns.map(|netns| netns.inum),
        }
    }
}
