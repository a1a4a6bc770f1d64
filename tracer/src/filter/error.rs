//! What is wrong with an expression, and where.

use std::fmt;
use std::ops::Range;

use crate::escape::{Escaped, escape};

/// Why an expression cannot be compiled. Displayed, it shows the expression with carets under the words in question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError {
    /// The expression.
    pub expression: String,
    /// The bytes of the expression that are in question; empty at its end.
    pub span: Range<usize>,
    /// What is wrong with them.
    pub message: String,
    /// What to write instead, where that can be guessed.
    pub hint: Option<String>,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What is shown is escaped, so the carets are placed by the length of what is shown.
        let shown = |range: Range<usize>| {
            escape(self.expression.get(range).unwrap_or(""))
                .chars()
                .count()
        };
        let before = shown(0..self.span.start);
        let width = shown(self.span.clone()).max(1);
        writeln!(f, "filter: {}", Escaped(&self.message))?;
        writeln!(f, "  {}", Escaped(&self.expression))?;
        write!(f, "  {:before$}{:^<width$}", "", "")?;
        match &self.hint {
            Some(hint) => write!(f, " {}", Escaped(hint)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for FilterError {}
