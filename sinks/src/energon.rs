//! The `.nv-meta` folder of a data set, as Megatron-Energon expects it.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use uuid::Uuid;

use crate::sqlite_index::SqliteIndex;
use crate::yaml::scalar;
use crate::{ShardIndex, SinkError, SqliteOptions, brace_collapse, create_folder, write_file};

/// The Energon version whose files are written; it stands in `.info.json`.
pub const ENERGON_VERSION: &str = "7.4.1";

/// The folder beside the shards that holds everything Energon needs to know.
pub const METADATA_FOLDER: &str = ".nv-meta";

/// The namespace of the data sets' UUIDs.
const UUID_NAMESPACE: Uuid = Uuid::from_u128(0x5d6f_2f0e_9a3b_4c57_8e1d_7061_636b_6400);

/// The `sample_loader.py` that is written for [`SampleType::Packed`].
pub const SAMPLE_LOADER: &str = include_str!("sample_loader.py");

/// What Energon turns a packed sample into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SampleType {
    /// A class with the fields of the trainer's `PackedCaptioningSample`, filled by `sample_loader.py`.
    Packed {
        /// The Python module.
        module: String,
        /// The class in it.
        class: String,
    },
    /// `CrudeWebdataset`: a dict of the parts, for the user's own cooker; needs no trainer import.
    Crude,
}

impl Default for SampleType {
    fn default() -> Self {
        Self::Packed {
            module: "aiak_training_llm.data.multimodal".into(),
            class: "PackedCaptioningSample".into(),
        }
    }
}

/// How the metadata is written.
#[derive(Debug, Clone, Default)]
pub struct EnergonOptions {
    /// What `dataset.yaml` names; `None` leaves a `dataset.yaml` that exists alone.
    pub sample_type: Option<SampleType>,
    /// The part of the shards, from the end, that goes to the `val` split: 0 ≤ fraction < 1.
    pub val_fraction: f64,
    /// How `index.sqlite` is built; `None` writes none (plain loading works without).
    pub sqlite: Option<SqliteOptions>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnergonSummary {
    /// Shards.
    pub shards: u64,
    /// Packed samples of the `train` split.
    pub train_samples: u64,
    /// Packed samples of the `val` split.
    pub val_samples: u64,
    /// The files, relative to the data set's folder.
    pub files: Vec<String>,
}

/// Writes `.nv-meta` for the shards of `folder`, which come sorted by name. Each shard's `.tar.idx` is
/// the shard writer's matter, or [`ShardIndex::write_tar_idx`]'s.
///
/// Shards may stream in from a ledger; one is held at a time. `.info.json` is written last: by it Energon
/// knows a data set.
///
/// # Errors
/// The iterator's own; [`SinkError::Dataset`] for no shards, unsorted shards, or a split that would be
/// empty; [`SinkError::DuplicateKey`]; [`SinkError::Create`] and its like.
pub fn write_energon_metadata<E: From<SinkError>, S: Borrow<ShardIndex>>(
    folder: &Path,
    shards: impl IntoIterator<Item = Result<S, E>>,
    options: &EnergonOptions,
) -> Result<EnergonSummary, E> {
    let meta = folder.join(METADATA_FOLDER);
    create_folder(&meta)?;
    let mut index = match &options.sqlite {
        Some(sqlite) => Some(SqliteIndex::create(meta.join("index.sqlite"), sqlite)?),
        None => None,
    };
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut identity = String::new();
    for shard in shards {
        let shard = shard?;
        let shard = shard.borrow();
        if counts.last_key_value().is_some_and(|(last, _)| *last >= shard.name) {
            let detail = format!("the shard {} does not come in the order of names", shard.name);
            return Err(SinkError::dataset(folder, detail).into());
        }
        if let Some(index) = &mut index {
            index.add(shard)?;
        }
        identity += &format!("{} {} {}\n", shard.name, shard.size, shard.checksum);
        counts.insert(shard.name.clone(), shard.samples.len() as u64);
    }
    let split = Split::new(folder, &counts, options.val_fraction)?;

    let mut files = Vec::new();
    if let Some(index) = index {
        index.finish()?;
        files.push("index.sqlite");
    }
    let mut write = |name: &'static str, text: &str| {
        files.push(name);
        write_file(meta.join(name), text.as_bytes())
    };
    if let Some(sample_type) = &options.sample_type {
        write("dataset.yaml", &dataset_yaml(sample_type))?;
        if *sample_type != SampleType::Crude {
            write("sample_loader.py", SAMPLE_LOADER)?;
        }
    }
    write("split.yaml", &split.yaml())?;
    write("index.uuid", &Uuid::new_v5(&UUID_NAMESPACE, identity.as_bytes()).to_string())?;
    write(".info.yaml", &info_yaml(&counts))?;
    write(".info.json", &info_json(&counts))?;
    let samples = |shards: &[&str]| shards.iter().map(|&shard| counts[shard]).sum();
    Ok(EnergonSummary {
        shards: counts.len() as u64,
        train_samples: samples(&split.train),
        val_samples: samples(&split.val),
        files: files.iter().map(|name| format!("{METADATA_FOLDER}/{name}")).collect(),
    })
}

/// Which shards belong to which split.
struct Split<'a> {
    train: Vec<&'a str>,
    val: Vec<&'a str>,
}

impl<'a> Split<'a> {
    fn new(folder: &Path, counts: &'a BTreeMap<String, u64>, val_fraction: f64) -> Result<Self, SinkError> {
        let shards: Vec<&str> = counts.keys().map(String::as_str).collect();
        if shards.is_empty() {
            return Err(SinkError::dataset(folder, "there are no shards"));
        }
        if let Some(name) = shards.iter().find(|name| name.contains(['{', '}', ',', '\\', '$'])) {
            let detail = format!("Energon expands braces in shard names: rename {name}");
            return Err(SinkError::dataset(folder, detail));
        }
        if !(0.0..1.0).contains(&val_fraction) {
            return Err(SinkError::dataset(
                folder,
                format!("val_fraction must be in 0..1, not {val_fraction}"),
            ));
        }
        let val = (shards.len() as f64 * val_fraction).round() as usize;
        if (val == 0 && val_fraction > 0.0) || val == shards.len() {
            let detail = format!(
                "val_fraction {val_fraction} of {} shards leaves {} empty: make more, smaller shards",
                shards.len(),
                if val == 0 { "val" } else { "train" },
            );
            return Err(SinkError::dataset(folder, detail));
        }
        let (train, val) = shards.split_at(shards.len() - val);
        Ok(Self { train: train.to_vec(), val: val.to_vec() })
    }

    fn yaml(&self) -> String {
        let mut text = String::from("split_parts:\n");
        for (split, shards) in [("train", &self.train[..]), ("val", &self.val), ("test", &[])] {
            if shards.is_empty() {
                text += &format!("  {split}: []\n");
                continue;
            }
            text += &format!("  {split}:\n");
            for expression in brace_collapse(shards) {
                text += &format!("  - {}\n", scalar(&expression));
            }
        }
        text + "exclude: []\n"
    }
}

fn dataset_yaml(sample_type: &SampleType) -> String {
    match sample_type {
        SampleType::Packed { module, class } => format!(
            "sample_type:\n  __module__: {}\n  __class__: {}\n\
             part_filter: sample_loader.py:part_filter\nsample_loader: sample_loader.py:sample_loader\n",
            scalar(module),
            scalar(class),
        ),
        SampleType::Crude => "__module__: megatron.energon\n__class__: CrudeWebdataset\n".into(),
    }
}

fn info_json(counts: &BTreeMap<String, u64>) -> String {
    #[derive(Serialize)]
    struct Info<'a> {
        energon_version: &'a str,
        shard_counts: &'a BTreeMap<String, u64>,
    }
    let info = Info { energon_version: ENERGON_VERSION, shard_counts: counts };
    // Text keys and numbers: this cannot fail.
    serde_json::to_string_pretty(&info).unwrap_or_default()
}

/// What Energon 5 and 6 read.
fn info_yaml(counts: &BTreeMap<String, u64>) -> String {
    let shards: String =
        counts.iter().map(|(name, count)| format!("  {}: {count}\n", scalar(name))).collect();
    format!("energon_version: {}\nshard_counts:\n{shards}", scalar(ENERGON_VERSION))
}
