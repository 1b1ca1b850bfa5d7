//! A packing of samples that lie on many nodes, from their histograms alone.

use super::{
    Algorithm, Limits, PackError, Permutation,
    best_fit::best_fit_decreasing,
    first_fit::first_fit_decreasing,
    layout::{INSIDE, ORDER},
    patterns::Patterns,
    places::LENGTHS,
    quality::Quality,
    shuffle::Random,
};

/// The packing that [`pack`](super::pack) finds for the samples of all nodes together, node after node,
/// without an array over the samples: the members of any pack are computed when they are asked for.
///
/// Every node that knows the histogram of every node has the same packing. Memory: 8 bytes for each node
/// and each length that occurs, and the [`Patterns`]. Limits on images and patches cannot be held this way, as they need
/// the samples themselves.
#[derive(Debug, Clone)]
pub struct GlobalPacking {
    patterns: Patterns,
    order: Permutation,
    /// For each class that occurs, the permutation of its slots.
    slots: Vec<Permutation>,
    /// The classes that occur, ascending.
    classes: Vec<u32>,
    /// `before[place * (nodes + 1) + node]`: samples of the class at `place` on the nodes before `node`.
    before: Vec<u64>,
    nodes: usize,
    seed: u64,
    quality: Quality,
}

/// A sample as its node knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// The node that measured it.
    pub node: u32,
    /// Its length in units of `pad_to_multiple` ([`Limits::class`]).
    pub class: u32,
    /// Its rank among the samples of this class on its node, in the order of the input.
    pub rank: u64,
}

impl GlobalPacking {
    /// Packs the samples that `histograms` count: for each node the classes that occur there ([`Limits::class`]
    /// of a length), and how many samples have them. `tokens` is the sum of all lengths.
    ///
    /// # Errors
    /// When the limits make no sense or limit images or patches, or a histogram counts samples of class 0
    /// or beyond `seq_len`.
    pub fn new(
        histograms: &[Vec<(u32, u64)>],
        tokens: u64,
        limits: &Limits,
        algorithm: Algorithm,
        seed: u64,
    ) -> Result<Self, PackError> {
        limits.validate()?;
        if limits.limits_vision() {
            let rule = "needs the samples themselves: use `pack`";
            let (limit, value) = match limits.max_images {
                Some(images) => ("max_images", images.into()),
                None => ("max_patches", limits.max_patches.unwrap_or(0)),
            };
            return Err(PackError::Limit { limit, value, rule });
        }
        let capacity = limits.capacity();
        let nodes = histograms.len();
        let mut total = vec![0; capacity as usize + 1];
        for &(class, count) in histograms.iter().flatten().filter(|(_, count)| *count > 0) {
            if class == 0 || class > capacity {
                return Err(PackError::Histogram { length: class.into(), count, capacity });
            }
            total[class as usize] += count;
        }
        let classes: Vec<u32> = (0..=capacity).filter(|class| total[*class as usize] > 0).collect();
        let mut before = vec![0; classes.len() * (nodes + 1)];
        for (node, histogram) in histograms.iter().enumerate() {
            for (class, count) in histogram {
                if let Ok(place) = classes.binary_search(class) {
                    before[place * (nodes + 1) + node + 1] = *count;
                }
            }
        }
        for of_class in before.chunks_exact_mut(nodes + 1) {
            for node in 1..=nodes {
                of_class[node] += of_class[node - 1];
            }
        }
        let patterns = match algorithm {
            Algorithm::BestFitDecreasing => best_fit_decreasing(&total, capacity, limits.max_samples),
            Algorithm::FirstFitDecreasing => first_fit_decreasing(&total, capacity, limits.max_samples),
        };
        let permutation =
            |class: &u32| Permutation::new(total[*class as usize], seed, LENGTHS + u64::from(*class));
        let slots = classes.iter().map(permutation).collect();
        let quality = Quality::of_patterns(&patterns, limits, &total, tokens);
        Ok(Self {
            order: Permutation::new(patterns.bins(), seed, ORDER),
            slots,
            patterns,
            classes,
            before,
            nodes,
            seed,
            quality,
        })
    }

    /// The number of packs.
    pub fn len(&self) -> u64 {
        self.patterns.bins()
    }

    /// Whether there are no packs: there were no samples.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The samples of pack `pack` in their final order. Nothing for a pack that does not exist.
    pub fn members(&self, pack: u64) -> Vec<Member> {
        if pack >= self.len() {
            return Vec::new();
        }
        let bin = self.order.index_of(pack);
        let mut members = Vec::new();
        for run in self.patterns.runs(bin) {
            for slot in run.first_slot..run.first_slot + u64::from(run.count) {
                members.push(self.member(run.length, slot));
            }
        }
        Random::new(self.seed, INSIDE + pack).shuffle(&mut members);
        members
    }

    fn member(&self, class: u32, slot: u64) -> Member {
        // Patterns hold classes that occur, and nothing else.
        let place = self.classes.partition_point(|known| *known < class);
        let among_all = self.slots[place].at(slot);
        let before = &self.before[place * (self.nodes + 1)..][..=self.nodes];
        // Nodes without a sample of the class begin where the next one begins.
        let node = before.partition_point(|&before| before <= among_all) - 1;
        Member { node: node as u32, class, rank: among_all - before[node] }
    }

    /// How good the packing is.
    pub fn quality(&self) -> &Quality {
        &self.quality
    }
}
