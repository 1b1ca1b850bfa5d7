//! Rows of the Parquet tables.

use std::fs::File;
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::file::reader::SerializedFileReader;
use parquet::record::reader::RowIter;
use parquet::record::{Row, RowAccessor};
use xxhash_rust::xxh3::xxh3_64;

/// What both tables say of a sample.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct TableRow {
    pub(super) ordinal: u64,
    pub(super) source: String,
    pub(super) line: u64,
    pub(super) offset: u64,
    pub(super) id: Option<String>,
    pub(super) length: u64,
    pub(super) images: u64,
    pub(super) patches: u64,
}

/// A row of `bins.parquet`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BinsRow {
    pub(super) key: String,
    pub(super) shard: String,
    pub(super) position: u64,
    pub(super) start: u64,
    pub(super) sample: TableRow,
}

impl TableRow {
    /// One number of all fields, to compare tables that stand in another order.
    pub(super) fn hash(&self) -> u64 {
        let Self { ordinal, source, line, offset, id, length, images, patches } = self;
        xxh3_64(format!("{ordinal} {source} {line} {offset} {id:?} {length} {images} {patches}").as_bytes())
    }

    /// `input:line`, and the id.
    pub(super) fn place(&self) -> String {
        let id = self.id.as_ref().map_or_else(String::new, |id| format!(", id {id:?}"));
        format!("{}:{}{id}", self.source, self.line)
    }
}

/// The rows of `bins.parquet`, in order.
pub(super) fn bins(path: &Path) -> Result<impl Iterator<Item = Result<BinsRow, ParquetError>>, ParquetError> {
    Ok(rows(path)?.map(|row| {
        let row = row?;
        Ok(BinsRow {
            key: row.get_string(1)?.clone(),
            shard: row.get_string(2)?.clone(),
            position: row.get_uint(3)?.into(),
            start: row.get_uint(9)?.into(),
            sample: TableRow {
                ordinal: row.get_ulong(4)?,
                source: row.get_string(5)?.clone(),
                line: row.get_ulong(6)?,
                offset: row.get_ulong(7)?,
                id: optional(&row, 8)?,
                length: row.get_uint(10)?.into(),
                images: row.get_uint(11)?.into(),
                patches: row.get_uint(12)?.into(),
            },
        })
    }))
}

/// The rows of `lengths.parquet`, in order.
pub(super) fn lengths(
    path: &Path,
) -> Result<impl Iterator<Item = Result<TableRow, ParquetError>>, ParquetError> {
    Ok(rows(path)?.map(|row| {
        let row = row?;
        Ok(TableRow {
            ordinal: row.get_ulong(0)?,
            source: row.get_string(1)?.clone(),
            line: row.get_ulong(2)?,
            offset: row.get_ulong(3)?,
            id: optional(&row, 4)?,
            length: row.get_uint(5)?.into(),
            images: row.get_uint(8)?.into(),
            patches: row.get_uint(9)?.into(),
        })
    }))
}

fn rows(path: &Path) -> Result<RowIter<'static>, ParquetError> {
    let reader = SerializedFileReader::new(File::open(path)?)?;
    Ok(RowIter::from_file_into(Box::new(reader)))
}

fn optional(row: &Row, column: usize) -> Result<Option<String>, ParquetError> {
    if row.is_null(column)? { Ok(None) } else { Ok(Some(row.get_string(column)?.clone())) }
}
