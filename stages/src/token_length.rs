//! Token length: how many tokens the trainer will concatenate for a sample, and whether they fit.

use std::sync::Arc;

use packd_config::{Config, Overlong};
use packd_contracts::{Counter, Reason, Verdict};

use crate::bin_pack::{Item, Limits, Misfit};
use crate::validate::ValidSample;

/// The token-length stage; share it between threads by reference.
pub struct TokenLength {
    counter: Arc<Counter>,
    /// Without limits every sample fits (`packd lengths`).
    limits: Option<Limits>,
    overlong: Overlong,
}

/// The measurements of one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// What the packer needs to know; `stored` is in 512-byte tar blocks.
    pub item: Item,
    /// Of the length, tokens of text.
    pub text_tokens: u32,
    /// Of the length, tokens of images.
    pub image_tokens: u32,
    /// Rounds that stay, 0 for all (`overlong: truncate-turns`).
    pub rounds: u16,
    /// Rounds that were dropped.
    pub rounds_dropped: u32,
}

/// Why a sample has no measurements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unmeasured {
    /// The record goes to the rejects.
    Rejected(Verdict),
    /// The run must stop (`overlong: error`).
    Stop(Verdict),
}

impl TokenLength {
    /// Counts with `counter`; a sample must fit `limits`, if there are any.
    pub fn new(config: &Config, counter: Arc<Counter>, limits: Option<Limits>) -> Self {
        Self { counter, limits, overlong: config.overlong }
    }

    /// Measures one sample.
    ///
    /// # Errors
    /// The trainer would fail on the sample, or it does not fit and the policy is not to cut it.
    pub fn measure(&self, valid: &ValidSample) -> Result<Measured, Unmeasured> {
        let count = self.counter.count(&valid.sample, &valid.sizes).map_err(Unmeasured::Rejected)?;
        let images = valid.sample.images.len();
        if u16::try_from(images).is_err() {
            let verdict =
                Verdict::new(Reason::InvalidField, format!("{images} images; at most 65,535 are supported"));
            return Err(Unmeasured::Rejected(verdict));
        }
        let whole = Measured {
            item: item(valid, images, count.length, count.patches),
            text_tokens: count.text_tokens,
            image_tokens: count.image_tokens,
            rounds: 0,
            rounds_dropped: 0,
        };
        let Some(limits) = &self.limits else { return Ok(whole) };
        match limits.check(&whole.item) {
            Ok(()) => Ok(whole),
            Err(misfit) => self.handle_misfit(valid, limits, misfit),
        }
    }

    /// As [`measure`](Self::measure), with the count taken from an earlier run where there is one and the
    /// sample fits whole.
    ///
    /// # Errors
    /// As [`measure`](Self::measure).
    pub fn measure_known(
        &self,
        valid: &ValidSample,
        known: Option<Measured>,
    ) -> Result<Measured, Unmeasured> {
        let fits = |measured: &Measured| {
            self.limits.as_ref().is_none_or(|limits| limits.check(&measured.item).is_ok())
        };
        match known {
            Some(measured) if fits(&measured) => Ok(measured),
            _ => self.measure(valid),
        }
    }

    fn handle_misfit(
        &self,
        valid: &ValidSample,
        limits: &Limits,
        misfit: Misfit,
    ) -> Result<Measured, Unmeasured> {
        let verdict = Verdict::new(Reason::OverLength, misfit.to_string());
        match self.overlong {
            Overlong::Reject => Err(Unmeasured::Rejected(verdict)),
            Overlong::Error => Err(Unmeasured::Stop(verdict)),
            Overlong::TruncateTurns => self.truncate(valid, limits, verdict),
        }
    }

    fn truncate(
        &self,
        valid: &ValidSample,
        limits: &Limits,
        verdict: Verdict,
    ) -> Result<Measured, Unmeasured> {
        // Room is given in whole multiples of the padding: what fits unpadded must fit padded.
        let room = limits.seq_len - limits.seq_len % limits.pad_to_multiple.max(1);
        let fit = self
            .counter
            .max_rounds_that_fit(&valid.sample, &valid.sizes, room)
            .map_err(Unmeasured::Rejected)?;
        let Some(fit) = fit else { return Err(Unmeasured::Rejected(verdict)) };
        let Ok(rounds) = u16::try_from(fit.rounds) else { return Err(Unmeasured::Rejected(verdict)) };
        let item = item(valid, fit.images, fit.count.length, fit.count.patches);
        limits.check(&item).map_err(|_| Unmeasured::Rejected(verdict))?;
        Ok(Measured {
            item,
            text_tokens: fit.count.text_tokens,
            image_tokens: fit.count.image_tokens,
            rounds,
            rounds_dropped: (valid.sample.prompts.len() - fit.rounds) as u32,
        })
    }
}

fn item(valid: &ValidSample, images: usize, length: u32, patches: u32) -> Item {
    Item { length, images: images as u32, patches, stored: valid.image_blocks[..images].iter().sum() }
}
