//! How far a run is: counters that anyone may read while it goes.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// What a run is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Reading, validating and counting.
    Measure,
    /// Packing.
    Pack,
    /// Writing shards.
    Write,
    /// Writing the index, the tables and the report.
    Finalize,
    /// Done.
    Done,
}

/// The counters of a run. The run writes them; a progress bar, a log or a server reads them.
#[derive(Debug, Default)]
pub struct Progress {
    phase: AtomicU8,
    pub(crate) input_bytes: AtomicU64,
    pub(crate) input_bytes_read: AtomicU64,
    pub(crate) read: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) rejected: AtomicU64,
    pub(crate) packs: AtomicU64,
    pub(crate) packs_written: AtomicU64,
    pub(crate) shards: AtomicU64,
    pub(crate) shards_written: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
}

/// The counters at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// What the run is doing.
    pub phase: Phase,
    /// Bytes of all inputs, as they lie on the disk.
    pub input_bytes: u64,
    /// Plain bytes that were read; more than `input_bytes` where inputs are compressed.
    pub input_bytes_read: u64,
    /// Records read.
    pub read: u64,
    /// Records accepted.
    pub accepted: u64,
    /// Records rejected.
    pub rejected: u64,
    /// Packs to be written, once they are known.
    pub packs: u64,
    /// Packs written.
    pub packs_written: u64,
    /// Shards to be written, once they are known.
    pub shards: u64,
    /// Shards written.
    pub shards_written: u64,
    /// Bytes of shards written.
    pub bytes_written: u64,
}

const PHASES: [Phase; 5] = [Phase::Measure, Phase::Pack, Phase::Write, Phase::Finalize, Phase::Done];

impl Progress {
    /// The counters now.
    pub fn snapshot(&self) -> Snapshot {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Snapshot {
            phase: PHASES[usize::from(self.phase.load(Ordering::Relaxed)).min(PHASES.len() - 1)],
            input_bytes: get(&self.input_bytes),
            input_bytes_read: get(&self.input_bytes_read),
            read: get(&self.read),
            accepted: get(&self.accepted),
            rejected: get(&self.rejected),
            packs: get(&self.packs),
            packs_written: get(&self.packs_written),
            shards: get(&self.shards),
            shards_written: get(&self.shards_written),
            bytes_written: get(&self.bytes_written),
        }
    }

    /// Makes the counters the sums of others', to show many processes as one: the phase is that of the process
    /// that is farthest behind. `input_bytes` stays; processes that have not counted yet count nothing.
    pub fn show_sum(&self, parts: &[Option<Snapshot>]) {
        let known = || parts.iter().flatten();
        let set = |counter: &AtomicU64, of: fn(&Snapshot) -> u64| {
            counter.store(known().map(of).sum(), Ordering::Relaxed);
        };
        let phase = known().map(|part| part.phase).min().unwrap_or(Phase::Measure);
        self.phase.store(phase as u8, Ordering::Relaxed);
        set(&self.input_bytes_read, |part| part.input_bytes_read);
        set(&self.read, |part| part.read);
        set(&self.accepted, |part| part.accepted);
        set(&self.rejected, |part| part.rejected);
        set(&self.packs, |part| part.packs);
        set(&self.packs_written, |part| part.packs_written);
        set(&self.shards, |part| part.shards);
        set(&self.shards_written, |part| part.shards_written);
        set(&self.bytes_written, |part| part.bytes_written);
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Relaxed);
    }

    pub(crate) fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Ordering::Relaxed);
    }
}
