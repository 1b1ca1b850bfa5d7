//! `config.json` and `generation_config.json` of the merged checkpoint.

use std::path::Path;

use candle_core::DType;
use serde_json::{Map, Value as Json, json};

use super::source::{read_json, wrong};
use super::tokens::TokenIds;
use super::{MergeOptions, Variant};
use crate::error::{ModelError, Result};

/// Keys of a vision tower's own configuration that the merged one takes over. The others belong to its surroundings:
/// the head is not used, and merging and output width are the decoder's.
const OF_THE_TOWER: [&str; 14] = [
    "attention_dropout",
    "frame_windows_size",
    "hidden_act",
    "hidden_size",
    "image_size",
    "initializer_range",
    "intermediate_size",
    "layer_norm_eps",
    "layer_norm_type",
    "num_attention_heads",
    "num_channels",
    "num_hidden_layers",
    "patch_size",
    "rope_theta",
];
/// What does not describe the decoder but the folder that it came in.
const OF_THE_FOLDER: [&str; 6] =
    ["architectures", "auto_map", "transformers_version", "torch_dtype", "dtype", "_name_or_path"];

/// What the sources say about the model.
pub(super) struct Settings {
    pub(super) variant: Variant,
    /// `config.json`.
    pub(super) config: Json,
    /// `generation_config.json`.
    pub(super) generation: Json,
    /// Whether the decoder's head is its embedding; `None` when its configuration does not say.
    pub(super) tied: Option<bool>,
    pub(super) notes: Vec<String>,
}

impl Settings {
    pub(super) fn read(options: &MergeOptions, tokens: &TokenIds) -> Result<Self> {
        let mut notes = Vec::new();
        let path = config_path(&options.llm);
        let text = object(&path)?;
        let variant = variant(&path, &text, options.variant)?;
        let tied = text.get("tie_word_embeddings").and_then(Json::as_bool);
        let Some(width) = text.get("hidden_size").and_then(Json::as_u64) else {
            return Err(ModelError::Config {
                name: path.display().to_string(),
                detail: "it has no hidden_size".into(),
            });
        };
        let vision = vision(options, width, &mut notes)?;
        let config = whole(variant, options, tokens, text, vision);
        let mut generation = json!({"_from_model_config": true, "use_cache": true});
        for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
            if !config[key].is_null() {
                generation[key] = config[key].clone();
            }
        }
        Ok(Self { variant, config, generation, tied, notes })
    }
}

/// `config.json` of a folder, or of the folder of a file.
fn config_path(source: &Path) -> std::path::PathBuf {
    let folder = if source.is_dir() { Some(source) } else { source.parent() };
    folder.unwrap_or(source).join("config.json")
}

fn object(path: &Path) -> Result<Map<String, Json>> {
    match read_json(path)? {
        Json::Object(object) => Ok(object),
        _ => Err(wrong(path, "it is no JSON object")),
    }
}

fn variant(path: &Path, text: &Map<String, Json>, asked: Option<Variant>) -> Result<Variant> {
    let config = |detail| ModelError::Config { name: path.display().to_string(), detail };
    let found = match text.get("model_type").and_then(Json::as_str) {
        Some("qwen3") => Variant::Dense,
        Some("qwen3_moe") => Variant::Moe,
        other => {
            let other = other.unwrap_or("not there");
            return Err(config(format!(
                "model_type is {other}; the decoder must be qwen3 or qwen3_moe, as its own checkpoint says"
            )));
        }
    };
    match asked {
        Some(asked) if asked != found => {
            Err(config(format!("this decoder is {}, --variant says {}", found.name(), asked.name())))
        }
        _ => Ok(found),
    }
}

fn vision(options: &MergeOptions, width: u64, notes: &mut Vec<String>) -> Result<Json> {
    let mut vision = json!({
        "model_type": "onevision_encoder", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_channels": 3, "patch_size": 14, "image_size": 448, "hidden_act": "gelu",
        "layer_norm_eps": 1e-6, "layer_norm_type": "layer_norm", "attention_dropout": 0.0, "initializer_range": 0.02,
        "rope_theta": 10_000.0, "use_head": false, "tokens_per_second": 1, "temporal_patch_size": 1,
        "frame_windows_size": 4, "spatial_merge_size": options.spatial_merge_size,
        "out_hidden_size": width, "text_hidden_size": width,
    });
    let path = config_path(&options.vit);
    if !path.is_file() {
        notes.push(format!("{} is not there: the tower has the default configuration", path.display()));
        return Ok(vision);
    }
    let own = object(&path)?;
    for key in OF_THE_TOWER {
        // No window at all is said by null; of the others it is no value.
        if let Some(value) = own.get(key).filter(|value| !value.is_null() || key == "frame_windows_size") {
            vision[key] = value.clone();
        }
    }
    // transformers 5 keeps the base elsewhere.
    if let Some(theta) = own.get("rope_parameters").and_then(|rope| rope.get("rope_theta"))
        && !own.contains_key("rope_theta")
    {
        vision["rope_theta"] = theta.clone();
    }
    let silent: Vec<&str> = ["layer_norm_eps", "layer_norm_type", "hidden_act", "frame_windows_size"]
        .into_iter()
        .filter(|key| !own.contains_key(*key))
        .collect();
    if !silent.is_empty() {
        notes.push(format!("{} does not say {}: defaults", path.display(), silent.join(", ")));
    }
    Ok(vision)
}

fn whole(
    variant: Variant,
    options: &MergeOptions,
    tokens: &TokenIds,
    mut text: Map<String, Json>,
    vision: Json,
) -> Json {
    text.retain(|key, _| !OF_THE_FOLDER.contains(&key.as_str()));
    // The merged checkpoint always has a head of its own.
    text.insert("tie_word_embeddings".into(), false.into());
    let suffix = variant.suffix();
    let mut config = json!({
        "architectures": ["LlavaOnevision2ForConditionalGeneration"],
        "auto_map": {
            "AutoConfig": format!("configuration_llava_onevision2{suffix}.LlavaOnevision2{}Config", variant.camel()),
            "AutoModelForCausalLM":
                format!("modeling_llava_onevision2{suffix}.LlavaOnevision2ForConditionalGeneration"),
        },
        "model_type": format!("llava_onevision2{suffix}"),
        "dtype": match options.dtype {
            DType::F32 => "float32",
            DType::F16 => "float16",
            _ => "bfloat16",
        },
        "image_token_id": tokens.image,
        "video_token_id": tokens.video,
        "vision_start_token_id": tokens.vision_start,
        "vision_end_token_id": tokens.vision_end,
        "tie_word_embeddings": false,
    });
    for key in ["bos_token_id", "eos_token_id", "pad_token_id"] {
        config[key] = text.get(key).cloned().unwrap_or(Json::Null);
    }
    if variant == Variant::Moe {
        config["output_router_logits"] = true.into();
        config["router_aux_loss_coef"] =
            text.get("router_aux_loss_coef").cloned().unwrap_or_else(|| 0.001.into());
    }
    config["text_config"] = Json::Object(text);
    config["vision_config"] = vision;
    config
}
