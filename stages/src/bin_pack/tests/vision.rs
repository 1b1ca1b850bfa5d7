//! Limits of images and patches.

use proptest::prelude::*;

use super::{
    super::{Item, Limits, Packing},
    all_members, best_fit, cases,
};

fn sums(members: &[u32], items: &[Item]) -> (u64, u64, u64) {
    members.iter().map(|&ordinal| items[ordinal as usize]).fold(
        (0, 0, 0),
        |(length, images, patches), item| {
            (
                length + u64::from(item.length),
                images + u64::from(item.images),
                patches + u64::from(item.patches),
            )
        },
    )
}

/// Panics unless every sample is in one pack, and every pack within the limits.
fn assert_sound(packing: &Packing, items: &[Item], limits: &Limits) {
    let packs = all_members(packing);
    for members in &packs {
        let (_, images, patches) = sums(members, items);
        let reserved: u64 =
            members.iter().map(|&ordinal| limits.reserved(items[ordinal as usize].length)).sum();
        assert!(!members.is_empty());
        assert!(reserved <= limits.seq_len.into(), "{reserved} tokens");
        assert!(members.len() <= limits.max_samples as usize, "{} samples", members.len());
        assert!(limits.max_images.is_none_or(|limit| images <= limit.into()), "{images} images");
        assert!(limits.max_patches.is_none_or(|limit| patches <= limit), "{patches} patches");
    }
    let mut ordinals: Vec<u32> = packs.into_iter().flatten().collect();
    ordinals.sort_unstable();
    assert!(ordinals.iter().copied().eq(0..items.len() as u32), "every sample once");

    let quality = packing.quality();
    assert_eq!(quality.bins, packing.len());
    assert_eq!(quality.bins, packing.patterns().bins() + quality.extra_bins);
    assert_eq!(quality.fill_histogram.iter().map(|band| band.bins).sum::<u64>(), quality.bins);
    assert!(quality.strong_lower_bound <= quality.bins);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_limit_is_ever_exceeded(
        (capacity, max_samples, lengths) in cases(),
        vision in prop::collection::vec((0u32..4, 0u32..50), 80),
        max_images in prop::option::of(3u32..12),
        max_patches in prop::option::of(150u64..400),
        pad_to_multiple in 1u32..4,
        seed: u64,
    ) {
        let limits = Limits { seq_len: capacity.max(4), max_samples, max_images, max_patches, pad_to_multiple };
        let items: Vec<Item> = lengths
            .iter()
            .zip(vision)
            .map(|(&length, (images, patches))| Item { length, images, patches: images * patches, stored: 1 })
            .filter(|item| limits.check(item).is_ok())
            .collect();
        let packing = best_fit(&items, &limits, seed);
        assert_sound(&packing, &items, &limits);
        prop_assert_eq!(all_members(&packing), all_members(&best_fit(&items, &limits, seed)));
    }
}

#[test]
fn limits_that_nothing_reaches_change_nothing() {
    let items: Vec<Item> = (0..300)
        .map(|index| Item { length: 1 + index * 31 % 60, images: 1, patches: 9, stored: 3 })
        .collect();
    let free = best_fit(&items, &Limits::new(100), 5);
    let limits = Limits { max_images: Some(100), max_patches: Some(900), ..Limits::new(100) };
    let limited = best_fit(&items, &limits, 5);
    assert_eq!(all_members(&free), all_members(&limited));
    assert_eq!(limited.quality().extra_bins, 0);
}

#[test]
fn trading_mends_what_can_be_mended() {
    // Ten samples of ten tokens a pack, half of them with images: the mean is five images a pack, chance
    // puts seven and more into every sixth pack.
    let items: Vec<Item> = (0..20_000)
        .map(|index| Item { length: 10, images: index % 2, patches: index % 2 * 100, stored: 1 })
        .collect();
    let unlimited = best_fit(&items, &Limits::new(100), 9);
    let over = all_members(&unlimited).iter().filter(|members| sums(members, &items).1 > 6).count();
    assert!(over > 200, "{over} packs need mending");
    let limits = Limits { max_images: Some(6), max_patches: Some(650), ..Limits::new(100) };
    let packing = best_fit(&items, &limits, 9);
    assert_sound(&packing, &items, &limits);
    assert_eq!(packing.quality().extra_bins, 0);
}

#[test]
fn what_cannot_be_mended_goes_elsewhere() {
    // Every pack would hold ten images and may hold four: 2,000 images need 500 packs.
    let items = vec![Item { length: 10, images: 1, patches: 7, stored: 1 }; 2000];
    let limits = Limits { max_images: Some(4), ..Limits::new(100) };
    let packing = best_fit(&items, &limits, 1);
    assert_sound(&packing, &items, &limits);
    assert_eq!((packing.len(), packing.quality().extra_bins), (500, 300));
    assert_eq!(packing.quality().strong_lower_bound, 500);
    let fullest = packing.quality().samples_per_bin;
    assert_eq!((fullest.min, fullest.max), (4, 4));
}

#[test]
fn samples_taken_out_use_the_room_of_other_packs() {
    // Two long samples with six images each, beside them short ones with one: 6 + 1 is too much, and
    // the text-only packs have room.
    let item = |length, images| Item { length, images, patches: 0, stored: 1 };
    let items = [item(90, 6), item(90, 6), item(10, 1), item(10, 1), item(85, 0)];
    let limits = Limits { max_images: Some(6), ..Limits::new(100) };
    let packing = best_fit(&items, &limits, 1);
    assert_sound(&packing, &items, &limits);
    assert_eq!(packing.quality().extra_bins, 1, "one short sample fits beside the text, one does not");
}

#[test]
fn large_packs_over_their_limits_take_no_time() {
    // Packs of 8,192 samples that may hold eight: quadratic work would take minutes.
    let items = vec![Item { length: 1, images: 1, patches: 7, stored: 1 }; 200_000];
    let limits = Limits { max_images: Some(8), max_patches: Some(60), ..Limits::new(8192) };
    let packing = best_fit(&items, &limits, 1);
    assert_sound(&packing, &items, &limits);
    assert_eq!(packing.len(), 25_000);
}
