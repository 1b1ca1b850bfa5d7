//! Damaged checkpoints fail, with the first output that is wrong, though their tensors are not compared.

use std::path::Path;

use candle_core::{DType, Tensor};
use packd_inference::SubSample;
use packd_inference::merge::{MergeOptions, MergePlan, OutputPart, ValidateOptions, validate};

use super::support::{
    Tensors, all_parts, change_config, change_tensor, change_tensors, check, exchange_rows, merged, outputs,
    sources, transposed,
};

/// The first points over the thresholds of `vit` and `llm`.
type FirstOver = [Option<&'static str>; 2];

fn first_over(part: &Option<OutputPart>) -> Option<&str> {
    part.as_ref().unwrap().first_over.as_deref()
}

/// A checkpoint with a fault must fail in every dtype, against rounded sources and unrounded ones where `is_large`.
fn fails(llm: &str, fault: impl Fn(&Path), expected: FirstOver, is_large: bool) {
    let ways = [
        (DType::F32, DType::F32, false),
        (DType::BF16, DType::F32, false),
        (DType::BF16, DType::BF16, false),
        (DType::F16, DType::F16, false),
        (DType::BF16, DType::F32, true),
    ];
    for (written, computed, unrounded) in ways.into_iter().filter(|way| is_large || !way.2) {
        let sources = MergeOptions { dtype: written, ..sources(llm) };
        let (_folder, checkpoint) = merged(&sources);
        let options = ValidateOptions { dtype: computed, unrounded, ..outputs() };
        assert!(check(&sources, &checkpoint, &options).passed, "{expected:?}: before the fault");
        fault(&checkpoint);
        let done = check(&sources, &checkpoint, &options);
        let found = [first_over(&done.vit), first_over(&done.llm)];
        assert_eq!(found, expected, "{written:?} {computed:?} unrounded: {unrounded}\n{done:#?}");
        assert!(!done.passed);
    }
}

const TOWER: &str = "model.visual.encoder.layers";
const DECODER: &str = "model.language_model.layers";

fn swap_q_and_k(tensor: &Tensor) -> Tensor {
    let thirds = tensor.chunk(3, 0).unwrap();
    Tensor::cat(&[&thirds[1], &thirds[0], &thirds[2]], 0).unwrap()
}

#[test]
fn q_and_k_of_a_vision_layer_swapped() {
    let fault = |checkpoint: &Path| {
        for kind in ["weight", "bias"] {
            change_tensor(checkpoint, &format!("{TOWER}.1.self_attn.qkv.{kind}"), swap_q_and_k);
        }
    };
    fails("dense", fault, [Some("vit.layer1.out"), None], true);
}

#[test]
fn a_square_projection_transposed() {
    let name = format!("{TOWER}.0.self_attn.proj.weight");
    let fault = |checkpoint: &Path| change_tensor(checkpoint, &name, transposed);
    fails("dense", fault, [Some("vit.layer0.out"), None], true);
}

#[test]
fn a_projection_of_the_decoder_transposed() {
    let name = format!("{DECODER}.0.self_attn.o_proj.weight");
    let fault = |checkpoint: &Path| change_tensor(checkpoint, &name, transposed);
    fails("dense_tied", fault, [None, Some("lm.layer0.out")], true);
}

#[test]
fn the_epsilon_of_the_vision_norms_forgotten() {
    // As the reference's merge does it: the tower's own is 3e-5.
    let fault = |checkpoint: &Path| {
        change_config(checkpoint, "\"layer_norm_eps\": 0.00003", "\"layer_norm_eps\": 0.000001");
    };
    fails("dense", fault, [Some("vit.after_pre_layernorm"), None], false);
}

#[test]
fn the_base_of_the_rotary_embedding_of_either_tower() {
    let fault =
        |checkpoint: &Path| change_config(checkpoint, "\"rope_theta\": 5000.0", "\"rope_theta\": 10000.0");
    fails("dense", fault, [Some("vit.layer0.out"), None], false);
    let fault = |checkpoint: &Path| {
        change_config(checkpoint, "\"rope_theta\": 5000000.0", "\"rope_theta\": 1000000.0");
    };
    fails("moe", fault, [None, Some("lm.layer0.out")], false);
}

#[test]
fn rows_of_embedding_and_head_exchanged() {
    // Both tokens are in the text.
    let embedding = "model.language_model.embed_tokens.weight";
    let fault = |checkpoint: &Path| change_tensor(checkpoint, embedding, |it| exchange_rows(it, 17, 41));
    fails("dense", fault, [None, Some("lm.inputs_embeds")], true);
    let fault =
        |checkpoint: &Path| change_tensor(checkpoint, "lm_head.weight", |it| exchange_rows(it, 2, 60));
    fails("dense", fault, [None, Some("logits")], true);
}

#[test]
fn experts_exchanged() {
    let fault = |checkpoint: &Path| {
        change_tensors(checkpoint, |all: &mut Tensors| {
            let name = |expert: usize| format!("{DECODER}.1.mlp.experts.{expert}.down_proj.weight");
            let (one, other) = (all[&name(0)].clone(), all[&name(1)].clone());
            all.extend([(name(0), other), (name(1), one)]);
        });
    };
    fails("moe", fault, [None, Some("lm.layer1.out")], true);
}

#[test]
fn the_merger_transposed() {
    let fault = |checkpoint: &Path| change_tensor(checkpoint, "model.visual.merger.mlp.0.weight", transposed);
    fails("dense", fault, [Some("vit.after_merger"), None], true);
}

#[test]
fn a_single_number() {
    // One bias of 32, by an eighth.
    let fault = |checkpoint: &Path| {
        change_tensor(checkpoint, "model.visual.layernorm_pre.bias", |bias| {
            let mut values: Vec<f32> = bias.to_dtype(DType::F32).unwrap().to_vec1().unwrap();
            values[5] += 0.125;
            Tensor::new(values, bias.device()).unwrap().to_dtype(bias.dtype()).unwrap()
        });
    };
    fails("dense", fault, [Some("vit.after_pre_layernorm"), None], false);
}

#[test]
fn rows_of_the_head_exchanged_change_the_answer() {
    let sources = sources("dense");
    let (_folder, checkpoint) = merged(&sources);
    let first = check(&sources, &checkpoint, &outputs()).e2e.unwrap().sources[0];
    // The head now gives the likeliest token another's name.
    let other = (first + 1) % 50;
    change_tensor(&checkpoint, "lm_head.weight", |it| exchange_rows(it, first, other));
    let done = check(&sources, &checkpoint, &outputs());
    let answer = done.e2e.unwrap();
    assert_eq!((answer.parts_at, answer.passed), (Some(0), false));
    assert_eq!(answer.checkpoint[0], other);
    // Only shown where rounding may do it.
    let unrounded = check(&sources, &checkpoint, &ValidateOptions { unrounded: true, ..outputs() });
    let answer = unrounded.e2e.unwrap();
    assert_eq!((answer.parts_at, answer.passed), (Some(0), true));
}

#[test]
fn what_is_no_number_passes_nowhere() {
    let sources = sources("dense");
    let (_folder, checkpoint) = merged(&sources);
    change_tensor(&checkpoint, &format!("{TOWER}.0.mlp.fc2.bias"), |bias| (bias * f64::NAN).unwrap());
    let done = check(&sources, &checkpoint, &outputs());
    let vit = done.vit.as_ref().unwrap();
    assert_eq!(vit.first_over.as_deref(), Some("vit.layer0.out"));
    assert!(vit.worst_cosine.unwrap().is_nan() && vit.worst_relative_error.unwrap().is_nan());
    let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&done).unwrap()).unwrap();
    assert!(json["vit"]["worst_cosine"].is_null());
    assert_eq!(json["passed"], false);
}

#[test]
fn a_checkpoint_that_cannot_be_run_fails_with_the_reason() {
    let sources = sources("dense");
    let missing = format!("{TOWER}.1.mlp.fc1.bias");
    let (_folder, checkpoint) = merged(&sources);
    change_tensors(&checkpoint, |all| drop(all.remove(&missing).unwrap()));
    let done = check(&sources, &checkpoint, &all_parts());
    assert!(!done.passed);
    assert_eq!(done.weights.unwrap().differences[0].key, missing);
    let llm = done.llm.unwrap();
    assert!(!llm.passed && llm.points.is_empty());
    for problem in [done.vit.unwrap().problem, llm.problem, done.e2e.unwrap().problem] {
        assert!(problem.unwrap().contains(&missing));
    }

    let (_folder, checkpoint) = merged(&sources);
    change_config(&checkpoint, "\"patch_size\": 2", "\"patch_size\": 4");
    let done = check(&sources, &checkpoint, &outputs());
    let problem = done.vit.unwrap().problem.unwrap();
    assert_eq!(problem, "patch_size is 4 in config.json, of the sources 2: they take other images");

    // A layer less: its tensors are more than the model has, and the others come out early.
    let (_folder, checkpoint) = merged(&sources);
    let path = checkpoint.join("config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["vision_config"]["num_hidden_layers"] = 1.into();
    std::fs::write(&path, config.to_string()).unwrap();
    let done = check(&sources, &checkpoint, &outputs());
    let vit = done.vit.unwrap();
    assert_eq!(vit.first_over.as_deref(), Some("vit.layer1.out"));
    let point = vit.points.iter().find(|point| point.name == "vit.layer1.out").unwrap();
    assert!(point.agreement.is_none());
    assert_eq!(point.hint.as_deref(), Some("only the sources' model has this point"));
}

#[test]
fn an_input_that_neither_model_takes_is_an_error_and_no_fault_of_the_checkpoint() {
    let sources = sources("dense");
    let (_folder, checkpoint) = merged(&sources);
    let options = ValidateOptions { text: Some(SubSample::text(vec![3, 64])), ..outputs() };
    let error = validate(MergePlan::new(&sources).unwrap(), &checkpoint, &options).unwrap_err();
    assert!(error.to_string().contains("token id 64 is beyond"), "{error}");
    // An image token that only the checkpoint knows by another name is one.
    change_config(&checkpoint, "\"image_token_id\": 50", "\"image_token_id\": 49");
    let done = check(&sources, &checkpoint, &outputs());
    assert!(done.vit.unwrap().passed && done.llm.unwrap().passed);
    let said = "sub-sample 0: the text has 0 image tokens, the images make 8";
    assert_eq!(done.e2e.unwrap().problem.as_deref(), Some(said));
}

#[test]
fn settings_of_the_whole_model_are_compared() {
    let sources = sources("dense");
    for (from, to, said) in [
        ("\"image_token_id\": 50", "\"image_token_id\": 51", "config.json image_token_id"),
        (
            "\"tie_word_embeddings\": false",
            "\"tie_word_embeddings\": true",
            "config.json tie_word_embeddings",
        ),
        ("\"eos_token_id\": 54", "\"eos_token_id\": 53", "config.json eos_token_id"),
    ] {
        let (_folder, checkpoint) = merged(&sources);
        change_config(&checkpoint, from, to);
        let done = check(&sources, &checkpoint, &all_parts());
        let found: Vec<_> = done.weights.unwrap().differences.into_iter().map(|it| it.key).collect();
        assert_eq!(found, [said]);
        assert!(!done.passed);
    }
}
