//! The rotary embedding of the decoder, with YaRN.

use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};

use crate::config::{RopeConfig, YarnConfig};
use crate::error::Result;

/// Cosines and sines of positions, made for as many as were asked for.
pub(crate) struct DecoderRotary {
    frequencies: Vec<f32>,
    /// What cosine and sine are multiplied by; 1 without YaRN.
    factor: f64,
    /// [positions, width / 2] each, kept between calls.
    known: Mutex<Option<[Tensor; 2]>>,
}

impl DecoderRotary {
    pub(crate) fn new(config: &RopeConfig, head_dim: usize) -> Self {
        let frequencies = frequencies(config, head_dim);
        let factor = config.yarn.as_ref().map_or(1.0, |yarn| yarn.attention_factor);
        Self { frequencies, factor, known: Mutex::new(None) }
    }

    /// The rows of `positions` (u32), as `dtype` on their device: [positions, width / 2] each.
    pub(crate) fn rows(&self, positions: &[u32], dtype: DType, device: &Device) -> Result<[Tensor; 2]> {
        let needed = positions.iter().max().map_or(1, |&last| last as usize + 1);
        let [cos, sin] = self.table(needed, dtype, device)?;
        let positions = Tensor::new(positions, device)?;
        Ok([cos.index_select(&positions, 0)?, sin.index_select(&positions, 0)?])
    }

    fn table(&self, needed: usize, dtype: DType, device: &Device) -> Result<[Tensor; 2]> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some([cos, sin]) = known.as_ref()
            && cos.dim(0)? >= needed
            && cos.dtype() == dtype
        {
            return Ok([cos.clone(), sin.clone()]);
        }
        let places: Vec<f32> = (0..needed.next_power_of_two()).map(|place| place as f32).collect();
        let places = Tensor::new(places, device)?.unsqueeze(1)?;
        let angles =
            places.broadcast_mul(&Tensor::new(self.frequencies.as_slice(), device)?.unsqueeze(0)?)?;
        let made = [
            (angles.cos()? * self.factor)?.to_dtype(dtype)?,
            (angles.sin()? * self.factor)?.to_dtype(dtype)?,
        ];
        *known = Some(made.clone());
        Ok(made)
    }
}

/// Angle of each pair for one position: `theta^(-2k/width)`, in f32 as transformers computes it.
fn frequencies(config: &RopeConfig, head_dim: usize) -> Vec<f32> {
    let theta = config.theta as f32;
    let plain = (0..head_dim / 2).map(|k| 1.0 / theta.powf(2.0 * k as f32 / head_dim as f32));
    match &config.yarn {
        None => plain.collect(),
        Some(yarn) => stretched(plain, yarn, config.theta, head_dim),
    }
}

/// YaRN: frequencies that turn often within the original context stay, those that turn less than once are divided by
/// the factor, a ramp between them (transformers, `_compute_yarn_parameters`).
fn stretched(plain: impl Iterator<Item = f32>, yarn: &YarnConfig, theta: f64, head_dim: usize) -> Vec<f32> {
    let width = head_dim as f64;
    let original = yarn.original_max_position_embeddings;
    let of_rotations = |rotations: f64| {
        width * (original / (rotations * 2.0 * std::f64::consts::PI)).ln() / (2.0 * theta.ln())
    };
    let (mut low, mut high) = (of_rotations(yarn.beta_fast), of_rotations(yarn.beta_slow));
    if yarn.truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(width - 1.0));
    if low == high {
        high += 0.001;
    }
    plain
        .enumerate()
        .map(|(k, frequency)| {
            let ramp = ((k as f64 - low) / (high - low)).clamp(0.0, 1.0) as f32;
            frequency * (1.0 - ramp) + frequency / yarn.factor as f32 * ramp
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of transformers 5.7 for Qwen3 (theta 1e6, factor 4, original context 32,768).
    #[test]
    fn yarn_frequencies_are_those_of_transformers() {
        let yarn = YarnConfig {
            factor: 4.0,
            original_max_position_embeddings: 32_768.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: true,
            attention_factor: 1.0,
        };
        let found = frequencies(&RopeConfig { theta: 1e6, yarn: Some(yarn) }, 128);
        let expected = [
            (0, 1.0),
            (1, 0.805_842_2),
            (22, 0.008_659_643),
            (24, 0.005_375_321_5),
            (30, 0.001_064_361),
            (38, 9.262_301e-5),
            (40, 4.445_698_5e-5),
            (63, 3.102_344_4e-7),
        ];
        for (k, value) in expected {
            assert!((found[k] / value - 1.0_f32).abs() < 1e-6, "{k}: {} {value}", found[k]);
        }
    }
}
