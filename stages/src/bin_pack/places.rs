//! Which sample is in which slot of the patterns.

use super::{item::Item, limits::Limits, shuffle::Permutation};

/// The sample of every slot, the slots of one length in a row.
pub(super) struct Places {
    /// Where each length begins in `ordinals`.
    pub(super) starts: Vec<u32>,
    pub(super) ordinals: Vec<u32>,
}

/// One stream of random numbers for each length follows.
pub(super) const LENGTHS: u64 = 1 << 32;

impl Places {
    /// A counting sort by reserved length, then a seeded permutation of every length.
    pub(super) fn new(items: &[Item], limits: &Limits, histogram: &[u64], seed: u64) -> Self {
        let (starts, mut ordinals) = sort_by_length(items, limits, histogram);
        let mut sorted = Vec::new();
        for (length, (&start, &samples)) in (0u64..).zip(starts.iter().zip(histogram)) {
            if samples < 2 {
                continue;
            }
            let slots = &mut ordinals[start as usize..start as usize + samples as usize];
            sorted.clear();
            sorted.extend_from_slice(slots);
            let permutation = Permutation::new(samples, seed, LENGTHS + length).tabled();
            for (slot, ordinal) in (0u32..).zip(slots) {
                *ordinal = sorted[permutation.at(slot) as usize];
            }
        }
        Self { starts, ordinals }
    }
}

/// Where each length begins, and the ordinals by reserved length, equal ones in input order.
fn sort_by_length(items: &[Item], limits: &Limits, histogram: &[u64]) -> (Vec<u32>, Vec<u32>) {
    let mut next = 0;
    let starts: Vec<u32> = histogram
        .iter()
        .map(|&samples| {
            next += samples as u32;
            next - samples as u32
        })
        .collect();
    let mut cursors = starts.clone();
    let mut ordinals = vec![0u32; items.len()];
    for (ordinal, item) in items.iter().enumerate() {
        let cursor = &mut cursors[limits.class(item.length) as usize];
        ordinals[*cursor as usize] = ordinal as u32;
        *cursor += 1;
    }
    (starts, ordinals)
}
