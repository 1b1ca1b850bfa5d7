//! What a node tells the others: that it has measured, and that it has written.
//!
//! A file that is there was finished. Whoever needs what another node found waits for its file, and there is
//! nothing else that nodes wait for.

use packd_stages::bin_pack::Quality;
use packd_storage::Traffic;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::ledger::{FinishedFile, MeasuredUnit};
use super::node::Node;
use crate::error::Error;
use crate::output::Output;
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
    /// Sub-samples of the `train` and of the `val` split.
    #[serde(default)]
    pub(crate) sub_samples: [u64; 2],
    /// Of each packing that it made; with `scope: global` that of all nodes.
    pub(crate) qualities: Vec<Quality>,
    /// Where its time went.
    pub(crate) seconds: Seconds,
    /// What it exchanged with object stores, in the process that finished it.
    #[serde(default)]
    pub(crate) storage: Traffic,
}

/// A file that says that a node has finished a phase.
pub(crate) trait Commit: Serialize + DeserializeOwned {
    /// Its name in the node's state folder.
    const NAME: &str;

    fn name(node: Node) -> String {
        format!("{}/{}", node.run(), Self::NAME)
    }

    fn write(&self, output: &Output, node: Node) -> Result<(), Error> {
        let name = Self::name(node);
        let text = serde_json::to_vec(self).map_err(|error| state(output, &name, &error))?;
        output.write(&name, &text)
    }

    /// `None` while the node has not finished.
    fn read(output: &Output, node: Node) -> Result<Option<Self>, Error> {
        let name = Self::name(node);
        let text = output.read(&name)?;
        text.map(|text| serde_json::from_slice(&text).map_err(|error| state(output, &name, &error)))
            .transpose()
    }

    /// Those of many nodes, read at once; `None` for nodes that have not finished.
    fn read_all(output: &Output, nodes: &[Node]) -> Result<Vec<Option<Self>>, Error> {
        let names: Vec<String> = nodes.iter().map(|node| Self::name(*node)).collect();
        let parse = |(name, text): (&String, Option<Vec<u8>>)| {
            text.map(|text| serde_json::from_slice(&text).map_err(|error| state(output, name, &error)))
                .transpose()
        };
        names.iter().zip(output.read_many(&names)?).map(parse).collect()
    }

    /// Takes the word back.
    fn remove(output: &Output, node: Node) -> Result<(), Error> {
        output.remove(&Self::name(node))
    }
}

impl Commit for MeasuredNode {
    const NAME: &str = "measured.json";
}

impl Commit for WrittenNode {
    const NAME: &str = "written.json";
}

fn state(output: &Output, name: &str, error: &impl ToString) -> Error {
    Error::State { path: output.shown(name), message: error.to_string() }
}
