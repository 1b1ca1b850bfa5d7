//! Sizes that a configuration may have.
//!
//! What a model consists of follows from its configuration alone: a tensor for every layer and expert, shapes that are
//! products of sizes. A wrong number must neither fill the memory nor overflow, so there is a largest for each, far above
//! those of any model.

use super::ModelConfig;

/// Layers at most.
const LAYERS: usize = 10_000;
/// Experts at most, over all layers.
const EXPERTS: usize = 1 << 20;
/// Width of a residual stream at most.
const WIDTH: usize = 1 << 20;
/// Width of an MLP at most.
const MLP: usize = 1 << 24;
/// Heads of a layer and width of a head at most.
const HEADS: usize = 1 << 16;
/// Tokens of a vocabulary at most.
const VOCAB: usize = 1 << 30;
/// Side of a patch in pixels at most.
const PATCH: usize = 1 << 10;
/// Side of a merged block in patches at most.
const MERGED: usize = 1 << 5;

/// Refuses sizes of 0, and those beyond the limits.
pub(super) fn check(config: &ModelConfig) -> Result<(), String> {
    let (text, vision) = (&config.text, &config.vision);
    let is_sparse = |layer| text.moe.as_ref().is_some_and(|moe| moe.is_sparse(layer));
    for (key, size, most) in [
        ("text_config.num_hidden_layers", text.num_hidden_layers, LAYERS),
        ("text_config.hidden_size", text.hidden_size, WIDTH),
        ("text_config.num_attention_heads", text.num_attention_heads, HEADS),
        ("text_config.num_key_value_heads", text.num_key_value_heads, HEADS),
        ("text_config.head_dim", text.head_dim, HEADS),
        ("text_config.vocab_size", text.vocab_size, VOCAB),
        ("vision_config.num_hidden_layers", vision.num_hidden_layers, LAYERS),
        ("vision_config.hidden_size", vision.hidden_size, WIDTH),
        ("vision_config.intermediate_size", vision.intermediate_size, MLP),
        ("vision_config.num_attention_heads", vision.num_attention_heads, HEADS),
        ("vision_config.patch_size", vision.patch_size, PATCH),
        ("vision_config.spatial_merge_size", vision.spatial_merge_size, MERGED),
    ] {
        within(key, size, 1, most)?;
    }
    // A model of which every layer has experts does not use it.
    let least = usize::from((0..text.num_hidden_layers).any(|layer| !is_sparse(layer)));
    within("text_config.intermediate_size", text.intermediate_size, least, MLP)?;
    if let Some(moe) = &text.moe {
        within("text_config.moe_intermediate_size", moe.moe_intermediate_size, 1, MLP)?;
        within("text_config.num_experts", moe.num_experts, 1, EXPERTS / text.num_hidden_layers)?;
    }
    Ok(())
}

fn within(key: &str, size: usize, least: usize, most: usize) -> Result<(), String> {
    match size {
        _ if size < least => Err(format!("{key} is {size}, it must be positive")),
        _ if size > most => Err(format!("{key} is {size}, more than {most}: that is no size of a model")),
        _ => Ok(()),
    }
}
