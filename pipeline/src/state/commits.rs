//! What a node tells the others: that it has measured, and that it has written.
//!
//! A file that is there was finished. Whoever needs what another node found waits for its file, and there is
//! nothing else that nodes wait for.

use std::path::{Path, PathBuf};

use packd_sinks::write_file;
use packd_stages::bin_pack::Quality;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::ledger::{FinishedFile, MeasuredUnit};
use super::node::Node;
use crate::error::Error;
use crate::report::Seconds;

/// A node has measured its slice of the input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasuredNode {
    /// What it measured, in the order of the input.
    pub(crate) units: Vec<MeasuredUnit>,
    /// How many of its samples have each class of lengths, for the classes that occur.
    pub(crate) histogram: Vec<(u32, u64)>,
    /// Its rows by class, where the packing is that of all nodes together.
    pub(crate) sorted: Option<FinishedFile>,
}

impl MeasuredNode {
    /// Its samples.
    pub(crate) fn samples(&self) -> u64 {
        self.units.iter().map(|unit| unit.samples).sum()
    }

    /// The files that others read.
    pub(crate) fn files(&self) -> impl Iterator<Item = &FinishedFile> {
        self.units.iter().flat_map(|unit| &unit.files).chain(&self.sorted)
    }
}

/// A node has written its shards, with Energon's files about them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct WrittenNode {
    /// Its shards, in the order of their packs.
    pub(crate) shards: Vec<String>,
    /// Every file in its folder of shards.
    pub(crate) files: Vec<FinishedFile>,
    /// What they were made from, see `flow::measurements`.
    pub(crate) measurements: u64,
    /// Packed samples of the `train` split.
    pub(crate) train: u64,
    /// Packed samples of the `val` split.
    pub(crate) val: u64,
    /// Of each packing that it made; with `scope: global` that of all nodes.
    pub(crate) qualities: Vec<Quality>,
    /// Where its time went.
    pub(crate) seconds: Seconds,
}

/// A file that says that a node has finished a phase.
pub(crate) trait Commit: Serialize + DeserializeOwned {
    /// Its name in the node's state folder.
    const NAME: &str;

    fn path(output: &Path, node: Node) -> PathBuf {
        output.join(node.run()).join(Self::NAME)
    }

    fn write(&self, output: &Path, node: Node) -> Result<(), Error> {
        let path = Self::path(output, node);
        let text = serde_json::to_vec(self).map_err(|error| state(&path, &error))?;
        Ok(write_file(path, &text)?)
    }

    /// `None` while the node has not finished.
    fn read(output: &Path, node: Node) -> Result<Option<Self>, Error> {
        let path = Self::path(output, node);
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| state(&path, &error)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(state(&path, &error)),
        }
    }

    /// Takes the word back.
    fn remove(output: &Path, node: Node) -> Result<(), Error> {
        let path = Self::path(output, node);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(state(&path, &error)),
            _ => Ok(()),
        }
    }
}

impl Commit for MeasuredNode {
    const NAME: &str = "measured.json";
}

impl Commit for WrittenNode {
    const NAME: &str = "written.json";
}

fn state(path: &Path, error: &impl ToString) -> Error {
    Error::State { path: path.to_owned(), message: error.to_string() }
}
