//! Best-fit-decreasing over a histogram.

use super::{
    patterns::{Patterns, Tip},
    rooms::Rooms,
};

/// Bins with the same history, still open.
struct Group {
    tip: Tip,
    /// How many bins.
    bins: u64,
    /// Samples in each.
    samples: u32,
}

/// The open groups by room, and the patterns that came out so far.
struct OpenBins {
    /// `stacks[room]`: groups with that room, the most recently changed one on top.
    stacks: Vec<Vec<Group>>,
    /// The rooms whose stack holds something.
    rooms: Rooms,
    patterns: Patterns,
    max_samples: u32,
}

impl OpenBins {
    fn put(&mut self, group: Group, room: u32) {
        if room == 0 || group.samples >= self.max_samples {
            self.patterns.close(group.tip, group.bins);
        } else {
            self.stacks[room as usize].push(group);
            self.rooms.insert(room as usize);
        }
    }

    /// Gives `each` samples of `length` to every one of `bins` bins of the group that `parent` stands
    /// for, `samples` in each so far, `room` left in each.
    fn extend(&mut self, parent: Option<Tip>, bins: u64, samples: u32, room: u32, length: u32, each: u32) {
        let tip = self.patterns.extend(parent, length, each, bins);
        self.put(Group { tip, bins, samples: samples + each }, room - each * length);
    }
}

/// Packs `histogram[length]` samples of each length from 1 to `capacity`.
///
/// All samples of one length meet the same bins: the tightest bin with room r takes ⌊r / length⌋ of
/// them in a row (each leaves it tighter, so it stays the best), then the next tightest.
pub(super) fn best_fit_decreasing(histogram: &[u64], capacity: u32, max_samples: u32) -> Patterns {
    let mut open = OpenBins {
        stacks: (0..=capacity).map(|_| Vec::new()).collect(),
        rooms: Rooms::new(capacity as usize),
        patterns: Patterns::new(capacity),
        max_samples,
    };
    for length in (1..=capacity).rev() {
        let mut left = histogram[length as usize];
        while left > 0
            && let Some(room) = open.rooms.next(length as usize)
        {
            left -= fill_top_group(&mut open, room, length, left);
        }
        let each = (capacity / length).min(max_samples);
        let (whole, part) = (left / u64::from(each), (left % u64::from(each)) as u32);
        if whole > 0 {
            open.extend(None, whole, 0, capacity, length, each);
        }
        if part > 0 {
            open.extend(None, 1, 0, capacity, length, part);
        }
    }
    let OpenBins { stacks, mut patterns, .. } = open;
    for group in stacks.into_iter().flatten() {
        patterns.close(group.tip, group.bins);
    }
    patterns.finish();
    patterns
}

/// Fills bins of the most recently changed group with `room`, and says how many of the `left` samples
/// of `length` they took.
fn fill_top_group(open: &mut OpenBins, room: usize, length: u32, left: u64) -> u64 {
    let Some(mut group) = open.stacks[room].pop() else {
        open.rooms.remove(room);
        return 0;
    };
    let (room_left, samples) = (room as u32, group.samples);
    let each = (room_left / length).min(open.max_samples - samples);
    let whole = group.bins.min(left / u64::from(each));
    // Fewer samples left than one bin takes, and a bin to take them.
    let rest = left - whole * u64::from(each);
    let part = if whole < group.bins && rest < u64::from(each) { rest as u32 } else { 0 };

    let first = group.tip;
    let touched = whole + u64::from(part > 0);
    group.tip = group.tip.skip(touched);
    group.bins -= touched;
    if group.bins > 0 {
        open.stacks[room].push(group);
    } else if open.stacks[room].is_empty() {
        open.rooms.remove(room);
    }
    if whole > 0 {
        open.extend(Some(first), whole, samples, room_left, length, each);
    }
    if part > 0 {
        open.extend(Some(first.skip(whole)), 1, samples, room_left, length, part);
    }
    whole * u64::from(each) + u64::from(part)
}
