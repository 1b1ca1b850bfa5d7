//! `duplicate_id: reject`: the first record of an id is packed, later ones go to the rejects.

use packd_contracts::Reason;
use packd_sinks::Reject;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;
use crate::job::Job;
use crate::state::ledger::MeasuredUnit;
use crate::state::rows::{Row, RowStore};
use crate::state::stats::Stats;

/// Records whose id came before.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    pub(crate) rejects: Vec<Reject>,
    /// Their ordinals, sorted.
    pub(crate) ordinals: Vec<u64>,
    /// What was counted of them when they were accepted.
    lost: Stats,
}

impl Duplicates {
    /// Counts them as rejected.
    pub(crate) fn apply(&self, stats: &mut Stats) {
        let lost = &self.lost;
        if lost.accepted == 0 {
            return;
        }
        *stats.rejected.entry(Reason::DuplicateId).or_default() += lost.accepted;
        stats.accepted -= lost.accepted;
        stats.tokens -= lost.tokens;
        stats.text_tokens -= lost.text_tokens;
        stats.image_tokens -= lost.image_tokens;
        stats.images -= lost.images;
        stats.patches -= lost.patches;
        stats.record_bytes -= lost.record_bytes;
        stats.image_blocks -= lost.image_blocks;
        stats.truncated -= lost.truncated;
    }
}

/// Finds them by 64-bit hashes and confirms each by its text. `line_of` is the line of a record in its input,
/// by ordinal and row.
pub(crate) fn find_duplicates(
    job: &Job,
    units: &[MeasuredUnit],
    rows: &RowStore,
    line_of: impl Fn(u64, &Row) -> u64,
) -> Result<Duplicates, Error> {
    let mut hashes: Vec<(u64, u64)> = Vec::with_capacity(rows.len() as usize);
    for_each_id(job, units, |ordinal, id, _| hashes.push((xxh3_64(id.as_bytes()), ordinal)))?;
    hashes.sort_unstable();
    // Ordinals whose hash came before, and those of the first of each such hash.
    let suspects: std::collections::BTreeSet<u64> = hashes
        .chunk_by(|a, b| a.0 == b.0)
        .filter(|same| same.len() > 1)
        .flatten()
        .map(|(_, ordinal)| *ordinal)
        .collect();
    drop(hashes);
    let mut first_of = std::collections::HashMap::new();
    let mut found = Vec::new();
    for_each_id(job, units, |ordinal, id, details| {
        if !suspects.contains(&ordinal) {
            return;
        }
        match first_of.entry(id.to_owned()) {
            std::collections::hash_map::Entry::Vacant(slot) => {
                slot.insert(ordinal);
            }
            std::collections::hash_map::Entry::Occupied(first) => {
                found.push((ordinal, *first.get(), id.to_owned(), details));
            }
        }
    })?;
    let mut duplicates = Duplicates::default();
    for (ordinal, first, id, (text_tokens, image_tokens, truncated)) in found {
        let row = rows.get(ordinal)?;
        let name = |source: u16| job.tools.inputs[usize::from(source)].name.clone();
        let first_row = rows.get(first)?;
        let detail =
            format!("the id stands first at {}:{}", name(first_row.source), line_of(first, &first_row));
        duplicates.ordinals.push(ordinal);
        duplicates.rejects.push(Reject {
            source: name(row.source),
            line: line_of(ordinal, &row),
            byte_offset: row.offset,
            id: Some(id),
            reason: Reason::DuplicateId,
            detail,
        });
        let lost = &mut duplicates.lost;
        lost.accepted += 1;
        lost.tokens += u64::from(row.length);
        lost.text_tokens += u64::from(text_tokens);
        lost.image_tokens += u64::from(image_tokens);
        lost.images += u64::from(row.images);
        lost.patches += u64::from(row.patches);
        lost.record_bytes += u64::from(row.len);
        lost.image_blocks += u64::from(row.stored);
        lost.truncated += u64::from(truncated);
    }
    Ok(duplicates)
}

fn for_each_id(
    job: &Job,
    units: &[MeasuredUnit],
    mut each: impl FnMut(u64, &str, (u32, u32, bool)),
) -> Result<(), Error> {
    let mut ordinal = 0;
    for unit in units {
        for details in unit.read_details(&job.output)? {
            if let Some(id) = &details.id {
                each(ordinal, id, (details.text_tokens, details.image_tokens, details.rounds_dropped > 0));
            }
            ordinal += 1;
        }
    }
    Ok(())
}
