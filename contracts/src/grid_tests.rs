use proptest::prelude::*;

use super::*;

fn processor(patch_size: u32, merge_size: u32, min_pixels: u64, max_pixels: u64) -> ImageProcessor {
    ImageProcessor {
        patch_size,
        merge_size,
        reshape: None,
        first_resize: None,
        min_pixels,
        max_pixels,
        max_ratio: 200,
        below_factor: BelowFactor::Scale,
    }
}

fn tokens(processor: &ImageProcessor, width: u32, height: u32) -> u32 {
    processor.grid(ImageSize::new(width, height)).unwrap().tokens(processor.merge_size)
}

#[test]
fn halves_round_to_even() {
    // kekzl/imp#1166: other languages round halves away from zero and count 75 and 91
    assert_eq!(tokens(&processor(14, 2, 3136, 12_845_056), 70, 700), 50);
    assert_eq!(tokens(&processor(16, 2, 65_536, 16_777_216), 16, 2048), 91);
}

#[test]
fn a_side_below_half_a_factor() {
    let scale = processor(14, 2, 3136, 12_845_056);
    assert_eq!(tokens(&scale, 2000, 13), 25, "0 x 1988 is under the lower limit and scaled up");
    let raise = ImageProcessor { below_factor: BelowFactor::Raise, ..scale };
    assert_eq!(tokens(&raise, 2000, 13), 71);
    let refuse = ImageProcessor { below_factor: BelowFactor::Refuse, ..scale };
    assert_eq!(refuse.grid(ImageSize::new(2000, 13)).unwrap_err().reason, Reason::ImageTooSmall);
    let no_lower_limit = ImageProcessor { min_pixels: 0, ..scale };
    assert_eq!(no_lower_limit.grid(ImageSize::new(2000, 13)).unwrap_err().reason, Reason::ImageTooSmall);
}

#[test]
fn the_ratio_is_checked_after_the_first_resize_too() {
    let mut two = processor(14, 2, 3136, 12_845_056);
    let size = ImageSize::new(6000, 30);
    assert!(two.grid(size).is_ok(), "200 exactly is accepted");
    two.first_resize = Some(SmartResize {
        factor: 28,
        min_pixels: 3136,
        max_pixels: 12_845_056,
        max_ratio: 200,
        below_factor: BelowFactor::Raise,
    });
    assert_eq!(two.grid(size).unwrap_err().reason, Reason::ImageAspectRatio);
}

#[test]
fn the_trainer_reshapes_small_and_long_images() {
    let rule = Reshape { min_side: 28, max_ratio: 200, clamped_ratio: 180 };
    let sizes =
        [((10, 40), (28, 40)), ((28, 28), (28, 28)), ((9000, 30), (5400, 30)), ((1, 9000), (28, 5040))];
    for ((w, h), (rw, rh)) in sizes {
        assert_eq!(rule.apply(ImageSize::new(w, h)), ImageSize::new(rw, rh), "{w}x{h}");
    }
}

#[test]
fn an_image_without_pixels_is_refused() {
    assert_eq!(
        processor(14, 2, 3136, 4_000_000).grid(ImageSize::new(0, 5)).unwrap_err().reason,
        Reason::ImageTooSmall
    );
}

proptest! {
    /// Whatever the image, a grid holds whole merge blocks and keeps the upper limit, except that
    /// no side goes below one factor.
    #[test]
    fn grids_are_whole_and_within_limits(
        width in 0u32..70_000, height in 0u32..70_000,
        patch in prop::sample::select(vec![14u32, 16]), merge in 1u32..4,
        max_pixels in 1u64..20_000_000, below in prop::sample::select(vec![BelowFactor::Scale, BelowFactor::Raise]),
    ) {
        let mut it = processor(patch, merge, 3136.min(max_pixels), max_pixels);
        it.below_factor = below;
        let Ok(grid) = it.grid(ImageSize::new(width, height)) else { return Ok(()) };
        prop_assert!(grid.h >= merge && grid.w >= merge);
        prop_assert_eq!(grid.h % merge, 0);
        prop_assert_eq!(grid.w % merge, 0);
        prop_assert_eq!(grid.tokens(merge) * merge * merge, grid.patches());
        let (h, w) = (u64::from(grid.h * patch), u64::from(grid.w * patch));
        let one = u64::from(it.factor());
        // scaling up to the lower limit rounds up and may pass an upper limit close to it
        let scaled_up = u64::from(width) * u64::from(height) < it.min_pixels * 4;
        prop_assert!(h * w <= max_pixels || h == one || w == one || scaled_up, "{}x{}", w, h);
    }

    /// Turning an image by a quarter turns its grid, whatever the processor.
    #[test]
    fn arithmetic_treats_sides_alike(
        width in 1u32..20_000, height in 1u32..20_000, patch in prop::sample::select(vec![14u32, 16]),
        reshaped: bool, fetched: bool,
    ) {
        let mut it = processor(patch, 2, 3136, 4_000_000);
        it.reshape = reshaped.then_some(Reshape { min_side: 28, max_ratio: 200, clamped_ratio: 180 });
        it.first_resize = fetched.then_some(SmartResize {
            factor: 28,
            min_pixels: 3136,
            max_pixels: 12_845_056,
            max_ratio: 200,
            below_factor: BelowFactor::Raise,
        });
        let turned = |g: ImageGrid| ImageGrid { t: g.t, h: g.w, w: g.h };
        let size = ImageSize::new(width, height);
        prop_assert_eq!(it.grid(size).ok(), it.grid(size.transposed()).ok().map(turned));
    }

    /// With the trainer's reshaping every image with pixels has a grid.
    #[test]
    fn the_trainer_takes_every_image(width in 1u32..100_000, height in 1u32..100_000) {
        let mut it = processor(14, 2, 3136, 4_000_000);
        it.reshape = Some(Reshape { min_side: 28, max_ratio: 200, clamped_ratio: 180 });
        prop_assert!(it.grid(ImageSize::new(width, height)).is_ok());
    }
}
