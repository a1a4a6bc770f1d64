//! The report as one page that needs nothing else, to be attached to a ticket. No script, and the page forbids any.

use std::fmt;
use std::io::{self, Write};

use super::story::{Row, Section, Story, Tone, tell};
use super::{Confidence, Report};
use crate::escape::escape;

/// What comes before the title: the character set first, and a policy under which even a mistake of ours runs nothing.
const HEAD: &str = "<!DOCTYPE html>
<html lang=\"en\">
<head>
<meta charset=\"utf-8\">
<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">
<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">
<style>
:root { color-scheme: light dark; --good: #1a7f37; --bad: #c4232b; --open: #8a6100; --weak: #6b7280; }
@media (prefers-color-scheme: dark) { :root { --good: #4ac26b; --bad: #ff7b72; --open: #d9a53c; --weak: #9aa4b2; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.1rem; font-weight: normal; color: var(--weak); }
section { margin: 1.5rem 0; padding-left: 1rem; border-left: 3px solid var(--weak); }
h2 { font-size: 1.15rem; margin: 0 0 .5rem; }
h2 small { font-weight: normal; margin-left: 1rem; }
table { font: 13px/1.5 ui-monospace, monospace; border-spacing: 0; }
th { font-weight: normal; text-align: left; vertical-align: top; padding-right: 1.5rem; color: var(--weak); white-space: nowrap; }
td { overflow-wrap: anywhere; }
td span { white-space: pre-wrap; }
td span + span { margin-left: 1.5ch; }
tr.apart > * { padding-top: .7rem; }
.good { color: var(--good); } .bad { color: var(--bad); } .open { color: var(--open); } .weak { color: var(--weak); }
section.good { border-color: var(--good); } section.bad { border-color: var(--bad); } section.open { border-color: var(--open); }
</style>
";

/// Writes the report.
pub(super) fn write(report: &Report, output: &mut dyn Write) -> io::Result<()> {
    let Story { sections } = tell(report);
    let moment = report
        .window
        .start
        .map(|start| format!(", {} UTC", start.date_and_clock()));
    let title = format!(
        "tracer on {}{}",
        report.node.hostname,
        moment.unwrap_or_default()
    );
    let title = Literal(&title);
    write!(
        output,
        "{HEAD}<title>{title}</title>\n</head>\n<body>\n<h1>{title}</h1>\n"
    )?;
    for section in &sections {
        write_section(section, output)?;
    }
    output.write_all(b"</body>\n</html>\n")
}

fn write_section(section: &Section, output: &mut dyn Write) -> io::Result<()> {
    let class = class(section.tone);
    write!(
        output,
        "<section class=\"{class}\">\n<h2 class=\"{class}\">{}",
        Literal(&section.title)
    )?;
    if let Some(confidence) = section.confidence.map(Confidence::name) {
        write!(output, " <small>{confidence}</small>")?;
    }
    output.write_all(b"</h2>\n<table>\n")?;
    let mut label_before = "";
    for row in &section.rows {
        write_row(row, row.label == label_before && !row.apart, output)?;
        label_before = &row.label;
    }
    output.write_all(b"</table>\n</section>\n")
}

fn write_row(row: &Row, same_label: bool, output: &mut dyn Write) -> io::Result<()> {
    let apart = if row.apart { " class=\"apart\"" } else { "" };
    if row.label.is_empty() {
        write!(output, "<tr{apart}><td colspan=\"2\">")?;
    } else {
        let label = if same_label { "" } else { &row.label };
        write!(output, "<tr{apart}><th>{}</th><td>", Literal(label))?;
    }
    for item in &row.items {
        write!(
            output,
            "<span class=\"{}\">{}</span> ",
            class(item.tone),
            Literal(&item.text)
        )?;
    }
    output.write_all(b"</td></tr>\n")
}

fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Good => "good",
        Tone::Bad => "bad",
        Tone::Open => "open",
        Tone::Plain => "plain",
        Tone::Weak => "weak",
    }
}

/// A string of which nothing is markup.
struct Literal<'a>(&'a str);

impl fmt::Display for Literal<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in escape(self.0).chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                _ => write!(f, "{character}")?,
            }
        }
        Ok(())
    }
}
