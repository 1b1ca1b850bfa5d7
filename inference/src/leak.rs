//! Do the sub-samples of a pack see each other?
//!
//! A pack is run with its boundaries, each sub-sample alone, and once more as if the boundaries had been lost. The
//! first two must agree up to rounding; the third shows how far a leak moves the logits.

use candle_core::{DType, Device, Tensor};

use crate::batch::{PackedBatch, SubSample};
use crate::decoder::in_f32;
use crate::error::{ModelError, Result};
use crate::model::LlavaOnevision2;
use crate::probe::NoProbe;

/// What was found for one sub-sample.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct SubSampleLeak {
    /// Its tokens.
    pub tokens: usize,
    /// Largest difference of a logit between the pack and the sub-sample alone.
    pub packed_vs_alone: f32,
    /// The same for the pack run as one sequence. The first sub-sample has nothing before it, so nothing can leak
    /// into it.
    pub leaky_vs_alone: f32,
}

/// The largest |Δ logit| between a pack and a sub-sample alone that rounding explains. On a GPU attention is in bf16
/// whatever the model is in.
pub fn tolerance(dtype: DType, device: &Device) -> f32 {
    match dtype {
        _ if device.is_cuda() => 0.5,
        DType::F32 => 1e-4,
        DType::F16 => 5e-2,
        _ => 0.5,
    }
}

/// Compares a pack with each of its sub-samples alone, by logits.
///
/// # Errors
/// Those of [`LlavaOnevision2::forward`].
pub fn check_pack(model: &LlavaOnevision2, pack: &[SubSample]) -> Result<Vec<SubSampleLeak>> {
    let packed = PackedBatch::pack(pack)?;
    let hidden = model.hidden_states(&packed, &mut NoProbe)?;
    let leaky = PackedBatch::pack(&[SubSample::joined(pack)])?;
    let leaky = model.hidden_states(&leaky, &mut NoProbe)?;
    let mut found = Vec::new();
    for (sub, range) in pack.iter().zip(packed.domains().ranges()) {
        let alone = PackedBatch::pack(std::slice::from_ref(sub))?;
        let alone = model.hidden_states(&alone, &mut NoProbe)?;
        let in_pack = |all: &Tensor| all.narrow(0, range.start, range.len());
        found.push(SubSampleLeak {
            tokens: range.len(),
            packed_vs_alone: largest_difference(model, &in_pack(&hidden)?, &alone)?,
            leaky_vs_alone: largest_difference(model, &in_pack(&leaky)?, &alone)?,
        });
    }
    Ok(found)
}

/// Tokens whose logits are held at once.
const AT_ONCE: usize = 1024;

fn largest_difference(model: &LlavaOnevision2, a: &Tensor, b: &Tensor) -> Result<f32> {
    let tokens = a.dim(0)?;
    let mut largest = 0.0_f32;
    for start in (0..tokens).step_by(AT_ONCE) {
        let logits = |hidden: &Tensor| {
            in_f32(&model.logits(&hidden.narrow(0, start, AT_ONCE.min(tokens - start))?)?)
        };
        let difference = (logits(a)? - logits(b)?)?.abs()?;
        // A value that is no number differs from every other; a maximum passes over it, a sum does not.
        if !difference.sum_all()?.to_scalar::<f32>()?.is_finite() {
            return Ok(f32::INFINITY);
        }
        largest = largest.max(difference.max_all()?.to_scalar::<f32>()?);
    }
    Ok(largest)
}

/// Changes the tokens of sub-sample `changed` and returns the largest difference that this makes to a logit of any
/// other: exactly 0 where every row is computed by itself.
///
/// # Errors
/// Those of [`LlavaOnevision2::forward`]; [`ModelError::Batch`] when there is no such sub-sample.
pub fn perturb(model: &LlavaOnevision2, pack: &[SubSample], changed: usize) -> Result<f32> {
    let run = |pack: &[SubSample]| model.hidden_states(&PackedBatch::pack(pack)?, &mut NoProbe);
    if changed >= pack.len() {
        return Err(ModelError::Batch(format!(
            "there is no sub-sample {changed} in a pack of {}",
            pack.len()
        )));
    }
    let mut other = pack.to_vec();
    let image = model.config().image_token_id;
    let vocabulary = model.config().text.vocab_size as u32;
    for id in other[changed].input_ids.iter_mut().filter(|id| **id != image) {
        let next = (*id + 1) % vocabulary;
        *id = if next == image { (next + 1) % vocabulary } else { next };
    }
    let (before, after) = (run(pack)?, run(&other)?);
    let domains = PackedBatch::pack(pack)?;
    let mut largest = 0.0_f32;
    for (number, range) in domains.domains().ranges().enumerate() {
        if number != changed {
            let part = |all: &Tensor| all.narrow(0, range.start, range.len());
            largest = largest.max(largest_difference(model, &part(&before)?, &part(&after)?)?);
        }
    }
    Ok(largest)
}
