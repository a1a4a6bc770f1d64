//! Facts about the rustc that builds this workspace, from its own mouth.

use std::{path::PathBuf, process::Command};

use anyhow::{Context as _, Result};

use crate::command;

/// The compiler in use.
#[derive(Debug)]
pub struct Rustc {
    /// Its exact release, such as `1.95.0`.
    pub release: String,
    /// The triple it runs on, such as `x86_64-unknown-linux-gnu`.
    pub host: String,
    /// The major version of its LLVM. bpf-linker must read what this LLVM writes.
    pub llvm_major: u32,
    /// Where its libraries are.
    pub sysroot: PathBuf,
}

impl Rustc {
    /// Asks the compiler that this workspace selects.
    pub fn query() -> Result<Self> {
        let ask = |arguments: &[&str]| {
            command::capture(
                Command::new("rustc")
                    .args(arguments)
                    .current_dir(command::workspace()),
            )
        };
        let sysroot = ask(&["--print", "sysroot"])?;
        Self::parse(&ask(&["-vV"])?, sysroot.trim())
    }

    /// Reads the output of `rustc -vV`.
    fn parse(verbose_version: &str, sysroot: &str) -> Result<Self> {
        let field = |name: &str| {
            verbose_version
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                .with_context(|| format!("`rustc -vV` does not say its {name}"))
        };
        let llvm = field("LLVM version")?;
        let llvm_major = llvm
            .split('.')
            .next()
            .and_then(|major| major.parse().ok())
            .with_context(|| format!("`rustc -vV` has an LLVM version {llvm:?}"))?;
        Ok(Self {
            release: field("release")?.to_owned(),
            host: field("host")?.to_owned(),
            llvm_major,
            sysroot: PathBuf::from(sysroot),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_verbose_version() {
        let text = "rustc 1.95.0 (59807616e 2026-04-14)\nbinary: rustc\nhost: x86_64-unknown-linux-gnu\n\
                    release: 1.95.0\nLLVM version: 22.1.2\n";
        let rustc = Rustc::parse(text, "/sysroot").unwrap();
        assert_eq!(rustc.release, "1.95.0");
        assert_eq!(rustc.host, "x86_64-unknown-linux-gnu");
        assert_eq!(rustc.llvm_major, 22);
    }

    #[test]
    fn a_compiler_without_llvm_is_an_error() {
        let error = Rustc::parse("release: 1.95.0\nhost: x\n", "/").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`rustc -vV` does not say its LLVM version"
        );
    }

    #[test]
    fn asks_the_real_one() {
        assert!(Rustc::query().unwrap().sysroot.is_dir());
    }
}
