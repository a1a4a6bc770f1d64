//! How many events one CPU turns into flows: those of a live trace, and ready-made ones through the library alone.

use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytes::Bytes;
use tracer::analysis::Analysis;
use tracer::event::{Event, NetnsId, Skb, SkbId, What};
use tracer::record::{CAPTURE_SCHEMA, Header, Record, StoppedBy, Trailer, View};
use tracer::report;

use crate::Bench;
use crate::network::at_work;
use crate::statistics::Estimate;
use crate::table::Table;
use crate::tools::{Tool, cpu_ns};

/// Ready-made connections.
const CONNECTIONS: u32 = 20_000;
/// How long live connections are made in each round.
const LIVE: Duration = Duration::from_millis(500);
/// Listeners that take turns, so that no address pair comes back while the last connection of it is remembered.
const LISTENERS: u16 = 32;
/// Longer than it takes to empty the ring.
const SETTLE: Duration = Duration::from_millis(50);

pub fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    ready_made(bench.rounds, table)?;
    live(bench, table)
}

/// Decoding, filing and judging, without a kernel.
#[expect(clippy::cast_precision_loss, reason = "some hundred thousand events")]
fn ready_made(rounds: usize, table: &mut Table) -> Result<()> {
    let records: Vec<Record> = (0..CONNECTIONS).flat_map(connection).collect();
    let events = records.len() as f64;
    let (mut filed, mut judged, mut told) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (filing, judging, telling) = at_work(|| {
            let mut analysis = Analysis::new(header());
            let begin = Instant::now();
            for record in &records {
                analysis.push(record);
            }
            let filing = begin.elapsed();
            let end_ns = u64::from(CONNECTIONS) * 1_000_000;
            let begin = Instant::now();
            let fault = report::has_final_fault(&analysis, end_ns);
            let judging = begin.elapsed();
            ensure!(!fault, "a connection that works was judged to be broken");
            analysis.push(&Record::Trailer(Trailer {
                end_ns,
                stopped_by: StoppedBy::Duration,
            }));
            let begin = Instant::now();
            black_box(report::build(&analysis));
            Ok((filing, judging, begin.elapsed()))
        })?;
        filed.push(events / filing.as_secs_f64() / 1e6);
        judged.push(f64::from(CONNECTIONS) / judging.as_secs_f64() / 1e3);
        told.push(f64::from(CONNECTIONS) / telling.as_secs_f64() / 1e3);
    }
    table.row(
        "events decoded and filed by flow, one CPU, no kernel",
        Estimate::median(&filed),
        "M/s",
        None,
    );
    table.row(
        "connections judged, as `--until-verdict` does, one CPU",
        Estimate::median(&judged),
        "k/s",
        None,
    );
    table.row(
        "connections judged and told, one CPU",
        Estimate::median(&told),
        "k/s",
        None,
    );
    Ok(())
}

/// The same for whole connections on the wire, ring and clock ticks included.
#[expect(clippy::cast_precision_loss, reason = "some hundred thousand events")]
fn live(bench: &Bench, table: &mut Table) -> Result<()> {
    let listeners = (0..LISTENERS)
        .map(|index| bench.pair.listen(8_000 + index))
        .collect::<Result<Vec<_>>>()?;
    let mut rates = Vec::new();
    let (mut total, mut lost_events) = (0, 0);
    for _ in 0..bench.rounds {
        let Some(running) = Tool::Tracer(&["host", "10.201.77.2"]).start(&bench.pair)? else {
            continue;
        };
        let before = cpu_ns(running.pid())?;
        at_work(|| connections(bench, &listeners))?;
        thread::sleep(SETTLE);
        let spent = cpu_ns(running.pid())?.saturating_sub(before);
        let report = running.interrupt()?.report()?;
        lost_events += report.lost()?;
        let events = report.ledger.delivered;
        total += events;
        rates.push(events as f64 / spent as f64 * 1e3);
    }
    table.row(
        "events of live connections, per second of the tracer's CPU",
        Estimate::median(&rates),
        "M/s",
        None,
    );
    table.note(format!(
        "The live connections made {total} events, all of which were delivered; {lost_events} more did not fit into the ring."
    ));
    Ok(())
}

/// Opens, uses and closes connections, all on one thread.
fn connections(bench: &Bench, listeners: &[TcpListener]) -> Result<()> {
    let begin = Instant::now();
    bench.pair.client.run(|| {
        for listener in listeners.iter().cycle() {
            if begin.elapsed() > LIVE {
                break;
            }
            let mut client = TcpStream::connect(listener.local_addr()?)?;
            let (mut server, _) = listener.accept()?;
            client.write_all(b"?")?;
            server.read_exact(&mut [0])?;
        }
        Ok(())
    })?
}

/// The packets of one connection as two devices see them.
fn connection(number: u32) -> Vec<Record> {
    const SYN: u8 = 0x02;
    const ACK: u8 = 0x10;
    let (isn, answer) = (number.wrapping_mul(2_654_435_761), !number);
    let (next, answer_next) = (isn.wrapping_add(1), answer.wrapping_add(1));
    let packets = [
        (true, SYN, isn, 0),
        (false, SYN | ACK, answer, next),
        (true, ACK, next, answer_next),
        (true, ACK, next, answer_next),
        (false, ACK, answer_next, next),
    ];
    let mut time_ns = u64::from(number) * 1_000_000;
    let mut records = Vec::new();
    for (index, (from_client, flags, seq, ack)) in (0u64..).zip(packets) {
        let headers = segment(number, from_client, flags, seq, ack);
        for (netns, ethernet) in [(from_client, true), (!from_client, false)] {
            time_ns += 1_000;
            let skb = Skb {
                id: SkbId(index),
                len_bytes: if ethernet { 66 } else { 52 },
                mark: 0,
                protocol: 0x0800,
                vlan_tci: 0,
                gso_size: 0,
                pkt_type: 0,
                budget_spent: false,
                ethernet,
                headers: headers.slice(if ethernet { 0.. } else { 14.. }),
                sealed: Bytes::new(),
            };
            records.push(Record::Event(Box::new(Event {
                time_ns,
                cpu: 0,
                sequence: number.wrapping_mul(16).wrapping_add(records.len() as u32),
                netns: Some(NetnsId {
                    inum: 4_026_532_000 + u32::from(netns),
                    cookie: 1,
                }),
                ifindex: Some(2),
                what: if ethernet {
                    What::Xmit { skb }
                } else {
                    What::Receive { skb }
                },
            })));
        }
    }
    records
}

/// An Ethernet frame with IPv4 and TCP, with the timestamps that Linux sends.
fn segment(number: u32, from_client: bool, flags: u8, seq: u32, ack: u32) -> Bytes {
    let mut frame = vec![0; 12];
    frame.extend_from_slice(&[0x08, 0x00]);
    frame.extend_from_slice(&[0x45, 0, 0, 52, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    let client = (
        [10, 0, (number >> 8) as u8, number as u8],
        40_000 + (number >> 16) as u16,
    );
    let server = ([10, 1, 0, 1], 6379u16);
    let (from, to) = if from_client {
        (client, server)
    } else {
        (server, client)
    };
    frame.extend_from_slice(&from.0);
    frame.extend_from_slice(&to.0);
    frame.extend_from_slice(&from.1.to_be_bytes());
    frame.extend_from_slice(&to.1.to_be_bytes());
    frame.extend_from_slice(&seq.to_be_bytes());
    frame.extend_from_slice(&ack.to_be_bytes());
    frame.extend_from_slice(&[0x80, flags, 0xff, 0xff, 0, 0, 0, 0]);
    frame.extend_from_slice(&[1, 1, 8, 10]);
    frame.extend_from_slice(&seq.to_be_bytes());
    frame.extend_from_slice(&ack.to_be_bytes());
    frame.into()
}

fn header() -> Header {
    Header {
        schema: CAPTURE_SCHEMA.to_owned(),
        tracer_version: String::new(),
        command: Vec::new(),
        hostname: String::new(),
        machine_id: String::new(),
        boot_id: String::new(),
        kernel: String::new(),
        arch: String::new(),
        filter: String::new(),
        view: View::Kernel,
        hooks: Vec::new(),
        blind_spots: Vec::new(),
        tc_devices: Vec::new(),
        start_ns: 0,
    }
}
