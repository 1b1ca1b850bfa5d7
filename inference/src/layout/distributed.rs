//! Distributed checkpoints: one global set of tensors, cut into files that have nothing to do with ranks.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::tree::{Saved, list};
use crate::error::{ModelError, Result};

/// A distributed checkpoint. It is named here and not read: load it in Megatron and save it with
/// `--ckpt-format torch` to convert it.
#[derive(Clone, Debug, Serialize)]
pub struct Distributed {
    /// Its folder.
    pub dir: PathBuf,
    /// Release or iteration, by the folder's name.
    pub saved: Saved,
    /// The format by `metadata.json`: `torch_dist`, `zarr`, …
    pub backend: String,
    /// Why it was taken for one: the files that told it.
    pub reason: String,
    /// Number of `.distcp` files.
    pub shards: usize,
    /// Bytes of them.
    pub bytes: u64,
    /// What is wrong, one sentence each.
    pub problems: Vec<String>,
}

/// Files that only a distributed checkpoint has.
const SIGNS: [&str; 3] = [".metadata", "metadata.json", "common.pt"];

/// Whether a folder with these names is one.
pub(super) fn is_one(names: &[String]) -> bool {
    names.iter().any(|name| SIGNS.contains(&name.as_str()) || name.ends_with(".distcp"))
}

pub(super) fn read(dir: &Path, saved: Saved) -> Result<Distributed> {
    let names = list(dir)?;
    let shards: Vec<&String> = names.iter().filter(|name| name.ends_with(".distcp")).collect();
    let mut bytes = 0;
    for name in &shards {
        let path = dir.join(name);
        bytes += path.metadata().map_err(|source| ModelError::Read { path, source })?.len();
    }
    let has = |sign: &&str| names.iter().any(|name| name == sign);
    let mut signs: Vec<String> = SIGNS.into_iter().filter(has).map(str::to_owned).collect();
    signs.extend(shards.first().map(|first| format!("{first}, … ({} in all)", shards.len())));
    let mut problems: Vec<String> =
        SIGNS.into_iter().filter(|sign| !has(sign)).map(|sign| format!("{sign} is missing")).collect();
    let backend = backend(&dir.join("metadata.json")).unwrap_or_else(|| {
        if has(&"metadata.json") {
            problems.push("metadata.json does not say its sharded_backend".into());
        }
        "torch_dist".into()
    });
    if backend == "torch_dist" && shards.is_empty() {
        problems.push("there are no .distcp files".into());
    }
    if names.iter().any(|name| name.starts_with("mp_rank_")) {
        problems.push("there are mp_rank_… folders too; they were not looked at".into());
    }
    let reason = format!("it has {}", signs.join(", "));
    Ok(Distributed { dir: dir.to_owned(), saved, backend, reason, shards: shards.len(), bytes, problems })
}

fn backend(path: &Path) -> Option<String> {
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    Some(json.get("sharded_backend")?.as_str()?.to_owned())
}
