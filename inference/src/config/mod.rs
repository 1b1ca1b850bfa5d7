//! `config.json` of a LLaVA-OneVision-2 checkpoint, in the spellings of transformers 4 and 5.

mod raw;
mod sizes;

use std::path::Path;

use crate::error::{ModelError, Result};
use raw::RawConfig;

/// A LLaVA-OneVision-2 model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// The decoder.
    pub text: TextConfig,
    /// The vision tower and the merger.
    pub vision: VisionConfig,
    /// The token that stands for a merged block of patches (`<|image_pad|>`).
    pub image_token_id: u32,
    /// `<|video_pad|>`.
    pub video_token_id: u32,
    /// `<|vision_start|>`.
    pub vision_start_token_id: u32,
    /// `<|vision_end|>`.
    pub vision_end_token_id: u32,
    /// The head is the embedding.
    pub tie_word_embeddings: bool,
    /// Tokens that end a generation.
    pub eos_token_ids: Vec<u32>,
}

/// A Qwen3 decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct TextConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the dense MLP.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads.
    pub num_key_value_heads: usize,
    /// Width of a head; it need not be `hidden_size / num_attention_heads`.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Added to the mean square under the root.
    pub rms_norm_eps: f64,
    /// The four projections of attention have biases.
    pub attention_bias: bool,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Experts (Qwen3-MoE); `None` for a dense model.
    pub moe: Option<MoeConfig>,
}

/// Mixture of experts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MoeConfig {
    /// Experts of a layer.
    pub num_experts: usize,
    /// Experts that a token goes to.
    pub num_experts_per_tok: usize,
    /// Width of an expert.
    pub moe_intermediate_size: usize,
    /// The chosen experts' weights are divided by their sum.
    pub norm_topk_prob: bool,
    /// Every how many layers the MLP is sparse.
    pub decoder_sparse_step: usize,
    /// Layers that keep a dense MLP.
    pub mlp_only_layers: Vec<usize>,
}

impl MoeConfig {
    /// Whether layer `layer` (from 0) has experts.
    pub fn is_sparse(&self, layer: usize) -> bool {
        !self.mlp_only_layers.contains(&layer) && (layer + 1).is_multiple_of(self.decoder_sparse_step)
    }
}

/// Rotary embedding of the decoder.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// The base.
    pub theta: f64,
    /// Context extension by YaRN.
    pub yarn: Option<YarnConfig>,
}

/// YaRN (Peng et al. 2023, arXiv:2309.00071) with the keys of transformers.
#[derive(Debug, Clone, PartialEq)]
pub struct YarnConfig {
    /// How many times longer the context is.
    pub factor: f64,
    /// The context in tokens that the model was trained on.
    pub original_max_position_embeddings: f64,
    /// Rotations within the original context above which a frequency is left alone.
    pub beta_fast: f64,
    /// Rotations below which it is divided by `factor`.
    pub beta_slow: f64,
    /// The bounds between them are rounded to whole frequencies.
    pub truncate: bool,
    /// What cosine and sine are multiplied by.
    pub attention_factor: f64,
}

/// The vision tower `onevision_encoder`.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionConfig {
    /// Width.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Layers.
    pub num_hidden_layers: usize,
    /// Heads.
    pub num_attention_heads: usize,
    /// Colours.
    pub num_channels: usize,
    /// Side of a patch in pixels.
    pub patch_size: usize,
    /// Patches merged into one token along each side.
    pub spatial_merge_size: usize,
    /// Of every norm of the tower and of the merger's.
    pub layer_norm_eps: f64,
    /// The tower's norms are root mean square norms without a bias.
    pub rms_norm: bool,
    /// Base of the rotary embedding.
    pub rope_theta: f64,
    /// Width of the merger's output: the decoder's.
    pub out_hidden_size: usize,
    /// Frames that see each other; 0 for all of a grid row.
    pub frame_windows_size: usize,
}

impl ModelConfig {
    /// Reads `config.json` in `dir`.
    ///
    /// # Errors
    /// [`ModelError::Read`], or what [`parse`](Self::parse) says.
    pub fn read(dir: &Path) -> Result<Self> {
        let path = dir.join("config.json");
        let text = std::fs::read_to_string(&path)
            .map_err(|source| ModelError::Read { path: path.clone(), source })?;
        Self::parse(&path.display().to_string(), &text)
    }

    /// Reads the text of a `config.json`, which `name` stands for in errors.
    ///
    /// # Errors
    /// [`ModelError::Config`] when it is no such model, or when it asks for something that this crate does not compute
    /// (sliding windows, other activations, other context extensions, a pooling head), or when a size is 0 or larger
    /// than that of any model.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let wrong = |detail: String| ModelError::Config { name: name.to_owned(), detail };
        let raw: RawConfig = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let config = raw.into_config().map_err(wrong)?;
        sizes::check(&config).map_err(wrong)?;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOLDEN: &str = include_str!("../../tests/golden/tiny_dense/config.json");

    /// The golden configuration with these keys of `text_config` set, or removed where null.
    fn with_text(changes: &str) -> Result<ModelConfig> {
        let mut config: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
        let changes: serde_json::Map<_, _> = serde_json::from_str(changes).unwrap();
        let text = config["text_config"].as_object_mut().unwrap();
        text.extend(changes);
        text.retain(|_, value| !value.is_null());
        ModelConfig::parse("config.json", &config.to_string())
    }

    #[test]
    fn rope_in_the_spellings_of_transformers_4_and_5() {
        let yarn = r#"{"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 1024}"#;
        let four = format!(r#"{{"rope_parameters": null, "rope_theta": 5e6, "rope_scaling": {yarn}}}"#);
        let older = four.replace("rope_type", "type");
        let five = yarn.replace('}', r#", "rope_theta": 5e6}"#);
        let five = format!(r#"{{"rope_parameters": {five}}}"#);
        // A configuration that was saved by transformers 5 and extended by hand.
        let both = format!(r#"{{"rope_scaling": {yarn}}}"#);
        for text in [four, older, five, both] {
            let rope = with_text(&text).unwrap().text.rope;
            assert_eq!((rope.theta, rope.yarn.unwrap().factor), (5e6, 4.0), "{text}");
        }
        let plain = with_text("{}").unwrap().text.rope;
        assert_eq!((plain.theta, plain.yarn), (5e6, None));
        assert_eq!(
            with_text(r#"{"rope_parameters": null, "rope_theta": 1e6}"#).unwrap().text.rope.theta,
            1e6
        );
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        for (text, said) in [
            (r#"{"hidden_act": "gelu"}"#, "hidden_act"),
            (r#"{"use_sliding_window": true, "sliding_window": 4096}"#, "sliding"),
            (r#"{"rope_scaling": {"type": "linear", "factor": 2}}"#, "linear"),
            (r#"{"rope_scaling": {"type": "yarn"}}"#, "yarn needs factor"),
            (r#"{"num_attention_heads": 3}"#, "num_key_value_heads"),
            (r#"{"num_attention_heads": 0}"#, "num_attention_heads"),
            (r#"{"model_type": "llama"}"#, "llama"),
            (r#"{"hidden_size": 128}"#, "out_hidden_size"),
            (r#"{"model_type": "qwen3_moe"}"#, "num_experts"),
            (r#"{"intermediate_size": 0}"#, "text_config.intermediate_size is 0, it must be positive"),
            (r#"{"num_hidden_layers": 0}"#, "text_config.num_hidden_layers is 0"),
            (
                r#"{"num_hidden_layers": 1000000000000}"#,
                "num_hidden_layers is 1000000000000, more than 10000",
            ),
            (r#"{"head_dim": 9223372036854775806}"#, "text_config.head_dim"),
            (r#"{"vocab_size": 1099511627776}"#, "text_config.vocab_size is 1099511627776, more than"),
        ] {
            let error = with_text(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
        let mut zero: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
        zero["vision_config"]["intermediate_size"] = 0.into();
        let error = ModelConfig::parse("config.json", &zero.to_string()).unwrap_err().to_string();
        assert!(error.contains("vision_config.intermediate_size is 0"), "{error}");
        let head = GOLDEN.replace(r#""use_head": false"#, r#""use_head": true"#);
        assert!(ModelConfig::parse("config.json", &head).unwrap_err().to_string().contains("use_head"));
    }
}
