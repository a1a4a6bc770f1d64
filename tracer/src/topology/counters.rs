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
const WATCHED: [&str; 16] = [
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
];

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
}

/// The open files of one namespace. They stay in the namespace in which they were opened.
#[derive(Debug)]
struct Files {
    /// Pairs of lines: names, then values.
    paired: [File; 2],
    /// One counter a line; missing where IPv6 is not built in.
    listed: Option<File>,
}

impl Files {
    /// Opens them in the namespace of the calling thread.
    fn open() -> io::Result<Self> {
        let open = |name| File::open(format!("/proc/thread-self/net/{name}"));
        Ok(Self {
            paired: [open("snmp")?, open("netstat")?],
            listed: open("snmp6").ok(),
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
        self.ended.iter().cloned().chain(moved).collect()
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
            let optional = name.starts_with("Ip6"); // which may not be built in
            assert!(value.is_some() || optional, "{name}");
        }
    }
}
