//! Writes the record stream as JSON Lines, plain or compressed, so that what is on disk is readable at any moment:
//! a capture whose writer was killed holds everything up to its last flush.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use crate::record::Record;

/// A fast level: the node that is traced has enough to do.
const ZSTD_LEVEL: i32 = 1;

/// How a capture is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// `.jsonl`
    Plain,
    /// `.jsonl.zst`
    Zstd,
}

impl Encoding {
    /// The encoding that a file's name asks for, or `None` where it names no capture.
    pub fn of_path(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let named = |suffix| name.len() > str::len(suffix) && name.ends_with(suffix);
        if named(".jsonl") {
            Some(Self::Plain)
        } else if named(".jsonl.zst") {
            Some(Self::Zstd)
        } else {
            None
        }
    }
}

/// Appends records to a capture.
pub struct CaptureWriter<W: Write> {
    sink: Sink<W>,
}

enum Sink<W: Write> {
    Plain(BufWriter<W>),
    Zstd(zstd::Encoder<'static, W>),
}

impl<W: Write> CaptureWriter<W> {
    /// Writes to `inner`; nothing is written yet.
    pub fn new(inner: W, encoding: Encoding) -> io::Result<Self> {
        let sink = match encoding {
            Encoding::Plain => Sink::Plain(BufWriter::new(inner)),
            Encoding::Zstd => Sink::Zstd(zstd::Encoder::new(inner, ZSTD_LEVEL)?),
        };
        Ok(Self { sink })
    }

    /// Appends a record. It may stay in memory until [`flush`](Self::flush).
    pub fn push(&mut self, record: &Record) -> io::Result<()> {
        let sink: &mut dyn Write = match &mut self.sink {
            Sink::Plain(sink) => sink,
            Sink::Zstd(sink) => sink,
        };
        serde_json::to_writer(&mut *sink, record)?;
        sink.write_all(b"\n")
    }

    /// Makes everything so far readable in the file. To be called after each drain of the ring.
    pub fn flush(&mut self) -> io::Result<()> {
        match &mut self.sink {
            Sink::Plain(sink) => sink.flush(),
            Sink::Zstd(sink) => sink.flush(),
        }
    }

    /// Ends the capture properly.
    pub fn finish(self) -> io::Result<()> {
        match self.sink {
            Sink::Plain(mut sink) => sink.flush(),
            Sink::Zstd(sink) => sink.finish()?.flush(),
        }
    }
}

impl<W: Write> fmt::Debug for CaptureWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureWriter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Encoding;

    #[test]
    fn the_name_chooses_the_encoding() {
        let of = |name| Encoding::of_path(Path::new(name));
        assert_eq!(of("a.jsonl"), Some(Encoding::Plain));
        assert_eq!(of("/tmp/a.b.jsonl.zst"), Some(Encoding::Zstd));
        for other in [
            "a.json",
            "a.zst",
            "a.jsonl.gz",
            ".jsonl",
            "/tmp/.jsonl.zst",
            "/",
            "a.jsonl/..",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }
}
