//! Every tensor that transformers 5.7 computes on two tiny models (f32, eager attention, CPU).
//!
//! `GOLDEN_ON_GPU=1` runs them on a GPU in bf16 instead (built with `--features cuda`), within what bf16 allows;
//! `GOLDEN_FOLDER` is where the golden files lie, when that is another machine.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use packd_contracts::ImageGrid;
use packd_inference::leak;
use packd_inference::{
    AttentionDomains, IGNORE, ImagePatches, LlavaOnevision2, ModelConfig, NoProbe, PackedBatch, Sampling,
    SubSample, Weights, YarnConfig, generate, token_losses, vision_windows,
};

/// Of any value, in f32 on the CPU.
const TOLERANCE: f32 = 2e-5;
/// In bf16, of the largest value of a tensor: its values have 8 bits, and errors add up over the layers.
const BF16_TOLERANCE: f32 = 0.05;

fn on_gpu() -> bool {
    std::env::var_os("GOLDEN_ON_GPU").is_some()
}

/// What a value may differ by from the tensor `expected`.
fn tolerance(expected: &Tensor) -> f32 {
    if !on_gpu() {
        return TOLERANCE;
    }
    let largest = expected.to_dtype(DType::F32).unwrap().abs().unwrap().max_all().unwrap();
    BF16_TOLERANCE * largest.to_scalar::<f32>().unwrap()
}

fn folder(model: &str) -> PathBuf {
    let all = std::env::var_os("GOLDEN_FOLDER").map(PathBuf::from);
    all.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")).join(model)
}

fn device() -> (DType, Device) {
    if on_gpu() { (DType::BF16, Device::new_cuda(0).unwrap()) } else { (DType::F32, Device::Cpu) }
}

fn read(model: &str) -> LlavaOnevision2 {
    let (dtype, device) = device();
    LlavaOnevision2::read(&folder(model), dtype, &device).unwrap()
}

/// One case: what went in and what came out.
struct Case {
    name: String,
    tensors: HashMap<String, Tensor>,
}

impl Case {
    fn read(model: &str, name: &str) -> Self {
        let path = folder(model).join("cases").join(format!("{name}.safetensors"));
        Self {
            name: format!("{model} {name}"),
            tensors: candle_core::safetensors::load(path, &Device::Cpu).unwrap(),
        }
    }

    fn get(&self, name: &str) -> &Tensor {
        &self.tensors[name]
    }

    fn numbers(&self, name: &str) -> Vec<i64> {
        self.get(name).to_dtype(DType::I64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    /// The sub-samples of a row whose boundaries are `cu_seqlens`; images go with their tokens.
    fn sub_samples(&self, config: &ModelConfig, cu_seqlens: &[u32]) -> Vec<SubSample> {
        let ids: Vec<u32> = self.numbers("in.input_ids").iter().map(|&id| id as u32).collect();
        let mut images = self.images(config).into_iter();
        let sub = |ends: &[u32]| {
            let mut sub = SubSample::text(ids[ends[0] as usize..ends[1] as usize].to_vec());
            let block = config.vision.spatial_merge_size.pow(2) as u32;
            let mut slots =
                sub.input_ids.iter().filter(|&&id| id == config.image_token_id).count() as u32 * block;
            while slots > 0 {
                let image = images.next().unwrap();
                slots -= image.grid().patches();
                sub.images.push(image);
            }
            sub
        };
        let subs = cu_seqlens.windows(2).map(sub).collect();
        assert!(images.next().is_none(), "{}: an image was left over", self.name);
        subs
    }

    fn images(&self, config: &ModelConfig) -> Vec<ImagePatches> {
        let Some(rows) = self.tensors.get("in.pixel_values") else { return Vec::new() };
        let mut rows = rows.to_vec2::<f32>().unwrap().into_iter();
        let mut positions = self.numbers("in.patch_positions").into_iter().map(|it| it as u32);
        let image = |grid: &[i64]| {
            let grid = ImageGrid { t: grid[0] as u32, h: grid[1] as u32, w: grid[2] as u32 };
            let patches = grid.patches() as usize;
            let rows = rows.by_ref().take(patches).flatten().collect();
            let places: Vec<u32> = positions.by_ref().take(3 * patches).collect();
            let places: Vec<[u32; 3]> = places.chunks(3).map(|it| it.try_into().unwrap()).collect();
            ImagePatches::with_positions(rows, grid, places).unwrap()
        };
        let images: Vec<_> = self.numbers("in.image_grid_thw").chunks(3).map(image).collect();
        let grids: Vec<_> = images.iter().map(ImagePatches::grid).collect();
        let windows = vision_windows(&grids, config.vision.frame_windows_size).unwrap();
        if self.tensors.contains_key("out.vit.cu_seqlens") {
            let expected: Vec<u32> = self.numbers("out.vit.cu_seqlens").iter().map(|&it| it as u32).collect();
            assert_eq!(windows.cu_seqlens(), expected);
        }
        images
    }
}

fn largest_difference(found: &Tensor, expected: &Tensor) -> f32 {
    let flat = |tensor: &Tensor| {
        let tensor = tensor.to_dtype(DType::F32).unwrap().to_device(&Device::Cpu).unwrap();
        tensor.flatten_all().unwrap()
    };
    let (found, expected) = (flat(found), flat(expected));
    assert_eq!(found.dims(), expected.dims());
    (found - expected).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
}

/// The length of the difference over that of `expected`.
fn relative_error(found: &Tensor, expected: &Tensor) -> f32 {
    let flat = |tensor: &Tensor| {
        let tensor = tensor.to_dtype(DType::F32).unwrap().to_device(&Device::Cpu).unwrap();
        tensor.flatten_all().unwrap()
    };
    let length = |tensor: Tensor| tensor.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap().sqrt();
    length((flat(found) - flat(expected)).unwrap()) / length(flat(expected))
}

/// The name of an intermediate in the golden files.
fn golden_name(name: &str) -> String {
    let name = name.replace("router.logits", "router.0").replace("router.weights", "router.1");
    format!("out.{}", name.replace("router.experts", "router.2"))
}

/// Runs a pack and compares every tensor that was written down; returns how many.
fn compare(model: &LlavaOnevision2, case: &Case, cu_seqlens: &[u32], rows: Option<&[u32]>) -> usize {
    let batch = PackedBatch::pack(&case.sub_samples(model.config(), cu_seqlens)).unwrap();
    let mut seen = HashMap::new();
    let mut probe = |name: &str, tensor: &Tensor| {
        seen.insert(golden_name(name), tensor.clone());
    };
    let hidden = model.hidden_states(&batch, &mut probe).unwrap();
    seen.insert("out.logits".into(), model.logits(&hidden).unwrap());
    let positions: Vec<i64> = batch.domains().positions().iter().map(|&place| i64::from(place)).collect();
    let mut compared = 0;
    for (name, expected) in &case.tensors {
        if !name.starts_with("out.") || name == "out.vit.cu_seqlens" || name == "out.logits_leaky_full_causal"
        {
            continue;
        }
        let mut expected = expected.clone();
        if name.starts_with("out.lm.") || name == "out.logits" {
            // [batch, tokens, …] as one row, without padding.
            let dims = expected.dims().to_vec();
            if !name.contains("router") {
                expected = expected.reshape([&[dims[0] * dims[1]], &dims[2..]].concat()).unwrap();
            }
            if let Some(rows) = rows {
                expected = expected.index_select(&Tensor::new(rows, &Device::Cpu).unwrap(), 0).unwrap();
            }
        }
        if name == "out.lm.position_ids" {
            assert_eq!(expected.to_vec1::<i64>().unwrap(), positions, "{}", case.name);
        } else {
            let found = seen.get(name).unwrap_or_else(|| panic!("{}: {name} is not computed", case.name));
            if on_gpu() && model.config().text.moe.is_some() {
                // Where two experts are nearly as likely, bf16 chooses otherwise: some tokens are others altogether.
                let off = relative_error(found, &expected);
                assert!(off < 0.1 || name.ends_with("router.2"), "{} {name}: off by {off}", case.name);
                compared += 1;
                continue;
            }
            let (difference, allowed) = (largest_difference(found, &expected), tolerance(&expected));
            assert!(
                difference <= allowed,
                "{} {name}: differs by {difference}, {allowed} allowed",
                case.name
            );
        }
        compared += 1;
    }
    compared
}

#[test]
fn every_tensor_of_every_case() {
    let mut compared = 0;
    for (name, cases) in [
        ("tiny_dense", &["case1_one_image", "case2_two_images", "case3_text_only"][..]),
        ("tiny_dense", &["case5a_frames_rows", "case5b_frames_one_row"]),
        ("tiny_moe", &["case1_one_image", "case3_text_only", "case5a_frames_rows"]),
    ] {
        let model = read(name);
        for case in cases {
            let case = Case::read(name, case);
            let tokens = case.get("in.input_ids").elem_count() as u32;
            compared += compare(&model, &case, &[0, tokens], None);
        }
    }
    // Two rows, the second with four pads before it.
    let rows: Vec<u32> = (0..12).chain(16..24).collect();
    let mut case = Case::read("tiny_dense", "case3b_left_pad_batch");
    let ids = case.get("in.input_ids").flatten_all().unwrap();
    let ids = ids.index_select(&Tensor::new(rows.as_slice(), &Device::Cpu).unwrap(), 0).unwrap();
    case.tensors.insert("in.input_ids".into(), ids);
    compared += compare(&read("tiny_dense"), &case, &[0, 12, 20], Some(&rows));
    for name in ["tiny_dense", "tiny_moe"] {
        let (model, case) = (read(name), Case::read(name, "case4_packed"));
        let cu_seqlens: Vec<u32> = case.numbers("in.cu_seqlens").iter().map(|&it| it as u32).collect();
        compared += compare(&model, &case, &cu_seqlens, None);
    }
    assert!(compared > 120, "{compared}");
}

#[test]
fn yarn() {
    let mut config = ModelConfig::read(&folder("tiny_dense")).unwrap();
    config.text.rope.yarn = Some(YarnConfig {
        factor: 4.0,
        original_max_position_embeddings: 1024.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        attention_factor: 0.1 * 4_f64.ln() + 1.0,
    });
    let (dtype, device) = device();
    let weights = Weights::read(&folder("tiny_dense"), dtype, &device).unwrap();
    let model = LlavaOnevision2::new(config, &weights).unwrap();
    let case = Case::read("tiny_dense", "case6_yarn_text");
    assert_eq!(compare(&model, &case, &[0, 40], None), 1);
}

#[test]
fn greedy_tokens_and_loss() {
    for (name, greedy, loss) in [
        ("tiny_dense", [425, 125, 350, 161, 341, 267], 6.748_193),
        ("tiny_moe", [35, 33, 101, 335, 371, 35], 7.854_617),
    ] {
        let model = read(name);
        let case = Case::read(name, "case1_one_image");
        let mut sub = case.sub_samples(model.config(), &[0, 21]).remove(0);
        let mut streamed = Vec::new();
        let found = generate(&model, &sub, 6, &Sampling::GREEDY, |token| streamed.push(token)).unwrap();
        assert_eq!(streamed, found);
        assert!(found == greedy || on_gpu(), "{name}: {found:?}");
        sub.labels[..13].fill(IGNORE);
        let batch = PackedBatch::pack(&[sub]).unwrap();
        let hidden = model.hidden_states(&batch, &mut NoProbe).unwrap();
        let losses: Vec<f32> = token_losses(&model, &hidden, &batch).unwrap().into_iter().flatten().collect();
        assert_eq!(losses.len(), 8);
        let mean = losses.iter().sum::<f32>() / losses.len() as f32;
        let allowed = if on_gpu() { 0.05 } else { TOLERANCE };
        assert!((mean - loss).abs() <= allowed, "{name}: {mean} {loss}");
    }
}

#[test]
fn a_pack_is_its_sub_samples_alone_and_a_leak_is_seen() {
    for name in ["tiny_dense", "tiny_moe"] {
        let (model, case) = (read(name), Case::read(name, "case4_packed"));
        let cu_seqlens: Vec<u32> = case.numbers("in.cu_seqlens").iter().map(|&it| it as u32).collect();
        let pack = case.sub_samples(model.config(), &cu_seqlens);
        let found = leak::check_pack(&model, &pack).unwrap();
        let allowed = if on_gpu() { leak::tolerance(DType::BF16, &Device::Cpu) } else { 1e-5 };
        assert!(found.iter().all(|sub| sub.packed_vs_alone <= allowed), "{name}: {found:?}");
        assert!(found[1..].iter().all(|sub| sub.leaky_vs_alone > 1.0), "{name}: {found:?}");
        for changed in 0..pack.len() {
            let moved = leak::perturb(&model, &pack, changed).unwrap();
            assert!(moved == 0.0 || on_gpu() && moved <= allowed, "{name}: {moved}, bit-exact on the CPU");
        }
        // One sequence in place of the pack is what the leaky trainer computes.
        if let Some(expected) = case.tensors.get("out.logits_leaky_full_causal") {
            let leaky = PackedBatch::pack(&[SubSample::joined(&pack)]).unwrap();
            assert!(largest_difference(&model.forward(&leaky).unwrap(), expected) <= tolerance(expected));
        }
    }
}

#[test]
fn a_check_of_a_leaking_pack_fails() {
    // What `leak-check` compares, with the boundaries of the second sub-sample lost.
    let (model, case) = (read("tiny_dense"), Case::read("tiny_dense", "case4_packed"));
    let pack = case.sub_samples(model.config(), &[0, 21, 33, 59]);
    let leaking = [pack[0].clone(), SubSample::joined(&pack[1..])];
    let found = leak::check_pack(&model, &leaking).unwrap();
    assert!(found[1].leaky_vs_alone > leak::tolerance(DType::F32, &Device::Cpu), "{found:?}");
}

#[test]
fn padding_for_sequence_parallelism_changes_nothing_before_it() {
    let model = read("tiny_dense");
    let ids = [170, 201, 3, 212, 394, 237, 47, 426, 304, 318, 377, 504, 1];
    let domains = AttentionDomains::from_lengths([6, 7]).unwrap();
    let subs: Vec<SubSample> = domains.ranges().map(|at| SubSample::text(ids[at].to_vec())).collect();
    let padded = domains.padded_to(4).unwrap();
    let mut with_pads = subs.clone();
    with_pads.push(SubSample::text(vec![0; padded.lengths().last().unwrap() as usize]));
    let run = |subs: &[SubSample]| model.forward(&PackedBatch::pack(subs).unwrap()).unwrap();
    let difference = largest_difference(&run(&with_pads).narrow(0, 0, 13).unwrap(), &run(&subs));
    assert!(difference <= if on_gpu() { 0.1 } else { 1e-5 }, "{difference}");
}

#[test]
fn features_of_an_image_never_reach_the_next_sub_sample() {
    // As many image tokens as the images make together, but not in each sub-sample.
    let (model, case) = (read("tiny_dense"), Case::read("tiny_dense", "case4_packed"));
    let mut pack = case.sub_samples(model.config(), &[0, 21, 33, 59]);
    let image = model.config().image_token_id;
    let slot = pack[0].input_ids.iter().position(|&id| id == image).unwrap();
    pack[0].input_ids[slot] = 1;
    pack[1].input_ids[0] = image;
    let error = model.forward(&PackedBatch::pack(&pack).unwrap()).unwrap_err().to_string();
    assert!(error.contains("sub-sample 0: the text has 5 image tokens, the images make 6"), "{error}");
}

#[test]
fn labels_and_ids_beyond_the_vocabulary_are_refused() {
    let model = read("tiny_dense");
    let mut sub = SubSample::text(vec![1, 2, 3]);
    sub.labels[2] = 512;
    let batch = PackedBatch::pack(&[sub]).unwrap();
    let hidden = model.hidden_states(&batch, &mut NoProbe).unwrap();
    let error = token_losses(&model, &hidden, &batch).unwrap_err().to_string();
    assert!(error.contains("label 512"), "{error}");
    let error = model.forward(&PackedBatch::pack(&[SubSample::text(vec![512])]).unwrap()).unwrap_err();
    assert!(error.to_string().contains("token id 512"), "{error}");
}

#[test]
fn a_value_that_is_no_number_is_a_leak() {
    let mut config = ModelConfig::read(&folder("tiny_dense")).unwrap();
    // Makes a root of a negative number in every norm.
    config.text.rms_norm_eps = -1e9;
    let weights = Weights::read(&folder("tiny_dense"), DType::F32, &Device::Cpu).unwrap();
    let model = LlavaOnevision2::new(config, &weights).unwrap();
    let pack = [SubSample::text(vec![1, 2]), SubSample::text(vec![3, 4])];
    let found = leak::check_pack(&model, &pack).unwrap();
    assert!(found.iter().all(|sub| sub.packed_vs_alone == f32::INFINITY), "{found:?}");
}
