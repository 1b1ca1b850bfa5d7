//! From an image to rows of patches: the image path of the Hugging Face Qwen2-VL processor.

use std::borrow::Cow;
use std::path::Path;

use image::{DynamicImage, Rgb, RgbImage};
use packd_contracts::{ImageGrid, ImageProcessor, ImageSize};
use serde::Deserialize;

use crate::batch::ImagePatches;
use crate::error::{ModelError, Result};
use crate::resize::{Resizer, nearest};

/// Mean and standard deviation of each colour, of values between 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalisation {
    /// `image_mean`, red first.
    pub mean: [f32; 3],
    /// `image_std`.
    pub std: [f32; 3],
}

impl Normalisation {
    /// OpenAI CLIP's, which the Qwen2-VL processors and LLaVA-OneVision-2 keep.
    pub const CLIP: Self = Self {
        mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
        std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
    };

    /// The numbers of a model directory's `preprocessor_config.json`; CLIP's where it has none.
    ///
    /// # Errors
    /// [`ModelError::Config`] when the file is no JSON.
    pub fn read(dir: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Raw {
            image_mean: Option<[f32; 3]>,
            image_std: Option<[f32; 3]>,
        }
        let path = dir.join("preprocessor_config.json");
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(Self::CLIP) };
        let raw: Raw = serde_json::from_str(&text).map_err(|error| ModelError::Config {
            name: path.display().to_string(),
            detail: error.to_string(),
        })?;
        Ok(Self {
            mean: raw.image_mean.unwrap_or(Self::CLIP.mean),
            std: raw.image_std.unwrap_or(Self::CLIP.std),
        })
    }
}

/// Decodes an image as Pillow's `convert("RGB")` does: transparency is dropped, grey is repeated, EXIF orientation is
/// not applied (the loader of packed shards does not either).
///
/// # Errors
/// [`ModelError::Image`].
pub fn decode(bytes: &[u8]) -> Result<RgbImage> {
    let refused = |error: image::ImageError| ModelError::Image(error.to_string());
    match image::guess_format(bytes).map_err(refused)? {
        image::ImageFormat::Jpeg => crate::jpeg::decode(bytes),
        format => Ok(rgb(image::load_from_memory_with_format(bytes, format).map_err(refused)?)),
    }
}

/// Of 16 bits Pillow keeps the upper 8 where there are colours, and cuts grey off at 255.
fn rgb(decoded: DynamicImage) -> RgbImage {
    let upper = |value: u16| (value >> 8) as u8;
    let cut = |value: u16| value.min(255) as u8;
    let (width, height) = (decoded.width(), decoded.height());
    match decoded {
        DynamicImage::ImageRgb16(image) => {
            RgbImage::from_fn(width, height, |x, y| Rgb(image.get_pixel(x, y).0.map(upper)))
        }
        DynamicImage::ImageRgba16(image) => RgbImage::from_fn(width, height, |x, y| {
            let [red, green, blue, _] = image.get_pixel(x, y).0.map(upper);
            Rgb([red, green, blue])
        }),
        DynamicImage::ImageLumaA16(image) => {
            RgbImage::from_fn(width, height, |x, y| Rgb([upper(image.get_pixel(x, y).0[0]); 3]))
        }
        DynamicImage::ImageLuma16(image) => {
            RgbImage::from_fn(width, height, |x, y| Rgb([cut(image.get_pixel(x, y).0[0]); 3]))
        }
        other => other.into_rgb8(),
    }
}

/// Resizes an image as its processor does and cuts it into normalised patches in block order.
///
/// A row holds channels · patch² values in the order (channel, y, x).
///
/// # Errors
/// A verdict where the processor refuses the image's size.
pub fn patches(
    image: &RgbImage,
    processor: &ImageProcessor,
    normalisation: &Normalisation,
    resizer: Resizer,
) -> Result<ImagePatches> {
    let steps = processor.steps(ImageSize::new(image.width(), image.height()))?;
    let reshaped = resize(image, steps.reshaped, nearest);
    // `qwen_vl_utils` resizes with Pillow whatever the processor does.
    let fetched = resize(&reshaped, steps.fetched, |image, width, height| {
        Resizer::Pillow.bicubic(image, width, height)
    });
    let resized =
        resize(&fetched, steps.resized, |image, width, height| resizer.bicubic(image, width, height));
    let rows = rows(&resized, steps.grid, processor, normalisation);
    ImagePatches::new(rows, steps.grid, processor.merge_size)
}

fn resize<'a>(
    image: &'a RgbImage,
    size: ImageSize,
    by: impl Fn(&RgbImage, u32, u32) -> RgbImage,
) -> Cow<'a, RgbImage> {
    if (image.width(), image.height()) == (size.width, size.height) {
        return Cow::Borrowed(image);
    }
    Cow::Owned(by(image, size.width, size.height))
}

fn rows(
    image: &RgbImage,
    grid: ImageGrid,
    processor: &ImageProcessor,
    normalisation: &Normalisation,
) -> Vec<f32> {
    // Every byte has one value for each colour.
    let table: Vec<[f32; 3]> = (0..=255_u8)
        .map(|byte| {
            let value = f32::from(byte) / 255.0;
            std::array::from_fn(|colour| (value - normalisation.mean[colour]) / normalisation.std[colour])
        })
        .collect();
    let (patch, merge) = (processor.patch_size, processor.merge_size);
    let mut rows = Vec::with_capacity(grid.patches() as usize * (3 * patch * patch) as usize);
    let mut push = |patch_y: u32, patch_x: u32| {
        for colour in 0..3 {
            for y in 0..patch {
                for x in 0..patch {
                    let pixel = image.get_pixel(patch_x * patch + x, patch_y * patch + y);
                    rows.push(table[pixel.0[colour] as usize][colour]);
                }
            }
        }
    };
    for block_y in (0..grid.h).step_by(merge as usize) {
        for block_x in (0..grid.w).step_by(merge as usize) {
            for y in 0..merge {
                for x in 0..merge {
                    push(block_y + y, block_x + x);
                }
            }
        }
    }
    rows
}
