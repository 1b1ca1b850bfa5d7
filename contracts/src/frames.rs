//! Video frames under `llava-onevision-2`: patch positions, frame rate, timestamps in the text.
//!
//! Frames reach the trainer as images ("canvases") with an array of (t, h, w) for each patch. With a
//! frame rate the vision blocks of one message are written anew: a block for each run of patches of
//! one frame, with the time of the frame before it.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::count::TokenCount;
use crate::grid::ImageGrid;
use crate::llava_onevision_2::{IMAGE_BLOCK, LlavaOnevision2, push_with_blocks};
use crate::placeholders;
use crate::{Reason, Verdict};

const VISION_START: &str = "<|vision_start|>";
const VISION_END: &str = "<|vision_end|>";
/// More decimals of a time than any have a meaning.
const MAX_DECIMALS: u32 = 100;

/// What a sample of video frames has beyond its images.
///
/// Lengths are the trainer's; whether a model can make use of such a sample is not judged.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Frames {
    /// For each image its patch positions, (t, h, w) a row, row-major inside each canvas; `None`
    /// where the record has no file.
    pub positions: Vec<Option<Vec<[i64; 3]>>>,
    /// Frames a second; without it, or at 0, no times are written.
    pub fps: Option<f64>,
    /// Decimals of the written times; 0 and `None` mean 1.
    pub timestamp_decimal: Option<u32>,
}

/// The turns of a sample of frames with every vision block written out, one pad in each.
pub(crate) struct FrameTexts {
    pub(crate) prompts: Vec<String>,
    pub(crate) captions: Vec<String>,
    /// Pads of each block, in the order of the text.
    pub(crate) pads: Vec<u32>,
}

impl LlavaOnevision2 {
    /// The length of a sample of frames.
    pub(crate) fn count_frames(
        &self,
        prompts: &[String],
        captions: &[String],
        grids: &[ImageGrid],
        frames: &Frames,
    ) -> Result<TokenCount, Verdict> {
        let Some(texts) = self.frame_texts(prompts, captions, grids, frames)? else {
            return self.count(prompts, captions, grids);
        };
        let pads: u64 = texts.pads.iter().map(|&pads| u64::from(pads)).sum();
        // The text holds one pad in each block; the others are added as a number.
        let mut length = pads - texts.pads.len() as u64;
        self.each_segment(&borrowed(&texts.prompts), &borrowed(&texts.captions), |segment| {
            length += self.tokens(&segment)? as u64;
            Ok(())
        })?;
        TokenCount::with_image_tokens(length, pads, grids.to_vec())
    }

    /// The texts with times in them, or `None` where none are written: without a frame rate.
    pub(crate) fn frame_texts(
        &self,
        prompts: &[String],
        captions: &[String],
        grids: &[ImageGrid],
        frames: &Frames,
    ) -> Result<Option<FrameTexts>, Verdict> {
        let times = self.times_of_patches(grids, frames)?;
        let fps = match frames.fps {
            Some(fps) if fps > 0.0 && !times.all.is_empty() => fps,
            _ => return Ok(None),
        };
        let texts = placeholders::lay_out(prompts, captions, grids.len())?;
        // consecutive tokens of one frame are a run
        let runs: Vec<u32> = times.merged.chunk_by(|a, b| a == b).map(|run| run.len() as u32).collect();
        let decimals = frames.timestamp_decimal.filter(|&decimals| decimals > 0).unwrap_or(1);
        if decimals > MAX_DECIMALS {
            let detail = format!("timestamp_decimal is {decimals}, more than {MAX_DECIMALS}");
            return Err(Verdict::new(Reason::TemplateError, detail));
        }
        let stamps: Vec<String> = times
            .all
            .iter()
            .map(|&t| format!("<{:.*} seconds>", decimals as usize, t as f64 / fps))
            .collect();

        // the trainer looks for the blocks in the order of the messages
        let mut expanded: Vec<String> = Vec::with_capacity(2 * texts.prompts.len());
        let mut pads = Vec::new();
        let mut seen = 0;
        let mut rewritten = false;
        for text in texts.prompts.iter().zip(&texts.captions).flat_map(|(prompt, caption)| [prompt, caption])
        {
            let mut with_blocks = String::with_capacity(text.len());
            let images = push_with_blocks(&mut with_blocks, text);
            let here = &grids[seen..seen + images];
            seen += images;
            if !rewritten && with_blocks.contains(VISION_START) {
                rewritten = true;
                rewrite(&mut with_blocks, runs.len(), &stamps)?;
                pads.extend_from_slice(&runs);
            } else {
                pads.extend(here.iter().map(|grid| grid.tokens(self.merge)));
            }
            expanded.push(with_blocks);
        }
        let turns = |first: usize| expanded.iter().skip(first).step_by(2).cloned().collect();
        Ok(Some(FrameTexts { prompts: turns(0), captions: turns(1), pads }))
    }

    /// The frame of each merged patch in the order of the vision tower, and every frame there is.
    fn times_of_patches(&self, grids: &[ImageGrid], frames: &Frames) -> Result<Times, Verdict> {
        let patches: usize = grids.iter().map(|grid| grid.patches() as usize).sum();
        let given: Vec<i64> = frames.positions.iter().flatten().flatten().map(|&[time, _, _]| time).collect();
        let (Some(first), true) = (grids.first(), frames.positions.iter().any(Option::is_some)) else {
            // every patch of an image without positions is of frame 0
            let tokens = grids.iter().map(|grid| grid.tokens(self.merge) as usize).sum();
            let all = if patches > 0 { BTreeSet::from([0]) } else { BTreeSet::new() };
            return Ok(Times { merged: vec![0; tokens], all });
        };
        // the trainer takes all canvases for as large as the first
        let canvas = (first.h as usize, first.w as usize);
        if given.len() != grids.len() * canvas.0 * canvas.1 || given.len() != patches {
            return Err(Verdict::new(
                Reason::PatchPositionsMismatch,
                format!(
                    "{} patch positions for {} canvases of {}x{} patches, {patches} in all",
                    given.len(),
                    grids.len(),
                    first.h,
                    first.w
                ),
            ));
        }
        let merge = self.merge as usize;
        let mut merged = Vec::with_capacity(given.len() / (merge * merge));
        for number in 0..grids.len() {
            for row in (0..canvas.0).step_by(merge) {
                for column in (0..canvas.1).step_by(merge) {
                    merged.push(given[(number * canvas.0 + row) * canvas.1 + column]);
                }
            }
        }
        Ok(Times { merged, all: given.into_iter().collect() })
    }
}

pub(crate) fn borrowed(texts: &[String]) -> Vec<Cow<'_, str>> {
    texts.iter().map(|text| Cow::Borrowed(text.as_str())).collect()
}

struct Times {
    /// Of the first patch of each merged block.
    merged: Vec<i64>,
    /// Of all patches, once each.
    all: BTreeSet<i64>,
}

/// Replaces everything from the first vision start to the last vision end, and a newline after it,
/// by a block for each run. Times go to the runs in order, so a frame that comes back takes the time
/// of another and the last runs get none, as in the trainer.
fn rewrite(text: &mut String, runs: usize, stamps: &[String]) -> Result<(), Verdict> {
    let span = text.find(VISION_START).zip(text.rfind(VISION_END)).filter(|(start, last)| start < last);
    let Some((start, last)) = span else {
        let detail = format!("{VISION_START} is spelled in the text with no {VISION_END} after it");
        return Err(Verdict::new(Reason::SpecialTokensInText, detail));
    };
    let mut end = last + VISION_END.len();
    if text[end..].starts_with('\n') {
        end += 1;
    }
    let mut blocks = String::new();
    for number in 0..runs {
        blocks.push_str(stamps.get(number).map_or("", String::as_str));
        blocks.push_str(IMAGE_BLOCK);
        blocks.push('\n');
    }
    text.replace_range(start..end, &blocks);
    Ok(())
}
