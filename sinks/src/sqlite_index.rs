//! `index.sqlite`: where every sample and every part stands, with Energon's own schema.

use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode, params};
use tempfile::TempDir;

use crate::{AtomicFile, ShardIndex, SinkError};

/// About what one part takes in the database, its indexes included, in bytes.
const BYTES_A_PART: u64 = 98;

/// The tables as Energon 7.4 creates them; SQLite stores the text of a definition, so its spaces count.
const TABLES: &str = "
CREATE TABLE samples (
                    tar_file_id INTEGER NOT NULL,
                    sample_key TEXT NOT NULL UNIQUE,
                    sample_index INTEGER NOT NULL,
                    byte_offset INTEGER,
                    byte_size INTEGER
                );
CREATE TABLE sample_parts (
                    tar_file_id INTEGER,
                    sample_index INTEGER,
                    part_name TEXT,
                    content_byte_offset INTEGER,
                    content_byte_size INTEGER
                );
";

const INDEXES: &str = "
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
";

/// How `index.sqlite` is built.
#[derive(Debug, Clone)]
pub struct SqliteOptions {
    /// A folder on a local disk, where the database is built before it is moved: SQLite on NFS corrupts.
    pub scratch: PathBuf,
    /// Members of all shards together (images and jsons), to check the scratch space; 0 checks nothing.
    pub expected_parts: u64,
}

/// A database that is being built, all in one transaction, so that its bytes depend on its rows only.
pub(crate) struct SqliteIndex {
    target: PathBuf,
    local: PathBuf,
    connection: Connection,
    shards: i64,
    _scratch: TempDir,
}

impl SqliteIndex {
    pub(crate) fn create(target: PathBuf, options: &SqliteOptions) -> Result<Self, SinkError> {
        check_space(options)?;
        let scratch = tempfile::Builder::new().prefix("packd-index-").tempdir_in(&options.scratch);
        let scratch = scratch.map_err(SinkError::create(&options.scratch))?;
        let local = scratch.path().join("index.sqlite");
        let opened = Connection::open(&local).and_then(|connection| {
            // The file is thrown away when anything fails: a journal would only cost time.
            connection.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN;")?;
            connection.execute_batch(TABLES)?;
            Ok(connection)
        });
        let connection = opened.map_err(sqlite(&target))?;
        Ok(Self { target, local, connection, shards: 0, _scratch: scratch })
    }

    /// Adds the next shard in the order of the sorted list.
    pub(crate) fn add(&mut self, shard: &ShardIndex) -> Result<(), SinkError> {
        let added = self.insert(shard);
        self.shards += 1;
        added.map_err(|(key, source)| match source.sqlite_error_code() {
            Some(ErrorCode::ConstraintViolation) => {
                SinkError::DuplicateKey { shard: shard.name.clone(), key }
            }
            _ => sqlite(&self.target)(source),
        })
    }

    /// Makes the indexes, commits, and moves the database to its place.
    pub(crate) fn finish(self) -> Result<(), SinkError> {
        let Self { target, local, connection, .. } = self;
        let done = connection.execute_batch(INDEXES).and_then(|()| connection.execute_batch("COMMIT"));
        done.map_err(sqlite(&target))?;
        connection.close().map_err(|(_, source)| sqlite(&target)(source))?;
        let mut from = File::open(&local).map_err(SinkError::read(&local))?;
        let mut to = AtomicFile::create(&target)?;
        std::io::copy(&mut from, to.file()).map_err(SinkError::write(&target))?;
        to.commit()
    }

    /// On failure, the key of the sample that failed.
    fn insert(&self, shard: &ShardIndex) -> Result<(), (String, rusqlite::Error)> {
        let at_start = |e| (String::new(), e);
        let mut sample_row =
            self.connection.prepare_cached("INSERT INTO samples VALUES (?, ?, ?, ?, ?)").map_err(at_start)?;
        let mut part_row = self
            .connection
            .prepare_cached("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)")
            .map_err(at_start)?;
        for (i, sample) in shard.samples.iter().enumerate() {
            let at = |e| (sample.key.clone(), e);
            let row = params![self.shards, sample.key, i as i64, sample.offset as i64, sample.size as i64];
            sample_row.execute(row).map_err(at)?;
            for part in &sample.parts {
                let row = params![self.shards, i as i64, part.name, part.offset as i64, part.size as i64];
                part_row.execute(row).map_err(at)?;
            }
        }
        Ok(())
    }
}

fn check_space(options: &SqliteOptions) -> Result<(), SinkError> {
    let path = &options.scratch;
    let disk = rustix::fs::statvfs(path).map_err(|e| SinkError::create(path)(e.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    let needed = options.expected_parts.saturating_mul(BYTES_A_PART);
    if needed > free {
        return Err(SinkError::ScratchSpace { path: path.clone(), needed, free });
    }
    Ok(())
}

fn sqlite(target: &Path) -> impl Fn(rusqlite::Error) -> SinkError {
    let path = target.to_owned();
    move |source| SinkError::Sqlite { path: path.clone(), source }
}
