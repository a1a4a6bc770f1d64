//! The system's packages: which are missing, and their installation by apt, all at once.

use std::process::Stdio;

use anyhow::{Context as _, Result, bail};

use super::{note, step};
use crate::command;

/// A package that is missing, by Debian's name, and why it is needed.
pub struct Missing {
    /// Debian's name for it.
    pub package: String,
    /// What needs it, as a sentence.
    pub why: String,
    /// Whether tracer cannot be built without it.
    pub for_build: bool,
}

/// A program that the lab calls, and the Debian package that brings it.
struct Tool {
    program: &'static str,
    package: &'static str,
    why: &'static str,
}

/// The lab builds networks, breaks them on purpose and looks at them from outside with these.
const TOOLS: &[Tool] = &[
    tool("ip", "iproute2", "makes namespaces and devices"),
    tool("tc", "iproute2", "makes queues and filters"),
    tool("nft", "nftables", "makes rules that drop packets"),
    tool("bpftool", "bpftool", "tells whether a program is loaded"),
    tool("tcpdump", "tcpdump", "selects packets as filters do"),
    tool("setpriv", "util-linux", "runs tracer without privilege"),
    tool("wireguard-go", "wireguard-go", "is a tunnel in a process"),
    tool("wg", "wireguard-tools", "tells that tunnel its peers"),
    tool("iptables", "iptables", "makes rules that nft cannot"),
];

/// What nothing but a guest needs.
const FOR_GUESTS: &[Tool] = &[
    tool("qemu-system-x86_64", "qemu-system-x86", "is the machine"),
    tool("busybox", "busybox", "is everything but the lab"),
    tool("bash", "bash", "is its shell"),
    tool("depmod", "kmod", "tells what modules need"),
    tool(
        "wg",
        "wireguard-tools",
        "gives WireGuard devices their peers",
    ),
];

/// What nothing but the benchmark runs; tcpdump is one of the lab's tools already.
const RIVALS: &[Tool] = &[tool("bpftrace", "bpftrace", "is compared with tracer")];

const fn tool(program: &'static str, package: &'static str, why: &'static str) -> Tool {
    Tool {
        program,
        package,
        why,
    }
}

/// The packages of the tools that are not here.
pub fn missing_tools() -> Vec<Missing> {
    missing("the lab's", TOOLS)
}

/// The programs that the lab calls.
pub fn tool_programs() -> impl Iterator<Item = &'static str> {
    TOOLS.iter().map(|tool| tool.program)
}

/// The packages of what a guest is made of that are not here.
pub fn missing_for_guests() -> Vec<Missing> {
    missing("the guests'", FOR_GUESTS)
}

/// The packages of the benchmark's tools that are not here.
pub fn missing_rivals() -> Vec<Missing> {
    missing("the benchmark's", RIVALS)
}

fn missing(whose: &str, tools: &[Tool]) -> Vec<Missing> {
    tools
        .iter()
        .filter(|tool| command::find(tool.program).is_none())
        .map(|tool| Missing {
            package: tool.package.to_owned(),
            why: format!("{whose} `{}` {}", tool.program, tool.why),
            for_build: false,
        })
        .collect()
}

/// Installs packages from the machine's own sources.
pub fn install(missing: &[Missing]) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    if command::find("apt-get").is_none() {
        return name_what_to_install(missing);
    }
    for each in missing {
        step(&format!("installing {}", each.package), &each.why);
    }
    let apt_get = |arguments: &[&str]| {
        // `env`, since sudo may refuse to carry a variable over.
        let mut command = command::as_root("env");
        command
            .args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"])
            .args(["-o", "DPkg::Lock::Timeout=300"])
            .args(arguments)
            // dpkg tells every file it handles there; errors are on stderr.
            .stdout(Stdio::null());
        command
    };
    // A source of someone else's that does not answer is no reason to stop: what counts is the installation.
    if let Err(error) = command::run(&mut apt_get(&["update"])) {
        note(&format!(
            "{error:#}; going on with the package lists that are here"
        ));
    }
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(missing.iter().map(|each| each.package.as_str()));
    command::run(&mut apt_get(&arguments)).context("apt could not install what is missing")
}

/// Without apt, building goes on as long as nothing is missing that it needs.
fn name_what_to_install(missing: &[Missing]) -> Result<()> {
    for each in missing {
        note(&format!(
            "there is no apt-get here: install by hand what Debian calls {}: {}",
            each.package, each.why
        ));
    }
    if missing.iter().any(|each| each.for_build) {
        bail!("tracer cannot be built before that");
    }
    Ok(())
}
