//! Image and patch limits, second step: what trading could not mend is taken out and packed one by one.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{
    item::Item,
    layout::Layout,
    limits::Limits,
    mend::{Load, VisionLimits},
};

/// Packs tried for a sample before a new one is opened.
const PROBES: usize = 64;

/// Takes samples out of the packs over their limits until each is within, and packs them again, longest
/// first: tightest pack first, at most [`PROBES`] of them, then a new one. New packs follow the old
/// ones. `None` when every pack is within its limits already.
pub(super) fn refit(layout: &Layout, loads: Vec<Load>, items: &[Item], limits: &Limits) -> Option<Layout> {
    let vision = VisionLimits::new(limits);
    let mut refit =
        Refit { vision, layout, loads, items, limits, changed: BTreeMap::new(), open: BTreeSet::new() };
    let mut taken_out: Vec<u32> = (0..layout.packs()).flat_map(|pack| refit.cut(pack)).collect();
    taken_out.sort_unstable_by_key(|&ordinal| (Reverse(refit.length(ordinal)), ordinal));
    let shortest = refit.length(*taken_out.last()?);
    (0..layout.packs()).for_each(|pack| refit.open(pack, shortest));
    for ordinal in taken_out {
        refit.place(ordinal, shortest);
    }
    let mut refitted = Layout::default();
    (0..refit.loads.len()).for_each(|pack| refitted.push(refit.members(pack)));
    Some(refitted)
}

struct Refit<'a> {
    vision: VisionLimits,
    layout: &'a Layout,
    /// The vision work of every pack, new ones included.
    loads: Vec<Load>,
    items: &'a [Item],
    limits: &'a Limits,
    /// The packs whose content is no longer what the layout says.
    changed: BTreeMap<usize, Vec<u32>>,
    /// `(room, pack)` of the packs that can take something.
    open: BTreeSet<(u32, usize)>,
}

impl Refit<'_> {
    /// The reserved length of a sample.
    fn length(&self, ordinal: u32) -> u32 {
        self.limits.class(self.items[ordinal as usize].length)
    }

    fn load_of(&self, ordinal: u32) -> Load {
        Load::of(&self.items[ordinal as usize])
    }

    fn members(&self, pack: usize) -> &[u32] {
        match self.changed.get(&pack) {
            Some(members) => members,
            None => self.layout.members(pack),
        }
    }

    /// Takes samples out of a pack until it is within the limits: the heaviest, until one is enough;
    /// then the shortest that is.
    fn cut(&mut self, pack: usize) -> Vec<u32> {
        let mut load = self.loads[pack];
        if self.vision.excess(load) == 0 {
            return Vec::new();
        }
        let mut members = self.layout.members(pack).to_vec();
        let share = |ordinal: u32, load: Load| self.vision.share(load, self.load_of(ordinal));
        members
            .sort_by_cached_key(|&ordinal| (share(ordinal, load), Reverse((self.length(ordinal), ordinal))));
        let (mut kept, mut taken_out) = (Vec::new(), Vec::new());
        while self.vision.excess(load) > 0 {
            let is_enough = |ordinal: u32| self.vision.excess(load.minus(self.load_of(ordinal))) == 0;
            let Some(&heaviest) = members.last() else { break };
            if share(heaviest, load) == 0 {
                // Heavy only by a limit that is no longer exceeded.
                kept.extend(members.pop());
                continue;
            }
            let mut index = members.len() - 1;
            if is_enough(heaviest) {
                let enough = (0..members.len()).filter(|&index| is_enough(members[index]));
                index = enough.min_by_key(|&index| self.length(members[index])).unwrap_or(index);
            }
            let ordinal = members.remove(index);
            load = load.minus(self.load_of(ordinal));
            taken_out.push(ordinal);
        }
        members.append(&mut kept);
        self.changed.insert(pack, members);
        self.loads[pack] = load;
        taken_out
    }

    /// Lists a pack as open when it can take a sample of length `shortest` or longer.
    fn open(&mut self, pack: usize, shortest: u32) {
        let used: u32 = self.members(pack).iter().map(|&ordinal| self.length(ordinal)).sum();
        self.list(pack, self.limits.capacity() - used, shortest);
    }

    fn list(&mut self, pack: usize, room: u32, shortest: u32) {
        let has_places = self.members(pack).len() < self.limits.max_samples as usize;
        if room >= shortest && has_places && !self.vision.is_full(self.loads[pack]) {
            self.open.insert((room, pack));
        }
    }

    /// Packs one sample; none shorter than `shortest` follows.
    fn place(&mut self, ordinal: u32, shortest: u32) {
        let (length, load) = (self.length(ordinal), self.load_of(ordinal));
        let holds = |&&(_, pack): &&(u32, usize)| self.vision.excess(self.loads[pack].plus(load)) == 0;
        let found = self.open.range((length, 0)..).take(PROBES).find(holds).copied();
        let (room, pack) = match found {
            Some(open) => {
                self.open.remove(&open);
                open
            }
            None => {
                let pack = self.loads.len();
                self.loads.push(Load::default());
                self.changed.insert(pack, Vec::new());
                (self.limits.capacity(), pack)
            }
        };
        let content = || self.layout.members(pack).to_vec();
        self.changed.entry(pack).or_insert_with(content).push(ordinal);
        self.loads[pack] = self.loads[pack].plus(load);
        self.list(pack, room - length, shortest);
    }
}
