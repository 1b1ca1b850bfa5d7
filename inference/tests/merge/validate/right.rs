//! Right checkpoints pass, and agree to the last bit.

use std::path::Path;

use candle_core::{DType, Device};
use packd_inference::merge::{MergeOptions, OutputPart, ValidateOptions, Validation};
use xxhash_rust::xxh3::xxh3_128;

use super::support::{all_parts, change_tensor, change_tensors, check, fixture, merged, outputs, sources};

fn points(part: &Option<OutputPart>) -> Vec<&str> {
    part.as_ref().unwrap().points.iter().map(|point| point.name.as_str()).collect()
}

fn assert_equal(done: &Validation, what: &str) {
    assert!(done.passed, "{what}: {done:#?}");
    for part in [&done.vit, &done.llm] {
        let part = part.as_ref().unwrap();
        assert_eq!((part.worst_cosine, part.worst_relative_error), (Some(1.0), Some(0.0)), "{what}");
    }
    let answer = done.e2e.as_ref().unwrap();
    assert_eq!(answer.checkpoint, answer.sources, "{what}");
    assert!(!answer.sources.is_empty());
}

#[test]
fn right_merges_agree_to_the_last_bit() {
    for llm in ["dense", "dense_tied", "moe", "moe_fused"] {
        // Written as bf16 and f32, computed in bf16 and f32.
        for (written, computed) in [
            (DType::F32, DType::F32),
            (DType::BF16, DType::F32),
            (DType::BF16, DType::BF16),
            (DType::F16, DType::F16),
        ] {
            let sources = MergeOptions { dtype: written, ..sources(llm) };
            let (_folder, checkpoint) = merged(&sources);
            let done = check(&sources, &checkpoint, &ValidateOptions { dtype: computed, ..all_parts() });
            assert_equal(&done, &format!("{llm} {written:?} {computed:?}"));
            assert_eq!(
                points(&done.vit),
                [
                    "vit.after_patch_embed",
                    "vit.after_pre_layernorm",
                    "vit.layer0.out",
                    "vit.layer1.out",
                    "vit.before_adapter",
                    "vit.after_merger"
                ]
            );
            let layers = if llm.starts_with("moe") { 2 } else { 1 };
            let mut names = vec!["lm.inputs_embeds".to_owned()];
            names.extend((0..layers).map(|layer| format!("lm.layer{layer}.out")));
            names.extend(["lm.final_norm_out".to_owned(), "logits".to_owned()]);
            assert_eq!(points(&done.llm), names);
            assert!(done.weights.unwrap().passed());
        }
    }
}

#[test]
fn sources_of_torch_files_and_shards_are_read_too() {
    let sources =
        MergeOptions { vit: fixture("torch_vit/checkpoint.pt"), shard_bytes: 30_000, ..sources("moe") };
    let (_folder, checkpoint) = merged(&sources);
    assert!(checkpoint.join("model.safetensors.index.json").is_file());
    assert_equal(&check(&sources, &checkpoint, &all_parts()), "torch file");
}

#[test]
fn the_tensors_of_an_absent_adapter_are_those_of_the_checkpoint() {
    let sources = MergeOptions { adapter: None, seed: 7, ..sources("dense") };
    let (_folder, checkpoint) = merged(&sources);
    // As after training: no seed makes these.
    change_tensor(&checkpoint, "model.visual.merger.mlp.2.bias", |bias| (bias + 1.0).unwrap());
    let done = check(&sources, &checkpoint, &all_parts());
    assert_equal(&done, "no adapter");
    let said = "6 tensors of the merger have no source: both models have those of the checkpoint";
    assert!(done.notes.iter().any(|note| note == said), "{:?}", done.notes);
    let weights = done.weights.unwrap();
    assert_eq!((weights.unknown, weights.equal), (6, 41));
    let of_merger = weights.tensors.iter().filter(|it| it.name.contains(".merger."));
    assert_eq!(of_merger.filter(|it| it.sources.is_none()).count(), 6);
}

#[test]
fn a_checkpoint_of_doubles_holds_the_sources_numbers() {
    let sources = sources("dense");
    let (_folder, checkpoint) = merged(&sources);
    let doubles = |all: &mut crate::support::Tensors| {
        all.values_mut().for_each(|tensor| *tensor = tensor.to_dtype(DType::F64).unwrap());
    };
    change_tensors(&checkpoint, doubles);
    assert_equal(&check(&sources, &checkpoint, &all_parts()), "doubles");
    let name = "model.language_model.norm.weight";
    change_tensor(&checkpoint, name, |norm| (norm * 1.000_000_1).unwrap());
    let weights = check(&sources, &checkpoint, &all_parts()).weights.unwrap();
    let found: Vec<_> = weights.differences.iter().map(|it| it.key.as_str()).collect();
    assert_eq!(found, [name]);
}

/// XXH3 of a tensor's bytes, as numpy would have them.
fn hash(checkpoint: &Path, name: &str) -> String {
    let tensors = candle_core::safetensors::load(checkpoint.join("model.safetensors"), &Device::Cpu).unwrap();
    let values: Vec<half::bf16> = tensors[name].flatten_all().unwrap().to_vec1().unwrap();
    let bytes: Vec<u8> = values.into_iter().flat_map(half::bf16::to_le_bytes).collect();
    format!("{:032x}", xxh3_128(&bytes))
}

#[test]
fn hashes_are_those_of_the_bytes() {
    let sources = MergeOptions { dtype: DType::BF16, ..sources("dense") };
    let (_folder, checkpoint) = merged(&sources);
    let name = "model.visual.encoder.layers.1.mlp.fc1.weight";
    let right = hash(&checkpoint, name);
    change_tensor(&checkpoint, name, |tensor| (tensor * 2.0).unwrap());
    let weights = check(&sources, &checkpoint, &all_parts()).weights.unwrap();
    assert_eq!(weights.tensors.len(), 47);
    for found in &weights.tensors {
        assert_eq!(found.dtype, "bf16");
        assert_eq!(found.checkpoint, hash(&checkpoint, &found.name), "{}", found.name);
        let expected = if found.name == name { &right } else { &found.checkpoint };
        assert_eq!(found.sources.as_ref(), Some(expected), "{}", found.name);
    }
}

#[test]
fn parts_without_an_input_are_left_out() {
    let sources = sources("dense");
    let (_folder, checkpoint) = merged(&sources);
    let none = ValidateOptions { weights: false, image: None, text: None, question: None, ..all_parts() };
    let all = all_parts();
    for (options, expected) in [
        (ValidateOptions { weights: true, ..none.clone() }, [true, false, false, false]),
        (ValidateOptions { image: all.image.clone(), ..none.clone() }, [false, true, false, false]),
        (ValidateOptions { text: all.text.clone(), ..none.clone() }, [false, false, true, false]),
        (ValidateOptions { question: all.question.clone(), ..none.clone() }, [false, false, false, true]),
        (outputs(), [false, true, true, true]),
    ] {
        let done = check(&sources, &checkpoint, &options);
        let found = [done.weights.is_some(), done.vit.is_some(), done.llm.is_some(), done.e2e.is_some()];
        assert_eq!(found, expected);
        assert!(done.passed);
    }
}

#[test]
fn unrounded_sources_differ_by_what_rounding_does() {
    let sources = MergeOptions { dtype: DType::BF16, ..sources("dense") };
    let (_folder, checkpoint) = merged(&sources);
    let done = check(&sources, &checkpoint, &ValidateOptions { unrounded: true, ..outputs() });
    assert!(done.passed, "{done:#?}");
    let vit = done.vit.as_ref().unwrap();
    // The tower's source is in f32. Weights move by at most 2⁻⁹ of themselves; the errors of four steps add up.
    let error = vit.worst_relative_error.unwrap();
    assert!(error > 5e-4 && error < 1e-2, "{error}");
    // The decoder's source is in bf16 itself.
    assert_eq!(done.llm.as_ref().unwrap().worst_relative_error, Some(0.0));
    assert!(done.notes.iter().any(|note| note.contains("by the rounding of the weights to bf16")));
}

#[test]
fn an_image_token_in_an_answer_is_text() {
    let sources = sources("dense");
    let (_folder, checkpoint) = merged(&sources);
    let answer = check(&sources, &checkpoint, &outputs()).e2e.unwrap();
    // This tiny model says one, and goes on.
    let place = answer.sources.iter().position(|token| *token == 50).unwrap();
    assert!(place + 1 < answer.sources.len(), "{answer:?}");
}
