//! bpf-linker, which links the kernel half, built against the LLVM version that rustc uses.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{packages::Missing, step};
use crate::{command, toolchain::Rustc};

/// The version that this tree is tested with; a newer one is accepted.
const VERSION: &str = "0.13.0";

/// LLVM's package, if LLVM of rustc's major version is not here.
pub fn missing_llvm(rustc: &Rustc) -> Option<Missing> {
    llvm_prefix(rustc.llvm_major).is_none().then(|| Missing {
        package: format!("llvm-{}-dev", rustc.llvm_major),
        why: "bpf-linker is built on the LLVM version of rustc".to_owned(),
        for_build: true,
    })
}

/// Builds bpf-linker with cargo. LLVM must be there already.
pub fn install(rustc: &Rustc) -> Result<()> {
    let major = rustc.llvm_major;
    let prefix = llvm_prefix(major).with_context(|| {
        format!(
            "bpf-linker needs LLVM {major}, but no `llvm-config` of it with a libLLVM.so is found"
        )
    })?;
    step(
        &format!("building bpf-linker {VERSION} with LLVM {major}, 2 minutes or so"),
        "it links tracer's kernel half",
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
            .arg(format!("llvm-{major}"))
            .env("LLVM_PREFIX", prefix),
    )?;
    if good_version().is_none() {
        bail!(
            "cargo installed bpf-linker, but it is not found: add cargo's `bin` directory to PATH"
        );
    }
    Ok(())
}

/// The version of the bpf-linker in PATH, if it starts and is new enough. One whose LLVM was removed does not start.
pub fn good_version() -> Option<String> {
    let output = command::capture(Command::new("bpf-linker").arg("--version")).ok()?;
    let version = output.trim().strip_prefix("bpf-linker ")?;
    is_at_least(version, VERSION).then(|| version.to_owned())
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

/// Where LLVM of a major version is, from the `llvm-config` programs that distributions install.
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
