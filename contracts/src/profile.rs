//! Model profiles: which counting contract, which image arithmetic, under which name.

use serde::Serialize;

use crate::grid::{BelowFactor, ImageProcessor, Reshape, SmartResize};

/// How the training process turns a sample into tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Contract {
    /// The LLaVA-OneVision-2 trainer: every segment of a conversation is tokenized by itself,
    /// the system prompt is always the default one, placeholders are expanded and repaired.
    #[serde(rename = "llava-onevision-2")]
    LlavaOnevision2,
    /// The chat template of the model directory is rendered to one string, which is tokenized whole.
    HfChatTemplate,
}

impl Contract {
    /// The name as it stands in the configuration and the report.
    pub fn name(self) -> &'static str {
        match self {
            Contract::LlavaOnevision2 => "llava-onevision-2",
            Contract::HfChatTemplate => "hf-chat-template",
        }
    }
}

/// A model family as data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Profile {
    /// The name in the configuration.
    pub name: &'static str,
    /// How its training process counts.
    pub contract: Contract,
    /// Its image arithmetic; a model directory replaces patch, merge and limits.
    pub images: ImageProcessor,
    /// The profile names its patch and merge sizes, so a model directory must agree with them.
    pub fixed_geometry: bool,
    /// The token that the processor repeats for an image (`hf-chat-template`).
    pub image_token: &'static str,
}

/// The profile of a run that names none.
pub const DEFAULT_PROFILE: &str = "llava-onevision-2-p14m2";

/// The trainer takes `max_pixels` from the published processor, which its merge step sets to
/// 4,000,000; `min_pixels` is the Qwen2-VL default of 56 x 56.
const LLAVA_ONEVISION_2: ImageProcessor = ImageProcessor {
    patch_size: 14,
    merge_size: 2,
    reshape: Some(Reshape { min_side: 28, max_ratio: 200, clamped_ratio: 180 }),
    first_resize: None,
    min_pixels: 56 * 56,
    max_pixels: 4_000_000,
    max_ratio: 200,
    below_factor: BelowFactor::Scale,
};

/// transformers' `Qwen2VLImageProcessor` with the limits of the published Qwen2-VL checkpoints.
const QWEN2_VL: ImageProcessor = ImageProcessor {
    patch_size: 14,
    merge_size: 2,
    reshape: None,
    first_resize: None,
    min_pixels: 56 * 56,
    max_pixels: 28 * 28 * 16_384,
    max_ratio: 200,
    below_factor: BelowFactor::Scale,
};

/// Qwen3-VL publishes patch 16 and `size: {shortest_edge: 65536, longest_edge: 16777216}`.
const QWEN3_VL: ImageProcessor =
    ImageProcessor { patch_size: 16, min_pixels: 65_536, max_pixels: 16_777_216, ..QWEN2_VL };

const fn llava(name: &'static str, patch_size: u32, merge_size: u32) -> Profile {
    Profile {
        name,
        contract: Contract::LlavaOnevision2,
        images: ImageProcessor { patch_size, merge_size, ..LLAVA_ONEVISION_2 },
        fixed_geometry: true,
        image_token: "<|image_pad|>",
    }
}

const fn qwen(name: &'static str, images: ImageProcessor) -> Profile {
    Profile {
        name,
        contract: Contract::HfChatTemplate,
        images,
        fixed_geometry: false,
        image_token: "<|image_pad|>",
    }
}

/// Every profile.
pub const PROFILES: &[Profile] = &[
    llava("llava-onevision-2-p14m2", 14, 2),
    llava("llava-onevision-2-p14m3", 14, 3),
    llava("llava-onevision-2-p16m2", 16, 2),
    llava("llava-onevision-2-p16m3", 16, 3),
    Profile { fixed_geometry: false, ..llava("llava-onevision-2", 14, 2) },
    qwen("qwen2-vl", QWEN2_VL),
    qwen("qwen2.5-vl", QWEN2_VL),
    qwen("qwen3-vl", QWEN3_VL),
];

impl Profile {
    /// The profile of that name.
    pub fn named(name: &str) -> Option<&'static Profile> {
        PROFILES.iter().find(|profile| profile.name == name)
    }
}

/// The resize of `qwen_vl_utils.fetch_image` (0.0.14), to multiples of `factor`: 28 unless a script
/// passes the model's own patch size, so that a patch-16 model rounds to 28 first and to 32 then.
///
/// `limits` are the smallest and largest area in pixels that the script hands over; without them
/// `fetch_image` keeps between 4 and 16,384 tokens.
pub fn fetch_image_resize(factor: u32, limits: Option<(u64, u64)>) -> SmartResize {
    let token = u64::from(factor) * u64::from(factor);
    let (min_pixels, max_pixels) = limits.unwrap_or((4 * token, 16_384 * token));
    SmartResize { factor, min_pixels, max_pixels, max_ratio: 200, below_factor: BelowFactor::Raise }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for profile in PROFILES {
            assert_eq!(Profile::named(profile.name), Some(profile));
        }
        assert!(Profile::named(DEFAULT_PROFILE).is_some());
        assert!(Profile::named("llava").is_none());
    }
}
