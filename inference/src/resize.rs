//! Pillow's resize, to the byte: other resizers round, clamp or order the passes otherwise, which moves single pixels
//! beside sharp edges by several levels.

use image::RgbImage;

/// Bits behind the point of a weight, as in Pillow's `Resample.c`: 32 less 8 for the value and 2 for overshoot.
const PRECISION: u32 = 32 - 8 - 2;
/// Half the width of the bicubic filter in source pixels, at scale 1.
const SUPPORT: f64 = 2.0;

/// `Image.resize(size, BICUBIC)`: rows first, then columns, each rounded to bytes; the filter widens with the scale.
pub(crate) fn bicubic(image: &RgbImage, width: u32, height: u32) -> RgbImage {
    let narrowed = if width == image.width() { image.clone() } else { resize_rows(image, width) };
    if height == image.height() { narrowed } else { resize_columns(&narrowed, height) }
}

/// `Image.resize(size, NEAREST)`.
pub(crate) fn nearest(image: &RgbImage, width: u32, height: u32) -> RgbImage {
    let source = |place: u32, from: u32, to: u32| {
        let place = (f64::from(place) + 0.5) * f64::from(from) / f64::from(to);
        (place as u32).min(from - 1)
    };
    RgbImage::from_fn(width, height, |x, y| {
        *image.get_pixel(source(x, image.width(), width), source(y, image.height(), height))
    })
}

/// The source pixels that one target pixel is made of.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

/// Keys' cubic with a = -0.5.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn taps(from: u32, to: u32) -> Vec<Taps> {
    let scale = f64::from(from) / f64::from(to);
    let stretch = scale.max(1.0);
    let support = SUPPORT * stretch;
    (0..to)
        .map(|target| {
            let centre = (f64::from(target) + 0.5) * scale;
            let first = (centre - support + 0.5).max(0.0) as usize;
            let end = ((centre + support + 0.5) as usize).min(from as usize);
            let weights: Vec<f64> =
                (first..end).map(|place| cubic((place as f64 - centre + 0.5) / stretch)).collect();
            let sum: f64 = weights.iter().sum();
            let fixed = |weight: f64| {
                let weight = if sum == 0.0 { weight } else { weight / sum };
                (weight * f64::from(1_u32 << PRECISION)).round() as i32
            };
            Taps { first, weights: weights.into_iter().map(fixed).collect() }
        })
        .collect()
}

/// The byte that a sum of weighted bytes stands for.
fn byte(sum: i32) -> u8 {
    (sum >> PRECISION).clamp(0, 255) as u8
}

const HALF: i32 = 1 << (PRECISION - 1);

fn resize_rows(image: &RgbImage, width: u32) -> RgbImage {
    let taps = taps(image.width(), width);
    let mut out = RgbImage::new(width, image.height());
    let (source_row, target_row) = (3 * image.width() as usize, 3 * width as usize);
    for (source, target) in image.as_raw().chunks_exact(source_row).zip(out.chunks_exact_mut(target_row)) {
        for (pixel, taps) in target.chunks_exact_mut(3).zip(&taps) {
            let mut sums = [HALF; 3];
            for (from, weight) in source[3 * taps.first..].chunks_exact(3).zip(&taps.weights) {
                for (sum, value) in sums.iter_mut().zip(from) {
                    *sum += i32::from(*value) * weight;
                }
            }
            for (value, sum) in pixel.iter_mut().zip(sums) {
                *value = byte(sum);
            }
        }
    }
    out
}

fn resize_columns(image: &RgbImage, height: u32) -> RgbImage {
    let taps = taps(image.height(), height);
    let mut out = RgbImage::new(image.width(), height);
    let row = 3 * image.width() as usize;
    let mut sums = vec![HALF; row];
    for (target, taps) in out.chunks_exact_mut(row).zip(&taps) {
        sums.fill(HALF);
        for (source, weight) in image.as_raw()[taps.first * row..].chunks_exact(row).zip(&taps.weights) {
            for (sum, value) in sums.iter_mut().zip(source) {
                *sum += i32::from(*value) * weight;
            }
        }
        for (value, sum) in target.iter_mut().zip(&sums) {
            *value = byte(*sum);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    /// 5 x 4, from the generator that the values below were made with in Pillow 13.
    fn image() -> RgbImage {
        RgbImage::from_fn(5, 4, |x, y| {
            let value = |colour: u32| ((x * 53 + y * 97 + colour * 31 + x * y * 17) % 256) as u8;
            Rgb([value(0), value(1), value(2)])
        })
    }

    #[test]
    fn one_colour_stays() {
        let grey = RgbImage::from_pixel(37, 23, Rgb([200, 13, 0]));
        for (width, height) in [(14, 56), (112, 8), (37, 5)] {
            assert!(bicubic(&grey, width, height).pixels().all(|pixel| *pixel == Rgb([200, 13, 0])));
            assert!(nearest(&grey, width, height).pixels().all(|pixel| *pixel == Rgb([200, 13, 0])));
        }
    }

    #[test]
    fn equals_pillow() {
        let red = |image: &RgbImage| image.pixels().map(|pixel| pixel.0[0]).collect::<Vec<_>>();
        assert_eq!(red(&bicubic(&image(), 3, 2)), BICUBIC_3X2);
        assert_eq!(red(&bicubic(&image(), 7, 6)), BICUBIC_7X6);
        assert_eq!(red(&nearest(&image(), 7, 3)), NEAREST_7X3);
    }

    const BICUBIC_3X2: [u8; 6] = [80, 139, 136, 106, 156, 121];
    const BICUBIC_7X6: [u8; 42] = [
        0, 19, 60, 97, 147, 194, 221, 37, 78, 137, 175, 114, 127, 179, 114, 134, 180, 228, 103, 70, 105, 202,
        100, 44, 121, 184, 121, 21, 118, 88, 98, 174, 162, 132, 110, 17, 85, 186, 252, 118, 127, 213,
    ];
    const NEAREST_7X3: [u8; 21] =
        [0, 53, 53, 106, 159, 159, 212, 194, 25, 25, 112, 199, 199, 30, 35, 139, 139, 243, 91, 91, 195];
}
