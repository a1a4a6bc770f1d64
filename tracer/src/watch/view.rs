//! Draws a snapshot: counts, flows, drops, and one flow's path in place of the lists. Every name is escaped before it
//! is drawn.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Row, Table, TableState};

use super::input::{Opened, Pane, Ui};
use super::list;
use super::model::{FlowRow, Snapshot};
use super::plain;
use crate::escape::escape;
use crate::report::{Confidence, Time, flow_lines};

/// The columns that do not depend on what is in them.
const AGE_COLUMNS: u16 = 4;
const STATE_COLUMNS: u16 = 20;
const TRIES_COLUMNS: u16 = 3;
const CAUSE_COLUMNS: u16 = 20;
const PACKETS_COLUMNS: u16 = 7;
const REASON_COLUMNS: u16 = 18;
const CLOCK_COLUMNS: u16 = 8;
const PLACE_COLUMNS_MIN: u16 = 4;
/// From this width on, a flow's cause is listed as well.
const WIDE_COLUMNS: u16 = 110;

/// What stays the same while the view runs.
#[derive(Clone, Debug, Default)]
pub struct Title {
    /// The node's name; untrusted.
    pub hostname: String,
    /// The filter as typed, empty for none.
    pub filter: String,
    /// Whether to use colour.
    pub colour: bool,
}

/// Draws everything.
pub fn draw(
    frame: &mut Frame<'_>,
    title: &Title,
    snapshot: &Snapshot,
    time: Option<Time>,
    ui: &Ui,
) {
    let [head, counts, body, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    let paint = Paint(title.colour);
    draw_head(frame, head, title, time, ui);
    let line = Line::styled(plain::counts(snapshot), paint.counts(snapshot));
    frame.render_widget(line, counts);
    if let Some(opened) = &ui.opened {
        draw_path(frame, body, opened, paint);
    } else {
        let [flows, drops] =
            Layout::vertical([Constraint::Fill(2), Constraint::Fill(1)]).areas(body);
        draw_flows(frame, flows, snapshot, ui, paint);
        draw_drops(frame, drops, snapshot, ui);
    }
    frame.render_widget(Line::styled(keys(ui), WEAK), foot);
}

const WEAK: Style = Style::new().add_modifier(Modifier::DIM);
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

/// How the selected row of a list looks: only the list that the keys move in shows it.
fn selected(focused: bool) -> Style {
    if focused {
        Style::new().add_modifier(Modifier::REVERSED)
    } else {
        Style::new()
    }
}

/// Colours, or what stands for them where there are none.
#[derive(Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn colour(self, colour: Color) -> Style {
        if self.0 {
            Style::new().fg(colour)
        } else {
            Style::new()
        }
    }

    fn counts(self, snapshot: &Snapshot) -> Style {
        if snapshot.lost > 0 {
            self.colour(Color::Yellow)
        } else {
            Style::new()
        }
    }

    fn row(self, row: &FlowRow) -> Style {
        if row.waiting || row.flow.verdict.confidence == Confidence::Inconclusive {
            self.colour(Color::Yellow)
        } else {
            self.colour(Color::Red)
        }
    }
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, title: &Title, time: Option<Time>, ui: &Ui) {
    let state = if ui.paused { "PAUSED  " } else { "" };
    let clock = time.map(Time::date_and_clock).unwrap_or_default();
    let right = format!("{state}{clock} UTC");
    let filter = match title.filter.as_str() {
        "" => "every flow".to_owned(),
        filter => escape(filter),
    };
    let left = format!("tracer watch  {}  {filter}", escape(&title.hostname));
    let [left_area, right_area] =
        Layout::horizontal([Constraint::Min(0), Constraint::Length(columns(&right))])
            .spacing(1)
            .areas(area);
    frame.render_widget(Line::styled(left, STRONG), left_area);
    frame.render_widget(Line::styled(right, STRONG), right_area);
}

fn columns(text: &str) -> u16 {
    u16::try_from(text.chars().count()).unwrap_or(u16::MAX)
}

/// What the keys do here.
fn keys(ui: &Ui) -> String {
    if ui.searching {
        format!(
            "show rows with: {}▏  enter keeps it, esc clears it",
            escape(&ui.search)
        )
    } else if ui.opened.is_some() {
        "esc back  up/down scroll  p pause  q quit".to_owned()
    } else {
        "enter path  tab flows/drops  s sort  r reverse  / find  p pause  q quit".to_owned()
    }
}

/// A heading that says how a list is ordered and what it leaves out.
fn heading(what: &str, sort: &str, reversed: bool, ui: &Ui) -> String {
    let order = if reversed { ", reversed" } else { "" };
    let search = match ui.search.as_str() {
        "" => String::new(),
        text => format!("  with \"{}\"", escape(text)),
    };
    format!("{what} by {sort}{order}{search}")
}

/// What stands for an empty list.
fn empty(words: &str, ui: &Ui) -> String {
    match ui.search.as_str() {
        "" => format!("  {words}"),
        text => format!("  nothing with \"{}\"", escape(text)),
    }
}

/// A text that shows where it was cut: half an address must not look like a whole one.
fn fit(text: String, room: u16) -> String {
    let room = usize::from(room);
    if text.chars().count() <= room {
        return text;
    }
    let cut = text.chars().take(room.saturating_sub(1));
    cut.chain((room > 0).then_some('…')).collect()
}

fn draw_flows(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot, ui: &Ui, paint: Paint) {
    let rows = ui.flows(snapshot);
    let [top, list] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let title = heading(
        &format!("FLOWS {}", rows.len()),
        ui.flow_sort.name(),
        ui.flows_reversed,
        ui,
    );
    draw_heading(frame, top, &title, ui.pane == Pane::Flows);
    if rows.is_empty() {
        let words = empty("no flow waits or failed", ui);
        frame.render_widget(Line::styled(words, WEAK), list);
        return;
    }
    // What is short is shown whole: addresses get what they need, and the place has the rest.
    let cause_columns = if list.width >= WIDE_COLUMNS {
        CAUSE_COLUMNS
    } else {
        0
    };
    let fixed = AGE_COLUMNS + STATE_COLUMNS + TRIES_COLUMNS + cause_columns + 5;
    let room = list.width.saturating_sub(fixed);
    let longest = rows.iter().map(|row| columns(&list::tuple(row))).max();
    let tuple_columns = longest
        .unwrap_or(0)
        .min(room.saturating_sub(PLACE_COLUMNS_MIN));
    let place_columns = room.saturating_sub(tuple_columns);
    let cells = |row: &&FlowRow| {
        let age = snapshot.now_ns.saturating_sub(row.first_ns);
        let tries = row.flow.request.count;
        Row::new(vec![
            list::age(age),
            list::state(row).to_owned(),
            fit(list::tuple(row), tuple_columns),
            format!("{tries}x"),
            fit(list::cause(row), cause_columns),
            fit(list::place_of(row), place_columns),
        ])
        .style(paint.row(row))
    };
    let widths = [
        AGE_COLUMNS,
        STATE_COLUMNS,
        tuple_columns,
        TRIES_COLUMNS,
        cause_columns,
        place_columns,
    ];
    let names = [
        "age",
        "state",
        "client → server",
        "syn",
        "cause",
        "last seen",
    ];
    let table = Table::new(rows.iter().map(cells), widths)
        .header(Row::new(names).style(WEAK))
        .row_highlight_style(selected(ui.pane == Pane::Flows));
    let mut state = TableState::new().with_selected(ui.flow_index(&rows));
    frame.render_stateful_widget(table, list, &mut state);
}

fn draw_drops(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot, ui: &Ui) {
    let rows = ui.drops(snapshot);
    let [top, list] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    let packets: u64 = rows.iter().map(|(_, count)| count.packets).sum();
    let other = match snapshot.other_drops {
        0 => String::new(),
        other => format!(" and {other} of other kinds"),
    };
    let title = heading(
        &format!("DROPS {packets}{other}"),
        ui.drop_sort.name(),
        ui.drops_reversed,
        ui,
    );
    draw_heading(frame, top, &title, ui.pane == Pane::Drops);
    if rows.is_empty() {
        frame.render_widget(Line::styled(empty("none", ui), WEAK), list);
        return;
    }
    let fixed = PACKETS_COLUMNS + CAUSE_COLUMNS + REASON_COLUMNS + CLOCK_COLUMNS + 4;
    let place_columns = list.width.saturating_sub(fixed);
    let cells = rows.iter().map(|(kind, count)| {
        let last = count.last.map(Time::date_and_clock).unwrap_or_default();
        let clock = last.split(' ').next_back().unwrap_or_default().to_owned();
        Row::new(vec![
            count.packets.to_string(),
            kind.cause.to_owned(),
            fit(escape(&kind.reason), REASON_COLUMNS),
            fit(list::place(kind), place_columns),
            clock,
        ])
    });
    let widths = [
        PACKETS_COLUMNS,
        CAUSE_COLUMNS,
        REASON_COLUMNS,
        place_columns,
        CLOCK_COLUMNS,
    ];
    let names = [
        "packets",
        "cause",
        "kernel's reason",
        "device (netns)",
        "last",
    ];
    let table = Table::new(cells, widths)
        .header(Row::new(names).style(WEAK))
        .row_highlight_style(selected(ui.pane == Pane::Drops));
    let mut state = TableState::new().with_selected(ui.drop_index(rows.len()));
    frame.render_stateful_widget(table, list, &mut state);
}

fn draw_heading(frame: &mut Frame<'_>, area: Rect, title: &str, focused: bool) {
    let mark = if focused { "▸ " } else { "  " };
    let line = Line::from(vec![Span::raw(mark), Span::styled(title, STRONG)]);
    frame.render_widget(line, area);
}

/// The flow as the text report tells it.
fn draw_path(frame: &mut Frame<'_>, area: Rect, opened: &Opened, paint: Paint) {
    let lines = flow_lines(&opened.row.flow, usize::from(area.width));
    // The last line stays on the screen.
    let scroll = opened.scroll.min(lines.len().saturating_sub(1));
    let title = paint.row(&opened.row).add_modifier(Modifier::BOLD);
    let shown: Vec<Line<'_>> = lines
        .into_iter()
        .enumerate()
        .skip(scroll)
        .map(|(index, line)| match index {
            0 => Line::styled(line, title),
            _ => Line::raw(line),
        })
        .collect();
    frame.render_widget(Paragraph::new(shown), area);
}
