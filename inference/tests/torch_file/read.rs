//! Files of real torch.

use std::collections::BTreeMap;
use std::path::Path;

use packd_inference::torch_file::{Node, ReadOptions, TorchFile, Value};
use sha2::{Digest, Sha256};

use crate::support::*;

/// File to name to [dtype, shape, first 32 hex digits of the SHA-256 of the bytes].
type Expected = BTreeMap<String, BTreeMap<String, serde_json::Value>>;

fn sum(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    hex[..32].to_owned()
}

fn check_against(list: &str) -> usize {
    let expected: Expected = serde_json::from_str(&std::fs::read_to_string(fixture(list)).unwrap()).unwrap();
    let mut checked = 0;
    for (name, tensors) in expected {
        let file = open(&name);
        let model: BTreeMap<&str, Node<'_>> =
            file.model().into_iter().map(|(_, name, node)| (name, node)).collect();
        for (key, expected) in tensors {
            let node = model.get(key.as_str()).unwrap_or_else(|| panic!("{name} has no {key}"));
            if let Some(class) = expected.as_str() {
                assert_eq!(node.class(), class, "{name} {key}");
                continue;
            }
            let info = node.as_tensor().unwrap_or_else(|| panic!("{name} {key} is {node:?}"));
            let bytes = file.tensor_bytes(info).unwrap();
            let found = serde_json::json!([info.dtype, info.shape, sum(&bytes)]);
            assert_eq!(found, expected, "{name} {key}");
            checked += 1;
        }
    }
    checked
}

#[test]
fn tensors_of_real_torch_are_read_whatever_their_views_are() {
    assert_eq!(check_against("expected.json"), 30);
}

#[test]
fn tensors_of_the_reference_converter_are_read() {
    assert_eq!(check_against("converter.json"), 10);
    // A view into a storage that holds both ranks.
    let file = open("patch_tp2_rank1.pt");
    let patch = file.root().get("model").unwrap().get("vision_model.patch_embed.proj.weight").unwrap();
    let patch = patch.as_tensor().unwrap();
    assert_eq!((patch.offset, patch.shape.as_slice()), (18816, &[32, 588][..]));
    assert_eq!(file.storage_bytes(patch.storage).len(), 64 * 588 * 4);
    assert!(matches!(file.tensor_bytes(patch).unwrap(), std::borrow::Cow::Borrowed(_)));
}

#[test]
fn values_beside_tensors_are_read_or_kept_opaque() {
    let file = open("megatron.pt");
    let root = file.root();
    assert_eq!(root.get("checkpoint_version").unwrap().as_float(), Some(3.0));
    assert_eq!(root.get("iteration").unwrap().as_int(), Some(17));
    let args = root.get("args").unwrap();
    assert_eq!(args.class(), "argparse.Namespace");
    assert_eq!(args.get("num_layers").unwrap().as_int(), Some(2));
    assert_eq!(args.get("lr").unwrap().as_float(), Some(1e-4));
    assert_eq!(args.get("minus").unwrap().as_int(), Some(-(1 << 40)));
    assert!(matches!(args.get("big").unwrap().value(), Value::BigInt(bytes) if bytes.len() == 11));
    assert_eq!(
        args.get("data_path").unwrap().items().map(|it| it.as_str().unwrap()).collect::<Vec<_>>(),
        ["x", "y"]
    );
    assert_eq!(args.get("params_dtype").unwrap().describe(), "torch.bfloat16");
    assert_eq!(args.get("colour").unwrap().class(), "__main__.Colour");
    assert_eq!(args.get("shape").unwrap().describe(), "a tuple of 2");
    let extra = root.get("model").unwrap().get("a._extra_state").unwrap();
    assert_eq!(extra.class(), "_io.BytesIO");
    let Value::Object(object) = extra.value() else { panic!("{extra:?}") };
    let content = extra.at(object.state.unwrap()).items().next().unwrap();
    let Value::Bytes(content) = content.value() else { panic!("{content:?}") };
    let inner = TorchFile::from_bytes(content.to_vec(), Path::new("inner"), &ReadOptions::default()).unwrap();
    assert_eq!(inner.root().value(), &Value::None);
    let simple = root.get("extra").unwrap();
    assert_eq!(simple.class(), "types.SimpleNamespace");
    assert_eq!(simple.get("b").unwrap().value(), &Value::Bytes([0, 0xff][..].into()));
    assert_eq!(simple.get("d").unwrap().value(), &Value::Bytes(b"xy"[..].into()));
    assert!(matches!(simple.get("c").unwrap().value(), Value::Set(items) if items.len() == 2));
    assert!(
        matches!(root.get("storage").unwrap().value(), Value::Storage(id) if file.storage_bytes(*id) == [0, 1, 2])
    );
    assert!(file.globals().contains("numpy._core.multiarray._reconstruct"), "{:?}", file.globals());
    assert!(root.walk().all(|node| node.describe().len() < 300));
}

#[test]
fn old_and_new_containers_and_protocols_are_read() {
    let bytes = |file: &TorchFile| {
        let node = file.root().get("w").unwrap();
        file.tensor_bytes(node.as_tensor().unwrap()).unwrap().into_owned()
    };
    let new = bytes(&open("new.pt"));
    for name in ["archive_1_6.pt", "protocol_4.pt", "protocol_5.pt", "no_crc.pt"] {
        assert_eq!(bytes(&open(name)), new, "{name}");
    }
    let file = open("protocol_4.pt");
    let items: Vec<String> = file.root().get("t").unwrap().items().map(Node::describe).collect();
    assert_eq!(items, ["1", "2 bytes", "\"é\"", "a set of 1", "a set of 1"]);
    let file = open("virtual.pt");
    let parts: Vec<(usize, &str)> = file.model().iter().map(|(part, name, _)| (*part, *name)).collect();
    assert_eq!(parts, [(0, "x"), (1, "x")]);
}
