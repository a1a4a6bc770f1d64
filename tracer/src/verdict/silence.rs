//! What counters say where a packet was lost without an event. A counter does not tell which packet moved it, so it only
//! suggests a cause.

use super::diagnosis::{Diagnosis, Evidence};
use super::{Judgement, Scene};
use crate::codes::{CauseCode, VerdictCode};
use crate::event::DeviceId;
use crate::fact::Fact;
use crate::flow::{Point, Sighting};

/// Adds the counters that moved where the packet was seen last.
pub(super) fn suspect(judgement: &mut Judgement<'_>, scene: &Scene<'_>) {
    let is_silent = matches!(
        judgement.code,
        VerdictCode::RequestLeftNode
            | VerdictCode::RequestNotAnswered
            | VerdictCode::ReplyLeftNode
            | VerdictCode::ReplyNotDelivered
            | VerdictCode::Stalled
    );
    let Some(place) = judgement.at.filter(|_| is_silent) else {
        return;
    };
    let moved = moved(place.sighting, scene);
    if moved.is_empty() {
        return;
    }
    let evidence = moved.iter().map(|fact| Evidence::Fact((*fact).clone()));
    if let Some(cause) = &mut judgement.cause {
        cause.evidence.extend(evidence);
        return;
    }
    let names: Vec<String> = moved.iter().map(|fact| words(fact, scene)).collect();
    judgement.cause = Some(Diagnosis {
        code: CauseCode::Unknown,
        stage: place.stage,
        phrase: String::new(),
        detail: Some(format!(
            "{} rose during the trace, which suggests a loss there; a counter does not tell which packet moved it",
            names.join(" and ")
        )),
        evidence: evidence.collect(),
    });
}

/// The counters of the device's side that the packet passed, and of the one where it should have arrived.
fn moved<'a>(at: &Sighting, scene: &Scene<'a>) -> Vec<&'a Fact> {
    // Whoever has it now got it past every device.
    let Some(id) = at.device().filter(|_| at.point != Point::Consume) else {
        return Vec::new();
    };
    let sent = at.point == Point::Xmit;
    let device = scene.devices().get(id);
    let peer = device.and_then(|device| device.peer).filter(|_| sent);
    let on_the_way = |device: DeviceId, name: &str| {
        let direction = if sent && device == id { "tx_" } else { "rx_" };
        (device == id || Some(device) == peer) && name.starts_with(direction)
    };
    // What left the node through a wire waits in no queue of ours.
    let arrives_here = !sent || peer.is_some();
    scene
        .analysis
        .facts
        .iter()
        .filter(|fact| match fact {
            Fact::DeviceCounter { device, name, .. } => on_the_way(*device, name),
            Fact::Counter { name, .. } => name == "softnet_dropped" && arrives_here,
            _ => false,
        })
        .collect()
}

fn words(fact: &Fact, scene: &Scene<'_>) -> String {
    match fact {
        Fact::DeviceCounter { device, name, .. } => {
            let device = scene.devices().get(*device);
            let device = device.map_or("that device", |device| &device.name);
            format!("{name} of {device}")
        }
        Fact::Counter { name, .. } => name.clone(),
        _ => String::new(),
    }
}
