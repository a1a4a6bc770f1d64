//! The report as JSON.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{Formatter, PrettyFormatter};

use crate::escape::is_harmful;

/// Writes a report as one indented object.
pub fn write_json(report: &impl Serialize, output: &mut dyn Write) -> io::Result<()> {
    let mut serializer = Serializer::with_formatter(&mut *output, Harmless(PrettyFormatter::new()));
    report.serialize(&mut serializer)?;
    output.write_all(b"\n")
}

/// Writes as `\u…` also what JSON allows as it is but a terminal or an editor would act on.
struct Harmless(PrettyFormatter<'static>);

impl Formatter for Harmless {
    fn write_string_fragment<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut plain_from = 0;
        for (at, character) in fragment
            .char_indices()
            .filter(|(_, character)| is_harmful(*character))
        {
            writer.write_all(&fragment.as_bytes()[plain_from..at])?;
            for unit in character.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
            plain_from = at + character.len_utf8();
        }
        writer.write_all(&fragment.as_bytes()[plain_from..])
    }

    fn begin_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde_json::Serializer;
    use serde_json::ser::PrettyFormatter;

    use super::Harmless;

    #[test]
    fn what_acts_is_escaped_and_still_the_same_string() {
        let name = "eth0\u{9b}2J\u{202e}\u{e0041}\x1b é\\\"";
        let mut output = Vec::new();
        [name]
            .serialize(&mut Serializer::with_formatter(
                &mut output,
                Harmless(PrettyFormatter::new()),
            ))
            .expect("a string serialises");
        let json = String::from_utf8(output).expect("JSON is UTF-8");
        assert_eq!(
            json,
            "[\n  \"eth0\\u009b2J\\u202e\\udb40\\udc41\\u001b é\\\\\\\"\"\n]"
        );
        assert_eq!(
            serde_json::from_str::<[String; 1]>(&json).expect("and parses"),
            [name]
        );
    }
}
