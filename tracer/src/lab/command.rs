//! Runs the programs that the lab is built with, and sees to it that no child outlives it.

use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use nix::sys::prctl;
use nix::sys::signal::Signal;

use super::LabError;

/// A command whose child is killed when the **thread** that starts it ends, even by SIGKILL.
pub fn mortal(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    // SAFETY: the closure runs in the child between fork and exec and makes one system call, which is
    // async-signal-safe; it allocates nothing and takes no lock.
    unsafe {
        command.pre_exec(|| prctl::set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from));
    }
    command
}

/// Runs a program to its end, with `input` on its standard input, and returns what it printed.
pub(super) fn run(program: &str, args: &[&str], input: &str) -> Result<String, LabError> {
    let shown = || {
        let mut shown = format!("{program} {}", args.join(" "));
        if !input.is_empty() {
            shown.push_str(" <<< ");
            shown.push_str(input.trim());
        }
        shown
    };
    let mut child = mortal(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => LabError::Missing {
                program: program.to_owned(),
                package: package_of(program),
            },
            _ => LabError::System {
                what: shown(),
                source,
            },
        })?;
    // Dropped at the end of the statement, so that the child sees the end of its input. A child that did not read
    // it to the end has failed, and says why better than EPIPE does.
    if let Some(mut stdin) = child.stdin.take() {
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child
        .wait_with_output()
        .map_err(LabError::system(shown()))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(LabError::Failed {
            command: shown(),
            status: output.status,
            stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        })
    }
}

fn package_of(program: &str) -> &'static str {
    match program {
        "nft" => "nftables",
        "tcpdump" => "tcpdump",
        "wg" => "wireguard-tools",
        "iptables" | "ip6tables" => "iptables",
        _ => "iproute2",
    }
}
