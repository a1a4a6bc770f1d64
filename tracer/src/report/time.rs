//! Times as the report writes them.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A moment: RFC 3339 with nanoseconds, UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(Timestamp);

impl Time {
    /// The moment this many nanoseconds after the epoch; every `u64` is one (until the year 2554).
    pub fn from_unix_ns(realtime_ns: u64) -> Self {
        Self(Timestamp::from_nanosecond(i128::from(realtime_ns)).unwrap_or(Timestamp::MAX))
    }

    /// The time of day with microseconds, as the text report shows it.
    pub fn clock(self) -> String {
        self.0.strftime("%H:%M:%S%.6f").to_string()
    }

    /// The day and the time of day in seconds.
    pub fn date_and_clock(self) -> String {
        self.0.strftime("%Y-%m-%d %H:%M:%S").to_string()
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.9}", self.0)
    }
}

impl FromStr for Time {
    type Err = jiff::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(D::Error::custom)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "RFC 3339 with nanoseconds, UTC.",
            "type": "string",
            "format": "date-time",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Time;

    #[test]
    fn nine_digits_and_a_z_also_on_a_whole_second() {
        assert_eq!(
            Time::from_unix_ns(0).to_string(),
            "1970-01-01T00:00:00.000000000Z"
        );
        assert_eq!(
            Time::from_unix_ns(1_764_570_184_123_456_789).to_string(),
            "2025-12-01T06:23:04.123456789Z"
        );
        assert_eq!(
            Time::from_unix_ns(u64::MAX).to_string(),
            "2554-07-21T23:34:33.709551615Z"
        );
    }

    #[test]
    fn what_is_written_is_read_back() {
        let time = Time::from_unix_ns(1_764_570_184_000_000_001);
        let text = serde_json::to_string(&time).expect("a time serialises");
        assert_eq!(
            serde_json::from_str::<Time>(&text).expect("and parses"),
            time
        );
        assert_eq!(time.clock(), "06:23:04.000000");
    }
}
