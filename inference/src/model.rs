//! LLaVA-OneVision-2: vision tower, merger and Qwen3 decoder.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use candle_nn::kv_cache::KvCache;

use crate::attention::DomainPair;
use crate::batch::PackedBatch;
use crate::config::ModelConfig;
use crate::decoder::{Decoder, Placement};
use crate::error::{ModelError, Result};
use crate::flavour::Flavour;
use crate::layers::Linear;
use crate::probe::{NoProbe, Probe};
use crate::vision::VisionTower;
use crate::weights::Weights;

/// A model with its weights on one device.
pub struct LlavaOnevision2 {
    config: ModelConfig,
    vision: VisionTower,
    embedding: Tensor,
    decoder: Decoder,
    head: Linear,
}

impl LlavaOnevision2 {
    /// Reads a Hugging Face model directory: `config.json` and safetensors.
    ///
    /// # Errors
    /// What [`ModelConfig::read`], [`Weights::read`] and [`Weights::get`] say.
    pub fn read(dir: &Path, dtype: DType, device: &Device) -> Result<Self> {
        Self::new(ModelConfig::read(dir)?, &Weights::read(dir, dtype, device)?)
    }

    /// A model of this configuration with these weights.
    ///
    /// # Errors
    /// What [`Weights::get`] says.
    pub fn new(config: ModelConfig, weights: &Weights) -> Result<Self> {
        Self::of_flavour(config, weights, Flavour::HuggingFace)
    }

    /// Like [`new`](Self::new), with the constants of this flavour.
    ///
    /// # Errors
    /// What [`Weights::get`] says.
    pub fn of_flavour(config: ModelConfig, weights: &Weights, flavour: Flavour) -> Result<Self> {
        let vocabulary = [config.text.vocab_size, config.text.hidden_size];
        let embedding = weights.get("model.language_model.embed_tokens.weight", &vocabulary)?;
        let head = if config.tie_word_embeddings {
            embedding.clone()
        } else {
            weights.get("lm_head.weight", &vocabulary)?
        };
        Ok(Self {
            vision: VisionTower::load(&config.vision, weights, flavour)?,
            decoder: Decoder::load(&config.text, weights)?,
            head: Linear::from_weight(head),
            embedding,
            config,
        })
    }

    /// Its configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Its vision tower.
    pub(crate) fn tower(&self) -> &VisionTower {
        &self.vision
    }

    /// The device that it lies on.
    pub fn device(&self) -> &Device {
        self.embedding.device()
    }

    /// The dtype that it computes in.
    pub fn dtype(&self) -> DType {
        self.embedding.dtype()
    }

    /// Logits [tokens, vocabulary] of a pack.
    ///
    /// # Errors
    /// [`ModelError::Batch`] when image tokens and images differ in number, or an id is beyond the vocabulary.
    pub fn forward(&self, batch: &PackedBatch) -> Result<Tensor> {
        self.logits(&self.hidden_states(batch, &mut NoProbe)?)
    }

    /// Hidden states [tokens, width] of a pack after the final norm, before the head.
    ///
    /// # Errors
    /// Those of [`forward`](Self::forward).
    pub fn hidden_states(&self, batch: &PackedBatch, probe: &mut dyn Probe) -> Result<Tensor> {
        self.check_images(batch)?;
        let embeddings = self.embed(batch, probe)?;
        let domains = DomainPair::same(batch.domains(), self.device())?;
        let positions = batch.domains().positions();
        let placement = Placement { positions: &positions, domains: &domains };
        self.decoder.forward(&embeddings, &placement, None, probe)
    }

    /// The head: hidden states [n, width] to logits [n, vocabulary].
    ///
    /// # Errors
    /// [`ModelError::Tensor`].
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.head.forward(hidden)
    }

    /// Like [`hidden_states`](Self::hidden_states) for one sequence of which earlier tokens are in `caches`. What the
    /// model has generated is text: an image token among it stands for no image.
    pub(crate) fn continue_one(
        &self,
        batch: &PackedBatch,
        first_position: u32,
        caches: &mut [KvCache],
    ) -> Result<Tensor> {
        if first_position == 0 {
            self.check_images(batch)?;
        }
        let embeddings = self.embed(batch, &mut NoProbe)?;
        let tokens = batch.domains().tokens();
        let keys = crate::domains::AttentionDomains::single(first_position + tokens)?;
        let domains = DomainPair::new(batch.domains().clone(), keys, self.device())?;
        let positions: Vec<u32> = (first_position..first_position + tokens).collect();
        let placement = Placement { positions: &positions, domains: &domains };
        self.decoder.forward(&embeddings, &placement, Some(caches), &mut NoProbe)
    }

    pub(crate) fn new_caches(&self, tokens: usize) -> Vec<KvCache> {
        (0..self.decoder.layer_count()).map(|_| KvCache::new(0, tokens)).collect()
    }

    /// Each sub-sample must have as many image tokens as its own images make: only the sum would let features of one
    /// reach the next.
    fn check_images(&self, batch: &PackedBatch) -> Result<()> {
        let merge = self.config.vision.spatial_merge_size as u32;
        let subs = batch.domains().ranges().zip(batch.grids_of_sub_samples());
        for (number, (range, grids)) in subs.enumerate() {
            let wrong = |detail| Err(ModelError::Batch(format!("sub-sample {number}: {detail}")));
            if let Some(grid) =
                grids.iter().find(|grid| !grid.h.is_multiple_of(merge) || !grid.w.is_multiple_of(merge))
            {
                return wrong(format!("a grid of {grid} does not consist of blocks of {merge}x{merge}"));
            }
            let is_image = |id: &&u32| **id == self.config.image_token_id;
            let slots = batch.input_ids()[range].iter().filter(is_image).count();
            let found: usize = grids.iter().map(|grid| grid.tokens(merge) as usize).sum();
            if found != slots {
                return wrong(format!("the text has {slots} image tokens, the images make {found}"));
            }
        }
        Ok(())
    }

    /// Embeddings [tokens, width], with the merger's rows in the place of image tokens.
    fn embed(&self, batch: &PackedBatch, probe: &mut dyn Probe) -> Result<Tensor> {
        let ids = batch.input_ids();
        if let Some(id) = ids.iter().find(|&&id| id as usize >= self.config.text.vocab_size) {
            let rows = self.config.text.vocab_size;
            return Err(ModelError::Batch(format!(
                "token id {id} is beyond the model's vocabulary of {rows}"
            )));
        }
        let ids_on_device = Tensor::new(ids, self.device())?;
        let mut embeddings = self.embedding.index_select(&ids_on_device, 0)?;
        let is_image = |id: &u32| *id == self.config.image_token_id;
        let features = match batch.pixel_values(self.dtype(), self.device())? {
            Some(rows) => Some(self.vision.forward(&rows, batch.grids(), batch.patch_positions(), probe)?),
            None => None,
        };
        if let Some(features) = features {
            let (mut next, mut source) = (ids.len() as u32, Vec::with_capacity(ids.len()));
            for (token, id) in (0_u32..).zip(ids) {
                source.push(if is_image(id) { next } else { token });
                next += u32::from(is_image(id));
            }
            let both = Tensor::cat(&[&embeddings, &features], 0)?;
            embeddings = both.index_select(&Tensor::new(source, self.device())?, 0)?;
        }
        probe.see("lm.inputs_embeds", &embeddings);
        Ok(embeddings)
    }
}
