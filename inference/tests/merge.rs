//! Merging the tiny sources of `fixtures/merge` (made by its `make.py`), whole and damaged.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use candle_core::{DType, Device, Tensor};
use packd_contracts::ImageGrid;
use packd_inference::merge::{MergeOptions, MergePlan, ProblemKind, SHARD_BYTES, Variant};
use packd_inference::{ImagePatches, LlavaOnevision2, ModelConfig, PackedBatch, SubSample};
use tempfile::TempDir;

/// The text whose logits transformers has computed.
const PROMPT: [u32; 8] = [3, 17, 8, 41, 0, 29, 5, 63];
const DECODERS: [&str; 4] = ["dense", "dense_tied", "moe", "moe_fused"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/merge").join(name)
}

fn options(llm: &str) -> MergeOptions {
    MergeOptions {
        vit: fixture("vit"),
        llm: fixture(llm),
        processor: fixture("processor"),
        adapter: Some(fixture("adapter.safetensors")),
        variant: None,
        spatial_merge_size: 2,
        dtype: DType::F32,
        seed: 0,
        shard_bytes: SHARD_BYTES,
    }
}

fn merge(options: &MergeOptions) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("merged");
    MergePlan::new(options).unwrap().write(&out).unwrap();
    (folder, out)
}

type Tensors = HashMap<String, Tensor>;

fn load(path: &Path) -> Tensors {
    candle_core::safetensors::load(path, &Device::Cpu).unwrap()
}

/// All safetensors of a folder.
fn load_all(folder: &Path) -> Tensors {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|it| it == "safetensors"))
        .flat_map(|it| load(&it))
        .collect()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_equal(name: &str, ours: &Tensor, theirs: &Tensor) {
    assert_eq!(ours.dims(), theirs.dims(), "{name}");
    assert!(values(ours) == values(theirs), "{name} differs");
}

/// Files of a folder and their bytes.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())).collect()
}

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

/// A copy of the tower, the adapter or a decoder that was changed.
fn changed(name: &str, change: impl FnOnce(&mut Tensors)) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let source = fixture(name);
    let copy = folder.path().join(name);
    let mut tensors = if source.is_dir() { load_all(&source) } else { load(&source) };
    change(&mut tensors);
    if source.is_dir() {
        std::fs::create_dir(&copy).unwrap();
        std::fs::copy(source.join("config.json"), copy.join("config.json")).unwrap();
        candle_core::safetensors::save(&tensors, copy.join("model.safetensors")).unwrap();
    } else {
        candle_core::safetensors::save(&tensors, &copy).unwrap();
    }
    (folder, copy)
}

/// Sources with a fault: what writing says, after nothing was left.
fn refusal(options: &MergeOptions) -> String {
    let folder = tempfile::tempdir().unwrap();
    let done = MergePlan::new(options).and_then(|plan| plan.write(&folder.path().join("merged")));
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

fn rename(tensors: &mut Tensors, from: &str, to: &str) {
    let tensor = tensors.remove(from).unwrap();
    tensors.insert(to.into(), tensor);
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
    merge(&MergeOptions { vit, dtype: DType::BF16, ..options("dense") });
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

#[test]
fn the_caller_and_the_decoder_must_agree() {
    let error = refusal(&MergeOptions { variant: Some(Variant::Moe), ..options("dense") });
    assert!(error.contains("this decoder is dense, --variant says moe"), "{error}");
    let plan = MergePlan::new(&MergeOptions { spatial_merge_size: 3, ..options("dense") }).unwrap();
    // An adapter for blocks of another size.
    let kinds: Vec<_> = plan.report().problems.iter().map(|problem| problem.kind).collect();
    assert_eq!(kinds, [ProblemKind::ShapeMismatch; 3]);
}

fn packd_model(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_packd-model")).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Arguments of the command line for the tiny sources.
fn arguments<'a>(paths: &'a [String; 3], more: &[&'a str]) -> Vec<&'a str> {
    let [vit, llm, processor] = paths;
    [&["--vit", vit, "--llm", llm, "--processor", processor], more].concat()
}

#[test]
fn dry_run_counts_and_fails_when_anything_is_off() {
    let paths = ["vit", "dense", "processor"].map(|name| fixture(name).display().to_string());
    let adapter = fixture("adapter.safetensors").display().to_string();
    let args = arguments(&paths, &["--variant", "dense", "--dry-run"]);
    let good = packd_model(&[&["merge"], args.as_slice(), &["--adapter", &adapter]].concat());
    let out = text(&good.stdout);
    assert_eq!(good.status.code(), Some(0), "{good:?}");
    let counts = "missing_in_model: 0\nshape_mismatch: 0\nuncovered_model_params: 0\n[ViT] loaded=27 missing_in_model=0 \
                  shape_mismatch=0\n[Adapter] loaded=6 missing_in_model=0 shape_mismatch=0\n[LLM] loaded=14";
    assert!(out.starts_with(counts), "{out}");
    let without = packd_model(&[&["merge"], args.as_slice()].concat());
    assert_eq!(without.status.code(), Some(0), "{without:?}");
    assert!(text(&without.stdout).contains("uncovered_model_params: 6\n"), "{without:?}");

    let (_folder, vit) = changed("vit", |all| {
        rename(all, "layernorm_pre.weight", "typo");
        all.remove("encoder._orig_mod.layers.1.self_attn.v_proj.bias");
    });
    let paths = [vit.display().to_string(), paths[1].clone(), paths[2].clone()];
    let args = arguments(&paths, &["--dry-run", "--json"]);
    let bad = packd_model(&[&["merge"], args.as_slice()].concat());
    assert_eq!(bad.status.code(), Some(1), "{bad:?}");
    let report: serde_json::Value = serde_json::from_slice(&bad.stdout).unwrap();
    assert_eq!(report["missing_in_model"], 1);
    assert_eq!(report["uncovered_model_params"], 7);
    let kinds: Vec<_> =
        report["problems"].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["missing_in_model", "incomplete", "uncovered"]);
}

#[test]
fn the_command_merges_once_and_validates() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a/merged").display().to_string();
    let paths = ["vit", "moe", "processor"].map(|name| fixture(name).display().to_string());
    let args = [&["merge"], arguments(&paths, &["--out", &out, "--seed", "5"]).as_slice()].concat();
    let done = packd_model(&args);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(text(&done.stdout).contains("(moe)"), "{done:?}");
    let again = packd_model(&args);
    assert_eq!(again.status.code(), Some(73), "{again:?}");
    assert!(text(&again.stderr).contains("it exists"), "{again:?}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let plain = folder.path().join("plain");
        std::fs::write(&plain, "").unwrap();
        assert_eq!(mode(&Path::new(&out).join("model.safetensors")), mode(&plain));
        assert_eq!(mode(Path::new(&out)), mode(folder.path().join("a").as_path()));
    }

    let args = [&["validate"], arguments(&paths, &["--ckpt", &out]).as_slice()].concat();
    let same = packd_model(&args);
    assert_eq!(same.status.code(), Some(0), "{same:?}");
    assert!(text(&same.stdout).contains("6 tensors of the merger have no source"), "{same:?}");
    // A setting that got lost, and queries and keys of one layer swapped.
    let config = Path::new(&out).join("config.json");
    let text_of_it = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text_of_it.replace("\"rope_theta\": 5000.0", "\"rope_theta\": 10000.0")).unwrap();
    let path = Path::new(&out).join("model.safetensors");
    let mut tensors = load(&path);
    let name = "model.visual.encoder.layers.0.self_attn.qkv.weight";
    let thirds = tensors[name].chunk(3, 0).unwrap();
    let swapped = Tensor::cat(&[&thirds[1], &thirds[0], &thirds[2]], 0).unwrap();
    tensors.insert(name.into(), swapped);
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let differs = packd_model(&args);
    assert_eq!(differs.status.code(), Some(1), "{differs:?}");
    let said = text(&differs.stdout);
    assert!(said.contains(&format!("differs {name}")), "{said}");
    let setting = "differs config.json vision_config: rope_theta: 10000.0 (the sources: rope_theta: 5000.0)";
    assert!(said.contains(setting), "{said}");
    assert!(said.contains("; 2 differences"), "{said}");
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
fn tensors_of_many_chunks_are_whole() {
    let rows = 50_000;
    let (_folder, llm) = changed("dense", |all| {
        let values: Vec<f32> = (0..rows * 24).map(|it| (it as f32).sqrt()).collect();
        let head = Tensor::from_vec(values, (rows, 24), &Device::Cpu).unwrap();
        all.insert("model.embed_tokens.weight".into(), (&head * -1.0).unwrap());
        all.insert("lm_head.weight".into(), head);
    });
    let config = std::fs::read_to_string(llm.join("config.json")).unwrap();
    let config = config.replace(r#""vocab_size": 64"#, &format!(r#""vocab_size": {rows}"#));
    std::fs::write(llm.join("config.json"), config).unwrap();
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
        let done = MergePlan::new(&options).unwrap().compare(&out).unwrap();
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

#[test]
fn the_wrong_tower_does_not_fill_the_screen() {
    let (_folder, vit) = changed("vit", |all| {
        *all = all.drain().map(|(name, tensor)| (format!("vision_model.{name}"), tensor)).collect();
    });
    let error = refusal(&MergeOptions { vit, ..options("dense") });
    assert_eq!(error.lines().count(), 22, "{error}");
    assert!(error.contains("more; --dry-run lists them"), "{error}");
}
