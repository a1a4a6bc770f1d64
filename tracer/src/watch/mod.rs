//! A live view of flows that wait for an answer or did not get it, of drops and of refusals: on a terminal as a screen
//! with keys, else as lines. This file owns the terminal; `model` says what there is to show, `list` in which order,
//! `input` what keys do, `view` and `plain` how it looks.

mod input;
mod list;
mod model;
mod plain;
#[cfg(test)]
mod tests;
mod view;

use std::io::{self, IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use self::input::{Effect, Ui};
use self::model::{Model, Snapshot};
use self::view::Title;
use crate::analysis::Analysis;
use crate::clock::{self, Clock};
use crate::config::WatchConfig;
use crate::record::StoppedBy;
use crate::report::{Style, Time};
use crate::session::{Outputs, Session, Work};

/// How often the screen shows what has changed.
const REFRESH_EVERY: Duration = Duration::from_millis(500);
/// Looking at every flow may take this part of the time, so that a node with many of them has its ring emptied.
const REFRESH_SHARE: u32 = 10;

/// Watches until the user, a signal or the end of `--for` ends it.
pub fn run(config: &WatchConfig) -> Result<()> {
    let mut session = Session::open(&config.observer, Outputs::default())?;
    if is_screen() {
        let title = Title {
            hostname: session.hostname().to_owned(),
            filter: config.observer.filter.clone(),
            colour: Style::of_stdout().colour,
        };
        let mut screen = Screen::open(title)?;
        let stopped_by = session.run(config.duration, &mut screen)?;
        drop(screen);
        session.finish(stopped_by)?;
        return Ok(());
    }
    let mut lines = Lines::new(config.every);
    let stopped_by = session.run(config.duration, &mut lines)?;
    let (mut analysis, _) = session.finish(stopped_by)?;
    lines.print(&mut analysis, clock::monotonic_ns()?)?;
    Ok(())
}

/// Whether standard output can show a screen.
fn is_screen() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// The wall clock at a monotonic time.
fn wall_clock(analysis: &Analysis, now_ns: u64) -> Option<Time> {
    let clock = Clock::from_pairs(analysis.clocks.clone());
    let realtime_ns = clock.realtime_ns(now_ns)?;
    u64::try_from(realtime_ns).ok().map(Time::from_unix_ns)
}

/// A terminal that is taken over, and given back when this is dropped or the process panics.
struct Screen {
    terminal: DefaultTerminal,
    title: Title,
    model: Model,
    ui: Ui,
    /// What is on the screen.
    shown: Snapshot,
    shown_at: Option<Time>,
    next_refresh: Instant,
}

impl Screen {
    fn open(title: Title) -> Result<Self> {
        // Ratatui's panic hook gives the terminal back before the message is printed.
        let terminal = ratatui::try_init().context("cannot take over the terminal")?;
        Ok(Self {
            terminal,
            title,
            model: Model::default(),
            ui: Ui::default(),
            shown: Snapshot::default(),
            shown_at: None,
            next_refresh: Instant::now(),
        })
    }

    fn draw(&mut self) -> Result<()> {
        let Self {
            terminal,
            title,
            ui,
            shown,
            shown_at,
            ..
        } = self;
        terminal
            .draw(|frame| view::draw(frame, title, shown, *shown_at, ui))
            .context("cannot draw on the terminal")?;
        Ok(())
    }
}

impl Work for Screen {
    fn drained(&mut self, _analysis: &Analysis) -> Result<Option<StoppedBy>> {
        let mut changed = false;
        while event::poll(Duration::ZERO).context("cannot read from the terminal")? {
            match event::read().context("cannot read from the terminal")? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    match self.ui.press(key, &self.shown) {
                        Effect::Quit => return Ok(Some(StoppedBy::Signal)),
                        Effect::Redraw => changed = true,
                        Effect::Nothing => {}
                    }
                }
                Event::Resize(..) => changed = true,
                _ => {}
            }
        }
        if changed {
            self.draw()?;
        }
        Ok(None)
    }

    fn looked(&mut self, analysis: &mut Analysis, now_ns: u64) -> Result<Option<StoppedBy>> {
        let began = Instant::now();
        if began < self.next_refresh {
            return Ok(None);
        }
        // Also while paused: what is over must be forgotten.
        let snapshot = self.model.refresh(analysis, now_ns);
        if !self.ui.paused {
            self.ui.follow(&snapshot);
            self.shown = snapshot;
            self.shown_at = wall_clock(analysis, now_ns);
            self.draw()?;
        }
        self.next_refresh = began + REFRESH_EVERY.max(began.elapsed() * REFRESH_SHARE);
        Ok(None)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // A terminal that is gone (SIGHUP) needs nothing back.
        let _ = ratatui::try_restore();
    }
}

/// Lines for whoever reads standard output.
struct Lines {
    model: Model,
    every: Duration,
    next_print: Instant,
    next_refresh: Instant,
}

impl Lines {
    fn new(every: Duration) -> Self {
        let now = Instant::now();
        Self {
            model: Model::default(),
            every,
            next_print: now + every,
            next_refresh: now,
        }
    }

    /// Prints a block; a reader who went away is told by `false`, and no error.
    fn print(&mut self, analysis: &mut Analysis, now_ns: u64) -> Result<bool> {
        let snapshot = self.model.refresh(analysis, now_ns);
        let mut block = Vec::new();
        plain::write(&snapshot, wall_clock(analysis, now_ns), &mut block)?;
        let mut stdout = io::stdout().lock();
        match stdout.write_all(&block).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            Err(error) => Err(error).context("cannot write to standard output"),
            Ok(()) => Ok(true),
        }
    }
}

impl Work for Lines {
    fn looked(&mut self, analysis: &mut Analysis, now_ns: u64) -> Result<Option<StoppedBy>> {
        let began = Instant::now();
        if began >= self.next_print {
            self.next_print = began + self.every;
            if !self.print(analysis, now_ns)? {
                return Ok(Some(StoppedBy::Signal));
            }
        } else if began >= self.next_refresh {
            // Between two blocks: what is over must be forgotten.
            self.model.refresh(analysis, now_ns);
        } else {
            return Ok(None);
        }
        self.next_refresh = began + REFRESH_EVERY.max(began.elapsed() * REFRESH_SHARE);
        Ok(None)
    }
}
