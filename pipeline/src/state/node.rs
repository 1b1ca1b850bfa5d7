//! What belongs to one node, by name.

use serde::{Deserialize, Serialize};

/// One of the nodes that share a job, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Node(pub(crate) u32);

impl Node {
    /// All nodes of a job.
    pub(crate) fn all(nodes: u32) -> impl Iterator<Item = Self> {
        (0..nodes).map(Self)
    }

    fn folder(self) -> String {
        format!("node_{:03}", self.0)
    }

    /// The folder of its state, below the output folder.
    pub(crate) fn run(self) -> String {
        format!("run/{}", self.folder())
    }

    /// The folder of what it measured.
    pub(crate) fn measured(self) -> String {
        format!("{}/measured", self.run())
    }

    /// The folder of what is recorded of each of its shards.
    pub(crate) fn commits(self) -> String {
        format!("{}/shards", self.run())
    }

    /// Its ledger.
    pub(crate) fn ledger(self) -> String {
        format!("{}/ledger.jsonl", self.run())
    }

    /// Its ledger in an object store, one object a line.
    pub(crate) fn ledger_objects(self) -> String {
        format!("{}/ledger", self.run())
    }

    /// Held by the process that works on it.
    pub(crate) fn lock(self) -> String {
        format!("{}/lock", self.run())
    }

    /// The folder of its shards.
    pub(crate) fn webdataset(self) -> String {
        format!("{}/webdataset", self.folder())
    }

    /// The node that a path below the output folder belongs to.
    pub(crate) fn of_path(path: &str) -> Option<Self> {
        path.strip_prefix("node_")?.split('/').next()?.parse().ok().map(Self)
    }
}
