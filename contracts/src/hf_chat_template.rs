//! The counting contract of processors with a chat template (Qwen2-VL and its kin).
//!
//! The conversation is rendered to one string and tokenized whole; the processor then repeats each
//! image placeholder once per token of the image:
//! `length = tokens(text) - placeholders + image tokens`.

use std::sync::Arc;

use crate::chat_template::{ChatTemplate, messages_of};
use crate::count::{ExplainLine, Fit, TokenCount, snippet};
use crate::grid::ImageGrid;
use crate::placeholders;
use crate::tokenizer::Tokenizer;
use crate::{Reason, Sample, Verdict};

/// The contract over one model directory.
pub(crate) struct HfChatTemplate {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: ChatTemplate,
    pub(crate) image_token: String,
    pub(crate) merge: u32,
}

impl HfChatTemplate {
    /// The length of a sample.
    pub(crate) fn count(&self, sample: &Sample, grids: &[ImageGrid]) -> Result<TokenCount, Verdict> {
        self.count_rounds(sample, sample.prompts.len(), grids)
    }

    fn count_rounds(
        &self,
        sample: &Sample,
        rounds: usize,
        grids: &[ImageGrid],
    ) -> Result<TokenCount, Verdict> {
        self.count_rendered(&self.render(sample, rounds, grids.len())?, grids)
    }

    /// The length of a text that was rendered already.
    pub(crate) fn count_rendered(&self, text: &str, grids: &[ImageGrid]) -> Result<TokenCount, Verdict> {
        let placeholders = text.matches(self.image_token.as_str()).count();
        if placeholders != grids.len() {
            return Err(Verdict::new(
                Reason::TemplateError,
                format!(
                    "the rendered conversation holds {placeholders} {}, but there are {} images",
                    self.image_token,
                    grids.len()
                ),
            ));
        }
        if placeholders > 0 && self.tokenizer.count(&self.image_token)? != 1 {
            return Err(Verdict::new(
                Reason::TemplateError,
                format!("{} is not one token of the tokenizer", self.image_token),
            ));
        }
        let extra: u64 = grids.iter().map(|grid| u64::from(grid.tokens(self.merge)) - 1).sum();
        TokenCount::new(self.tokenizer.count(text)? as u64 + extra, grids.to_vec(), self.merge)
    }

    /// The most rounds, counted from the first, whose length is at most `seq_len`.
    ///
    /// Found by halving: a template may print any number of rounds otherwise, but more rounds are
    /// more tokens.
    pub(crate) fn fit(
        &self,
        sample: &Sample,
        grids: &[ImageGrid],
        seq_len: u32,
    ) -> Result<Option<Fit>, Verdict> {
        let all = sample.prompts.len();
        Fit::by_halving(all, seq_len, |rounds| {
            let images = placeholders::images_of_rounds(sample, rounds).min(grids.len());
            let images = if rounds == all { grids.len() } else { images };
            Ok((images, self.count_rounds(sample, rounds, &grids[..images])?))
        })
    }

    /// The arithmetic line by line.
    pub(crate) fn explain(&self, sample: &Sample, grids: &[ImageGrid]) -> Result<Vec<ExplainLine>, Verdict> {
        let text = self.render(sample, sample.prompts.len(), grids.len())?;
        let count = self.count_rendered(&text, grids)?;
        let (text_tokens, image_tokens) = (count.text_tokens.into(), count.image_tokens.into());
        Ok(vec![ExplainLine::segment("conversation", snippet(&text), text_tokens, image_tokens)])
    }

    pub(crate) fn render(&self, sample: &Sample, rounds: usize, images: usize) -> Result<String, Verdict> {
        if sample.prompts.len() != sample.captions.len() {
            let detail =
                format!("{} user turns and {} assistant turns", sample.prompts.len(), sample.captions.len());
            return Err(Verdict::new(Reason::TurnOrder, detail));
        }
        let found = placeholders::images_of_rounds(sample, rounds);
        if found != images {
            return Err(placeholders::mismatch(found, images));
        }
        self.template.render(&messages_of(sample, rounds), false)
    }
}
