//! The same seed gives the same packs for ever: shards of a run that continues depend on it.

use super::{
    super::{Algorithm, Item, Limits, Permutation, pack},
    all_members,
};

/// FNV-1a over every ordinal and a mark after every pack.
fn fingerprint(packs: &[Vec<u32>]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for value in packs.iter().flat_map(|members| members.iter().copied().chain([u32::MAX])) {
        for byte in value.to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    hash
}

fn items() -> Vec<Item> {
    let mut state = 1u64;
    let mut random = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) % bound) as u32
    };
    (0..3000)
        .map(|_| {
            let images = random(4);
            Item {
                length: 1 + random(40) * random(30),
                images,
                patches: images * (1 + random(90)),
                stored: 1,
            }
        })
        .collect()
}

#[test]
fn permutations_are_pinned() {
    let first = |n, seed| (0..8).map(|index| Permutation::new(n, seed, 0).at(index)).collect::<Vec<_>>();
    let found = [first(8, 0), first(1000, 42), first(1 << 40, u64::MAX)];
    assert_eq!(
        found,
        [
            [7, 2, 4, 1, 3, 6, 5, 0],
            [43, 680, 693, 400, 982, 455, 106, 127],
            [
                191784457432,
                1056925657115,
                37925613054,
                719441043840,
                612905924172,
                265738831620,
                70383419917,
                1040177480414
            ]
        ]
    );
}

#[test]
fn small_packs_are_pinned() {
    let items = [9, 1, 4, 4, 2, 6, 3, 3, 5, 5, 8, 2].map(|length| Item { length, ..Item::default() });
    let packing = pack(&items, &Limits::new(13), Algorithm::BestFitDecreasing, 42).expect("the items fit");
    assert_eq!(all_members(&packing), [vec![4, 5, 9], vec![6, 7, 1, 11, 2], vec![0, 3], vec![8, 10]]);
}

#[test]
fn large_packs_are_pinned() {
    let items = items();
    let free = Limits { max_samples: 200, ..Limits::new(2048) };
    let limited = Limits { max_images: Some(18), max_patches: Some(900), pad_to_multiple: 8, ..free };
    let found = |limits, algorithm| {
        fingerprint(&all_members(&pack(&items, limits, algorithm, 42).expect("the items fit")))
    };
    let found = [
        found(&free, Algorithm::BestFitDecreasing),
        found(&limited, Algorithm::BestFitDecreasing),
        found(&free, Algorithm::FirstFitDecreasing),
    ];
    assert_eq!(found, [0xa7e3cb1b5538b089, 0x86cad54cdeb27891, 0xb86fc2e409faad1d]);
}
