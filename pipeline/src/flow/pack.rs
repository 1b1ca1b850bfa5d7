//! Stage 3: commits what was measured unit by unit, packs, and plans the shards.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use packd_config::{DuplicateId, Scope};
use packd_sinks::shard_name;
use packd_stages::bin_pack::{GlobalPacking, Item, Quality, pack};
use tokio::sync::mpsc::{Receiver, Sender};

use super::left_out::find_duplicates;
use super::measure::MeasuredBlock;
use super::packed_part::PackedPart;
use crate::error::Error;
use crate::job::Job;
use crate::progress::{Phase, Progress};
use crate::state::commits::{Commit, MeasuredNode};
use crate::state::ledger::{Ledger, MeasuredUnit, Position};
use crate::state::node::Node;
use crate::state::rows::RowStore;
use crate::state::sorted::{SortedRows, write_sorted};
use crate::state::unit::UnitBuilder;

/// A shard to be written.
pub(crate) struct ShardPlan {
    pub(crate) name: String,
    pub(crate) packs: Range<u64>,
    pub(crate) part: Arc<PackedPart>,
    /// Units whose spools may hold records, of all nodes.
    pub(crate) units: Arc<[MeasuredUnit]>,
    /// Which inputs are read by offset.
    pub(crate) seekable: Arc<[bool]>,
    /// What the shard is made from, see [`measurements`](super::measurements).
    pub(crate) measurements: u64,
}

/// What the stage learned, for the node's commit.
pub(crate) struct Packed {
    pub(crate) qualities: Vec<Quality>,
    pub(crate) shards: Vec<String>,
    /// Number of the first of them, over all nodes with one packing for all.
    pub(crate) first_shard: u64,
    /// See [`measurements`](super::measurements).
    pub(crate) measurements: u64,
    pub(crate) pack_seconds: f64,
    pub(crate) measured_at: Instant,
}

/// Receives measured blocks until they end, then packs and sends the plans of the node's shards.
///
/// With `scope: window` a part is packed as soon as its window is full, so that writing overlaps
/// measuring. With `scope: global` the node waits until all nodes have measured.
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
        seekable: seekable.into(),
        builder: UnitBuilder::default(),
        pending_bytes: 0,
        next: Position::START,
        packed_to: 0,
        next_pack: 0,
        qualities: Vec::new(),
        shards: Vec::new(),
        first_shard: 0,
        measurements: 0,
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
    // Blocks may have stopped coming because a stage before this one failed: only a slice that was read
    // to its end is packed.
    if stage.next.part < job.parts.len() {
        return Ok(None);
    }
    stage.commit_unit()?;
    stage.pack_full_windows()?;
    stage.finish(Instant::now()).map(Some)
}

struct Stage<'a> {
    job: &'a Job,
    ledger: &'a Ledger,
    output: &'a Sender<ShardPlan>,
    /// Units of this node.
    units: Vec<MeasuredUnit>,
    seekable: Arc<[bool]>,
    builder: UnitBuilder,
    /// Bytes of input in the builder.
    pending_bytes: u64,
    /// Where the next block starts.
    next: Position,
    /// Samples of this node that are in a packed window.
    packed_to: u64,
    next_pack: u64,
    qualities: Vec<Quality>,
    shards: Vec<String>,
    first_shard: u64,
    /// See [`measurements`](super::measurements); known once the node has measured.
    measurements: u64,
    pack_seconds: f64,
}

impl Stage<'_> {
    fn take(&mut self, measured: MeasuredBlock) -> Result<(), Error> {
        let MeasuredBlock { block, part, seekable, rows, details, rejects, stats } = measured;
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
            self.builder.part_lines.push((part, block.end_line.saturating_sub(1)));
            Position { part: part + 1, ..Position::START }
        } else {
            Position { part, offset: block.end_offset, line: block.end_line }
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
        let unit = builder.commit(&self.job.output, self.job.node, self.units.len() as u64, self.next)?;
        self.ledger.measured(&unit)?;
        self.units.push(unit);
        Ok(())
    }

    /// The rows of this node.
    fn rows(&self) -> Result<RowStore, Error> {
        RowStore::of_units(&self.job.output, &self.units)
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
            self.pack_own(&rows, self.packed_to..self.packed_to + window)?;
        }
        Ok(())
    }

    fn finish(mut self, measured_at: Instant) -> Result<Packed, Error> {
        self.job.counters().enter(Phase::Pack);
        let rows = Arc::new(self.rows()?);
        self.commit_measured(&rows)?;
        if self.job.config.scope == Scope::Global {
            let nodes = self.wait_for_all()?;
            if needs_all_samples(self.job) { self.pack_gathered(&nodes)? } else { self.pack_global(&nodes)? }
        } else {
            let lost = || Error::Waiting { nodes: vec![self.job.node.0], phase: "measured" };
            self.measurements = super::measurements(self.job, self.job.node)?.ok_or_else(lost)?;
            let rest = self.packed_to..rows.len();
            if !rest.is_empty() {
                self.pack_own(&rows, rest)?;
            }
        }
        Ok(Packed {
            qualities: self.qualities,
            shards: self.shards,
            first_shard: self.first_shard,
            measurements: self.measurements,
            pack_seconds: self.pack_seconds,
            measured_at,
        })
    }

    /// Tells the other nodes what this one measured.
    fn commit_measured(&self, rows: &RowStore) -> Result<(), Error> {
        let (output, node) = (&self.job.output, self.job.node);
        if let Some(measured) = MeasuredNode::read(output, node)?
            && measured.units == self.units
            && super::are_unchanged(self.job, &measured.sorted)?
        {
            return Ok(());
        }
        let (mut histogram, mut sorted) = (Vec::new(), None);
        if self.job.config.scope == Scope::Global && !needs_all_samples(self.job) {
            let (counts, file) = write_sorted(output, node, rows, &self.job.limits)?;
            (histogram, sorted) = (counts, Some(file));
        }
        MeasuredNode { units: self.units.clone(), histogram, sorted }.write(output, node)
    }

    /// What all nodes measured, read at one moment: a node that measures again must not slip in between.
    fn wait_for_all(&mut self) -> Result<Vec<MeasuredNode>, Error> {
        loop {
            super::wait_for::<MeasuredNode>(self.job, self.job.config.wait_timeout, "measured")?;
            let before = super::measurements(self.job, self.job.node)?;
            let nodes: Vec<Node> = self.job.nodes().collect();
            let nodes: Option<Vec<_>> =
                MeasuredNode::read_all(&self.job.output, &nodes)?.into_iter().collect();
            let after = super::measurements(self.job, self.job.node)?;
            if let (Some(nodes), Some(measurements)) = (nodes, before)
                && before == after
            {
                self.measurements = measurements;
                return Ok(nodes);
            }
        }
    }

    /// One packing of the samples of all nodes, computed from their histograms.
    fn pack_global(&mut self, nodes: &[MeasuredNode]) -> Result<(), Error> {
        let started = Instant::now();
        let job = self.job;
        let histograms: Vec<Vec<(u32, u64)>> = nodes.iter().map(|node| node.histogram.clone()).collect();
        let units: Vec<MeasuredUnit> = nodes.iter().flat_map(|node| node.units.iter().cloned()).collect();
        let tokens = units.iter().map(|unit| unit.stats.tokens).sum();
        let packing = GlobalPacking::new(&histograms, tokens, &job.limits, job.algorithm(), job.config.seed)?;
        let mut first_ordinal = 0;
        job.output.fetch(nodes.iter().flat_map(|node| &node.sorted))?;
        let mut sorted = Vec::with_capacity(nodes.len());
        for (node, measured) in job.nodes().zip(nodes) {
            sorted.push(SortedRows::open(&job.output, node, measured, first_ordinal)?);
            first_ordinal += measured.samples();
        }
        self.pack_seconds += started.elapsed().as_secs_f64();
        self.qualities.push(packing.quality().clone());
        let bytes = |unit: &MeasuredUnit| 512 * unit.stats.image_blocks + unit.stats.record_bytes;
        let (packs, bytes) = (packing.len(), units.iter().map(bytes).sum());
        let part = Arc::new(PackedPart::Global { packing, nodes: sorted });
        self.send_shared(part, packs, bytes, units.into())
    }

    /// One packing of the samples of all nodes, in the memory of each of them: image and patch limits and
    /// duplicates need the samples themselves.
    fn pack_gathered(&mut self, nodes: &[MeasuredNode]) -> Result<(), Error> {
        let units: Vec<MeasuredUnit> = nodes.iter().flat_map(|node| node.units.iter().cloned()).collect();
        let rows = Arc::new(RowStore::of_units(&self.job.output, &units)?);
        let left_out = match self.job.config.duplicate_id {
            DuplicateId::Keep => Vec::new(),
            DuplicateId::Reject => {
                find_duplicates(self.job, &units, &rows, |_, row| row.line.into())?.ordinals
            }
        };
        let (part, packs, bytes) = self.pack_rows(&rows, 0..rows.len(), &left_out)?;
        self.send_shared(part, packs, bytes, units.into())
    }

    /// Packs samples of this node only, into shards of their own.
    fn pack_own(&mut self, rows: &Arc<RowStore>, numbers: Range<u64>) -> Result<(), Error> {
        let end = numbers.end;
        let (part, packs, bytes) = self.pack_rows(rows, numbers, &[])?;
        let units: Arc<[MeasuredUnit]> = self.units.clone().into();
        let shards = shard_ranges(packs, bytes, &self.job.config);
        let first = self.shards.len() as u64;
        let shards = (first..)
            .zip(shards)
            .map(|(number, packs)| (number, self.next_pack + packs.start..self.next_pack + packs.end));
        self.send(&part, &units, shards.collect())?;
        self.next_pack += packs;
        self.packed_to = end;
        Ok(())
    }

    /// Packs some rows in memory: the part, its packs, and the bytes that they will take.
    fn pack_rows(
        &mut self,
        rows: &Arc<RowStore>,
        numbers: Range<u64>,
        left_out: &[u64],
    ) -> Result<(Arc<PackedPart>, u64, u64), Error> {
        let started = Instant::now();
        let mut items: Vec<Item> = Vec::with_capacity((numbers.end - numbers.start) as usize);
        let mut kept = Vec::new();
        let (mut bytes, mut number) = (0, numbers.start);
        rows.scan(numbers.clone(), |row| {
            if left_out.binary_search(&number).is_err() {
                items.push(row.item());
                if !left_out.is_empty() {
                    kept.push(number);
                }
                bytes += 512 * u64::from(row.stored) + u64::from(row.len);
            }
            number += 1;
        })?;
        let packing = pack(&items, &self.job.limits, self.job.algorithm(), self.job.config.seed)?;
        self.pack_seconds += started.elapsed().as_secs_f64();
        self.qualities.push(packing.quality().clone());
        let packs = packing.len();
        let part = PackedPart::Gathered {
            packing,
            rows: Arc::clone(rows),
            first_row: numbers.start,
            kept: (!left_out.is_empty()).then_some(kept),
            first_pack: self.next_pack,
        };
        Ok((Arc::new(part), packs, bytes))
    }

    /// Sends the plans of this node's share of shards that are numbered over all nodes.
    fn send_shared(
        &mut self,
        part: Arc<PackedPart>,
        packs: u64,
        bytes: u64,
        units: Arc<[MeasuredUnit]>,
    ) -> Result<(), Error> {
        let shards = shard_ranges(packs, bytes, &self.job.config);
        let (node, nodes) = (self.job.node.0 as usize, self.job.config.nodes as usize);
        let own = shards.len() * node / nodes..shards.len() * (node + 1) / nodes;
        self.first_shard = own.start as u64;
        let numbered = (0..).zip(shards).skip(own.start).take(own.len());
        self.send(&part, &units, numbered.collect())
    }

    fn send(
        &mut self,
        part: &Arc<PackedPart>,
        units: &Arc<[MeasuredUnit]>,
        shards: Vec<(u64, Range<u64>)>,
    ) -> Result<(), Error> {
        // A window is packed before the node has measured all: dropping units voids its shards.
        let measurements = if self.job.config.scope == Scope::Window { 0 } else { self.measurements };
        let counters = self.job.counters();
        Progress::add(&counters.packs, shards.iter().map(|(_, packs)| packs.end - packs.start).sum());
        Progress::add(&counters.shards, shards.len() as u64);
        for (number, packs) in shards {
            let name = shard_name(&self.job.prefix(), number);
            self.shards.push(name.clone());
            let plan = ShardPlan {
                name,
                packs,
                part: Arc::clone(part),
                units: Arc::clone(units),
                seekable: Arc::clone(&self.seekable),
                measurements,
            };
            if self.output.blocking_send(plan).is_err() {
                // The writer failed; its error is the one that counts.
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }
}

/// Whether histograms are not enough to pack the samples of all nodes.
fn needs_all_samples(job: &Job) -> bool {
    job.limits.max_images.is_some()
        || job.limits.max_patches.is_some()
        || job.config.duplicate_id == DuplicateId::Reject
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
