//! A Megatron checkpoint against the Hugging Face one: right ones pass, and every fault has its name.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use packd_inference::candle_core::{DType, Device};
use packd_inference::consistency::{Check, CheckKind, ConsistencyOptions, Outcome, Report, Tolerance, check};
use packd_inference::convert::McoreOptions;
use packd_inference::layout::AskedDegrees;
use packd_inference::torch_file::{PyValue, TorchDtype};
use packd_inference::{Encoder, EncoderOptions, Flavour, ModelConfig, PackedBatch, test_picture};

use crate::support::*;

fn options(hf: &Path, mcore: &Path) -> ConsistencyOptions {
    ConsistencyOptions {
        hf: hf.to_owned(),
        mcore: mcore.to_owned(),
        degrees: AskedDegrees::default(),
        tolerance: Tolerance::Bf16,
        flavour: Flavour::Megatron,
        checks: CheckKind::ALL.into(),
        dtype: DType::F32,
        device: Device::Cpu,
        progress: Arc::default(),
    }
}

/// The same weights in the same arithmetic.
fn strict(hf: &Path, mcore: &Path) -> ConsistencyOptions {
    let options = options(hf, mcore);
    ConsistencyOptions { tolerance: Tolerance::F32, flavour: Flavour::HuggingFace, ..options }
}

fn batch(hf: &Path) -> PackedBatch {
    let config = ModelConfig::read(hf).unwrap();
    let options = EncoderOptions { fold_ids: true, ..EncoderOptions::default() };
    let encoder = Encoder::new(hf, &config, &options).unwrap();
    let picture = test_picture(config.vision.patch_size, config.vision.spatial_merge_size);
    let question = encoder.question("Describe this image.", &[picture]).unwrap();
    PackedBatch::pack(&[question]).unwrap()
}

fn run(options: &ConsistencyOptions) -> Report {
    check(options, Some(&batch(&options.hf))).unwrap()
}

fn of(report: &Report, kind: CheckKind) -> &Check {
    &report.checks[CheckKind::ALL.iter().position(|it| *it == kind).unwrap()]
}

#[test]
fn right_checkpoints_pass_whatever_their_degrees() {
    let folder = tempfile::tempdir().unwrap();
    for (model, tensors, layouts) in [
        ("tiny_dense", 58, vec![mcore(1, 1, 1), split(2, &[0, 2], 1)]),
        ("tiny_moe", 78, vec![mcore(2, 2, 2)]),
    ] {
        let hf = tiny(model);
        for (number, layout) in layouts.iter().enumerate() {
            let mcore = folder.path().join(format!("{model}_{number}"));
            to_mcore(&hf, &mcore, layout).unwrap();
            let report = run(&options(&hf, &mcore));
            assert!(report.passed, "{report:#?}");
            let outcomes: Vec<Outcome> = report.checks.iter().map(|check| check.outcome).collect();
            assert_eq!(outcomes, [Outcome::Passed; 6]);
            let weights = of(&report, CheckKind::Weights);
            assert_eq!((weights.compared, weights.identical), (tensors, tensors));
            let config = ModelConfig::read(&hf).unwrap();
            assert_eq!(of(&report, CheckKind::VisionEncoder).compared, 4);
            assert_eq!(of(&report, CheckKind::Layers).compared, config.vision.num_hidden_layers);
            assert_eq!(of(&report, CheckKind::Logits).compared, config.text.num_hidden_layers + 3);
            // Megatron's constants are seen, and explained by the tolerance.
            let norm = &of(&report, CheckKind::VisionEncoder).points[2];
            assert_eq!(norm.name, "vit.after_pre_layernorm");
            let error = norm.agreement.unwrap().relative_error;
            assert!(1e-6 < error && error < norm.threshold.relative_error, "{error}");
            // In one arithmetic everything is the same to the bit.
            let report = run(&strict(&hf, &mcore));
            assert!(report.checks.iter().all(|check| check.compared == check.identical), "{report:#?}");
            assert!(report.passed);
        }
    }
}

#[test]
fn another_flavour_is_not_within_f32_tolerance() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, mcore_dir) = (tiny("tiny_dense"), folder.path().join("mcore"));
    to_mcore(&hf, &mcore_dir, &mcore(2, 1, 1)).unwrap();
    let wrong = ConsistencyOptions { flavour: Flavour::Megatron, ..strict(&hf, &mcore_dir) };
    let report = run(&wrong);
    assert!(!report.passed);
    assert_eq!(of(&report, CheckKind::Weights).outcome, Outcome::Passed);
    let vision = of(&report, CheckKind::VisionEncoder);
    assert_eq!(vision.first_over.as_deref(), Some("vit.after_pre_layernorm"));
    assert_eq!(of(&report, CheckKind::Layers).first_over.as_deref(), Some("vit.layer0.out"));
}

/// A checkpoint with one tensor of a rank changed. `change` gets its shape and bytes.
fn spoiled(
    folder: &Path,
    model: &str,
    layout: &McoreOptions,
    rank: &str,
    tensor: &str,
    change: impl Fn(&mut Vec<usize>, &mut Vec<u8>),
) -> PathBuf {
    let mcore = folder.join("mcore");
    if mcore.exists() {
        std::fs::remove_dir_all(&mcore).unwrap();
    }
    to_mcore(&tiny(model), &mcore, layout).unwrap();
    let file = mcore.join("release").join(rank).join("model_optim_rng.pt");
    let found = std::cell::Cell::new(false);
    change_rank(&file, |name, shape, bytes| {
        if name == tensor {
            found.set(true);
            change(shape, bytes);
        }
    });
    assert!(found.get(), "{tensor} is not in {rank}");
    mcore
}

/// Rows in the order of these numbers; a row has `width` bytes.
fn reorder(bytes: &mut Vec<u8>, width: usize, order: impl Iterator<Item = usize>) {
    *bytes = order.flat_map(|row| bytes[row * width..(row + 1) * width].to_vec()).collect();
}

/// [rows, cols] of f32 to [cols, rows].
fn transpose(bytes: &[u8], [rows, cols]: [usize; 2]) -> Vec<u8> {
    (0..rows * cols)
        .flat_map(|at| {
            let from = at % rows * cols + at / rows;
            bytes[from * 4..from * 4 + 4].to_vec()
        })
        .collect()
}

/// The report on a spoiled checkpoint must name `tensor`, with this hint, and the model's outputs must tell as well.
fn assert_named(mcore: &Path, model: &str, tensor: &str, hint: Option<&str>, over: &[(CheckKind, &str)]) {
    let report = run(&options(&tiny(model), mcore));
    assert!(!report.passed);
    let weights = of(&report, CheckKind::Weights);
    assert_eq!(weights.first_over.as_deref(), Some(tensor), "{weights:#?}");
    let found = weights.points[0].hint.as_deref();
    assert_eq!(found, hint, "{tensor}");
    for (kind, point) in over {
        assert_eq!(of(&report, *kind).first_over.as_deref(), Some(*point), "{tensor}");
    }
    // The Hugging Face side is as it was.
    assert_eq!(of(&report, CheckKind::Loading).outcome, Outcome::Passed);
}

const QKV: &str = "vision_model.decoder.layers.1.self_attention.linear_qkv.weight";
const TEXT_QKV: &str = "language_model.decoder.layers.0.self_attention.linear_qkv.weight";

#[test]
fn queries_and_keys_that_changed_places() {
    let folder = tempfile::tempdir().unwrap();
    // Two heads of 32 a head; in a head q, k and v.
    let mcore_dir = spoiled(folder.path(), "tiny_dense", &mcore(1, 1, 1), "mp_rank_00", QKV, |_, bytes| {
        let order = (0..192).map(|row| match row % 96 / 32 {
            0 => row + 32,
            1 => row - 32,
            _ => row,
        });
        reorder(bytes, 64 * 4, order);
    });
    assert_named(
        &mcore_dir,
        "tiny_dense",
        "model.visual.encoder.layers.1.self_attn.qkv.weight",
        Some("it has the same rows in another order"),
        &[(CheckKind::Layers, "vit.layer1.out")],
    );
}

#[test]
fn queries_keys_and_values_that_are_not_interleaved() {
    let folder = tempfile::tempdir().unwrap();
    // Of the vision tower: as Hugging Face has them, all q, all k, all v.
    let plain = |row: usize| row % 64 / 32 * 96 + row / 64 * 32 + row % 32;
    let mcore_dir = spoiled(folder.path(), "tiny_dense", &mcore(1, 1, 1), "mp_rank_00", QKV, |_, bytes| {
        reorder(bytes, 64 * 4, (0..192).map(plain));
    });
    assert_named(
        &mcore_dir,
        "tiny_dense",
        "model.visual.encoder.layers.1.self_attn.qkv.weight",
        Some("it has the same rows in another order"),
        &[(CheckKind::Layers, "vit.layer1.out")],
    );
    // Of the decoder: two groups of q, q, k, v; heads of 32.
    let mcore_dir =
        spoiled(folder.path(), "tiny_dense", &mcore(1, 1, 1), "mp_rank_00", TEXT_QKV, |_, bytes| {
            let heads = [0, 1, 4, 5, 2, 6, 3, 7];
            reorder(bytes, 64 * 4, (0..256).map(|row| heads[row / 32] * 32 + row % 32));
        });
    assert_named(
        &mcore_dir,
        "tiny_dense",
        "model.language_model.layers.0.self_attn.q_proj.weight",
        None,
        &[(CheckKind::Logits, "lm.layer0.out")],
    );
}

#[test]
fn a_transposed_matrix() {
    let folder = tempfile::tempdir().unwrap();
    let tensor = "vision_model.decoder.layers.0.mlp.linear_fc2.weight";
    let hf = "model.visual.encoder.layers.0.mlp.fc2.weight";
    let change = |keep: bool| {
        move |shape: &mut Vec<usize>, bytes: &mut Vec<u8>| {
            *bytes = transpose(bytes, [shape[0], shape[1]]);
            if !keep {
                shape.reverse();
            }
        }
    };
    let kept = spoiled(folder.path(), "tiny_dense", &mcore(1, 1, 1), "mp_rank_00", tensor, change(true));
    let over = [(CheckKind::Layers, "vit.layer0.out"), (CheckKind::VisionEncoder, "vit.before_adapter")];
    assert_named(&kept, "tiny_dense", hf, Some("it is transposed"), &over);

    let turned = spoiled(folder.path(), "tiny_dense", &mcore(1, 1, 1), "mp_rank_00", tensor, change(false));
    let report = run(&options(&tiny("tiny_dense"), &turned));
    let weights = of(&report, CheckKind::Weights);
    assert_eq!(weights.outcome, Outcome::Failed);
    let said = weights.detail.as_deref().unwrap();
    assert!(said.contains(tensor) && said.contains("shape"), "{said}");
    assert_eq!(of(&report, CheckKind::Layers).outcome, Outcome::Skipped);
    assert_eq!(of(&report, CheckKind::Loading).outcome, Outcome::Passed);
    assert!(!report.passed);
}

#[test]
fn experts_that_changed_places() {
    let folder = tempfile::tempdir().unwrap();
    let mcore_dir = folder.path().join("mcore");
    to_mcore(&tiny("tiny_moe"), &mcore_dir, &mcore(1, 1, 2)).unwrap();
    // The second three of six: experts 3 and 4.
    let file = mcore_dir.join("release/mp_rank_00_001/model_optim_rng.pt");
    change_rank(&file, |name, _, _| {
        let of = |expert: usize| format!("layers.1.mlp.experts.local_experts.{expert}.");
        for (one, other) in [(of(0), of(1)), (of(1), of(0))] {
            if name.contains(&one) {
                *name = name.replace(&one, &other);
                break;
            }
        }
    });
    let other = "it is model.language_model.layers.1.mlp.experts.4.gate_proj.weight";
    assert_named(
        &mcore_dir,
        "tiny_moe",
        "model.language_model.layers.1.mlp.experts.3.gate_proj.weight",
        Some(other),
        &[],
    );
    // Two experts of six in one layer move its output by less than bf16 tolerance.
    let report = run(&strict(&tiny("tiny_moe"), &mcore_dir));
    assert_eq!(of(&report, CheckKind::Logits).first_over.as_deref(), Some("lm.layer1.out"));
}

#[test]
fn a_matrix_that_was_cut_along_the_other_axis() {
    let folder = tempfile::tempdir().unwrap();
    let tensor = "language_model.decoder.layers.1.mlp.linear_fc2.weight";
    // [64, F]: rank 0 gets the first rows instead of the first columns.
    let whole = read_safetensors(&tiny("tiny_dense").join("model.safetensors"));
    let hf = "model.language_model.layers.1.mlp.down_proj.weight";
    let (_, full, bytes) = whole[hf].clone();
    for keeps_shape in [true, false] {
        let rank = |number: usize| {
            let half = bytes.len() / 2;
            let bytes = bytes[number * half..(number + 1) * half].to_vec();
            let shape = if keeps_shape { vec![full[0], full[1] / 2] } else { vec![full[0] / 2, full[1]] };
            (shape, bytes)
        };
        let mcore_dir =
            spoiled(folder.path(), "tiny_dense", &mcore(2, 1, 1), "mp_rank_00", tensor, |shape, bytes| {
                (*shape, *bytes) = rank(0);
            });
        let second = mcore_dir.join("release/mp_rank_01/model_optim_rng.pt");
        change_rank(&second, |name, shape, bytes| {
            if name == tensor {
                (*shape, *bytes) = rank(1);
            }
        });
        if keeps_shape {
            assert_named(&mcore_dir, "tiny_dense", hf, None, &[(CheckKind::Logits, "lm.layer1.out")]);
        } else {
            let report = run(&options(&tiny("tiny_dense"), &mcore_dir));
            let said = of(&report, CheckKind::Weights).detail.clone().unwrap();
            assert!(said.contains(tensor), "{said}");
            assert!(!report.passed);
        }
    }
}

#[test]
fn a_factor_is_no_agreement() {
    let folder = tempfile::tempdir().unwrap();
    let tensor = "language_model.decoder.layers.0.self_attention.linear_proj.weight";
    let mcore_dir =
        spoiled(folder.path(), "tiny_dense", &mcore(1, 1, 1), "mp_rank_00", tensor, |_, bytes| {
            for number in bytes.as_chunks_mut::<4>().0 {
                *number = (f32::from_le_bytes(*number) * 2.0).to_le_bytes();
            }
        });
    assert_named(
        &mcore_dir,
        "tiny_dense",
        "model.language_model.layers.0.self_attn.o_proj.weight",
        Some("it is the same but for a factor"),
        &[(CheckKind::Logits, "lm.layer0.out")],
    );
}

#[test]
fn only_what_is_asked_for_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, mcore_dir) = (tiny("tiny_dense"), folder.path().join("mcore"));
    to_mcore(&hf, &mcore_dir, &mcore(1, 1, 1)).unwrap();
    let some = ConsistencyOptions { checks: [CheckKind::Merger].into(), ..options(&hf, &mcore_dir) };
    let report = run(&some);
    let made: Vec<CheckKind> = report
        .checks
        .iter()
        .filter(|check| check.outcome == Outcome::Passed)
        .map(|check| check.check)
        .collect();
    assert_eq!(made, [CheckKind::Merger]);
    assert_eq!(report.checks.len(), 6);
    let text = PackedBatch::pack(&[packd_inference::SubSample::text(vec![1, 2, 3])]).unwrap();
    for batch in [Some(&text), None] {
        assert!(check(&some, batch).unwrap_err().to_string().contains("image"));
    }
    // Tensors alone need neither; the Hugging Face checkpoint alone no other.
    let tensors = ConsistencyOptions { checks: [CheckKind::Weights].into(), ..options(&hf, &mcore_dir) };
    assert!(check(&tensors, None).unwrap().passed);
    let nowhere = folder.path().join("nowhere");
    let alone = ConsistencyOptions { checks: [CheckKind::Loading].into(), ..options(&hf, &nowhere) };
    assert!(run(&alone).passed);
}

#[test]
fn tensors_are_the_same_to_the_bit_or_rounded() {
    let folder = tempfile::tempdir().unwrap();
    let tensor = "adapter.linear_fc2.weight";
    let hf = "model.visual.merger.mlp.2.weight";
    let report = |change: &dyn Fn(&mut Vec<u8>), dtype: Option<TorchDtype>, tolerance| {
        let mcore_dir = folder.path().join("mcore");
        let _ = std::fs::remove_dir_all(&mcore_dir);
        to_mcore(&tiny("tiny_dense"), &mcore_dir, &mcore(1, 1, 1)).unwrap();
        let file = mcore_dir.join("release/mp_rank_00/model_optim_rng.pt");
        recast_rank(&file, |name, of, bytes| {
            if name == tensor {
                change(bytes);
                *of = dtype.unwrap_or(*of);
            }
        });
        let asked = ConsistencyOptions {
            checks: [CheckKind::Weights].into(),
            tolerance,
            ..options(&tiny("tiny_dense"), &mcore_dir)
        };
        check(&asked, None).unwrap()
    };
    // One number by one bit.
    let one_bit = report(&|bytes| bytes[100] ^= 1, None, Tolerance::Bf16);
    assert_eq!(of(&one_bit, CheckKind::Weights).first_over.as_deref(), Some(hf));
    assert_eq!(of(&one_bit, CheckKind::Weights).identical, 57);
    // What was rounded to bf16 is the same as far as it goes, and not within f32.
    let round = |bytes: &mut Vec<u8>| {
        let number = |it: &[u8; 4]| half::bf16::from_f32(f32::from_le_bytes(*it)).to_le_bytes();
        *bytes = bytes.as_chunks::<4>().0.iter().flat_map(number).collect();
    };
    let rounded = report(&round, Some(TorchDtype::BFloat16), Tolerance::Bf16);
    assert!(rounded.passed && of(&rounded, CheckKind::Weights).identical == 57, "{rounded:#?}");
    let rounded = report(&round, Some(TorchDtype::BFloat16), Tolerance::F32);
    let point = &of(&rounded, CheckKind::Weights).points[0];
    assert!(!rounded.passed && point.name == hf);
    assert_eq!(point.hint.as_deref(), Some("it is bfloat16, in Hugging Face float32"));
    // Another number that was rounded.
    let other = |bytes: &mut Vec<u8>| {
        round(bytes);
        bytes[100] ^= 1;
    };
    assert!(!report(&other, Some(TorchDtype::BFloat16), Tolerance::Bf16).passed);
    // More bits than f32 has, and what is no floating point number.
    let wide = |bytes: &mut Vec<u8>| {
        let number = |it: &[u8; 4]| f64::from(f32::from_le_bytes(*it)).to_le_bytes();
        *bytes = bytes.as_chunks::<4>().0.iter().flat_map(number).collect();
    };
    assert!(report(&wide, Some(TorchDtype::Double), Tolerance::Bf16).passed);
    assert!(!report(&wide, Some(TorchDtype::Double), Tolerance::F32).passed);
    let whole = report(&|_| (), Some(TorchDtype::Int), Tolerance::Bf16);
    let hint = of(&whole, CheckKind::Weights).points[0].hint.clone().unwrap();
    assert!(hint.contains("int32 is not computed with"), "{hint}");
}

#[test]
fn megatron_computes_with_what_its_arguments_say() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, mcore_dir) = (tiny("tiny_dense"), folder.path().join("mcore"));
    to_mcore(&hf, &mcore_dir, &mcore(1, 1, 1)).unwrap();
    let file = mcore_dir.join("release/mp_rank_00/model_optim_rng.pt");
    set_args(&file, PyValue::dict([("rotary_base", PyValue::Int(10_000))]));
    let report = run(&options(&hf, &mcore_dir));
    assert_eq!(of(&report, CheckKind::Weights).outcome, Outcome::Passed);
    assert_eq!(of(&report, CheckKind::Merger).outcome, Outcome::Passed);
    let logits = of(&report, CheckKind::Logits);
    let error = |at: usize| logits.points[at].agreement.unwrap().relative_error;
    assert!(error(0) < 1e-3 && error(1) > 1e-2, "{logits:#?}");
    assert!(report.notes[0].contains("rotary_base 10000"), "{:?}", report.notes);
    let alike = ConsistencyOptions { flavour: Flavour::HuggingFace, ..options(&hf, &mcore_dir) };
    assert!(run(&alike).checks.iter().all(|check| check.identical == check.compared));
    // It stays with the checkpoint when that is cut anew.
    let other = folder.path().join("other");
    reshard(&mcore_dir, &hf, &other, &mcore(2, 1, 1)).unwrap();
    let again = run(&options(&hf, &other));
    assert!(again.notes[0].contains("rotary_base 10000"), "{:?}", again.notes);
    let of_both = [&report, &again].map(|it| of(it, CheckKind::Logits).points.clone());
    assert_eq!(of_both[0], of_both[1]);
}

#[test]
fn arguments_of_another_model_fail_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, mcore_dir) = (tiny("tiny_dense"), folder.path().join("mcore"));
    to_mcore(&hf, &mcore_dir, &mcore(1, 1, 1)).unwrap();
    set_args(
        &mcore_dir.join("release/mp_rank_00/model_optim_rng.pt"),
        PyValue::dict([("num_attention_heads", PyValue::Int(2))]),
    );
    let report = run(&options(&hf, &mcore_dir));
    assert!(!report.passed);
    let said = of(&report, CheckKind::Weights).detail.clone().unwrap();
    assert!(said.contains("num_attention_heads 2"), "{said}");
}
