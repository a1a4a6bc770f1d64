//! What a trace holds in memory for many flows, beyond the ring.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::Bench;
use crate::network::{SERVER, at_work};
use crate::table::Table;
use crate::tools::{Tool, cpu_ns};

/// Connection attempts, each a flow of its own: nobody listens, so each is a SYN, a RST and what the sockets say.
const FLOWS: u32 = 100_000;
/// Ports that the attempts go to, so that each has its source port to itself for a while.
const PORTS: u32 = 10;
const FIRST_PORT: u16 = 7_000;
/// Attempts between two looks at whether the tracer keeps up.
const STEP: u32 = 2_000;

pub fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    let filter = Tool::Tracer(&["host", "10.201.77.2"]);
    let Some(running) = filter.start(&bench.pair)? else {
        return Ok(());
    };
    let before = anonymous_kib(running.pid())?;
    for step in 0..FLOWS / STEP {
        at_work(|| bench.pair.client.run(|| refuse(step)).map_err(Into::into))?;
        // The tracer empties its ring every 10 ms.
        thread::sleep(Duration::from_millis(15));
    }
    let after = anonymous_kib(running.pid())?;
    let idle = cpu_ns(running.pid())?;
    thread::sleep(Duration::from_secs(1));
    let idle = cpu_ns(running.pid())?.saturating_sub(idle);
    let report = running.interrupt()?.report()?;
    let kept = report.flows.len();
    let grown = after.saturating_sub(before);
    table.plain(
        "memory beyond the ring, 100,000 attempts of a SYN and a RST",
        &format!(
            "{} MiB, of which {} MiB from the start; {kept} attempts kept, {} events did not fit into the table, {} into the ring",
            after / 1024,
            before / 1024,
            report.ledger.table_full,
            report.lost()?
        ),
    );
    table.plain(
        "… per attempt that was kept",
        &format!("{} bytes", grown * 1024 / u64::try_from(kept.max(1))?),
    );
    table.plain(
        "CPU of the tracer while nothing happens, with those attempts",
        &format!("{}.{:02} %", idle / 10_000_000, idle / 100_000 % 100),
    );
    Ok(())
}

/// Asks where nobody listens.
fn refuse(step: u32) {
    for number in 0..STEP {
        let port = FIRST_PORT + ((step * STEP + number) / (FLOWS / PORTS)) as u16;
        // That it is refused is what this is for.
        drop(TcpStream::connect(SocketAddr::new(SERVER, port)));
    }
}

/// Memory of a process that no file backs, which leaves out the ring and the program.
fn anonymous_kib(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|line| line.trim().split(' ').next());
    number
        .and_then(|number| number.parse().ok())
        .context("the kernel does not tell RssAnon")
}
