//! Stage 3: commits what was measured unit by unit, packs, and plans the shards.

use std::ops::Range;
use std::sync::Arc;

use packd_config::{DuplicateId, Scope};
use packd_sinks::{Reject, shard_name};
use packd_stages::bin_pack::{Item, Packing, Quality, pack};
use tokio::sync::mpsc::{Receiver, Sender};

use super::duplicates::{Duplicates, find_duplicates};
use super::measure::MeasuredBlock;
use crate::error::Error;
use crate::job::Job;
use crate::progress::{Phase, Progress};
use crate::state::ledger::{Ledger, MeasuredUnit, Position};
use crate::state::rows::RowStore;
use crate::state::stats::Stats;
use crate::state::unit::UnitBuilder;

/// A packing of a part of the samples (all of them with `scope: global`).
pub(crate) struct PackedPart {
    packing: Packing,
    /// Ordinal of the part's first sample.
    first_ordinal: u64,
    /// Ordinals of the part's samples, where some are left out (`duplicate_id: reject`).
    ordinals: Option<Vec<u64>>,
    /// Number of the part's first pack in the run.
    first_pack: u64,
}

impl PackedPart {
    /// The ordinals of the samples in a pack of the run.
    pub(crate) fn members(&self, pack: u64) -> impl Iterator<Item = u64> + '_ {
        let members = self.packing.members(pack - self.first_pack);
        members.iter().map(move |member| match &self.ordinals {
            Some(ordinals) => ordinals[*member as usize],
            None => self.first_ordinal + u64::from(*member),
        })
    }
}

/// A shard to be written.
pub(crate) struct ShardPlan {
    pub(crate) name: String,
    pub(crate) packs: Range<u64>,
    pub(crate) part: Arc<PackedPart>,
    pub(crate) rows: Arc<RowStore>,
    /// Units whose spools may hold records.
    pub(crate) units: Arc<[MeasuredUnit]>,
    /// Which inputs are read by offset.
    pub(crate) seekable: Arc<[bool]>,
}

/// What the stage learned, for the tables and the report.
pub(crate) struct Packed {
    pub(crate) units: Arc<[MeasuredUnit]>,
    pub(crate) rows: Arc<RowStore>,
    pub(crate) stats: Stats,
    pub(crate) duplicates: Vec<Reject>,
    /// Ordinals of the duplicates, sorted.
    pub(crate) left_out: Vec<u64>,
    pub(crate) qualities: Vec<Quality>,
    pub(crate) shards: Vec<String>,
    pub(crate) pack_seconds: f64,
    pub(crate) measured_at: std::time::Instant,
}

/// Receives measured blocks until they end, then packs and sends the plans of all shards.
///
/// With `scope: window` a part is packed as soon as its window is full, so that writing overlaps
/// measuring.
pub(crate) fn bin_pack(
    job: &Job,
    ledger: &Ledger,
    finished: Vec<MeasuredUnit>,
    seekable: Vec<bool>,
    mut input: Receiver<MeasuredBlock>,
    output: &Sender<ShardPlan>,
) -> Result<Option<Packed>, Error> {
    let mut stage = Stage {
        job,
        ledger,
        output,
        units: finished,
        seekable,
        builder: UnitBuilder::default(),
        pending_bytes: 0,
        next: Position::START,
        packed_to: 0,
        next_pack: 0,
        qualities: Vec::new(),
        shards: Vec::new(),
        pack_seconds: 0.0,
    };
    if let Some(unit) = stage.units.last() {
        stage.next = unit.next;
    }
    stage.pack_full_windows()?;
    while let Some(block) = input.blocking_recv() {
        stage.take(block)?;
    }
    if job.cancelled() {
        return Err(Error::Interrupted);
    }
    // Blocks may have stopped coming because a stage before this one failed: only an input that was read
    // to its end is packed.
    if stage.next.source < job.tools.inputs.len() {
        return Ok(None);
    }
    stage.commit_unit()?;
    stage.pack_full_windows()?;
    let measured_at = std::time::Instant::now();
    stage.finish(measured_at).map(Some)
}

struct Stage<'a> {
    job: &'a Job,
    ledger: &'a Ledger,
    output: &'a Sender<ShardPlan>,
    units: Vec<MeasuredUnit>,
    seekable: Vec<bool>,
    builder: UnitBuilder,
    /// Bytes of input in the builder.
    pending_bytes: u64,
    /// Where the next block starts.
    next: Position,
    /// Samples that are in a packed window.
    packed_to: u64,
    next_pack: u64,
    qualities: Vec<Quality>,
    shards: Vec<String>,
    pack_seconds: f64,
}

impl Stage<'_> {
    fn take(&mut self, measured: MeasuredBlock) -> Result<(), Error> {
        let MeasuredBlock { block, seekable, rows, details, rejects, stats } = measured;
        let counters = self.job.counters();
        Progress::add(&counters.read, stats.read);
        Progress::add(&counters.accepted, stats.accepted);
        Progress::add(&counters.rejected, stats.rejected_total());
        if !seekable {
            self.builder.spool(&block);
        }
        self.builder.rows.extend(rows);
        self.builder.details.extend(details);
        self.builder.rejects.extend(rejects);
        self.builder.stats.add(&stats);
        self.pending_bytes += block.bytes.len() as u64;
        self.next = if block.end_of_source {
            Position { source: block.source + 1, offset: 0, line: 1 }
        } else {
            Position { source: block.source, offset: block.end_offset, line: block.end_line }
        };
        if self.pending_bytes >= self.job.unit_bytes {
            self.commit_unit()?;
            self.pack_full_windows()?;
        }
        Ok(())
    }

    fn commit_unit(&mut self) -> Result<(), Error> {
        if self.units.last().map_or(Position::START, |unit| unit.next) == self.next {
            return Ok(());
        }
        let builder = std::mem::take(&mut self.builder);
        self.pending_bytes = 0;
        let unit = builder.commit(&self.job.output, self.units.len() as u64, self.next)?;
        self.ledger.measured(&unit)?;
        self.units.push(unit);
        Ok(())
    }

    fn rows(&self) -> Result<RowStore, Error> {
        RowStore::open(self.units.iter().map(|unit| (unit.rows_path(&self.job.output), unit.samples)))
    }

    fn pack_full_windows(&mut self) -> Result<(), Error> {
        if self.job.config.scope != Scope::Window {
            return Ok(());
        }
        let measured: u64 = self.units.iter().map(|unit| unit.samples).sum();
        let window = self.job.config.window;
        if measured - self.packed_to < window {
            return Ok(());
        }
        let rows = Arc::new(self.rows()?);
        while measured - self.packed_to >= window {
            self.pack_part(&rows, self.packed_to..self.packed_to + window, None)?;
        }
        Ok(())
    }

    fn finish(mut self, measured_at: std::time::Instant) -> Result<Packed, Error> {
        self.job.counters().enter(Phase::Pack);
        let mut stats = Stats::default();
        self.units.iter().for_each(|unit| stats.add(&unit.stats));
        let rows = Arc::new(self.rows()?);
        let Duplicates { rejects, ordinals: left_out } = match self.job.config.duplicate_id {
            DuplicateId::Keep => Duplicates::default(),
            DuplicateId::Reject => find_duplicates(self.job, &self.units, &rows, &mut stats)?,
        };
        let rest = self.packed_to..rows.len();
        if !rest.is_empty() {
            self.pack_part(&rows, rest, (!left_out.is_empty()).then_some(left_out.as_slice()))?;
        }
        Ok(Packed {
            units: self.units.into(),
            rows,
            stats,
            duplicates: rejects,
            left_out,
            qualities: self.qualities,
            shards: self.shards,
            pack_seconds: self.pack_seconds,
            measured_at,
        })
    }

    fn pack_part(
        &mut self,
        rows: &Arc<RowStore>,
        part: Range<u64>,
        left_out: Option<&[u64]>,
    ) -> Result<(), Error> {
        let started = std::time::Instant::now();
        let mut items: Vec<Item> = Vec::with_capacity((part.end - part.start) as usize);
        let mut ordinals: Option<Vec<u64>> = left_out.map(|_| Vec::new());
        let (mut bytes, mut ordinal) = (0, part.start);
        rows.scan(part.clone(), |row| {
            if left_out.is_none_or(|left_out| left_out.binary_search(&ordinal).is_err()) {
                items.push(row.item());
                if let Some(ordinals) = ordinals.as_mut() {
                    ordinals.push(ordinal);
                }
                bytes += 512 * u64::from(row.stored) + u64::from(row.len);
            }
            ordinal += 1;
        })?;
        let packing = pack(&items, &self.job.limits, self.job.algorithm(), self.job.config.seed)?;
        drop(items);
        self.pack_seconds += started.elapsed().as_secs_f64();
        self.qualities.push(packing.quality().clone());
        let packs = packing.len();
        let counters = self.job.counters();
        Progress::add(&counters.packs, packs);
        let first_pack = self.next_pack;
        let packed = Arc::new(PackedPart { packing, first_ordinal: part.start, ordinals, first_pack });
        let units: Arc<[MeasuredUnit]> = self.units.clone().into();
        let seekable: Arc<[bool]> = self.seekable.clone().into();
        let ranges = shard_ranges(packs, bytes, &self.job.config);
        Progress::add(&counters.shards, ranges.len() as u64);
        for range in ranges {
            let name = shard_name(&self.job.config.shard_prefix, self.shards.len() as u64);
            self.shards.push(name.clone());
            let plan = ShardPlan {
                name,
                packs: first_pack + range.start..first_pack + range.end,
                part: Arc::clone(&packed),
                rows: Arc::clone(rows),
                units: Arc::clone(&units),
                seekable: Arc::clone(&seekable),
            };
            if self.output.blocking_send(plan).is_err() {
                // The writer failed; its error is the one that counts.
                return Err(Error::Interrupted);
            }
        }
        self.next_pack += packs;
        self.packed_to = part.end;
        Ok(())
    }
}

/// Equal numbers of packs (±1) in as few shards as the limits allow: by count, and by the bytes that
/// measuring found, with a tenth more for headers and json.
fn shard_ranges(packs: u64, bytes: u64, config: &packd_config::Config) -> Vec<Range<u64>> {
    let by_count = packs.div_ceil(config.max_samples_per_shard);
    let by_bytes = (bytes + bytes / 10).div_ceil(config.max_shard_size.0);
    // A val split takes whole shards: there must be one to spare.
    let least = if config.val_fraction > 0.0 { 2 } else { 1 };
    let shards = by_count.max(by_bytes).max(least);
    let multiple = shards.checked_next_multiple_of(config.shards_multiple).unwrap_or(u64::MAX);
    let shards = multiple.min(packs);
    if shards < multiple && config.shards_multiple > 1 && packs > 0 {
        tracing::warn!(packs, shards_multiple = config.shards_multiple, "too few packs: one shard for each");
    }
    (0..shards).map(|shard| packs * shard / shards..packs * (shard + 1) / shards).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use packd_config::{ByteSize, Config};

    #[test]
    fn shards_are_even_and_never_empty() {
        let config = |per_shard, size, multiple| Config {
            max_samples_per_shard: per_shard,
            max_shard_size: ByteSize(size),
            shards_multiple: multiple,
            ..Config::default()
        };
        let sizes = |packs, bytes, config: &Config| -> Vec<u64> {
            shard_ranges(packs, bytes, config).iter().map(|range| range.end - range.start).collect()
        };
        assert_eq!(sizes(0, 0, &config(10, 100, 1)), [0_u64; 0]);
        assert_eq!(sizes(10, 0, &config(10, 100, 1)), [10]);
        assert_eq!(sizes(11, 0, &config(10, 100, 1)), [5, 6]);
        assert_eq!(sizes(11, 100, &config(100, 100, 1)), [5, 6], "a tenth more than the bytes");
        assert_eq!(sizes(11, 0, &config(100, 100, 4)), [2, 3, 3, 3]);
        assert_eq!(sizes(3, 0, &config(100, 100, 8)), [1, 1, 1]);
    }
}
