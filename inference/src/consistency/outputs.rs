//! What two models compute on the way, point by point.

use super::report::{Check, Outcome};
use super::{CheckKind, Tolerance};
use crate::agreement::{Point, Recorder, Seen};
use crate::batch::PackedBatch;
use crate::config::ModelConfig;
use crate::convert::Source;
use crate::error::Result;
use crate::flavour::Flavour;
use crate::model::LlavaOnevision2;
use crate::probe::Probe;
use crate::weights::{Weights, candle_dtype};

/// The checks that are made of outputs.
pub(super) const CHECKS: [CheckKind; 4] =
    [CheckKind::VisionEncoder, CheckKind::Merger, CheckKind::Layers, CheckKind::Logits];

/// The point of the vision tower that is behind all its layers.
pub(super) const BEFORE_ADAPTER: &str = "vit.before_adapter";

/// The check that a point of the model belongs to, if any.
fn check_of(point: &str) -> Option<CheckKind> {
    match point {
        "vit.after_patch_embed" | "vit.rotary_full" | "vit.after_pre_layernorm" | BEFORE_ADAPTER => {
            Some(CheckKind::VisionEncoder)
        }
        "vit.after_merger" => Some(CheckKind::Merger),
        "lm.inputs_embeds" | "lm.final_norm_out" | "logits" => Some(CheckKind::Logits),
        layer if !layer.ends_with(".out") => None,
        layer if layer.starts_with("vit.layer") => Some(CheckKind::Layers),
        layer => layer.starts_with("lm.layer").then_some(CheckKind::Logits),
    }
}

/// Runs a model and keeps what the checks compare. The model is gone afterwards.
pub(super) fn see(
    config: ModelConfig,
    weights: &Weights,
    flavour: Flavour,
    batch: &PackedBatch,
) -> Result<Vec<Seen>> {
    let model = LlavaOnevision2::of_flavour(config, weights, flavour)?;
    let mut recorder = Recorder::new(|point: &str| check_of(point).is_some());
    let hidden = model.hidden_states(batch, &mut recorder)?;
    recorder.see("logits", &model.logits(&hidden)?);
    recorder.finish()
}

/// Why a checkpoint cannot be run as a model, if it cannot.
pub(super) fn not_computed(source: &Source) -> Option<String> {
    source
        .names()
        .find_map(|(name, _)| candle_dtype(name, source.dtype(name)?).err())
        .map(|it| it.to_string())
}

/// A check of what the Hugging Face side and the other saw.
pub(super) fn compare(kind: CheckKind, hf: &[Seen], other: &[Seen], tolerance: Tolerance) -> Check {
    let mut check = Check::new(kind);
    let of_this = |seen: &&Seen| check_of(&seen.name) == Some(kind);
    let [ours, theirs] = [hf, other].map(|side| side.iter().filter(of_this).collect::<Vec<_>>());
    add(&mut check, &ours, &theirs, tolerance);
    check
}

/// Adds points to a check: both sides must have the same.
pub(super) fn add(check: &mut Check, hf: &[&Seen], other: &[&Seen], tolerance: Tolerance) {
    let names = |side: &[&Seen]| side.iter().map(|seen| seen.name.clone()).collect::<Vec<_>>();
    if hf.is_empty() || names(hf) != names(other) {
        check.outcome = Outcome::Failed;
        check.detail = Some("the two models do not have the same points".into());
        return;
    }
    for (ours, theirs) in hf.iter().zip(other) {
        let threshold = tolerance.threshold(check.check, &ours.name);
        check.add(Point::of_outputs(ours, theirs, threshold), true);
    }
}
