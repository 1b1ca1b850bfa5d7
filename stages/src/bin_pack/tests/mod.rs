//! The packer against its specification: naive packers, an exact solver, and the promises of the docs.

mod global;
mod golden;
mod guarantees;
mod naive;
mod patterns;
mod vision;

use proptest::prelude::*;

use super::{Algorithm, Item, Limits, Packing, pack};

/// Items with lengths and nothing else.
fn items_of(lengths: &[u32]) -> Vec<Item> {
    lengths.iter().map(|&length| Item { length, ..Item::default() }).collect()
}

/// Every pack in order.
fn all_members(packing: &Packing) -> Vec<Vec<u32>> {
    packing.iter().map(<[u32]>::to_vec).collect()
}

/// The lengths in every pack, longest first, packs sorted: what is left of a packing without identities.
fn contents(packing: &Packing, items: &[Item]) -> Vec<Vec<u32>> {
    let mut contents: Vec<Vec<u32>> = all_members(packing)
        .iter()
        .map(|members| {
            let mut lengths: Vec<u32> =
                members.iter().map(|&ordinal| items[ordinal as usize].length).collect();
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths
        })
        .collect();
    contents.sort_unstable();
    contents
}

fn best_fit(items: &[Item], limits: &Limits, seed: u64) -> Packing {
    pack(items, limits, Algorithm::BestFitDecreasing, seed).expect("the items fit")
}

/// A capacity, a limit of samples and lengths that fit: many of few lengths as well as few of many.
fn cases() -> impl Strategy<Value = (u32, u32, Vec<u32>)> {
    let capacity = prop_oneof![1u32..40, 1u32..700];
    let max_samples = prop_oneof![1u32..6, Just(u32::MAX)];
    (capacity, max_samples).prop_flat_map(|(capacity, max_samples)| {
        let any_length = prop::collection::vec(1..=capacity, 0..80);
        let short = prop::collection::vec(1..=capacity.div_ceil(6), 0..80);
        let few_lengths = prop::collection::vec(1..=capacity, 1..4)
            .prop_flat_map(|lengths| prop::collection::vec(prop::sample::select(lengths), 0..80));
        (Just(capacity), Just(max_samples), prop_oneof![any_length, short, few_lengths])
    })
}
