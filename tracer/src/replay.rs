//! Reads a capture again: the same records into the same analysis, so the same report.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::analysis::Analysis;
use crate::escape::Escaped;
use crate::report::{self, Report};
use crate::source::capture;

/// Analyses a capture. What in it cannot be read is counted in the report's ledger.
pub fn run(path: &Path) -> Result<Report> {
    let naming = || format!("capture {}", Escaped(&path.to_string_lossy()));
    let (header, mut records) = capture::open(path).with_context(naming)?;
    let mut analysis = Analysis::new(header);
    for record in records.by_ref() {
        analysis.push(&record.with_context(naming)?);
    }
    let unread = records.unread();
    analysis.unreadable_records = unread.undecodable + unread.unknown;
    Ok(report::build(&analysis))
}
