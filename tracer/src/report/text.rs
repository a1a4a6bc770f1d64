//! The report for a person at a terminal.

use std::io::{self, IsTerminal, Write};

use anstream::ColorChoice;
use anstyle::AnsiColor;

use super::story::{Item, Row, Section, Story, Tone, tell, tell_flow};
use super::{Confidence, Flow, Report};
use crate::escape::escape;

/// The narrowest and the widest that text is set.
const COLUMNS: std::ops::RangeInclusive<usize> = 60..=110;

/// The shortest label column, so that short reports look alike.
const LABEL_COLUMNS: usize = 9;

/// How text looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Characters in a line.
    pub columns: usize,
    /// Whether to use colour.
    pub colour: bool,
}

impl Style {
    /// For a file or a pipe.
    pub const PLAIN: Self = Self {
        columns: 100,
        colour: false,
    };

    /// For standard output: as wide as the terminal, in colour unless `NO_COLOR` or the terminal forbids it.
    pub fn of_stdout() -> Self {
        let stdout = io::stdout();
        Self {
            columns: columns(&stdout).unwrap_or(Self::PLAIN.columns),
            colour: anstream::AutoStream::choice(&stdout) != ColorChoice::Never,
        }
    }
}

/// The width of the terminal that standard output is.
fn columns(stdout: &io::Stdout) -> Option<usize> {
    if !stdout.is_terminal() {
        return None;
    }
    terminal_size::terminal_size_of(stdout).map(|(width, _)| usize::from(width.0))
}

/// Writes the report.
pub(super) fn write(report: &Report, style: Style, output: &mut dyn Write) -> io::Result<()> {
    let Story { sections } = tell(report);
    let columns = style.columns.clamp(*COLUMNS.start(), *COLUMNS.end());
    let mut page = Page {
        output,
        columns,
        colour: style.colour,
    };
    for (index, section) in sections.iter().enumerate() {
        if index > 0 {
            page.end_line()?;
        }
        page.section(section)?;
    }
    Ok(())
}

/// One flow in full, line by line and escaped, for a screen of this many columns.
pub fn flow_lines(flow: &Flow, columns: usize) -> Vec<String> {
    let mut text = Vec::new();
    let mut page = Page {
        output: &mut text,
        columns: columns.clamp(*COLUMNS.start(), *COLUMNS.end()),
        colour: false,
    };
    // A vector takes all that it is given.
    let _ = page.section(&tell_flow(flow));
    String::from_utf8_lossy(&text)
        .lines()
        .map(str::to_owned)
        .collect()
}

struct Page<'a> {
    output: &'a mut dyn Write,
    columns: usize,
    colour: bool,
}

impl Page<'_> {
    fn section(&mut self, section: &Section) -> io::Result<()> {
        self.title(section)?;
        let label_columns = section
            .rows
            .iter()
            .map(|row| row.label.chars().count())
            .fold(LABEL_COLUMNS, usize::max);
        let mut label_before = "";
        for row in &section.rows {
            if row.apart {
                self.end_line()?;
                label_before = "";
            }
            self.row(row, label_columns, row.label == label_before)?;
            label_before = &row.label;
        }
        Ok(())
    }

    /// The title, with the confidence at the right margin of its last line.
    fn title(&mut self, section: &Section) -> io::Result<()> {
        let badge = section.confidence.map(Confidence::name).unwrap_or_default();
        let room = self.columns - badge.len() - 2;
        let lines = fill(&escape(&section.title), room, room);
        for (index, line) in lines.iter().enumerate() {
            self.paint(line, title_style(section.tone))?;
            if index + 1 == lines.len() && !badge.is_empty() {
                let gap = self.columns - badge.len() - line.chars().count();
                self.paint(&" ".repeat(gap), anstyle::Style::new())?;
                self.paint(badge, item_style(section.tone))?;
            }
            self.end_line()?;
        }
        Ok(())
    }

    fn row(&mut self, row: &Row, label_columns: usize, same_label: bool) -> io::Result<()> {
        let unlabelled = row.label.is_empty();
        let indent = if unlabelled { 2 } else { 2 + label_columns + 2 };
        let label = if unlabelled || same_label {
            ""
        } else {
            &row.label
        };
        let label_style = item_style(Tone::Weak);
        self.paint("  ", anstyle::Style::new())?;
        self.paint(&escape(label), label_style)?;
        let label_width = label.chars().count();
        self.paint(&" ".repeat(indent - 2 - label_width), anstyle::Style::new())?;

        let mut column = indent;
        for (index, item) in row.items.iter().enumerate() {
            column = self.item(item, index == 0, column, indent)?;
        }
        self.end_line()
    }

    /// An item stays whole if it fits into a line at all.
    fn item(
        &mut self,
        item: &Item,
        first: bool,
        mut column: usize,
        indent: usize,
    ) -> io::Result<usize> {
        let text = escape(&item.text);
        let width = text.chars().count();
        if !first {
            if column + 2 + width > self.columns {
                self.end_line()?;
                self.paint(&" ".repeat(indent + 2), anstyle::Style::new())?;
                column = indent + 2;
            } else {
                self.paint("  ", anstyle::Style::new())?;
                column += 2;
            }
        }
        let hanging = indent + 2;
        let lines = fill(&text, self.columns - column, self.columns - hanging);
        for (index, line) in lines.iter().enumerate() {
            if index > 0 {
                self.end_line()?;
                self.paint(&" ".repeat(hanging), anstyle::Style::new())?;
                column = hanging;
            }
            self.paint(line, item_style(item.tone))?;
            column += line.chars().count();
        }
        Ok(column)
    }

    /// What is painted has been escaped.
    fn paint(&mut self, text: &str, style: anstyle::Style) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if self.colour && !style.is_plain() {
            write!(self.output, "{style}{text}{style:#}")
        } else {
            self.output.write_all(text.as_bytes())
        }
    }

    fn end_line(&mut self) -> io::Result<()> {
        self.output.write_all(b"\n")
    }
}

/// Breaks a text at spaces into lines of at most this many characters; a longer word stays whole, so that it can be
/// copied.
pub(crate) fn fill(text: &str, first: usize, others: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let room = if lines.len() == 1 { first } else { others };
        let begun = lines.len();
        let line = &mut lines[begun - 1];
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= room {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

fn title_style(tone: Tone) -> anstyle::Style {
    item_style(tone).bold()
}

fn item_style(tone: Tone) -> anstyle::Style {
    match tone {
        Tone::Good => AnsiColor::Green.on_default(),
        Tone::Bad => AnsiColor::Red.on_default(),
        Tone::Open => AnsiColor::Yellow.on_default(),
        Tone::Plain => anstyle::Style::new(),
        Tone::Weak => anstyle::Style::new().dimmed(),
    }
}
