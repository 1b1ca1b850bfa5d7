//! From the size of an image to its patch grid: the resize arithmetic of image processors.
//!
//! Every step is in f64 and in the order of the Python sources (`smart_resize` of transformers'
//! Qwen2-VL processor and of `qwen_vl_utils`): floor and ceil sit on exact boundaries for real
//! images, and `round` is to even, so any other order or rounding gives other grids.
//!
//! Width and height go through the same steps, so a quarter turn (EXIF orientations 5 to 8) turns a
//! grid and keeps its tokens: it does not matter to a length whether a loader applies it.

use serde::Serialize;

use crate::{Reason, Verdict};

/// Width and height of an image in pixels, as its loader sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct ImageSize {
    /// Pixels from left to right.
    pub width: u32,
    /// Pixels from top to bottom.
    pub height: u32,
}

impl ImageSize {
    /// A size from width and height.
    pub fn new(width: u32, height: u32) -> Self {
        Self { width, height }
    }

    /// The size after a quarter turn (EXIF orientations 5 to 8).
    pub fn transposed(self) -> Self {
        Self { width: self.height, height: self.width }
    }
}

impl std::fmt::Display for ImageSize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}

/// The patches of one image: `t` frames of `h` rows and `w` columns (`image_grid_thw`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct ImageGrid {
    /// Frames; 1 for an image.
    pub t: u32,
    /// Rows of patches.
    pub h: u32,
    /// Columns of patches.
    pub w: u32,
}

impl ImageGrid {
    /// Patches that the vision tower sees.
    pub fn patches(self) -> u32 {
        self.t * self.h * self.w
    }

    /// Placeholder tokens in the text: one for each `merge` x `merge` block of patches.
    pub fn tokens(self, merge: u32) -> u32 {
        self.patches() / (merge * merge)
    }
}

impl std::fmt::Display for ImageGrid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}x{}", self.t, self.h, self.w)
    }
}

/// What the trainer does to odd images before its processor sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Reshape {
    /// Sides below this are raised to it, when the shorter side is below it.
    pub min_side: u32,
    /// Ratios of the sides above this are clamped …
    pub max_ratio: u32,
    /// … to this.
    pub clamped_ratio: u32,
}

/// What happens to a side shorter than one factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BelowFactor {
    /// Rounded like any other: a side under half a factor becomes 0 and the lower limit then
    /// scales the image up (transformers 4.45 and later).
    Scale,
    /// Raised to one factor before the limits are looked at (`qwen_vl_utils`).
    Raise,
    /// Refused (the first Qwen2-VL processors).
    Refuse,
}

/// One resize to multiples of `factor` within limits of the area.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SmartResize {
    /// Sides become multiples of this: patch times merge.
    pub factor: u32,
    /// Smallest area in pixels.
    pub min_pixels: u64,
    /// Largest area in pixels.
    pub max_pixels: u64,
    /// Longer over shorter side must not be above this.
    pub max_ratio: u32,
    /// What happens to a side shorter than the factor.
    pub below_factor: BelowFactor,
}

impl SmartResize {
    /// The size that an image of `size` is resized to.
    ///
    /// Fails with `image-aspect-ratio` or `image-too-small` where the library raises.
    pub fn apply(&self, size: ImageSize) -> Result<ImageSize, Verdict> {
        let (longer, shorter) = (size.width.max(size.height), size.width.min(size.height));
        if shorter == 0 {
            return Err(Verdict::new(Reason::ImageTooSmall, format!("an image of {size} has no pixels")));
        }
        if u64::from(longer) > u64::from(shorter) * u64::from(self.max_ratio) {
            return Err(Verdict::new(
                Reason::ImageAspectRatio,
                format!(
                    "longer over shorter side of {size} is {:.1}; the image processor accepts up to {}",
                    f64::from(longer) / f64::from(shorter),
                    self.max_ratio
                ),
            ));
        }
        if self.below_factor == BelowFactor::Refuse && shorter < self.factor {
            return Err(Verdict::new(
                Reason::ImageTooSmall,
                format!("{size} has a side under {} px; the image processor refuses it", self.factor),
            ));
        }
        let (height, width) = self.sides(f64::from(size.height), f64::from(size.width));
        if height < 1.0 || width < 1.0 {
            return Err(Verdict::new(
                Reason::ImageTooSmall,
                format!("{size} is resized to {width}x{height}; raise min_pixels ({})", self.min_pixels),
            ));
        }
        Ok(ImageSize::new(width as u32, height as u32))
    }

    /// The arithmetic itself; the caller has checked the ratio.
    fn sides(&self, height: f64, width: f64) -> (f64, f64) {
        let factor = f64::from(self.factor);
        let lowest = if self.below_factor == BelowFactor::Raise { factor } else { 0.0 };
        let rounded = |side: f64| ((side / factor).round_ties_even() * factor).max(lowest);
        let (rounded_height, rounded_width) = (rounded(height), rounded(width));
        let area = rounded_height * rounded_width;
        let (min_pixels, max_pixels) = (self.min_pixels as f64, self.max_pixels as f64);
        if area > max_pixels {
            let beta = (height * width / max_pixels).sqrt();
            let shrunk = |side: f64| factor.max((side / beta / factor).floor() * factor);
            (shrunk(height), shrunk(width))
        } else if area < min_pixels {
            let beta = (min_pixels / (height * width)).sqrt();
            let grown = |side: f64| (side * beta / factor).ceil() * factor;
            (grown(height), grown(width))
        } else {
            (rounded_height, rounded_width)
        }
    }
}

/// The whole way from an image to its grid; every variation between libraries is a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ImageProcessor {
    /// Side of a patch in pixels.
    pub patch_size: u32,
    /// Patches merged into one token along each side.
    pub merge_size: u32,
    /// The trainer's own reshaping of small and long images, before everything else.
    pub reshape: Option<Reshape>,
    /// A resize before the processor's, with limits of its own (`qwen_vl_utils.fetch_image`).
    pub first_resize: Option<SmartResize>,
    /// Smallest area after the processor's resize, in pixels.
    pub min_pixels: u64,
    /// Largest area after the processor's resize, in pixels.
    pub max_pixels: u64,
    /// Longer over shorter side that the processor accepts.
    pub max_ratio: u32,
    /// What the processor does with a side shorter than `patch_size * merge_size`.
    pub below_factor: BelowFactor,
}

/// The steps from an image to its tokens, for `packd explain`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ImageSteps {
    /// The size in the file.
    pub original: ImageSize,
    /// After the trainer's reshaping.
    pub reshaped: ImageSize,
    /// After the first resize.
    pub fetched: ImageSize,
    /// After the processor's resize.
    pub resized: ImageSize,
    /// The patches.
    pub grid: ImageGrid,
}

impl ImageProcessor {
    /// Side of the square that becomes one token, in pixels.
    pub fn factor(&self) -> u32 {
        self.patch_size * self.merge_size
    }

    /// The grid of an image of `size`.
    ///
    /// Fails with `image-aspect-ratio` or `image-too-small` where the training process would.
    pub fn grid(&self, size: ImageSize) -> Result<ImageGrid, Verdict> {
        self.steps(size).map(|steps| steps.grid)
    }

    /// Like [`grid`](Self::grid), with every size on the way.
    pub fn steps(&self, original: ImageSize) -> Result<ImageSteps, Verdict> {
        let reshaped = self.reshape.map_or(original, |rule| rule.apply(original));
        let fetched = match &self.first_resize {
            Some(resize) => resize.apply(reshaped)?,
            None => reshaped,
        };
        let resize = SmartResize {
            factor: self.factor(),
            min_pixels: self.min_pixels,
            max_pixels: self.max_pixels,
            max_ratio: self.max_ratio,
            below_factor: self.below_factor,
        };
        let resized = resize.apply(fetched)?;
        let grid =
            ImageGrid { t: 1, h: resized.height / self.patch_size, w: resized.width / self.patch_size };
        Ok(ImageSteps { original, reshaped, fetched, resized, grid })
    }

    /// Placeholder tokens of a grid.
    pub fn tokens(&self, grid: ImageGrid) -> u32 {
        grid.tokens(self.merge_size)
    }
}

impl Reshape {
    fn apply(&self, size: ImageSize) -> ImageSize {
        let ImageSize { mut width, mut height } = size;
        if width.min(height) < self.min_side {
            width = width.max(self.min_side);
            height = height.max(self.min_side);
        }
        let above = |long: u32, short: u32| u64::from(long) > u64::from(short) * u64::from(self.max_ratio);
        if above(width, height) {
            width = height.saturating_mul(self.clamped_ratio);
        }
        if above(height, width) {
            height = width.saturating_mul(self.clamped_ratio);
        }
        ImageSize { width, height }
    }
}

#[cfg(test)]
#[path = "grid_tests.rs"]
mod tests;
