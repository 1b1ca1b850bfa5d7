//! `index.sqlite`: schema, and every row of both tables.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use packd_sinks::{METADATA_FOLDER, ShardIndex};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};

use super::context::Context;
use super::fault::FaultKind;
use crate::packed_set::DataSet;

/// Wrong rows of one shard that are named; a database that is off by one is off everywhere.
const NAMED: usize = 20;

/// Energon's own definitions, spaces aside.
const SCHEMA: [(&str, &str); 5] = [
    (
        "samples",
        "CREATE TABLE samples ( tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, \
         sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER )",
    ),
    (
        "sample_parts",
        "CREATE TABLE sample_parts ( tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, \
         content_byte_offset INTEGER, content_byte_size INTEGER )",
    ),
    (
        "idx_samples_by_tar_and_idx",
        "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    ),
    (
        "idx_sample_parts_seq",
        "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    ),
    (
        "idx_sample_parts_full",
        "CREATE INDEX idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, \
         content_byte_offset, content_byte_size)",
    ),
];

/// A database whose schema is as it must be.
pub(super) struct Database {
    path: PathBuf,
    /// Relative to the folder that is verified.
    file: String,
    shards: i64,
}

/// A row of either table.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    /// Position of the sample in its shard, then the part.
    place: (i64, String),
    /// The key of a sample.
    key: Option<String>,
    offset: Option<i64>,
    size: Option<i64>,
}

impl Database {
    /// Opens the database and checks its schema; `None` if there is nothing to compare rows with.
    pub(super) fn open(context: &Context<'_>, set: &DataSet) -> Option<Self> {
        let path = set.path.join(METADATA_FOLDER).join("index.sqlite");
        let file = format!("{}{METADATA_FOLDER}/index.sqlite", set.prefix);
        if !path.exists() {
            let is_promised = context.checksums.as_ref().is_some_and(|list| list.get(&file).is_some());
            if !is_promised {
                context
                    .warn(format!("there is no {file}: plain loading works without, random access does not"));
            }
            return None;
        }
        match schema_fault(&path) {
            Ok(Ok(shards)) => Some(Self { path, file, shards }),
            Ok(Err(detail)) => {
                context.faults.add(FaultKind::Sqlite, &file, detail);
                None
            }
            Err(error) => {
                context.faults.add(FaultKind::Sqlite, &file, format!("it cannot be read: {error}"));
                None
            }
        }
    }

    /// How many shards it was made of.
    pub(super) fn shards(&self) -> i64 {
        self.shards
    }

    /// Compares the rows of one shard with its tar.
    pub(super) fn check_shard(&self, context: &Context<'_>, name: &str, id: i64, index: &ShardIndex) {
        let mut differences = Vec::new();
        let compared = open(&self.path).and_then(|connection| {
            let samples = "SELECT sample_index, '', sample_key, byte_offset, byte_size FROM samples \
                           WHERE tar_file_id = ? ORDER BY sample_index";
            compare(&connection, samples, id, "samples", sample_lines(index), &mut differences)?;
            let parts = "SELECT sample_index, part_name, NULL, content_byte_offset, content_byte_size \
                         FROM sample_parts WHERE tar_file_id = ? ORDER BY sample_index, part_name";
            compare(&connection, parts, id, "sample_parts", part_lines(index), &mut differences)
        });
        if let Err(error) = compared {
            context.faults.add(FaultKind::Sqlite, &self.file, format!("it cannot be read: {error}"));
        }
        for (sample, detail) in differences {
            let key = usize::try_from(sample).ok().and_then(|sample| index.samples.get(sample));
            let detail = format!("{name}: {detail}");
            match key {
                Some(sample) => {
                    context.faults.add_for_key(FaultKind::Sqlite, &self.file, &sample.key, detail)
                }
                None => context.faults.add(FaultKind::Sqlite, &self.file, detail),
            }
        }
    }

    /// Rows that belong to no shard.
    pub(super) fn check_strays(&self, context: &Context<'_>, shards: usize) {
        let strays = open(&self.path).and_then(|connection| {
            let count = |table: &str| {
                let query =
                    format!("SELECT count(*) FROM {table} WHERE tar_file_id IS NULL OR tar_file_id < 0 OR tar_file_id >= ?");
                connection.query_row(&query, [shards as i64], |row| row.get::<_, i64>(0))
            };
            Ok(count("samples")? + count("sample_parts")?)
        });
        match strays {
            Ok(0) => {}
            Ok(rows) => {
                context.faults.add(FaultKind::Sqlite, &self.file, format!("{rows} rows are of no shard"))
            }
            Err(error) => {
                context.faults.add(FaultKind::Sqlite, &self.file, format!("it cannot be read: {error}"));
            }
        }
    }
}

/// Read only, and without the locks that network file systems lack.
pub(crate) fn open(path: &Path) -> rusqlite::Result<Connection> {
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => uri.push(char::from(*byte)),
            _ if byte.is_ascii_alphanumeric() => uri.push(char::from(*byte)),
            _ => uri += &format!("%{byte:02x}"),
        }
    }
    let flags =
        OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri + "?immutable=1", flags)?;
    connection.execute_batch("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON;")?;
    Ok(connection)
}

/// The number of shards, or what is wrong with the schema. A view in place of a table is never queried.
fn schema_fault(path: &Path) -> rusqlite::Result<Result<i64, String>> {
    let connection = open(path)?;
    let mut statement = connection.prepare("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL")?;
    let rows = statement.query_map([], |row| Ok((text(row, 0), text(row, 1))))?;
    let found = rows.collect::<rusqlite::Result<BTreeMap<_, _>>>()?;
    for (name, expected) in SCHEMA {
        let Some(found) = found.get(name) else { return Ok(Err(format!("it has no {name}"))) };
        if words(found) != words(expected) {
            return Ok(Err(format!("{name} is not as Energon creates it: {}", words(found).join(" "))));
        }
    }
    let shards = connection
        .query_row("SELECT max(tar_file_id) FROM samples", [], |row| Ok(int(row, 0).unwrap_or(-1)))?;
    Ok(Ok(shards.saturating_add(1)))
}

fn words(sql: &str) -> Vec<&str> {
    sql.split_whitespace().collect()
}

fn text(row: &Row<'_>, column: usize) -> String {
    match row.get_ref(column) {
        Ok(ValueRef::Text(text) | ValueRef::Blob(text)) => String::from_utf8_lossy(text).into_owned(),
        Ok(ValueRef::Integer(number)) => number.to_string(),
        Ok(ValueRef::Real(number)) => number.to_string(),
        _ => String::new(),
    }
}

fn int(row: &Row<'_>, column: usize) -> Option<i64> {
    match row.get_ref(column) {
        Ok(ValueRef::Integer(number)) => Some(number),
        _ => None,
    }
}

fn sample_lines(index: &ShardIndex) -> impl Iterator<Item = Line> {
    index.samples.iter().enumerate().map(|(i, sample)| Line {
        place: (i as i64, String::new()),
        key: Some(sample.key.clone()),
        offset: Some(sample.offset as i64),
        size: Some(sample.size as i64),
    })
}

fn part_lines(index: &ShardIndex) -> impl Iterator<Item = Line> {
    index.samples.iter().enumerate().flat_map(|(i, sample)| {
        let mut lines: Vec<Line> = (sample.parts.iter())
            .map(|part| Line {
                place: (i as i64, part.name.clone()),
                key: None,
                offset: Some(part.offset as i64),
                size: Some(part.size as i64),
            })
            .collect();
        lines.sort_by(|a, b| a.place.cmp(&b.place));
        lines
    })
}

/// Walks rows and tar side by side, both in order.
fn compare(
    connection: &Connection,
    query: &str,
    id: i64,
    table: &str,
    expected: impl Iterator<Item = Line>,
    differences: &mut Vec<(i64, String)>,
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(query)?;
    let mut rows = statement.query_map([id], |row| {
        Ok(Line {
            place: (int(row, 0).unwrap_or(i64::MIN), text(row, 1)),
            key: (!matches!(row.get_ref(2), Ok(ValueRef::Null))).then(|| text(row, 2)),
            offset: int(row, 3),
            size: int(row, 4),
        })
    })?;
    let mut row = rows.next().transpose()?;
    let first = differences.len();
    for expected in expected {
        while let Some(found) = row.take_if(|row| row.place < expected.place) {
            differences.push((
                found.place.0,
                format!("{table} has a row that the tar does not: {}", describe(&found)),
            ));
            row = rows.next().transpose()?;
            if differences.len() - first >= NAMED {
                return Ok(());
            }
        }
        match row.take_if(|row| row.place == expected.place) {
            None => differences
                .push((expected.place.0, format!("{table} has no row for {}", describe(&expected)))),
            Some(found) => {
                if found != expected {
                    let detail =
                        format!("{table} says {}, the tar {}", describe(&found), describe(&expected));
                    differences.push((expected.place.0, detail));
                }
                row = rows.next().transpose()?;
            }
        }
        if differences.len() - first >= NAMED {
            return Ok(());
        }
    }
    if let Some(found) = row {
        differences
            .push((found.place.0, format!("{table} has a row that the tar does not: {}", describe(&found))));
    }
    Ok(())
}

fn describe(line: &Line) -> String {
    let number =
        |number: Option<i64>| number.map_or_else(|| "nothing".to_owned(), |number| number.to_string());
    let name = line.key.as_deref().unwrap_or(&line.place.1);
    format!("{} {name} at {} with {} bytes", line.place.0, number(line.offset), number(line.size))
}
