//! Names of tensors in the sources, and what becomes of them.

use super::source::Role;

/// Where a tensor of a source goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Renamed {
    /// Nowhere: the model has no use for it.
    Dropped,
    /// It is a tensor of the model.
    Whole(String),
    /// It is the query (0), key (1) or value (2) third of a tensor of the model.
    Third(String, usize),
}

/// The name in the model of a tensor of a source.
pub(super) fn rename(role: Role, key: &str) -> Renamed {
    // Rotary tables are computed.
    if key.ends_with(".inv_freq") {
        return Renamed::Dropped;
    }
    match role {
        Role::Vit => vit(key),
        Role::Adapter => Renamed::Whole(match key.strip_prefix("model.mm_projector") {
            Some(rest) => format!("model.visual.merger{rest}"),
            None => key.to_owned(),
        }),
        Role::Llm => Renamed::Whole(match key.strip_prefix("model.") {
            Some(rest) => format!("model.language_model.{rest}"),
            None => key.to_owned(),
        }),
    }
}

fn vit(key: &str) -> Renamed {
    // torch.compile leaves its name behind.
    let key = key.replacen("encoder._orig_mod.", "encoder.", 1);
    // Pooling and the norm before it: the model takes the last layer as it is.
    if key.starts_with("head.") || key.starts_with("layernorm_post.") {
        return Renamed::Dropped;
    }
    for (third, name) in ["q_proj", "k_proj", "v_proj"].into_iter().enumerate() {
        if let Some((layer, kind)) = key.split_once(&format!(".self_attn.{name}."))
            && matches!(kind, "weight" | "bias")
        {
            return Renamed::Third(format!("model.visual.{layer}.self_attn.qkv.{kind}"), third);
        }
    }
    Renamed::Whole(format!("model.visual.{}", key.replacen(".self_attn.out_proj.", ".self_attn.proj.", 1)))
}

/// Experts of all of a layer in one tensor, as transformers 5 has them in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FusedExperts {
    /// [experts, 2 · width, hidden]: the rows of the gate, then those of the up projection.
    GateUp,
    /// [experts, hidden, width].
    Down,
}

/// The names before `experts` of such a tensor of the model.
pub(super) fn fused_experts(name: &str) -> Option<(&str, FusedExperts)> {
    if let Some(layer) = name.strip_suffix(".experts.gate_up_proj") {
        return Some((layer, FusedExperts::GateUp));
    }
    name.strip_suffix(".experts.down_proj").map(|layer| (layer, FusedExperts::Down))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(role: Role, key: &str) -> String {
        match rename(role, key) {
            Renamed::Whole(name) => name,
            other => panic!("{key}: {other:?}"),
        }
    }

    #[test]
    fn names_of_a_vision_tower() {
        let layer = "model.visual.encoder.layers.3.self_attn";
        let vit = |key| rename(Role::Vit, key);
        assert_eq!(
            vit("encoder._orig_mod.layers.3.self_attn.k_proj.bias"),
            Renamed::Third(format!("{layer}.qkv.bias"), 1)
        );
        assert_eq!(
            vit("encoder.layers.3.self_attn.v_proj.weight"),
            Renamed::Third(format!("{layer}.qkv.weight"), 2)
        );
        assert_eq!(
            whole(Role::Vit, "encoder.layers.3.self_attn.out_proj.bias"),
            format!("{layer}.proj.bias")
        );
        assert_eq!(whole(Role::Vit, "encoder.layers.3.self_attn.qkv.bias"), format!("{layer}.qkv.bias"));
        assert_eq!(whole(Role::Vit, "class_embedding"), "model.visual.class_embedding");
        for key in ["head.probe", "head.attention.out_proj.weight", "layernorm_post.bias", "rotary.inv_freq"]
        {
            assert_eq!(vit(key), Renamed::Dropped, "{key}");
        }
    }

    #[test]
    fn names_of_an_adapter_and_a_decoder() {
        assert_eq!(whole(Role::Adapter, "model.mm_projector.mlp.0.bias"), "model.visual.merger.mlp.0.bias");
        assert_eq!(whole(Role::Adapter, "other"), "other");
        assert_eq!(whole(Role::Llm, "model.norm.weight"), "model.language_model.norm.weight");
        assert_eq!(whole(Role::Llm, "lm_head.weight"), "lm_head.weight");
        let fused = "model.language_model.layers.0.mlp.experts.gate_up_proj";
        assert_eq!(fused_experts(fused), Some(("model.language_model.layers.0.mlp", FusedExperts::GateUp)));
        assert_eq!(fused_experts("model.language_model.layers.0.mlp.experts.0.down_proj.weight"), None);
    }
}
