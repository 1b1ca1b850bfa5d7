//! First values of a merger that no source has: those that `torch.nn.Linear` and `torch.nn.LayerNorm` begin with.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};

use super::target::MERGER;

/// How a tensor begins.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Initial {
    /// The weight of a norm.
    Ones,
    /// The bias of a norm.
    Zeros,
    /// Uniform in [-bound, bound), bound = 1/√inputs: torch's `kaiming_uniform_` with a = √5 for the weight of a linear
    /// layer, and the same bound for its bias.
    Uniform {
        /// 1/√inputs.
        bound: f32,
        /// Of all tensors of a merger, which.
        stream: u64,
    },
}

/// How the tensor of the merger named `name` begins; `inputs` is the width of the merger's blocks.
pub(super) fn of_merger(name: &str, inputs: usize) -> Initial {
    let bound = 1.0 / (inputs as f32).sqrt();
    let uniform = |stream| Initial::Uniform { bound, stream };
    match name.strip_prefix(MERGER) {
        Some("ln_q.weight") => Initial::Ones,
        Some("mlp.0.weight") => uniform(0),
        Some("mlp.0.bias") => uniform(1),
        Some("mlp.2.weight") => uniform(2),
        Some("mlp.2.bias") => uniform(3),
        _ => Initial::Zeros,
    }
}

impl Initial {
    /// The values, without an end.
    ///
    /// Each tensor has a generator of its own, xoshiro256++ seeded (by SplitMix64) with 4 · seed + stream. A value is
    /// (2u - 1) · bound in f32, u being the upper 24 bits of a number over 2²⁴.
    pub(super) fn values(self, seed: u64) -> impl Iterator<Item = f32> {
        let stream = if let Self::Uniform { stream, .. } = self { stream } else { 0 };
        let mut generator = Xoshiro256PlusPlus::seed_from_u64(seed.wrapping_mul(4).wrapping_add(stream));
        std::iter::repeat_with(move || match self {
            Self::Ones => 1.0,
            Self::Zeros => 0.0,
            Self::Uniform { bound, .. } => {
                let unit = (generator.next_u64() >> 40) as f32 / (1_u32 << 24) as f32;
                (2.0 * unit - 1.0) * bound
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_within_the_bound_of_torch_and_are_spread() {
        let weight = of_merger("model.visual.merger.mlp.0.weight", 256);
        let values: Vec<f32> = weight.values(7).take(65536).collect();
        assert!(values.iter().all(|value| value.abs() <= 1.0 / 16.0));
        let mean = values.iter().sum::<f32>() / 65536.0;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / 65536.0;
        assert!(mean.abs() < 1e-3, "{mean}");
        // Of a uniform distribution: bound²/3.
        assert!((variance * 768.0 - 1.0).abs() < 0.02, "{variance}");
        // Computed elsewhere from the published algorithms: they must not change with a library.
        assert_eq!(values[..2], [0.050_355_51, -0.012_248_196]);
    }
}
