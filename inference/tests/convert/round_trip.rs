//! There and back, and from any layout to any other.

use std::path::Path;

use packd_inference::convert::{ConvertTo, Format, HfOptions, PatchEmbed, Source, SourceOptions, convert};
use packd_inference::layout::{AskedDegrees, Checkpoint};
use packd_inference::torch_file::TorchFile;
use packd_inference::{LlavaOnevision2, ModelConfig, ProgressNow, Weights, WriteOptions};

use packd_inference::candle_core::{DType, Device};
use packd_inference::convert::McoreOptions;
use safetensors::Dtype;

use crate::support::*;

/// Layouts of the tiny models: all degrees, splits with an empty first stage, forms of the patch embedding and of
/// experts.
fn layouts(model: &str) -> Vec<McoreOptions> {
    let moe = model == "tiny_moe";
    let mut all = Vec::new();
    for tp in [1, 2] {
        for pp in [1, 2] {
            for ep in if moe { vec![1, 2] } else { vec![1] } {
                all.push(mcore(tp, pp, ep));
            }
        }
    }
    let ep = if moe { 3 } else { 1 };
    all.push(split(1, &[0, 2], 1));
    all.push(McoreOptions { patch_embed: PatchEmbed::Conv2d, ..split(2, &[0, 1, 1], ep) });
    all.push(McoreOptions { patch_embed: PatchEmbed::Linear, vocab_multiple: 128, ..split(2, &[2, 0], 1) });
    if moe {
        all.push(McoreOptions { etp: Some(1), ..mcore(2, 1, 2) });
    }
    all
}

#[test]
fn every_layout_from_every_other_and_back() {
    for model in ["tiny_dense", "tiny_moe"] {
        let folder = tempfile::tempdir().unwrap();
        let (hf, layouts) = (tiny(model), layouts(model));
        let weights = std::fs::read(hf.join("model.safetensors")).unwrap();
        let from_hf = |number: usize| folder.path().join(format!("from_hf_{number}"));
        for (number, options) in layouts.iter().enumerate() {
            let mcore = from_hf(number);
            to_mcore(&hf, &mcore, options).unwrap();
            let Checkpoint::Torch(layout) = Checkpoint::read(&mcore, &AskedDegrees::default()).unwrap()
            else {
                panic!("no torch checkpoint")
            };
            assert_eq!(layout.problems, [""; 0], "{options:?}");
            assert_eq!((layout.degrees.tp, layout.degrees.ep), (options.tp, options.ep));
            let back = folder.path().join("back");
            let report = to_hf(&mcore, &hf, &back).unwrap();
            // The tiny models are files of the safetensors library: even the header is the same.
            assert!(std::fs::read(back.join("model.safetensors")).unwrap() == weights, "{options:?}");
            assert_eq!(report.carried, ["config.json", "generation_config.json"]);
            assert_eq!(tree(&back).len(), 3);
            std::fs::remove_dir_all(&back).unwrap();
        }
        for (from, of) in layouts.iter().enumerate() {
            for (to, options) in layouts.iter().enumerate() {
                let target = folder.path().join("resharded");
                reshard(&from_hf(from), &hf, &target, options).unwrap();
                // The whole files: names, args, tensors.
                assert!(tree(&target) == tree(&from_hf(to)), "{of:?} to {options:?}");
                std::fs::remove_dir_all(&target).unwrap();
            }
        }
    }
}

#[test]
fn syncing_changes_nothing_and_who_looks_sees_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let hf = tiny("tiny_moe");
    let path = |name: &str| folder.path().join(name);
    let from =
        |dir: &Path| SourceOptions { dir: dir.to_owned(), hf: Some(hf.clone()), ..SourceOptions::default() };
    let to = ConvertTo::Mcore(mcore(2, 1, 2));
    let [plain, synced] = [false, true].map(|fsync| WriteOptions { fsync, ..WriteOptions::default() });
    let report = convert(&from(&hf), &path("plain"), &to, &plain).unwrap();
    let written = |bytes| ProgressNow { what: "writing", done: bytes, total: Some(bytes) };
    assert_eq!(plain.progress.now(), written(report.bytes));
    convert(&from(&hf), &path("deeper/synced"), &to, &synced).unwrap();
    let files: u64 = tree(&path("deeper/synced")).values().map(|bytes| bytes.len() as u64).sum();
    assert_eq!(synced.progress.now(), ProgressNow { what: "syncing", done: files, total: Some(files) });
    assert!(tree(&path("plain")) == tree(&path("deeper/synced")));
    let to = ConvertTo::Hf(HfOptions { shard_bytes: 400_000 });
    let report = convert(&from(&path("plain")), &path("back"), &to, &plain).unwrap();
    assert_eq!(plain.progress.now(), written(report.bytes));
    convert(&from(&path("plain")), &path("synced"), &to, &synced).unwrap();
    assert!(tree(&path("back")) == tree(&path("synced")));
}

#[test]
fn the_bytes_are_the_same_whatever_the_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, path) = (tiny("tiny_moe"), |name: &str| folder.path().join(name));
    let run = |threads: usize| {
        let (ranks, other, back) = (
            path(&format!("{threads}")),
            path(&format!("{threads}-other")),
            path(&format!("{threads}-back")),
        );
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            to_mcore(&hf, &ranks, &mcore(2, 2, 2)).unwrap();
            reshard(&ranks, &hf, &other, &mcore(1, 2, 2)).unwrap();
            let from = SourceOptions { dir: other.clone(), hf: Some(hf.clone()), ..SourceOptions::default() };
            let to = ConvertTo::Hf(HfOptions { shard_bytes: 50_000 });
            convert(&from, &back, &to, &WriteOptions::default()).unwrap();
        });
        [ranks, other, back].map(|dir| tree(&dir))
    };
    let expected = run(1);
    assert!(expected[2].len() > 10);
    assert!(run(8) == expected);
}

#[test]
fn several_files_with_an_index() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, mcore_dir) = (tiny("tiny_moe"), folder.path().join("mcore"));
    to_mcore(&hf, &mcore_dir, &mcore(2, 1, 2)).unwrap();
    let from = SourceOptions { dir: mcore_dir.clone(), hf: Some(hf.clone()), ..SourceOptions::default() };
    let back = folder.path().join("back");
    let report =
        convert(&from, &back, &ConvertTo::Hf(HfOptions { shard_bytes: 400_000 }), &WriteOptions::default())
            .unwrap();
    assert!(report.files > 3, "{report:?}");
    let index = std::fs::read_to_string(back.join("model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    assert_eq!(index["metadata"]["total_size"], report.bytes);
    let original = read_safetensors(&hf.join("model.safetensors"));
    assert_eq!(index["weight_map"].as_object().unwrap().len(), original.len());
    for (name, file) in index["weight_map"].as_object().unwrap() {
        let file = back.join(file.as_str().unwrap());
        assert_eq!(read_safetensors(&file)[name], original[name], "{name}");
    }
    // Both readers of this crate take them, and no index stands among the copied files twice.
    assert!(!report.carried.iter().any(|name| name.contains("index")));
    let weights = Weights::read(&back, DType::F32, &Device::Cpu).unwrap();
    let config = ModelConfig::read(&back).unwrap();
    weights.get("lm_head.weight", &[config.text.vocab_size, config.text.hidden_size]).unwrap();
    let source = Source::open(&SourceOptions { dir: back, ..SourceOptions::default() }).unwrap();
    assert_eq!(source.format(), Format::Hf);
    assert_eq!(source.names().count(), original.len());
}

#[test]
fn a_source_is_read_by_hugging_face_names_whatever_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, mcore_dir) = (tiny("tiny_dense"), folder.path().join("mcore"));
    to_mcore(&hf, &mcore_dir, &split(2, &[1, 1], 1)).unwrap();
    let options = SourceOptions { dir: mcore_dir, hf: Some(hf.clone()), ..SourceOptions::default() };
    let source = Source::open(&options).unwrap();
    let original = read_safetensors(&hf.join("model.safetensors"));
    assert_eq!(source.format(), Format::Mcore);
    assert_eq!(source.names().count(), original.len());
    for (name, shape) in source.names() {
        assert_eq!(shape, original[name].1);
        assert_eq!(source.shape(name), Some(shape));
        assert!(source.bytes(name).unwrap().unwrap() == original[name].2, "{name}");
    }
    assert_eq!(source.bytes("lm_head.bias").unwrap(), None);

    // A model can be made of it: what it computes with are the same tensors.
    let shapes: Vec<(String, Vec<usize>)> =
        source.names().map(|(name, shape)| (name.to_owned(), shape.to_vec())).collect();
    let of_ranks = Weights::of_source(source, DType::F32, &Device::Cpu);
    let of_files = Weights::read(&hf, DType::F32, &Device::Cpu).unwrap();
    for (name, shape) in shapes {
        let [one, other] = [&of_ranks, &of_files].map(|weights| {
            weights.get(&name, &shape).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        });
        assert!(one == other, "{name}");
    }
    assert!(of_ranks.get("lm_head.bias", &[512]).unwrap_err().to_string().contains("lm_head.bias"));
    LlavaOnevision2::new(ModelConfig::read(&hf).unwrap(), &of_ranks).unwrap();
}

#[test]
fn tensors_that_lie_by_columns_are_read_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (source, back) = (folder.path().join("mcore"), folder.path().join("back"));
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    let hf = tiny("tiny_moe");
    to_mcore(&hf, &one, &mcore(1, 2, 1)).unwrap();
    to_mcore(&hf, &source, &McoreOptions { etp: Some(1), ..mcore(2, 1, 2) }).unwrap();
    for rank in ["mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"] {
        let path = source.join("release").join(rank).join("model_optim_rng.pt");
        lay_by_columns(&path);
        let file = TorchFile::open(&path).unwrap();
        let model = file.model();
        let tensors = model.iter().filter_map(|(.., node)| node.as_tensor());
        assert!(tensors.filter(|info| !info.is_contiguous()).count() > 20);
    }
    to_hf(&source, &hf, &back).unwrap();
    let weights = |dir: &std::path::Path| std::fs::read(dir.join("model.safetensors")).unwrap();
    assert!(weights(&back) == weights(&hf));
    reshard(&source, &hf, &other, &mcore(1, 2, 1)).unwrap();
    assert!(tree(&one) == tree(&other));
}

#[test]
fn experts_named_as_for_grouped_gemm_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let (source, back) = (folder.path().join("mcore"), folder.path().join("back"));
    let hf = tiny("tiny_moe");
    to_mcore(&hf, &source, &mcore(2, 1, 2)).unwrap();
    for rank in ["mp_rank_00_000", "mp_rank_00_001", "mp_rank_01_000", "mp_rank_01_001"] {
        change_rank(&source.join("release").join(rank).join("model_optim_rng.pt"), |name, _, _| {
            if let Some((layer, rest)) = name.split_once("local_experts.") {
                let (expert, matrix) = rest.split_once('.').unwrap();
                *name = format!("{layer}{matrix}{expert}");
            }
        });
    }
    let Checkpoint::Torch(layout) = Checkpoint::read(&source, &AskedDegrees::default()).unwrap() else {
        panic!("no torch checkpoint")
    };
    assert_eq!((layout.stages[0].as_ref().unwrap().local_experts, layout.degrees.ep), (3, 2));
    to_hf(&source, &hf, &back).unwrap();
    let weights = |dir: &std::path::Path| std::fs::read(dir.join("model.safetensors")).unwrap();
    assert!(weights(&back) == weights(&hf));
}

#[test]
fn fused_experts_are_split() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, fused) = (tiny("tiny_moe"), folder.path().join("fused"));
    changed_hf(&hf, &fused, |tensors| {
        let norm = tensors["model.language_model.norm.weight"].clone();
        tensors.insert("model.language_model.rotary_emb.inv_freq".into(), norm);
        for layer in 0..2 {
            let name = format!("model.language_model.layers.{layer}.mlp.experts");
            let (mut gate_up, mut down) = (Vec::new(), Vec::new());
            for expert in 0..6 {
                let mut take =
                    |matrix: &str| tensors.remove(&format!("{name}.{expert}.{matrix}.weight")).unwrap().2;
                gate_up.extend(take("gate_proj"));
                gate_up.extend(take("up_proj"));
                down.extend(take("down_proj"));
            }
            tensors.insert(format!("{name}.gate_up_proj"), (Dtype::F32, vec![6, 96, 64], gate_up));
            tensors.insert(format!("{name}.down_proj"), (Dtype::F32, vec![6, 64, 48], down));
        }
    });
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    to_mcore(&hf, &one, &mcore(2, 2, 2)).unwrap();
    to_mcore(&fused, &other, &mcore(2, 2, 2)).unwrap();
    assert!(tree(&one) == tree(&other));
}

#[test]
fn dtypes_and_links_to_an_embedding_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let tied = path("tied");
    changed_hf(&tiny("tiny_dense"), &tied, |tensors| {
        tensors.remove("lm_head.weight");
        // Half of each element is a bf16 of half the bytes; what they mean is of no matter.
        for (dtype, _, bytes) in tensors.values_mut() {
            *dtype = Dtype::BF16;
            *bytes = bytes.chunks_exact(4).flat_map(|it| [it[2], it[3]]).collect();
        }
    });
    let config = std::fs::read_to_string(tied.join("config.json")).unwrap();
    let config = config.replace(r#""tie_word_embeddings": false"#, r#""tie_word_embeddings": true"#);
    std::fs::write(tied.join("config.json"), config).unwrap();
    for (name, options, heads) in [("one", mcore(2, 1, 1), 0), ("two", mcore(1, 2, 1), 1)] {
        to_mcore(&tied, &path(name), &options).unwrap();
        let of_last = if heads == 1 { "mp_rank_00_001" } else { "mp_rank_00" };
        let file = TorchFile::open(&path(name).join("release").join(of_last).join("model_optim_rng.pt"));
        let file = file.unwrap();
        let found = file.model().iter().filter(|(_, name, _)| name.contains("output_layer")).count();
        assert_eq!(found, heads);
        let back = path(&format!("{name}_back"));
        to_hf(&path(name), &tied, &back).unwrap();
        let both = [&tied, &back].map(|dir| read_safetensors(&dir.join("model.safetensors")));
        assert!(both[0] == both[1]);
    }
}

#[test]
fn as_many_experts_as_real_models_have() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, back) = (folder.path().join("hf"), folder.path().join("back"));
    changed_hf(&tiny("tiny_moe"), &hf, |tensors| {
        for layer in 0..2 {
            let layer = format!("model.language_model.layers.{layer}.mlp");
            for expert in 6..128 {
                for matrix in ["gate_proj", "up_proj", "down_proj"] {
                    let mut tensor = tensors[&format!("{layer}.experts.0.{matrix}.weight")].clone();
                    tensor.2[..4].copy_from_slice(&(expert as f32).to_le_bytes());
                    tensors.insert(format!("{layer}.experts.{expert}.{matrix}.weight"), tensor);
                }
            }
            let (_, shape, bytes) = tensors.get_mut(&format!("{layer}.gate.weight")).unwrap();
            shape[0] = 128;
            bytes.resize(128 * 64 * 4, 1);
        }
    });
    let config = std::fs::read_to_string(hf.join("config.json")).unwrap();
    let config = config.replace(r#""num_local_experts": 6"#, r#""num_local_experts": 128"#);
    std::fs::write(hf.join("config.json"), config).unwrap();
    let ranks = folder.path().join("mcore");
    to_mcore(&hf, &ranks, &mcore(2, 2, 8)).unwrap();
    to_hf(&ranks, &hf, &back).unwrap();
    // The header alone is longer than 64 KiB.
    let [one, other] = [&hf, &back].map(|dir| read_safetensors(&dir.join("model.safetensors")));
    assert!(one.len() > 700 && one == other);
}
