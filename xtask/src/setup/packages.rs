//! The system's packages: which are missing, and their installation by apt.

use anyhow::{Context as _, Result, bail};

use super::{Progress, note, step};
use crate::command;

/// A program that the lab or a developer calls, and the Debian package that brings it.
struct Tool {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

/// The lab builds networks, breaks them on purpose and looks at them from outside with these.
const TOOLS: &[Tool] = &[
    tool("ip", "iproute2", "makes namespaces and devices"),
    tool("nft", "nftables", "makes rules that drop packets"),
    tool("ethtool", "ethtool", "switches a device's offloads"),
    tool("bpftool", "bpftool", "shows what is loaded into the kernel"),
    tool(
        "tcpdump",
        "tcpdump",
        "is the second witness of what was on the wire",
    ),
    tool("sysctl", "procps", "sets a namespace's kernel settings"),
    tool("nsenter", "util-linux", "enters namespaces"),
    tool("python3", "python3", "runs the lab's small servers"),
];

const fn tool(program: &'static str, package: &'static str, why: &'static str) -> Tool {
    Tool {
        program,
        package,
        why,
    }
}

/// Installs the tools that are missing.
pub fn ensure_tools(progress: Progress) -> Result<()> {
    let missing: Vec<&Tool> = TOOLS
        .iter()
        .filter(|tool| command::find(tool.program).is_none())
        .collect();
    if missing.is_empty() {
        progress.already_there("the lab's tools");
        return Ok(());
    }
    if command::find("apt-get").is_none() {
        // They are the lab's: building and running tracer works without them.
        for tool in missing {
            note(&format!(
                "`{}` is missing ({}) and there is no apt-get to install it: the lab needs it, install it by hand",
                tool.program, tool.why
            ));
        }
        return Ok(());
    }
    for tool in &missing {
        step(
            &format!("installing {}", tool.package),
            &format!("whose `{}` {} in the lab", tool.program, tool.why),
        );
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    install(&packages)
}

/// Installs packages from the machine's own sources.
pub fn install(packages: &[&str]) -> Result<()> {
    if command::find("apt-get").is_none() {
        bail!(
            "there is no apt-get here: install by hand what Debian calls {}",
            packages.join(", ")
        );
    }
    let apt_get = |arguments: &[&str]| {
        // `env`, since sudo may refuse to carry a variable over.
        let mut command = command::as_root("env");
        command
            .args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"])
            .args(["-o", "DPkg::Lock::Timeout=300", "-o", "Dpkg::Use-Pty=0"])
            .args(arguments);
        command
    };
    // A source of someone else's that does not answer is no reason to stop: what counts is the installation.
    if let Err(error) = command::run(&mut apt_get(&["update"])) {
        note(&format!(
            "{error:#}; going on with the package lists that are here"
        ));
    }
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    command::run(&mut apt_get(&arguments))
        .with_context(|| format!("the packages {} did not install", packages.join(", ")))
}
