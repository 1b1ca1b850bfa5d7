//! First-fit-decreasing, for comparison: really first-fit, by a search tree over the bins.

use super::patterns::{Patterns, Tip};

/// The room of every bin, in the order they were opened, with the largest room of each subtree.
struct RoomTree {
    /// A heap: node `i` has children `2i` and `2i + 1`; the leaves are the last `width` nodes.
    largest: Vec<u32>,
    width: usize,
    capacity: u32,
}

impl RoomTree {
    fn new(capacity: u32) -> Self {
        Self { largest: vec![capacity; 2], width: 1, capacity }
    }

    /// The first bin with at least `room`. Bins that were never touched are empty, so one always exists.
    fn first_with(&mut self, room: u32) -> usize {
        if self.largest[1] < room {
            self.double();
        }
        let mut node = 1;
        while node < self.width {
            node *= 2;
            if self.largest[node] < room {
                node += 1;
            }
        }
        node - self.width
    }

    fn room(&self, bin: usize) -> u32 {
        self.largest[self.width + bin]
    }

    fn set_room(&mut self, bin: usize, room: u32) {
        let mut node = self.width + bin;
        self.largest[node] = room;
        while node > 1 {
            node /= 2;
            self.largest[node] = self.largest[2 * node].max(self.largest[2 * node + 1]);
        }
    }

    /// Adds as many empty bins as there are.
    fn double(&mut self) {
        let rooms = self.largest.split_off(self.width);
        self.width *= 2;
        self.largest = vec![self.capacity; 2 * self.width];
        self.largest[self.width..self.width + rooms.len()].copy_from_slice(&rooms);
        for node in (1..self.width).rev() {
            self.largest[node] = self.largest[2 * node].max(self.largest[2 * node + 1]);
        }
    }
}

/// Packs `histogram[length]` samples of each length from 1 to `capacity`, each into the bin opened
/// earliest that still holds it. That bin takes as many of one length as it can in a row: it stays
/// the first that fits. One pattern a bin, so the memory grows with the samples.
pub(super) fn first_fit_decreasing(histogram: &[u64], capacity: u32, max_samples: u32) -> Patterns {
    let mut patterns = Patterns::new(capacity);
    let mut tree = RoomTree::new(capacity);
    let mut bins: Vec<(Tip, u32)> = Vec::new();
    for length in (1..=capacity).rev() {
        let mut left = histogram[length as usize];
        while left > 0 {
            let bin = tree.first_with(length);
            let (parent, samples) = bins.get(bin).map_or((None, 0), |&(tip, samples)| (Some(tip), samples));
            let most = (tree.room(bin) / length).min(max_samples - samples);
            let count = u64::from(most).min(left) as u32;
            left -= u64::from(count);

            let (tip, samples) = (patterns.extend(parent, length, count, 1), samples + count);
            if bin == bins.len() {
                bins.push((tip, samples));
            } else {
                bins[bin] = (tip, samples);
            }
            let room = if samples < max_samples { tree.room(bin) - count * length } else { 0 };
            tree.set_room(bin, room);
        }
    }
    for (tip, _) in bins {
        patterns.close(tip, 1);
    }
    patterns.finish();
    patterns
}
