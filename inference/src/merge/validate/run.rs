//! One of the models: what it computes at the points that are compared.

use candle_core::Tensor;

use super::ValidateOptions;
use crate::agreement::{Recorder, Seen};
use crate::batch::{ImagePatches, PackedBatch, SubSample};
use crate::config::ModelConfig;
use crate::error::Result;
use crate::flavour::Flavour;
use crate::generate::{Sampling, generate};
use crate::model::LlavaOnevision2;
use crate::probe::Probe;
use crate::vision::VisionTower;
use crate::weights::Weights;

/// What was recorded, or why it could not be computed, of each part that has an input.
pub(super) struct Run {
    pub(super) vit: Option<Result<Vec<Seen>>>,
    pub(super) llm: Option<Result<Vec<Seen>>>,
    pub(super) tokens: Option<Result<Vec<u32>>>,
}

impl Run {
    /// Loads a model, runs it, and frees it. An error is one of loading.
    pub(super) fn new(config: ModelConfig, weights: &Weights, options: &ValidateOptions) -> Result<Self> {
        if options.text.is_none() && options.question.is_none() {
            let tower = VisionTower::load(&config.vision, weights, Flavour::HuggingFace)?;
            let vit = options.image.as_ref().map(|image| see(&tower, image, weights));
            return Ok(Self { vit, llm: None, tokens: None });
        }
        let model = LlavaOnevision2::new(config, weights)?;
        let answer = |question| generate(&model, question, options.max_new_tokens, &Sampling::GREEDY, |_| ());
        Ok(Self {
            vit: options.image.as_ref().map(|image| see(model.tower(), image, weights)),
            llm: options.text.as_ref().map(|text| read(&model, text)),
            tokens: options.question.as_ref().map(answer),
        })
    }
}

/// The vision tower and the merger. Patches and positions are in block order, as everywhere else: in the order of rows
/// each patch would get another's position.
fn see(tower: &VisionTower, image: &ImagePatches, weights: &Weights) -> Result<Vec<Seen>> {
    let patches = image.positions().len();
    let rows = Tensor::from_slice(image.rows(), (patches, image.rows().len() / patches), weights.device())?;
    let mut recorder = Recorder::new(is_of_the_tower);
    tower.forward(&rows.to_dtype(weights.dtype())?, &[image.grid()], image.positions(), &mut recorder)?;
    recorder.finish()
}

/// Embeddings, layers, final norm and head of the decoder.
fn read(model: &LlavaOnevision2, text: &SubSample) -> Result<Vec<Seen>> {
    let mut recorder = Recorder::new(is_of_the_decoder);
    let hidden = model.hidden_states(&PackedBatch::pack(std::slice::from_ref(text))?, &mut recorder)?;
    recorder.see("logits", &model.logits(&hidden)?);
    recorder.finish()
}

fn is_of_the_tower(name: &str) -> bool {
    matches!(
        name,
        "vit.after_patch_embed" | "vit.after_pre_layernorm" | "vit.before_adapter" | "vit.after_merger"
    ) || (name.starts_with("vit.layer") && name.ends_with(".out"))
}

fn is_of_the_decoder(name: &str) -> bool {
    matches!(name, "lm.inputs_embeds" | "lm.final_norm_out" | "logits")
        || (name.starts_with("lm.layer") && name.ends_with(".out"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use candle_core::{DType, Device};
    use packd_contracts::ImageGrid;

    use super::super::report::OutputPart;
    use super::super::thresholds::threshold;
    use super::*;
    use crate::batch::block_positions;

    /// The fault of the reference's validators, which its limits (a cosine above 0.9) let pass.
    #[test]
    fn positions_in_the_order_of_rows_are_seen_from_the_first_layer_on() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny_dense");
        let grid = ImageGrid { t: 1, h: 4, w: 8 };
        let rows: Vec<f32> = (0..32 * 588).map(|it| (it as f32 * 0.7).sin()).collect();
        let blocks = ImagePatches::new(rows.clone(), grid, 2).unwrap();
        let by_rows = ImagePatches::with_positions(rows, grid, block_positions(grid, 1).unwrap()).unwrap();
        for dtype in [DType::F32, DType::BF16] {
            let weights = Weights::read(&dir, dtype, &Device::Cpu).unwrap();
            let tower =
                VisionTower::load(&ModelConfig::read(&dir).unwrap().vision, &weights, Flavour::HuggingFace)
                    .unwrap();
            let seen = |image| see(&tower, image, &weights).unwrap();
            for rounded in [None, Some(DType::BF16)] {
                let threshold = threshold(dtype, rounded);
                let part = OutputPart::compare(threshold, &seen(&by_rows), &seen(&blocks));
                assert_eq!(part.first_over.as_deref(), Some("vit.layer0.out"), "{dtype:?} {part:#?}");
                assert!(OutputPart::compare(threshold, &seen(&blocks), &seen(&blocks)).passed);
            }
        }
    }
}
