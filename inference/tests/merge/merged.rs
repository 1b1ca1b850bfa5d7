//! What a merged checkpoint holds, and that it runs.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use packd_contracts::ImageGrid;
use packd_inference::merge::{MergeOptions, MergePlan};
use packd_inference::{
    ImagePatches, LlavaOnevision2, ModelConfig, PackedBatch, Progress, ProgressNow, SubSample, WriteOptions,
};
use tempfile::TempDir;

use crate::support::*;

/// The vision tower that the sources make, made here in another way.
fn expected_tower() -> Tensors {
    let source = load(&fixture("vit/model.safetensors"));
    let mut expected = Tensors::new();
    for (name, tensor) in &source {
        let name = name.replace("_orig_mod.", "");
        if name.starts_with("head") || name.starts_with("layernorm_post") || name.ends_with("inv_freq") {
            continue;
        }
        if ["k_proj", "v_proj"].iter().any(|part| name.contains(part)) {
            continue;
        }
        if name.contains("q_proj") {
            let third = |part: &str| {
                let name = name.replace("encoder.", "encoder._orig_mod.").replace("q_proj", part);
                source[&name].clone()
            };
            let all = Tensor::cat(&["q_proj", "k_proj", "v_proj"].map(third), 0).unwrap();
            expected.insert(format!("model.visual.{}", name.replace("q_proj", "qkv")), all);
        } else {
            let name = name.replace("self_attn.out_proj", "self_attn.proj");
            expected.insert(format!("model.visual.{name}"), tensor.clone());
        }
    }
    expected
}

#[test]
fn tensors_are_those_of_the_sources() {
    for llm in DECODERS {
        let (_folder, out) = merge(&options(llm));
        let merged = load_all(&out);
        let mut expected = expected_tower();
        for (name, tensor) in load(&fixture("adapter.safetensors")) {
            expected.insert(name.replace("model.mm_projector", "model.visual.merger"), tensor);
        }
        // Both spellings of the experts make the same.
        let decoder = load_all(&fixture(if llm == "moe_fused" { "moe" } else { llm }));
        if llm == "dense_tied" {
            assert!(!decoder.contains_key("lm_head.weight"));
            expected.insert("lm_head.weight".into(), decoder["model.embed_tokens.weight"].clone());
        }
        for (name, tensor) in decoder {
            expected.insert(name.replacen("model.", "model.language_model.", 1), tensor);
        }
        let names = |tensors: &Tensors| tensors.keys().cloned().collect::<std::collections::BTreeSet<_>>();
        assert_eq!(names(&merged), names(&expected), "{llm}");
        for (name, tensor) in &merged {
            assert_eq!(tensor.dtype(), DType::F32);
            assert_equal(name, tensor, &expected[name]);
        }
    }
}

#[test]
fn the_decoder_gives_the_logits_of_transformers() {
    let expected = load(&fixture("logits.safetensors"));
    for llm in DECODERS {
        let (_folder, out) = merge(&options(llm));
        let model = LlavaOnevision2::read(&out, DType::F32, &Device::Cpu).unwrap();
        let batch = PackedBatch::pack(&[SubSample::text(PROMPT.to_vec())]).unwrap();
        let (ours, theirs) = (model.forward(&batch).unwrap(), &expected[llm.trim_end_matches("_fused")]);
        assert_eq!(ours.dims(), theirs.dims());
        let worst = values(&ours).iter().zip(values(theirs)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-4, "{llm}: {worst}");
    }
}

/// A sample of an image of 2x2 tokens between text.
fn with_image(shade: f32) -> SubSample {
    let grid = ImageGrid { t: 1, h: 4, w: 4 };
    let rows = (0..16 * 12).map(|it| shade * (it as f32 * 0.7).sin()).collect();
    let image = ImagePatches::new(rows, grid, 2).unwrap();
    let ids = [3, 52, 50, 50, 50, 50, 53, 9].to_vec();
    SubSample { images: vec![image], ..SubSample::text(ids) }
}

#[test]
fn the_merged_model_sees_images_and_has_the_settings_of_its_tower() {
    for (llm, dtype) in [("dense", DType::F32), ("moe", DType::BF16)] {
        let (_folder, out) = merge(&MergeOptions { dtype, ..options(llm) });
        let config = ModelConfig::read(&out).unwrap();
        assert_eq!(config.vision.layer_norm_eps, 3e-5);
        assert_eq!(config.vision.rope_theta, 5000.0);
        assert_eq!(config.vision.frame_windows_size, 2);
        assert_eq!(config.vision.spatial_merge_size, 2);
        assert_eq!((config.image_token_id, config.vision_end_token_id), (50, 53));
        assert_eq!(config.text.rope.theta, 5e6);
        assert_eq!(config.text.moe.is_some(), llm == "moe");
        let model = LlavaOnevision2::read(&out, DType::F32, &Device::Cpu).unwrap();
        let logits = |shade| {
            let batch = PackedBatch::pack(&[with_image(shade)]).unwrap();
            values(&model.forward(&batch).unwrap())
        };
        let (light, dark) = (logits(1.0), logits(-0.5));
        assert!(light.iter().all(|value| value.is_finite()));
        assert_ne!(light, dark);
    }
}

#[test]
fn a_torch_file_with_fused_projections_makes_the_same_bytes() {
    let torch = fixture("torch_vit/checkpoint.pt");
    let dtype = DType::BF16;
    let (_one, out) = merge(&MergeOptions { dtype, ..options("dense") });
    let (_two, from_torch) = merge(&MergeOptions { dtype, vit: torch, ..options("dense") });
    // One rounded here, the other by torch.
    assert!(contents(&out) == contents(&from_torch));
}

#[test]
fn without_an_adapter_the_merger_gets_values_from_the_seed() {
    let without = |seed| MergeOptions { adapter: None, seed, ..options("dense") };
    let plan = MergePlan::new(&without(1)).unwrap();
    assert_eq!(plan.report().initialised.len(), 6);
    assert_eq!(plan.report().uncovered_model_params, 6);
    assert_eq!(plan.report().problems, []);
    let (_one, first) = merge(&without(1));
    let (_again, again) = merge(&without(1));
    let (_two, second) = merge(&without(2));
    assert!(contents(&first) == contents(&again));
    let (first, second) = (load_all(&first), load_all(&second));
    for name in ["mlp.0.weight", "mlp.0.bias", "mlp.2.weight", "mlp.2.bias"] {
        let name = format!("model.visual.merger.{name}");
        assert_ne!(values(&first[&name]), values(&second[&name]), "{name}");
        // torch's bound: one over the root of the inputs, a block of 2x2 patches of width 32.
        let largest = values(&first[&name]).iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        assert!(largest <= 1.0 / 128_f32.sqrt() && largest > 0.05, "{name}: {largest}");
    }
    assert!(values(&first["model.visual.merger.ln_q.weight"]).iter().all(|value| *value == 1.0));
    assert!(values(&first["model.visual.merger.ln_q.bias"]).iter().all(|value| *value == 0.0));
    assert_equal("lm_head.weight", &first["lm_head.weight"], &second["lm_head.weight"]);
}

#[test]
fn syncing_changes_nothing_and_who_looks_sees_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let plan = MergePlan::new(&options("dense")).unwrap();
    let [plain, synced] = [false, true].map(|fsync| WriteOptions { fsync, ..WriteOptions::default() });
    let [one, other] = ["one", "deeper/other"].map(|name| folder.path().join(name));
    plan.write(&one, &plain).unwrap();
    plan.write(&other, &synced).unwrap();
    let bytes = plan.report().bytes;
    assert_eq!(plain.progress.now(), ProgressNow { what: "writing", done: bytes, total: Some(bytes) });
    let files: u64 = contents(&other).values().map(|bytes| bytes.len() as u64).sum();
    assert_eq!(synced.progress.now(), ProgressNow { what: "syncing", done: files, total: Some(files) });
    let read = |folder: &Path| std::fs::read(folder.join("model.safetensors")).unwrap();
    assert!(read(&one) == read(&other));
    let compared = Progress::default();
    plan.compare(&one, &compared).unwrap();
    assert_eq!(compared.now(), ProgressNow { what: "comparing tensors", done: bytes, total: Some(bytes) });
}

#[test]
fn small_files_have_an_index_that_is_read() {
    let (_one, one_file) = merge(&options("moe"));
    let (_folder, out) = merge(&MergeOptions { shard_bytes: 30_000, ..options("moe") });
    let index: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("model.safetensors.index.json")).unwrap()).unwrap();
    let files: std::collections::BTreeSet<&str> =
        index["weight_map"].as_object().unwrap().values().map(|file| file.as_str().unwrap()).collect();
    assert!(
        files.len() > 4
            && files.iter().all(|file| file.ends_with(&format!("-of-{:05}.safetensors", files.len())))
    );
    let (all, expected) = (load_all(&out), load_all(&one_file));
    assert_eq!(all.len(), expected.len());
    all.iter().for_each(|(name, tensor)| assert_equal(name, tensor, &expected[name]));
    let bytes: usize = all.values().map(|tensor| tensor.elem_count() * 4).sum();
    assert_eq!(index["metadata"]["total_size"], bytes);
    LlavaOnevision2::read(&out, DType::F32, &Device::Cpu).unwrap();
}

#[test]
fn files_of_the_processor_come_along_with_this_models_numbers() {
    let (_folder, out) = merge(&MergeOptions { dtype: DType::BF16, ..options("moe") });
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(out.join(name)).unwrap()).unwrap()
    };
    let images = json("preprocessor_config.json");
    assert_eq!(images["temporal_patch_size"], 1);
    assert_eq!(images["max_pixels"], 4_000_000);
    assert_eq!(images["size"]["longest_edge"], 4_000_000);
    assert_eq!(images["size"]["shortest_edge"], 3136);
    assert_eq!((&images["merge_size"], &images["patch_size"]), (&2.into(), &2.into()));
    let config = json("config.json");
    assert_eq!(config["model_type"], "llava_onevision2_moe");
    assert_eq!(config["dtype"], "bfloat16");
    assert_eq!(config["output_router_logits"], true);
    assert_eq!(
        config["auto_map"]["AutoConfig"],
        "configuration_llava_onevision2_moe.LlavaOnevision2MoeConfig"
    );
    assert_eq!(config["tie_word_embeddings"], false);
    assert_eq!(config["text_config"]["tie_word_embeddings"], false);
    assert_eq!(config["vision_config"]["out_hidden_size"], 24);
    assert_eq!(config["vision_config"]["use_head"], false);
    let generation = json("generation_config.json");
    assert_eq!((&generation["eos_token_id"], &generation["pad_token_id"]), (&54.into(), &55.into()));
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        assert_eq!(
            std::fs::read(out.join(name)).unwrap(),
            std::fs::read(fixture("processor").join(name)).unwrap()
        );
    }
    // The variant's own source is not there, the other's is carried as a file of the processor.
    let notes = MergePlan::new(&options("moe")).unwrap().report().notes.join("\n");
    assert!(notes.contains("no source has modeling_llava_onevision2_moe.py"), "{notes}");
    assert!(out.join("configuration_llava_onevision2.py").is_file());
}

#[test]
fn later_files_win_where_there_is_no_index() {
    let (_folder, vit) = changed("vit", |_| ());
    let other = Tensor::ones(32, DType::F32, &Device::Cpu).unwrap();
    let more = Tensors::from([("layernorm_pre.bias".to_owned(), other.clone())]);
    candle_core::safetensors::save(&more, vit.join("patch.safetensors")).unwrap();
    let options = MergeOptions { vit, ..options("dense") };
    let notes = MergePlan::new(&options).unwrap().report().notes.join("\n");
    assert!(notes.contains("layernorm_pre.bias lies in several files"), "{notes}");
    let (_out, out) = merge(&options);
    assert_equal("bias", &load_all(&out)["model.visual.layernorm_pre.bias"], &other);
}

/// A decoder whose embedding and head, in one file, have 5 MB each.
fn large_vocabulary() -> (TempDir, PathBuf) {
    let rows = 50_000;
    let (folder, llm) = changed("dense", |all| {
        let values: Vec<f32> = (0..rows * 24).map(|it| (it as f32).sqrt()).collect();
        let head = Tensor::from_vec(values, (rows, 24), &Device::Cpu).unwrap();
        all.insert("model.embed_tokens.weight".into(), (&head * -1.0).unwrap());
        all.insert("lm_head.weight".into(), head);
    });
    let config = std::fs::read_to_string(llm.join("config.json")).unwrap();
    let config = config.replace(r#""vocab_size": 64"#, &format!(r#""vocab_size": {rows}"#));
    std::fs::write(llm.join("config.json"), config).unwrap();
    (folder, llm)
}

#[test]
fn threads_that_read_one_source_make_the_same_bytes() {
    let (_folder, llm) = large_vocabulary();
    let options = MergeOptions { llm, shard_bytes: 10_000, ..options("dense") };
    let all = |threads| {
        let (_folder, out) = in_threads(threads, || merge(&options));
        contents(&out)
    };
    let expected = all(1);
    assert!(expected.len() > 10);
    for _ in 0..20 {
        assert!(all(8) == expected);
    }
}

#[test]
fn tensors_of_many_chunks_are_whole() {
    let (_folder, llm) = large_vocabulary();
    let expected = load_all(&llm);
    for dtype in [DType::BF16, DType::F32] {
        let options = MergeOptions { llm: llm.clone(), dtype, ..options("dense") };
        let (_out, out) = merge(&options);
        let merged = load_all(&out);
        for (from, to) in [
            ("lm_head.weight", "lm_head.weight"),
            ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight"),
        ] {
            assert_equal(to, &merged[to], &expected[from].to_dtype(dtype).unwrap());
        }
        let done = MergePlan::new(&options).unwrap().compare(&out, &Progress::default()).unwrap();
        assert_eq!((done.equal, done.unknown, done.differences), (47, 0, Vec::new()));
    }
}

#[test]
fn a_tower_of_root_mean_square_norms_has_no_biases_of_norms() {
    let (_folder, vit) = changed("vit", |all| {
        all.retain(|name, _| !(name.contains("norm") && name.ends_with(".bias")));
    });
    let config = std::fs::read_to_string(vit.join("config.json")).unwrap();
    std::fs::write(vit.join("config.json"), config.replace("\"layer_norm\"", "\"rms_norm\"")).unwrap();
    let (_out, out) = merge(&MergeOptions { vit, ..options("dense") });
    let model = LlavaOnevision2::read(&out, DType::F32, &Device::Cpu).unwrap();
    assert!(model.config().vision.rms_norm);
    let logits = model.forward(&PackedBatch::pack(&[with_image(1.0)]).unwrap()).unwrap();
    assert!(values(&logits).iter().all(|value| value.is_finite()));
}
