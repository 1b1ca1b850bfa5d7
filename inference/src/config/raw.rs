//! `config.json` as it is written, and what of it is refused.

use serde::Deserialize;

use super::{ModelConfig, MoeConfig, RopeConfig, TextConfig, VisionConfig, YarnConfig};

#[derive(Deserialize)]
pub(super) struct RawConfig {
    model_type: String,
    text_config: RawText,
    vision_config: RawVision,
    #[serde(default = "image_token")]
    image_token_id: u32,
    #[serde(default = "video_token")]
    video_token_id: u32,
    #[serde(default = "vision_start")]
    vision_start_token_id: u32,
    #[serde(default = "vision_end")]
    vision_end_token_id: u32,
    tie_word_embeddings: Option<bool>,
    eos_token_id: Option<OneOrMany>,
}

fn image_token() -> u32 {
    151_655
}

fn video_token() -> u32 {
    151_656
}

fn vision_start() -> u32 {
    151_652
}

fn vision_end() -> u32 {
    151_653
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

/// Defaults are those of transformers' `Qwen3Config` and `Qwen3MoeConfig`, for the keys whose absence is usual.
#[derive(Deserialize)]
struct RawText {
    model_type: Option<String>,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    #[serde(default = "head_dim")]
    head_dim: usize,
    vocab_size: usize,
    #[serde(default = "small")]
    rms_norm_eps: f64,
    #[serde(default)]
    attention_bias: bool,
    hidden_act: Option<String>,
    sliding_window: Option<u64>,
    #[serde(default)]
    use_sliding_window: bool,
    max_position_embeddings: Option<f64>,
    rope_theta: Option<f64>,
    rope_parameters: Option<RawRope>,
    rope_scaling: Option<RawRope>,
    tie_word_embeddings: Option<bool>,
    eos_token_id: Option<OneOrMany>,
    num_experts: Option<usize>,
    num_local_experts: Option<usize>,
    num_experts_per_tok: Option<usize>,
    moe_intermediate_size: Option<usize>,
    norm_topk_prob: Option<bool>,
    decoder_sparse_step: Option<usize>,
    #[serde(default)]
    mlp_only_layers: Vec<usize>,
}

fn head_dim() -> usize {
    128
}

fn small() -> f64 {
    1e-6
}

#[derive(Deserialize)]
struct RawRope {
    rope_type: Option<String>,
    #[serde(rename = "type")]
    older_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    truncate: Option<bool>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
}

#[derive(Deserialize)]
#[serde(default)]
struct RawVision {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_channels: usize,
    patch_size: usize,
    spatial_merge_size: usize,
    temporal_patch_size: usize,
    hidden_act: String,
    layer_norm_eps: f64,
    layer_norm_type: String,
    rope_theta: f64,
    use_head: bool,
    out_hidden_size: usize,
    frame_windows_size: Option<usize>,
}

impl Default for RawVision {
    fn default() -> Self {
        Self {
            hidden_size: 1024,
            intermediate_size: 4096,
            num_hidden_layers: 24,
            num_attention_heads: 16,
            num_channels: 3,
            patch_size: 14,
            spatial_merge_size: 3,
            temporal_patch_size: 1,
            hidden_act: "gelu".into(),
            layer_norm_eps: 1e-6,
            layer_norm_type: "layer_norm".into(),
            rope_theta: 10_000.0,
            use_head: false,
            out_hidden_size: 1024,
            frame_windows_size: Some(4),
        }
    }
}

type Parsed<T> = std::result::Result<T, String>;

impl RawConfig {
    pub(super) fn into_config(self) -> Parsed<ModelConfig> {
        if !matches!(self.model_type.as_str(), "llava_onevision2" | "llava_onevision2_moe") {
            return Err(format!(
                "model_type is {:?}; this is for llava_onevision2 and llava_onevision2_moe",
                self.model_type
            ));
        }
        let is_moe = match self.text_config.model_type.as_deref() {
            Some("qwen3") => false,
            Some("qwen3_moe") => true,
            None => self.model_type.ends_with("_moe"),
            Some(other) => {
                return Err(format!("text_config.model_type is {other:?}, not qwen3 or qwen3_moe"));
            }
        };
        let eos = self.eos_token_id.as_ref().or(self.text_config.eos_token_id.as_ref());
        let eos_token_ids = match eos {
            None => Vec::new(),
            Some(OneOrMany::One(id)) => vec![*id],
            Some(OneOrMany::Many(ids)) => ids.clone(),
        };
        let tie_word_embeddings =
            self.tie_word_embeddings.or(self.text_config.tie_word_embeddings).unwrap_or(false);
        let text = self.text_config.into_config(is_moe)?;
        let vision = self.vision_config.into_config()?;
        if vision.out_hidden_size != text.hidden_size {
            return Err(format!(
                "vision_config.out_hidden_size is {}, text_config.hidden_size {}; they must be equal",
                vision.out_hidden_size, text.hidden_size
            ));
        }
        Ok(ModelConfig {
            text,
            vision,
            image_token_id: self.image_token_id,
            video_token_id: self.video_token_id,
            vision_start_token_id: self.vision_start_token_id,
            vision_end_token_id: self.vision_end_token_id,
            tie_word_embeddings,
            eos_token_ids,
        })
    }
}

impl RawText {
    fn into_config(self, is_moe: bool) -> Parsed<TextConfig> {
        if let Some(other) = self.hidden_act.as_deref().filter(|act| *act != "silu") {
            return Err(format!("text_config.hidden_act is {other:?}, not silu"));
        }
        if self.use_sliding_window && self.sliding_window.is_some() {
            return Err("text_config.use_sliding_window is true; sliding windows are not computed".into());
        }
        if self.hidden_size == 0 || self.vocab_size < 2 || self.num_attention_heads == 0 {
            return Err("text_config.hidden_size, vocab_size and num_attention_heads must be positive".into());
        }
        if self.num_key_value_heads == 0 || !self.num_attention_heads.is_multiple_of(self.num_key_value_heads)
        {
            return Err(format!(
                "text_config.num_attention_heads ({}) is no multiple of num_key_value_heads ({})",
                self.num_attention_heads, self.num_key_value_heads
            ));
        }
        if self.head_dim == 0 || !self.head_dim.is_multiple_of(2) {
            return Err(format!("text_config.head_dim is {}, not a positive even number", self.head_dim));
        }
        let moe = if is_moe { Some(self.moe()?) } else { None };
        Ok(TextConfig {
            rope: self.rope()?,
            moe,
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: self.num_attention_heads,
            num_key_value_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            vocab_size: self.vocab_size,
            rms_norm_eps: self.rms_norm_eps,
            attention_bias: self.attention_bias,
        })
    }

    fn moe(&self) -> Parsed<MoeConfig> {
        let needed = |key: &str, value: Option<usize>| match value {
            Some(value) if value > 0 => Ok(value),
            _ => Err(format!("text_config.{key} must be a positive number for qwen3_moe")),
        };
        let moe = MoeConfig {
            // transformers 5 writes the second name.
            num_experts: needed("num_experts", self.num_experts.or(self.num_local_experts))?,
            num_experts_per_tok: needed("num_experts_per_tok", self.num_experts_per_tok)?,
            moe_intermediate_size: needed("moe_intermediate_size", self.moe_intermediate_size)?,
            norm_topk_prob: self.norm_topk_prob.unwrap_or(false),
            decoder_sparse_step: needed("decoder_sparse_step", self.decoder_sparse_step.or(Some(1)))?,
            mlp_only_layers: self.mlp_only_layers.clone(),
        };
        if moe.num_experts_per_tok > moe.num_experts {
            return Err(format!(
                "text_config.num_experts_per_tok ({}) is above num_experts ({})",
                moe.num_experts_per_tok, moe.num_experts
            ));
        }
        Ok(moe)
    }

    /// transformers 5 keeps everything in `rope_parameters`, 4 the base beside `rope_scaling`.
    fn rope(&self) -> Parsed<RopeConfig> {
        // Where both stand, transformers takes `rope_scaling`.
        let both = [self.rope_scaling.as_ref(), self.rope_parameters.as_ref()];
        let scaling = both.into_iter().flatten().find(|rope| rope.kind().is_some());
        let theta = both.into_iter().flatten().find_map(|rope| rope.rope_theta).or(self.rope_theta);
        let theta = theta.unwrap_or(10_000.0);
        let kind = scaling.and_then(RawRope::kind);
        let yarn = match (kind, scaling) {
            (Some("yarn"), Some(scaling)) => Some(scaling.yarn(self.max_position_embeddings)?),
            (None | Some("default"), _) => None,
            (Some(other), _) => {
                return Err(format!("the rope type is {other:?}; default and yarn are computed"));
            }
        };
        Ok(RopeConfig { theta, yarn })
    }
}

impl RawRope {
    fn kind(&self) -> Option<&str> {
        self.rope_type.as_deref().or(self.older_type.as_deref())
    }

    fn yarn(&self, max_position_embeddings: Option<f64>) -> Parsed<YarnConfig> {
        let original = self.original_max_position_embeddings.or(max_position_embeddings);
        let (Some(factor), Some(original)) = (self.factor, original) else {
            return Err("yarn needs factor and original_max_position_embeddings".into());
        };
        // `0.1 m ln s + 1`, as in the reference implementation of YaRN.
        let scaled = |by: f64| if factor > 1.0 { 0.1 * by * factor.ln() + 1.0 } else { 1.0 };
        let attention_factor = match (self.attention_factor, self.mscale, self.mscale_all_dim) {
            (Some(given), _, _) => given,
            (None, Some(mscale), Some(all)) if mscale != 0.0 && all != 0.0 => scaled(mscale) / scaled(all),
            _ => scaled(1.0),
        };
        Ok(YarnConfig {
            factor,
            original_max_position_embeddings: original,
            beta_fast: self.beta_fast.unwrap_or(32.0),
            beta_slow: self.beta_slow.unwrap_or(1.0),
            truncate: self.truncate.unwrap_or(true),
            attention_factor,
        })
    }
}

impl RawVision {
    fn into_config(self) -> Parsed<VisionConfig> {
        if self.use_head {
            return Err("vision_config.use_head is true; the pooling head is not computed".into());
        }
        if self.hidden_act != "gelu" {
            return Err(format!("vision_config.hidden_act is {:?}, not gelu", self.hidden_act));
        }
        if self.temporal_patch_size != 1 {
            return Err(format!("vision_config.temporal_patch_size is {}, not 1", self.temporal_patch_size));
        }
        let rms_norm = match self.layer_norm_type.as_str() {
            "layer_norm" => false,
            "rms_norm" => true,
            other => {
                return Err(format!(
                    "vision_config.layer_norm_type is {other:?}, not layer_norm or rms_norm"
                ));
            }
        };
        let heads = self.num_attention_heads;
        // The rotary table splits half a head into 4, 6 and 6 sixteenths.
        if heads == 0
            || !self.hidden_size.is_multiple_of(heads)
            || !(self.hidden_size / heads).is_multiple_of(32)
        {
            return Err(format!(
                "vision_config.hidden_size ({}) over num_attention_heads ({heads}) must be a multiple of 32",
                self.hidden_size
            ));
        }
        if self.hidden_size == 0 || self.patch_size == 0 || self.spatial_merge_size == 0 {
            return Err("vision_config.hidden_size, patch_size and spatial_merge_size must not be 0".into());
        }
        if self.num_channels != 3 {
            return Err(format!("vision_config.num_channels is {}, images have 3", self.num_channels));
        }
        Ok(VisionConfig {
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_hidden_layers: self.num_hidden_layers,
            num_attention_heads: heads,
            num_channels: self.num_channels,
            patch_size: self.patch_size,
            spatial_merge_size: self.spatial_merge_size,
            layer_norm_eps: self.layer_norm_eps,
            rms_norm,
            rope_theta: self.rope_theta,
            out_hidden_size: self.out_hidden_size,
            frame_windows_size: self.frame_windows_size.unwrap_or(0),
        })
    }
}
