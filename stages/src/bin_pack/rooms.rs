//! A set of small integers that finds the next member at or after a point in a few steps.

/// A tree of bit words: bit `i` of a level says whether word `i` of the level below has any bit set.
pub(super) struct Rooms {
    /// From the members themselves up to a single word.
    levels: Vec<Vec<u64>>,
}

impl Rooms {
    /// The empty set of integers from 0 to `largest`.
    pub(super) fn new(largest: usize) -> Self {
        let mut levels = Vec::new();
        let mut words = largest / 64 + 1;
        levels.push(vec![0; words]);
        while words > 1 {
            words = words.div_ceil(64);
            levels.push(vec![0; words]);
        }
        Self { levels }
    }

    /// Adds `value`.
    pub(super) fn insert(&mut self, value: usize) {
        let mut index = value;
        for level in &mut self.levels {
            level[index / 64] |= 1 << (index % 64);
            index /= 64;
        }
    }

    /// Removes `value`.
    pub(super) fn remove(&mut self, value: usize) {
        let mut index = value;
        for level in &mut self.levels {
            level[index / 64] &= !(1 << (index % 64));
            if level[index / 64] != 0 {
                return;
            }
            index /= 64;
        }
    }

    /// The least member that is at least `from`.
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let mut index = from;
        for (height, level) in self.levels.iter().enumerate() {
            let word = level.get(index / 64)? & (!0 << (index % 64));
            if word != 0 {
                let mut found = index / 64 * 64 + word.trailing_zeros() as usize;
                for below in self.levels[..height].iter().rev() {
                    found = found * 64 + below[found].trailing_zeros() as usize;
                }
                return Some(found);
            }
            // Nothing in this word: the next candidate is a later word, one bit further on above.
            index = index / 64 + 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::Rooms;

    proptest! {
        #[test]
        fn agrees_with_a_sorted_set(
            largest in 0usize..9000,
            steps in prop::collection::vec((any::<bool>(), 0usize..9000, 0usize..9100), 0..200),
        ) {
            let mut rooms = Rooms::new(largest);
            let mut expected = BTreeSet::new();
            for (insert, value, from) in steps {
                let value = value % (largest + 1);
                if insert {
                    rooms.insert(value);
                    expected.insert(value);
                } else {
                    rooms.remove(value);
                    expected.remove(&value);
                }
                prop_assert_eq!(rooms.next(from), expected.range(from..).next().copied());
            }
        }
    }
}
