//! A configuration that is not the one a checkpoint was saved of, where shapes do not show it.

use std::path::{Path, PathBuf};
use std::process::Command;

use packd_inference::ModelError;
use packd_inference::convert::{Contradiction, ConvertError, McoreOptions};
use packd_inference::torch_file::{ArgsStyle, PyValue};
use serde_json::{Value, json};

use crate::support::*;

const STYLES: [ArgsStyle; 3] = [ArgsStyle::OrderedDict, ArgsStyle::Namespace, ArgsStyle::SimpleNamespace];

fn first_rank(source: &Path) -> PathBuf {
    source.join("release/mp_rank_00/model_optim_rng.pt")
}

/// Sets a value below a path of keys.
fn set(config: &mut Value, path: &[&str], value: &Value) {
    let place = path.iter().fold(config, |config, key| &mut config[*key]);
    *place = value.clone();
}

/// The contradiction that a conversion ends with: key in `args`, what it says, key in `config.json`, what that says.
fn contradiction(source: &Path, hf: &Path, target: &Path) -> [String; 4] {
    match refused(target, |target| to_hf(source, hf, target)) {
        ModelError::Convert(ConvertError::Contradiction(it)) => {
            let Contradiction { path, arg, found, config, key, expected } = *it;
            assert_eq!((path, config), (first_rank(source), hf.join("config.json")));
            [arg, found, key.to_owned(), expected]
        }
        other => panic!("{other}"),
    }
}

#[test]
fn what_was_written_here_knows_its_settings() {
    let cases: [(&str, &[&str], Value, &str, &str); 10] = [
        ("tiny_dense", &["vision_config", "num_attention_heads"], json!(1), "2", "1"),
        ("tiny_dense", &["vision_config", "layer_norm_eps"], json!(1e-5), "0.000001", "0.00001"),
        ("tiny_dense", &["vision_config", "rope_theta"], json!(5000.0), "10000", "5000"),
        ("tiny_dense", &["vision_config", "frame_windows_size"], json!(2), "4", "2"),
        ("tiny_dense", &["text_config", "vocab_size"], json!(510), "512", "510"),
        ("tiny_dense", &["text_config", "rms_norm_eps"], json!(1e-5), "0.000001", "0.00001"),
        ("tiny_dense", &["text_config", "rope_parameters", "rope_theta"], json!(1e6), "5000000", "1000000"),
        ("tiny_dense", &["text_config", "num_hidden_layers"], json!(3), "2", "3"),
        ("tiny_moe", &["text_config", "num_experts_per_tok"], json!(3), "2", "3"),
        ("tiny_moe", &["text_config", "norm_topk_prob"], json!(false), "True", "false"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let (hf, target) = (folder.path().join("hf"), folder.path().join("target"));
    for model in ["tiny_dense", "tiny_moe"] {
        for args in STYLES {
            let source = folder.path().join(format!("{model}_{args:?}"));
            to_mcore(&tiny(model), &source, &McoreOptions { args, ..mcore(1, 1, 1) }).unwrap();
            for (_, path, value, found, expected) in cases.iter().filter(|case| case.0 == model) {
                changed_config(model, &hf, |config| set(config, path, value));
                let key = [path[0], path[path.len() - 1]].join(".");
                let whole = [format!("packd_config {key}"), (*found).into(), key.clone(), (*expected).into()];
                assert_eq!(contradiction(&source, &hf, &target), whole);
            }
            // The same configuration, and one that only names other tokens and a longer context.
            changed_config(model, &hf, |config| {
                config["image_token_id"] = 501.into();
                let yarn =
                    json!({"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 4096});
                config["text_config"]["rope_scaling"] = yarn;
            });
            assert_eq!(to_hf(&source, &hf, &target).unwrap().notes, [""; 0]);
            std::fs::remove_dir_all(&target).unwrap();
        }
    }
}

/// `args` as a training has them.
fn of_training(style: ArgsStyle, fields: &[(&str, PyValue)]) -> PyValue {
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    PyValue::Attributes(style, fields)
}

#[test]
fn sizes_that_a_training_ran_with_are_those_of_the_model() {
    let grouped = || ("group_query_attention", PyValue::Bool(true));
    let int = |name, number| (name, PyValue::Int(number));
    let cases = [
        ("tiny_dense", vec![int("hidden_size", 128)], ["hidden_size", "128", "hidden_size", "64"]),
        (
            "tiny_dense",
            vec![int("num_attention_heads", 8)],
            ["num_attention_heads", "8", "num_attention_heads", "4"],
        ),
        (
            "tiny_dense",
            vec![grouped(), int("num_query_groups", 4)],
            ["num_query_groups", "4", "num_key_value_heads", "2"],
        ),
        (
            "tiny_dense",
            vec![int("ffn_hidden_size", 96)],
            ["ffn_hidden_size", "96", "intermediate_size", "128"],
        ),
        (
            "tiny_dense",
            vec![int("num_experts", 6)],
            ["num_experts", "6", "num_experts", "nothing: it is a dense model"],
        ),
        ("tiny_moe", vec![int("num_experts", 8)], ["num_experts", "8", "num_experts", "6"]),
        (
            "tiny_moe",
            vec![int("num_experts", 6), int("moe_router_topk", 3)],
            ["moe_router_topk", "3", "num_experts_per_tok", "2"],
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    for (model, fields, [arg, found, key, expected]) in cases {
        for style in STYLES {
            let source = folder.path().join("source");
            to_mcore(&tiny(model), &source, &mcore(1, 1, 1)).unwrap();
            set_args(&first_rank(&source), of_training(style, &fields));
            let whole = [arg.into(), found.into(), format!("text_config.{key}"), expected.into()];
            assert_eq!(contradiction(&source, &tiny(model), &target), whole, "{style:?}");
            std::fs::remove_dir_all(&source).unwrap();
        }
    }
}

#[test]
fn what_a_training_may_have_had_otherwise_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let hf = tiny("tiny_dense");
    to_mcore(&hf, &source, &mcore(1, 1, 1)).unwrap();
    let fields = [
        ("num_layers", PyValue::Int(2)),
        // Megatron's defaults, which say nothing of a model whose queries are not grouped or that has no experts.
        ("group_query_attention", PyValue::Bool(false)),
        ("num_query_groups", PyValue::Int(1)),
        ("num_experts", PyValue::None),
        ("moe_router_topk", PyValue::Int(2)),
        // From the training's registry and defaults.
        ("rotary_base", PyValue::Int(1_000_000)),
        ("norm_epsilon", PyValue::Float(1e-5)),
        ("kv_channels", PyValue::Int(16)),
        ("vocab_size_in_config_file", PyValue::Int(500)),
        // The tokenizer's.
        ("vocab_size", PyValue::Int(499)),
    ];
    set_args(&first_rank(&source), of_training(ArgsStyle::Namespace, &fields));
    let notes = to_hf(&source, &hf, &target).unwrap().notes;
    let said =
        ["kv_channels 16", "norm_epsilon 0.00001", "rotary_base 1000000", "vocab_size_in_config_file 500"];
    assert_eq!(notes.len(), said.len(), "{notes:?}");
    for (note, said) in notes.iter().zip(said) {
        assert!(note.contains(said), "{note}");
    }
    assert!(notes[2].contains("text_config.rope_theta 5000000"), "{}", notes[2]);
    std::fs::remove_dir_all(&target).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_packd-model"))
        .arg("convert")
        .args([&source, &target])
        .args(["--to", "hf", "--hf"])
        .arg(&hf)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().filter(|line| line.starts_with("note: ")).count(), 4, "{text}");

    std::fs::remove_dir_all(&target).unwrap();
    let equal =
        [("rotary_base", PyValue::Int(5_000_000)), ("norm_epsilon", PyValue::Float(f64::from(1e-6_f32)))];
    set_args(&first_rank(&source), of_training(ArgsStyle::Namespace, &equal));
    assert_eq!(to_hf(&source, &hf, &target).unwrap().notes, [""; 0]);
}
