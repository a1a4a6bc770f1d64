//! Starts other programs: finds them, becomes root for them, and turns their failures into errors.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// The root of this workspace, from which every task runs.
pub fn workspace() -> &'static Path {
    // xtask is run by cargo from the tree that it was built in, one level below the root.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."))
}

/// The cargo that started this task, in the root of the workspace.
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(workspace());
    command
}

/// Where cargo puts what it builds: xtask itself is in `debug/` of it.
pub fn target_directory() -> Result<PathBuf> {
    let this = env::current_exe().context("cannot find xtask itself")?;
    let directory = this.ancestors().nth(2);
    Ok(directory
        .context("xtask is not in a target directory")?
        .to_path_buf())
}

/// A program run as root: through sudo, unless this process is root already.
pub fn as_root(program: impl AsRef<std::ffi::OsStr>) -> Command {
    if nix::unistd::geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    // Without -E the program would lose NO_COLOR, RUST_BACKTRACE and the like.
    command.arg("-E").arg(program);
    command
}

/// Lets cargo build as this user, and start each program that it built (a test, a benchmark) as root.
pub fn run_programs_as_root(cargo: &mut Command, host: &str) {
    if !nix::unistd::geteuid().is_root() {
        let variable = format!(
            "CARGO_TARGET_{}_RUNNER",
            host.to_uppercase().replace('-', "_")
        );
        cargo.env(variable, "sudo -E");
    }
}

/// Where a program is. Directories of administrators' programs count even where a user's PATH lacks them.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

/// Runs to the end, with the terminal's own input and output.
pub fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", text_of(command)))?;
    if !status.success() {
        bail!("{} ended with {status}", text_of(command));
    }
    Ok(())
}

/// Runs to the end and returns what the program wrote to stdout; an error carries what it wrote to stderr.
pub fn capture(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", text_of(command)))?;
    if !output.status.success() {
        bail!(
            "{} ended with {}: {}",
            text_of(command),
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    String::from_utf8(output.stdout)
        .with_context(|| format!("{} wrote what is not UTF-8", text_of(command)))
}

/// Runs without input, and ends the program if it takes longer than `limit`.
pub fn run_bounded(command: &mut Command, limit: Duration) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", text_of(command)))?;
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill()?;
            child.wait()?;
            bail!(
                "{} took longer than {} s",
                text_of(command),
                limit.as_secs()
            );
        }
        thread::sleep(Duration::from_millis(50));
    };
    if !status.success() {
        bail!("{} ended with {status}", text_of(command));
    }
    Ok(())
}

/// The command as one would type it.
pub fn text_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = program
        .file_name()
        .unwrap_or(command.get_program())
        .to_string_lossy()
        .into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_ended() {
        let begin = Instant::now();
        let error =
            run_bounded(Command::new("sleep").arg("60"), Duration::from_millis(100)).unwrap_err();
        assert!(begin.elapsed() < Duration::from_secs(10));
        assert_eq!(error.to_string(), "sleep 60 took longer than 0 s");
    }

    #[test]
    fn a_failure_names_the_command_and_what_it_said() {
        let error = capture(Command::new("sh").args(["-c", "echo why >&2; exit 3"])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "sh -c echo why >&2; exit 3 ended with exit status: 3: why"
        );
        assert!(run(&mut Command::new("false")).is_err());
    }

    #[test]
    fn programs_are_found_beside_the_path_too() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-anywhere").is_none());
    }
}
