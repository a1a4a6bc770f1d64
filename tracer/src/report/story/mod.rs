//! What a report tells a person, in order and in words, before it is dressed as text or Markdown: faults first and
//! the worst of them before the others, then what stayed open, then what is healthy, then how far to trust it.
//!
//! Nothing here is escaped yet: whoever dresses it escapes every string, since names come from strangers.

mod flow;
mod observer;
mod path;

use super::{Confidence, Flow, Report, VerdictCode, faults_worst_first};

/// Kinds of fault that are told in full; the others get a line each.
const FAULTS_IN_FULL: usize = 10;
/// Inconclusive flows that are told in full.
const OPEN_IN_FULL: usize = 3;
/// Lines of a list before it says how many more there are.
const LIST_LINES: usize = 20;

/// The whole report.
pub(super) struct Story {
    /// In the order in which they are read.
    pub sections: Vec<Section>,
}

/// A paragraph with a title.
pub(super) struct Section {
    /// One sentence.
    pub title: String,
    /// How it feels.
    pub tone: Tone,
    /// How a verdict is known.
    pub confidence: Option<Confidence>,
    /// What is under the title.
    pub rows: Vec<Row>,
}

/// A labelled line.
pub(super) struct Row {
    /// What the line is about; empty for a line of a list.
    pub label: String,
    /// Its parts, which stay whole where they can.
    pub items: Vec<Item>,
    /// Whether it begins a new group of lines.
    pub apart: bool,
}

/// A part of a line.
#[derive(Clone)]
pub(super) struct Item {
    /// The words.
    pub text: String,
    /// How it feels.
    pub tone: Tone,
}

/// How something feels to who reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    /// As it should be.
    Good,
    /// A fault.
    Bad,
    /// Doubtful.
    Open,
    /// Worth reading.
    Plain,
    /// Only if one wants to know.
    Weak,
}

impl Row {
    fn new(label: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            label: label.into(),
            items: vec![Item::new(text, Tone::Plain)],
            apart: false,
        }
    }

    fn toned(mut self, tone: Tone) -> Self {
        for item in &mut self.items {
            item.tone = tone;
        }
        self
    }

    fn apart(mut self) -> Self {
        self.apart = true;
        self
    }
}

impl Item {
    fn new(text: impl Into<String>, tone: Tone) -> Self {
        Self {
            text: text.into(),
            tone,
        }
    }
}

/// Tells the report.
pub(super) fn tell(report: &Report) -> Story {
    let mut sections = Vec::new();
    if report.flows.is_empty() {
        sections.push(observer::nothing_matched(report));
    }
    sections.extend(faults(report));
    sections.extend(open(report));
    sections.extend(healthy(report));
    sections.push(observer::footer(report));
    Story { sections }
}

/// Tells one flow in full.
pub(super) fn tell_flow(flow: &Flow) -> Section {
    flow::section(flow)
}

/// Faults of one kind and place are one section: the first flow in full, the others named.
fn faults(report: &Report) -> Vec<Section> {
    let mut groups: Vec<Vec<&Flow>> = Vec::new();
    for flow in faults_worst_first(&report.flows) {
        match groups.iter_mut().find(|group| same_fault(group[0], flow)) {
            Some(group) => group.push(flow),
            None => groups.push(vec![flow]),
        }
    }
    let rest = groups.split_off(groups.len().min(FAULTS_IN_FULL));
    let mut sections: Vec<Section> = groups
        .iter()
        .map(|group| {
            let mut section = flow::section(group[0]);
            let others = group.len() - 1;
            if others > 0 {
                let title = format!("{others} more flow{} with the same fault", plural(others));
                section.rows.push(Row::new("and", title).apart());
                section.rows.extend(list(&group[1..], 5, flow::tuple));
            }
            section
        })
        .collect();
    if !rest.is_empty() {
        let flows: Vec<&Flow> = rest.into_iter().flatten().collect();
        sections.push(Section {
            title: format!(
                "{} more flow{} with other faults",
                flows.len(),
                plural(flows.len())
            ),
            tone: Tone::Bad,
            confidence: None,
            rows: list(&flows, LIST_LINES, flow::line).collect(),
        });
    }
    sections
}

fn same_fault(a: &Flow, b: &Flow) -> bool {
    let place = |flow: &Flow| {
        flow.verdict
            .at
            .as_ref()
            .map(|at| (at.netns, at.ifindex, at.function.clone(), at.stage))
    };
    let cause = |flow: &Flow| flow.verdict.cause.as_ref().map(|cause| cause.code);
    a.verdict.code == b.verdict.code
        && a.verdict.confidence == b.verdict.confidence
        && a.server.addr == b.server.addr
        && a.server.port == b.server.port
        && cause(a) == cause(b)
        && place(a) == place(b)
}

fn open(report: &Report) -> Vec<Section> {
    let flows: Vec<&Flow> = with_code(report, |code| code == VerdictCode::Inconclusive);
    let (full, rest) = flows.split_at(flows.len().min(OPEN_IN_FULL));
    let mut sections: Vec<Section> = full.iter().map(|flow| flow::section(flow)).collect();
    if !rest.is_empty() {
        sections.push(Section {
            title: format!("{} more inconclusive", rest.len()),
            tone: Tone::Open,
            confidence: None,
            rows: list(rest, LIST_LINES, flow::line).collect(),
        });
    }
    sections
}

fn healthy(report: &Report) -> Option<Section> {
    let mut flows = with_code(report, |code| {
        !code.is_fault() && code != VerdictCode::Inconclusive
    });
    if flows.is_empty() {
        return None;
    }
    // What was healthy but not smooth is read first.
    flows.sort_by_key(|flow| flow::is_smooth(flow));
    let one_way = flows
        .iter()
        .filter(|flow| flow.verdict.code == VerdictCode::OneWay)
        .count();
    let title = match one_way {
        0 => format!("{} answered", flows.len()),
        _ => format!("{} answered, {one_way} one way", flows.len() - one_way),
    };
    Some(Section {
        title,
        tone: Tone::Good,
        confidence: None,
        rows: list(&flows, LIST_LINES, flow::line).collect(),
    })
}

fn with_code(report: &Report, wanted: impl Fn(VerdictCode) -> bool) -> Vec<&Flow> {
    report
        .flows
        .iter()
        .filter(|flow| wanted(flow.verdict.code))
        .collect()
}

/// One line a flow, and how many more there are.
fn list<'a>(
    flows: &'a [&'a Flow],
    lines: usize,
    line: fn(&Flow) -> String,
) -> impl Iterator<Item = Row> + 'a {
    let more = flows.len().saturating_sub(lines);
    flows
        .iter()
        .take(lines)
        .map(move |flow| Row::new("", line(flow)))
        .chain((more > 0).then(|| Row::new("", format!("and {more} more")).toned(Tone::Weak)))
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}
