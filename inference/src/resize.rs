//! The bicubic resize of image processors, to the byte: other resizers round, clamp or order the passes otherwise, which
//! moves single pixels beside sharp edges by several levels. Two that are in use differ that way from each other.

use image::RgbImage;

/// Whose arithmetic an image is resized by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resizer {
    /// torchvision, with antialiasing, on bytes: the fast image processors, which transformers 5 takes by default.
    #[default]
    Torchvision,
    /// Pillow 13: the slow image processors. (Earlier versions resize rows first always.)
    Pillow,
}

/// Half the width of the bicubic filter in source pixels, at scale 1.
const SUPPORT: f64 = 2.0;

impl Resizer {
    /// Resizes in two passes, each rounded to bytes; the filter widens with the scale.
    pub(crate) fn bicubic(self, image: &RgbImage, width: u32, height: u32) -> RgbImage {
        let rows = |image: &RgbImage| match width == image.width() {
            true => image.clone(),
            false => resize_rows(image, &self.taps(image.width(), width)),
        };
        let columns = |image: &RgbImage| match height == image.height() {
            true => image.clone(),
            false => resize_columns(image, &self.taps(image.height(), height)),
        };
        // Pillow 13's `Resample.c`: the columns first where the height loses more than twice what the width does.
        let lost = |from: u32, to: u32| i64::from(from) - i64::from(to);
        let (height_lost, width_lost) = (lost(image.height(), height), lost(image.width(), width));
        let columns_first = height_lost > 0 && height_lost > 2 * width_lost;
        if self == Self::Pillow && columns_first { rows(&columns(image)) } else { columns(&rows(image)) }
    }

    /// Bits behind the point of a weight.
    fn precision(self, largest_weight: f64) -> u32 {
        match self {
            // Pillow's `Resample.c`: 32 less 8 for the value and 2 for overshoot.
            Self::Pillow => 32 - 8 - 2,
            // PyTorch's `UpSampleKernel.cpp`: as many as let the largest weight be an int16.
            Self::Torchvision => {
                let fits =
                    |bits: u32| 0.5 + largest_weight * f64::from(1_u32 << (bits + 1)) < f64::from(1 << 15);
                (0..22).find(|&bits| !fits(bits)).unwrap_or(22)
            }
        }
    }

    fn taps(self, from: u32, to: u32) -> Taps {
        let scale = f64::from(from) / f64::from(to);
        let stretch = scale.max(1.0);
        let support = SUPPORT * stretch;
        let exact: Vec<(usize, Vec<f64>)> = (0..to)
            .map(|target| {
                let centre = (f64::from(target) + 0.5) * scale;
                let first = (centre - support + 0.5).max(0.0) as usize;
                let end = ((centre + support + 0.5) as usize).min(from as usize);
                let weights: Vec<f64> =
                    (first..end).map(|place| cubic((place as f64 - centre + 0.5) / stretch)).collect();
                let sum: f64 = weights.iter().sum();
                (first, weights.into_iter().map(|weight| weight / sum).collect())
            })
            .collect();
        let largest = exact.iter().flat_map(|(_, weights)| weights).copied().fold(0.0, f64::max);
        let precision = self.precision(largest);
        let fixed = |weight: f64| (weight * f64::from(1_u32 << precision)).round() as i32;
        let fixed = |(first, weights): (usize, Vec<f64>)| (first, weights.into_iter().map(fixed).collect());
        Taps { precision, of_targets: exact.into_iter().map(fixed).collect() }
    }
}

/// For each target pixel the first source pixel that it is made of, and the weights of that and the next ones.
struct Taps {
    precision: u32,
    of_targets: Vec<(usize, Vec<i32>)>,
}

impl Taps {
    fn half(&self) -> i32 {
        1 << (self.precision - 1)
    }

    /// The byte that a sum of weighted bytes stands for.
    fn byte(&self, sum: i32) -> u8 {
        (sum >> self.precision).clamp(0, 255) as u8
    }
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

fn resize_rows(image: &RgbImage, taps: &Taps) -> RgbImage {
    let width = taps.of_targets.len();
    let mut out = RgbImage::new(width as u32, image.height());
    let (source_row, target_row) = (3 * image.width() as usize, 3 * width);
    for (source, target) in image.as_raw().chunks_exact(source_row).zip(out.chunks_exact_mut(target_row)) {
        for (pixel, (first, weights)) in target.chunks_exact_mut(3).zip(&taps.of_targets) {
            let mut sums = [taps.half(); 3];
            for (from, weight) in source[3 * first..].chunks_exact(3).zip(weights) {
                for (sum, value) in sums.iter_mut().zip(from) {
                    *sum += i32::from(*value) * weight;
                }
            }
            for (value, sum) in pixel.iter_mut().zip(sums) {
                *value = taps.byte(sum);
            }
        }
    }
    out
}

fn resize_columns(image: &RgbImage, taps: &Taps) -> RgbImage {
    let mut out = RgbImage::new(image.width(), taps.of_targets.len() as u32);
    let row = 3 * image.width() as usize;
    let mut sums = vec![taps.half(); row];
    for (target, (first, weights)) in out.chunks_exact_mut(row).zip(&taps.of_targets) {
        sums.fill(taps.half());
        for (source, weight) in image.as_raw()[first * row..].chunks_exact(row).zip(weights) {
            for (sum, value) in sums.iter_mut().zip(source) {
                *sum += i32::from(*value) * weight;
            }
        }
        for (value, sum) in target.iter_mut().zip(&sums) {
            *value = taps.byte(*sum);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::Rgb;

    /// 5 x 4, from the generator that the values below were made with in Pillow 13 and torchvision 0.29.
    fn image() -> RgbImage {
        RgbImage::from_fn(5, 4, |x, y| {
            let value = |colour: u32| ((x * 53 + y * 97 + colour * 31 + x * y * 17) % 256) as u8;
            Rgb([value(0), value(1), value(2)])
        })
    }

    #[test]
    fn one_colour_stays() {
        let grey = RgbImage::from_pixel(37, 23, Rgb([200, 13, 0]));
        let stays = |image: RgbImage| image.pixels().all(|pixel| *pixel == Rgb([200, 13, 0]));
        for (width, height) in [(14, 56), (112, 8), (37, 5)] {
            assert!(stays(Resizer::Pillow.bicubic(&grey, width, height)));
            assert!(stays(Resizer::Torchvision.bicubic(&grey, width, height)));
            assert!(stays(nearest(&grey, width, height)));
        }
    }

    #[test]
    fn equals_the_libraries() {
        let red = |image: &RgbImage| image.pixels().map(|pixel| pixel.0[0]).collect::<Vec<_>>();
        for (width, height, pillow, torchvision) in BICUBIC {
            assert_eq!(red(&Resizer::Pillow.bicubic(&image(), width, height)), pillow, "{width}x{height}");
            assert_eq!(red(&Resizer::Torchvision.bicubic(&image(), width, height)), torchvision);
        }
        assert_eq!(red(&nearest(&image(), 7, 3)), NEAREST_7X3);
    }

    /// Width, height, red of Pillow and of torchvision.
    const BICUBIC: [(u32, u32, &[u8], &[u8]); 4] = [
        (3, 2, &[80, 139, 136, 106, 156, 121], &[80, 139, 136, 106, 156, 121]),
        (
            7,
            6,
            &[
                0, 19, 60, 97, 147, 194, 221, 37, 78, 137, 175, 114, 127, 179, 114, 134, 180, 228, 103, 70,
                105, 202, 100, 44, 121, 184, 121, 21, 118, 88, 98, 174, 162, 132, 110, 17, 85, 186, 252, 118,
                127, 213,
            ],
            &[
                0, 19, 60, 97, 147, 194, 221, 37, 78, 137, 175, 114, 127, 179, 114, 134, 180, 228, 103, 70,
                105, 202, 100, 44, 121, 184, 121, 21, 118, 88, 98, 174, 162, 132, 110, 17, 85, 186, 252, 118,
                127, 213,
            ],
        ),
        (
            7,
            3,
            &[
                14, 54, 109, 146, 126, 154, 199, 158, 117, 112, 175, 144, 96, 63, 79, 86, 131, 203, 146, 131,
                150,
            ],
            &[
                17, 54, 108, 146, 126, 154, 199, 158, 117, 112, 175, 144, 95, 63, 79, 86, 131, 203, 146, 131,
                150,
            ],
        ),
        (
            4,
            9,
            &[
                0, 59, 141, 215, 18, 89, 138, 193, 64, 165, 127, 142, 111, 205, 126, 94, 146, 127, 151, 69,
                159, 50, 175, 64, 119, 93, 171, 103, 62, 173, 156, 155, 39, 205, 151, 177,
            ],
            &[
                0, 59, 141, 215, 18, 89, 138, 193, 64, 165, 127, 142, 111, 205, 126, 94, 146, 127, 151, 69,
                159, 50, 175, 64, 119, 93, 171, 103, 62, 173, 156, 155, 39, 205, 151, 177,
            ],
        ),
    ];
    const NEAREST_7X3: [u8; 21] =
        [0, 53, 53, 106, 159, 159, 212, 194, 25, 25, 112, 199, 199, 30, 35, 139, 139, 243, 91, 91, 195];
}
