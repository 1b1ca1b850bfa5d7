//! `packd status`: how far a run is, read from its ledger.

use std::path::Path;

use serde::Serialize;

use crate::error::Error;
use crate::finalize::read_done;
use crate::output::Output;
use crate::report::Stats;
use crate::state::commits::{Commit, MeasuredNode, WrittenNode};
use crate::state::job_file::JobFile;
use crate::state::ledger::Ledger;
use crate::state::node::Node;

/// How far a run is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// `measuring`, `writing` or `done`.
    pub state: &'static str,
    /// Every node.
    pub nodes: Vec<NodeStatus>,
}

/// How far one node is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeStatus {
    /// The node, from 0.
    pub node: u32,
    /// `measuring`, `measured` (others have not), `writing` or `written`.
    pub state: &'static str,
    /// Units of input that were measured.
    pub units: u64,
    /// Parts of the input that were measured to their end.
    pub parts_done: u64,
    /// Parts of the input that are this node's to measure.
    pub parts: u64,
    /// What was read so far.
    pub records: Stats,
    /// Shards that were written.
    pub shards: u64,
    /// Their bytes.
    pub shard_bytes: u64,
    /// Whether a process works on it now; not known of an output in an object store.
    pub running: bool,
}

/// Reads how far the run in an output folder is. Changes nothing.
///
/// # Errors
/// The folder holds no run.
pub fn status(output: &Path) -> Result<Status, Error> {
    let output = &Output::open_existing(output)?;
    let job = JobFile::read(output)?;
    let nodes: Vec<NodeStatus> = Node::all(job.slices.len() as u32)
        .zip(&job.slices)
        .map(|(node, slice)| of_node(output, node, slice.len() as u64))
        .collect::<Result<_, Error>>()?;
    let state = match read_done(output)? {
        Some(_) => "done",
        None if nodes.iter().any(|node| node.state == "measuring") => "measuring",
        None => "writing",
    };
    Ok(Status { state, nodes })
}

fn of_node(output: &Output, node: Node, parts: u64) -> Result<NodeStatus, Error> {
    let finished = Ledger::peek(output, node)?;
    let mut records = Stats::default();
    finished.units.iter().for_each(|unit| records.add(&unit.stats));
    let state = if output.exists(&WrittenNode::name(node))? {
        "written"
    } else if !finished.shards.is_empty() {
        "writing"
    } else if output.exists(&MeasuredNode::name(node))? {
        "measured"
    } else {
        "measuring"
    };
    Ok(NodeStatus {
        node: node.0,
        state,
        units: finished.units.len() as u64,
        parts_done: finished.units.last().map_or(0, |unit| unit.next.part as u64),
        parts,
        records,
        shards: finished.shards.len() as u64,
        shard_bytes: finished
            .shards
            .values()
            .filter_map(|shard| shard.files.first())
            .map(|tar| tar.size)
            .sum(),
        running: is_locked(output, node),
    })
}

fn is_locked(output: &Output, node: Node) -> bool {
    std::fs::File::open(output.path(&node.lock()))
        .is_ok_and(|file| matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)))
}
