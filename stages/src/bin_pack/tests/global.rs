//! Many nodes find what one finds.

use proptest::prelude::*;

use super::{
    super::{Algorithm, GlobalPacking, Limits, Permutation, pack},
    all_members, cases, items_of,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_node_finds_the_packing_of_all_samples(
        (capacity, max_samples, lengths) in cases(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        pad_to_multiple in 1u32..4,
        seed: u64,
        first_fit: bool,
    ) {
        let algorithm = if first_fit { Algorithm::FirstFitDecreasing } else { Algorithm::BestFitDecreasing };
        let limits = Limits { max_samples, pad_to_multiple, ..Limits::new(capacity * pad_to_multiple) };
        let packing = pack(&items_of(&lengths), &limits, algorithm, seed).expect("the items fit");

        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(lengths.len() + 1)).collect();
        cuts.extend([0, lengths.len()]);
        cuts.sort_unstable();
        // For each node: its first ordinal, and its own ordinals of each class.
        let nodes: Vec<Vec<Vec<u32>>> = cuts.windows(2).map(|slice| {
            let mut of_class = vec![Vec::new(); capacity as usize + 1];
            for ordinal in slice[0]..slice[1] {
                of_class[limits.class(lengths[ordinal]) as usize].push(ordinal as u32);
            }
            of_class
        }).collect();
        let counts = |node: &Vec<Vec<u32>>| -> Vec<(u32, u64)> {
            (0..).zip(node).map(|(class, samples)| (class, samples.len() as u64)).collect()
        };
        let histograms: Vec<Vec<(u32, u64)>> = nodes.iter().map(counts).collect();
        let tokens = lengths.iter().map(|length| u64::from(*length)).sum();
        let global = GlobalPacking::new(&histograms, tokens, &limits, algorithm, seed).expect("they fit");

        prop_assert_eq!(global.len(), packing.len());
        prop_assert_eq!(global.quality(), packing.quality());
        for (pack, expected) in (0..).zip(all_members(&packing)) {
            let found: Vec<u32> = global.members(pack).iter().map(|member| {
                nodes[member.node as usize][member.class as usize][member.rank as usize]
            }).collect();
            prop_assert_eq!(found, expected);
        }
        prop_assert!(global.members(global.len()).is_empty());
    }

    #[test]
    fn a_permutation_can_be_followed_back(n in 1u64..5000, seed: u64, stream: u64) {
        let permutation = Permutation::new(n, seed, stream);
        for index in 0..n {
            prop_assert_eq!(permutation.index_of(permutation.at(index)), index);
        }
        prop_assert_eq!(permutation.index_of(n), n);
    }

    #[test]
    fn a_large_permutation_as_well(n in 1u64..1 << 40, seed: u64, index: u64) {
        let permutation = Permutation::new(n, seed, 7);
        let index = index % n;
        prop_assert!(permutation.at(index) < n);
        prop_assert_eq!(permutation.index_of(permutation.at(index)), index);
    }
}

#[test]
fn limits_that_need_the_samples_are_refused_by_name() {
    let limits = Limits { max_images: Some(3), ..Limits::new(10) };
    let refused = GlobalPacking::new(&[], 0, &limits, Algorithm::BestFitDecreasing, 1);
    let error = refused.expect_err("images are limited").to_string();
    assert!(error.contains("max_images"), "{error}");
}
