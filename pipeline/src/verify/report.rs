//! What `verify` says in the end.

use std::collections::BTreeMap;

use serde::Serialize;

use super::context::Context;
use super::fault::{Fault, FaultKind};
use super::rules::Counting;

/// Packs fuller than this need no warning.
const GOOD_FILL: f64 = 0.95;

/// What was looked at, and what was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VerifyReport {
    /// Shards that were read.
    pub shards: u64,
    /// Bytes of these shards.
    pub bytes: u64,
    /// Packed samples.
    pub packs: u64,
    /// Sub-samples.
    pub sub_samples: u64,
    /// Images.
    pub images: u64,
    /// Packed samples whose lengths were counted again.
    pub recounted: u64,
    /// Tokens that a pack may hold.
    pub seq_len: u32,
    /// The profile that counted.
    pub profile: String,
    /// Area of an image after the processor's resize at least and at most, in pixels: the profile's, or the model's.
    pub pixels: [u64; 2],
    /// Tokens of the packs whose lengths are known.
    pub tokens: u64,
    /// Of the packs whose lengths are known: tokens / (packs · seq_len).
    pub fill: Option<f64>,
    /// All faults.
    pub fault_count: u64,
    /// Faults by kind.
    pub fault_counts: BTreeMap<FaultKind, u64>,
    /// The faults: the first 1,000 of each kind, in order.
    pub faults: Vec<Fault>,
    /// What is worth knowing and no fault, one sentence each.
    pub warnings: Vec<String>,
}

impl VerifyReport {
    /// Whether no fault was found.
    pub fn passed(&self) -> bool {
        self.fault_count == 0
    }

    pub(super) fn new(context: Context<'_>) -> Self {
        let totals = context.totals().clone();
        let rules = &context.rules;
        let fill = (totals.measured > 0)
            .then(|| totals.tokens as f64 / (totals.measured as f64 * f64::from(rules.seq_len)));
        let mut warnings = context.warnings();
        if let Some(fill) = fill.filter(|fill| *fill < GOOD_FILL) {
            warnings.push(format!("packs are only {:.1} % full", 100.0 * fill));
        }
        if totals.packs > 1 && totals.single == totals.packs {
            warnings.push("every pack holds one sub-sample: nothing was packed".into());
        }
        if totals.frames > 0 {
            warnings
                .push(format!("{} packs hold video frames, which could not be counted again", totals.frames));
        }
        if totals.differing > 0 {
            warnings.push(format!(
                "{} packs have other lengths under {} than the set states{}",
                totals.differing,
                rules.counter.describe().profile,
                match rules.counting {
                    Counting::Unknown => ": name what it was packed for with --profile or --model",
                    Counting::Other | Counting::AsWritten => "",
                }
            ));
        }
        let (seq_len, profile) = (rules.seq_len, rules.counter.describe().profile.clone());
        let images = rules.counter.images();
        let (faults, fault_counts) = context.faults.into_parts();
        Self {
            shards: totals.shards,
            bytes: totals.bytes,
            packs: totals.packs,
            sub_samples: totals.sub_samples,
            images: totals.images,
            recounted: totals.recounted,
            seq_len,
            profile,
            pixels: [images.min_pixels, images.max_pixels],
            tokens: totals.tokens,
            fill,
            fault_count: fault_counts.values().sum(),
            fault_counts,
            faults,
            warnings,
        }
    }
}
