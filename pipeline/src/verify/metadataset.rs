//! The top-level `dataset.yaml`: it must lead to every folder of shards, once.

use serde_json::{Map, Value};

use super::context::Context;
use super::fault::FaultKind;
use packd_sinks::METADATA_FOLDER;

const FILE: &str = "dataset.yaml";

pub(super) fn check(context: &Context<'_>) {
    let folder = &context.layout.folder;
    let fault = |detail: String| context.faults.add(FaultKind::Metadataset, FILE, detail);
    let text = match std::fs::read_to_string(folder.join(FILE)) {
        Ok(text) => text,
        // A file that was written and is gone is named by its checksum.
        Err(_) if context.checksums.is_some() || context.faults.any() => return,
        Err(error) => return fault(format!("it cannot be read: {error}")),
    };
    let content: Map<String, Value> = match serde_saphyr::from_str(&text) {
        Ok(content) => content,
        Err(error) => return fault(format!("Energon cannot read it: {error}")),
    };
    let class = content.get("__class__").and_then(Value::as_str).unwrap_or_default();
    if !matches!(class, "MetadatasetV2" | "Metadataset") {
        return fault(format!("its class is {class:?}, not MetadatasetV2 or Metadataset"));
    }
    let Some(splits) = content.get("splits").and_then(Value::as_object) else {
        return fault("it has no `splits`".into());
    };
    if !splits.contains_key("train") {
        fault("it has no split train".into());
    }
    let mut reached = Vec::new();
    for (split, value) in splits {
        let mut paths = Vec::new();
        collect_paths(value, &mut paths);
        for path in paths {
            let target = folder.join(path);
            if target.is_file() {
                continue;
            }
            if !target.join(METADATA_FOLDER).is_dir() {
                fault(format!("split {split} leads to {path}, and there is no data set"));
            }
            let target = target.canonicalize().unwrap_or(target);
            if reached.contains(&(split, target.clone())) {
                fault(format!("split {split} leads to {path} twice"));
            }
            reached.push((split, target));
        }
    }
    for set in &context.layout.sets {
        let path = set.path.canonicalize().unwrap_or_else(|_| set.path.clone());
        if !reached.iter().any(|(_, target)| *target == path) {
            fault(format!("it does not lead to {}", set.prefix.trim_end_matches('/')));
        }
    }
}

/// Every `path` of a blend, however deep.
fn collect_paths<'a>(value: &'a Value, paths: &mut Vec<&'a str>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| collect_paths(value, paths)),
        Value::Object(map) => {
            for (key, value) in map {
                match value {
                    Value::String(path) if key == "path" => paths.push(path),
                    value => collect_paths(value, paths),
                }
            }
        }
        _ => {}
    }
}
