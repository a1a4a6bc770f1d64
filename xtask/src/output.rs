//! The only place that prints. Everything goes to stderr: stdout belongs to the programs that the tasks run.

/// Prints one line.
#[expect(clippy::print_stderr, reason = "this is where xtask prints")]
pub fn say(line: &str) {
    eprintln!("{line}");
}
