//! `bins.parquet`: one row a (bin, sub-sample), in the order of the packs.

use std::path::Path;

use super::table::{ColumnSpec, Kind, TableWriter, Value};
use crate::{ShardCommit, SinkError};

/// The columns; the file holds these descriptions as well, under `packd.column.<name>`.
const COLUMNS: &[ColumnSpec] = &[
    ("pack", Kind::U64, "number of the packed sample in the run, from 0"),
    ("key", Kind::Text, "key of the packed sample in its shard"),
    ("shard", Kind::Text, "file name of the shard"),
    ("position", Kind::U32, "position of the sub-sample in the packed sample, from 0"),
    ("ordinal", Kind::U64, "number of the sample in the run (see lengths.parquet)"),
    ("source", Kind::Text, "input as configured"),
    ("line", Kind::U64, "line of the record in its input, from 1"),
    ("byte_offset", Kind::U64, "where the record starts in its (decompressed) input, in bytes"),
    ("id", Kind::OptionalText, "the record's id"),
    ("start", Kind::U32, "where the sub-sample starts in the packed sequence, in tokens (cu_lengths)"),
    ("length", Kind::U32, "tokens of the sub-sample"),
    ("images", Kind::U32, "images"),
    ("patches", Kind::U32, "image patches before merging"),
];

/// One sub-sample in its bin. The fields are described in the table itself.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy)]
pub struct BinRow<'a> {
    pub pack: u64,
    pub key: &'a str,
    pub shard: &'a str,
    pub position: u32,
    pub ordinal: u64,
    pub source: &'a str,
    pub line: u64,
    pub byte_offset: u64,
    pub id: Option<&'a str>,
    pub start: u32,
    pub length: u32,
    pub images: u32,
    pub patches: u32,
}

/// Writes `bins.parquet`, holding one row group in memory.
pub struct BinsWriter(TableWriter);

impl BinsWriter {
    /// Starts the table; it appears at [`finish`](Self::finish).
    ///
    /// # Errors
    /// [`SinkError::Create`].
    pub fn create(path: &Path) -> Result<Self, SinkError> {
        Ok(Self(TableWriter::create(path, "bins", COLUMNS)?))
    }

    /// Adds a row.
    ///
    /// # Errors
    /// [`SinkError::Parquet`], a full disk for example.
    pub fn push(&mut self, row: &BinRow<'_>) -> Result<(), SinkError> {
        self.0.push([
            Value::U64(row.pack),
            Value::Text(row.key),
            Value::Text(row.shard),
            Value::U32(row.position),
            Value::U64(row.ordinal),
            Value::Text(row.source),
            Value::U64(row.line),
            Value::U64(row.byte_offset),
            Value::OptionalText(row.id),
            Value::U32(row.start),
            Value::U32(row.length),
            Value::U32(row.images),
            Value::U32(row.patches),
        ])
    }

    /// Adds the rows of a whole shard; `sources[i]` is the name of input `i`.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub fn push_shard(&mut self, shard: &ShardCommit, sources: &[impl AsRef<str>]) -> Result<(), SinkError> {
        for (sample, pack) in shard.index.samples.iter().zip(&shard.packs) {
            let mut start = 0;
            for (position, sub) in pack.sub_samples.iter().enumerate() {
                self.push(&BinRow {
                    pack: pack.pack,
                    key: &sample.key,
                    shard: &shard.index.name,
                    position: position as u32,
                    ordinal: sub.ordinal,
                    source: sources.get(sub.source).map_or("", AsRef::as_ref),
                    line: sub.line,
                    byte_offset: sub.offset,
                    id: sub.id.as_deref(),
                    start,
                    length: sub.length,
                    images: sub.images,
                    patches: sub.patches,
                })?;
                start += sub.length;
            }
        }
        Ok(())
    }

    /// Completes the table and gives it its name; the number of rows.
    ///
    /// # Errors
    /// [`SinkError::Parquet`] or [`SinkError::Write`].
    pub fn finish(self) -> Result<u64, SinkError> {
        self.0.finish()
    }
}
