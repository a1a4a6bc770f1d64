//! `test`: everything that must hold before a change lands, in stages, the quickest first.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{command, output, setup, toolchain::Rustc, vm};

/// Check formatting and lints, then run every test: unit, property, golden and the lab.
///
/// The lab breaks network namespaces on purpose, so tests run as root, through sudo where needed.
#[derive(clap::Args)]
pub struct Arguments {
    /// Then run the lab on other kernels, in guests: `all` if no part is named
    #[arg(long, value_name = "PART", num_args = 0..=1, require_equals = true, default_missing_value = "all")]
    vm: Option<vm::lab::Part>,
}

/// Makes the machine ready and runs the stages until one fails; the last lines are the test runner's own summary.
pub fn perform(arguments: &Arguments) -> Result<()> {
    setup::ensure()?;
    for (name, mut stage) in stages(&Rustc::query()?)? {
        output::say(&format!("test: {name}: {}", command::text_of(&stage)));
        command::run(&mut stage).with_context(|| format!("stage {name} failed"))?;
    }
    if let Some(part) = arguments.vm {
        vm::lab::run(part)?;
    }
    Ok(())
}

fn stages(rustc: &Rustc) -> Result<Vec<(&'static str, Command)>> {
    let cargo = |arguments: &[&str]| {
        let mut cargo = command::cargo();
        cargo.args(arguments);
        cargo
    };
    let mut stages = vec![
        ("format", cargo(&["fmt", "--all", "--check"])),
        (
            "lints",
            cargo(&["clippy", "--all-targets", "--", "-D", "warnings"]),
        ),
        ("kernel lints", kernel_lints(rustc)?),
    ];
    if command::find("cargo-deny").is_some() {
        // Advisories need a database from the network, so they are not asked here.
        stages.push((
            "licences",
            cargo(&["deny", "check", "bans", "licenses", "sources"]),
        ));
    }
    // The lab runs the real program, which a test of another package does not build by itself.
    stages.push(("build", cargo(&["build", "--bins"])));
    if command::find("cargo-nextest").is_some() {
        // nextest leaves out the examples in the documentation.
        stages.push(("documentation", cargo(&["test", "--doc", "--quiet"])));
        stages.push(("tests", cargo(&["nextest", "run", "--no-fail-fast"])));
    } else {
        stages.push(("tests", cargo(&["test", "--no-fail-fast"])));
    }
    if let Some((_, tests)) = stages.last_mut() {
        command::run_programs_as_root(tests, &rustc.host);
    }
    Ok(stages)
}

/// Clippy for the kernel half, which is built for its own target with the flags that aya-build gives it.
fn kernel_lints(rustc: &Rustc) -> Result<Command> {
    let architecture = rustc.host.split('-').next().unwrap_or(&rustc.host);
    let mut cargo = command::cargo();
    cargo
        .args([
            "clippy",
            "--package",
            "tracer-ebpf",
            "--release",
            "-Z",
            "build-std=core",
        ])
        .args(["--target", "bpfel-unknown-none", "--target-dir"])
        .arg(command::target_directory()?.join("kernel-lints"))
        .args(["--", "-D", "warnings"])
        .env("RUSTC_BOOTSTRAP", "1")
        .env(
            "RUSTFLAGS",
            format!("--cfg=bpf_target_arch=\"{architecture}\""),
        );
    Ok(cargo)
}
