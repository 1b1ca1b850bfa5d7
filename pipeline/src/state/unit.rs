//! The files of one measured unit of input.
//!
//! | file | holds |
//! | --- | --- |
//! | `000000.rows` | 40 bytes a sample, for the packer and the writer |
//! | `000000.details` | the rest of what was measured, for the tables and `--previous` (postcard in zstd) |
//! | `000000.rejects` | the rejects, as they will stand in `rejects.jsonl` |
//! | `000000.spool` | the records themselves, where their input cannot be read by offset |

use std::path::PathBuf;

use packd_sinks::{Reject, write_file};
use packd_sources::{RecordBlock, SpoolWriter};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_128;

use super::ledger::{FinishedFile, MeasuredUnit, Position};
use super::node::Node;
use super::rows::Row;
use super::stats::Stats;
use crate::error::Error;
use crate::output::Output;

/// What was measured of a sample beyond its [`Row`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Details {
    pub(crate) id: Option<String>,
    pub(crate) text_tokens: u32,
    pub(crate) image_tokens: u32,
    pub(crate) rounds_dropped: u32,
    /// XXH3-128 of the record's bytes.
    pub(crate) record_hash: u128,
}

/// Collects what was measured until the unit is full.
#[derive(Default)]
pub(crate) struct UnitBuilder {
    pub(crate) rows: Vec<Row>,
    pub(crate) details: Vec<Details>,
    pub(crate) rejects: Vec<Reject>,
    pub(crate) stats: Stats,
    /// See [`MeasuredUnit::part_lines`].
    pub(crate) part_lines: Vec<(usize, u64)>,
    spool: Option<SpoolWriter<Vec<u8>>>,
}

impl UnitBuilder {
    /// Keeps the records of a block whose input cannot be read by offset.
    pub(crate) fn spool(&mut self, block: &RecordBlock) {
        let spool = self.spool.get_or_insert_with(|| SpoolWriter::new(Vec::new()));
        if let Err(error) = spool.add(block) {
            unreachable!("a frame in memory: {error}");
        }
    }

    /// Writes the unit's files; they are finished when this returns.
    pub(crate) fn commit(
        self,
        output: &Output,
        node: Node,
        unit: u64,
        next: Position,
    ) -> Result<MeasuredUnit, Error> {
        output.create_folder(&node.measured())?;
        let mut files = Vec::new();
        let mut put = |kind: &str, bytes: &[u8]| -> Result<(), Error> {
            let name = file_name(node, unit, kind);
            write_file(output.path(&name), bytes)?;
            files.push(FinishedFile {
                name,
                size: bytes.len() as u64,
                checksum: format!("{:032x}", xxh3_128(bytes)),
            });
            Ok(())
        };
        let state = |message: String| Error::State { path: output.shown(&node.measured()), message };
        let rows: Vec<u8> = self.rows.iter().flat_map(|row| row.to_bytes()).collect();
        put("rows", &rows)?;
        let details = postcard::to_stdvec(&self.details).map_err(|error| state(error.to_string()))?;
        put("details", &zstd::bulk::compress(&details, 1).map_err(|error| state(error.to_string()))?)?;
        let mut rejects = Vec::new();
        for reject in &self.rejects {
            serde_json::to_writer(&mut rejects, reject).map_err(|error| state(error.to_string()))?;
            rejects.push(b'\n');
        }
        put("rejects", &rejects)?;
        if let Some(spool) = self.spool {
            put("spool", &spool.finish().map_err(|error| state(error.to_string()))?)?;
        }
        let names: Vec<String> = files.iter().map(|file| file.name.clone()).collect();
        output.publish_all(&names)?;
        Ok(MeasuredUnit {
            node,
            unit,
            samples: self.rows.len() as u64,
            next,
            part_lines: self.part_lines,
            stats: self.stats,
            files,
        })
    }
}

fn file_name(node: Node, unit: u64, kind: &str) -> String {
    format!("{}/{unit:06}.{kind}", node.measured())
}

impl MeasuredUnit {
    fn file(&self, kind: &str) -> Option<&FinishedFile> {
        let name = file_name(self.node, self.unit, kind);
        self.files.iter().find(|file| file.name == name)
    }

    /// Its row file, on this machine once it was fetched.
    pub(crate) fn rows(&self) -> Option<&FinishedFile> {
        self.file("rows")
    }

    /// Its spool, if it has one.
    pub(crate) fn spool(&self) -> Option<&FinishedFile> {
        self.file("spool")
    }

    fn fetched(&self, output: &Output, kind: &str) -> Result<PathBuf, Error> {
        output.fetch(self.file(kind))?;
        Ok(output.path(&file_name(self.node, self.unit, kind)))
    }

    /// Reads the details of every sample of the unit.
    pub(crate) fn read_details(&self, output: &Output) -> Result<Vec<Details>, Error> {
        let path = self.fetched(output, "details")?;
        let state = |message: String| Error::State { path: path.clone(), message };
        let packed = std::fs::File::open(&path).map_err(|error| state(error.to_string()))?;
        let plain = zstd::stream::decode_all(packed).map_err(|error| state(error.to_string()))?;
        postcard::from_bytes(&plain).map_err(|error| state(error.to_string()))
    }

    /// Reads the rejects of the unit.
    pub(crate) fn read_rejects(&self, output: &Output) -> Result<Vec<Reject>, Error> {
        let path = self.fetched(output, "rejects")?;
        let state = |message: String| Error::State { path: path.clone(), message };
        let text = std::fs::read(&path).map_err(|error| state(error.to_string()))?;
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(|line| serde_json::from_slice(line).map_err(|error| state(error.to_string()))).collect()
    }
}

/// Brings the details and rejects of all units to this machine, many at once.
pub(crate) fn fetch_texts(output: &Output, units: &[MeasuredUnit]) -> Result<(), Error> {
    output.fetch(units.iter().flat_map(|unit| ["details", "rejects"].map(|kind| unit.file(kind))).flatten())
}
