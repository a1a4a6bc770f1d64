//! What keys do: a state machine that knows what the user chose, and nothing of terminals.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::list::{self, DropSort, FlowSort};
use super::model::{DropCount, DropKind, FlowRow, RowId, Snapshot};
use crate::escape::is_harmful;

/// The longest text that rows are searched for.
const SEARCH_MAX: usize = 64;
/// How far a page key moves.
const PAGE: usize = 10;

/// A list on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pane {
    /// The flows.
    #[default]
    Flows,
    /// The drops.
    Drops,
}

/// What a key asks of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Nothing,
    /// What the user chose has changed.
    Redraw,
    /// To end.
    Quit,
}

/// A flow whose path is shown.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The flow as it was seen last.
    pub row: FlowRow,
    /// The first line that is shown.
    pub scroll: usize,
}

/// What the user chose.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of its own on the keyboard"
)]
#[derive(Clone, Debug, Default)]
pub struct Ui {
    /// Which list the keys move in.
    pub pane: Pane,
    /// The order of the flows.
    pub flow_sort: FlowSort,
    /// And whether it is reversed.
    pub flows_reversed: bool,
    /// The order of the drops.
    pub drop_sort: DropSort,
    /// And whether it is reversed.
    pub drops_reversed: bool,
    /// What the rows that are shown contain.
    pub search: String,
    /// Whether `search` is being typed.
    pub searching: bool,
    /// Whether the screen stands still.
    pub paused: bool,
    /// The flow that is selected; the first, where it is gone.
    selected_flow: Option<RowId>,
    /// The drop that is selected.
    selected_drop: usize,
    /// The flow whose path is shown.
    pub opened: Option<Opened>,
}

impl Ui {
    /// The flows that are listed.
    pub fn flows<'a>(&self, snapshot: &'a Snapshot) -> Vec<&'a FlowRow> {
        list::flows(snapshot, &self.search, self.flow_sort, self.flows_reversed)
    }

    /// The drops that are listed.
    pub fn drops<'a>(&self, snapshot: &'a Snapshot) -> Vec<&'a (DropKind, DropCount)> {
        list::drops(snapshot, &self.search, self.drop_sort, self.drops_reversed)
    }

    /// Which of the listed flows is selected.
    pub fn flow_index(&self, rows: &[&FlowRow]) -> usize {
        let is_selected = |row: &&FlowRow| Some(row.id) == self.selected_flow;
        rows.iter().position(is_selected).unwrap_or(0)
    }

    /// Which of so many listed drops is selected.
    pub fn drop_index(&self, count: usize) -> usize {
        self.selected_drop.min(count.saturating_sub(1))
    }

    /// Takes a newer snapshot: an opened flow follows it, as long as it is there.
    pub fn follow(&mut self, snapshot: &Snapshot) {
        if let Some(opened) = &mut self.opened
            && let Some(row) = snapshot.flows.iter().find(|row| row.id == opened.row.id)
        {
            opened.row = row.clone();
        }
    }

    /// A key was pressed.
    pub fn press(&mut self, key: KeyEvent, snapshot: &Snapshot) -> Effect {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Effect::Quit,
                // A screen that something else has written on.
                KeyCode::Char('l') => Effect::Redraw,
                _ => Effect::Nothing,
            };
        }
        if self.searching {
            return self.type_search(key.code);
        }
        match key.code {
            KeyCode::Char('q') => return Effect::Quit,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            _ if self.opened.is_some() => return self.press_in_path(key.code),
            KeyCode::Char('/') => self.searching = true,
            KeyCode::Char('s') => match self.pane {
                Pane::Flows => self.flow_sort = self.flow_sort.next(),
                Pane::Drops => self.drop_sort = self.drop_sort.next(),
            },
            KeyCode::Char('r') => match self.pane {
                Pane::Flows => self.flows_reversed = !self.flows_reversed,
                Pane::Drops => self.drops_reversed = !self.drops_reversed,
            },
            KeyCode::Tab | KeyCode::BackTab => {
                self.pane = match self.pane {
                    Pane::Flows => Pane::Drops,
                    Pane::Drops => Pane::Flows,
                };
            }
            KeyCode::Esc => self.search.clear(),
            KeyCode::Enter if self.pane == Pane::Flows => {
                let rows = self.flows(snapshot);
                let row = rows.get(self.flow_index(&rows)).copied().cloned();
                self.opened = row.map(|row| Opened { row, scroll: 0 });
            }
            code => return self.step(code, snapshot),
        }
        Effect::Redraw
    }

    fn type_search(&mut self, code: KeyCode) -> Effect {
        match code {
            KeyCode::Enter => self.searching = false,
            KeyCode::Esc => {
                self.searching = false;
                self.search.clear();
            }
            KeyCode::Backspace => {
                self.search.pop();
            }
            KeyCode::Char(typed)
                if !is_harmful(typed) && self.search.chars().count() < SEARCH_MAX =>
            {
                self.search.push(typed);
            }
            _ => return Effect::Nothing,
        }
        Effect::Redraw
    }

    fn press_in_path(&mut self, code: KeyCode) -> Effect {
        let Some(opened) = &mut self.opened else {
            return Effect::Nothing;
        };
        match code {
            KeyCode::Esc | KeyCode::Enter | KeyCode::Backspace => self.opened = None,
            code => match moved(code, opened.scroll, usize::MAX) {
                Some(scroll) => opened.scroll = scroll,
                None => return Effect::Nothing,
            },
        }
        Effect::Redraw
    }

    /// Moves the selection.
    fn step(&mut self, code: KeyCode, snapshot: &Snapshot) -> Effect {
        match self.pane {
            Pane::Flows => {
                let rows = self.flows(snapshot);
                let last = rows.len().saturating_sub(1);
                let Some(index) = moved(code, self.flow_index(&rows), last) else {
                    return Effect::Nothing;
                };
                self.selected_flow = rows.get(index).map(|row| row.id);
            }
            Pane::Drops => {
                let count = self.drops(snapshot).len();
                let last = count.saturating_sub(1);
                let Some(index) = moved(code, self.drop_index(count), last) else {
                    return Effect::Nothing;
                };
                self.selected_drop = index;
            }
        }
        Effect::Redraw
    }
}

/// Where a key that moves leads from an index; `None` for any other key.
fn moved(code: KeyCode, index: usize, last: usize) -> Option<usize> {
    let index = match code {
        KeyCode::Up | KeyCode::Char('k') => index.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => index.saturating_add(1),
        KeyCode::PageUp => index.saturating_sub(PAGE),
        KeyCode::PageDown => index.saturating_add(PAGE),
        KeyCode::Home => 0,
        // The end of a path is where scrolling stops, which only the screen knows.
        KeyCode::End => last,
        _ => return None,
    };
    Some(index.min(last))
}
