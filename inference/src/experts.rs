//! Mixture of experts (Qwen3-MoE).

use candle_core::{D, DType, Tensor};

use crate::config::MoeConfig;
use crate::decoder::GatedMlp;
use crate::error::Result;
use crate::layers::Linear;
use crate::probe::Probe;
use crate::weights::Weights;

/// A router and its experts.
pub(crate) struct Experts {
    router: Linear,
    experts: Vec<GatedMlp>,
    per_token: usize,
    normalise: bool,
}

/// The tokens of one expert, and what its results count.
#[derive(Default)]
struct Share {
    tokens: Vec<u32>,
    weights: Vec<f32>,
}

impl Experts {
    pub(crate) fn load(config: &MoeConfig, width: usize, weights: &Weights, name: &str) -> Result<Self> {
        let sizes = [width, config.moe_intermediate_size];
        let experts = if weights.is_in_files(&format!("{name}.experts.gate_up_proj")) {
            split_experts(config, sizes, weights, name)?
        } else {
            (0..config.num_experts)
                .map(|expert| GatedMlp::load(weights, &format!("{name}.experts.{expert}"), sizes))
                .collect::<Result<_>>()?
        };
        Ok(Self {
            router: Linear::load(weights, &format!("{name}.gate"), [width, config.num_experts], false)?,
            experts,
            per_token: config.num_experts_per_tok,
            normalise: config.norm_topk_prob,
        })
    }

    /// x [tokens, width] to the weighted sum of each token's experts.
    pub(crate) fn forward(&self, x: &Tensor, probe: &mut dyn Probe) -> Result<Tensor> {
        let logits = self.router.forward(x)?;
        probe.see("router.logits", &logits);
        let probabilities = candle_nn::ops::softmax(&logits.to_dtype(DType::F32)?, D::Minus1)?;
        let chosen = self.choose(&probabilities.to_vec2()?);
        probe.see("router.experts", &self.table(&chosen, |&(expert, _)| expert as f32)?);
        probe.see("router.weights", &self.table(&chosen, |&(_, weight)| weight)?);
        let mut shares: Vec<Share> = self.experts.iter().map(|_| Share::default()).collect();
        for (token, choice) in chosen.iter().enumerate() {
            for &(expert, weight) in choice {
                shares[expert].tokens.push(token as u32);
                shares[expert].weights.push(weight);
            }
        }
        let mut sum = x.zeros_like()?;
        for (expert, share) in self.experts.iter().zip(shares) {
            if share.tokens.is_empty() {
                continue;
            }
            let tokens = Tensor::new(share.tokens, x.device())?;
            let weights = Tensor::new(share.weights, x.device())?.to_dtype(x.dtype())?.unsqueeze(1)?;
            let out = expert.forward(&x.index_select(&tokens, 0)?)?.broadcast_mul(&weights)?;
            sum = sum.index_add(&tokens, &out, 0)?;
        }
        Ok(sum)
    }

    /// The experts of each token with their weights, the likeliest first; of equal ones the lower number.
    fn choose(&self, probabilities: &[Vec<f32>]) -> Vec<Vec<(usize, f32)>> {
        let choose = |row: &Vec<f32>| {
            let mut ranked: Vec<(usize, f32)> = row.iter().copied().enumerate().collect();
            ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
            ranked.truncate(self.per_token);
            if self.normalise {
                let sum: f32 = ranked.iter().map(|choice| choice.1).sum();
                ranked.iter_mut().for_each(|choice| choice.1 /= sum);
            }
            ranked
        };
        probabilities.iter().map(choose).collect()
    }

    fn table(&self, chosen: &[Vec<(usize, f32)>], value: impl Fn(&(usize, f32)) -> f32) -> Result<Tensor> {
        let values: Vec<f32> = chosen.iter().flatten().map(value).collect();
        Ok(Tensor::from_vec(values, (chosen.len(), self.per_token), &candle_core::Device::Cpu)?)
    }
}

/// The fused form that transformers 5 keeps in memory: gate rows first, then up rows.
fn split_experts(
    config: &MoeConfig,
    [width, wide]: [usize; 2],
    weights: &Weights,
    name: &str,
) -> Result<Vec<GatedMlp>> {
    let all = config.num_experts;
    let gate_up = weights.get(&format!("{name}.experts.gate_up_proj"), &[all, 2 * wide, width])?;
    let down = weights.get(&format!("{name}.experts.down_proj"), &[all, width, wide])?;
    (0..all)
        .map(|expert| {
            let both = gate_up.get(expert)?;
            Ok(GatedMlp {
                gate: Linear::from_weight(both.narrow(0, 0, wide)?),
                up: Linear::from_weight(both.narrow(0, wide, wide)?),
                down: Linear::from_weight(down.get(expert)?),
            })
        })
        .collect()
}
