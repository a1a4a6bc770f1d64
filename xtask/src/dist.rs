//! `dist`: one static, stripped binary that runs on any Linux of this architecture.

use std::{env, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail, ensure};

use crate::{command, output, setup, toolchain::Rustc};

/// Build one static, stripped binary, check that it is one, and say where it is.
#[derive(clap::Args)]
pub struct Arguments {}

/// Makes the machine ready, builds, checks and reports.
pub fn perform(_arguments: &Arguments) -> Result<()> {
    setup::ensure()?;
    let rustc = Rustc::query()?;
    let mut flags = env::var("RUSTFLAGS").unwrap_or_default();
    flags.push_str(" -C target-feature=+crt-static");
    command::run(
        command::cargo()
            // An explicit target keeps the flag from build scripts and procedural macros, which cannot be static.
            .args([
                "build",
                "--package",
                "tracer",
                "--release",
                "--target",
                &rustc.host,
            ])
            .env("RUSTFLAGS", flags.trim()),
    )?;
    let built = command::target_directory()?
        .join(&rustc.host)
        .join("release/tracer");

    let image = fs::read(&built).with_context(|| format!("cannot read {}", built.display()))?;
    ensure!(
        !has_interpreter(&image)?,
        "{} is not static",
        built.display()
    );
    let version = command::capture(Command::new(&built).arg("--version"))?;

    let dist = command::target_directory()?.join("dist/tracer");
    fs::create_dir_all(dist.parent().unwrap_or(Path::new(".")))?;
    fs::copy(&built, &dist).with_context(|| format!("cannot write {}", dist.display()))?;
    output::say(&format!(
        "dist: {} ({}), static, {:.1} MiB",
        dist.display(),
        version.trim(),
        mebibytes(image.len()),
    ));
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "printed with one decimal")]
fn mebibytes(len_bytes: usize) -> f64 {
    len_bytes as f64 / (1024.0 * 1024.0)
}

/// Whether a little-endian ELF64 file names a dynamic linker, as every program that is not static does.
fn has_interpreter(image: &[u8]) -> Result<bool> {
    const PT_INTERP: u32 = 3;
    ensure!(
        image.starts_with(b"\x7fELF\x02\x01"),
        "not a little-endian 64-bit ELF file"
    );
    let table = usize::try_from(u64::from_le_bytes(field(image, 32)?))?;
    let entry_len = usize::from(u16::from_le_bytes(field(image, 54)?));
    let entries = usize::from(u16::from_le_bytes(field(image, 56)?));
    for entry in 0..entries {
        if u32::from_le_bytes(field(image, table.saturating_add(entry * entry_len))?) == PT_INTERP {
            return Ok(true);
        }
    }
    Ok(false)
}

fn field<const N: usize>(image: &[u8], offset: usize) -> Result<[u8; N]> {
    match image.get(offset..).and_then(<[u8]>::first_chunk) {
        Some(bytes) => Ok(*bytes),
        None => bail!("the ELF file ends before byte {offset}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_test_is_not_static() {
        let image = fs::read(env::current_exe().unwrap()).unwrap();
        assert!(has_interpreter(&image).unwrap());
    }

    #[test]
    fn an_elf_without_interpreter_is_static() {
        let mut image = vec![0; 64 + 56];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        image[32] = 64;
        image[54] = 56;
        image[56] = 1;
        image[64] = 1;
        assert!(!has_interpreter(&image).unwrap());
        image[64] = 3;
        assert!(has_interpreter(&image).unwrap());
    }

    #[test]
    fn what_is_no_elf_or_is_cut_short_is_an_error() {
        assert!(has_interpreter(b"#!/bin/sh").is_err());
        let mut image = vec![0xff; 64];
        image[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert!(has_interpreter(&image).is_err());
    }
}
