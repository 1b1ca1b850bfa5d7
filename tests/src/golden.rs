//! Golden values: what the trainer's own libraries gave, one JSON object a line, compressed.

use std::path::PathBuf;

use serde::de::DeserializeOwned;

/// More than any golden file holds, in bytes.
const CAPACITY: usize = 64 << 20;

/// The records of `tests/golden/NAME.jsonl.zst`.
///
/// # Panics
/// If the file is missing or a line is not of the expected shape.
pub fn records<T: DeserializeOwned>(name: &str) -> Vec<T> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("golden/{name}.jsonl.zst"));
    let compressed = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let bytes = zstd::bulk::decompress(&compressed, CAPACITY).unwrap_or_else(|e| panic!("{name}: {e}"));
    let text = String::from_utf8(bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
    text.lines()
        .enumerate()
        .map(|(number, line)| {
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{name} line {}: {e}", number + 1))
        })
        .collect()
}
