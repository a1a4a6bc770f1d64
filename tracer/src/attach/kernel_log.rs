//! Shows on stderr what the kernel half logs; only in builds with the feature `aya-log`, for work on the hooks.

use std::io::{self, Write as _};

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};

/// Messages that wait in their own ring until they are flushed.
pub(super) type KernelLog = EbpfLogger<ToStderr>;

/// Opens the log of programs that are loaded already.
pub(super) fn open(ebpf: &mut Ebpf) -> io::Result<KernelLog> {
    EbpfLogger::init_with_logger(ebpf, ToStderr).map_err(io::Error::other)
}

/// Writes every message as a line.
#[derive(Debug)]
pub(super) struct ToStderr;

impl Log for ToStderr {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // A message that nobody can read is lost without harm.
        let _ = writeln!(
            io::stderr(),
            "kernel half: {}: {}",
            record.level(),
            record.args()
        );
    }

    fn flush(&self) {}
}
