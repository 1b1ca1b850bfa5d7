//! Six layouts that the reference converter made of the tiny models, with the vocabulary filled up to a multiple of 96
//! rows a rank.

use std::collections::BTreeMap;

use packd_inference::torch_file::{ArgsStyle, ExtraState, Node, TorchFile};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::support::*;

const MANIFEST: &str = include_str!("../fixtures/mcore_manifest.json");

fn described(file: &TorchFile, node: Node<'_>) -> Value {
    let Some(info) = node.as_tensor() else { return json!(node.class()) };
    let digest = Sha256::digest(file.tensor_bytes(info).unwrap());
    let hex: String = digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    json!([info.dtype.name(), info.shape, hex])
}

#[test]
fn files_are_those_of_the_reference_converter() {
    let manifest: BTreeMap<String, BTreeMap<String, Value>> = serde_json::from_str(MANIFEST).unwrap();
    assert_eq!(manifest.len(), 6);
    for (layout, ranks) in manifest {
        let (model, degrees) = layout.rsplit_once('_').unwrap();
        let degree = |name: &str| {
            let digits = degrees.split_once(name).map_or("1", |(_, rest)| &rest[..1]);
            digits.parse::<usize>().unwrap()
        };
        let mut options = mcore(degree("tp"), degree("pp"), degree("ep"));
        options.args = ArgsStyle::Namespace;
        options.extra_state = ExtraState::BytesIo;
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("mcore");
        to_mcore(&tiny(model), &target, &options).unwrap();

        let tracker = std::fs::read_to_string(target.join("latest_checkpointed_iteration.txt")).unwrap();
        assert_eq!(tracker, "release\n");
        let all = tree(&target);
        let all = all.keys().map(|path| path.display().to_string());
        let files: Vec<String> = all.filter(|path| !path.ends_with('/')).collect();
        let mut expected: Vec<String> =
            ranks.keys().map(|rank| format!("release/{rank}/model_optim_rng.pt")).collect();
        expected.insert(0, "latest_checkpointed_iteration.txt".into());
        assert_eq!(files, expected, "{layout}");
        for (rank, expected) in ranks {
            let path = target.join("release").join(&rank).join("model_optim_rng.pt");
            let file = TorchFile::open(&path).unwrap();
            let model: BTreeMap<&str, Value> =
                file.model().into_iter().map(|(_, name, node)| (name, described(&file, node))).collect();
            for (name, value) in expected["model"].as_object().unwrap() {
                assert_eq!(model.get(name.as_str()), Some(value), "{layout} {rank} {name}");
            }
            assert_eq!(model.len(), expected["model"].as_object().unwrap().len(), "{layout} {rank}");
            let top = file.root();
            let names: Vec<&str> = top.entries().map(|(name, _)| name.as_str().unwrap()).collect();
            assert_eq!(names, ["model", "checkpoint_version", "args", "iteration"]);
            assert_eq!(top.get("checkpoint_version").unwrap().as_float(), Some(3.0));
            assert_eq!(top.get("iteration").unwrap().as_int(), Some(0));
            assert_eq!(top.get("args").unwrap().class(), "argparse.Namespace");
        }
    }
}
