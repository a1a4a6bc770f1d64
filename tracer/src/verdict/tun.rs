//! What leaves through a tun device has not left the machine: a process has it. Which one, says the fact that was asked for
//! when the packet left.

use super::diagnosis::{Diagnosis, Evidence};
use super::{Judgement, Scene};
use crate::codes::{CauseCode, VerdictCode};
use crate::fact::Fact;
use crate::flow::Point;

/// Names the process that has what was seen last on its way into a tun device.
pub(super) fn name_holder(judgement: &mut Judgement<'_>, scene: &Scene<'_>) {
    let has_left = matches!(
        judgement.code,
        VerdictCode::RequestLeftNode | VerdictCode::ReplyLeftNode | VerdictCode::Stalled
    );
    let Some(place) = judgement.at.filter(|_| has_left) else {
        return;
    };
    let at = place.sighting;
    let (Some(id), Some(device)) = (at.device(), scene.device_name(at)) else {
        return;
    };
    let holder = scene
        .analysis
        .owners
        .of_tun(id, (at.time_ns, at.time_ns))
        .filter(|_| at.point == Point::Xmit);
    let Some((asked_ns, owner)) = holder else {
        return;
    };
    let pid = owner.process.pid;
    let detail = format!("{owner} holds {device} and takes what is sent there");
    let fact = Evidence::Fact(Fact::Tun {
        device: id,
        asked_ns,
        owner: owner.clone(),
    });
    judgement.next = Some(format!(
        "`nsenter -t {pid} -n ss -tunap | grep pid={pid},`: where {owner} sends what it takes from {device}; its log says what it drops"
    ));
    let cause = judgement.cause.get_or_insert_with(|| Diagnosis {
        code: CauseCode::Unknown,
        stage: place.stage,
        phrase: String::new(),
        detail: None,
        evidence: Vec::new(),
    });
    cause.detail = Some(match cause.detail.take() {
        Some(before) => format!("{before}; {detail}"),
        None => detail,
    });
    cause.evidence.push(fact);
}
