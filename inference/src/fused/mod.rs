//! What a layer does element by element, in one pass over memory each where there is a kernel for it: bf16 on a GPU.
//! Everywhere else the same is composed of candle's operations.

#[cfg(feature = "cuda")]
mod gpu;

use candle_core::{DType, Tensor};

use crate::error::Result;

/// `silu(gate) ⊙ up`.
pub(crate) fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if gpu::takes(gate) && gate.elem_count().is_multiple_of(8) {
        return Ok(gate.apply_op2_no_bwd(up, &gpu::SiluMul)?);
    }
    Ok((gate.silu()? * up)?)
}

/// `x + delta`, and its root mean square norm over the last axis times `weight`.
pub(crate) fn add_rms_norm(x: &Tensor, delta: &Tensor, weight: &Tensor, eps: f32) -> Result<[Tensor; 2]> {
    #[cfg(feature = "cuda")]
    if gpu::takes(x) && last_dim(x).is_multiple_of(8) {
        let both = x.apply_op3_no_bwd(delta, weight, &gpu::AddRmsNorm { eps })?;
        return Ok([both.get(0)?, both.get(1)?]);
    }
    let sum = (x + delta)?;
    let normed = candle_nn::ops::rms_norm(&sum, weight, eps)?;
    Ok([sum, normed])
}

/// Heads [tokens, heads, width]: root mean square norm of each head times `weight`, then the rotary embedding of halves
/// by `cos` and `sin` [tokens, width / 2].
pub(crate) fn norm_rope(x: &Tensor, weight: &Tensor, eps: f32, [cos, sin]: &[Tensor; 2]) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if gpu::takes(x) && last_dim(x).is_multiple_of(4) && last_dim(x) <= 256 {
        return Ok(x.apply_op3_no_bwd(cos, sin, &gpu::NormRope { weight: weight.clone(), eps })?);
    }
    let normed = candle_nn::ops::rms_norm(&x.contiguous()?, weight, eps)?;
    Ok(candle_nn::rotary_emb::rope_thd(&normed.unsqueeze(0)?, cos, sin)?.squeeze(0)?)
}

/// The vision tower's rotary embedding: z [tokens, heads, width] to `z ⊙ cos + rot(z) ⊙ sin` in f32, where rot pairs
/// neighbours; `cos` and `sin` are [tokens, 1, width] in f32. The rows of `z` may lie apart.
pub(crate) fn rotate_neighbours(z: &Tensor, cos: &Tensor, sin: &Tensor) -> Result<Tensor> {
    let (tokens, heads, width) = z.dims3()?;
    #[cfg(feature = "cuda")]
    if gpu::takes(z) && z.stride()[1..] == [width, 1] {
        return Ok(z.apply_op3_no_bwd(cos, sin, &gpu::RotateNeighbours)?);
    }
    let wide = z.contiguous()?.to_dtype(DType::F32)?;
    let pairs = wide.reshape((tokens, heads, width / 2, 2))?;
    let (even, odd) = (pairs.narrow(3, 0, 1)?, pairs.narrow(3, 1, 1)?);
    let turned = Tensor::cat(&[&odd.neg()?, &even], 3)?.reshape((tokens, heads, width))?;
    let out = (wide.broadcast_mul(cos)? + turned.broadcast_mul(sin)?)?;
    Ok(out.to_dtype(z.dtype())?)
}

/// `x + bias`, rows of the bias' width.
pub(crate) fn add_bias(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if gpu::takes(x) && bias.elem_count().is_multiple_of(8) {
        return Ok(x.apply_op2_no_bwd(bias, &gpu::WithBias("add_bias_bf16"))?);
    }
    Ok(x.broadcast_add(bias)?)
}

/// `gelu(x + bias)`, exact.
pub(crate) fn bias_gelu(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if gpu::takes(x) && bias.elem_count().is_multiple_of(8) {
        return Ok(x.apply_op2_no_bwd(bias, &gpu::WithBias("bias_gelu_bf16"))?);
    }
    Ok(x.broadcast_add(bias)?.gelu_erf()?)
}

/// `x + (delta + bias)`.
pub(crate) fn add_with_bias(x: &Tensor, delta: &Tensor, bias: &Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if gpu::takes(x) && bias.elem_count().is_multiple_of(8) {
        return Ok(x.apply_op3_no_bwd(delta, bias, &gpu::AddWithBias)?);
    }
    Ok((x + delta.broadcast_add(bias)?)?)
}

#[cfg(feature = "cuda")]
fn last_dim(x: &Tensor) -> usize {
    x.dims().last().copied().unwrap_or(0)
}
