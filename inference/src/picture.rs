//! A picture for those who give none.

use image::{Rgb, RgbImage};

/// Tokens along the sides. They differ, so that exchanged axes are seen.
const TOKENS: [u32; 2] = [16, 12];

/// A picture of 16 by 12 tokens for a model of this patch and merge size, the same everywhere: shades from left to right
/// in red and from top to bottom in green, so that no two patches are alike, and a fine pattern in blue.
pub fn test_picture(patch_size: usize, merge_size: usize) -> RgbImage {
    let side = u32::try_from(patch_size * merge_size).unwrap_or(28);
    let [width, height] = TOKENS.map(|tokens| tokens * side);
    RgbImage::from_fn(width, height, |x, y| {
        let shade = |place: u32, all: u32| (255 * place / all) as u8;
        let pattern = (x / 3) ^ (y / 5);
        Rgb([shade(x, width), shade(y, height), (pattern * 37 % 256) as u8])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_patches_are_alike() {
        let picture = test_picture(14, 2);
        assert_eq!(picture.dimensions(), (448, 336));
        let patch = |x: u32, y: u32| {
            let pixels = (0..14).flat_map(|dy| (0..14).map(move |dx| (dx, dy)));
            pixels.map(|(dx, dy)| picture.get_pixel(14 * x + dx, 14 * y + dy).0).collect::<Vec<_>>()
        };
        let patches: std::collections::HashSet<_> =
            (0..32).flat_map(|x| (0..24).map(move |y| (x, y))).map(|(x, y)| patch(x, y)).collect();
        assert_eq!(patches.len(), 768);
    }
}
