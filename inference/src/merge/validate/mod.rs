//! A merged checkpoint against its sources: its tensors, and what it computes.
//!
//! The model that the sources make is put together in memory, tensor by tensor, with the configuration that the sources
//! give. It and the checkpoint are given the same image, text and question, one after the other, so that one model is in
//! memory at a time. Numbers of the sources are rounded to the checkpoint's dtypes first, unless the caller wants to see
//! what rounding does: the two models then are the same numbers in the same operations, and a right checkpoint agrees to
//! the last bit.

mod report;
mod run;
mod thresholds;

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device};

use super::reference::Reference;
use super::source::{Role, Source};
use super::{Comparison, MergePlan};
use crate::agreement::Seen;
use crate::batch::{ImagePatches, SubSample};
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use crate::progress::Progress;
use crate::weights::Weights;
use run::Run;

pub use report::{Generation, OutputPart, Validation};

/// What is compared, and how models are run. A part without an input is left out.
#[derive(Debug, Clone)]
pub struct ValidateOptions {
    /// Compare the configuration and the tensors, bit for bit.
    pub weights: bool,
    /// What the vision towers see (`vit`).
    pub image: Option<ImagePatches>,
    /// Tokens without an image, of which the decoders give logits (`llm`).
    pub text: Option<SubSample>,
    /// What is answered, greedily (`e2e`).
    pub question: Option<SubSample>,
    /// Tokens of an answer at most.
    pub max_new_tokens: usize,
    /// Do not round the sources to the checkpoint's dtypes before their model computes. Outputs must then agree as far as
    /// rounding the weights allows.
    pub unrounded: bool,
    /// What both models compute in.
    pub dtype: DType,
    /// Where they do.
    pub device: Device,
    /// Told how far it is.
    pub progress: Arc<Progress>,
}

/// Compares a checkpoint with the sources of `plan`. Points of an output are named as in [`Probe`](crate::Probe).
///
/// # Errors
/// [`ModelError::Merge`] when the sources do not make a model; what reading either says. What is wrong with the checkpoint
/// is in the result, with a model that cannot be loaded (tensors that are missing or have other shapes) as the problem of
/// every part that needs it.
pub fn validate(plan: MergePlan, checkpoint: &Path, options: &ValidateOptions) -> Result<Validation> {
    plan.refuse_problems()?;
    let weights = options.weights.then(|| plan.compare(checkpoint, &options.progress)).transpose()?;
    let mut done = Validation { weights, ..Validation::default() };
    if options.image.is_some() || options.text.is_some() || options.question.is_some() {
        compare_outputs(Arc::new(plan), checkpoint, options, &mut done)?;
    }
    done.conclude();
    Ok(done)
}

fn compare_outputs(
    plan: Arc<MergePlan>,
    checkpoint: &Path,
    options: &ValidateOptions,
    done: &mut Validation,
) -> Result<()> {
    let (dtype, device) = (options.dtype, &options.device);
    let config = ModelConfig::read(checkpoint)?;
    options.progress.start("running the checkpoint", None);
    let theirs = match see_alike(&config, &plan.config) {
        Some(problem) => Err(problem),
        None => match Run::new(config, &Weights::read(checkpoint, dtype, device)?, options) {
            Err(error) if is_of_the_checkpoint(&error) => Err(error.to_string()),
            run => Ok(run?),
        },
    };
    let merged = Source::open(Role::Llm, checkpoint)?;
    let coarsest = thresholds::coarsest(merged.tensors.values().flat_map(|tensor| &tensor.dtype));
    let threshold = thresholds::threshold(dtype, options.unrounded.then_some(coarsest));
    done.notes.extend(notes(&plan, options, coarsest));
    let theirs = match theirs {
        Ok(run) => run,
        // What cannot be loaded needs no other model to compare it with.
        Err(problem) => {
            done.vit = options.image.as_ref().map(|_| OutputPart::failed(threshold, &problem));
            done.llm = options.text.as_ref().map(|_| OutputPart::failed(threshold, &problem));
            done.e2e = options.question.as_ref().map(|_| Generation::failed(&problem));
            return Ok(());
        }
    };
    options.progress.start("running the sources' model", None);
    let config = plan.config.clone();
    let maker = Box::new(Reference::new(plan, merged, options.unrounded));
    let ours = Run::new(config, &Weights::of_maker(maker, dtype, device), options)?;
    let part = |both: std::result::Result<(Vec<Seen>, Vec<Seen>), String>| match both {
        Ok((theirs, ours)) => OutputPart::compare(threshold, &theirs, &ours),
        Err(problem) => OutputPart::failed(threshold, &problem),
    };
    done.vit = both(theirs.vit, ours.vit)?.map(part);
    done.llm = both(theirs.llm, ours.llm)?.map(part);
    done.e2e = both(theirs.tokens, ours.tokens)?.map(|both| match both {
        Ok((theirs, ours)) => Generation::compare(theirs, ours, options.unrounded),
        Err(problem) => Generation::failed(&problem),
    });
    Ok(())
}

/// The outputs of both models, or why the checkpoint's has none. Where the sources' has none either, the input is at
/// fault.
type Both<T> = Option<std::result::Result<(T, T), String>>;

fn both<T>(theirs: Option<Result<T>>, ours: Option<Result<T>>) -> Result<Both<T>> {
    let (Some(theirs), Some(ours)) = (theirs, ours) else { return Ok(None) };
    let ours = ours?;
    match theirs {
        Err(error) if is_of_the_checkpoint(&error) => Ok(Some(Err(error.to_string()))),
        theirs => Ok(Some(Ok((theirs?, ours)))),
    }
}

/// Why the images of one model cannot be those of the other.
fn see_alike(theirs: &ModelConfig, ours: &ModelConfig) -> Option<String> {
    let (theirs, ours) = (&theirs.vision, &ours.vision);
    let sizes = [
        ("patch_size", theirs.patch_size, ours.patch_size),
        ("spatial_merge_size", theirs.spatial_merge_size, ours.spatial_merge_size),
    ];
    let (name, theirs, ours) = sizes.into_iter().find(|(_, theirs, ours)| theirs != ours)?;
    Some(format!("{name} is {theirs} in config.json, of the sources {ours}: they take other images"))
}

/// Whether an error says that the checkpoint is wrong, and not that something failed here.
fn is_of_the_checkpoint(error: &ModelError) -> bool {
    use ModelError::{Batch, Domains, MissingTensor, TensorShape};
    matches!(error, MissingTensor { .. } | TensorShape { .. } | Batch(_) | Domains(_))
}

fn notes(plan: &MergePlan, options: &ValidateOptions, coarsest: DType) -> Vec<String> {
    let mut notes = Vec::new();
    if !plan.report.initialised.is_empty() {
        notes.push(format!(
            "{} tensors of the merger have no source: both models have those of the checkpoint",
            plan.report.initialised.len()
        ));
    }
    notes.push(match options.unrounded {
        true => format!(
            "the sources are not rounded: outputs differ by the rounding of the weights to {}",
            coarsest.as_str()
        ),
        false => "the sources are rounded to the checkpoint's dtypes: right outputs are equal".to_owned(),
    });
    notes
}

impl MergePlan {
    /// The configuration of the model that the sources make.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }
}

impl Validation {
    fn conclude(&mut self) {
        let weights = self.weights.as_ref().is_none_or(Comparison::passed);
        let outputs = [&self.vit, &self.llm].into_iter().flatten().all(|part| part.passed);
        self.passed = weights && outputs && self.e2e.as_ref().is_none_or(|part| part.passed);
    }
}
