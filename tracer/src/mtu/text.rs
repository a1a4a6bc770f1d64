//! The audit for a person at a terminal: what is wrong first, then the ways of a full-size packet, then how far to trust it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use anstyle::{AnsiColor, Style as Paint};

use super::report::{Fate, Finding, Ipsec, MtuReport, Path, Probe, Severity, Step, Via};
use crate::escape::escape;
use crate::report::{Style, fill};

/// The narrowest and the widest that text is set.
const COLUMNS: std::ops::RangeInclusive<usize> = 60..=110;

/// Names of senders with the same way that are listed, and commands and learnt path MTUs.
const NAMES: usize = 4;
const COMMANDS: usize = 8;
const LEARNED: usize = 10;

/// The widest left part of a step, beyond which its right part is not aligned.
const LEFT_MAX: usize = 52;

const GOOD: Paint = AnsiColor::Green.on_default();
const BAD: Paint = AnsiColor::Red.on_default();
const OPEN: Paint = AnsiColor::Yellow.on_default();
const WEAK: Paint = Paint::new().dimmed();
const PLAIN: Paint = Paint::new();

/// Writes the report.
pub(super) fn write(report: &MtuReport, style: Style, output: &mut dyn Write) -> io::Result<()> {
    let columns = style.columns.clamp(*COLUMNS.start(), *COLUMNS.end());
    let mut page = Page {
        output,
        columns,
        colour: style.colour,
    };
    for finding in &report.findings {
        page.finding(finding)?;
    }
    for (names, path) in alike(&report.paths) {
        page.path(&names, path)?;
    }
    page.learned(report)?;
    page.ipsec(report)?;
    if let Some(probe) = &report.probe {
        page.probe(probe)?;
    }
    page.summary(report)
}

/// The paths, each with the names of all senders whose ways are the same but for the sender's own device and cable.
fn alike(paths: &[Path]) -> Vec<(Vec<String>, &Path)> {
    let mut groups: Vec<(Vec<String>, &Path)> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for path in paths {
        let name = match &path.netns_name {
            Some(name) => name.clone(),
            None => format!("netns {}", path.netns),
        };
        match known.entry(shape(path)) {
            std::collections::btree_map::Entry::Occupied(group) => {
                groups[*group.get()].0.push(name);
            }
            std::collections::btree_map::Entry::Vacant(group) => {
                group.insert(groups.len());
                groups.push((vec![name], path));
            }
        }
    }
    groups
}

/// All that is shown of a path, but for what differs between two pods of one node.
fn shape(path: &Path) -> String {
    let mut text = String::new();
    for way in &path.ways {
        let mut step = way;
        // The sender's device, and the node's end of its cable.
        loop {
            let only = step.next.first().filter(|next| {
                step.next.len() == 1 && step.via == Via::Sends && next.via == Via::Cable
            });
            let _ = write!(text, "{} {} {:?};", step.kind, step.limit, step.fate);
            match only {
                Some(next) => step = next,
                None => break,
            }
        }
        let _ = write!(text, "{} {:?}|", step.at.netns, step.next);
    }
    text
}

struct Page<'a> {
    output: &'a mut dyn Write,
    columns: usize,
    colour: bool,
}

impl Page<'_> {
    fn finding(&mut self, finding: &Finding) -> io::Result<()> {
        let (badge, paint) = match finding.severity {
            Severity::Error => ("error", BAD),
            Severity::Warning => ("warning", OPEN),
        };
        let room = self.columns - badge.len() - 2;
        let lines = fill(&escape(&finding.summary), room, room);
        for (index, line) in lines.iter().enumerate() {
            self.paint(line, paint.bold())?;
            if index + 1 == lines.len() {
                let gap = self.columns - badge.len() - line.chars().count();
                self.paint(&" ".repeat(gap), PLAIN)?;
                self.paint(badge, paint)?;
            }
            self.end_line()?;
        }
        if let Some(passes) = finding.largest_passing {
            self.row("passes", &format!("{passes} bytes at most"))?;
        }
        for note in &finding.notes {
            self.row("note", note)?;
        }
        for command in finding.mend.iter().take(COMMANDS) {
            // A command stays on one line, so that it can be copied.
            self.paint("  mend      ", WEAK)?;
            self.paint(&escape(command), PLAIN)?;
            self.end_line()?;
        }
        if let Some(more) = finding.mend.len().checked_sub(COMMANDS + 1) {
            self.row(
                "mend",
                &format!(
                    "and {} commands more: `--format json` has them all",
                    more + 1
                ),
            )?;
        }
        self.end_line()
    }

    fn row(&mut self, label: &str, text: &str) -> io::Result<()> {
        let room = self.columns - 12;
        for (index, line) in fill(&escape(text), room, room).iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            self.paint(&format!("  {label:<10}"), WEAK)?;
            self.paint(line, PLAIN)?;
            self.end_line()?;
        }
        Ok(())
    }

    fn path(&mut self, names: &[String], path: &Path) -> io::Result<()> {
        let title: Vec<String> = names.iter().take(NAMES).map(|name| escape(name)).collect();
        let mut title = title.join(", ");
        if names.len() > NAMES {
            let _ = write!(title, " and {} more like them", names.len() - NAMES);
        }
        self.paint(&title, PLAIN.bold())?;
        self.end_line()?;
        let mut lines = Vec::new();
        for way in &path.ways {
            draw(way, path.netns, "  ", "  ", &mut lines);
        }
        let widest = lines.iter().map(|line| line.left.chars().count());
        let left = widest.filter(|width| *width <= LEFT_MAX).max().unwrap_or(0);
        for line in lines {
            let gap = left.saturating_sub(line.left.chars().count());
            self.paint(&line.left, PLAIN)?;
            self.paint(&" ".repeat(gap + 2), PLAIN)?;
            self.paint(&line.right, line.paint)?;
            self.end_line()?;
        }
        self.end_line()
    }

    fn learned(&mut self, report: &MtuReport) -> io::Result<()> {
        let all = report
            .namespaces
            .iter()
            .flat_map(|netns| netns.learned.iter().map(move |learned| (netns, learned)));
        let all: Vec<_> = all.collect();
        if all.is_empty() {
            return Ok(());
        }
        self.paint("path MTUs that ICMP has told", PLAIN.bold())?;
        self.end_line()?;
        for (netns, learned) in all.iter().take(LEARNED) {
            let place = match &netns.netns_name {
                Some(name) => name.clone(),
                None => netns.netns.to_string(),
            };
            let expires = learned
                .expires_s
                .map_or_else(String::new, |seconds| format!(", for {seconds} s more"));
            let text = format!(
                "{} bytes to {} (netns {place}){expires}",
                learned.mtu, learned.dst
            );
            self.row("learned", &text)?;
        }
        if all.len() > LEARNED {
            self.row(
                "learned",
                &format!(
                    "and {} more: `--format json` has them all",
                    all.len() - LEARNED
                ),
            )?;
        }
        self.end_line()
    }

    fn ipsec(&mut self, report: &MtuReport) -> io::Result<()> {
        let all = report.namespaces.iter().flat_map(|netns| &netns.ipsec);
        let all: Vec<&Ipsec> = all.collect();
        if all.is_empty() {
            return Ok(());
        }
        self.paint("IPsec", PLAIN.bold())?;
        self.end_line()?;
        for tunnel in all.iter().take(LEARNED) {
            let carries = tunnel.largest_passing.map_or_else(
                || "what it carries is not known".to_owned(),
                |passes| format!("carries {passes} bytes"),
            );
            let Ipsec {
                src,
                dst,
                algorithm,
                ..
            } = tunnel;
            self.row("esp", &format!("{src} → {dst} by {algorithm}: {carries}"))?;
        }
        if all.len() > LEARNED {
            self.row(
                "esp",
                &format!(
                    "and {} more: `--format json` has them all",
                    all.len() - LEARNED
                ),
            )?;
        }
        self.end_line()
    }

    fn probe(&mut self, probe: &Probe) -> io::Result<()> {
        let from = match &probe.netns_name {
            Some(name) => escape(name),
            None => probe.netns.to_string(),
        };
        let title = format!(
            "probed {} from netns {from}, with {}",
            probe.target,
            count(probe.packets.into(), "packet")
        );
        self.paint(&title, PLAIN.bold())?;
        self.end_line()?;
        let told = |size: Option<u32>, none: &str| {
            size.map_or_else(|| none.to_owned(), |size| format!("{size} bytes"))
        };
        self.row(
            "answered",
            &told(probe.largest_answered, "no echo of any size"),
        )?;
        if probe.target_is_local {
            self.row(
                "there",
                &told(probe.largest_there, "no datagram of any size"),
            )?;
            self.row("back", &told(probe.largest_back, "no datagram of any size"))?;
        }
        self.end_line()
    }

    fn summary(&mut self, report: &MtuReport) -> io::Result<()> {
        let summary = &report.summary;
        let looked = format!(
            "{} with {}",
            count(summary.namespaces, "network namespace"),
            count(summary.devices, "device")
        );
        let (verdict, paint) = match (summary.errors, summary.warnings) {
            (0, 0) => ("no MTU mismatch".to_owned(), GOOD),
            (0, warnings) => (count(warnings, "warning"), OPEN),
            (errors, 0) => (count(errors, "error"), BAD),
            (errors, warnings) => (
                format!("{}, {}", count(errors, "error"), count(warnings, "warning")),
                BAD,
            ),
        };
        self.paint(&verdict, paint.bold())?;
        self.paint(&format!(" in {looked}"), PLAIN)?;
        self.end_line()?;
        for spot in &report.blind_spots {
            self.row("not seen", &spot.summary)?;
        }
        let when = report.time.date_and_clock();
        self.row(
            "looked at",
            &format!(
                "{} (Linux {}) at {when} UTC",
                report.node.hostname, report.node.kernel
            ),
        )
    }

    /// What is painted has been escaped.
    fn paint(&mut self, text: &str, style: Paint) -> io::Result<()> {
        if self.colour && !style.is_plain() && !text.is_empty() {
            write!(self.output, "{style}{text}{style:#}")
        } else {
            self.output.write_all(text.as_bytes())
        }
    }

    fn end_line(&mut self) -> io::Result<()> {
        self.output.write_all(b"\n")
    }
}

fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

/// A step as it is shown.
struct Line {
    left: String,
    right: String,
    paint: Paint,
}

/// A step and those behind it, as a tree.
fn draw(step: &Step, netns: u32, first: &str, others: &str, lines: &mut Vec<Line>) {
    let mut left = format!("{first}{}", escape(&step.at.name));
    if step.at.netns != netns {
        let place = match &step.at.netns_name {
            Some(name) => escape(name),
            None => step.at.netns.to_string(),
        };
        let _ = write!(left, " (netns {place})");
    }
    let _ = write!(left, "  {} {}", escape(&step.kind), step.at.mtu);
    let (right, paint) = told(step);
    lines.push(Line { left, right, paint });
    for (index, next) in step.next.iter().enumerate() {
        let is_last = index + 1 == step.next.len();
        let (branch, trunk) = if is_last {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        draw(
            next,
            step.at.netns,
            &format!("{others}{branch}"),
            &format!("{others}{trunk}"),
            lines,
        );
    }
}

/// What a step carries, and what becomes of the rest.
fn told(step: &Step) -> (String, Paint) {
    let around = match step.overhead {
        0 => String::new(),
        bytes => format!(" inside {bytes} bytes of headers"),
    };
    let Some(passes) = step.largest_passing else {
        return ("hands on what it gets".to_owned(), WEAK);
    };
    let route = if step.limit < step.at.mtu
        && matches!(step.via, Via::Sends | Via::Routed | Via::Wrapped)
    {
        " by its route"
    } else {
        ""
    };
    let Some(fate) = step.fate else {
        let verb = if step.via == Via::Sends {
            "sends up to"
        } else {
            "takes"
        };
        return (format!("{verb} {passes}{around}{route}"), PLAIN);
    };
    let from = passes + 1;
    let sizes = if from == step.largest_coming {
        from.to_string()
    } else {
        format!("{from}–{}", step.largest_coming)
    };
    let (becomes, paint) = match fate {
        Fate::Lost => ("die here, and no ICMP says so", BAD),
        Fate::TooBig if step.overhead > 0 => (
            "die here; ICMP goes to the tunnel's end, not to the sender",
            BAD,
        ),
        Fate::TooBig if step.mss_clamped => (
            "pass only if ICMP reaches the sender; TCP's MSS is clamped",
            PLAIN,
        ),
        Fate::TooBig => ("pass only if ICMP reaches the sender", OPEN),
        Fate::Fragmented => ("are fragmented", OPEN),
    };
    (
        format!("✗ takes {passes}{around}{route}: {sizes} {becomes}"),
        paint,
    )
}
