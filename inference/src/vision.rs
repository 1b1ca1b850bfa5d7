//! The vision tower `onevision_encoder` and the merger behind it.

use candle_core::{Device, Tensor};
use packd_contracts::ImageGrid;

use crate::attention::{DomainPair, attend};
use crate::config::VisionConfig;
use crate::domains::AttentionDomains;
use crate::error::{ModelError, Result};
use crate::flavour::Flavour;
use crate::fused;
use crate::layers::{Linear, Norm, RmsNorm};
use crate::probe::Probe;
use crate::weights::Weights;

/// From rows of patches to rows of the decoder's width.
pub(crate) struct VisionTower {
    config: VisionConfig,
    patch_embedding: Linear,
    norm_pre: Norm,
    layers: Vec<Layer>,
    merger: Merger,
}

struct Layer {
    norm1: Norm,
    qkv: Linear,
    proj: Linear,
    norm2: Norm,
    fc1: Linear,
    fc2: Linear,
}

struct Merger {
    norm: Norm,
    first: Linear,
    second: Linear,
}

impl VisionTower {
    pub(crate) fn load(config: &VisionConfig, weights: &Weights, flavour: Flavour) -> Result<Self> {
        let eps = flavour.vision_eps(config);
        let VisionConfig { hidden_size: width, patch_size: patch, num_channels: channels, .. } = *config;
        // A convolution whose stride is its size is a product with the flattened kernel.
        let kernel = weights
            .get("model.visual.embeddings.patch_embedding.weight", &[width, channels, patch, patch])?
            .flatten_from(1)?;
        let layer = |number| {
            Layer::load(config, weights, &format!("model.visual.encoder.layers.{number}"), eps.layers)
        };
        Ok(Self {
            patch_embedding: Linear::from_weight(kernel),
            norm_pre: norm(config, weights, "model.visual.layernorm_pre", eps.before)?,
            layers: (0..config.num_hidden_layers).map(layer).collect::<Result<_>>()?,
            merger: Merger::load(config, weights, eps.merger)?,
            config: VisionConfig { rope_theta: flavour.vision_theta(config), ..config.clone() },
        })
    }

    /// Rows [patches, channels·patch²] with their (t, h, w), both in block order, to [patches / merge², width of the
    /// decoder].
    pub(crate) fn forward(
        &self,
        rows: &Tensor,
        grids: &[ImageGrid],
        positions: &[[u32; 3]],
        probe: &mut dyn Probe,
    ) -> Result<Tensor> {
        let patches = rows.dim(0)?;
        if positions.len() != patches {
            let detail = format!("{} patch positions for {patches} rows of patches", positions.len());
            return Err(ModelError::Batch(detail));
        }
        let windows = self.windows(grids)?;
        if windows.tokens() as usize != patches {
            return Err(ModelError::Batch(format!(
                "the image grids are of {} patches, there are {patches} rows",
                windows.tokens()
            )));
        }
        let rotary = Rotary::new(&self.config, positions, rows.device())?;
        probe.see("vit.rotary_full", &rotary.angles);
        let windows = DomainPair::same(&windows, rows.device())?;
        let mut x = self.patch_embedding.forward(rows)?;
        probe.see("vit.after_patch_embed", &x);
        x = self.norm_pre.forward(&x)?;
        probe.see("vit.after_pre_layernorm", &x);
        for (number, layer) in self.layers.iter().enumerate() {
            let mut seen =
                |name: &str, tensor: &Tensor| probe.see(&format!("vit.layer{number}.{name}"), tensor);
            x = layer.forward(&x, &rotary, &windows, self.config.num_attention_heads, &mut seen)?;
        }
        probe.see("vit.before_adapter", &x);
        let merged = self.merger.forward(&x)?;
        probe.see("vit.after_merger", &merged);
        Ok(merged)
    }

    /// Which patches see each other. Only the grids decide: `patch_positions` turn phases and nothing else.
    pub(crate) fn windows(&self, grids: &[ImageGrid]) -> Result<AttentionDomains> {
        vision_windows(grids, self.config.frame_windows_size)
    }
}

/// The attention windows of the vision tower: each grid row by itself, one of more than `frames` frames in windows of
/// so many (0: never split).
///
/// # Errors
/// [`ModelError::Domains`] for an empty grid, for none, or for more patches than 32 bits count.
pub fn vision_windows(grids: &[ImageGrid], frames: usize) -> Result<AttentionDomains> {
    let frames = u32::try_from(frames).unwrap_or(u32::MAX);
    let mut lengths = Vec::new();
    for grid in grids {
        let per_frame = grid.h.checked_mul(grid.w).filter(|frame| frame.checked_mul(grid.t).is_some());
        let per_frame = per_frame
            .ok_or_else(|| ModelError::Domains(format!("an image grid of {grid} has too many patches")))?;
        if 0 < frames && frames < grid.t {
            lengths.extend(std::iter::repeat_n(frames * per_frame, (grid.t / frames) as usize));
            lengths.extend((grid.t % frames > 0).then_some(grid.t % frames * per_frame));
        } else {
            lengths.push(grid.t * per_frame);
        }
    }
    AttentionDomains::from_lengths(lengths)
}

fn norm(config: &VisionConfig, weights: &Weights, name: &str, eps: f64) -> Result<Norm> {
    let width = config.hidden_size;
    if config.rms_norm {
        return Ok(Norm::RootMeanSquare(RmsNorm::load(weights, name, width, eps)?));
    }
    Norm::layer(weights, name, width, eps)
}

impl Layer {
    fn load(config: &VisionConfig, weights: &Weights, name: &str, eps: f64) -> Result<Self> {
        let (width, wide) = (config.hidden_size, config.intermediate_size);
        let linear = |part: &str, sizes| Linear::load(weights, &format!("{name}.{part}"), sizes, true);
        Ok(Self {
            norm1: norm(config, weights, &format!("{name}.layer_norm1"), eps)?,
            qkv: linear("self_attn.qkv", [width, 3 * width])?,
            proj: linear("self_attn.proj", [width, width])?,
            norm2: norm(config, weights, &format!("{name}.layer_norm2"), eps)?,
            fc1: linear("mlp.fc1", [width, wide])?,
            fc2: linear("mlp.fc2", [wide, width])?,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        rotary: &Rotary,
        windows: &DomainPair,
        heads: usize,
        probe: &mut dyn Probe,
    ) -> Result<Tensor> {
        let (patches, width) = x.dims2()?;
        let qkv = self.qkv.forward(&self.norm1.forward(x)?)?.reshape((patches, 3, heads, width / heads))?;
        let part = |number| qkv.narrow(1, number, 1)?.squeeze(1);
        let (q, k) = (rotary.turn(&part(0)?)?, rotary.turn(&part(1)?)?);
        probe.see("q_rotated", &q.transpose(0, 1)?);
        probe.see("k_rotated", &k.transpose(0, 1)?);
        let attended = attend([&q, &k, &part(2)?], windows, false)?;
        let attended = attended.reshape((patches, width))?;
        if probe.is_looking() {
            probe.see("attn_out", &self.proj.forward(&attended)?);
        }
        let y = self.proj.forward_onto(&attended, x)?;
        let wide = self.fc1.forward_gelu(&self.norm2.forward(&y)?)?;
        let out = self.fc2.forward_onto(&wide, &y)?;
        probe.see("out", &out);
        Ok(out)
    }
}

/// The rotary embedding of patches.
///
/// Half a head is split into 4, 6 and 6 sixteenths for t, h and w, with frequencies `theta^(-k/size)` (not `2k`), and
/// the table is doubled as `[f ‖ f]`, while the values are paired as neighbours. The two of a pair therefore turn by
/// different angles: no rotation, but it is what the model was trained with.
struct Rotary {
    /// [patches, head width], f32.
    angles: Tensor,
    cos: Tensor,
    sin: Tensor,
}

impl Rotary {
    fn new(config: &VisionConfig, positions: &[[u32; 3]], device: &Device) -> Result<Self> {
        let unit = config.hidden_size / config.num_attention_heads / 32;
        let theta = config.rope_theta as f32;
        let axis = |axis: usize, size: usize| -> Result<Tensor> {
            let frequencies: Vec<f32> = (0..size).map(|k| 1.0 / theta.powf(k as f32 / size as f32)).collect();
            let places: Vec<f32> = positions.iter().map(|position| position[axis] as f32).collect();
            let places = Tensor::new(places, device)?.unsqueeze(1)?;
            Ok(places.broadcast_mul(&Tensor::new(frequencies, device)?.unsqueeze(0)?)?)
        };
        let [t, h, w] = [axis(0, 4 * unit)?, axis(1, 6 * unit)?, axis(2, 6 * unit)?];
        let angles = Tensor::cat(&[&t, &h, &w, &t, &h, &w], 1)?;
        let (cos, sin) = (angles.cos()?.unsqueeze(1)?, angles.sin()?.unsqueeze(1)?);
        Ok(Self { angles, cos, sin })
    }

    /// z [patches, heads, width], turned.
    fn turn(&self, z: &Tensor) -> Result<Tensor> {
        fused::rotate_neighbours(z, &self.cos, &self.sin)
    }
}

impl Merger {
    fn load(config: &VisionConfig, weights: &Weights, eps: f64) -> Result<Self> {
        let width = config.hidden_size;
        let block = config.spatial_merge_size.pow(2) * width;
        let name = "model.visual.merger";
        Ok(Self {
            norm: Norm::layer(weights, &format!("{name}.ln_q"), width, eps)?,
            first: Linear::load(weights, &format!("{name}.mlp.0"), [block, block], true)?,
            second: Linear::load(weights, &format!("{name}.mlp.2"), [block, config.out_hidden_size], true)?,
        })
    }

    /// Rows of one block lie behind each other, so merging them is a reshape.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (patches, width) = x.dims2()?;
        let block = self.first.input_width()?;
        let merged = self.norm.forward(x)?.reshape((patches * width / block, block))?;
        self.second.forward(&self.first.forward_gelu(&merged)?)
    }
}
