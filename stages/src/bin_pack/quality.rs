//! How good a packing is.

use serde::{Deserialize, Serialize};

use super::{
    item::Item,
    layout::Layout,
    limits::Limits,
    patterns::{Patterns, Shape},
};

/// The figures of a packing, for the report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Quality {
    /// Samples packed.
    pub samples: u64,
    /// Their tokens, unpadded.
    pub tokens: u64,
    /// Packs.
    pub bins: u64,
    /// Different patterns.
    pub patterns: u64,
    /// No packing has fewer bins: ⌈tokens / seq_len⌉.
    pub lower_bound: u64,
    /// A stronger one: samples over half a bin share with none of their kind, and whatever fits beside
    /// none of the largest needs room elsewhere (the L2 bound of Martello and Toth 1990); also counts
    /// reserved lengths and every other limit by itself.
    pub strong_lower_bound: u64,
    /// Packs that exist because of image and patch limits.
    pub extra_bins: u64,
    /// tokens / (bins · seq_len), 0 to 1; 0 without bins.
    pub fill: f64,
    /// Samples in a pack.
    pub samples_per_bin: Spread,
    /// How many packs are how full, emptiest first.
    pub fill_histogram: Vec<FillBand>,
    /// Tokens of padding left in the packs: bins · seq_len − tokens.
    pub padding: u64,
    /// Tokens of padding that the same batches, each padded to its longest sample, would hold.
    pub padding_to_longest: u64,
    /// What packing saves: `padding_to_longest` − `padding`; negative when it costs.
    pub padding_avoided: i64,
}

/// Least, mean and most of a number.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The least.
    pub min: u64,
    /// The mean.
    pub mean: f64,
    /// The most.
    pub max: u64,
}

/// Packs whose reserved tokens are at least this share of `seq_len`, and less than the next band's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FillBand {
    /// The band's lower end, in thousandths of `seq_len`.
    pub from_per_mille: u32,
    /// How many packs.
    pub bins: u64,
}

/// Lower ends of the bands, in thousandths: finest where good packings are.
const BANDS: [u32; 8] = [0, 500, 750, 900, 950, 990, 999, 1000];

/// Adds up packs.
struct Tally {
    capacity: u32,
    bins: u64,
    min_samples: u64,
    max_samples: u64,
    bands: [u64; BANDS.len()],
    /// Sum over the packs of samples · longest − sum of lengths, in units of `pad_to_multiple`.
    padding_to_longest: u64,
}

impl Tally {
    fn new(limits: &Limits) -> Self {
        Self {
            capacity: limits.capacity(),
            bins: 0,
            min_samples: u64::MAX,
            max_samples: 0,
            bands: [0; BANDS.len()],
            padding_to_longest: 0,
        }
    }

    /// Adds `bins` packs of one shape.
    fn add(&mut self, shape: &Shape, bins: u64) {
        self.bins += bins;
        self.min_samples = self.min_samples.min(shape.samples.into());
        self.max_samples = self.max_samples.max(shape.samples.into());
        let reaches =
            |&band: &u32| u64::from(band) * u64::from(self.capacity) <= 1000 * u64::from(shape.used);
        self.bands[BANDS.iter().filter(|band| reaches(band)).count() - 1] += bins;
        let rectangle = u64::from(shape.samples) * u64::from(shape.longest);
        self.padding_to_longest += bins * (rectangle - u64::from(shape.used));
    }
}

impl Quality {
    /// Of patterns as they stand: nothing but tokens and samples was limited.
    pub(super) fn of_patterns(patterns: &Patterns, limits: &Limits, histogram: &[u64], tokens: u64) -> Self {
        let mut tally = Tally::new(limits);
        for shape in patterns.shapes() {
            tally.add(&shape, shape.bins.end - shape.bins.start);
        }
        Self::from_tally(&tally, patterns, limits, histogram, tokens)
    }

    /// Of packs that image and patch limits changed one by one.
    pub(super) fn of_packs(
        patterns: &Patterns,
        layout: &Layout,
        items: &[Item],
        limits: &Limits,
        histogram: &[u64],
        tokens: u64,
    ) -> Self {
        let mut tally = Tally::new(limits);
        for bin in 0..layout.packs() {
            tally.add(&shape_of(layout.members(bin), items, limits), 1);
        }
        let quality = Self::from_tally(&tally, patterns, limits, histogram, tokens);
        let strong_lower_bound = quality.strong_lower_bound.max(other_limits(items, limits));
        Self { strong_lower_bound, ..quality }
    }

    fn from_tally(
        tally: &Tally,
        patterns: &Patterns,
        limits: &Limits,
        histogram: &[u64],
        tokens: u64,
    ) -> Self {
        let (bins, seq_len) = (tally.bins, u64::from(limits.seq_len));
        let samples = histogram.iter().sum();
        let ratio = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let reserved: u64 = histogram.iter().zip(0u64..).map(|(&count, length)| count * length).sum();
        // Rounding every sample up is padding in both cases.
        let rounding = reserved * u64::from(limits.pad_to_multiple) - tokens;
        let padding_to_longest = tally.padding_to_longest * u64::from(limits.pad_to_multiple) + rounding;
        let padding = bins * seq_len - tokens;
        Self {
            samples,
            tokens,
            bins,
            patterns: patterns.len() as u64,
            lower_bound: tokens.div_ceil(seq_len),
            strong_lower_bound: strong_lower_bound(histogram, limits),
            extra_bins: bins - patterns.bins(),
            fill: ratio(tokens, bins * seq_len),
            samples_per_bin: Spread {
                min: if bins == 0 { 0 } else { tally.min_samples },
                mean: ratio(samples, bins),
                max: tally.max_samples,
            },
            fill_histogram: BANDS
                .iter()
                .zip(tally.bands)
                .map(|(&from_per_mille, bins)| FillBand { from_per_mille, bins })
                .collect(),
            padding,
            padding_to_longest,
            padding_avoided: padding_to_longest as i64 - padding as i64,
        }
    }
}

fn shape_of(members: &[u32], items: &[Item], limits: &Limits) -> Shape {
    let classes = members.iter().map(|&ordinal| limits.class(items[ordinal as usize].length));
    Shape {
        used: classes.clone().sum(),
        samples: members.len() as u32,
        longest: classes.max().unwrap_or(0),
        bins: 0..0,
    }
}

/// The L2 bound of Martello and Toth over a histogram: for each threshold k up to half a bin, samples
/// over C − k fill a bin alone, those over C/2 need one each, and what those of k to C/2 need beyond
/// the room left beside the latter is on top.
fn strong_lower_bound(histogram: &[u64], limits: &Limits) -> u64 {
    let capacity = histogram.len() - 1;
    let half = capacity / 2;
    let over_half: u64 = histogram[half + 1..].iter().sum();
    // With k = 0 nothing is alone, and every sample of up to half a bin counts.
    let (mut shared_bins, mut shared_tokens) = (over_half, tokens_in(histogram, half + 1..capacity + 1));
    let mut small_tokens = tokens_in(histogram, 1..half + 1);
    let mut bound = 0;
    for k in 0..=half {
        if k > 0 {
            small_tokens -= histogram[k - 1] * (k as u64 - 1);
            let alone = capacity - k + 1;
            if alone > half {
                shared_bins -= histogram[alone];
                shared_tokens -= histogram[alone] * alone as u64;
            }
        }
        let room_beside = shared_bins * capacity as u64 - shared_tokens;
        let on_top = small_tokens.saturating_sub(room_beside).div_ceil(capacity as u64);
        bound = bound.max(over_half + on_top);
    }
    let samples: u64 = histogram.iter().sum();
    bound.max(samples.div_ceil(limits.max_samples.into()))
}

fn tokens_in(histogram: &[u64], lengths: std::ops::Range<usize>) -> u64 {
    lengths.map(|length| histogram[length] * length as u64).sum()
}

/// The bins that the image and patch limits ask for by themselves.
fn other_limits(items: &[Item], limits: &Limits) -> u64 {
    let needed = |total: u64, limit: u64| total.div_ceil(limit.max(1));
    let images = limits
        .max_images
        .map_or(0, |limit| needed(items.iter().map(|item| u64::from(item.images)).sum(), limit.into()));
    let patches = limits
        .max_patches
        .map_or(0, |limit| needed(items.iter().map(|item| u64::from(item.patches)).sum(), limit));
    images.max(patches)
}
