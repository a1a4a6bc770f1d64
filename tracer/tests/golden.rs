//! Recorded captures give the reports that they gave when a person last looked at them. The captures are of the lab's
//! scenarios on a real kernel; CONTRIBUTING.md says how to record one.

use std::fs;
use std::path::Path;

use tracer::replay;
use tracer::report::{self, Format, Style};

const CAPTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/captures");

fn rendered(capture: &Path, format: Format) -> String {
    let report = replay::run(capture).expect("a capture of ours");
    let mut output = Vec::new();
    report::write(&report, format, Style::PLAIN, &mut output).expect("memory takes everything");
    String::from_utf8(output).expect("reports are text")
}

#[test]
fn captures_give_the_reports_that_they_gave() {
    let mut captures: Vec<_> = fs::read_dir(CAPTURES)
        .expect("the fixtures are in the repository")
        .map(|entry| entry.expect("a file").path())
        .collect();
    captures.sort();
    assert!(
        captures.len() >= 30,
        "only {} captures are left",
        captures.len()
    );
    for capture in captures {
        let name = capture
            .file_stem()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        insta::assert_snapshot!(name.clone(), rendered(&capture, Format::Text));
        // The same capture twice: the same bytes.
        assert_eq!(
            rendered(&capture, Format::Json),
            rendered(&capture, Format::Json),
            "{name}"
        );
    }
}
