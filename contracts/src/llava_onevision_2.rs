//! The counting contract of the LLaVA-OneVision-2 trainer (its template `qwen2-vl`).
//!
//! A sample is a list of strings that are tokenized *separately* and concatenated:
//!
//! ```text
//! S   <|im_start|>system\nYou are a helpful assistant.<|im_end|>\n
//! U0  <|im_start|>user\n … <|im_end|>\n<|im_start|>assistant\n     A0  the answer     <|im_end|>
//! \n  U1   A1  <|im_end|>
//! ```
//!
//! One string tokenized whole counts otherwise: an answer that starts with a newline would merge
//! with the newline before it, and chat templates end with a newline that the trainer lacks.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use crate::Verdict;
use crate::count::{ExplainLine, Fit, TokenCount, snippet};
use crate::grid::ImageGrid;
use crate::placeholders::{self, LaidOut};
use crate::record::IMAGE;
use crate::tokenizer::Tokenizer;

/// Always the first segment: a packed sample cannot store a system prompt of its own.
pub(crate) const SYSTEM: &str = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n";
const USER_START: &str = "<|im_start|>user\n";
const USER_END: &str = "<|im_end|>\n<|im_start|>assistant\n";
const TURN_END: &str = "<|im_end|>";
const BETWEEN_ROUNDS: &str = "\n";
/// What stands for an image: the trainer repeats the middle token, which is added as a number here.
pub(crate) const IMAGE_BLOCK: &str = "<|vision_start|><|image_pad|><|vision_end|>";
/// The user formatter replaces one of these by the number of the round.
const ROUND_NUMBER: &str = "{{idx}}";

/// The special tokens that the arithmetic takes for one token each.
pub(crate) const NEEDED: [&str; 5] =
    ["<|im_start|>", TURN_END, "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"];

/// The contract with its constants counted once, when something is counted.
pub(crate) struct LlavaOnevision2 {
    tokenizer: Arc<Tokenizer>,
    pub(crate) merge: u32,
    constants: OnceLock<Constants>,
}

/// Tokens of what stands in every sample.
#[derive(Clone, Copy)]
struct Constants {
    system: usize,
    between: usize,
}

/// One string that the trainer tokenizes by itself.
pub(crate) struct Segment<'a> {
    /// `system`, `between`, `user`, `assistant` or `end`.
    pub(crate) kind: &'static str,
    pub(crate) text: &'a str,
    /// Images standing in it.
    pub(crate) images: usize,
}

/// What the segments of one round cost.
#[derive(Clone, Copy)]
struct Round {
    tokens: u64,
    images: usize,
}

impl LlavaOnevision2 {
    /// The contract over a tokenizer; `Err` names a special token that the tokenizer lacks.
    pub(crate) fn new(tokenizer: Arc<Tokenizer>, merge: u32) -> Result<Self, &'static str> {
        let is_special = |token: &str| tokenizer.special_tokens().iter().any(|special| special == token);
        let is_one = |token: &str| is_special(token) || tokenizer.count(token) == Ok(1);
        if let Some(missing) = NEEDED.into_iter().find(|token| !is_one(token)) {
            return Err(missing);
        }
        Ok(Self { tokenizer, merge, constants: OnceLock::new() })
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    fn constants(&self) -> Result<Constants, Verdict> {
        if let Some(known) = self.constants.get() {
            return Ok(*known);
        }
        let count = |text| self.tokenizer.count(text);
        let constants = Constants { system: count(SYSTEM)?, between: count(BETWEEN_ROUNDS)? };
        Ok(*self.constants.get_or_init(|| constants))
    }

    /// The length of a sample with these turns and grids.
    pub(crate) fn count(
        &self,
        prompts: &[String],
        captions: &[String],
        grids: &[ImageGrid],
    ) -> Result<TokenCount, Verdict> {
        let texts = placeholders::lay_out(prompts, captions, grids.len())?;
        let mut length = 0;
        self.each_segment(&texts.prompts, &texts.captions, |segment| {
            length += self.tokens(&segment)? as u64;
            Ok(())
        })?;
        TokenCount::new(length + self.extra_pads(grids), grids.to_vec(), self.merge)
    }

    /// The most rounds, counted from the first, whose length is at most `seq_len`, as the trainer
    /// drops rounds from the end; `None` if not even one fits.
    pub(crate) fn fit(
        &self,
        prompts: &[String],
        captions: &[String],
        grids: &[ImageGrid],
        seq_len: u32,
    ) -> Result<Option<Fit>, Verdict> {
        let texts = placeholders::lay_out(prompts, captions, grids.len())?;
        if texts.changed {
            return self.fit_repaired(prompts, captions, grids, seq_len);
        }
        let mut total = Round { tokens: self.constants()?.system as u64, images: 0 };
        let mut fitting = None;
        for (number, round) in self.rounds(&texts)?.into_iter().enumerate() {
            total = Round { tokens: total.tokens + round.tokens, images: total.images + round.images };
            let length = total.tokens + self.extra_pads(&grids[..total.images]);
            if length > u64::from(seq_len) {
                break;
            }
            fitting = Some((number + 1, total.images, length));
        }
        fitting
            .map(|(rounds, images, length)| {
                let count = TokenCount::new(length, grids[..images].to_vec(), self.merge)?;
                Ok(Fit { rounds, images, count })
            })
            .transpose()
    }

    /// Like [`fit`](Self::fit) where the repair moves placeholders: each number of rounds is laid
    /// out anew, found by halving because a round costs more than a repair can save.
    fn fit_repaired(
        &self,
        prompts: &[String],
        captions: &[String],
        grids: &[ImageGrid],
        seq_len: u32,
    ) -> Result<Option<Fit>, Verdict> {
        let all = prompts.len();
        Fit::by_halving(all, seq_len, |rounds| {
            let images = placeholders::placeholders_of_rounds(prompts, captions, grids.len(), rounds);
            // All rounds with all images is the sample itself.
            let images = if rounds == all { grids.len() } else { images.min(grids.len()) };
            Ok((images, self.count(&prompts[..rounds], &captions[..rounds], &grids[..images])?))
        })
    }

    /// The arithmetic line by line.
    pub(crate) fn explain(
        &self,
        prompts: &[String],
        captions: &[String],
        grids: &[ImageGrid],
    ) -> Result<Vec<ExplainLine>, Verdict> {
        let texts = placeholders::lay_out(prompts, captions, grids.len())?;
        let mut lines = Vec::new();
        if texts.changed {
            lines.push(ExplainLine::note("the trainer moves or expands the placeholders of this record"));
        }
        let mut seen = 0;
        self.each_segment(&texts.prompts, &texts.captions, |segment| {
            let here = &grids[seen..seen + segment.images];
            seen += segment.images;
            let pads: u32 = here.iter().map(|grid| grid.tokens(self.merge)).sum();
            let text = self.tokens(&segment)? - segment.images;
            lines.push(ExplainLine::segment(
                segment.kind,
                snippet(segment.text),
                text as u64,
                u64::from(pads),
            ));
            Ok(())
        })?;
        Ok(lines)
    }

    /// Calls `visit` with every segment in order; an image stands in a segment as one block.
    pub(crate) fn each_segment(
        &self,
        prompts: &[Cow<'_, str>],
        captions: &[Cow<'_, str>],
        mut visit: impl FnMut(Segment<'_>) -> Result<(), Verdict>,
    ) -> Result<(), Verdict> {
        let mut buffer = String::new();
        visit(Segment { kind: "system", text: SYSTEM, images: 0 })?;
        for (number, (prompt, caption)) in prompts.iter().zip(captions).enumerate() {
            if number > 0 {
                visit(Segment { kind: "between", text: BETWEEN_ROUNDS, images: 0 })?;
            }
            let images = write_user(&mut buffer, prompt, number);
            visit(Segment { kind: "user", text: &buffer, images })?;
            if caption.contains(IMAGE) {
                buffer.clear();
                let images = push_with_blocks(&mut buffer, caption);
                visit(Segment { kind: "assistant", text: &buffer, images })?;
            } else {
                visit(Segment { kind: "assistant", text: caption, images: 0 })?;
            }
            visit(Segment { kind: "end", text: TURN_END, images: 0 })?;
        }
        Ok(())
    }

    /// The cost of every round, an image counted as one token.
    fn rounds(&self, texts: &LaidOut<'_>) -> Result<Vec<Round>, Verdict> {
        let mut rounds = Vec::with_capacity(texts.prompts.len());
        let mut round = Round { tokens: 0, images: 0 };
        self.each_segment(&texts.prompts, &texts.captions, |segment| {
            if segment.kind != "system" {
                round.tokens += self.tokens(&segment)? as u64;
                round.images += segment.images;
            }
            if segment.kind == "end" {
                rounds.push(round);
                round = Round { tokens: 0, images: 0 };
            }
            Ok(())
        })?;
        Ok(rounds)
    }

    /// Tokens of one segment, an image counted as one.
    pub(crate) fn tokens(&self, segment: &Segment<'_>) -> Result<usize, Verdict> {
        match segment.kind {
            "system" => Ok(self.constants()?.system),
            "between" => Ok(self.constants()?.between),
            "end" => Ok(1),
            _ => self.tokenizer.count(segment.text),
        }
    }

    /// Pads beyond the one that the text holds for each image.
    fn extra_pads(&self, grids: &[ImageGrid]) -> u64 {
        grids.iter().map(|grid| u64::from(grid.tokens(self.merge)) - 1).sum()
    }
}

/// The user segment of a round, with one block for each image; returns the images.
fn write_user(buffer: &mut String, prompt: &str, round: usize) -> usize {
    buffer.clear();
    buffer.push_str(USER_START);
    let images = push_with_blocks(buffer, prompt);
    buffer.push_str(USER_END);
    if let Some(at) = buffer.find(ROUND_NUMBER) {
        buffer.replace_range(at..at + ROUND_NUMBER.len(), &round.to_string());
    }
    images
}

/// Writes `text` with a block for each `<image>`; returns how many there are.
pub(crate) fn push_with_blocks(buffer: &mut String, text: &str) -> usize {
    let mut pieces = text.split(IMAGE);
    buffer.push_str(pieces.next().unwrap_or_default());
    let mut images = 0;
    for piece in pieces {
        buffer.push_str(IMAGE_BLOCK);
        buffer.push_str(piece);
        images += 1;
    }
    images
}
