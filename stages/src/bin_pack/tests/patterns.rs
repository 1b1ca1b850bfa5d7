//! Patterns: equal to the naive packers, and usable without samples.

use proptest::prelude::*;

use super::{
    super::{Algorithm, Limits, PackError, Patterns, pack},
    all_members, best_fit, cases, contents, items_of, naive,
};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn best_fit_is_sample_by_sample_best_fit((capacity, max_samples, lengths) in cases(), seed: u64) {
        let limits = Limits { max_samples, ..Limits::new(capacity) };
        let items = items_of(&lengths);
        let packing = best_fit(&items, &limits, seed);
        let expected = naive::best_fit_decreasing(&lengths, capacity, max_samples);
        prop_assert_eq!(contents(&packing, &items), expected);
    }

    #[test]
    fn first_fit_is_sample_by_sample_first_fit((capacity, max_samples, lengths) in cases(), seed: u64) {
        let limits = Limits { max_samples, ..Limits::new(capacity) };
        let items = items_of(&lengths);
        let packing = pack(&items, &limits, Algorithm::FirstFitDecreasing, seed).expect("the items fit");
        let expected = naive::first_fit_decreasing(&lengths, capacity, max_samples);
        prop_assert_eq!(contents(&packing, &items), expected);
    }

    #[test]
    fn padding_packs_the_rounded_lengths((capacity, max_samples, lengths) in cases(), multiple in 1u32..9) {
        let limits = Limits { max_samples, pad_to_multiple: multiple, ..Limits::new(capacity) };
        let rounded = |length: u32| length.next_multiple_of(multiple);
        let fitting: Vec<u32> = lengths.into_iter().filter(|&length| rounded(length) <= capacity).collect();
        prop_assume!(capacity >= multiple);
        let items = items_of(&fitting);
        let packing = best_fit(&items, &limits, 1);
        let rounded_items = items_of(&fitting.iter().map(|&length| rounded(length)).collect::<Vec<_>>());
        let lengths: Vec<u32> = rounded_items.iter().map(|item| item.length).collect();
        let expected = naive::best_fit_decreasing(&lengths, capacity, max_samples);
        prop_assert_eq!(contents(&packing, &rounded_items), expected);
    }

    #[test]
    fn every_slot_belongs_to_one_bin((capacity, max_samples, lengths) in cases()) {
        let mut histogram = vec![0u64; capacity as usize + 1];
        lengths.iter().for_each(|&length| histogram[length as usize] += 1);
        let limits = Limits { max_samples, ..Limits::new(capacity) };
        let patterns = Patterns::best_fit(&histogram, &limits).expect("the lengths fit");
        let mut slots: Vec<(u32, u64)> = (0..patterns.bins())
            .flat_map(|bin| patterns.runs(bin))
            .flat_map(|run| (0..u64::from(run.count)).map(move |slot| (run.length, run.first_slot + slot)))
            .collect();
        slots.sort_unstable();
        let expected: Vec<(u32, u64)> = (0u32..)
            .zip(&histogram)
            .flat_map(|(length, &count)| (0..count).map(move |slot| (length, slot)))
            .collect();
        prop_assert_eq!(slots, expected);
    }
}

#[test]
fn multiplicities_scale() {
    // 7 + 3, and 5 + 5: the counts do not change the patterns when they divide evenly.
    let mut histogram = [0u64; 11];
    for length in [3, 5, 7] {
        histogram[length] = 6_000_000_000_000;
    }
    let patterns = Patterns::best_fit(&histogram, &Limits::new(10)).expect("the lengths fit");
    let found: Vec<_> = patterns.iter().map(|pattern| (pattern.content, pattern.bins)).collect();
    assert_eq!(found, [(vec![(5, 2)], 3_000_000_000_000), (vec![(7, 1), (3, 1)], 6_000_000_000_000)]);
    assert_eq!(patterns.bins(), 9_000_000_000_000);
    assert_eq!(patterns.runs(9_000_000_000_000).count(), 0);
}

#[test]
fn a_histogram_that_does_not_fit_is_refused() {
    let limits = Limits { pad_to_multiple: 4, ..Limits::new(10) };
    let refused =
        Patterns::best_fit(&[0, 5, 5, 0, 7], &limits).expect_err("2 units of 4 tokens in 10 are the most");
    assert_eq!(refused, PackError::Histogram { length: 4, count: 7, capacity: 2 });
    assert!(Patterns::best_fit(&[1], &Limits::new(10)).is_err(), "length 0");
    assert!(Patterns::best_fit(&[0, 5, 5, 0, 0], &limits).is_ok(), "empty counters beyond the capacity");
}

#[test]
fn no_samples_are_no_packs() {
    let packing = best_fit(&[], &Limits::new(8), 0);
    assert!(packing.is_empty() && packing.patterns().is_empty());
    assert_eq!(all_members(&packing), Vec::<Vec<u32>>::new());
    assert!(packing.members(0).is_empty() && packing.members(u64::MAX).is_empty());
}
