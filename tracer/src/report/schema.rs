//! The JSON Schemas, generated from the types that are written.

use schemars::Schema;

use super::Report;
use crate::record::Record;

/// The schema of `--format json`.
pub fn report_schema() -> Schema {
    schemars::schema_for!(Report)
}

/// The schema of one line of a capture.
pub fn capture_schema() -> Schema {
    schemars::schema_for!(Record)
}
