//! `packd merge`: one Metadataset over several finished outputs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use packd_config::{Config, Metadataset, Weight};
use packd_sinks::{METADATA_FOLDER, MetadatasetEntry, write_metadataset};
use serde::Serialize;

use crate::error::Error;
use crate::finalize::{blend, entry, read_done};
use crate::output::Output;
use crate::packed_set::{DataSet, Layout};
use crate::state::commits::{Commit, WrittenNode};
use crate::state::job_file::JobFile;
use crate::state::node::Node;
use crate::verify::{Info, split_sizes};

/// How outputs are merged.
#[derive(Debug, Clone, Copy)]
pub struct MergeOptions {
    /// The form of the yaml.
    pub metadataset: Metadataset,
    /// What the weights are, where it has some.
    pub weight: Weight,
}

/// One folder of a merged Metadataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MergedSet {
    /// The folder as the yaml names it.
    pub path: String,
    /// Its weight in the `train` split.
    pub train: u64,
    /// Its weight in the `val` split.
    pub val: u64,
    /// Tokens of one of its packs, where packd packed it.
    pub seq_len: Option<u32>,
}

/// Writes a Metadataset over finished outputs of packd, or other folders that Energon loads. Paths in it are relative
/// to its own folder.
///
/// # Errors
/// An output that is not finished, outputs of different `seq_len`, a folder that is no data set, a yaml that exists.
pub fn merge(folders: &[PathBuf], yaml: &Path, options: &MergeOptions) -> Result<Vec<MergedSet>, Error> {
    if yaml.exists() {
        let help = "name a file that does not exist: packd never overwrites";
        return Err(Error::DataSet { path: yaml.to_owned(), message: "it exists".into(), help });
    }
    let base = match yaml.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let base = base.canonicalize().map_err(|error| data_set(base, error.to_string()))?;
    let (mut entries, mut merged) = (Vec::new(), Vec::new());
    for folder in folders {
        let layout = Layout::find(folder)?;
        let (found, seq_len) = match layout.is_output {
            true => of_output(folder, options.weight)?,
            false => (vec![of_data_set(&layout.sets[0], options.weight)?], None),
        };
        for MetadatasetEntry { path, train_weight, val_weight, subflavors } in found {
            let path = relative(&base, Path::new(&path))?;
            if merged.iter().any(|set: &MergedSet| set.path == path) {
                return Err(data_set(folder, "it is named twice".into()));
            }
            merged.push(MergedSet { path: path.clone(), train: train_weight, val: val_weight, seq_len });
            entries.push(MetadatasetEntry { path, train_weight, val_weight, subflavors });
        }
    }
    let mut lengths: Vec<u32> = merged.iter().filter_map(|set| set.seq_len).collect();
    lengths.sort_unstable();
    lengths.dedup();
    if let [shorter, longer, ..] = lengths[..] {
        let message = format!("packs of {shorter} and of {longer} tokens: a trainer has one sequence length");
        let help = "merge outputs of one seq_len; pack the others again";
        return Err(Error::DataSet { path: yaml.to_owned(), message, help });
    }
    write_metadataset(yaml, &entries, blend(options.metadataset))?;
    Ok(merged)
}

fn data_set(path: &Path, message: String) -> Error {
    let help = "name finished outputs of packd, or folders that Energon loads";
    Error::DataSet { path: path.to_owned(), message, help }
}

/// The nodes of an output, with its `seq_len`.
fn of_output(folder: &Path, weight: Weight) -> Result<(Vec<MetadatasetEntry>, Option<u32>), Error> {
    let output = Output::open_existing(folder)?;
    if read_done(&output)?.is_none() {
        return Err(data_set(folder, "its run is not finished".into()));
    }
    let job = JobFile::read(&output)?;
    let config: Config =
        serde_json::from_value(job.config.into()).map_err(|error| data_set(folder, error.to_string()))?;
    let mut entries = Vec::new();
    for node in Node::all(config.nodes) {
        let written = WrittenNode::read(&output, node)?;
        let missing = || data_set(folder, format!("what node {} wrote is not recorded", node.0));
        let written = written.ok_or_else(missing)?;
        if written.shards.is_empty() {
            continue;
        }
        if weight == Weight::Input && written.sub_samples == [0, 0] {
            let message =
                "it was written by a packd that did not count the records of each folder".to_owned();
            return Err(Error::DataSet {
                path: folder.to_owned(),
                message,
                help: "leave --weight input out",
            });
        }
        let path = output.path(&node.webdataset()).to_string_lossy().into_owned();
        entries.push(entry(path, &written, weight, config.subflavors.clone()));
    }
    Ok((entries, config.seq_len))
}

/// A folder that packd did not write, or one node of an output.
fn of_data_set(set: &DataSet, weight: Weight) -> Result<MetadatasetEntry, Error> {
    if weight == Weight::Input {
        let message = "only whole outputs of packd tell how many input records they hold".to_owned();
        return Err(Error::DataSet { path: set.path.clone(), message, help: "leave --weight input out" });
    }
    let counts = [".info.json", ".info.yaml"].iter().find_map(|name| Info::read(set, name));
    let missing = || Err(format!("{METADATA_FOLDER} holds no .info.json; `packd index` writes it"));
    let sizes = counts.unwrap_or_else(missing).and_then(|counts| split_sizes(set, &counts));
    let [train_weight, val_weight] = sizes.map_err(|message| data_set(&set.path, message))?;
    let path = set.path.to_string_lossy().into_owned();
    Ok(MetadatasetEntry { path, train_weight, val_weight, subflavors: BTreeMap::new() })
}

/// `folder` as it is seen from `base`, a resolved path.
fn relative(base: &Path, folder: &Path) -> Result<String, Error> {
    let folder = folder.canonicalize().map_err(|error| data_set(folder, error.to_string()))?;
    let same = base.components().zip(folder.components()).take_while(|(a, b)| a == b).count();
    let mut path = match base.components().count() - same {
        0 => PathBuf::from("."),
        up => std::iter::repeat_n("..", up).collect(),
    };
    path.extend(folder.components().skip(same));
    Ok(path.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_named_from_the_yaml() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        for folder in ["a/b", "a/c/d"] {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        let from = |base: &str, folder: &str| relative(&root.join(base), &root.join(folder)).unwrap();
        assert_eq!(from("a", "a/b"), "./b");
        assert_eq!(from("a/b", "a/c/d"), "../c/d");
        assert_eq!(from("a/c/d", "a"), "../..");
        assert!(relative(&root, &root.join("none")).is_err());
    }
}
