//! What counting one sample gives.

use serde::Serialize;

use crate::grid::ImageGrid;
use crate::{Reason, Verdict};

/// The length of one sample and what it is made of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TokenCount {
    /// Tokens that the training process will concatenate for the sample.
    pub length: u32,
    /// Of these, text: the template, the turns and the marks around images.
    pub text_tokens: u32,
    /// Of these, image placeholders.
    pub image_tokens: u32,
    /// Patches of all images, before merging: the work of the vision tower.
    pub patches: u32,
    /// The grid of each image.
    pub grids: Vec<ImageGrid>,
}

impl TokenCount {
    /// Splits a length where every image has its tokens.
    pub(crate) fn new(length: u64, grids: Vec<ImageGrid>, merge: u32) -> Result<Self, Verdict> {
        let image_tokens = grids.iter().map(|grid| u64::from(grid.tokens(merge))).sum();
        Self::with_image_tokens(length, image_tokens, grids)
    }

    /// Splits a length; fails if it does not fit 32 bits.
    pub(crate) fn with_image_tokens(
        length: u64,
        image_tokens: u64,
        grids: Vec<ImageGrid>,
    ) -> Result<Self, Verdict> {
        let patches: u64 = grids.iter().map(|grid| u64::from(grid.patches())).sum();
        let whole = |value: u64| {
            u32::try_from(value)
                .map_err(|_| Verdict::new(Reason::OverLength, format!("{length} tokens in one sample")))
        };
        Ok(Self {
            length: whole(length)?,
            text_tokens: whole(length - image_tokens)?,
            image_tokens: whole(image_tokens)?,
            patches: whole(patches)?,
            grids,
        })
    }
}

/// The part of a sample that fits (`overlong: truncate-turns`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fit {
    /// Rounds that stay, from the first; apply with [`keep_rounds`](crate::keep_rounds).
    pub rounds: usize,
    /// Images that stay, from the first.
    pub images: usize,
    /// The count of what stays.
    pub count: TokenCount,
}

impl Fit {
    /// The most of `all` rounds that fit into `seq_len`, for counts that cannot be taken round by round;
    /// `count` tells how many images a number of rounds keeps, and what they count together.
    pub(crate) fn by_halving(
        all: usize,
        seq_len: u32,
        count: impl Fn(usize) -> Result<(usize, TokenCount), Verdict>,
    ) -> Result<Option<Self>, Verdict> {
        let (mut fitting, mut too_many) = (0, all + 1);
        let mut best = None;
        while fitting + 1 < too_many {
            let rounds = fitting.midpoint(too_many);
            let (images, count) = count(rounds)?;
            if count.length <= seq_len {
                fitting = rounds;
                best = Some(Self { rounds, images, count });
            } else {
                too_many = rounds;
            }
        }
        Ok(best)
    }
}

/// One line of the arithmetic of a record (`packd explain`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExplainLine {
    /// What is counted: `system`, `user`, `assistant`, `image 1`, …
    pub what: String,
    /// The text, shortened, or the way of an image from its size to its grid.
    pub detail: String,
    /// Text tokens of a segment; `None` on lines that only inform.
    pub text_tokens: Option<u64>,
    /// Image tokens of a segment or an image. An image's own line repeats what its segment holds,
    /// so a total is taken over the lines that have `text_tokens`.
    pub image_tokens: Option<u64>,
}

impl ExplainLine {
    pub(crate) fn note(detail: impl Into<String>) -> Self {
        Self { what: "note".into(), detail: detail.into(), text_tokens: None, image_tokens: None }
    }

    pub(crate) fn segment(what: &str, detail: String, text_tokens: u64, image_tokens: u64) -> Self {
        Self {
            what: what.into(),
            detail,
            text_tokens: Some(text_tokens),
            image_tokens: (image_tokens > 0).then_some(image_tokens),
        }
    }
}

/// Text on one line, its middle left out when it is long.
pub(crate) fn snippet(text: &str) -> String {
    const SHOWN: usize = 60;
    let shortened = match (text.char_indices().nth(SHOWN), text.char_indices().nth_back(SHOWN / 3)) {
        (Some((head, _)), Some((tail, _))) if head < tail => {
            format!("{}…{}", &text[..head], &text[tail..])
        }
        _ => text.to_owned(),
    };
    format!("{shortened:?}")
}
