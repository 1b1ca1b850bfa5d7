//! What is refused, with the name of what is wrong, and leaves nothing.

use candle_core::{DType, Device, Tensor};
use packd_inference::WriteOptions;
use packd_inference::merge::{MergeOptions, MergePlan, ProblemKind, Variant};

use crate::support::*;

/// Sources with a fault: what writing says, after nothing was left.
fn refusal(options: &MergeOptions) -> String {
    let folder = tempfile::tempdir().unwrap();
    let done = MergePlan::new(options)
        .and_then(|plan| plan.write(&folder.path().join("merged"), &WriteOptions::default()));
    let error = done.unwrap_err().to_string();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
    error
}

fn refused_with(source: &str, change: impl FnOnce(&mut Tensors), expected: &[&str]) {
    let (_folder, path) = changed(source, change);
    let options = match source {
        "vit" => MergeOptions { vit: path, ..options("dense") },
        "adapter.safetensors" => MergeOptions { adapter: Some(path), ..options("dense") },
        _ => MergeOptions { llm: path, ..options("dense") },
    };
    let error = refusal(&options);
    for text in expected {
        assert!(error.contains(text), "{source}: {error}");
    }
}

const LAYER: &str = "encoder._orig_mod.layers.1";

#[test]
fn renamed_tensors_are_refused_from_both_sides() {
    refused_with(
        "vit",
        |all| rename(all, "layernorm_pre.weight", "bogus_typo.weight"),
        &[
            "[ViT] unknown key not in model: model.visual.bogus_typo.weight",
            "uncovered: no source has model.visual.layernorm_pre.weight",
        ],
    );
    refused_with(
        "adapter.safetensors",
        |all| rename(all, "model.mm_projector.ln_q.bias", "model.mm_projector.norm.bias"),
        &["[Adapter] unknown key not in model: model.visual.merger.norm.bias", "merger.ln_q.bias"],
    );
    refused_with(
        "moe",
        |all| rename(all, "model.layers.1.mlp.gate.weight", "model.layers.1.mlp.router.weight"),
        &["[LLM] unknown key not in model: model.language_model.layers.1.mlp.router.weight"],
    );
}

#[test]
fn missing_tensors_are_refused() {
    refused_with(
        "vit",
        |all| drop(all.remove(&format!("{LAYER}.mlp.fc2.bias")).unwrap()),
        &["uncovered: no source has model.visual.encoder.layers.1.mlp.fc2.bias"],
    );
    refused_with(
        "moe",
        |all| drop(all.remove("model.layers.0.mlp.experts.3.up_proj.weight").unwrap()),
        &["uncovered: no source has model.language_model.layers.0.mlp.experts.3.up_proj.weight"],
    );
    refused_with(
        "dense",
        |all| drop(all.remove("lm_head.weight").unwrap()),
        &["uncovered: no source has lm_head.weight"],
    );
    refused_with(
        "adapter.safetensors",
        |all| drop(all.remove("model.mm_projector.mlp.2.bias").unwrap()),
        &["uncovered: no source has model.visual.merger.mlp.2.bias"],
    );
}

#[test]
fn wrong_shapes_are_refused_with_both() {
    let shorten = |name: &'static str| {
        move |all: &mut Tensors| {
            let tensor = all[name].narrow(0, 0, all[name].dim(0).unwrap() - 1).unwrap().contiguous().unwrap();
            all.insert(name.into(), tensor);
        }
    };
    refused_with(
        "vit",
        shorten("layernorm_pre.bias"),
        &["[ViT] shape mismatch for model.visual.layernorm_pre.bias", "model=(32,) weights=(31,)"],
    );
    refused_with(
        "vit",
        shorten("encoder._orig_mod.layers.0.self_attn.k_proj.weight"),
        &["encoder._orig_mod.layers.0.self_attn.k_proj.weight", "model=(32, 32) weights=(31, 32)"],
    );
    refused_with(
        "moe_fused",
        shorten("model.layers.0.mlp.experts.gate_up_proj"),
        &["model.layers.0.mlp.experts.gate_up_proj", "model=(4, 24, 24) weights=(3, 24, 24)"],
    );
    refused_with("dense", shorten("model.embed_tokens.weight"), &["model=(64, 24) weights=(63, 24)"]);
}

#[test]
fn q_k_and_v_come_together_or_not_at_all() {
    for third in ["q_proj", "k_proj", "v_proj"] {
        let name = format!("{LAYER}.self_attn.{third}.bias");
        let missing = format!("[ViT] {name} is missing");
        refused_with("vit", |all| drop(all.remove(&name).unwrap()), &[&missing]);
    }
    refused_with(
        "vit",
        |all| {
            let zeros = Tensor::zeros((96, 32), DType::F32, &Device::Cpu).unwrap();
            all.insert(format!("{LAYER}.self_attn.qkv.weight"), zeros);
        },
        &["are both for model.visual.encoder.layers.1.self_attn.qkv.weight"],
    );
}

#[test]
fn what_the_model_does_not_have_is_refused_by_name() {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    refused_with(
        "vit",
        |all| drop(all.insert("class_embedding".into(), zeros(&[32]))),
        &["[ViT] unknown key not in model: model.visual.class_embedding", "no class embedding"],
    );
    refused_with(
        "vit",
        |all| drop(all.insert("embeddings.patch_embedding.bias".into(), zeros(&[32]))),
        &["model.visual.embeddings.patch_embedding.bias", "without a bias"],
    );
}

#[test]
fn integers_are_no_weights() {
    let integers = |name: &'static str| {
        move |all: &mut Tensors| {
            let tensor = Tensor::zeros(all[name].shape(), DType::I64, &Device::Cpu).unwrap();
            all.insert(name.into(), tensor);
        }
    };
    refused_with("vit", integers("layernorm_pre.weight"), &["[ViT] layernorm_pre.weight is I64"]);
    refused_with("dense", integers("model.norm.weight"), &["[LLM] model.norm.weight is I64"]);
    // One problem is one line: neither missing thirds nor uncovered experts are reported beside it.
    for (source, name) in [
        ("vit", "encoder._orig_mod.layers.0.self_attn.k_proj.weight"),
        ("moe_fused", "model.layers.0.mlp.experts.down_proj"),
    ] {
        let (_folder, path) = changed(source, integers(name));
        let options = match source {
            "vit" => MergeOptions { vit: path, ..options("dense") },
            _ => MergeOptions { llm: path, ..options("moe") },
        };
        let plan = MergePlan::new(&options).unwrap();
        let found: Vec<_> =
            plan.report().problems.iter().map(|problem| (problem.kind, problem.key.as_str())).collect();
        assert_eq!(found, [(ProblemKind::Dtype, name)]);
    }
}

#[test]
fn files_that_were_cut_are_refused() {
    let (_folder, vit) = changed("vit", |_| ());
    let path = vit.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let options = MergeOptions { vit: vit.clone(), ..options("dense") };
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = refusal(&options);
    assert!(
        error.contains("model.safetensors: the file was cut short: layernorm_pre.weight ends"),
        "{error}"
    );
    for length in [header - 1, 20, 8, 3, 0] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let error = refusal(&options);
        assert!(error.contains("model.safetensors"), "{length}: {error}");
    }
    let torch = std::fs::read(fixture("torch_vit/checkpoint.pt")).unwrap();
    let path = vit.join("cut.pt");
    std::fs::write(&path, &torch[..torch.len() - 100]).unwrap();
    let error = refusal(&MergeOptions { vit: path, ..options });
    assert!(error.contains("cut.pt"), "{error}");
}

#[test]
fn an_index_that_lies_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in contents(&fixture("moe")) {
        let text = String::from_utf8_lossy(&bytes);
        let changed =
            text.replace(r#""model.norm.weight": "model-00002"#, r#""model.norm.weight": "model-00001"#);
        let is_index = name.ends_with("index.json");
        assert_eq!(is_index, changed != text, "{name}");
        std::fs::write(folder.path().join(&name), if is_index { changed.as_bytes() } else { &bytes })
            .unwrap();
    }
    let error = refusal(&MergeOptions { llm: folder.path().to_owned(), ..options("moe") });
    assert!(
        error.contains("model.norm.weight lies in model-00001-of-00002.safetensors, which does not"),
        "{error}"
    );
}

#[test]
fn numbers_too_large_for_half_precision_leave_nothing() {
    let large = |all: &mut Tensors| {
        let name = "encoder._orig_mod.layers.0.mlp.fc1.bias";
        let tensor = (&all[name] * 1e6).unwrap();
        all.insert(name.into(), tensor);
    };
    let (_folder, vit) = changed("vit", large);
    let error = refusal(&MergeOptions { vit: vit.clone(), dtype: DType::F16, ..options("dense") });
    assert!(error.contains("encoder._orig_mod.layers.0.mlp.fc1.bias are too large for f16"), "{error}");
    merge(&MergeOptions { vit: vit.clone(), dtype: DType::BF16, ..options("dense") });
}

#[test]
fn of_several_files_that_fail_at_a_time_the_first_is_named() {
    let (_folder, vit) = changed("vit", |all| {
        for layer in 0..2 {
            for name in ["mlp.fc1.bias", "mlp.fc2.weight", "self_attn.out_proj.bias"] {
                let name = format!("encoder._orig_mod.layers.{layer}.{name}");
                let tensor = (&all[&name] * 1e9).unwrap();
                all.insert(name, tensor);
            }
        }
    });
    let options = MergeOptions { vit, dtype: DType::F16, shard_bytes: 1, ..options("dense") };
    let expected = in_threads(1, || refusal(&options));
    assert!(expected.contains("layers.0."), "{expected}");
    for _ in 0..20 {
        assert_eq!(in_threads(8, || refusal(&options)), expected);
    }
}

#[test]
fn the_caller_and_the_decoder_must_agree() {
    let error = refusal(&MergeOptions { variant: Some(Variant::Moe), ..options("dense") });
    assert!(error.contains("this decoder is dense, --variant says moe"), "{error}");
    let plan = MergePlan::new(&MergeOptions { spatial_merge_size: 3, ..options("dense") }).unwrap();
    // An adapter for blocks of another size.
    let kinds: Vec<_> = plan.report().problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [ProblemKind::ShapeMismatch; 3]);
}

#[test]
fn places_that_cannot_be_are_refused() {
    let paths = ["vit", "dense", "processor"].map(|name| fixture(name).display().to_string());
    let (_folder, vit) = changed("vit", |_| ());
    let within = vit.join("merged").display().to_string();
    let own = [vit.display().to_string(), paths[1].clone(), paths[2].clone()];
    let output = packd_model(&[&["merge"], arguments(&own, &["--out", &within]).as_slice()].concat());
    assert_eq!(output.status.code(), Some(73), "{output:?}");
    assert!(text(&output.stderr).contains("within the source"), "{output:?}");
    let hub = ["lmms-lab/OneVision".to_owned(), paths[1].clone(), paths[2].clone()];
    let output = packd_model(&[&["merge"], arguments(&hub, &["--dry-run"]).as_slice()].concat());
    assert_eq!(output.status.code(), Some(65), "{output:?}");
    assert!(text(&output.stderr).contains("hf download lmms-lab/OneVision"), "{output:?}");
    let output = packd_model(&[&["merge"], arguments(&paths, &[]).as_slice()].concat());
    assert_eq!(output.status.code(), Some(64), "{output:?}");
}

#[test]
fn the_wrong_tower_does_not_fill_the_screen() {
    let (_folder, vit) = changed("vit", |all| {
        *all = all.drain().map(|(name, tensor)| (format!("vision_model.{name}"), tensor)).collect();
    });
    let error = refusal(&MergeOptions { vit, ..options("dense") });
    assert_eq!(error.lines().count(), 22, "{error}");
    assert!(error.contains("more; --dry-run lists them"), "{error}");
}
