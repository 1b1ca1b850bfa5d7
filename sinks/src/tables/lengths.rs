//! `lengths.parquet`: one row a sample, in the order of the input.

use std::path::Path;

use super::table::{ColumnSpec, Kind, TableWriter, Value};
use crate::SinkError;

/// The columns; the file holds these descriptions as well, under `packd.column.<name>`.
const COLUMNS: &[ColumnSpec] = &[
    (
        "ordinal",
        Kind::U64,
        "number of the sample in the run, counting accepted records in input order from 0",
    ),
    ("source", Kind::Text, "input as configured"),
    ("line", Kind::U64, "line of the record in its input, from 1"),
    ("byte_offset", Kind::U64, "where the record starts in its (decompressed) input, in bytes"),
    ("id", Kind::OptionalText, "the record's id"),
    ("length", Kind::U32, "tokens of the whole sample, as the trainer counts them"),
    ("text_tokens", Kind::U32, "tokens that are not image tokens"),
    ("image_tokens", Kind::U32, "tokens that stand for image patches after merging"),
    ("images", Kind::U32, "images"),
    ("patches", Kind::U32, "image patches before merging"),
    ("stored_bytes", Kind::U64, "bytes the sample takes in a shard, headers and padding included"),
    ("rounds_dropped", Kind::U32, "question/answer rounds dropped from the end so that the sample fits"),
];

/// One sample that was measured. The fields are described in the table itself.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy)]
pub struct LengthRow<'a> {
    pub ordinal: u64,
    pub source: &'a str,
    pub line: u64,
    pub byte_offset: u64,
    pub id: Option<&'a str>,
    pub length: u32,
    pub text_tokens: u32,
    pub image_tokens: u32,
    pub images: u32,
    pub patches: u32,
    pub stored_bytes: u64,
    pub rounds_dropped: u32,
}

/// Writes `lengths.parquet`, holding one row group in memory.
pub struct LengthsWriter(TableWriter);

impl LengthsWriter {
    /// Starts the table; it appears at [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`SinkError::Create`].
    pub fn create(path: &Path) -> Result<Self, SinkError> {
        Ok(Self(TableWriter::create(path, "lengths", COLUMNS)?))
    }

    /// Adds a row.
    ///
    /// # Errors
    /// [`SinkError::Parquet`], a full disk for example.
    pub fn push(&mut self, row: &LengthRow<'_>) -> Result<(), SinkError> {
        self.0.push([
            Value::U64(row.ordinal),
            Value::Text(row.source),
            Value::U64(row.line),
            Value::U64(row.byte_offset),
            Value::OptionalText(row.id),
            Value::U32(row.length),
            Value::U32(row.text_tokens),
            Value::U32(row.image_tokens),
            Value::U32(row.images),
            Value::U32(row.patches),
            Value::U64(row.stored_bytes),
            Value::U32(row.rounds_dropped),
        ])
    }

    /// Completes the table and gives it its name; the number of rows.
    ///
    /// # Errors
    /// [`SinkError::Parquet`] or [`SinkError::Write`].
    pub fn finish(self) -> Result<u64, SinkError> {
        self.0.finish()
    }
}
