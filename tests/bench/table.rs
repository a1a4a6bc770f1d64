//! The report: one row a figure, as Markdown.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};

use crate::statistics::Estimate;

/// The rows, and where they were measured.
pub struct Table {
    heading: String,
    rows: Vec<String>,
    notes: Vec<String>,
}

impl Table {
    pub fn new(quick: bool) -> Result<Self> {
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").context("which kernel?")?;
        let load = fs::read_to_string("/proc/loadavg").context("how busy is this machine?")?;
        let cpus = std::thread::available_parallelism()?;
        let mut heading = format!(
            "Kernel {}, {cpus} CPUs, load average {} when it began.",
            kernel.trim(),
            load.split(' ').next().unwrap_or("unknown"),
        );
        if quick {
            heading.push_str(" A quick run: five comparisons a row, so read no figure from it.");
        }
        Ok(Self {
            heading,
            rows: Vec::new(),
            notes: Vec::new(),
        })
    }

    /// A row whose figure is a number of `unit`s, or a ratio where `unit` is empty.
    pub fn row(&mut self, what: &str, figure: Estimate, unit: &str, null: Option<Estimate>) {
        let null = null.map_or_else(|| "–".to_owned(), |null| cell(null, unit));
        self.rows
            .push(format!("| {what} | {} | {null} |", cell(figure, unit)));
    }

    /// A row whose figure was counted, not estimated.
    pub fn plain(&mut self, what: &str, figure: &str) {
        self.rows.push(format!("| {what} | {figure} | – |"));
    }

    /// A sentence below the table.
    pub fn note(&mut self, sentence: String) {
        self.notes.push(sentence);
    }

    /// Says how much a group's tracers lost: what is lost is not worked on, which would flatter a figure.
    pub fn lost(&mut self, group: &str, events: u64) {
        self.note(format!("The rings lost {events} events of the {group}."));
    }

    pub fn to_markdown(&self) -> String {
        let mut text = format!(
            "{}\n\n| what | median (95 % interval) | A/A null |\n|---|---|---|\n",
            self.heading
        );
        for row in &self.rows {
            let _ = writeln!(text, "{row}");
        }
        text.push('\n');
        for note in &self.notes {
            let _ = writeln!(text, "- {note}");
        }
        text
    }
}

fn cell(figure: Estimate, unit: &str) -> String {
    let number = |value: f64| match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 || unit.is_empty() => format!("{value:.3}"),
        _ => format!("{value:.2}"),
    };
    let text = format!(
        "{} ({} – {}) {unit}",
        number(figure.value),
        number(figure.low),
        number(figure.high)
    );
    text.trim_end().to_owned()
}
