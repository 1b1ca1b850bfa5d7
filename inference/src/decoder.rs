//! The Qwen3 decoder, dense or with experts, over a row of sequences that do not see each other.

use candle_core::{DType, Tensor};
use candle_nn::kv_cache::KvCache;

use crate::attention::{DomainPair, attend};
use crate::config::TextConfig;
use crate::error::Result;
use crate::experts::Experts;
use crate::fused;
use crate::layers::{Linear, RmsNorm};
use crate::probe::Probe;
use crate::rotary::DecoderRotary;
use crate::weights::Weights;

/// Layers and final norm; embedding and head are the model's.
pub(crate) struct Decoder {
    layers: Vec<Layer>,
    norm: RmsNorm,
    rotary: DecoderRotary,
}

struct Layer {
    input_norm: RmsNorm,
    attention: Attention,
    post_attention_norm: RmsNorm,
    mlp: Mlp,
}

struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    q_norm: RmsNorm,
    k_norm: RmsNorm,
    head_dim: usize,
}

enum Mlp {
    Dense(GatedMlp),
    Sparse(Experts),
}

/// `down(silu(gate x) ⊙ up x)`.
pub(crate) struct GatedMlp {
    pub(crate) gate: Linear,
    pub(crate) up: Linear,
    pub(crate) down: Linear,
}

/// Where the tokens of one call lie.
pub(crate) struct Placement<'a> {
    /// Position of each token in its own sequence.
    pub(crate) positions: &'a [u32],
    /// The boundaries of queries and keys.
    pub(crate) domains: &'a DomainPair,
}

impl Decoder {
    pub(crate) fn load(config: &TextConfig, weights: &Weights) -> Result<Self> {
        let layer = |number| Layer::load(config, weights, number);
        Ok(Self {
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            norm: RmsNorm::load(
                weights,
                "model.language_model.norm",
                config.hidden_size,
                config.rms_norm_eps,
            )?,
            rotary: DecoderRotary::new(&config.rope, config.head_dim),
        })
    }

    pub(crate) fn layer_count(&self) -> usize {
        self.layers.len()
    }

    /// Embeddings [tokens, width] to hidden states [tokens, width] after the final norm. With `caches`, one a layer,
    /// keys and values are added to them and those of earlier calls are seen too.
    pub(crate) fn forward(
        &self,
        embeddings: &Tensor,
        placement: &Placement<'_>,
        mut caches: Option<&mut [KvCache]>,
        probe: &mut dyn Probe,
    ) -> Result<Tensor> {
        let rotary = self.rotary.rows(placement.positions, embeddings.dtype(), embeddings.device())?;
        // Each norm is made together with the sum that it is of, so a layer gets its input normed already.
        let norms = self.layers.iter().map(|layer| &layer.input_norm).chain([&self.norm]);
        let mut norms = norms.skip(1);
        let mut x = embeddings.clone();
        let mut normed = self.layers.first().map_or(&self.norm, |layer| &layer.input_norm).forward(&x)?;
        for (number, (layer, next_norm)) in self.layers.iter().zip(&mut norms).enumerate() {
            let mut seen =
                |name: &str, tensor: &Tensor| probe.see(&format!("lm.layer{number}.{name}"), tensor);
            let cache = caches.as_deref_mut().and_then(|caches| caches.get_mut(number));
            let attended = layer.attention.forward(&normed, &rotary, placement.domains, cache)?;
            let [h, normed_h] = layer.post_attention_norm.forward_sum(&x, &attended)?;
            let delta = match &layer.mlp {
                Mlp::Dense(mlp) => mlp.forward(&normed_h)?,
                Mlp::Sparse(experts) => experts.forward(&normed_h, &mut seen)?,
            };
            [x, normed] = next_norm.forward_sum(&h, &delta)?;
            seen("out", &x);
        }
        probe.see("lm.final_norm_out", &normed);
        Ok(normed)
    }
}

impl Layer {
    fn load(config: &TextConfig, weights: &Weights, number: usize) -> Result<Self> {
        let name = format!("model.language_model.layers.{number}");
        let norm = |part: &str| {
            RmsNorm::load(weights, &format!("{name}.{part}"), config.hidden_size, config.rms_norm_eps)
        };
        let mlp = format!("{name}.mlp");
        let mlp = match &config.moe {
            Some(moe) if moe.is_sparse(number) => {
                Mlp::Sparse(Experts::load(moe, config.hidden_size, weights, &mlp)?)
            }
            _ => Mlp::Dense(GatedMlp::load(weights, &mlp, [config.hidden_size, config.intermediate_size])?),
        };
        Ok(Self {
            input_norm: norm("input_layernorm")?,
            attention: Attention::load(config, weights, &format!("{name}.self_attn"))?,
            post_attention_norm: norm("post_attention_layernorm")?,
            mlp,
        })
    }
}

impl Attention {
    fn load(config: &TextConfig, weights: &Weights, name: &str) -> Result<Self> {
        let (width, head) = (config.hidden_size, config.head_dim);
        let (queries, keys) = (config.num_attention_heads * head, config.num_key_value_heads * head);
        let linear = |part: &str, sizes| {
            Linear::load(weights, &format!("{name}.{part}"), sizes, config.attention_bias)
        };
        let norm = |part: &str| RmsNorm::load(weights, &format!("{name}.{part}"), head, config.rms_norm_eps);
        Ok(Self {
            q: linear("q_proj", [width, queries])?,
            k: linear("k_proj", [width, keys])?,
            v: linear("v_proj", [width, keys])?,
            o: linear("o_proj", [queries, width])?,
            q_norm: norm("q_norm")?,
            k_norm: norm("k_norm")?,
            head_dim: head,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        rotary: &[Tensor; 2],
        domains: &DomainPair,
        cache: Option<&mut KvCache>,
    ) -> Result<Tensor> {
        let tokens = x.dim(0)?;
        let heads = |y: Tensor| y.reshape((tokens, (), self.head_dim));
        let turn = |y: Tensor, norm: &RmsNorm| fused::norm_rope(&heads(y)?, &norm.weight, norm.eps, rotary);
        let q = turn(self.q.forward(x)?, &self.q_norm)?;
        let mut k = turn(self.k.forward(x)?, &self.k_norm)?;
        let mut v = heads(self.v.forward(x)?)?;
        if let Some(cache) = cache {
            (k, v) = cache.append(&k, &v)?;
        }
        let attended = attend([&q, &k, &v], domains, true)?;
        self.o.forward(&attended.reshape((tokens, ()))?)
    }
}

impl GatedMlp {
    pub(crate) fn load(weights: &Weights, name: &str, [width, wide]: [usize; 2]) -> Result<Self> {
        let linear = |part: &str, sizes| Linear::load(weights, &format!("{name}.{part}"), sizes, false);
        Ok(Self {
            gate: linear("gate_proj", [width, wide])?,
            up: linear("up_proj", [width, wide])?,
            down: linear("down_proj", [wide, width])?,
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let wide = fused::silu_mul(&self.gate.forward(x)?, &self.up.forward(x)?)?;
        self.down.forward(&wide)
    }
}

/// Logits [tokens, vocabulary] in f32, for those who compare or normalise them.
pub(crate) fn in_f32(logits: &Tensor) -> Result<Tensor> {
    Ok(logits.to_dtype(DType::F32)?)
}
