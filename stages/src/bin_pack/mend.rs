//! Image and patch limits, first step: samples of equal length change places between bins.

use std::cmp::Reverse;

use super::{item::Item, layout::Layout, limits::Limits};

/// Places looked at for each sample of a bin over its limits.
const PROBES: usize = 64;
/// Rounds over the bins that are still over their limits.
const ROUNDS: usize = 3;
/// Places looked at in all, for each sample of the packing: a bound on the work when the limits are
/// too tight to be met by trading.
const PROBES_PER_SAMPLE: usize = 16;

/// The vision work of some samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Load {
    images: u64,
    patches: u64,
}

impl Load {
    pub(super) fn of(item: &Item) -> Self {
        Self { images: item.images.into(), patches: item.patches.into() }
    }

    pub(super) fn sum(items: &[Item], ordinals: &[u32]) -> Self {
        ordinals.iter().fold(Self::default(), |load, &ordinal| load.plus(Self::of(&items[ordinal as usize])))
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self { images: self.images + other.images, patches: self.patches + other.patches }
    }

    /// `self` must include `other`.
    pub(super) fn minus(self, other: Self) -> Self {
        Self { images: self.images - other.images, patches: self.patches - other.patches }
    }
}

/// The image and patch limits as numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct VisionLimits {
    max: Load,
    /// How much one image and one patch weigh: an excess of `max_images` weighs what one of
    /// `max_patches` does.
    weight: Load,
}

impl VisionLimits {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            max: Load {
                images: limits.max_images.map_or(u64::MAX, u64::from),
                patches: limits.max_patches.unwrap_or(u64::MAX),
            },
            weight: Load {
                images: limits.max_patches.unwrap_or(1).clamp(1, u32::MAX.into()),
                patches: limits.max_images.map_or(1, u64::from).max(1),
            },
        }
    }

    /// How far a load is over the limits; 0: within.
    pub(super) fn excess(&self, load: Load) -> u128 {
        self.weigh(load.images.saturating_sub(self.max.images), load.patches.saturating_sub(self.max.patches))
    }

    /// Whether a limit is reached, so that a bin with this load takes nothing more.
    pub(super) fn is_full(&self, load: Load) -> bool {
        load.images >= self.max.images || load.patches >= self.max.patches
    }

    /// What a sample adds to the limits that `load` exceeds.
    pub(super) fn share(&self, load: Load, sample: Load) -> u128 {
        let images = if load.images > self.max.images { sample.images } else { 0 };
        let patches = if load.patches > self.max.patches { sample.patches } else { 0 };
        self.weigh(images, patches)
    }

    fn weigh(&self, images: u64, patches: u64) -> u128 {
        u128::from(images) * u128::from(self.weight.images)
            + u128::from(patches) * u128::from(self.weight.patches)
    }
}

/// The vision work of every pack.
pub(super) fn loads(layout: &Layout, items: &[Item]) -> Vec<Load> {
    (0..layout.packs()).map(|pack| Load::sum(items, layout.members(pack))).collect()
}

/// Trades samples of equal length until no pack is over its limits, or the bound on the work is met.
/// Keeps `loads` up to date.
///
/// Every trade lowers the excess of its pack and does not raise that of the other, so no pack is pushed
/// over a limit. Token counts stay what they are.
pub(super) fn mend(layout: &mut Layout, loads: &mut [Load], items: &[Item], limits: &Limits) {
    let vision = VisionLimits::new(limits);
    let mut exceeding: Vec<usize> =
        (0..layout.packs()).filter(|&pack| vision.excess(loads[pack]) > 0).collect();
    if exceeding.is_empty() {
        return;
    }
    let budget = PROBES_PER_SAMPLE * items.len().max(PROBES);
    let peers = Peers::new(layout, items, limits);
    let mut trader = Trader { layout, loads, items, limits, vision, peers, budget };
    for round in 0..ROUNDS {
        exceeding.retain(|&pack| !trader.relieve(pack, round));
        if exceeding.is_empty() || trader.budget == 0 {
            break;
        }
    }
}

/// The places of the layout by length, and the pack of each: 8 bytes a sample, only while trading.
struct Peers {
    /// Where the places of each length begin in `places`; one more at the end.
    starts: Vec<u32>,
    places: Vec<u32>,
    packs: Vec<u32>,
}

impl Peers {
    fn new(layout: &Layout, items: &[Item], limits: &Limits) -> Self {
        let length = |ordinal: u32| limits.class(items[ordinal as usize].length) as usize;
        let mut starts = vec![0u32; limits.capacity() as usize + 2];
        layout.ordinals.iter().for_each(|&ordinal| starts[length(ordinal) + 1] += 1);
        for length in 1..starts.len() {
            starts[length] += starts[length - 1];
        }
        let mut cursors = starts.clone();
        let mut places = vec![0; layout.ordinals.len()];
        for (place, &ordinal) in (0u32..).zip(&layout.ordinals) {
            let cursor = &mut cursors[length(ordinal)];
            places[*cursor as usize] = place;
            *cursor += 1;
        }
        let mut packs = vec![0; layout.ordinals.len()];
        (0..layout.packs()).for_each(|pack| packs[layout.places(pack)].fill(pack as u32));
        Self { starts, places, packs }
    }

    /// At most `count` places of samples of one length, spread evenly over all packs and never `place`
    /// itself; other ones in every round.
    fn spread(
        &self,
        place: usize,
        length: u32,
        count: usize,
        round: usize,
    ) -> impl Iterator<Item = usize> + '_ {
        let (start, end) = (self.starts[length as usize], self.starts[length as usize + 1]);
        let peers = &self.places[start as usize..end as usize];
        let own = peers.partition_point(|&peer| (peer as usize) < place);
        let others = peers.len() - 1;
        let step = (others / count.max(1)).max(1);
        let distances = (0..others.min(count)).map(move |probe| 1 + (round + probe * step) % others);
        distances.map(move |distance| peers[(own + distance) % peers.len()] as usize)
    }
}

struct Trader<'a> {
    layout: &'a mut Layout,
    loads: &'a mut [Load],
    items: &'a [Item],
    limits: &'a Limits,
    vision: VisionLimits,
    peers: Peers,
    /// Places that may still be looked at.
    budget: usize,
}

impl Trader<'_> {
    fn item(&self, place: usize) -> &Item {
        &self.items[self.layout.ordinals[place] as usize]
    }

    /// What the sample in a place adds to the limits that a pack exceeds.
    fn share(&self, pack: usize, place: usize) -> u128 {
        self.vision.share(self.loads[pack], Load::of(self.item(place)))
    }

    /// Trades samples of `pack` away, the heaviest first, until it is within the limits. Says whether
    /// it is.
    fn relieve(&mut self, pack: usize, round: usize) -> bool {
        let mut places: Vec<usize> = self.layout.places(pack).collect();
        places.sort_by_cached_key(|&place| (Reverse(self.share(pack, place)), place));
        for place in places {
            if self.vision.excess(self.loads[pack]) == 0 {
                break;
            }
            if self.share(pack, place) > 0
                && let Some(other_place) = self.best_trade(pack, place, round)
            {
                self.trade(place, other_place);
            }
        }
        self.vision.excess(self.loads[pack]) == 0
    }

    /// The place, of those probed, whose sample helps the pack most without harm to its own.
    fn best_trade(&mut self, pack: usize, place: usize, round: usize) -> Option<usize> {
        let (load, own) = (self.loads[pack], Load::of(self.item(place)));
        let length = self.limits.class(self.item(place).length);
        let mut best = None;
        let mut least_excess = self.vision.excess(load);
        let mut probes = 0;
        for other_place in self.peers.spread(place, length, PROBES.min(self.budget), round) {
            probes += 1;
            let other = Load::of(self.item(other_place));
            let other_pack = self.peers.packs[other_place] as usize;
            let excess = self.vision.excess(load.minus(own).plus(other));
            if excess >= least_excess || other_pack == pack {
                continue;
            }
            let other_load = self.loads[other_pack];
            let other_load_after = other_load.minus(other).plus(own);
            if self.vision.excess(other_load_after) <= self.vision.excess(other_load) {
                best = Some(other_place);
                least_excess = excess;
                if excess == 0 {
                    break;
                }
            }
        }
        self.budget -= probes;
        best
    }

    fn trade(&mut self, a: usize, b: usize) {
        let (load_a, load_b) = (Load::of(self.item(a)), Load::of(self.item(b)));
        let (pack_a, pack_b) = (self.peers.packs[a] as usize, self.peers.packs[b] as usize);
        self.loads[pack_a] = self.loads[pack_a].minus(load_a).plus(load_b);
        self.loads[pack_b] = self.loads[pack_b].minus(load_b).plus(load_a);
        self.layout.ordinals.swap(a, b);
    }
}
