//! The tensors that a merged checkpoint holds.

use crate::config::{ModelConfig, TextConfig, VisionConfig};

/// What the names of the merger begin with.
pub(super) const MERGER: &str = "model.visual.merger.";
pub(super) const EMBEDDING: &str = "model.language_model.embed_tokens.weight";
pub(super) const HEAD: &str = "lm_head.weight";

/// Names and shapes of all tensors, in the order of the model.
pub(super) fn tensors(config: &ModelConfig) -> Vec<(String, Vec<usize>)> {
    let mut all = Tensors(Vec::new());
    all.vision(&config.vision);
    all.text(&config.text);
    all.add(HEAD.into(), &[config.text.vocab_size, config.text.hidden_size]);
    all.0
}

struct Tensors(Vec<(String, Vec<usize>)>);

impl Tensors {
    fn add(&mut self, name: String, shape: &[usize]) {
        self.0.push((name, shape.to_vec()));
    }

    fn linear(&mut self, name: &str, output: usize, input: usize, bias: bool) {
        self.add(format!("{name}.weight"), &[output, input]);
        if bias {
            self.add(format!("{name}.bias"), &[output]);
        }
    }

    fn norm(&mut self, name: &str, width: usize, bias: bool) {
        self.add(format!("{name}.weight"), &[width]);
        if bias {
            self.add(format!("{name}.bias"), &[width]);
        }
    }

    fn vision(&mut self, config: &VisionConfig) {
        let VisionConfig { hidden_size: width, intermediate_size: wide, patch_size: patch, .. } = *config;
        let bias = !config.rms_norm;
        self.add(
            "model.visual.embeddings.patch_embedding.weight".into(),
            &[width, config.num_channels, patch, patch],
        );
        self.norm("model.visual.layernorm_pre", width, bias);
        for layer in 0..config.num_hidden_layers {
            let layer = format!("model.visual.encoder.layers.{layer}");
            self.norm(&format!("{layer}.layer_norm1"), width, bias);
            self.linear(&format!("{layer}.self_attn.qkv"), 3 * width, width, true);
            self.linear(&format!("{layer}.self_attn.proj"), width, width, true);
            self.norm(&format!("{layer}.layer_norm2"), width, bias);
            self.linear(&format!("{layer}.mlp.fc1"), wide, width, true);
            self.linear(&format!("{layer}.mlp.fc2"), width, wide, true);
        }
        let block = width * config.spatial_merge_size.pow(2);
        self.norm(&format!("{MERGER}ln_q"), width, true);
        self.linear(&format!("{MERGER}mlp.0"), block, block, true);
        self.linear(&format!("{MERGER}mlp.2"), config.out_hidden_size, block, true);
    }

    fn text(&mut self, config: &TextConfig) {
        let width = config.hidden_size;
        self.add(EMBEDDING.into(), &[config.vocab_size, width]);
        let queries = config.num_attention_heads * config.head_dim;
        let keys = config.num_key_value_heads * config.head_dim;
        for number in 0..config.num_hidden_layers {
            let layer = format!("model.language_model.layers.{number}");
            self.norm(&format!("{layer}.input_layernorm"), width, false);
            for (name, output, input) in [
                ("q_proj", queries, width),
                ("k_proj", keys, width),
                ("v_proj", keys, width),
                ("o_proj", width, queries),
            ] {
                self.linear(&format!("{layer}.self_attn.{name}"), output, input, config.attention_bias);
            }
            self.norm(&format!("{layer}.self_attn.q_norm"), config.head_dim, false);
            self.norm(&format!("{layer}.self_attn.k_norm"), config.head_dim, false);
            self.norm(&format!("{layer}.post_attention_layernorm"), width, false);
            match config.moe.as_ref().filter(|moe| moe.is_sparse(number)) {
                Some(moe) => {
                    self.linear(&format!("{layer}.mlp.gate"), moe.num_experts, width, false);
                    for expert in 0..moe.num_experts {
                        let expert = format!("{layer}.mlp.experts.{expert}");
                        self.mlp(&expert, moe.moe_intermediate_size, width);
                    }
                }
                None => self.mlp(&format!("{layer}.mlp"), config.intermediate_size, width),
            }
        }
        self.norm("model.language_model.norm", width, false);
    }

    fn mlp(&mut self, name: &str, wide: usize, width: usize) {
        self.linear(&format!("{name}.gate_proj"), wide, width, false);
        self.linear(&format!("{name}.up_proj"), wide, width, false);
        self.linear(&format!("{name}.down_proj"), width, wide, false);
    }
}
