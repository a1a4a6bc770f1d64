//! The report for a post-mortem: CommonMark in which the names of strangers stay plain words.

use std::io::{self, Write};

use super::story::{Row, Story, tell};
use super::{Confidence, Report};
use crate::escape::escape;

/// Writes the report.
pub(super) fn write(report: &Report, output: &mut dyn Write) -> io::Result<()> {
    let Story { sections } = tell(report);
    let moment = report
        .window
        .start
        .map(|start| format!(", {} UTC", start.date_and_clock()));
    writeln!(
        output,
        "# tracer on {}{}",
        literal(&report.node.hostname),
        moment.unwrap_or_default()
    )?;
    for section in &sections {
        writeln!(output, "\n## {}\n", literal(&section.title))?;
        if let Some(confidence) = section.confidence.map(Confidence::name) {
            writeln!(output, "*{confidence}*\n")?;
        }
        for row in &section.rows {
            writeln!(output, "- {}", line(row))?;
        }
    }
    Ok(())
}

fn line(row: &Row) -> String {
    let items: Vec<String> = row.items.iter().map(|item| literal(&item.text)).collect();
    let items = items.join(" · ");
    if row.label.is_empty() {
        return items;
    }
    format!("**{}:** {items}", literal(&row.label))
}

/// The text with every character escaped that can mean something in Markdown or HTML.
fn literal(text: &str) -> String {
    let mut literal = String::new();
    for character in escape(text).chars() {
        if matches!(
            character,
            '\\' | '`'
                | '*'
                | '_'
                | '{'
                | '}'
                | '['
                | ']'
                | '<'
                | '>'
                | '#'
                | '|'
                | '!'
                | '~'
                | '&'
                | '@'
        ) {
            literal.push('\\');
        }
        literal.push(character);
    }
    literal
}

#[cfg(test)]
mod tests {
    use super::literal;

    #[test]
    fn nothing_in_a_name_is_markup() {
        assert_eq!(literal("<img src=x>"), "\\<img src=x\\>");
        assert_eq!(literal("a|b `c` [d](e)"), "a\\|b \\`c\\` \\[d\\](e)");
        assert_eq!(literal("x\n# y"), r"x\\u\{a\}\# y");
    }
}
