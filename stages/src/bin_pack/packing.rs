//! From samples to packs in their final order.

use super::{
    best_fit::best_fit_decreasing,
    error::PackError,
    first_fit::first_fit_decreasing,
    item::Item,
    layout::Layout,
    limits::Limits,
    mend::{loads, mend},
    patterns::Patterns,
    places::Places,
    quality::Quality,
    refit::refit,
};

/// How bins are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Longest first, into the bin with the least room that holds it.
    BestFitDecreasing,
    /// Longest first, into the bin opened earliest that holds it. For comparison: slower, more memory.
    FirstFitDecreasing,
}

/// A finished packing: packs in their final, seeded order. Holds 4 bytes a sample, 4 a pack, and the
/// [`Patterns`].
#[derive(Debug, Clone)]
pub struct Packing {
    layout: Layout,
    patterns: Patterns,
    quality: Quality,
}

/// Packs `items` into as few packs as the algorithm finds, no limit exceeded, and decides the order.
///
/// The result depends on the arguments and nothing else: not on threads, platform or time. Packs, and
/// the sub-samples inside each, are in an order shuffled by `seed`; samples of equal reserved length
/// trade places by `seed` as well, so that neighbours of the input do not end in one pack.
///
/// # Errors
/// When a limit makes no sense, or a sample cannot be packed even alone (see [`Limits::check`]).
pub fn pack(items: &[Item], limits: &Limits, algorithm: Algorithm, seed: u64) -> Result<Packing, PackError> {
    limits.validate()?;
    if items.len() >= u32::MAX as usize {
        return Err(PackError::TooManySamples { count: items.len() as u64 });
    }
    let (histogram, tokens) = count(items, limits)?;
    let patterns = match algorithm {
        Algorithm::BestFitDecreasing => {
            best_fit_decreasing(&histogram, limits.capacity(), limits.max_samples)
        }
        Algorithm::FirstFitDecreasing => {
            first_fit_decreasing(&histogram, limits.capacity(), limits.max_samples)
        }
    };
    let places = Places::new(items, limits, &histogram, seed);
    let mut layout = Layout::new(&patterns, places, seed);
    if !limits.limits_vision() {
        let quality = Quality::of_patterns(&patterns, limits, &histogram, tokens);
        return Ok(Packing { layout, patterns, quality });
    }
    let mut loads = loads(&layout, items);
    mend(&mut layout, &mut loads, items, limits);
    if let Some(refitted) = refit(&layout, loads, items, limits) {
        layout = refitted.shuffled(seed);
    }
    let quality = Quality::of_packs(&patterns, &layout, items, limits, &histogram, tokens);
    Ok(Packing { layout, patterns, quality })
}

/// How many samples have each reserved length, and the sum of all lengths.
fn count(items: &[Item], limits: &Limits) -> Result<(Vec<u64>, u64), PackError> {
    let mut histogram = vec![0u64; limits.capacity() as usize + 1];
    let mut tokens = 0;
    for (ordinal, item) in items.iter().enumerate() {
        if let Err(misfit) = limits.check(item) {
            return Err(PackError::Misfit { ordinal: ordinal as u64, misfit });
        }
        histogram[limits.class(item.length) as usize] += 1;
        tokens += u64::from(item.length);
    }
    Ok((histogram, tokens))
}

impl Packing {
    /// The number of packs.
    pub fn len(&self) -> u64 {
        self.layout.packs() as u64
    }

    /// Whether there are no packs: there were no samples.
    pub fn is_empty(&self) -> bool {
        self.layout.packs() == 0
    }

    /// The ordinals of the samples in pack `pack`, in their final order. Nothing for a pack that does
    /// not exist.
    #[inline]
    pub fn members(&self, pack: u64) -> &[u32] {
        if pack < self.len() { self.layout.members(pack as usize) } else { &[] }
    }

    /// Every pack in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        (0..self.layout.packs()).map(|pack| self.layout.members(pack))
    }

    /// How good the packing is.
    pub fn quality(&self) -> &Quality {
        &self.quality
    }

    /// The bins by content, as the algorithm left them: before image and patch limits moved anything.
    pub fn patterns(&self) -> &Patterns {
        &self.patterns
    }
}
