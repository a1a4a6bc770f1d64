//! What cannot work is said in one clear sentence, with the right exit code, and at once.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MsFlags, mount};
use tracer::lab::sandbox;
use tracer_tests::{Run, binary};

/// No packet of this address comes, here or anywhere.
const NOBODY: &str = "host 203.0.113.77";

const NO_FAULT_AT_ALL: i32 = 11;
const ERROR: i32 = 1;
const USAGE: i32 = 2;

/// Whoever typed something wrong is not kept waiting: less than any trace takes.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Runs a trace that must refuse, and returns what it said.
fn refused(arguments: &[&str], code: i32) -> Result<String> {
    let start = Instant::now();
    let run = Run::of(arguments)?;
    ensure!(run.code() == Some(code), "want exit code {code}: {run}");
    ensure!(run.stdout.is_empty(), "talk on stdout: {run}");
    ensure!(!run.stderr.contains("panicked"), "{run}");
    ensure!(start.elapsed() < AT_ONCE, "it took {:?}", start.elapsed());
    Ok(run.stderr)
}

/// A finished child whose streams were chosen by the test.
fn says(output: &Output, code: i32, words: &[&str]) -> Result<()> {
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(code),
        "want exit code {code}: {output:?}"
    );
    ensure!(!stderr.contains("panicked"), "{stderr}");
    for word in words {
        ensure!(stderr.contains(word), "nothing about {word}: {stderr}");
    }
    Ok(())
}

#[test]
fn a_filter_that_cannot_be_parsed() -> Result<()> {
    let said = refused(
        &["trace", "--for", "1s", "host 10.0.0.1 and prot 80"],
        USAGE,
    )?;
    let lines: Vec<_> = said.lines().collect();
    let caret_line = lines
        .iter()
        .position(|line| line.contains('^'))
        .with_context(|| format!("no caret: {said}"))?;
    let above = lines[caret_line.checked_sub(1).context("a caret under nothing")?];
    let caret_column = lines[caret_line].chars().position(|c| c == '^');
    let word_column = above.find("prot").map(|at| above[..at].chars().count());
    ensure!(
        word_column.is_some() && caret_column == word_column,
        "the caret is not under the word:\n{said}"
    );
    Ok(())
}

#[test]
fn a_filter_of_many_arguments_is_one_filter() -> Result<()> {
    let said = refused(
        &[
            "trace", "--for", "1s", "host", "10.0.0.1", "and", "prot", "80",
        ],
        USAGE,
    )?;
    ensure!(said.contains("prot") && said.contains('^'), "{said}");
    Ok(())
}

#[test]
fn a_namespace_that_does_not_exist() -> Result<()> {
    let said = refused(&["trace", "--for", "1s", "--netns", "no-such-netns"], ERROR)?;
    ensure!(said.contains("no-such-netns"), "{said}");
    Ok(())
}

#[test]
fn a_name_that_could_write_on_the_terminal() -> Result<()> {
    let said = refused(&["trace", "--for", "1s", "--netns", "x\u{1b}[2Jy"], ERROR)?;
    ensure!(
        !said.contains('\u{1b}'),
        "the escape went through: {said:?}"
    );
    Ok(())
}

#[test]
fn a_duration_that_is_none() -> Result<()> {
    let said = refused(&["trace", "--for", "soon"], USAGE)?;
    ensure!(said.contains("soon"), "{said}");
    Ok(())
}

#[test]
fn an_output_in_a_directory_that_does_not_exist() -> Result<()> {
    for option in ["--output", "--capture"] {
        let path = "/nonexistent/directory/file.jsonl";
        let said = refused(&["trace", "--for", "3s", option, path], ERROR)?;
        ensure!(said.contains(path), "{option}: {said}");
    }
    Ok(())
}

#[test]
fn an_output_on_a_full_disk() -> Result<()> {
    sandbox::run(|| {
        let disk = tempfile::tempdir()?;
        let tmpfs = Some("tmpfs");
        let one_page = Some("size=4k,nr_inodes=8");
        mount(tmpfs, disk.path(), tmpfs, MsFlags::empty(), one_page)?;
        fs::write(disk.path().join("filler"), [0; 4096])?;
        for option in ["--output", "--capture"] {
            let file = disk.path().join("file.jsonl");
            let file = file.to_str().context("a path that is text")?;
            // A report may still be printed when only the capture could not be written.
            let run = Run::of(&["trace", "--for", "1s", "--format", "json", option, file])?;
            ensure!(run.code() == Some(ERROR), "{run}");
            ensure!(run.stderr.contains(file), "{option}: {run}");
            ensure!(run.stderr.contains("No space left"), "{option}: {run}");
        }
        Ok(())
    })?
}

#[test]
fn a_full_disk_behind_stdout() -> Result<()> {
    let output = Command::new(binary()?)
        .args(["trace", "--for", "1s", "--format", "json"])
        .stdout(File::options().write(true).open("/dev/full")?)
        .stderr(Stdio::piped())
        .output()?;
    says(&output, ERROR, &["No space left"])
}

#[test]
fn a_closed_pipe_behind_stdout_is_no_error() -> Result<()> {
    let (reader, writer) = std::io::pipe()?;
    drop(reader);
    let output = Command::new(binary()?)
        .args(["trace", "--for", "1s", "--format", "json", NOBODY])
        .stdout(writer)
        .stderr(Stdio::piped())
        .output()?;
    says(&output, NO_FAULT_AT_ALL, &[])
}

#[test]
fn no_packet_matched_is_said_and_does_not_look_healthy() -> Result<()> {
    let run = Run::of(&["trace", "--for", "1s", "--format", "json", NOBODY])?;
    ensure!(run.code() == Some(NO_FAULT_AT_ALL), "{run}");
    let report = run.report()?;
    ensure!(report["flows"] == serde_json::json!([]), "{report:#}");
    ensure!(report["ledger"]["clean"] == true, "{report:#}");
    let text = Run::of(&["trace", "--for", "1s", NOBODY])?;
    ensure!(text.code() == Some(NO_FAULT_AT_ALL), "{}", text.stdout);
    ensure!(text.stdout.contains("no packet matched"), "{}", text.stdout);
    Ok(())
}

#[test]
fn without_root() -> Result<()> {
    // A copy, since the binary may be in a directory that is not everybody's.
    let directory = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o755))
        .tempdir()?;
    let copy = directory.path().join("tracer");
    fs::copy(binary()?, &copy)?;
    let output = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&copy)
        .args(["trace", "--for", "1s"])
        .current_dir("/")
        .output()
        .context("running setpriv (util-linux)")?;
    says(&output, ERROR, &["root"])
}

#[test]
fn without_btf() -> Result<()> {
    let run = sandbox::run(|| {
        let nothing = Some("tmpfs");
        let at = "/sys/kernel/btf";
        mount(nothing, at, nothing, MsFlags::empty(), None::<&str>)?;
        Run::of(&["trace", "--for", "1s"])
    })??;
    ensure!(run.code() == Some(ERROR), "{run}");
    ensure!(run.stderr.contains("BTF"), "{run}");
    ensure!(!run.stderr.contains("panicked"), "{run}");
    Ok(())
}

#[test]
fn a_capture_that_is_none() -> Result<()> {
    let said = refused(&["report", "/nonexistent.jsonl"], ERROR)?;
    ensure!(said.contains("/nonexistent.jsonl"), "{said}");
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), b"\x00\xff{not json\n")?;
    let path = file.path().to_str().context("a path that is text")?;
    let said = refused(&["report", path], ERROR)?;
    ensure!(said.contains(path), "{said}");
    Ok(())
}
