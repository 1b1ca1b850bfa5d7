//! What the bins look like, without saying which sample is where.

use super::{Limits, PackError, best_fit::best_fit_decreasing};

/// The bins of a packing, grouped: bins with the same content are one pattern with a multiplicity.
///
/// Lengths are in units of `pad_to_multiple` (tokens when that is 1). The samples of one length stand
/// in a row of *slots*, 0 to their number; a bin owns runs of slots. The content of a bin is a chain
/// of nodes shared by all bins with the same beginning, so a split group copies nothing.
#[derive(Debug, Clone)]
pub struct Patterns {
    nodes: Vec<Node>,
    leaves: Vec<Leaf>,
    bins: u64,
    /// The next free slot of each length.
    next_slot: Vec<u64>,
    /// `index[bin >> shift]`: the leaf of the first bin of that stretch; one more at the end.
    index: Vec<u32>,
    shift: u32,
}

/// One step in the history of a group of bins: each got `count` samples of one length.
#[derive(Debug, Clone, Copy)]
struct Node {
    /// The step before, if any ([`ROOT`] otherwise).
    parent: usize,
    /// Bin `i` of this step is bin `i + offset` of the step before.
    offset: u64,
    /// Bin `i` of this step owns the slots from `first_slot + i * count`.
    first_slot: u64,
    length: u32,
    count: u32,
}

/// Bins with one content, in the final numbering.
#[derive(Debug, Clone, Copy)]
struct Leaf {
    tip: Tip,
    first_bin: u64,
}

/// Some bins of a step: those from `offset` on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tip {
    node: usize,
    offset: u64,
}

impl Tip {
    /// The same step without its first `bins` bins.
    pub(super) fn skip(self, bins: u64) -> Self {
        Self { offset: self.offset + bins, ..self }
    }
}

const ROOT: usize = usize::MAX;

/// A pattern: the content of `bins` equal bins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// `(length, how many)` in the order they were placed, lengths in units of `pad_to_multiple`.
    pub content: Vec<(u32, u32)>,
    /// How many bins have this content.
    pub bins: u64,
}

/// Consecutive slots of one length that belong to one bin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The length, in units of `pad_to_multiple`.
    pub length: u32,
    /// The first slot, among all slots of this length.
    pub first_slot: u64,
    /// How many slots.
    pub count: u32,
}

impl Patterns {
    /// Best-fit-decreasing over `histogram`, where `histogram[length]` counts the samples of a length
    /// in units of `pad_to_multiple`. The work and the memory do not depend on the counts.
    ///
    /// `max_images` and `max_patches` are not looked at: they need the samples themselves.
    ///
    /// # Errors
    /// When the limits make no sense, or samples of length 0 or beyond `seq_len` are counted.
    pub fn best_fit(histogram: &[u64], limits: &Limits) -> Result<Self, PackError> {
        limits.validate()?;
        let capacity = limits.capacity();
        let outside = |length: &usize| *length == 0 || *length > capacity as usize;
        let counted = |length: &usize| histogram[*length] > 0;
        if let Some(length) = (0..histogram.len()).filter(outside).find(counted) {
            let count = histogram[length];
            return Err(PackError::Histogram { length: length as u64, count, capacity });
        }
        let mut padded = histogram.to_vec();
        padded.resize(capacity as usize + 1, 0);
        Ok(best_fit_decreasing(&padded, capacity, limits.max_samples))
    }

    /// The number of bins.
    pub fn bins(&self) -> u64 {
        self.bins
    }

    /// The number of patterns.
    pub fn len(&self) -> usize {
        self.leaves.len()
    }

    /// Whether there are no bins.
    pub fn is_empty(&self) -> bool {
        self.leaves.is_empty()
    }

    /// The patterns in the order of the bins.
    pub fn iter(&self) -> impl Iterator<Item = Pattern> + '_ {
        (0..self.leaves.len()).map(|leaf| {
            let first_bin = self.leaves[leaf].first_bin;
            let mut content: Vec<_> = self.runs(first_bin).map(|run| (run.length, run.count)).collect();
            content.reverse();
            Pattern { content, bins: self.first_bin(leaf + 1) - first_bin }
        })
    }

    /// The slots of a bin, those placed last first. Nothing for a bin that does not exist.
    #[inline]
    pub fn runs(&self, bin: u64) -> impl Iterator<Item = Run> + '_ {
        let (mut node, mut index) = match self.leaf(bin) {
            Some(leaf) => (leaf.tip.node, bin - leaf.first_bin + leaf.tip.offset),
            None => (ROOT, 0),
        };
        std::iter::from_fn(move || {
            let step = self.nodes.get(node)?;
            let first_slot = step.first_slot + index * u64::from(step.count);
            node = step.parent;
            index += step.offset;
            Some(Run { length: step.length, first_slot, count: step.count })
        })
    }

    /// The pattern of a bin.
    #[inline]
    fn leaf(&self, bin: u64) -> Option<&Leaf> {
        if bin >= self.bins {
            return None;
        }
        let stretch = (bin >> self.shift) as usize;
        let (from, to) = (self.index[stretch] as usize, self.index[stretch + 1] as usize);
        let later = self.leaves[from + 1..=to].partition_point(|leaf| leaf.first_bin <= bin);
        self.leaves.get(from + later)
    }

    /// The first bin of a pattern; the number of bins for the one past the last.
    fn first_bin(&self, leaf: usize) -> u64 {
        self.leaves.get(leaf).map_or(self.bins, |leaf| leaf.first_bin)
    }
}

/// How the algorithms build patterns.
impl Patterns {
    /// No bins yet.
    pub(super) fn new(capacity: u32) -> Self {
        Self {
            nodes: Vec::new(),
            leaves: Vec::new(),
            bins: 0,
            next_slot: vec![0; capacity as usize + 1],
            index: Vec::new(),
            shift: 0,
        }
    }

    /// Puts `count` samples of `length` into each of `bins` bins: the first ones of `parent`, or new ones.
    pub(super) fn extend(&mut self, parent: Option<Tip>, length: u32, count: u32, bins: u64) -> Tip {
        let (parent, offset) = parent.map_or((ROOT, 0), |tip| (tip.node, tip.offset));
        let slots = &mut self.next_slot[length as usize];
        self.nodes.push(Node { parent, offset, first_slot: *slots, length, count });
        *slots += bins * u64::from(count);
        Tip { node: self.nodes.len() - 1, offset: 0 }
    }

    /// Declares the first `bins` bins of `tip` final.
    pub(super) fn close(&mut self, tip: Tip, bins: u64) {
        self.leaves.push(Leaf { tip, first_bin: self.bins });
        self.bins += bins;
    }

    /// Builds the index from bins to patterns. Called once, when every bin is closed.
    pub(super) fn finish(&mut self) {
        self.next_slot = Vec::new();
        let stretches_wanted = 4 * self.leaves.len() as u64;
        while self.bins >> self.shift > stretches_wanted {
            self.shift += 1;
        }
        let mut leaf = 0;
        let stretches = self.bins.div_ceil(1 << self.shift);
        for stretch in 0..stretches {
            while self.first_bin(leaf + 1) <= stretch << self.shift {
                leaf += 1;
            }
            self.index.push(leaf as u32);
        }
        self.index.push(self.leaves.len().saturating_sub(1) as u32);
    }
}

/// What the rest of the packer asks about patterns as a whole.
impl Patterns {
    /// The range of bins of each pattern, with its room and the samples of one bin.
    pub(super) fn shapes(&self) -> impl Iterator<Item = Shape> + '_ {
        (0..self.leaves.len()).map(|leaf| {
            let bins = self.first_bin(leaf)..self.first_bin(leaf + 1);
            let mut shape = Shape { used: 0, samples: 0, longest: 0, bins };
            for run in self.runs(shape.bins.start) {
                shape.used += run.length * run.count;
                shape.samples += run.count;
                shape.longest = shape.longest.max(run.length);
            }
            shape
        })
    }
}

/// A pattern in numbers, lengths in units of `pad_to_multiple`.
pub(super) struct Shape {
    /// Sum of the lengths in one bin.
    pub(super) used: u32,
    /// Samples in one bin.
    pub(super) samples: u32,
    /// The longest length.
    pub(super) longest: u32,
    /// Which bins.
    pub(super) bins: std::ops::Range<u64>,
}
