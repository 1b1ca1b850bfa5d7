//! A full disk: how much room is missing.

use crate::error::Error;
use crate::job::Job;
use crate::report::Stats;
use crate::state::commits::{Commit, MeasuredNode};
use crate::state::ledger::{Finished, Ledger, Position};

/// Besides its bytes, an image takes a row of `index.sqlite` and its tar header, a sample some rows of tables and state.
const BYTES_AN_IMAGE: u64 = 700;
const BYTES_A_SAMPLE: u64 = 1000;

/// Adds to an error that comes of a full disk how much the output still needs.
pub(crate) fn explain(job: &Job, error: Error) -> Error {
    // In front of a store stand only the shards that are being written: how many fit is no matter of the whole.
    if !error.is_full_disk() || matches!(error, Error::DiskFull { .. }) || job.output.remote().is_some() {
        return error;
    }
    let disk = rustix::fs::statvfs(job.output.folder());
    let free = disk.map_or(0, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    Error::DiskFull { source: Box::new(error), needed: needed(job), free }
}

/// About how many bytes this node still has to write: what its samples take, less its finished shards. While it
/// measures, the rest of its slice is taken to be like what it has seen.
fn needed(job: &Job) -> u64 {
    let Finished { units, shards } = Ledger::peek(&job.output, job.node).unwrap_or_default();
    let mut stats = Stats::default();
    units.iter().for_each(|unit| stats.add(&unit.stats));
    let of_samples = 512 * stats.image_blocks
        + stats.record_bytes
        + BYTES_AN_IMAGE * stats.images
        + BYTES_A_SAMPLE * stats.accepted;
    let slice = job.slices()[job.node.0 as usize];
    let seen = bytes_before(job, units.last().map_or(Position::START, |unit| unit.next));
    let has_measured = MeasuredNode::read(&job.output, job.node).is_ok_and(|measured| measured.is_some());
    let whole = match (has_measured, seen) {
        (true, _) => of_samples,
        // Nothing is known of its images: at least its text has to be written.
        (false, 0) => slice,
        (false, seen) => (u128::from(of_samples) * u128::from(slice) / u128::from(seen)) as u64,
    };
    let written: u64 = shards.values().flat_map(|shard| &shard.files).map(|file| file.size).sum();
    whole.saturating_sub(written)
}

/// Bytes of the node's slice before a position.
fn bytes_before(job: &Job, position: Position) -> u64 {
    let parts = job.parts.iter().enumerate().take(position.part + 1);
    parts
        .map(|(number, part)| {
            let end = part.end.unwrap_or(job.tools.inputs[part.source].size);
            let end = if number == position.part { position.offset.min(end) } else { end };
            end.saturating_sub(part.offset)
        })
        .sum()
}
