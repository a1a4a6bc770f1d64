//! What the rules conclude before the ledger and the clock have had their say, and how those change it.

use super::diagnosis::Diagnosis;
use super::losses::Loss;
use super::{Judgement, Place, Scene};
use crate::codes::{Confidence, Stage, VerdictCode};
use crate::flow::Sighting;
use crate::flow::pairing::Flow;

/// A conclusion that may still be doubted.
pub(super) struct Finding<'a> {
    pub(super) code: VerdictCode,
    pub(super) confidence: Confidence,
    pub(super) summary: String,
    pub(super) next: Option<String>,
    pub(super) at: Option<Place<'a>>,
    pub(super) cause: Option<Diagnosis>,
    /// It rests on the deaths of the two latest transmissions of its packet: waiting changes nothing.
    pub(super) died_twice: bool,
}

impl<'a> Finding<'a> {
    pub(super) fn new(code: VerdictCode, confidence: Confidence, summary: String) -> Self {
        Self {
            code,
            confidence,
            summary,
            next: None,
            at: None,
            cause: None,
            died_twice: false,
        }
    }

    pub(super) fn inconclusive(summary: String) -> Self {
        Self::new(VerdictCode::Inconclusive, Confidence::Inconclusive, summary)
    }

    /// With what came before it, told first.
    pub(super) fn after(self, before: &str) -> Self {
        Self {
            summary: format!("{before}{}", self.summary),
            ..self
        }
    }

    pub(super) fn because(self, cause: Diagnosis) -> Self {
        Self {
            cause: Some(cause),
            ..self
        }
    }

    pub(super) fn at(self, sighting: &'a Sighting, stage: Stage) -> Self {
        Self {
            at: Some(Place { sighting, stage }),
            ..self
        }
    }
}

pub(super) fn conclude<'a>(
    finding: Finding<'a>,
    losses: Vec<Loss<'a>>,
    is_final: bool,
) -> Judgement<'a> {
    Judgement {
        code: finding.code,
        confidence: finding.confidence,
        summary: finding.summary,
        next: finding.next,
        at: finding.at,
        cause: finding.cause,
        losses,
        is_final,
    }
}

/// Why the finding cannot be trusted: something that could have changed it was lost or never watched.
pub(super) fn doubt(flow: &Flow<'_>, finding: &Finding<'_>, scene: &Scene<'_>) -> Option<String> {
    if flow.first_ns() < scene.analysis.header.start_ns {
        return Some("it began while the hooks were still being attached".to_owned());
    }
    if scene.analysis.lost_between(flow.first_ns(), scene.now_ns) {
        return Some("events were lost while this flow was watched (see the ledger)".to_owned());
    }
    if flow.left_out {
        return Some("this flow had more packets than are kept".to_owned());
    }
    if finding.confidence == Confidence::Inferred
        && flow.sampled_since_ns.is_some()
        && !flow.is_tcp()
    {
        return Some("it had more packets than are kept of one flow".to_owned());
    }
    if finding.confidence == Confidence::Proven
        && flow.sampled_since_ns.is_some()
        && !flow.is_tcp()
        && !finding
            .at
            .is_some_and(|place| scene.is_on_the_way(place.sighting, flow))
    {
        return Some("it had more packets than are kept, and those that died may be copies for somebody else".to_owned());
    }
    let missing = scene
        .missing_hook()
        .filter(|_| finding.confidence == Confidence::Inferred)?;
    Some(format!(
        "{missing} is not watched on this kernel, so absence proves nothing"
    ))
}

pub(super) fn in_doubt<'a>(doubt: &str, finding: Finding<'a>) -> Finding<'a> {
    Finding {
        code: VerdictCode::Inconclusive,
        confidence: Confidence::Inconclusive,
        summary: format!(
            "inconclusive: {doubt}; it looks like this: {}",
            finding.summary
        ),
        next: Some("trace again with a narrower filter".to_owned()),
        ..finding
    }
}

/// A fault stands if nothing speaks against it and waiting cannot change it.
pub(super) fn weigh<'a>(
    flow: &Flow<'_>,
    finding: Finding<'a>,
    losses: Vec<Loss<'a>>,
    scene: &Scene<'_>,
) -> Judgement<'a> {
    let is_final = scene.now_ns >= Scene::deadline_ns(flow) || finding.died_twice;
    let finding = if finding.code == VerdictCode::Inconclusive {
        finding
    } else if let Some(doubt) = doubt(flow, &finding, scene) {
        in_doubt(&doubt, finding)
    } else if is_final {
        finding
    } else {
        too_early(flow, finding, scene)
    };
    conclude(finding, losses, is_final)
}

fn too_early<'a>(flow: &Flow<'_>, finding: Finding<'a>, scene: &Scene<'_>) -> Finding<'a> {
    let since = scene.now_ns.saturating_sub(flow.request[0].first().time_ns);
    Finding {
        code: VerdictCode::Inconclusive,
        confidence: Confidence::Inconclusive,
        summary: format!(
            "inconclusive: window closed {} ms after the request; so far it looks like this: {}",
            since / 1_000_000,
            finding.summary
        ),
        next: Some(
            "trace for longer (`--for 30s`), or until there is a verdict (`--until-verdict`)"
                .to_owned(),
        ),
        ..finding
    }
}
