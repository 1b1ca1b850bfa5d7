//! Names of tensors in Megatron and in Hugging Face checkpoints, and how a tensor of one is made of those of the other.
//!
//! Both directions use the same rows: a row says what a Megatron tensor consists of.

use super::model::Size::{self, *};

/// How a Megatron tensor is made of Hugging Face tensors and cut over tensor parallel ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The same on every rank.
    Whole,
    /// Cut by rows.
    Rows,
    /// Cut by columns.
    Columns,
    /// Queries, keys and values of the decoder, interleaved by groups of heads; cut by rows.
    TextQkv,
    /// The same of the vision tower, which has all three in one Hugging Face tensor.
    VisionQkv,
    /// Gate rows, then up rows, each of them cut by rows.
    Gated,
    /// Rows filled up to a multiple with copies of the last; cut by rows.
    Vocabulary,
    /// The patch embedding: see [`PatchEmbed`](super::PatchEmbed).
    Patch,
}

/// Where a row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// In every model.
    Always,
    /// When the decoder's attention has biases.
    TextBias,
    /// When the norms of the vision tower have biases.
    VisionNormBias,
}

/// A Megatron tensor. `{l}` stands for the layer: in `mcore` counted from 0 in every pipeline stage; `{e}` for the expert:
/// in `mcore` counted from 0 on every expert parallel rank.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) mcore: &'static str,
    pub(super) hf: &'static [&'static str],
    /// Shapes of the Hugging Face tensors.
    pub(super) shapes: &'static [&'static [Size]],
    pub(super) form: Form,
    pub(super) when: When,
}

const fn row(
    mcore: &'static str,
    hf: &'static [&'static str],
    shapes: &'static [&'static [Size]],
    form: Form,
    when: When,
) -> Row {
    Row { mcore, hf, shapes, form, when }
}

use Form::*;
use When::*;

/// Before the vision tower's layers; first stage.
#[rustfmt::skip]
pub(super) const VISION: &[Row] = &[
    row("vision_model.patch_embed.proj.weight", &["model.visual.embeddings.patch_embedding.weight"], &[&[VisionHidden, Channels, PatchSide, PatchSide]], Patch, Always),
    row("vision_model.pre_layernorm.weight", &["model.visual.layernorm_pre.weight"], &[&[VisionHidden]], Whole, Always),
    row("vision_model.pre_layernorm.bias", &["model.visual.layernorm_pre.bias"], &[&[VisionHidden]], Whole, VisionNormBias),
];

/// A layer of the vision tower; first stage.
#[rustfmt::skip]
pub(super) const VISION_LAYER: &[Row] = &[
    row("vision_model.decoder.layers.{l}.self_attention.linear_qkv.layer_norm_weight", &["model.visual.encoder.layers.{l}.layer_norm1.weight"], &[&[VisionHidden]], Whole, Always),
    row("vision_model.decoder.layers.{l}.self_attention.linear_qkv.layer_norm_bias", &["model.visual.encoder.layers.{l}.layer_norm1.bias"], &[&[VisionHidden]], Whole, VisionNormBias),
    row("vision_model.decoder.layers.{l}.self_attention.linear_qkv.weight", &["model.visual.encoder.layers.{l}.self_attn.qkv.weight"], &[&[VisionQkvRows, VisionHidden]], VisionQkv, Always),
    row("vision_model.decoder.layers.{l}.self_attention.linear_qkv.bias", &["model.visual.encoder.layers.{l}.self_attn.qkv.bias"], &[&[VisionQkvRows]], VisionQkv, Always),
    row("vision_model.decoder.layers.{l}.self_attention.linear_proj.weight", &["model.visual.encoder.layers.{l}.self_attn.proj.weight"], &[&[VisionHidden, VisionHidden]], Columns, Always),
    row("vision_model.decoder.layers.{l}.self_attention.linear_proj.bias", &["model.visual.encoder.layers.{l}.self_attn.proj.bias"], &[&[VisionHidden]], Whole, Always),
    row("vision_model.decoder.layers.{l}.mlp.linear_fc1.layer_norm_weight", &["model.visual.encoder.layers.{l}.layer_norm2.weight"], &[&[VisionHidden]], Whole, Always),
    row("vision_model.decoder.layers.{l}.mlp.linear_fc1.layer_norm_bias", &["model.visual.encoder.layers.{l}.layer_norm2.bias"], &[&[VisionHidden]], Whole, VisionNormBias),
    row("vision_model.decoder.layers.{l}.mlp.linear_fc1.weight", &["model.visual.encoder.layers.{l}.mlp.fc1.weight"], &[&[VisionMlp, VisionHidden]], Rows, Always),
    row("vision_model.decoder.layers.{l}.mlp.linear_fc1.bias", &["model.visual.encoder.layers.{l}.mlp.fc1.bias"], &[&[VisionMlp]], Rows, Always),
    row("vision_model.decoder.layers.{l}.mlp.linear_fc2.weight", &["model.visual.encoder.layers.{l}.mlp.fc2.weight"], &[&[VisionHidden, VisionMlp]], Columns, Always),
    row("vision_model.decoder.layers.{l}.mlp.linear_fc2.bias", &["model.visual.encoder.layers.{l}.mlp.fc2.bias"], &[&[VisionHidden]], Whole, Always),
];

/// The adapter, in Hugging Face the merger; first stage. It is not cut.
#[rustfmt::skip]
pub(super) const ADAPTER: &[Row] = &[
    row("adapter.layernorm.weight", &["model.visual.merger.ln_q.weight"], &[&[VisionHidden]], Whole, Always),
    row("adapter.layernorm.bias", &["model.visual.merger.ln_q.bias"], &[&[VisionHidden]], Whole, Always),
    row("adapter.linear_fc1.weight", &["model.visual.merger.mlp.0.weight"], &[&[Merged, Merged]], Whole, Always),
    row("adapter.linear_fc1.bias", &["model.visual.merger.mlp.0.bias"], &[&[Merged]], Whole, Always),
    row("adapter.linear_fc2.weight", &["model.visual.merger.mlp.2.weight"], &[&[Hidden, Merged]], Whole, Always),
    row("adapter.linear_fc2.bias", &["model.visual.merger.mlp.2.bias"], &[&[Hidden]], Whole, Always),
];

/// First stage.
#[rustfmt::skip]
pub(super) const EMBEDDING: &[Row] = &[
    row("language_model.embedding.word_embeddings.weight", &["model.language_model.embed_tokens.weight"], &[&[Vocab, Hidden]], Vocabulary, Always),
];

/// The attention of a decoder layer.
#[rustfmt::skip]
pub(super) const ATTENTION: &[Row] = &[
    row("language_model.decoder.layers.{l}.self_attention.linear_qkv.layer_norm_weight", &["model.language_model.layers.{l}.input_layernorm.weight"], &[&[Hidden]], Whole, Always),
    row("language_model.decoder.layers.{l}.self_attention.linear_qkv.weight", &["model.language_model.layers.{l}.self_attn.q_proj.weight", "model.language_model.layers.{l}.self_attn.k_proj.weight", "model.language_model.layers.{l}.self_attn.v_proj.weight"], &[&[Queries, Hidden], &[Keys, Hidden], &[Keys, Hidden]], TextQkv, Always),
    row("language_model.decoder.layers.{l}.self_attention.linear_qkv.bias", &["model.language_model.layers.{l}.self_attn.q_proj.bias", "model.language_model.layers.{l}.self_attn.k_proj.bias", "model.language_model.layers.{l}.self_attn.v_proj.bias"], &[&[Queries], &[Keys], &[Keys]], TextQkv, TextBias),
    row("language_model.decoder.layers.{l}.self_attention.q_layernorm.weight", &["model.language_model.layers.{l}.self_attn.q_norm.weight"], &[&[HeadDim]], Whole, Always),
    row("language_model.decoder.layers.{l}.self_attention.k_layernorm.weight", &["model.language_model.layers.{l}.self_attn.k_norm.weight"], &[&[HeadDim]], Whole, Always),
    row("language_model.decoder.layers.{l}.self_attention.linear_proj.weight", &["model.language_model.layers.{l}.self_attn.o_proj.weight"], &[&[Hidden, Queries]], Columns, Always),
    row("language_model.decoder.layers.{l}.self_attention.linear_proj.bias", &["model.language_model.layers.{l}.self_attn.o_proj.bias"], &[&[Hidden]], Whole, TextBias),
];

/// The MLP of a dense decoder layer.
#[rustfmt::skip]
pub(super) const DENSE_MLP: &[Row] = &[
    row("language_model.decoder.layers.{l}.mlp.linear_fc1.layer_norm_weight", &["model.language_model.layers.{l}.post_attention_layernorm.weight"], &[&[Hidden]], Whole, Always),
    row("language_model.decoder.layers.{l}.mlp.linear_fc1.weight", &["model.language_model.layers.{l}.mlp.gate_proj.weight", "model.language_model.layers.{l}.mlp.up_proj.weight"], &[&[Mlp, Hidden], &[Mlp, Hidden]], Gated, Always),
    row("language_model.decoder.layers.{l}.mlp.linear_fc2.weight", &["model.language_model.layers.{l}.mlp.down_proj.weight"], &[&[Hidden, Mlp]], Columns, Always),
];

/// What a decoder layer with experts has once.
#[rustfmt::skip]
pub(super) const ROUTER: &[Row] = &[
    row("language_model.decoder.layers.{l}.pre_mlp_layernorm.weight", &["model.language_model.layers.{l}.post_attention_layernorm.weight"], &[&[Hidden]], Whole, Always),
    row("language_model.decoder.layers.{l}.mlp.router.weight", &["model.language_model.layers.{l}.mlp.gate.weight"], &[&[Experts, Hidden]], Whole, Always),
];

/// An expert.
#[rustfmt::skip]
pub(super) const EXPERT: &[Row] = &[
    row("language_model.decoder.layers.{l}.mlp.experts.local_experts.{e}.linear_fc1.weight", &["model.language_model.layers.{l}.mlp.experts.{e}.gate_proj.weight", "model.language_model.layers.{l}.mlp.experts.{e}.up_proj.weight"], &[&[ExpertMlp, Hidden], &[ExpertMlp, Hidden]], Gated, Always),
    row("language_model.decoder.layers.{l}.mlp.experts.local_experts.{e}.linear_fc2.weight", &["model.language_model.layers.{l}.mlp.experts.{e}.down_proj.weight"], &[&[Hidden, ExpertMlp]], Columns, Always),
];

/// Last stage.
#[rustfmt::skip]
pub(super) const FINAL_NORM: &[Row] = &[
    row("language_model.decoder.final_layernorm.weight", &["model.language_model.norm.weight"], &[&[Hidden]], Whole, Always),
];

/// Last stage.
#[rustfmt::skip]
pub(super) const HEAD: &[Row] = &[
    row("language_model.output_layer.weight", &["lm_head.weight"], &[&[Vocab, Hidden]], Vocabulary, Always),
];

/// The embedding again: the head of a model whose head is its embedding, when it lies in another stage.
#[rustfmt::skip]
pub(super) const TIED_HEAD: &[Row] = &[
    row("language_model.output_layer.weight", &["model.language_model.embed_tokens.weight"], &[&[Vocab, Hidden]], Vocabulary, Always),
];

/// The state of Transformer Engine that Megatron keeps beside a weight: its name, when the weight has one.
pub(super) fn extra_state(weight: &str) -> Option<String> {
    let module = weight.strip_suffix(".weight")?;
    let linear = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"];
    let is_linear = linear.iter().any(|name| module.ends_with(name)) && !module.contains(".local_experts.");
    (is_linear || module == PRE_NORM).then(|| format!("{module}._extra_state"))
}

/// Frequencies of a rotary embedding, which some checkpoints keep: they follow from `config.json`.
pub(super) fn is_computed(name: &str) -> bool {
    name.ends_with(".inv_freq")
}

/// The name of an expert's matrix by the number of the expert, when grouped GEMM names it: `….experts.linear_fc1.weight3`
/// is `….experts.local_experts.3.linear_fc1.weight`. Shape and order of its elements are the same.
pub(super) fn ungrouped(name: &str) -> Option<String> {
    let (layer, rest) = name.split_once(".mlp.experts.linear_fc")?;
    let (matrix, expert) = rest.split_once(".weight")?;
    let is_number = !expert.is_empty() && expert.bytes().all(|digit| digit.is_ascii_digit());
    let is_matrix = matches!(matrix, "1" | "2");
    (is_number && is_matrix)
        .then(|| format!("{layer}.mlp.experts.local_experts.{expert}.linear_fc{matrix}.weight"))
}

/// Whether this is a matrix of all experts of a layer, as the first grouped GEMM of Megatron had it: transposed, with the
/// experts beside each other.
pub(super) fn is_legacy_grouped(name: &str) -> bool {
    name.ends_with(".mlp.experts.weight1") || name.ends_with(".mlp.experts.weight2")
}

/// The one norm that has such a state.
pub(super) const PRE_NORM: &str = "vision_model.pre_layernorm";
