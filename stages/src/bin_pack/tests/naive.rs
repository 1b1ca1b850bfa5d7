//! Textbook packers, one sample at a time, and an exact solver for small cases.

fn longest_first(lengths: &[u32]) -> Vec<u32> {
    let mut lengths = lengths.to_vec();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    lengths
}

fn room(bin: &[u32], capacity: u32) -> u32 {
    capacity - bin.iter().sum::<u32>()
}

/// Best-fit-decreasing: tightest bin, among equals the most recently changed.
pub(super) fn best_fit_decreasing(lengths: &[u32], capacity: u32, max_samples: u32) -> Vec<Vec<u32>> {
    let mut bins: Vec<Vec<u32>> = Vec::new();
    let mut changed: Vec<usize> = Vec::new();
    for (clock, length) in longest_first(lengths).into_iter().enumerate() {
        let best = (0..bins.len())
            .filter(|&bin| room(&bins[bin], capacity) >= length && bins[bin].len() < max_samples as usize)
            .min_by_key(|&bin| (room(&bins[bin], capacity), std::cmp::Reverse(changed[bin])));
        let bin = best.unwrap_or_else(|| {
            bins.push(Vec::new());
            changed.push(0);
            bins.len() - 1
        });
        bins[bin].push(length);
        changed[bin] = clock;
    }
    bins.sort_unstable();
    bins
}

/// First-fit-decreasing: the bin opened earliest.
pub(super) fn first_fit_decreasing(lengths: &[u32], capacity: u32, max_samples: u32) -> Vec<Vec<u32>> {
    let mut bins: Vec<Vec<u32>> = Vec::new();
    for length in longest_first(lengths) {
        let fits = |bin: &&mut Vec<u32>| room(bin, capacity) >= length && bin.len() < max_samples as usize;
        match bins.iter_mut().find(fits) {
            Some(bin) => bin.push(length),
            None => bins.push(vec![length]),
        }
    }
    bins.sort_unstable();
    bins
}

/// The least number of bins, by trying everything that is not symmetric to something tried.
pub(super) fn fewest_bins(lengths: &[u32], capacity: u32) -> usize {
    fn search(left: &[u32], rooms: &mut Vec<u32>, capacity: u32, best: &mut usize) {
        if rooms.len() >= *best {
            return;
        }
        let Some((&length, rest)) = left.split_first() else {
            *best = rooms.len();
            return;
        };
        let mut tried = Vec::new();
        for bin in 0..rooms.len() {
            if rooms[bin] >= length && !tried.contains(&rooms[bin]) {
                tried.push(rooms[bin]);
                rooms[bin] -= length;
                search(rest, rooms, capacity, best);
                rooms[bin] += length;
            }
        }
        rooms.push(capacity - length);
        search(rest, rooms, capacity, best);
        rooms.pop();
    }
    let mut best = lengths.len() + 1;
    search(&longest_first(lengths), &mut Vec::new(), capacity, &mut best);
    best
}
