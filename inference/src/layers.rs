//! The layers that vision tower and decoder are made of.

use candle_core::Tensor;

use crate::error::Result;
use crate::weights::Weights;

/// `x Wᵀ + b`; the weight is stored [out, in].
pub(crate) struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    pub(crate) fn load(
        weights: &Weights,
        name: &str,
        [input, output]: [usize; 2],
        bias: bool,
    ) -> Result<Self> {
        let weight = weights.get(&format!("{name}.weight"), &[output, input])?;
        let bias = bias.then(|| weights.get(&format!("{name}.bias"), &[output])).transpose()?;
        Ok(Self { weight, bias })
    }

    pub(crate) fn from_weight(weight: Tensor) -> Self {
        Self { weight, bias: None }
    }

    pub(crate) fn input_width(&self) -> Result<usize> {
        Ok(self.weight.dim(1)?)
    }

    /// [n, in] to [n, out].
    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = x.matmul(&self.weight.t()?)?;
        Ok(match &self.bias {
            Some(bias) => y.broadcast_add(bias)?,
            None => y,
        })
    }
}

/// A norm over the last axis, with its statistics in f32.
pub(crate) enum Norm {
    Layer { weight: Tensor, bias: Tensor, eps: f32 },
    RootMeanSquare { weight: Tensor, eps: f32 },
}

impl Norm {
    pub(crate) fn layer(weights: &Weights, name: &str, width: usize, eps: f64) -> Result<Self> {
        Ok(Self::Layer {
            weight: weights.get(&format!("{name}.weight"), &[width])?,
            bias: weights.get(&format!("{name}.bias"), &[width])?,
            eps: eps as f32,
        })
    }

    pub(crate) fn root_mean_square(weights: &Weights, name: &str, width: usize, eps: f64) -> Result<Self> {
        Ok(Self::RootMeanSquare {
            weight: weights.get(&format!("{name}.weight"), &[width])?,
            eps: eps as f32,
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = x.contiguous()?;
        Ok(match self {
            Self::Layer { weight, bias, eps } => candle_nn::ops::layer_norm(&x, weight, bias, *eps)?,
            Self::RootMeanSquare { weight, eps } => candle_nn::ops::rms_norm(&x, weight, *eps)?,
        })
    }
}
