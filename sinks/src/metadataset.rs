//! The top-level `dataset.yaml`: an Energon Metadataset over the folders of all nodes.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::yaml::scalar;
use crate::{SinkError, write_file};

/// How the folders of a Metadataset are mixed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Blend {
    /// `blend_epochized`: every packed sample once an epoch.
    #[default]
    Epochized,
    /// `blend`: folders are drawn from by weight; not once an epoch.
    Weighted,
    /// The older class `Metadataset`, with `datasets` and weights; not once an epoch.
    V1,
}

/// One data set folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadatasetEntry {
    /// The folder, relative to the yaml (`./node_000/webdataset`) or absolute.
    pub path: String,
    /// The weight in the `train` split, usually its packed samples; 0 leaves the folder out.
    pub train_weight: u64,
    /// The weight in the `val` split; 0 leaves the folder out.
    pub val_weight: u64,
    /// What Energon attaches to every sample of the folder as `__subflavors__`.
    pub subflavors: BTreeMap<String, Value>,
}

/// Writes the Metadataset; the `val` split is there if a folder has one.
///
/// # Errors
/// [`SinkError::Dataset`] when no folder has a `train` split; [`SinkError::Create`] or [`SinkError::Write`].
pub fn write_metadataset(path: &Path, entries: &[MetadatasetEntry], blend: Blend) -> Result<(), SinkError> {
    if entries.iter().all(|entry| entry.train_weight == 0) {
        return Err(SinkError::dataset(path, "no folder has packed samples to train on"));
    }
    let class = if blend == Blend::V1 { "Metadataset" } else { "MetadatasetV2" };
    let mut text = format!("__module__: megatron.energon\n__class__: {class}\nsplits:\n");
    text += &split("train", entries.iter().map(|e| (e, e.train_weight)), blend);
    text += &split("val", entries.iter().map(|e| (e, e.val_weight)), blend);
    write_file(path, text.as_bytes())
}

fn split<'a>(name: &str, folders: impl Iterator<Item = (&'a MetadatasetEntry, u64)>, blend: Blend) -> String {
    let list = match blend {
        Blend::Epochized => "blend_epochized",
        Blend::Weighted => "blend",
        Blend::V1 => "datasets",
    };
    let mut text = String::new();
    for (entry, weight) in folders.filter(|&(_, weight)| weight > 0) {
        if text.is_empty() {
            text = format!("  {name}:\n    {list}:\n");
        }
        text += &match blend {
            Blend::Epochized => "      - repetitions: 1\n".to_owned(),
            Blend::Weighted | Blend::V1 => format!("      - weight: {weight}\n"),
        };
        text += &format!("        path: {}\n", scalar(&entry.path));
        if !entry.subflavors.is_empty() {
            // A JSON value is a YAML value in flow style.
            let pairs = entry.subflavors.iter().map(|(key, value)| format!("{}: {value}", scalar(key)));
            text += &format!("        subflavors: {{{}}}\n", pairs.collect::<Vec<_>>().join(", "));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_split_with_and_without_weights() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("dataset.yaml");
        let node = |n, train_weight, val_weight| MetadatasetEntry {
            path: format!("./node_{n:03}/webdataset"),
            train_weight,
            val_weight,
            subflavors: BTreeMap::from([("augmentation".to_owned(), Value::Bool(false))]),
        };
        write_metadataset(&path, &[node(0, 5, 0)], Blend::Epochized).unwrap();
        let want = "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    blend_epochized:\n      \
                    - repetitions: 1\n        path: ./node_000/webdataset\n        subflavors: {augmentation: false}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), want);

        write_metadataset(&path, &[node(0, 5, 0), node(1, 7, 2)], Blend::V1).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("__class__: Metadataset\n") && text.contains("- weight: 7\n"), "{text}");
        let val = text.split_once("  val:\n    datasets:\n").unwrap().1;
        assert!(val.contains("- weight: 2\n") && !val.contains("node_000"), "{text}");

        assert!(write_metadataset(&path, &[node(0, 0, 1)], Blend::Weighted).is_err());
    }
}
