//! `vm`: another kernel than this machine's, as a guest that lives in memory and runs one command.

mod guest;
mod initramfs;
mod kernel;
pub mod lab;

use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};

pub use self::guest::{Accel, Limits};
use self::initramfs::Initramfs;
pub use self::kernel::Kernel;
use crate::{command, output, setup};

/// How tracer is built for guests: an emulated machine runs what is not optimised so slowly that tests would mostly wait
/// for it.
const PROFILE: &str = "guest";

/// Run a command on another kernel, in QEMU, and end with its exit code.
///
/// The guest has the lab's tools, a shell, `tracer` and the lab's cases: `-- cases NAME...` runs those whose names contain
/// one of the words, `-- tracer check` says what tracer sees on that kernel.
#[derive(clap::Args)]
pub struct Arguments {
    /// Which kernel
    #[arg(long)]
    kernel: Kernel,

    /// What executes the guest
    #[arg(long, default_value = "tcg")]
    accel: Accel,

    /// Seconds after which a guest that is not done is ended
    #[arg(long, value_name = "SECONDS", default_value = "3600")]
    limit: u64,

    /// Seconds after which a guest that says nothing is ended
    #[arg(long, value_name = "SECONDS", default_value = "300")]
    silence: u64,

    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

/// Makes the machine ready, builds, and runs the command in a guest.
pub fn perform(arguments: &Arguments) -> Result<ExitCode> {
    let limits = Limits {
        whole: Duration::from_secs(arguments.limit),
        silence: Duration::from_secs(arguments.silence),
    };
    let programs = Programs::build()?;
    let code = programs.run(
        arguments.kernel,
        arguments.accel,
        limits,
        &arguments.command,
        &mut io::stdout(),
    )?;
    Ok(ExitCode::from(code))
}

/// What of this build a guest carries.
pub struct Programs {
    tracer: PathBuf,
    cases: PathBuf,
}

impl Programs {
    /// Makes the machine ready for guests, and builds.
    pub fn build() -> Result<Self> {
        setup::ensure()?;
        setup::ensure_guests()?;
        command::run(
            command::cargo()
                .args(["build", "--quiet", "--package", "tracer"])
                .args(["--profile", PROFILE]),
        )?;
        let built = command::capture(
            command::cargo()
                .args(["test", "--quiet", "--no-run", "--package", "tracer-tests"])
                .args(["--test", "cases", "--message-format", "json"]),
        )?;
        Ok(Self {
            tracer: command::target_directory()?.join(PROFILE).join("tracer"),
            cases: test_program_in(&built)
                .context("cargo does not say where the lab's tests are")?,
        })
    }

    /// Runs a command in a guest, says how long it took, and returns its exit code.
    pub fn run(
        &self,
        kernel: Kernel,
        accel: Accel,
        limits: Limits,
        words: &[String],
        said: &mut dyn Write,
    ) -> Result<u8> {
        let unpacked = kernel::fetch(kernel)?;
        let lab: Vec<&str> = setup::lab_programs().collect();
        let built = [
            ("tracer", self.tracer.clone()),
            ("cases", self.cases.clone()),
        ];
        let mut archive = Initramfs::new(&unpacked, &lab, &built)?;
        archive.set_command(words);
        // Not in `/tmp`, which may be small: it is as large as all that it carries.
        let file = tempfile::Builder::new()
            .prefix("initramfs-")
            .tempfile_in(command::target_directory()?)?;
        archive.write(file.path())?;

        output::say(&format!(
            "vm: Linux {}: {}",
            unpacked.release,
            words.join(" ")
        ));
        let begin = Instant::now();
        let code = guest::run(accel, &unpacked.image, file.path(), limits, said)
            .with_context(|| format!("Linux {}", unpacked.release))?;
        output::say(&format!(
            "vm: Linux {}: exit code {code} after {} s",
            unpacked.release,
            begin.elapsed().as_secs()
        ));
        Ok(code)
    }
}

/// The program in what cargo writes about a build of one test, a JSON object a line.
fn test_program_in(messages: &str) -> Option<PathBuf> {
    messages.lines().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        // Cargo builds the package's programs for its tests, too.
        let is_test = message["target"]["kind"][0] == "test";
        let executable = message["executable"].as_str()?;
        is_test.then(|| PathBuf::from(executable))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_is_the_artifact_that_can_be_run() {
        let messages = "{\"target\":{\"kind\":[\"lib\"]},\"executable\":null}\nwarning\n\
                        {\"target\":{\"kind\":[\"bin\"]},\"executable\":\"/t/debug/random-lab\"}\n\
                        {\"target\":{\"kind\":[\"test\"]},\"executable\":\"/t/debug/deps/cases-1\"}\n\
                        {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(
            test_program_in(messages),
            Some(PathBuf::from("/t/debug/deps/cases-1"))
        );
        assert_eq!(test_program_in("{}"), None);
    }
}
