//! What is refused, with the name of what is wrong, and leaves nothing.

use std::path::{Path, PathBuf};

use packd_inference::ModelError;
use packd_inference::convert::{ConvertError, McoreOptions, SourceOptions};
use packd_inference::layout::AskedDegrees;
use packd_inference::torch_file::ExtraState;

use crate::support::*;

const EMBED: &str = "model.language_model.embed_tokens.weight";
const QKV: &str = "language_model.decoder.layers.0.self_attention.linear_qkv.weight";
const NORM: &str = "vision_model.pre_layernorm.weight";

fn convert_error(error: ModelError) -> ConvertError {
    match error {
        ModelError::Convert(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn targets_that_are_there_or_in_the_source() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, target) = (folder.path().join("hf"), folder.path().join("target"));
    changed_hf(&tiny("tiny_dense"), &hf, |_| ());
    let before = tree(&hf);
    let run = |target: &std::path::Path| to_mcore(&hf, target, &mcore(1, 1, 1));

    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("kept"), "text").unwrap();
    let error = convert_error(refused(&target, run));
    assert!(matches!(error, ConvertError::TargetExists { .. }), "{error}");
    assert_eq!(tree(&target).len(), 1);
    let file = target.join("kept");
    assert!(matches!(convert_error(refused(&file, run)), ConvertError::TargetExists { .. }));
    for inside in [hf.join("mcore"), hf.join("a/b"), hf.join("../hf/c"), hf.join(".")] {
        let error = convert_error(run(&inside).unwrap_err());
        assert!(
            matches!(error, ConvertError::TargetInSource { .. } | ConvertError::TargetExists { .. }),
            "{error}"
        );
    }
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&hf, &link).unwrap();
    let within = |target: PathBuf| {
        let error = convert_error(run(&target).unwrap_err());
        assert!(matches!(error, ConvertError::TargetInSource { .. }), "{}: {error}", target.display());
        assert!(tree(&hf) == before, "{}", target.display());
    };
    within(link.join("c"));
    within(link.join("a/b"));
    std::fs::create_dir(folder.path().join("other")).unwrap();
    let name = hf.file_name().unwrap();
    within(folder.path().join("other/..").join(name).join("new/c"));
    within(folder.path().join("absent/..").join(name).join("c"));
    // Beside the source, by way of it.
    run(&hf.join("../beside")).unwrap();
    assert!(folder.path().join("beside/latest_checkpointed_iteration.txt").is_file());
    assert!(tree(&hf) == before);
    // Among the ranks of a source that is named by its folder of them.
    let ranks = folder.path().join("beside/release");
    let among = folder.path().join("beside/iter_0000007");
    let error = convert_error(reshard(&ranks, &hf, &among, &mcore(1, 2, 1)).unwrap_err());
    assert!(matches!(error, ConvertError::TargetInSource { .. }), "{error}");

    // An empty folder is taken, and a new one made where there is none.
    std::fs::remove_file(target.join("kept")).unwrap();
    run(&target).unwrap();
    run(&folder.path().join("new/deeper")).unwrap();
    assert!(tree(&target) == tree(&folder.path().join("new/deeper")));
}

#[test]
fn degrees_that_do_not_divide() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    for (model, options, said) in [
        ("tiny_dense", mcore(4, 1, 1), "num_key_value_heads (2) cannot be split into 4"),
        ("tiny_dense", mcore(1, 3, 1), "--pipeline-split"),
        ("tiny_dense", split(1, &[1, 2], 1), "1,2 has 3 layers"),
        ("tiny_dense", McoreOptions { pp: Some(3), ..split(1, &[1, 1], 1) }, "--pp is 3"),
        ("tiny_dense", mcore(1, 1, 2), "no experts"),
        ("tiny_dense", mcore(0, 1, 1), "times 0 rows"),
        ("tiny_moe", mcore(1, 1, 4), "num_experts (6) cannot be split into 4"),
        ("tiny_moe", mcore(1, 1, 0), "degree is 0"),
        ("tiny_moe", McoreOptions { etp: Some(2), ..mcore(1, 1, 1) }, "--etp"),
        ("tiny_dense", McoreOptions { vocab_multiple: 500_000_000, ..mcore(1, 1, 1) }, "usually 128"),
        ("tiny_moe", McoreOptions { vocab_multiple: 0, ..mcore(1, 1, 1) }, "multiple of 0"),
    ] {
        let error = refused(&target, |target| to_mcore(&tiny(model), target, &options)).to_string();
        assert!(error.contains(said), "{error}");
    }
}

#[test]
fn hugging_face_sources_that_are_not_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("target");
    let refuse = |number: usize, change: &dyn Fn(&mut Tensors)| {
        let hf = folder.path().join(number.to_string());
        changed_hf(&tiny("tiny_dense"), &hf, change);
        refused(&target, |target| to_mcore(&hf, target, &mcore(1, 1, 1)))
    };
    let removed = refuse(0, &|tensors| drop(tensors.remove(EMBED)));
    assert!(matches!(convert_error(removed), ConvertError::MissingTensor { name, .. } if name == EMBED));
    let added = refuse(1, &|tensors| {
        let tensor = tensors[EMBED].clone();
        tensors.insert("model.visual.class_embedding".into(), tensor);
    });
    let expected = "model.visual.class_embedding";
    assert!(matches!(convert_error(added), ConvertError::UnknownTensor { name, .. } if name == expected));
    let reshaped = refuse(2, &|tensors| tensors.get_mut(EMBED).unwrap().1 = vec![64, 512]);
    let error = convert_error(reshaped);
    assert!(matches!(&error, ConvertError::Shape { name, .. } if name == EMBED), "{error}");
    let key = "model.language_model.layers.1.self_attn.k_proj.weight";
    let mixed = refuse(3, &|tensors| {
        let (dtype, _, bytes) = tensors.get_mut(key).unwrap();
        *dtype = safetensors::Dtype::BF16;
        bytes.truncate(64 * 64 * 2);
    });
    assert!(matches!(convert_error(mixed), ConvertError::Dtypes { name, .. } if name == key));
    // That is seen before the target is begun, which cannot be here.
    let nowhere = Path::new("/proc/no/target");
    let early = to_mcore(&folder.path().join("3"), nowhere, &mcore(1, 1, 1)).unwrap_err();
    assert!(matches!(convert_error(early), ConvertError::Dtypes { .. }));
    let unwritable = to_mcore(&tiny("tiny_dense"), nowhere, &mcore(1, 1, 1)).unwrap_err();
    assert!(matches!(unwritable, ModelError::Write { .. }), "{unwritable}");
    let cut = folder.path().join("cut");
    changed_hf(&tiny("tiny_dense"), &cut, |_| ());
    let path = cut.join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    let error = convert_error(refused(&target, |target| to_mcore(&cut, target, &mcore(1, 1, 1))));
    assert!(error.to_string().contains("cut short"), "{error}");
    let hf = tiny("tiny_dense");
    let error = refused(&target, |target| to_hf(&hf, &hf, target)).to_string();
    assert!(error.contains("already"), "{error}");
}

#[test]
fn megatron_sources_that_are_not_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, target) = (tiny("tiny_dense"), folder.path().join("target"));
    let refuse = |spoil: &dyn Fn(&std::path::Path)| {
        let source = folder.path().join("source");
        to_mcore(&hf, &source, &mcore(2, 1, 1)).unwrap();
        spoil(&source.join("release/mp_rank_01/model_optim_rng.pt"));
        let before = tree(&source);
        let error = refused(&target, |target| to_hf(&source, &hf, target));
        assert!(tree(&source) == before);
        std::fs::remove_dir_all(&source).unwrap();
        error
    };
    let rename = |from: &'static str, to: &'static str| {
        move |path: &std::path::Path| {
            change_rank(path, |name, _, _| {
                if name == from {
                    *name = to.into();
                }
            })
        }
    };
    let removed = convert_error(refuse(&rename(QKV, "")));
    assert!(matches!(&removed, ConvertError::MissingTensor { name, .. } if name == QKV), "{removed}");
    assert!(removed.to_string().contains("mp_rank_01"), "{removed}");
    let extra = convert_error(refuse(&|path| {
        change_rank(path, |name, _, _| {
            if name.ends_with("linear_fc2._extra_state") && name.starts_with("adapter") {
                *name = "adapter.linear_fc3.weight".into();
            }
        })
    }));
    let expected = "adapter.linear_fc3.weight";
    assert!(matches!(&extra, ConvertError::UnknownTensor { name, .. } if name == expected), "{extra}");
    let reshaped = convert_error(refuse(&|path| {
        change_rank(path, |name, shape, _| {
            if name == QKV {
                shape.reverse();
            }
        })
    }));
    assert!(matches!(&reshaped, ConvertError::Shape { name, .. } if name == QKV), "{reshaped}");
    let other_bits = |path: &std::path::Path| {
        change_rank(path, |name, _, bytes| {
            if name == NORM {
                bytes[0] ^= 1;
            }
        })
    };
    let differs = convert_error(refuse(&other_bits));
    assert!(matches!(&differs, ConvertError::Replicas { name, .. } if name == NORM), "{differs}");
    let cut = refuse(&|path| {
        let bytes = std::fs::read(path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() / 2]).unwrap();
    });
    assert!(matches!(cut, ModelError::TorchFile(_)), "{cut}");
    let gone = refuse(&|path| std::fs::remove_dir_all(path.parent().unwrap()).unwrap());
    assert!(gone.to_string().contains("mp_rank_01"), "{gone}");

    // The first of two that differ is taken when the caller says so.
    let source = folder.path().join("source");
    to_mcore(&hf, &source, &mcore(2, 1, 1)).unwrap();
    other_bits(&source.join("release/mp_rank_01/model_optim_rng.pt"));
    let mut options = SourceOptions {
        dir: source.clone(),
        hf: Some(hf.clone()),
        trust_replicas: true,
        ..SourceOptions::default()
    };
    from_options(&options, &target).unwrap();
    let weights = |dir: &std::path::Path| std::fs::read(dir.join("model.safetensors")).unwrap();
    assert!(weights(&target) == weights(&hf));

    let other = folder.path().join("other");
    options.degrees = AskedDegrees { tp: Some(4), ..AskedDegrees::default() };
    let error = refused(&other, |target| from_options(&options, target));
    assert!(error.to_string().contains("missing ranks") || error.to_string().contains("--tp 4"), "{error}");
    options.degrees = AskedDegrees { tp: Some(1), ..AskedDegrees::default() };
    let error = refused(&other, |target| from_options(&options, target));
    assert!(error.to_string().contains("mp_rank_01"), "{error}");
    options.degrees = AskedDegrees { ep: Some(2), ..AskedDegrees::default() };
    let error = refused(&other, |target| from_options(&options, target));
    assert!(error.to_string().contains("expert parallel degree is 1, 2 was given"), "{error}");
    options.degrees = AskedDegrees::default();
    options.hf = None;
    let error = refused(&other, |target| from_options(&options, target));
    assert!(error.to_string().contains("--hf DIR"), "{error}");
    // The experts' configuration does not fit a dense checkpoint.
    options = SourceOptions { dir: source, hf: Some(tiny("tiny_moe")), ..SourceOptions::default() };
    let error = refused(&other, |target| from_options(&options, target));
    assert!(matches!(error, ModelError::Convert(_)), "{error}");
}

#[test]
fn sizes_that_no_bytes_stand_behind() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, source) = (folder.path().join("hf"), folder.path().join("source"));
    to_mcore(&tiny("tiny_dense"), &source, &mcore(1, 1, 1)).unwrap();
    // 2^29 rows would fill up this vocabulary.
    change_rank(&source.join("release/mp_rank_00/model_optim_rng.pt"), |name, shape, bytes| {
        if name.contains("embedding") {
            *shape = vec![1 << 30, 0];
            bytes.clear();
        }
    });
    changed_config("tiny_dense", &hf, |config| config["text_config"]["vocab_size"] = (1 << 29).into());
    let error = refused(&folder.path().join("target"), |target| to_hf(&source, &hf, target));
    let error = convert_error(error);
    assert!(matches!(&error, ConvertError::Shape { found, .. } if *found == [1 << 30, 0]), "{error}");
    for (key, size) in [("vocab_size", 1_u64 << 40), ("num_hidden_layers", 1 << 40), ("hidden_size", 0)] {
        changed_config("tiny_dense", &hf, |config| config["text_config"][key] = size.into());
        let error = refused(&folder.path().join("target"), |target| to_hf(&source, &hf, target));
        assert!(error.to_string().contains(key), "{error}");
    }
}

#[test]
fn experts_in_two_forms() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, target) = (folder.path().join("hf"), folder.path().join("target"));
    let fused = "model.language_model.layers.1.mlp.experts.down_proj";
    for whole in [false, true] {
        changed_hf(&tiny("tiny_moe"), &hf, |tensors| {
            let mut all = Vec::new();
            for expert in 0..6 {
                let name = format!("model.language_model.layers.1.mlp.experts.{expert}.down_proj.weight");
                all.extend(&tensors[&name].2);
                // All of them beside the fused one, or one of them only.
                if !whole && expert != 4 {
                    tensors.remove(&name);
                }
            }
            tensors.insert(fused.into(), (safetensors::Dtype::F32, vec![6, 64, 48], all));
        });
        let error = refused(&target, |target| to_mcore(&hf, target, &mcore(1, 1, 1))).to_string();
        assert!(error.contains(&format!("{fused} is of all experts of a layer, and model.")), "{error}");
        assert!(error.contains("layers.1.mlp.experts."), "{error}");
    }

    let source = folder.path().join("source");
    let rank = source.join("release/mp_rank_00/model_optim_rng.pt");
    let expert = "language_model.decoder.layers.0.mlp.experts.local_experts.0.linear_fc1.weight";
    for (from, to, said) in [
        (
            "adapter.linear_fc1._extra_state",
            "language_model.decoder.layers.0.mlp.experts.linear_fc1.weight0",
            "the same matrix",
        ),
        (
            expert,
            "language_model.decoder.layers.0.mlp.experts.weight1",
            "for grouped GEMM; load it in Megatron",
        ),
    ] {
        to_mcore(&tiny("tiny_moe"), &source, &mcore(1, 1, 1)).unwrap();
        change_rank(&rank, |name, _, _| {
            if name == from {
                *name = to.into();
            }
        });
        let error = refused(&target, |target| to_hf(&source, &tiny("tiny_moe"), target)).to_string();
        assert!(error.contains(to) && error.contains(said), "{error}");
        std::fs::remove_dir_all(&source).unwrap();
    }
}

#[test]
fn stages_of_two_saves() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, source, target) =
        (tiny("tiny_dense"), folder.path().join("source"), folder.path().join("target"));
    to_mcore(&hf, &source, &McoreOptions { extra_state: ExtraState::Empty, ..mcore(1, 2, 1) }).unwrap();
    set_iteration(&source.join("release/mp_rank_00_001/model_optim_rng.pt"), 500);
    let error = refused(&target, |target| to_hf(&source, &hf, target)).to_string();
    assert!(error.contains("mp_rank_00_001: its iteration is 500, the folder says 0"), "{error}");
}

#[test]
fn fused_experts_of_another_shape() {
    let folder = tempfile::tempdir().unwrap();
    let (hf, target) = (folder.path().join("hf"), folder.path().join("target"));
    let fused = "model.language_model.layers.1.mlp.experts.down_proj";
    changed_hf(&tiny("tiny_moe"), &hf, |tensors| {
        tensors.retain(|name, _| !name.contains("layers.1.mlp.experts."));
        let gate_up = (safetensors::Dtype::F32, vec![6, 96, 64], vec![0; 6 * 96 * 64 * 4]);
        tensors.insert("model.language_model.layers.1.mlp.experts.gate_up_proj".into(), gate_up);
        // [E, F, H], as other libraries keep them.
        tensors.insert(fused.into(), (safetensors::Dtype::F32, vec![6, 48, 64], vec![0; 6 * 48 * 64 * 4]));
    });
    let error = refused(&target, |target| to_mcore(&hf, target, &mcore(1, 1, 1))).to_string();
    assert!(
        error.contains(&format!("{fused} has shape [6, 48, 64]")) && error.contains("[6, 64, 48]"),
        "{error}"
    );
}
