//! Records that were accepted, and are left out of the packs after all.
//!
//! * `duplicate_id: reject`: the first record of an id is packed, later ones go to the rejects.
//! * `image_changed: reject`: so do those whose images were not there any more when their shard was written.

use std::collections::BTreeMap;

use packd_contracts::Reason;
use packd_sinks::{LostSample, Reject};
use packd_sources::Input;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::Error;
use crate::job::Job;
use crate::state::ledger::MeasuredUnit;
use crate::state::rows::{Row, RowStore};
use crate::state::stats::Stats;
use crate::state::unit::fetch_texts;

/// Records that go to the rejects late.
#[derive(Debug, Default)]
pub(crate) struct LeftOut {
    pub(crate) rejects: Vec<Reject>,
    /// Their ordinals, sorted.
    pub(crate) ordinals: Vec<u64>,
    /// What was counted of them when they were accepted.
    lost: Stats,
}

impl LeftOut {
    /// Counts them as rejected.
    pub(crate) fn apply(&self, stats: &mut Stats) {
        let lost = &self.lost;
        for reject in &self.rejects {
            *stats.rejected.entry(reject.reason).or_default() += 1;
        }
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

    /// Puts them into the order of the input.
    pub(crate) fn sort(&mut self, inputs: &[Input]) {
        let source = |reject: &Reject| inputs.iter().position(|input| input.name == reject.source);
        self.rejects.sort_by_key(|reject| (source(reject), reject.byte_offset));
        self.ordinals.sort_unstable();
    }

    fn push(&mut self, ordinal: u64, row: &Row, counts: Counts, reject: Reject) {
        self.ordinals.push(ordinal);
        self.rejects.push(reject);
        let (text_tokens, image_tokens, truncated) = counts;
        let lost = &mut self.lost;
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

    /// Adds samples that shards had to do without; `lost` by ordinal, with the line of each in its input.
    pub(crate) fn add_lost(
        &mut self,
        job: &Job,
        units: &[MeasuredUnit],
        rows: &RowStore,
        lost: &BTreeMap<u64, (LostSample, u64)>,
    ) -> Result<(), Error> {
        let mut first = 0;
        for unit in units {
            let here = lost.range(first..first + unit.samples);
            let details =
                if here.clone().next().is_some() { unit.read_details(&job.output)? } else { Vec::new() };
            for (ordinal, (LostSample { sub_sample, verdict }, line)) in here {
                let details = &details[(ordinal - first) as usize];
                let counts = (details.text_tokens, details.image_tokens, details.rounds_dropped > 0);
                let reject = Reject {
                    source: job.tools.inputs[sub_sample.source].name.clone(),
                    line: *line,
                    byte_offset: sub_sample.offset,
                    id: sub_sample.id.clone(),
                    reason: verdict.reason,
                    detail: verdict.detail.clone(),
                };
                self.push(*ordinal, &rows.get(*ordinal)?, counts, reject);
            }
            first += unit.samples;
        }
        Ok(())
    }
}

/// Text tokens, image tokens, and whether rounds were dropped.
type Counts = (u32, u32, bool);

/// Finds them by 64-bit hashes and confirms each by its text. `line_of` is the line of a record in its input,
/// by ordinal and row.
pub(crate) fn find_duplicates(
    job: &Job,
    units: &[MeasuredUnit],
    rows: &RowStore,
    line_of: impl Fn(u64, &Row) -> u64,
) -> Result<LeftOut, Error> {
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
    let mut duplicates = LeftOut::default();
    for (ordinal, first, id, counts) in found {
        let row = rows.get(ordinal)?;
        let name = |source: u16| job.tools.inputs[usize::from(source)].name.clone();
        let first_row = rows.get(first)?;
        let detail =
            format!("the id stands first at {}:{}", name(first_row.source), line_of(first, &first_row));
        let reject = Reject {
            source: name(row.source),
            line: line_of(ordinal, &row),
            byte_offset: row.offset,
            id: Some(id),
            reason: Reason::DuplicateId,
            detail,
        };
        duplicates.push(ordinal, &row, counts, reject);
    }
    Ok(duplicates)
}

fn for_each_id(
    job: &Job,
    units: &[MeasuredUnit],
    mut each: impl FnMut(u64, &str, Counts),
) -> Result<(), Error> {
    let mut ordinal = 0;
    fetch_texts(&job.output, units)?;
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
