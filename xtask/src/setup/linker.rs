//! bpf-linker, which links the kernel half, built against the LLVM version that rustc uses.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{Progress, packages, step};
use crate::{command, toolchain::Rustc};

/// The version that this tree is tested with; a newer one is accepted.
const VERSION: &str = "0.13.0";

/// Installs bpf-linker unless a good one is there.
pub fn ensure(rustc: &Rustc, progress: Progress) -> Result<()> {
    if let Some(version) = installed_version()
        && is_at_least(&version, VERSION)
    {
        progress.already_there(&format!("bpf-linker {version}"));
        return Ok(());
    }
    let prefix = ensure_llvm(rustc)?;
    step(
        &format!(
            "building bpf-linker {VERSION} with LLVM {}, about 90 s",
            rustc.llvm_major
        ),
        "which links tracer's kernel half",
    );
    command::run(
        command::cargo()
            .args([
                "install",
                "bpf-linker",
                "--version",
                VERSION,
                "--locked",
                "--force",
            ])
            .args(["--no-default-features", "--features"])
            .arg(format!("llvm-{}", rustc.llvm_major))
            .env("LLVM_PREFIX", prefix),
    )?;
    if installed_version().is_none() {
        bail!(
            "cargo installed bpf-linker, but it is not found: add cargo's `bin` directory to PATH"
        );
    }
    Ok(())
}

/// The version of the bpf-linker in PATH, if it starts: it does not when its LLVM was removed.
fn installed_version() -> Option<String> {
    let output = command::capture(Command::new("bpf-linker").arg("--version")).ok()?;
    Some(output.trim().strip_prefix("bpf-linker ")?.to_owned())
}

/// Whether a dotted version is no older than another. What is not three numbers is older.
fn is_at_least(version: &str, minimum: &str) -> bool {
    let numbers = |version: &str| -> Option<[u32; 3]> {
        let mut parts = version.split('.').map(|part| part.parse().ok());
        let numbers = [parts.next()??, parts.next()??, parts.next()??];
        parts.next().is_none().then_some(numbers)
    };
    numbers(version).is_some_and(|version| Some(version) >= numbers(minimum))
}

/// Where LLVM of rustc's major version is; installs it where it is missing and apt can.
fn ensure_llvm(rustc: &Rustc) -> Result<PathBuf> {
    let major = rustc.llvm_major;
    if let Some(prefix) = llvm_prefix(major) {
        return Ok(prefix);
    }
    let package = format!("llvm-{major}-dev");
    step(
        &format!("installing {package}"),
        "whose library bpf-linker is built on",
    );
    packages::install(&[&package]).with_context(|| {
        format!("bpf-linker needs LLVM {major} with its headers, `llvm-config` and libLLVM.so, since rustc uses LLVM {major}")
    })?;
    llvm_prefix(major).with_context(|| {
        format!("{package} is installed, but `llvm-config` and libLLVM.so are not found")
    })
}

/// Asks the `llvm-config` programs that distributions install.
fn llvm_prefix(major: u32) -> Option<PathBuf> {
    let candidates = [
        PathBuf::from(format!("llvm-config-{major}")),
        PathBuf::from(format!("/usr/lib/llvm-{major}/bin/llvm-config")),
        PathBuf::from("llvm-config"),
    ];
    candidates.iter().find_map(|program| {
        let ask = |question| command::capture(Command::new(program).arg(question)).ok();
        let version = ask("--version")?;
        if version.split('.').next()?.trim().parse() != Ok(major) {
            return None;
        }
        // A run-time package has the program, but not the library to link against.
        if !Path::new(ask("--libdir")?.trim())
            .join("libLLVM.so")
            .exists()
        {
            return None;
        }
        let prefix = ask("--prefix")?;
        Some(Path::new(prefix.trim()).to_path_buf())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert!(is_at_least("0.13.0", "0.13.0"));
        assert!(is_at_least("0.13.1", "0.13.0"));
        assert!(is_at_least("1.0.0", "0.13.0"));
        assert!(!is_at_least("0.9.15", "0.13.0"));
        assert!(!is_at_least("0.13", "0.13.0"));
        assert!(!is_at_least("", "0.13.0"));
        assert!(!is_at_least("0.13.0.1", "0.13.0"));
    }

    #[test]
    fn an_llvm_that_is_not_there_is_not_found() {
        assert_eq!(llvm_prefix(9999), None);
    }
}
