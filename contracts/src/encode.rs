//! The tokens themselves, for those who run a model: what counting counts, written out.

use crate::count::TokenCount;
use crate::frames::{Frames, borrowed};
use crate::grid::ImageGrid;
use crate::hf_chat_template::HfChatTemplate;
use crate::llava_onevision_2::{LlavaOnevision2, Segment};
use crate::placeholders;
use crate::tokenizer::Tokenizer;
use crate::{Reason, Sample, Verdict};

/// A sample in tokens: as many as its [`TokenCount::length`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EncodedSample {
    /// Token ids, the image token repeated for each merged block of patches.
    pub input_ids: Vec<u32>,
    /// Which tokens are trained on. `hf-chat-template` does not say, so there it is every token but images'.
    pub is_trained: Vec<bool>,
    /// The image grids in the order of their tokens.
    pub grids: Vec<ImageGrid>,
}

impl EncodedSample {
    fn new(grids: &[ImageGrid]) -> Self {
        Self { input_ids: Vec::new(), is_trained: Vec::new(), grids: grids.to_vec() }
    }

    fn push(&mut self, id: u32, times: u32, is_trained: bool) {
        let length = self.input_ids.len() + times as usize;
        self.input_ids.resize(length, id);
        self.is_trained.resize(length, is_trained);
    }

    /// The sample must be as long as it is counted.
    pub(crate) fn checked(self, count: &TokenCount) -> Result<Self, Verdict> {
        if self.input_ids.len() == count.length as usize {
            return Ok(self);
        }
        let (made, counted) = (self.input_ids.len(), count.length);
        Err(Verdict::new(Reason::SpecialTokensInText, format!("{made} tokens, counted as {counted}")))
    }
}

/// Takes the pads of each image in order.
struct Pads<'a> {
    /// The image token; a tokenizer without one does for samples without images.
    id: Option<u32>,
    of_images: std::slice::Iter<'a, u32>,
}

impl<'a> Pads<'a> {
    fn new(tokenizer: &Tokenizer, image_token: &str, of_images: &'a [u32]) -> Result<Self, Verdict> {
        let id = match tokenizer.encode(image_token)?.as_slice() {
            [id] => Some(*id),
            _ if of_images.is_empty() => None,
            _ => {
                let detail = format!("{image_token} is not one token of the tokenizer");
                return Err(Verdict::new(Reason::TemplateError, detail));
            }
        };
        Ok(Self { id, of_images: of_images.iter() })
    }

    fn push(&mut self, out: &mut EncodedSample, ids: &[u32], is_trained: bool) -> Result<(), Verdict> {
        for &id in ids {
            if Some(id) != self.id {
                out.push(id, 1, is_trained);
                continue;
            }
            let Some(&times) = self.of_images.next() else {
                let detail = "the text spells more image tokens than there are images";
                return Err(Verdict::new(Reason::SpecialTokensInText, detail));
            };
            out.push(id, times, false);
        }
        Ok(())
    }
}

impl LlavaOnevision2 {
    /// The tokens of a sample; labels are the answers and the tokens that end them.
    pub(crate) fn encode(
        &self,
        sample: &Sample,
        grids: &[ImageGrid],
        frames: Option<&Frames>,
    ) -> Result<EncodedSample, Verdict> {
        let mut out = EncodedSample::new(grids);
        let (prompts, captions) = (&sample.prompts, &sample.captions);
        let framed = match frames {
            Some(frames) => self.frame_texts(prompts, captions, grids, frames)?,
            None => None,
        };
        if let Some(texts) = &framed {
            let turns = [borrowed(&texts.prompts), borrowed(&texts.captions)];
            self.encode_segments(&mut out, &turns, &texts.pads)?;
        } else {
            let texts = placeholders::lay_out(prompts, captions, grids.len())?;
            let pads: Vec<u32> = grids.iter().map(|grid| grid.tokens(self.merge)).collect();
            self.encode_segments(&mut out, &[texts.prompts, texts.captions], &pads)?;
        }
        Ok(out)
    }

    fn encode_segments(
        &self,
        out: &mut EncodedSample,
        [prompts, captions]: &[Vec<std::borrow::Cow<'_, str>>; 2],
        pads: &[u32],
    ) -> Result<(), Verdict> {
        let mut pads = Pads::new(self.tokenizer(), "<|image_pad|>", pads)?;
        self.each_segment(prompts, captions, |segment: Segment<'_>| {
            let is_trained = matches!(segment.kind, "assistant" | "end");
            pads.push(out, &self.tokenizer().encode(segment.text)?, is_trained)
        })
    }
}

impl HfChatTemplate {
    /// The tokens of a sample.
    pub(crate) fn encode(&self, sample: &Sample, grids: &[ImageGrid]) -> Result<EncodedSample, Verdict> {
        let mut out = EncodedSample::new(grids);
        let text = self.render(sample, sample.prompts.len(), grids.len())?;
        let of_images: Vec<u32> = grids.iter().map(|grid| grid.tokens(self.merge)).collect();
        let mut pads = Pads::new(&self.tokenizer, &self.image_token, &of_images)?;
        pads.push(&mut out, &self.tokenizer.encode(&text)?, true)?;
        Ok(out)
    }
}
