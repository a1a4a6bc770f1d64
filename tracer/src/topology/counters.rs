//! The protocol counters of the watched namespaces, before and after: some failures leave no other trace (a full
//! accept queue drops a SYN without an event, a SYN-ACK without a route dies before it is a packet).
//!
//! The files are opened inside each namespace while that is allowed, and read again without privilege.

use std::{
    fs::File,
    io,
    os::{fd::AsFd as _, unix::fs::FileExt as _},
};

use crate::{
    event::NetnsId,
    record::{BlindSpot, Fact, View},
};

use super::{Topology, netns};

/// The counters that a verdict can use, as `nstat` names them.
const WATCHED: [&str; 20] = [
    "Ip6InAddrErrors",
    "Ip6InNoRoutes",
    "Ip6OutNoRoutes",
    "IpExtInNoRoutes",
    "IpInAddrErrors",
    "IpOutNoRoutes",
    "TcpExtIPReversePathFilter",
    "TcpExtListenDrops",
    "TcpExtListenOverflows",
    "TcpExtPAWSActive",
    "TcpExtPAWSEstab",
    "TcpExtSyncookiesFailed",
    "TcpExtTCPBacklogDrop",
    "TcpExtTCPReqQFullDoCookies",
    "TcpExtTCPReqQFullDrop",
    "TcpExtTCPTimeWaitOverflow",
    "conntrack_drop",
    "conntrack_early_drop",
    "conntrack_insert_failed",
    "conntrack_invalid",
];

/// What a CPU dropped because its queue of received packets was full, of the whole kernel.
const SOFTNET: &str = "softnet_dropped";

/// What is read of one namespace; `None` for a counter that this kernel lacks.
type Values = [Option<u64>; WATCHED.len()];

/// The longest file is about 8 KiB; what lies beyond this is not read.
const FILE_BYTES_MAX: usize = 64 * 1024;

/// The counters of some namespaces.
#[derive(Debug)]
pub struct Counters {
    namespaces: Vec<(NetnsId, Files, Values)>,
    /// What moved in namespaces that have ended meanwhile.
    ended: Vec<Fact>,
    unreadable: usize,
    /// Our own namespace, for what is the whole kernel's.
    own: NetnsId,
    /// `/proc/net/softnet_stat`, and what it said when the trace began.
    softnet: Option<(File, u64)>,
}

/// The open files of one namespace. They stay in the namespace in which they were opened.
#[derive(Debug)]
struct Files {
    /// Pairs of lines: names, then values.
    paired: [File; 2],
    /// One counter a line; missing where IPv6 is not built in.
    listed: Option<File>,
    /// A line of names, and one of values for each CPU; missing where conntrack is not there, or shows nothing in /proc.
    conntrack: Option<File>,
}

impl Files {
    /// Opens them in the namespace of the calling thread.
    fn open() -> io::Result<Self> {
        let open = |name| File::open(format!("/proc/thread-self/net/{name}"));
        Ok(Self {
            paired: [open("snmp")?, open("netstat")?],
            listed: open("snmp6").ok(),
            conntrack: open("stat/nf_conntrack").ok(),
        })
    }

    fn read(&self) -> io::Result<Values> {
        let mut values = Values::default();
        let mut note = |name: &str, value: u64| {
            if let Ok(index) = WATCHED.binary_search(&name) {
                values[index] = Some(value);
            }
        };
        for file in &self.paired {
            parse_paired(&read(file)?, &mut note);
        }
        if let Some(file) = &self.listed {
            parse_listed(&read(file)?, &mut note);
        }
        if let Some(file) = &self.conntrack {
            parse_per_cpu(&read(file)?, "conntrack_", &mut note);
        }
        Ok(values)
    }
}

impl Counters {
    /// Opens the files of every watched namespace.
    pub fn open(topology: &Topology, view: &View) -> Self {
        let watched: Vec<_> = topology
            .namespaces
            .iter()
            .filter(|netns| view.contains(netns.id))
            .collect();
        let opened = netns::in_each(&watched, |netns| netns.handle.as_fd(), |_| Files::open());
        let namespaces: Vec<_> = watched
            .iter()
            .zip(opened)
            .filter_map(|(netns, files)| Some((netns.id, files.ok()?.ok()?, Values::default())))
            .collect();
        Self {
            unreadable: watched.len() - namespaces.len(),
            namespaces,
            ended: Vec::new(),
            own: topology.own(),
            softnet: File::open("/proc/net/softnet_stat")
                .ok()
                .map(|file| (file, 0)),
        }
    }

    /// Reads the counters as the trace begins.
    pub fn begin(&mut self) {
        let before = self.namespaces.len();
        self.namespaces.retain_mut(|(_, files, values)| {
            let read = files.read();
            read.map(|now| *values = now).is_ok()
        });
        self.unreadable += before - self.namespaces.len();
        if let Some((file, before)) = &mut self.softnet {
            *before = read(file).map_or(0, |text| softnet_dropped(&text));
        }
    }

    /// Reads the counters of namespaces that the topology has let go for the last time, and lets go of them too: an open
    /// file keeps its namespace alive.
    pub fn follow(&mut self, topology: &Topology) {
        let ended = self
            .namespaces
            .extract_if(.., |(netns, ..)| !topology.known.contains(netns));
        for (netns, files, before) in ended {
            self.ended.extend(moved(netns, &before, &files));
        }
    }

    /// Reads the counters as the trace ends, and tells those that moved since [`Counters::begin`].
    pub fn finish(&self) -> Vec<Fact> {
        let open = self.namespaces.iter();
        let moved = open.flat_map(|(netns, files, before)| moved(*netns, before, files));
        let softnet = self.softnet.as_ref().and_then(|(file, before)| {
            let after = softnet_dropped(&read(file).ok()?);
            (*before < after).then(|| Fact::Counter {
                netns: self.own,
                name: SOFTNET.to_owned(),
                before: *before,
                after,
            })
        });
        self.ended
            .iter()
            .cloned()
            .chain(moved)
            .chain(softnet)
            .collect()
    }

    /// Says where the counters are not known.
    pub fn blind_spot(&self) -> Option<BlindSpot> {
        let unreadable = self.unreadable;
        (unreadable > 0).then(|| BlindSpot {
            code: "counters_unreadable".to_owned(),
            summary: format!(
                "the protocol counters of {unreadable} network namespaces cannot be read"
            ),
        })
    }
}

/// Reads the counters of a namespace, and tells those that moved.
fn moved(netns: NetnsId, before: &Values, files: &Files) -> Vec<Fact> {
    let after = files.read();
    after.map_or_else(|_| Vec::new(), |after| differences(netns, before, &after))
}

fn differences(netns: NetnsId, before: &Values, after: &Values) -> Vec<Fact> {
    WATCHED
        .iter()
        .zip(before.iter().zip(after))
        .filter_map(|(name, (before, after))| {
            let (before, after) = ((*before)?, (*after)?);
            (before < after).then(|| Fact::Counter {
                netns,
                name: (*name).to_owned(),
                before,
                after,
            })
        })
        .collect()
}

/// The whole file, from its start: procfs makes it anew for a read at offset 0.
fn read(file: &File) -> io::Result<String> {
    let mut text = vec![0; FILE_BYTES_MAX];
    let mut length = 0;
    while length < text.len() {
        match file.read_at(&mut text[length..], length as u64) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    text.truncate(length);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// `/proc/net/{snmp,netstat}` (`snmp_seq_show()`, `netstat_seq_show()` in net/ipv4/proc.c): a line of names and a line
/// of values, both behind the same prefix.
fn parse_paired(text: &str, note: &mut impl FnMut(&str, u64)) {
    let mut lines = text.lines();
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (Some((prefix, names)), Some((_, values))) =
            (names.split_once(':'), values.split_once(':'))
        else {
            continue;
        };
        for (name, value) in names.split_whitespace().zip(values.split_whitespace()) {
            if let Ok(value) = value.parse() {
                note(&format!("{prefix}{name}"), value);
            }
        }
    }
}

/// `/proc/net/snmp6` (`snmp6_seq_show()` in net/ipv6/proc.c): a name and a value on each line.
fn parse_listed(text: &str, note: &mut impl FnMut(&str, u64)) {
    for line in text.lines() {
        if let Some((name, value)) = line.split_once(char::is_whitespace)
            && let Ok(value) = value.trim().parse()
        {
            note(name, value);
        }
    }
}

/// `/proc/net/stat/nf_conntrack` (`ct_cpu_seq_show()` in net/netfilter/nf_conntrack_standalone.c): a line of names, and a
/// line of hexadecimal values for each CPU.
fn parse_per_cpu(text: &str, prefix: &str, note: &mut impl FnMut(&str, u64)) {
    let mut lines = text.lines();
    let names: Vec<&str> = lines
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .collect();
    let mut sums = vec![0_u64; names.len()];
    for line in lines {
        for (sum, value) in sums.iter_mut().zip(line.split_whitespace()) {
            *sum = sum.saturating_add(u64::from_str_radix(value, 16).unwrap_or(0));
        }
    }
    for (name, sum) in names.iter().zip(sums) {
        note(&format!("{prefix}{name}"), sum);
    }
}

/// The second column of `/proc/net/softnet_stat` (`softnet_seq_show()` in net/core/net-procfs.c), of all CPUs together.
fn softnet_dropped(text: &str) -> u64 {
    let column = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    text.lines().filter_map(column).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(parse: impl Fn(&str, &mut dyn FnMut(&str, u64)), text: &str) -> Vec<(String, u64)> {
        let mut found = Vec::new();
        parse(text, &mut |name, value| {
            found.push((name.to_owned(), value));
        });
        found
    }

    #[test]
    fn the_names_are_sorted_for_the_search() {
        assert!(WATCHED.is_sorted());
    }

    #[test]
    fn paired_lines_are_read_under_their_prefix() {
        let text = "Tcp: MaxConn OutRsts\nTcp: -1 7\nTcpExt: ListenDrops Later\nTcpExt: 18446744073709551615\n";
        assert_eq!(
            collect(|text, mut note| parse_paired(text, &mut note), text),
            [
                ("TcpOutRsts".to_owned(), 7),
                ("TcpExtListenDrops".to_owned(), u64::MAX),
            ]
        );
    }

    #[test]
    fn listed_lines_are_read() {
        let text =
            "Ip6InReceives                   \t1\nIp6OutNoRoutes                  \t23\nbroken\n";
        assert_eq!(
            collect(|text, mut note| parse_listed(text, &mut note), text),
            [
                ("Ip6InReceives".to_owned(), 1),
                ("Ip6OutNoRoutes".to_owned(), 23),
            ]
        );
    }

    #[test]
    fn values_of_all_cpus_are_added() {
        let text = "entries  clashres drop early_drop\n00000001  00000000 0000000a 00000000\n00000001  00000000 00000006 00000000\n";
        let parse = |text: &str, mut note: &mut dyn FnMut(&str, u64)| {
            parse_per_cpu(text, "conntrack_", &mut note);
        };
        assert_eq!(
            collect(parse, text),
            [
                ("conntrack_entries".to_owned(), 2),
                ("conntrack_clashres".to_owned(), 0),
                ("conntrack_drop".to_owned(), 16),
                ("conntrack_early_drop".to_owned(), 0),
            ]
        );
        let softnet = "0076c4e3 00000002 00000000\n0076c4e3 0000000a 00000000\nbroken\n";
        assert_eq!(softnet_dropped(softnet), 12);
    }

    #[test]
    fn only_what_moved_is_told() {
        let netns = NetnsId { inum: 1, cookie: 2 };
        let mut before = Values::default();
        let mut after = Values::default();
        (before[1], after[1]) = (Some(4), Some(4));
        (before[8], after[8]) = (Some(4), Some(6));
        after[9] = Some(1);
        assert_eq!(
            differences(netns, &before, &after),
            [Fact::Counter {
                netns,
                name: "TcpExtListenOverflows".to_owned(),
                before: 4,
                after: 6,
            }]
        );
    }

    #[test]
    fn the_running_kernel_has_these_counters() {
        let topology = Topology::open().unwrap();
        let own = topology.own();
        let mut counters = Counters::open(&topology, &View::Netns { netns: vec![own] });
        counters.begin();
        assert_eq!(counters.blind_spot(), None);
        let (netns, _, values) = &counters.namespaces[0];
        assert_eq!(*netns, own);
        for (name, value) in WATCHED.iter().zip(values) {
            // Which may not be built in.
            let optional = name.starts_with("Ip6") || name.starts_with("conntrack");
            assert!(value.is_some() || optional, "{name}");
        }
    }
}
