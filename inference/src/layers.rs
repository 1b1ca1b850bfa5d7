//! The layers that vision tower and decoder are made of.

use candle_core::Tensor;

use crate::error::Result;
use crate::fused;
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
        let product = self.product(x)?;
        match &self.bias {
            Some(bias) => fused::add_bias(&product, bias),
            None => Ok(product),
        }
    }

    /// `gelu(x Wᵀ + b)`.
    pub(crate) fn forward_gelu(&self, x: &Tensor) -> Result<Tensor> {
        let product = self.product(x)?;
        match &self.bias {
            Some(bias) => fused::bias_gelu(&product, bias),
            None => Ok(product.gelu_erf()?),
        }
    }

    /// `residual + x Wᵀ + b`.
    pub(crate) fn forward_onto(&self, x: &Tensor, residual: &Tensor) -> Result<Tensor> {
        let product = self.product(x)?;
        match &self.bias {
            Some(bias) => fused::add_with_bias(residual, &product, bias),
            None => Ok((residual + product)?),
        }
    }

    fn product(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.matmul(&self.weight.t()?)?)
    }
}

/// A root mean square norm over the last axis, with its statistics in f32.
pub(crate) struct RmsNorm {
    pub(crate) weight: Tensor,
    pub(crate) eps: f32,
}

impl RmsNorm {
    pub(crate) fn load(weights: &Weights, name: &str, width: usize, eps: f64) -> Result<Self> {
        Ok(Self { weight: weights.get(&format!("{name}.weight"), &[width])?, eps: eps as f32 })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(candle_nn::ops::rms_norm(&x.contiguous()?, &self.weight, self.eps)?)
    }

    /// `x + delta` and its norm.
    pub(crate) fn forward_sum(&self, x: &Tensor, delta: &Tensor) -> Result<[Tensor; 2]> {
        fused::add_rms_norm(x, delta, &self.weight, self.eps)
    }
}

/// A norm of the vision tower.
pub(crate) enum Norm {
    Layer { weight: Tensor, bias: Tensor, eps: f32 },
    RootMeanSquare(RmsNorm),
}

impl Norm {
    pub(crate) fn layer(weights: &Weights, name: &str, width: usize, eps: f64) -> Result<Self> {
        Ok(Self::Layer {
            weight: weights.get(&format!("{name}.weight"), &[width])?,
            bias: weights.get(&format!("{name}.bias"), &[width])?,
            eps: eps as f32,
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Layer { weight, bias, eps } => {
                Ok(candle_nn::ops::layer_norm(&x.contiguous()?, weight, bias, *eps)?)
            }
            Self::RootMeanSquare(norm) => norm.forward(x),
        }
    }
}
