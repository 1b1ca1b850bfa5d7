//! What every packing promises: completeness, limits, order, determinism, quality.

use std::collections::HashSet;

use proptest::prelude::*;

use super::{
    super::{Algorithm, Item, Limits, Misfit, PackError, Permutation, pack},
    all_members, best_fit, cases, contents, items_of, naive,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn every_sample_is_in_one_pack_and_no_limit_is_exceeded(
        (capacity, max_samples, lengths) in cases(),
        seed: u64,
        first_fit: bool,
    ) {
        let algorithm = if first_fit { Algorithm::FirstFitDecreasing } else { Algorithm::BestFitDecreasing };
        let limits = Limits { max_samples, ..Limits::new(capacity) };
        let packing = pack(&items_of(&lengths), &limits, algorithm, seed).expect("the items fit");
        let packs = all_members(&packing);
        for members in &packs {
            prop_assert!(!members.is_empty() && members.len() <= max_samples as usize);
            let tokens: u32 = members.iter().map(|&ordinal| lengths[ordinal as usize]).sum();
            prop_assert!(tokens <= capacity);
        }
        let mut ordinals: Vec<u32> = packs.into_iter().flatten().collect();
        ordinals.sort_unstable();
        prop_assert_eq!(ordinals, (0..lengths.len() as u32).collect::<Vec<_>>());
    }

    #[test]
    fn the_order_of_the_input_changes_no_content(
        (capacity, max_samples, lengths) in cases(),
        order in any::<prop::sample::Selector>(),
    ) {
        let limits = Limits { max_samples, ..Limits::new(capacity) };
        let items = items_of(&lengths);
        let mut shuffled = items.clone();
        shuffled.rotate_left(order.try_select(0..lengths.len()).unwrap_or(0));
        shuffled.reverse();
        let (a, b) = (best_fit(&items, &limits, 7), best_fit(&shuffled, &limits, 7));
        prop_assert_eq!(contents(&a, &items), contents(&b, &shuffled));
        prop_assert_eq!(a.quality(), b.quality());
    }

    #[test]
    fn a_second_call_gives_the_same_packs((capacity, max_samples, lengths) in cases(), seed: u64) {
        let limits = Limits { max_samples, ..Limits::new(capacity) };
        let items = items_of(&lengths);
        let packs = || all_members(&best_fit(&items, &limits, seed));
        let elsewhere = std::thread::scope(|scope| scope.spawn(packs).join().expect("no panic"));
        prop_assert_eq!(packs(), elsewhere);
    }

    #[test]
    fn bins_are_within_the_proven_ratio(capacity in 2u32..60, lengths in prop::collection::vec(1u32..60, 0..13)) {
        let lengths: Vec<u32> = lengths.into_iter().map(|length| length.min(capacity)).collect();
        let fewest = naive::fewest_bins(&lengths, capacity) as u64;
        let packing = best_fit(&items_of(&lengths), &Limits::new(capacity), 3);
        let quality = packing.quality();
        prop_assert!(9 * packing.len() <= 11 * fewest + 6, "{} bins, {} are enough", packing.len(), fewest);
        prop_assert!(quality.lower_bound <= quality.strong_lower_bound);
        prop_assert!(quality.strong_lower_bound <= fewest, "{quality:?}, {fewest} are enough");
    }

    #[test]
    fn a_permutation_meets_every_value_once(n in 0u64..3000, seed: u64, stream: u64) {
        let permutation = Permutation::new(n, seed, stream);
        let values: HashSet<u64> = (0..n).map(|index| permutation.at(index)).collect();
        prop_assert!(values.len() as u64 == n && values.iter().all(|&value| value < n));
        let tabled = permutation.tabled();
        prop_assert!((0..n).all(|index| permutation.at(index) == u64::from(tabled.at(index as u32))));
    }
}

#[test]
fn permutations_are_even() {
    // Every value in every place, and every pair of values in neighbouring places, about equally often
    // over 40,000 seeds. Four values have the fewest keys and are the least even.
    const SEEDS: u64 = 40_000;
    for n in 2..=24u64 {
        let mut places = vec![0u64; (n * n) as usize];
        let mut neighbours = vec![0u64; (n * n) as usize];
        for seed in 0..SEEDS {
            let permutation = Permutation::new(n, seed, 5);
            for index in 0..n {
                places[(index * n + permutation.at(index)) as usize] += 1;
            }
            neighbours[(permutation.at(0) * n + permutation.at(1)) as usize] += 1;
        }
        let is_even = |counts: &[u64], mean: u64| {
            counts.iter().all(|&count| count.abs_diff(mean) <= mean * 3 / 10 + 5 * mean.isqrt())
        };
        assert!(is_even(&places, SEEDS / n), "{n}: {places:?}");
        let pairs: Vec<u64> = neighbours.into_iter().filter(|&count| count > 0).collect();
        assert_eq!(pairs.len() as u64, n * (n - 1), "{n}: every pair");
        assert!(is_even(&pairs, SEEDS / (n * (n - 1))), "{n}: {pairs:?}");
    }
}

#[test]
fn neighbouring_places_are_unrelated() {
    // Ten places in a row, as one pack gets them: how often their values share the low bit, the high
    // half, or the order must be as by chance.
    let (mut low_bits, mut halves, mut ascents) = ([0u64; 11], [0u64; 11], 0);
    let n = 10_007;
    for seed in 0..20 {
        let permutation = Permutation::new(n, seed, 9);
        for start in (0..n - 10).step_by(10) {
            let values: Vec<u64> = (start..start + 10).map(|index| permutation.at(index)).collect();
            low_bits[values.iter().filter(|&value| value % 2 == 1).count()] += 1;
            halves[values.iter().filter(|&value| value > &(n / 2)).count()] += 1;
            ascents += values.windows(2).filter(|pair| pair[0] < pair[1]).count();
        }
    }
    // Binomial coefficients of ten.
    let expected = [1, 10, 45, 120, 210, 252, 210, 120, 45, 10, 1].map(|ways| 20_000 * ways / 1024);
    for counts in [low_bits, halves] {
        for (count, mean) in counts.into_iter().zip(expected) {
            assert!(count.abs_diff(mean) <= 15 + mean / 8, "{counts:?}, by chance {expected:?}");
        }
    }
    assert!(ascents.abs_diff(90_000) < 1500, "{ascents} of 180,000");
}

#[test]
fn neighbours_of_the_input_are_spread() {
    // 10,000 equal samples, ten a pack: by chance about one pack in a hundred and ten holds neighbours.
    let packing = best_fit(&items_of(&[10; 10_000]), &Limits::new(100), 11);
    let mut packs = all_members(&packing);
    packs.iter_mut().for_each(|members| members.sort_unstable());
    let neighbours = |members: &&Vec<u32>| members.windows(2).any(|pair| pair[0] + 1 == pair[1]);
    let with_neighbours = packs.iter().filter(neighbours).count();
    assert!(with_neighbours < 30, "{with_neighbours} of 1,000 packs");
}

#[test]
fn seeds_change_the_order_and_nothing_else() {
    let lengths: Vec<u32> = (0..500).map(|index| 1 + index * 37 % 97).collect();
    let items = items_of(&lengths);
    let limits = Limits::new(130);
    let (a, b) = (best_fit(&items, &limits, 1), best_fit(&items, &limits, 2));
    assert_ne!(all_members(&a), all_members(&b));
    assert_eq!(contents(&a, &items), contents(&b, &items));
}

#[test]
fn packs_and_samples_inside_are_not_sorted_by_length() {
    let lengths: Vec<u32> = (0..5000).map(|index| 1 + index * 7919 % 97).collect();
    let packing = best_fit(&items_of(&lengths), &Limits::new(400), 1);
    let packs = all_members(&packing);
    let length = |&ordinal: &u32| lengths[ordinal as usize];
    let pairs = |is_counted: fn(u32, u32) -> bool| {
        let count = |members: &Vec<u32>| {
            members.windows(2).filter(|pair| is_counted(length(&pair[0]), length(&pair[1]))).count()
        };
        packs.iter().map(count).sum::<usize>()
    };
    let (down, up) = (pairs(|a, b| a > b), pairs(|a, b| a < b));
    assert!(down > 500 && down.abs_diff(up) < down / 5, "{down} down, {up} up");
    let longest = |pack: &Vec<u32>| pack.iter().map(length).max();
    let sorted = packs.windows(2).filter(|pair| longest(&pair[0]) >= longest(&pair[1])).count();
    assert!(sorted * 10 < packs.len() * 8, "{sorted} of {}", packs.len());
}

#[test]
fn a_sample_that_fits_nowhere_is_named() {
    let refused = |item: Item, limits: &Limits| {
        let items = [Item { length: 1, ..Item::default() }, item];
        match pack(&items, limits, Algorithm::BestFitDecreasing, 0) {
            Err(PackError::Misfit { ordinal: 1, misfit }) => misfit,
            other => panic!("{other:?}"),
        }
    };
    let limits = Limits { max_images: Some(3), max_patches: Some(50), pad_to_multiple: 4, ..Limits::new(10) };
    let item = Item { length: 8, images: 3, patches: 50, stored: 1 };
    assert_eq!(limits.check(&item), Ok(()));
    assert_eq!(refused(Item { length: 0, ..item }, &limits), Misfit::Empty);
    let too_long = Misfit::TooLong { length: 9, reserved: 12, seq_len: 10 };
    assert_eq!(refused(Item { length: 9, ..item }, &limits), too_long);
    assert_eq!(
        refused(Item { images: 4, ..item }, &limits),
        Misfit::TooManyImages { images: 4, max_images: 3 }
    );
    let patches = Misfit::TooManyPatches { patches: 51, max_patches: 50 };
    assert_eq!(refused(Item { patches: 51, ..item }, &limits), patches);
    let huge = Misfit::TooLong { length: u32::MAX, reserved: 1 << 32, seq_len: 10 };
    assert_eq!(refused(Item { length: u32::MAX, ..item }, &limits), huge);
}

#[test]
fn limits_without_sense_are_refused() {
    let base = Limits::new(10);
    for limits in [
        Limits { seq_len: 0, ..base },
        Limits { max_samples: 0, ..base },
        Limits { pad_to_multiple: 0, ..base },
        Limits { pad_to_multiple: 11, ..base },
        Limits { seq_len: u32::MAX, ..base },
    ] {
        let refused = pack(&[], &limits, Algorithm::BestFitDecreasing, 0);
        assert!(matches!(refused, Err(PackError::Limit { .. })), "{limits:?}: {refused:?}");
    }
}

#[test]
fn quality_adds_up() {
    // 7 + 3, 5 + 5, 4: bins of 10, 10 and 4.
    let packing = best_fit(&items_of(&[7, 3, 5, 5, 4]), &Limits::new(10), 0);
    let quality = packing.quality();
    assert_eq!((quality.samples, quality.tokens, quality.bins, quality.patterns), (5, 24, 3, 3));
    assert_eq!((quality.lower_bound, quality.strong_lower_bound, quality.extra_bins), (3, 3, 0));
    assert_eq!(quality.fill, 0.8);
    let samples = quality.samples_per_bin;
    assert_eq!((samples.min, samples.mean, samples.max), (1, 5.0 / 3.0, 2));
    let bands: Vec<_> = quality.fill_histogram.iter().map(|band| band.bins).collect();
    assert_eq!(bands, [1, 0, 0, 0, 0, 0, 0, 2]);
    // 7 + 7 for the first pack, nothing for the others.
    assert_eq!((quality.padding, quality.padding_to_longest, quality.padding_avoided), (6, 4, -2));
}

#[test]
fn the_strong_bound_sees_what_no_bin_can_share() {
    let bound = |lengths: &[u32]| {
        let packing = best_fit(&items_of(lengths), &Limits::new(10), 0);
        (packing.quality().lower_bound, packing.quality().strong_lower_bound)
    };
    assert_eq!(bound(&[6, 6, 6]), (2, 3), "over half a bin");
    assert_eq!(bound(&[8, 8, 3, 3]), (3, 3), "a 3 fits beside no 8");
    assert_eq!(bound(&[8, 8, 8, 8, 3, 3, 3]), (5, 5));
    assert_eq!(bound(&[8, 7, 7, 4]), (3, 4), "a 4 fits beside none of them");
}
