//! What a live view shows, made from the analysis and a moment: the flows that wait or failed, what was dropped where,
//! and how many went well. What is over is counted, remembered in short, and forgotten in the flow table, so that a
//! view may run for days. Reads no clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use crate::analysis::Analysis;
use crate::event::TcpState;
use crate::flow::FlowKey;
use crate::flow::pairing::{Flow as Attempt, flows};
use crate::flow::table::FlowGroup;
use crate::report::{self, CauseCode, Flow, Loss, Time, VerdictCode};
use crate::verdict::{self, Scene};

/// Failed flows that are over and still shown, the newest of them.
const HISTORY_MAX: usize = 500;
/// Kinds of drop that are told apart.
const DROPS_MAX: usize = 1_000;
/// A flow that was answered or refused is over after this much silence.
const SETTLED_QUIET_NS: u64 = 1_000_000_000;
/// An answered flow is over after this time even if it never falls silent.
const ANSWERED_KEPT_NS: u64 = 10_000_000_000;
/// A flow without an answer is over after this much silence: longer than Linux waits before its last SYN but one
/// (32 s, `tcp_syn_retries` 6), so that a repetition finds its flow.
const UNANSWERED_QUIET_NS: u64 = 70_000_000_000;

/// Which flow a row is about, from one refresh to the next: the five-tuple and the flow's number there.
pub type RowId = (FlowKey, Option<u32>);

/// A flow that waits for its answer, or did not get it.
#[derive(Clone, Debug)]
pub struct FlowRow {
    /// Which.
    pub id: RowId,
    /// No verdict yet, because there is still time for an answer.
    pub waiting: bool,
    /// When its first packet was seen (CLOCK_MONOTONIC).
    pub first_ns: u64,
    /// All that is known of it.
    pub flow: Rc<Flow>,
}

/// What was dropped, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DropKind {
    /// Why.
    pub cause: &'static str,
    /// The kernel's reason.
    pub reason: String,
    /// On which device; untrusted.
    pub device: String,
    /// In which namespace, by name or number; untrusted.
    pub netns: String,
}

/// How often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DropCount {
    /// Packets.
    pub packets: u64,
    /// The last of them.
    pub last: Option<Time>,
}

/// Flows by how they ended, since the view began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Not ended yet.
    pub waiting: u64,
    /// Faults but refusals.
    pub faults: u64,
    /// Refused.
    pub refused: u64,
    /// The evidence carries no verdict.
    pub inconclusive: u64,
    /// Answered.
    pub answered: u64,
}

/// Everything to show, as of one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// The moment (CLOCK_MONOTONIC).
    pub now_ns: u64,
    /// The flows that wait or failed, in no order.
    pub flows: Vec<FlowRow>,
    /// The drops, in no order.
    pub drops: Vec<(DropKind, DropCount)>,
    /// Dropped packets of kinds that did not fit.
    pub other_drops: u64,
    /// The flows counted.
    pub counts: Counts,
    /// Events that were lost, of all kinds.
    pub lost: u64,
}

/// What is counted, of flows that are over or of all.
#[derive(Clone, Debug, Default)]
struct Tally {
    counts: Counts,
    drops: BTreeMap<DropKind, DropCount>,
    other_drops: u64,
}

impl Tally {
    fn add(&mut self, seen: &Seen) {
        let counts = &mut self.counts;
        let count = match seen.outcome {
            Outcome::Unseen => None,
            Outcome::Waiting => Some(&mut counts.waiting),
            Outcome::Ended(VerdictCode::Answered | VerdictCode::OneWay) => {
                Some(&mut counts.answered)
            }
            Outcome::Ended(VerdictCode::Inconclusive) => Some(&mut counts.inconclusive),
            Outcome::Ended(VerdictCode::Refused) => Some(&mut counts.refused),
            Outcome::Ended(_) => Some(&mut counts.faults),
        };
        if let Some(count) = count {
            *count += 1;
        }
        for (kind, time) in &seen.drops {
            if self.drops.len() >= DROPS_MAX && !self.drops.contains_key(kind) {
                self.other_drops += 1;
                continue;
            }
            let count = self.drops.entry(kind.clone()).or_default();
            count.packets += 1;
            count.last = count.last.max(*time);
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It was there before the view began, or was forgotten since, or belongs to another namespace: it is not judged.
    Unseen,
    Waiting,
    Ended(VerdictCode),
}

/// One connection attempt as of a moment.
struct Seen {
    outcome: Outcome,
    is_over: bool,
    row: Option<FlowRow>,
    drops: Vec<(DropKind, Option<Time>)>,
}

impl Seen {
    /// Nothing to list.
    const fn nothing(outcome: Outcome, is_over: bool) -> Self {
        Self {
            outcome,
            is_over,
            row: None,
            drops: Vec::new(),
        }
    }
}

/// What the view remembers of flows that are over.
#[derive(Debug, Default)]
pub struct Model {
    settled: Tally,
    history: VecDeque<FlowRow>,
}

impl Model {
    /// Looks at every flow, and has the table forget those that are over.
    pub fn refresh(&mut self, analysis: &mut Analysis, now_ns: u64) -> Snapshot {
        let scene = Scene { analysis, now_ns };
        let mut over = BTreeSet::new();
        let mut live = Tally::default();
        let mut rows = Vec::new();
        for group in analysis.flows.groups() {
            let seen: Vec<Seen> = flows(&group)
                .iter()
                .map(|attempt| look(group.key(), attempt, scene))
                .collect();
            // Sockets may speak of a flow without any packet.
            let is_over = if seen.is_empty() {
                last_ns(&group) + SETTLED_QUIET_NS <= now_ns
            } else {
                seen.iter().all(|seen| seen.is_over)
            };
            for seen in seen {
                if is_over {
                    self.settled.add(&seen);
                    self.history.extend(seen.row);
                } else {
                    live.add(&seen);
                    rows.extend(seen.row);
                }
            }
            if is_over {
                over.insert(group.key());
            }
        }
        let beyond = self.history.len().saturating_sub(HISTORY_MAX);
        self.history.drain(..beyond);
        analysis.flows.forget(&over);
        rows.extend(self.history.iter().cloned());

        let (drops, other_drops) = sum(&self.settled, live.drops);
        let (settled, live_counts) = (self.settled.counts, live.counts);
        Snapshot {
            now_ns,
            flows: rows,
            drops,
            other_drops: other_drops + live.other_drops,
            counts: Counts {
                waiting: live_counts.waiting,
                faults: settled.faults + live_counts.faults,
                refused: settled.refused + live_counts.refused,
                inconclusive: settled.inconclusive + live_counts.inconclusive,
                answered: settled.answered + live_counts.answered,
            },
            lost: analysis.ledger().lost(),
        }
    }
}

/// The drops of flows that are over and of those that are not.
fn sum(settled: &Tally, live: BTreeMap<DropKind, DropCount>) -> (Vec<(DropKind, DropCount)>, u64) {
    let mut drops = settled.drops.clone();
    for (kind, count) in live {
        let all = drops.entry(kind).or_default();
        all.packets += count.packets;
        all.last = all.last.max(count.last);
    }
    (drops.into_iter().collect(), settled.other_drops)
}

fn last_ns(group: &FlowGroup<'_>) -> u64 {
    let packets = group.sightings().map(|sighting| sighting.time_ns);
    let sockets = group.sockets().map(|socket| socket.time_ns);
    packets.chain(sockets).max().unwrap_or(0)
}

fn look(key: FlowKey, attempt: &Attempt<'_>, scene: Scene<'_>) -> Seen {
    let judgement = verdict::judge(attempt, &scene);
    let code = judgement.code;
    let outcome = if attempt.request.is_empty() {
        Outcome::Unseen
    } else if judgement.is_final {
        Outcome::Ended(code)
    } else {
        Outcome::Waiting
    };
    let is_over = is_over(attempt, outcome, scene.now_ns);
    if !scene.shows(attempt) {
        return Seen::nothing(Outcome::Unseen, is_over);
    }
    let shown = match outcome {
        Outcome::Unseen => false,
        Outcome::Waiting => true,
        Outcome::Ended(code) => !matches!(code, VerdictCode::Answered | VerdictCode::OneWay),
    };
    let has_drops = judgement.losses.iter().any(|loss| !loss.innocent);
    if !shown && !has_drops {
        return Seen::nothing(outcome, is_over);
    }
    let first_ns = attempt.first_ns();
    let mut flow = report::flow_now(attempt, judgement, scene);
    if outcome == Outcome::Waiting {
        let waited_ms = scene.now_ns.saturating_sub(first_ns) / 1_000_000;
        flow.verdict.summary = format!("no answer yet, {waited_ms} ms after the request");
        flow.verdict.next = None;
    }
    Seen {
        outcome,
        is_over,
        drops: flow.losses.iter().filter_map(dropped).collect(),
        row: shown.then(|| FlowRow {
            id: (key, attempt.number),
            waiting: outcome == Outcome::Waiting,
            first_ns,
            flow: Rc::new(flow),
        }),
    }
}

/// Whether nothing more is to be expected of an attempt.
fn is_over(attempt: &Attempt<'_>, outcome: Outcome, now_ns: u64) -> bool {
    let quiet_ns = now_ns.saturating_sub(attempt.last_ns());
    let age_ns = now_ns.saturating_sub(attempt.first_ns());
    match outcome {
        Outcome::Waiting => false,
        Outcome::Unseen | Outcome::Ended(VerdictCode::Answered | VerdictCode::OneWay) => {
            quiet_ns >= SETTLED_QUIET_NS || age_ns >= ANSWERED_KEPT_NS
        }
        Outcome::Ended(VerdictCode::Refused) => quiet_ns >= SETTLED_QUIET_NS,
        Outcome::Ended(_) => {
            let gave_up = attempt.client_state_at(TcpState::Close).is_some();
            quiet_ns >= UNANSWERED_QUIET_NS || gave_up && quiet_ns >= SETTLED_QUIET_NS
        }
    }
}

fn dropped(loss: &Loss) -> Option<(DropKind, Option<Time>)> {
    if loss.innocent {
        return None;
    }
    let cause = loss.cause.as_ref();
    let at = loss.at.as_ref();
    let netns = at.and_then(|at| {
        let number = at.netns.map(|netns| netns.to_string());
        at.netns_name.clone().or(number)
    });
    let kind = DropKind {
        cause: cause.map_or(CauseCode::Unknown, |cause| cause.code).name(),
        reason: cause
            .and_then(|cause| cause.drop_reason.clone())
            .unwrap_or_default(),
        device: at.and_then(|at| at.device.clone()).unwrap_or_default(),
        netns: netns.unwrap_or_default(),
    };
    Some((kind, loss.time))
}
