//! What is wrong, from the facts alone: no I/O, no clock. One file a subject; each finding names its devices, the sizes
//! that are lost, the largest that passes, and the commands that would mend it.

mod cables;
mod layers;
mod pods;
mod routes;
mod tunnels;

use std::cmp::Reverse;
use std::ops::RangeInclusive;

use crate::event::{DeviceId, NetnsId};

use super::codes::{FindingCode, Severity};
use super::model::{Device, Network};
use super::paths::{Fate, Paths};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub code: FindingCode,
    /// One sentence.
    pub summary: String,
    /// Who has part in it: who sends too much first, where it dies next.
    pub devices: Vec<DeviceId>,
    /// The sizes of packets that are lost, or that depend on ICMP or on fragments; nothing where size is not the point.
    pub affected: Option<RangeInclusive<u32>>,
    /// The largest packet that passes.
    pub largest_passing: Option<u32>,
    /// What becomes of those that do not pass.
    pub fate: Option<Fate>,
    /// What else to know.
    pub notes: Vec<String>,
    /// The commands that would mend it, to be run one after another; nothing where a name cannot be typed.
    pub mend: Vec<String>,
}

impl Finding {
    pub(super) fn severity(&self) -> Severity {
        self.code.severity()
    }
}

/// Everything that is wrong, what loses packets first.
pub(super) fn find(network: &Network, paths: &Paths) -> Vec<Finding> {
    let mut findings = cables::find(network);
    findings.extend(layers::find(network));
    findings.extend(tunnels::find(network));
    findings.extend(routes::find(network, paths));
    findings.extend(pods::find(network, paths));
    findings.sort_by(|one, other| {
        let key = |finding: &Finding| {
            let largest = finding.affected.as_ref().map(|sizes| *sizes.end());
            let kind = (finding.severity(), finding.code);
            (kind, Reverse(largest), finding.summary.clone())
        };
        key(one).cmp(&key(other))
    });
    findings
}

impl Network {
    /// A device as a person calls it. Not escaped.
    pub(super) fn name(&self, id: DeviceId) -> String {
        let device = self.devices.get(&id);
        let name = device.map_or_else(|| format!("if{}", id.ifindex), |device| device.name.clone());
        format!("{name} ({})", self.netns_name(id.netns))
    }

    /// A namespace as a person calls it. Not escaped.
    pub(super) fn netns_name(&self, id: NetnsId) -> String {
        let netns = self.namespaces.get(&id);
        match netns {
            Some(netns) if netns.own => "this netns".to_owned(),
            Some(netns) => match &netns.name {
                Some(name) => format!("netns {name}"),
                None => format!("netns {}", id.inum),
            },
            None => format!("netns {}", id.inum),
        }
    }

    /// `ip …` in a namespace.
    fn ip(&self, netns: NetnsId, arguments: &str) -> Option<String> {
        let netns = self.namespaces.get(&netns)?;
        if netns.own {
            Some(format!("ip {arguments}"))
        } else if let Some(name) = &netns.name {
            Some(format!("ip -n {} {arguments}", typed(name)?))
        } else {
            let path = typed(netns.path.as_ref()?)?;
            Some(format!("nsenter --net={path} ip {arguments}"))
        }
    }

    /// A program in a namespace.
    fn run(&self, netns: NetnsId, program: &str) -> Option<String> {
        let netns = self.namespaces.get(&netns)?;
        if netns.own {
            Some(program.to_owned())
        } else if let Some(name) = &netns.name {
            Some(format!("ip netns exec {} {program}", typed(name)?))
        } else {
            let path = typed(netns.path.as_ref()?)?;
            Some(format!("nsenter --net={path} {program}"))
        }
    }

    /// The command that gives a device another MTU.
    fn set_mtu(&self, device: &Device, mtu: u32) -> Option<String> {
        let arguments = format!("link set dev {} mtu {mtu}", dev(device));
        self.ip(device.id.netns, &arguments)
    }
}

/// A device's name in a command; iproute2 also takes `ifN`, for a name that cannot be typed.
fn dev(device: &Device) -> String {
    typed(&device.name).unwrap_or_else(|| format!("if{}", device.id.ifindex))
}

/// A word as a shell takes it, or nothing where it cannot be typed.
fn typed(word: &str) -> Option<String> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:/@%+-".contains(&byte);
    if !word.is_empty() && !word.starts_with('-') && word.bytes().all(plain) {
        return Some(word.to_owned());
    }
    // What the terminal shows escaped is not what would have to be typed.
    let visible = word
        .chars()
        .all(|c| (' '..='~').contains(&c) && c != '\'' && c != '\\');
    (visible && !word.is_empty() && !word.starts_with('-')).then(|| format!("'{word}'"))
}

/// The sizes above what passes, up to what is sent.
fn above(passes: u32, sent: u32) -> Option<RangeInclusive<u32>> {
    (sent > passes).then(|| passes + 1..=sent)
}

/// `1385–1460`, or one number.
fn sizes(range: &RangeInclusive<u32>) -> String {
    if range.start() == range.end() {
        range.start().to_string()
    } else {
        format!("{}–{}", range.start(), range.end())
    }
}

/// `a`, `a and b`, `a, b and 3 more`.
fn some_of(mut names: Vec<String>, most: usize) -> String {
    let more = names.len().saturating_sub(most);
    names.truncate(most);
    if more > 0 {
        return format!("{} and {more} more", names.join(", "));
    }
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
        None => String::new(),
    }
}

#[cfg(test)]
mod word_tests {
    use super::*;

    #[test]
    fn a_command_never_says_more_than_its_name() {
        assert_eq!(typed("lxc1@if2").as_deref(), Some("lxc1@if2"));
        assert_eq!(typed("$(reboot)").as_deref(), Some("'$(reboot)'"));
        for name in ["", "-n", "it's", "a\\b", "a\u{1b}[2J", "東"] {
            assert_eq!(typed(name), None, "{name}");
        }
    }

    #[test]
    fn lists_are_cut() {
        let names = |count: u8| (0..count).map(|number| format!("p{number}")).collect();
        assert_eq!(some_of(names(1), 3), "p0");
        assert_eq!(some_of(names(3), 3), "p0, p1 and p2");
        assert_eq!(some_of(names(5), 3), "p0, p1, p2 and 2 more");
    }
}
