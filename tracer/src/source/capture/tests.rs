//! What is written is read back, whatever happens to the file in between.

use std::io::{Cursor, Write};

use proptest::prelude::*;

use super::strategies::{header, record};
use super::{CaptureError, LINE_BYTES_MAX, Unread, read};
use crate::export::capture::{CaptureWriter, Encoding};
use crate::record::{ClockPair, Header, HookState, Record, StoppedBy, Trailer, View};

fn small_header() -> Header {
    Header {
        schema: crate::record::CAPTURE_SCHEMA.to_owned(),
        tracer_version: "0.1.0".to_owned(),
        command: vec!["trace".to_owned()],
        hostname: "node".to_owned(),
        machine_id: String::new(),
        boot_id: String::new(),
        kernel: String::new(),
        arch: String::new(),
        filter: String::new(),
        view: View::Kernel,
        hooks: vec![crate::record::Hook {
            name: "kfree_skb".to_owned(),
            kind: "tp_btf".to_owned(),
            state: HookState::Attached,
            reason: None,
        }],
        blind_spots: Vec::new(),
        tc_devices: Vec::new(),
        start_ns: 1,
    }
}

fn clock(monotonic_ns: u64) -> Record {
    Record::Clock(ClockPair {
        monotonic_ns,
        realtime_ns: 7,
    })
}

fn trailer() -> Record {
    Record::Trailer(Trailer {
        end_ns: 9,
        stopped_by: StoppedBy::Duration,
    })
}

/// A finished capture.
fn written(encoding: Encoding, records: &[Record]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut writer = CaptureWriter::new(&mut file, encoding).expect("memory takes everything");
    for record in records {
        writer.push(record).expect("memory takes everything");
    }
    writer.finish().expect("memory takes everything");
    file
}

fn records(file: Vec<u8>) -> Result<(Header, Vec<Record>, Unread), CaptureError> {
    let (header, mut reader) = read(Cursor::new(file))?;
    let records = reader.by_ref().collect::<Result<_, _>>()?;
    Ok((header, records, reader.unread()))
}

/// The header's line, then these.
fn file_of(lines: &[&[u8]]) -> Vec<u8> {
    let mut file = written(Encoding::Plain, &[Record::Header(Box::new(small_header()))]);
    for line in lines {
        file.extend_from_slice(line);
    }
    file
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_record_is_read_back(header in header(), body in proptest::collection::vec(record(), 0..8), zstd: bool) {
        let encoding = if zstd { Encoding::Zstd } else { Encoding::Plain };
        let mut all = vec![Record::Header(Box::new(header.clone()))];
        all.extend(body.iter().cloned());
        let (read_header, read_body, unread) = records(written(encoding, &all)).expect("our own capture");
        prop_assert_eq!(read_header, header);
        prop_assert_eq!(read_body, body);
        prop_assert_eq!(unread, Unread::default());
    }

    #[test]
    fn any_bytes_are_an_error_or_counted(bytes in proptest::collection::vec(any::<u8>(), 0..4_000), prefix in 0..3) {
        let file = match prefix {
            0 => bytes.clone(),
            1 => file_of(&[&bytes]),
            _ => [&[0x28, 0xb5, 0x2f, 0xfd][..], &bytes].concat(),
        };
        if let Ok((_, records, unread)) = records(file) {
            prop_assert!(!records.is_empty() || unread.undecodable > 0 || unread.cut || bytes.iter().all(|byte| *byte == b'\n'));
        }
    }

    #[test]
    fn a_flipped_byte_costs_lines_and_nothing_else(at in any::<prop::sample::Index>(), value: u8, zstd: bool) {
        let encoding = if zstd { Encoding::Zstd } else { Encoding::Plain };
        let mut all = vec![Record::Header(Box::new(small_header()))];
        all.extend((0..50).map(clock));
        let mut file = written(encoding, &all);
        let at = at.index(file.len());
        file[at] = value;
        if let Ok((_, records, _)) = records(file) {
            prop_assert!(records.len() <= 51);
        }
    }
}

#[test]
fn a_killed_writer_leaves_what_it_flushed() {
    for encoding in [Encoding::Plain, Encoding::Zstd] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("capture");
        let file = std::fs::File::create(&path).expect("it can be written");
        let mut writer = CaptureWriter::new(file, encoding).expect("a new capture");
        writer
            .push(&Record::Header(Box::new(small_header())))
            .expect("it can be written");
        for monotonic_ns in 0..100 {
            writer
                .push(&clock(monotonic_ns))
                .expect("it can be written");
        }
        writer.flush().expect("it can be written");
        writer.push(&clock(100)).expect("it can be written");
        // Never dropped, as in a process that was killed.
        std::mem::forget(writer);

        let (_, mut reader) = super::open(&path).expect("a capture");
        let records: Vec<Record> = reader.by_ref().collect::<Result<_, _>>().expect("readable");
        assert_eq!(
            records,
            (0..100).map(clock).collect::<Vec<_>>(),
            "{encoding:?}"
        );
        let unread = reader.unread();
        assert_eq!((unread.undecodable, unread.unknown), (0, 0), "{encoding:?}");
    }
}

#[test]
fn every_cut_of_a_capture_is_read_up_to_the_cut() {
    let mut all = vec![Record::Header(Box::new(small_header()))];
    all.extend((0..20).map(clock));
    all.push(trailer());
    let file = written(Encoding::Plain, &all);
    let header_end = file.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
    for cut in header_end..file.len() {
        let whole_lines = file[header_end..cut].split(|byte| *byte == b'\n').count() - 1;
        let (_, records, unread) = records(file[..cut].to_vec()).expect("a capture");
        assert_eq!(records, all[1..=whole_lines], "cut at {cut}");
        let partial = file[cut - 1] != b'\n';
        assert_eq!(
            unread,
            Unread {
                cut: partial,
                ..Unread::default()
            },
            "cut at {cut}"
        );
    }
}

#[test]
fn what_only_a_newer_tracer_knows_is_skipped_and_counted() {
    let (_, records, unread) = records(file_of(&[
        b"{\"type\":\"weather\",\"sunny\":true}\n",
        b"{\"type\":\"fact\",\"fact\":\"weather\"}\n",
        b"{\"type\":\"event\",\"time_ns\":1,\"cpu\":0,\"sequence\":1,\"kind\":\"levitate\"}\n",
        b"{\"type\":\"clock\",\"monotonic_ns\":1,\"realtime_ns\":7,\"drift_ppm\":3}\n",
    ]))
    .expect("a capture");
    assert_eq!(records, [clock(1)]);
    assert_eq!(
        unread,
        Unread {
            unknown: 3,
            ..Unread::default()
        }
    );
}

#[test]
fn broken_and_endless_lines_are_skipped_and_counted() {
    let endless = vec![b'['; usize::try_from(3 * LINE_BYTES_MAX).expect("it fits")];
    let good = b"{\"type\":\"clock\",\"monotonic_ns\":1,\"realtime_ns\":7}\n";
    let (_, records, unread) = records(file_of(&[
        b"{\"type\":\"clock\"}\n",
        b"{\"type\":\"clock\",\"monotonic_ns\":-1,\"realtime_ns\":7}\n",
        b"\xff\xfe\n",
        b"\n",
        &endless,
        b"\n",
        good,
        &[b'['; 10_000],
        b"\n",
        good,
    ]))
    .expect("a capture");
    assert_eq!(records, [clock(1), clock(1)]);
    assert_eq!(
        unread,
        Unread {
            undecodable: 6,
            ..Unread::default()
        }
    );
}

#[test]
fn what_is_no_capture_is_refused_with_a_reason() {
    let refused = |file: &[u8]| records(file.to_vec()).expect_err("no capture").to_string();
    assert_eq!(refused(b""), "the file is empty");
    let no_header = "not a capture: line 1 is no header of schema tracer.capture/1";
    assert_eq!(refused(b"\x7fELF"), no_header);
    assert_eq!(
        refused(b"{\"type\":\"clock\",\"monotonic_ns\":1,\"realtime_ns\":7}\n"),
        no_header
    );
    assert_eq!(refused(b"{\"schema\":\"tracer.capture/1\"}\n"), no_header);
    assert_eq!(
        refused(b"{\"type\":\"header\",\"schema\":\"tracer.capture/2\\u001b[2J\"}\n"),
        "line 1: its schema is `tracer.capture/2\\u{1b}[2J`, and this tracer reads tracer.capture/1"
    );
    let missing = super::open(std::path::Path::new("/nonexistent/capture.jsonl")).err();
    assert!(matches!(missing, Some(CaptureError::Open(_))));
}

#[test]
fn a_full_disk_is_an_error() {
    let full = std::fs::File::options()
        .write(true)
        .open("/dev/full")
        .expect("every Linux has it");
    let mut writer = CaptureWriter::new(full, Encoding::Plain).expect("nothing is written yet");
    writer.push(&trailer()).expect("it is still in memory");
    assert_eq!(
        writer.flush().map_err(|error| error.kind()),
        Err(std::io::ErrorKind::StorageFull)
    );
}

#[test]
fn a_small_file_cannot_ask_for_much_memory() {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("an encoder");
    encoder.window_log(27).expect("a valid window");
    encoder
        .write_all(&file_of(&[]))
        .expect("memory takes everything");
    let file = encoder.finish().expect("memory takes everything");
    assert!(matches!(
        records(file),
        Err(CaptureError::Io { line: 1, .. })
    ));
}
