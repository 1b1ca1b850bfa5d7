//! Seeded randomness: a permutation that can be evaluated at a point, and a shuffle of a few.
//!
//! Integers only, so the same seed gives the same order on every platform, for ever.

/// A seeded permutation of `0..n`: any value without an array over all of them.
///
/// A Feistel network over pairs of a high part below ⌈n / 2ᵇ⌉ and a low part below 2ᵇ, where 2ᵇ is about
/// √n: each round adds a keyed hash of one part to the other. Repeated until the value is below `n`
/// (cycle walking), which one value in about √n needs.
#[derive(Debug, Clone, Copy)]
pub struct Permutation {
    n: u64,
    low_bits: u32,
    low_mask: u64,
    high_range: u64,
    rounds: [Round; ROUNDS],
}

const ROUNDS: usize = 3;

/// The keys of one round: a hash for each part.
#[derive(Debug, Clone, Copy)]
struct Round {
    of_high: Hash,
    of_low: Hash,
}

impl Round {
    /// How far a low part moves the high one.
    #[inline]
    fn shift_of_high(self, low: u64, high_range: u64) -> u64 {
        (self.of_low.of(low) * high_range) >> 32
    }
}

/// A keyed hash to 32 bits.
#[derive(Debug, Clone, Copy)]
struct Hash {
    factor: u64,
    addend: u64,
}

impl Hash {
    fn new(random: &mut Random) -> Self {
        Self { factor: random.next() | 1, addend: random.next() }
    }

    #[inline]
    fn of(self, value: u64) -> u64 {
        let spread = value.wrapping_mul(self.factor).wrapping_add(self.addend);
        // Without a second multiplication neighbours keep an even distance.
        (spread ^ (spread >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> 32
    }
}

impl Permutation {
    /// The permutation of `0..n` that `seed` and `stream` name. Streams keep the permutations of one
    /// run apart.
    pub fn new(n: u64, seed: u64, stream: u64) -> Self {
        let bits = u64::BITS - n.saturating_sub(1).leading_zeros();
        let low_bits = bits / 2;
        let mut random = Random::new(seed, stream);
        let rounds =
            [(); ROUNDS].map(|()| Round { of_high: Hash::new(&mut random), of_low: Hash::new(&mut random) });
        Self { n, low_bits, low_mask: (1 << low_bits) - 1, high_range: n.div_ceil(1 << low_bits), rounds }
    }

    /// Where `index` goes. An `index` that is not below `n` is returned unchanged.
    #[inline]
    pub fn at(&self, index: u64) -> u64 {
        if index >= self.n {
            return index;
        }
        let mut value = index;
        loop {
            let (mut high, mut low) = (value >> self.low_bits, value & self.low_mask);
            for round in &self.rounds {
                low = (low + round.of_high.of(high)) & self.low_mask;
                high += round.shift_of_high(low, self.high_range);
                if high >= self.high_range {
                    high -= self.high_range;
                }
            }
            value = high << self.low_bits | low;
            if value < self.n {
                return value;
            }
        }
    }

    /// Which index goes to `value`: the inverse of [`at`](Self::at).
    #[inline]
    pub fn index_of(&self, value: u64) -> u64 {
        if value >= self.n {
            return value;
        }
        let mut index = value;
        loop {
            let (mut high, mut low) = (index >> self.low_bits, index & self.low_mask);
            for round in self.rounds.iter().rev() {
                let shift = round.shift_of_high(low, self.high_range);
                high = if high >= shift { high - shift } else { high + self.high_range - shift };
                low = low.wrapping_sub(round.of_high.of(high)) & self.low_mask;
            }
            index = high << self.low_bits | low;
            if index < self.n {
                return index;
            }
        }
    }

    /// The same permutation with every hash looked up in tables of about √n: faster, when most of its
    /// values are asked for. `n` must fit in 32 bits.
    pub(super) fn tabled(&self) -> TabledPermutation {
        let tables = self.rounds.map(|round| {
            let of_high = (0..self.high_range).map(|high| (round.of_high.of(high) & self.low_mask) as u32);
            let of_low = (0..=self.low_mask).map(|low| round.shift_of_high(low, self.high_range) as u32);
            (of_high.collect(), of_low.collect())
        });
        TabledPermutation {
            n: self.n as u32,
            low_bits: self.low_bits,
            low_mask: self.low_mask as u32,
            high_range: self.high_range as u32,
            tables,
        }
    }
}

/// A [`Permutation`] of fewer than 2³² values with its hashes in tables.
pub(super) struct TabledPermutation {
    n: u32,
    low_bits: u32,
    low_mask: u32,
    high_range: u32,
    /// For each round: what a high part adds to the low one, and what a low part adds to the high one.
    tables: [(Vec<u32>, Vec<u32>); ROUNDS],
}

impl TabledPermutation {
    /// Where `index` goes; it must be below `n`.
    #[inline]
    pub(super) fn at(&self, index: u32) -> u32 {
        let mut value = index;
        loop {
            let (mut high, mut low) = (value >> self.low_bits, value & self.low_mask);
            for (of_high, of_low) in &self.tables {
                low = (low + of_high[high as usize]) & self.low_mask;
                high += of_low[low as usize];
                if high >= self.high_range {
                    high -= self.high_range;
                }
            }
            value = high << self.low_bits | low;
            if value < self.n {
                return value;
            }
        }
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
pub(super) struct Random {
    state: u64,
}

impl Random {
    #[inline]
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        Self { state: mix(seed ^ mix(stream)) }
    }

    #[inline]
    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `bound`, from the upper bits (the bias is below 2⁻³² for any real bound).
    #[inline]
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        ((u64::from(bound) * (self.next() >> 32)) >> 32) as u32
    }

    /// Fisher and Yates.
    #[inline]
    pub(super) fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last as u32 + 1) as usize);
        }
    }
}

#[inline]
fn mix(mut value: u64) -> u64 {
    value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}
