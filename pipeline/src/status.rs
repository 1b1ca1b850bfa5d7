//! `packd status`: how far a run is, read from its ledger.

use std::path::Path;

use serde::Serialize;

use crate::error::Error;
use crate::report::Stats;
use crate::state::job_file::JobFile;
use crate::state::ledger::Ledger;

/// How far a run is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Status {
    /// `measuring`, `writing` or `done`.
    pub state: &'static str,
    /// Units of input that were measured.
    pub units: u64,
    /// Input files that were measured to their end.
    pub inputs_done: u64,
    /// Input files.
    pub inputs: u64,
    /// What was read so far.
    pub records: Stats,
    /// Shards that were written.
    pub shards: u64,
    /// Their bytes.
    pub shard_bytes: u64,
    /// Whether a process works on it now.
    pub running: bool,
}

/// Reads how far the run in an output folder is. Changes nothing.
///
/// # Errors
/// The folder holds no run.
pub fn status(output: &Path) -> Result<Status, Error> {
    let job = JobFile::read(output)?;
    let ledger = output.join("run/ledger.jsonl");
    let finished = if ledger.exists() { Ledger::peek(&ledger)? } else { Default::default() };
    let mut records = Stats::default();
    finished.units.iter().for_each(|unit| records.add(&unit.stats));
    let inputs_done = finished.units.last().map_or(0, |unit| unit.next.source);
    let state = match (&finished.done, inputs_done == job.inputs.len()) {
        (Some(_), _) => "done",
        (None, true) => "writing",
        (None, false) => "measuring",
    };
    Ok(Status {
        state,
        units: finished.units.len() as u64,
        inputs_done: inputs_done as u64,
        inputs: job.inputs.len() as u64,
        records,
        shards: finished.shards.len() as u64,
        shard_bytes: finished.shards.values().filter_map(|files| files.first()).map(|tar| tar.size).sum(),
        running: is_locked(output),
    })
}

fn is_locked(output: &Path) -> bool {
    std::fs::File::open(output.join("run/lock"))
        .is_ok_and(|file| matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)))
}
