//! What `args` in the file of a rank say about the model: written with every checkpoint, compared with `config.json` when
//! one is read.
//!
//! Shapes do not show everything that a model is computed with: not the heads of the vision tower, bases of rotary
//! embeddings, epsilons, windows, experts of a token, or how many rows of the embedding are tokens. So files that are
//! written here keep what `config.json` said of all that, under a key of their own, and another configuration is refused
//! for them. What Megatron itself keeps are the arguments of a training: sizes must be those of the model, but epsilons
//! and bases come from the training's own defaults and its registry of models, so a difference there is only told.

use std::collections::BTreeSet;
use std::path::Path;

use super::McoreOptions;
use super::error::{Contradiction, ConvertError};
use super::sharding::{Sharding, join};
use crate::config::{ModelConfig, TextConfig};
use crate::torch_file::{Node, PyValue, TorchFile, Value};

/// Constants of the decoder that Megatron takes from its arguments, not from the model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct TrainedWith {
    rotary_base: Option<f64>,
    norm_epsilon: Option<f64>,
}

impl TrainedWith {
    pub(super) fn of(file: &TorchFile) -> Self {
        let number = |key| {
            let found = file.root().get("args")?.get(key)?;
            match found.value() {
                Value::Int(_) | Value::Float(_) => found.as_float().filter(|it| it.is_finite() && *it > 0.0),
                _ => None,
            }
        };
        Self { rotary_base: number("rotary_base"), norm_epsilon: number("norm_epsilon") }
    }

    /// A decoder's configuration with these.
    pub(crate) fn apply_to(&self, text: &mut TextConfig) {
        // What was written in 32 bits is the number that it was made of.
        let is_other = |one: f64, other: f64| (one - other).abs() > 1e-6 * other.abs();
        if let Some(base) = self.rotary_base.filter(|base| is_other(*base, text.rope.theta)) {
            text.rope.theta = base;
        }
        if let Some(eps) = self.norm_epsilon.filter(|eps| is_other(*eps, text.rms_norm_eps)) {
            text.rms_norm_eps = eps;
        }
    }
}

/// The key of `args` under which the settings of `config.json` are kept.
const SETTINGS: &str = "packd_config";

/// A setting of `config.json`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Setting {
    Size(usize),
    Number(f64),
    Flag(bool),
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Size(size) => write!(f, "{size}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

impl Setting {
    fn to_python(self) -> PyValue {
        match self {
            Self::Size(size) => int(size),
            Self::Number(number) => PyValue::Float(number),
            Self::Flag(flag) => PyValue::Bool(flag),
        }
    }

    /// Whether a value of Python is another one. What is no value of this kind (`None`) says nothing.
    fn contradicts(self, found: Node<'_>) -> bool {
        match (self, found.value()) {
            (Self::Flag(flag), Value::Bool(said)) => flag != *said,
            (Self::Size(size), Value::Int(said)) => usize::try_from(*said) != Ok(size),
            (Self::Number(number), Value::Int(_) | Value::Float(_)) => {
                let said = found.as_float().unwrap_or(f64::NAN);
                // The same number may have gone through 32 bits.
                said.is_nan() || (said - number).abs() > 1e-6 * number.abs()
            }
            _ => false,
        }
    }
}

/// What a model is computed with besides its tensors, by the keys of `config.json`. The extension of the context (YaRN)
/// is not among it: it is switched on and off for the same tensors.
fn settings(config: &ModelConfig) -> Vec<(&'static str, Setting)> {
    use Setting::{Flag, Number, Size};
    let (text, vision) = (&config.text, &config.vision);
    let mut all = vec![
        ("tie_word_embeddings", Flag(config.tie_word_embeddings)),
        ("text_config.num_hidden_layers", Size(text.num_hidden_layers)),
        ("text_config.hidden_size", Size(text.hidden_size)),
        ("text_config.num_attention_heads", Size(text.num_attention_heads)),
        ("text_config.num_key_value_heads", Size(text.num_key_value_heads)),
        ("text_config.head_dim", Size(text.head_dim)),
        ("text_config.vocab_size", Size(text.vocab_size)),
        ("text_config.rms_norm_eps", Number(text.rms_norm_eps)),
        ("text_config.attention_bias", Flag(text.attention_bias)),
        ("text_config.rope_theta", Number(text.rope.theta)),
        ("vision_config.num_hidden_layers", Size(vision.num_hidden_layers)),
        ("vision_config.hidden_size", Size(vision.hidden_size)),
        ("vision_config.intermediate_size", Size(vision.intermediate_size)),
        ("vision_config.num_attention_heads", Size(vision.num_attention_heads)),
        ("vision_config.patch_size", Size(vision.patch_size)),
        ("vision_config.spatial_merge_size", Size(vision.spatial_merge_size)),
        ("vision_config.layer_norm_eps", Number(vision.layer_norm_eps)),
        ("vision_config.rope_theta", Number(vision.rope_theta)),
        ("vision_config.frame_windows_size", Size(vision.frame_windows_size)),
    ];
    if let Some(moe) = &text.moe {
        all.extend([
            ("text_config.num_experts", Size(moe.num_experts)),
            ("text_config.num_experts_per_tok", Size(moe.num_experts_per_tok)),
            ("text_config.moe_intermediate_size", Size(moe.moe_intermediate_size)),
            ("text_config.norm_topk_prob", Flag(moe.norm_topk_prob)),
        ]);
    }
    if has_dense_layer(config) {
        all.push(("text_config.intermediate_size", Size(text.intermediate_size)));
    }
    all
}

/// Without one the width of the dense MLP is of no meaning.
fn has_dense_layer(config: &ModelConfig) -> bool {
    let moe = config.text.moe.as_ref();
    (0..config.text.num_hidden_layers).any(|layer| !moe.is_some_and(|moe| moe.is_sparse(layer)))
}

fn int(number: usize) -> PyValue {
    PyValue::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

/// What Megatron compares with its own arguments when it loads, what the reference converter asks for, what tells the
/// layout of an ambiguous name, and the settings that shapes do not show.
pub(super) fn of_model(
    config: &ModelConfig,
    sharding: &Sharding,
    options: &McoreOptions,
    trained_with: TrainedWith,
) -> PyValue {
    // What a training was given stays with its checkpoint.
    let mut text = config.text.clone();
    trained_with.apply_to(&mut text);
    let text = &text;
    let mut fields = vec![
        ("tensor_model_parallel_size", int(sharding.tp)),
        ("pipeline_model_parallel_size", int(sharding.pp())),
        ("expert_model_parallel_size", int(sharding.ep)),
        ("num_layers", int(text.num_hidden_layers)),
        ("hidden_size", int(text.hidden_size)),
        ("ffn_hidden_size", int(text.intermediate_size)),
        ("num_attention_heads", int(text.num_attention_heads)),
        ("group_query_attention", PyValue::Bool(text.num_key_value_heads != text.num_attention_heads)),
        ("num_query_groups", int(text.num_key_value_heads)),
        ("kv_channels", int(text.head_dim)),
        ("norm_epsilon", PyValue::Float(text.rms_norm_eps)),
        ("rotary_base", PyValue::Float(text.rope.theta)),
        ("vocab_size", int(text.vocab_size)),
        ("padded_vocab_size", int(sharding.padded_vocab)),
        ("make_vocab_size_divisible_by", int(options.vocab_multiple)),
        ("untie_embeddings_and_output_weights", PyValue::Bool(!config.tie_word_embeddings)),
    ];
    if let Some(moe) = &text.moe {
        fields.extend([
            ("expert_tensor_parallel_size", int(sharding.etp)),
            ("num_experts", int(moe.num_experts)),
            ("moe_ffn_hidden_size", int(moe.moe_intermediate_size)),
            ("moe_router_topk", int(moe.num_experts_per_tok)),
        ]);
    }
    if sharding.stages.windows(2).any(|pair| pair[0] != pair[1]) {
        fields.push(("custom_pipeline_layers", PyValue::Str(join(&sharding.stages))));
    }
    let settings = settings(config).into_iter().map(|(key, setting)| (key, setting.to_python()));
    fields.push((SETTINGS, PyValue::dict(settings)));
    let fields = fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    PyValue::Attributes(options.args, fields)
}

/// Compares the `args` of a file with the configuration in the folder `hf`. What a training may have had otherwise goes
/// to `notes`.
pub(super) fn compare(
    file: &TorchFile,
    config: &ModelConfig,
    hf: &Path,
    notes: &mut BTreeSet<String>,
) -> Result<(), ConvertError> {
    let Some(args) = file.root().get("args") else { return Ok(()) };
    let contradiction = |arg: String, found: Node<'_>, key: &'static str, expected: String| {
        let (path, found) = (file.path().to_owned(), found.describe());
        let config = hf.join("config.json");
        ConvertError::from(Box::new(Contradiction { path, arg, found, config, key, expected }))
    };
    if let Some(kept) = args.get(SETTINGS) {
        for (key, setting) in settings(config) {
            if let Some(found) = kept.get(key).filter(|found| setting.contradicts(*found)) {
                return Err(contradiction(format!("{SETTINGS} {key}"), found, key, setting.to_string()));
            }
        }
    }
    for (arg, key, setting) in sizes(args, config) {
        if let Some(found) = args.get(arg).filter(|found| setting.contradicts(*found)) {
            return Err(contradiction(arg.to_owned(), found, key, setting.to_string()));
        }
    }
    if config.text.moe.is_none()
        && let Some(found) = args.get("num_experts").filter(|experts| experts.as_int() > Some(0))
    {
        let expected = "nothing: it is a dense model".to_owned();
        return Err(contradiction("num_experts".to_owned(), found, "text_config.num_experts", expected));
    }
    for (arg, key, setting) in of_training(args, config) {
        if let Some(found) = args.get(arg).filter(|found| setting.contradicts(*found)) {
            notes.insert(format!(
                "args of the source say {arg} {}, config.json says {key} {setting}: the training ran with the first, the \
                 converted model has the second",
                found.describe()
            ));
        }
    }
    Ok(())
}

type Compared = (&'static str, &'static str, Setting);

/// Arguments that a training cannot have had otherwise than its model.
fn sizes(args: Node<'_>, config: &ModelConfig) -> Vec<Compared> {
    let text = &config.text;
    let size = |arg, key, size| (arg, key, Setting::Size(size));
    let mut all = vec![
        size("num_layers", "text_config.num_hidden_layers", text.num_hidden_layers),
        size("hidden_size", "text_config.hidden_size", text.hidden_size),
        size("num_attention_heads", "text_config.num_attention_heads", text.num_attention_heads),
    ];
    // Without grouped queries the argument is 1, whatever the heads are.
    let is_grouped = args.get("group_query_attention").map(Node::value) == Some(&Value::Bool(true));
    if is_grouped {
        all.push(size("num_query_groups", "text_config.num_key_value_heads", text.num_key_value_heads));
    }
    if has_dense_layer(config) {
        all.push(size("ffn_hidden_size", "text_config.intermediate_size", text.intermediate_size));
    }
    if let Some(moe) = &text.moe
        && args.get("num_experts").and_then(Node::as_int).is_some()
    {
        let width = moe.moe_intermediate_size;
        all.extend([
            size("num_experts", "text_config.num_experts", moe.num_experts),
            size("moe_ffn_hidden_size", "text_config.moe_intermediate_size", width),
            size("moe_router_topk", "text_config.num_experts_per_tok", moe.num_experts_per_tok),
        ]);
    }
    all
}

/// Arguments whose defaults, or entries in a registry of models, may differ from what the model was published with.
fn of_training(args: Node<'_>, config: &ModelConfig) -> Vec<Compared> {
    let text = &config.text;
    let is_padded = |key: &str| {
        let said = |key: &str| args.get(key).and_then(Node::as_int).and_then(|it| usize::try_from(it).ok());
        // A tokenizer's size within a vocabulary that was filled up to hold the model's.
        said(key).is_some_and(|own| own <= text.vocab_size)
            && said("padded_vocab_size").is_some_and(|padded| padded >= text.vocab_size)
    };
    // The first is the size in config.json; the second may be the tokenizer's.
    let vocabulary = match args.get("vocab_size_in_config_file").and_then(Node::as_int) {
        Some(_) => "vocab_size_in_config_file",
        None => "vocab_size",
    };
    let mut all = vec![
        ("kv_channels", "text_config.head_dim", Setting::Size(text.head_dim)),
        ("norm_epsilon", "text_config.rms_norm_eps", Setting::Number(text.rms_norm_eps)),
        ("rotary_base", "text_config.rope_theta", Setting::Number(text.rope.theta)),
    ];
    if vocabulary != "vocab_size" || !is_padded(vocabulary) {
        all.push((vocabulary, "text_config.vocab_size", Setting::Size(text.vocab_size)));
    }
    all
}
