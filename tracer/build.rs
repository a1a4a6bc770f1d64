//! Builds the kernel half (`tracer-ebpf`) into `OUT_DIR/tracer-ebpf`, from where the library embeds it.
//!
//! `core` for the BPF target is built from source (`-Z build-std=core`) by the same stable toolchain that builds
//! the rest. The flag needs `RUSTC_BOOTSTRAP=1`, which must not reach anything but the kernel half: this script
//! therefore starts itself once more with that variable, and only the second process calls aya-build.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use anyhow::{Context as _, Result, anyhow, bail};
use aya_build::{Package, Toolchain};

/// Says that this process is the second one, which builds the kernel half.
const INNER: &str = "TRACER_BUILDS_KERNEL_HALF";

/// The toolchain that runs this build: rustup sets the variable for everything that it starts.
const TOOLCHAIN: &str = "RUSTUP_TOOLCHAIN";

fn main() -> ExitCode {
    let result = if env::var_os(INNER).is_some() {
        build_kernel_half()
    } else {
        check_setup().and_then(|()| start_again())
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            directive("error", &format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Fails in one sentence when the machine lacks what the kernel half is built from.
fn check_setup() -> Result<()> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(&rustc)
        .args(["--print", "sysroot"])
        .output()
        .with_context(|| format!("cannot start {}", rustc.display()))?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let core = sysroot.join("lib/rustlib/src/rust/library/core/src/lib.rs");
    if !core.exists() {
        bail!(
            "the source of Rust's `core` library is missing: run `cargo xtask setup` once, then build again"
        );
    }
    if find_in_path("bpf-linker").is_none() {
        bail!("bpf-linker is missing: run `cargo xtask setup` once, then build again");
    }
    Ok(())
}

fn find_in_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

/// Runs this script again with the variables that only the kernel half may see.
fn start_again() -> Result<()> {
    let this = env::current_exe().context("cannot find this build script")?;
    let status = Command::new(this)
        .env(INNER, "1")
        .env("RUSTC_BOOTSTRAP", "1")
        // Otherwise every "Compiling …" line of the inner cargo comes back as a warning.
        .env("CARGO_TERM_QUIET", "true")
        .status()
        .context("cannot start this build script again")?;
    if !status.success() {
        bail!("the kernel half (tracer-ebpf) does not build: its messages are above");
    }
    Ok(())
}

fn build_kernel_half() -> Result<()> {
    let tracer = manifest_directory()?;
    let workspace = tracer
        .parent()
        .ok_or_else(|| anyhow!("{} has no parent", tracer.display()))?;
    // aya-build names tracer-ebpf itself; these it cannot know.
    for path in ["Cargo.toml", "Cargo.lock", "tracer-common"] {
        directive("rerun-if-changed", &text(&workspace.join(path))?);
    }
    directive("rerun-if-env-changed", TOOLCHAIN);

    let toolchain = env::var(TOOLCHAIN).unwrap_or_else(|_| "stable".to_owned());
    let root_dir = text(&workspace.join("tracer-ebpf"))?;
    let features: &[&str] = if env::var_os("CARGO_FEATURE_AYA_LOG").is_some() {
        &["aya-log"]
    } else {
        &[]
    };
    aya_build::build_ebpf(
        [Package {
            name: "tracer-ebpf",
            root_dir: &root_dir,
            features,
            ..Package::default()
        }],
        Toolchain::Custom(&toolchain),
    )
}

fn manifest_directory() -> Result<PathBuf> {
    env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .context("cargo sets CARGO_MANIFEST_DIR")
}

fn text(path: &Path) -> Result<String> {
    path.to_path_buf()
        .into_os_string()
        .into_string()
        .map_err(|path: OsString| anyhow!("{} is not UTF-8", path.display()))
}

/// Speaks to cargo, whose directives are lines on standard output.
fn directive(key: &str, value: &str) {
    println!("cargo::{key}={value}");
}
