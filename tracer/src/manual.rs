//! What the program says about itself: schemas, completion scripts and the manual page, all generated from the same
//! definitions that parse and write.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::{Cli, SchemaOf};
use crate::mtu::MtuReport;
use crate::report::{capture_schema, report_schema};

/// Prints the JSON Schema of a format.
pub fn schema(format: SchemaOf) -> io::Result<()> {
    let schema = match format {
        SchemaOf::Capture => capture_schema(),
        SchemaOf::Report => report_schema(),
        SchemaOf::Mtu => schemars::schema_for!(MtuReport),
    };
    let mut page = serde_json::to_vec_pretty(&schema)?;
    page.push(b'\n');
    print(&page)
}

/// Prints a completion script.
pub fn completions(shell: Shell) -> io::Result<()> {
    let mut page = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "tracer", &mut page);
    print(&page)
}

/// Prints the manual page.
pub fn man() -> io::Result<()> {
    print(&man_page()?)
}

/// One page: the program, then each command with the sections of its own.
fn man_page() -> io::Result<Vec<u8>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    let program = Man::new(command.clone());
    program.render_title(&mut page)?;
    program.render_name_section(&mut page)?;
    page.extend(sections(&program)?.bytes());
    for subcommand in command.get_subcommands() {
        let name = format!("tracer {}", subcommand.get_name());
        let man = Man::new(subcommand.clone().display_name(&name));
        writeln!(page, ".SH \"{}\"", name.to_uppercase())?;
        // What would be a section of a page of its own is a subsection of this one.
        page.extend(sections(&man)?.replace(".SH ", ".SS ").bytes());
    }
    Ok(page)
}

fn sections(man: &Man) -> io::Result<String> {
    let mut sections = Vec::new();
    man.render_synopsis_section(&mut sections)?;
    man.render_description_section(&mut sections)?;
    man.render_options_section(&mut sections)?;
    man.render_extra_section(&mut sections)?;
    let sections = String::from_utf8_lossy(&sections);
    // Every command has examples, and they come last: set as they are, line by line.
    Ok(sections.replace(".SH EXTRA\n", ".SH EXAMPLES\n.nf\n") + ".fi\n")
}

/// Writes to standard output; a reader that has seen enough is no error.
pub(crate) fn print(page: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(page).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::man_page;

    #[test]
    fn every_command_is_in_the_manual_page() {
        let page = String::from_utf8(man_page().expect("memory takes everything"))
            .expect("the page is UTF-8");
        for section in [
            "TRACER TRACE",
            "TRACER REPORT",
            "TRACER CHECK",
            "TRACER DEMO",
            "TRACER SCHEMA",
        ] {
            assert!(page.contains(&format!(".SH \"{section}\"")), "{section}");
        }
        assert!(page.contains("\\-\\-until\\-verdict"));
        assert_eq!(
            page.matches("\n.nf\n").count(),
            page.matches("\n.fi\n").count()
        );
        assert!(!page.contains("ring\\-bytes"), "a hidden option");
    }
}
