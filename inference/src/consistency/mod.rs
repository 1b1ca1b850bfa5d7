//! Does a Megatron checkpoint compute what the Hugging Face checkpoint does that it was made of?
//!
//! Six checks, by the model of this crate, with the constants that Megatron's code has on its side ([`Flavour`]):
//!
//! 1. `weights`: every tensor of the model, put together from all ranks;
//! 2. `vision_encoder`: after the patch embedding, the rotary angles, after the norm before the layers, before the adapter;
//! 3. `merger`: after the adapter;
//! 4. `layers`: after each layer of the vision tower;
//! 5. `logits`: what the decoder gets, after each of its layers, and the logits, of a text with an image;
//! 6. `loading`: the Hugging Face checkpoint read in two ways, candle's and that of the converter, as tensors and as models.
//!
//! Positions of patches are in block order on both sides, as in training. Shapes must be equal; nothing is cut to the
//! shorter side. A cosine does not see a factor, so that a threshold by a cosine also bounds the relative error, by as
//! much as it allows vectors of one length to differ ([`Threshold::of_cosine`](crate::agreement::Threshold::of_cosine)).
//!
//! Tensors are compared block by block. Of models one is in memory at a time, with what was seen of the other.

mod hint;
mod outputs;
mod report;
mod tensors;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Device};
use serde::Serialize;

use crate::agreement::{Seen, Threshold};
use crate::batch::PackedBatch;
use crate::convert::{ConvertError, Format, Source, SourceOptions};
use crate::error::{ModelError, Result};
use crate::flavour::Flavour;
use crate::layout::AskedDegrees;
use crate::progress::Progress;
use crate::weights::Weights;

pub use crate::agreement::Point;
pub use report::{Check, Outcome, Report};

/// One of the six checks, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckKind {
    /// All tensors.
    Weights,
    /// The vision tower at four points.
    VisionEncoder,
    /// What the adapter makes.
    Merger,
    /// The vision tower layer by layer.
    Layers,
    /// The decoder and its logits.
    Logits,
    /// Two ways of reading the Hugging Face checkpoint.
    Loading,
}

impl CheckKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Weights, Self::VisionEncoder, Self::Merger, Self::Layers, Self::Logits, Self::Loading];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::VisionEncoder => "vision_encoder",
            Self::Merger => "merger",
            Self::Layers => "layers",
            Self::Logits => "logits",
            Self::Loading => "loading",
        }
    }
}

/// How far the two sides must agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Tolerance {
    /// Outputs within the thresholds of the reference suite: what bf16 and Megatron's constants explain. Tensors to the
    /// bit, but one side may have them rounded.
    #[default]
    Bf16,
    /// Outputs to a relative error of 1e-6: the same weights in the same arithmetic. Megatron's constants are not within
    /// it. Tensors to the bit.
    F32,
}

impl Tolerance {
    /// The threshold of a check at a point.
    pub fn threshold(self, check: CheckKind, point: &str) -> Threshold {
        match (self, check) {
            (_, CheckKind::Weights) => Threshold { cosine: 0.999_999, relative_error: 0.0 },
            (Self::F32, _) => Threshold { cosine: 0.999_999, relative_error: 1e-6 },
            (Self::Bf16, CheckKind::Loading) => Threshold::of_cosine(0.9999),
            (Self::Bf16, CheckKind::Layers) => Threshold::of_cosine(0.95),
            (Self::Bf16, CheckKind::VisionEncoder) if point == outputs::BEFORE_ADAPTER => {
                Threshold::of_cosine(0.95)
            }
            (Self::Bf16, CheckKind::Logits) if point.contains(".layer") => Threshold::of_cosine(0.95),
            (Self::Bf16, _) => Threshold::of_cosine(0.99),
        }
    }
}

/// What to compare, and how.
#[derive(Clone, Debug)]
pub struct ConsistencyOptions {
    /// The Hugging Face checkpoint.
    pub hf: PathBuf,
    /// The Megatron checkpoint.
    pub mcore: PathBuf,
    /// Degrees of the Megatron checkpoint, where its names do not tell them.
    pub degrees: AskedDegrees,
    /// How far the two must agree.
    pub tolerance: Tolerance,
    /// Whose constants the Megatron weights are run with.
    pub flavour: Flavour,
    /// The checks to make.
    pub checks: BTreeSet<CheckKind>,
    /// What the models compute in.
    pub dtype: DType,
    /// Where they compute.
    pub device: Device,
    /// Told how far it is.
    pub progress: Arc<Progress>,
}

impl ConsistencyOptions {
    /// Whether models are run, so that there must be a batch.
    pub fn needs_batch(&self) -> bool {
        self.checks.iter().any(|kind| *kind != CheckKind::Weights)
    }

    /// Whether the Megatron checkpoint is read.
    pub fn needs_mcore(&self) -> bool {
        self.checks.iter().any(|kind| *kind != CheckKind::Loading)
    }
}

/// Compares the two checkpoints; `batch` is what the models are run on, where any is.
///
/// # Errors
/// [`ModelError`] for checkpoints that cannot be read, and for a missing batch or one without an image. A tensor that is
/// missing, of another shape or not the same on all ranks, or `args` that are another model's, are no error but make the
/// first check fail.
pub fn check(options: &ConsistencyOptions, batch: Option<&PackedBatch>) -> Result<Report> {
    if options.needs_batch() && batch.is_none_or(|batch| batch.grids().is_empty()) {
        return Err(ModelError::Batch("the vision tower cannot be compared without an image".into()));
    }
    let hf = SourceOptions { dir: options.hf.clone(), format: Some(Format::Hf), ..SourceOptions::default() };
    let hf = Source::open(&hf)?;
    let mut checks = Vec::new();
    let mut notes = Vec::new();
    let mut run = batch.map(|batch| Run { options, batch, of_files: None });
    let is_asked = |kind| options.checks.contains(&kind);
    if options.needs_mcore() {
        match open_mcore(options)? {
            Ok(mcore) => {
                notes = mcore.notes().to_vec();
                if is_asked(CheckKind::Weights) {
                    checks.push(tensors::compare(&hf, &mcore, options)?);
                }
                if let Some(run) = &mut run {
                    checks.extend(run.outputs(&hf, mcore)?);
                }
            }
            Err(why) => {
                checks.push(Check::failed(CheckKind::Weights, why));
                let other = "the Megatron checkpoint is not one of this model";
                checks.extend(outputs::CHECKS.map(|kind| Check::skipped(kind, other)));
            }
        }
    }
    if is_asked(CheckKind::Loading)
        && let Some(run) = &mut run
    {
        checks.push(run.loading(hf)?);
    }
    for kind in CheckKind::ALL {
        if checks.iter().all(|check| check.check != kind) {
            checks.push(Check::skipped(kind, "not asked for"));
        }
    }
    checks.sort_by_key(|check| check.check);
    let passed = checks.iter().all(|check| check.outcome != Outcome::Failed);
    let ran = |check: &Check| check.check != CheckKind::Weights && check.compared > 0;
    let ran_models = checks.iter().any(ran);
    let (tolerance, flavour) = (options.tolerance, options.flavour);
    Ok(Report { passed, tolerance, flavour, ran_models, checks, notes })
}

/// The Megatron checkpoint, or why it is not one of this model.
fn open_mcore(options: &ConsistencyOptions) -> Result<std::result::Result<Source, String>> {
    let source = SourceOptions {
        dir: options.mcore.clone(),
        format: Some(Format::Mcore),
        hf: Some(options.hf.clone()),
        degrees: options.degrees,
        trust_replicas: false,
    };
    match Source::open_seen(&source, &options.progress) {
        Ok(source) => Ok(Ok(source)),
        Err(ModelError::Convert(error)) if is_of_model(&error) => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Whether an error of opening a checkpoint says that it is not the model's.
fn is_of_model(error: &ConvertError) -> bool {
    matches!(
        error,
        ConvertError::MissingTensor { .. }
            | ConvertError::UnknownTensor { .. }
            | ConvertError::Shape { .. }
            | ConvertError::Dtypes { .. }
            | ConvertError::Replicas { .. }
            | ConvertError::Contradiction(_)
    )
}

/// Runs models on the batch.
struct Run<'a> {
    options: &'a ConsistencyOptions,
    batch: &'a PackedBatch,
    /// What was seen of the Hugging Face checkpoint as it is usually read.
    of_files: Option<Vec<Seen>>,
}

impl Run<'_> {
    /// The checks of what the two models compute.
    fn outputs(&mut self, hf: &Source, mcore: Source) -> Result<Vec<Check>> {
        let is_asked = |kind: &CheckKind| self.options.checks.contains(kind);
        let asked: Vec<CheckKind> = outputs::CHECKS.into_iter().filter(is_asked).collect();
        if asked.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(why) = outputs::not_computed(&mcore) {
            return Ok(asked.into_iter().map(|kind| Check::skipped(kind, &why)).collect());
        }
        let ours = self.of_files(hf)?;
        self.options.progress.start("running the Megatron weights", None);
        let mut config = hf.config().clone();
        if self.options.flavour == Flavour::Megatron {
            mcore.trained_with().apply_to(&mut config.text);
        }
        let weights = self.weights_of(mcore);
        let theirs = outputs::see(config, &weights, self.options.flavour, self.batch)?;
        let tolerance = self.options.tolerance;
        let checks = asked.iter().map(|kind| outputs::compare(*kind, &ours, &theirs, tolerance)).collect();
        self.of_files = Some(ours);
        Ok(checks)
    }

    /// The check of two ways to read the Hugging Face checkpoint.
    fn loading(&mut self, hf: Source) -> Result<Check> {
        let tolerance = self.options.tolerance;
        self.options.progress.start("comparing two ways of reading", None);
        let files = Weights::read(&self.options.hf, DType::F32, &Device::Cpu)?;
        let mut check = tensors::compare_loaded(&hf, &files, tolerance)?;
        let ours = self.of_files(&hf)?;
        let config = hf.config().clone();
        let weights = self.weights_of(hf);
        let theirs = outputs::see(config, &weights, Flavour::HuggingFace, self.batch)?;
        let [ours, theirs] = [&ours, &theirs].map(|side| side.iter().collect::<Vec<_>>());
        outputs::add(&mut check, &ours, &theirs, tolerance);
        Ok(check)
    }

    fn of_files(&mut self, hf: &Source) -> Result<Vec<Seen>> {
        if let Some(seen) = self.of_files.take() {
            return Ok(seen);
        }
        self.options.progress.start("running the Hugging Face checkpoint", None);
        let weights = Weights::read(&self.options.hf, self.options.dtype, &self.options.device)?;
        outputs::see(hf.config().clone(), &weights, Flavour::HuggingFace, self.batch)
    }

    fn weights_of(&self, source: Source) -> Weights {
        Weights::of_source(source, self.options.dtype, &self.options.device)
    }
}
