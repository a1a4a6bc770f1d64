//! Reads a capture, one record at a time, from a file that nobody vouches for: lines are bounded, nothing is kept,
//! and what cannot be read is counted and skipped.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use thiserror::Error;

use crate::escape::Escaped;
use crate::record::{CAPTURE_SCHEMA, Header, Record};

/// The longest line that is read. The header is the longest record, and stays far below it.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// The most memory that a compressed capture may ask for, as a power of two; the writer's level needs 2^19.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// How a zstd frame begins, RFC 8878 section 3.1.1.
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Why a capture cannot be read.
#[derive(Debug, Error)]
pub enum CaptureError {
    /// There is no such file, or it may not be read.
    #[error("cannot be opened")]
    Open(#[source] io::Error),
    /// The file cannot be read any further.
    #[error("line {line} cannot be read")]
    Io {
        /// The line that was being read, from 1.
        line: u64,
        /// What the system said.
        source: io::Error,
    },
    /// There is nothing in it.
    #[error("the file is empty")]
    Empty,
    /// Its first line is no header.
    #[error("not a capture: line 1 is no header of schema {CAPTURE_SCHEMA}")]
    NoHeader,
    /// It is of a format that this version does not know.
    #[error(
        "line 1: its schema is `{}`, and this tracer reads {CAPTURE_SCHEMA}",
        Escaped(schema)
    )]
    Schema {
        /// The schema that it names.
        schema: String,
    },
}

/// The records after the header. It ends at the end of the file, or where a compressed file can be read no further.
pub struct CaptureReader<R> {
    input: R,
    line: u64,
    buffer: Vec<u8>,
    counts: Unread,
    ended: bool,
}

/// What was in a capture and did not become a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unread {
    /// Lines that are broken or too long.
    pub undecodable: u64,
    /// Records of a kind that only a newer tracer knows.
    pub unknown: u64,
    /// It ends in the middle of something, which is what a killed writer leaves.
    pub cut: bool,
}

/// Opens a capture, compressed or not, and reads its header.
pub fn open(path: &Path) -> Result<(Header, CaptureReader<Box<dyn BufRead>>), CaptureError> {
    let file = File::open(path).map_err(CaptureError::Open)?;
    read(BufReader::new(file))
}

/// Reads the header of a capture, compressed or not.
pub fn read<R: BufRead + 'static>(
    mut input: R,
) -> Result<(Header, CaptureReader<Box<dyn BufRead>>), CaptureError> {
    let failed = |source| CaptureError::Io { line: 1, source };
    let compressed = input.fill_buf().map_err(failed)?.starts_with(&ZSTD_MAGIC);
    let input: Box<dyn BufRead> = if compressed {
        let mut decoder = zstd::Decoder::with_buffer(input).map_err(failed)?;
        decoder
            .window_log_max(ZSTD_WINDOW_LOG_MAX)
            .map_err(failed)?;
        Box::new(BufReader::new(decoder))
    } else {
        Box::new(input)
    };
    let mut reader = CaptureReader {
        input,
        line: 0,
        buffer: Vec::new(),
        counts: Unread::default(),
        ended: false,
    };
    let header = reader.header()?;
    Ok((header, reader))
}

enum Line {
    Complete,
    TooLong,
    /// Half a line at the end of the file.
    Cut,
    End,
}

impl<R: BufRead> CaptureReader<R> {
    /// What was skipped so far.
    pub fn unread(&self) -> Unread {
        self.counts
    }

    fn header(&mut self) -> Result<Header, CaptureError> {
        #[derive(serde::Deserialize)]
        struct SchemaOnly {
            schema: String,
        }

        match self
            .next_line()
            .map_err(|source| CaptureError::Io { line: 1, source })?
        {
            Line::End => return Err(CaptureError::Empty),
            Line::TooLong | Line::Cut => return Err(CaptureError::NoHeader),
            Line::Complete => {}
        }
        match serde_json::from_slice::<SchemaOnly>(&self.buffer) {
            Ok(SchemaOnly { schema }) if schema != CAPTURE_SCHEMA => {
                return Err(CaptureError::Schema { schema });
            }
            _ => {}
        }
        match serde_json::from_slice(&self.buffer) {
            Ok(Record::Header(header)) => Ok(*header),
            _ => Err(CaptureError::NoHeader),
        }
    }

    /// Reads a line into the buffer, without keeping more of it than is allowed.
    fn next_line(&mut self) -> io::Result<Line> {
        self.line += 1;
        self.buffer.clear();
        (&mut self.input)
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut self.buffer)?;
        if self.buffer.ends_with(b"\n") {
            return Ok(Line::Complete);
        }
        if self.buffer.is_empty() {
            return Ok(Line::End);
        }
        if (self.buffer.len() as u64) < LINE_BYTES_MAX {
            return Ok(Line::Cut);
        }
        self.input.skip_until(b'\n')?;
        Ok(Line::TooLong)
    }
}

impl<R: BufRead> Iterator for CaptureReader<R> {
    type Item = Result<Record, CaptureError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            match self.next_line() {
                Ok(Line::End) => self.ended = true,
                Ok(Line::Cut) => self.counts.cut = true,
                Ok(Line::TooLong) => self.counts.undecodable += 1,
                Ok(Line::Complete) => match serde_json::from_slice(&self.buffer) {
                    Ok(record) => return Some(Ok(record)),
                    // The only sign of something newer that serde gives: the tag names no variant of ours.
                    Err(error) if error.to_string().starts_with("unknown variant") => {
                        self.counts.unknown += 1;
                    }
                    Err(_) => self.counts.undecodable += 1,
                },
                // A compressed file that ends in the middle of a frame, or is damaged: what came before it stands.
                Err(error) if is_damage(&error) => {
                    if is_cut(&error) {
                        self.counts.cut = true;
                    } else {
                        self.counts.undecodable += 1;
                    }
                    self.ended = true;
                }
                Err(source) => {
                    self.ended = true;
                    return Some(Err(CaptureError::Io {
                        line: self.line,
                        source,
                    }));
                }
            }
        }
        None
    }
}

fn is_cut(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
}

/// Whether the content is at fault: zstd reports damage without a system error number.
fn is_damage(error: &io::Error) -> bool {
    error.raw_os_error().is_none()
}

#[cfg(test)]
mod strategies;
#[cfg(test)]
mod tests;
