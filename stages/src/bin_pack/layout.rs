//! The content of every pack in one array, in the final order.

use std::ops::Range;

use super::{
    patterns::Patterns,
    places::Places,
    shuffle::{Permutation, Random, TabledPermutation},
};

/// The samples of all packs, pack after pack: 4 bytes a sample and 4 a pack.
#[derive(Debug, Clone, Default)]
pub(super) struct Layout {
    /// Where each pack begins in `ordinals`; one more at the end.
    starts: Vec<u32>,
    pub(super) ordinals: Vec<u32>,
}

/// Streams of random numbers: the order of packs, and again once limits changed packs.
pub(super) const ORDER: u64 = 1;
const ORDER_OF_CHANGED: u64 = 2;
/// One stream for each pack follows.
pub(super) const INSIDE: u64 = 2 << 32;

/// Samples that are brought into order at a time, small enough for the first cache.
const BLOCK: usize = 4096;
/// Packs that are written at random at a time, few enough for the second cache, as a power of two; and
/// how many such groups there are at most, so that their ends stay in the caches as well.
const GROUP_BITS: u32 = 12;
const MAX_GROUPS_BITS: u32 = 10;

impl Layout {
    /// Fills the bins of the patterns with samples, and puts the bins and the samples inside each into
    /// their final, seeded order.
    ///
    /// A pack goes from its place among the patterns to a random one. To spare the caches that happens
    /// in two steps, as in a radix sort: to the group of its final place, then to the place itself.
    pub(super) fn new(patterns: &Patterns, places: Places, seed: u64) -> Self {
        let order = Permutation::new(patterns.bins(), seed, ORDER).tabled();
        let starts = starts_in_order(patterns, &order);

        let bits = u64::BITS - patterns.bins().leading_zeros();
        let group_bits = GROUP_BITS.max(bits.saturating_sub(MAX_GROUPS_BITS));
        // Every pack is preceded by its place, hence a word more for each pack before the group.
        let mut group_ends: Vec<usize> = (0..starts.len())
            .step_by(1 << group_bits)
            .map(|first_pack| starts[first_pack] as usize + first_pack)
            .collect();
        let mut grouped = vec![0u32; places.ordinals.len() + patterns.bins() as usize];
        let mut block = Vec::new();
        for shape in patterns.shapes() {
            let samples = shape.samples as usize;
            for first_bin in shape.bins.clone().step_by((BLOCK / samples).max(1)) {
                let bins = first_bin..shape.bins.end.min(first_bin + (BLOCK / samples).max(1) as u64);
                fill(&mut block, patterns, &places, samples, bins.clone());
                for (bin, members) in bins.zip(block.chunks_exact_mut(samples)) {
                    let pack = order.at(bin as u32);
                    Random::new(seed, INSIDE + u64::from(pack)).shuffle(members);
                    let end = &mut group_ends[(pack >> group_bits) as usize];
                    grouped[*end] = pack;
                    grouped[*end + 1..*end + 1 + samples].copy_from_slice(members);
                    *end += 1 + samples;
                }
            }
        }

        let mut ordinals = places.ordinals;
        let mut rest = grouped.as_slice();
        while let Some((&pack, after)) = rest.split_first() {
            let target = starts[pack as usize] as usize..starts[pack as usize + 1] as usize;
            let (members, others) = after.split_at(target.len());
            ordinals[target].copy_from_slice(members);
            rest = others;
        }
        Self { starts, ordinals }
    }

    /// Appends a pack.
    pub(super) fn push(&mut self, members: &[u32]) {
        if self.starts.is_empty() {
            self.starts.push(0);
        }
        self.ordinals.extend_from_slice(members);
        self.starts.push(self.ordinals.len() as u32);
    }

    /// Puts the packs and the samples inside each into a new seeded order, after some were changed and
    /// some appended.
    pub(super) fn shuffled(&self, seed: u64) -> Self {
        let order = Permutation::new(self.packs() as u64, seed, ORDER_OF_CHANGED);
        let mut shuffled = Self::default();
        let mut members = Vec::new();
        for pack in 0..self.packs() as u64 {
            members.clear();
            members.extend_from_slice(self.members(order.at(pack) as usize));
            Random::new(seed, INSIDE + pack).shuffle(&mut members);
            shuffled.push(&members);
        }
        shuffled
    }

    /// The number of packs.
    pub(super) fn packs(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// The places of a pack's samples in `ordinals`.
    #[inline]
    pub(super) fn places(&self, pack: usize) -> Range<usize> {
        self.starts[pack] as usize..self.starts[pack + 1] as usize
    }

    /// The samples of a pack.
    #[inline]
    pub(super) fn members(&self, pack: usize) -> &[u32] {
        &self.ordinals[self.places(pack)]
    }
}

/// Where each pack begins, in the final order; one more at the end.
fn starts_in_order(patterns: &Patterns, order: &TabledPermutation) -> Vec<u32> {
    let mut starts = vec![0u32; patterns.bins() as usize + 1];
    for shape in patterns.shapes() {
        for bin in shape.bins {
            starts[order.at(bin as u32) as usize + 1] = shape.samples;
        }
    }
    for pack in 1..starts.len() {
        starts[pack] += starts[pack - 1];
    }
    starts
}

/// Replaces `block` with the content of consecutive bins of one pattern.
fn fill(block: &mut Vec<u32>, patterns: &Patterns, places: &Places, samples: usize, bins: Range<u64>) {
    block.resize((bins.end - bins.start) as usize * samples, 0);
    let mut offset = 0;
    for run in patterns.runs(bins.start) {
        let first = places.starts[run.length as usize] as usize + run.first_slot as usize;
        for sample in 0..run.count as usize {
            let targets = block[offset + sample..].iter_mut().step_by(samples);
            let sources = places.ordinals[first + sample..].iter().step_by(run.count as usize);
            targets.zip(sources).for_each(|(target, &source)| *target = source);
        }
        offset += run.count as usize;
    }
}
