//! What `verify` can find, and where it is collected.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

/// Faults of one kind that are kept with their place; all are counted.
const KEPT: usize = 1000;

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $code:literal,)*) => {
        /// The kind of a fault; its code never changes.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[non_exhaustive]
        pub enum FaultKind { $($(#[$doc])* #[serde(rename = $code)] $variant,)* }

        impl FaultKind {
            /// The code, as `shard-missing`.
            pub fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)* }
            }
        }
    };
}

kinds! {
    /// The run that writes this output has not finished.
    Unfinished = "unfinished",
    /// A file that was written is gone.
    FileMissing = "file-missing",
    /// A file is not what was written, by its checksum.
    FileChanged = "file-changed",
    /// A tar that cannot be read to its end.
    TarDamaged = "tar-damaged",
    /// A shard that Energon's files list, and that is not there.
    ShardMissing = "shard-missing",
    /// A shard that `.info.json` or `.info.yaml` does not list.
    ShardUnlisted = "shard-unlisted",
    /// A shard that holds what belongs to another one.
    ShardSwapped = "shard-swapped",
    /// A `.tar.idx` that is missing or points elsewhere.
    TarIdx = "tar-idx",
    /// `.info.json` or `.info.yaml`.
    Info = "info",
    /// `split.yaml`.
    Split = "split",
    /// `index.sqlite`: its schema or a row.
    Sqlite = "sqlite",
    /// `dataset.yaml` of a folder.
    DatasetYaml = "dataset-yaml",
    /// `sample_loader.py`.
    SampleLoader = "sample-loader",
    /// The top-level `dataset.yaml`.
    Metadataset = "metadataset",
    /// Two packed samples with one key.
    DuplicateKey = "duplicate-key",
    /// A packed sample whose bytes are not those that were written.
    SampleChanged = "sample-changed",
    /// A packed sample that the tables list, and that no shard holds.
    PackMissing = "pack-missing",
    /// A member that the packed json needs, and that is not there.
    MemberMissing = "member-missing",
    /// A member that the packed json does not know.
    MemberExtra = "member-extra",
    /// A packed json that cannot be used.
    Json = "json",
    /// An image that cannot be opened, or is cut.
    Image = "image",
    /// Numbers of prompts and captions that differ.
    Rounds = "rounds",
    /// A length that is not what the tar gives when it is counted again.
    Length = "length",
    /// `cu_lengths` that are not the sums of the lengths.
    CuLengths = "cu-lengths",
    /// A pack longer than seq_len.
    OverSeqLen = "over-seq-len",
    /// A pack over `max_samples`, `max_images` or `max_patches`.
    OverLimit = "over-limit",
    /// A sub-sample that the trainer would fail on.
    Uncountable = "uncountable",
    /// The sub-samples of a pack are not those of the tables.
    SubSample = "sub-sample",
    /// A table that contradicts another one.
    Table = "table",
    /// accepted + rejected ≠ read.
    Records = "records",
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Fault {
    /// What kind of fault.
    pub kind: FaultKind,
    /// The file, relative to the folder that was verified.
    pub file: String,
    /// The packed sample's key, where it is one sample's fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// What is wrong.
    pub detail: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.file)?;
        if let Some(key) = &self.key {
            write!(f, ": {key}")?;
        }
        write!(f, ": {}", self.detail)
    }
}

/// The faults found so far; what is kept does not depend on the order in which threads find them.
#[derive(Default)]
pub(crate) struct Faults(Mutex<Found>);

#[derive(Default)]
struct Found {
    kept: BTreeMap<FaultKind, BTreeSet<Fault>>,
    counts: BTreeMap<FaultKind, u64>,
    files: HashSet<String>,
}

impl Faults {
    pub(crate) fn add(&self, kind: FaultKind, file: &str, detail: impl Into<String>) {
        self.push(Fault { kind, file: file.to_owned(), key: None, detail: detail.into() });
    }

    pub(crate) fn add_for_key(&self, kind: FaultKind, file: &str, key: &str, detail: impl Into<String>) {
        self.push(Fault { kind, file: file.to_owned(), key: Some(key.to_owned()), detail: detail.into() });
    }

    fn push(&self, fault: Fault) {
        let mut found = self.lock();
        *found.counts.entry(fault.kind).or_default() += 1;
        found.files.insert(fault.file.clone());
        let kept = found.kept.entry(fault.kind).or_default();
        kept.insert(fault);
        if kept.len() > KEPT {
            kept.pop_last();
        }
    }

    /// Whether something was found in a file.
    pub(crate) fn has(&self, file: &str) -> bool {
        self.lock().files.contains(file)
    }

    /// Whether anything was found.
    pub(crate) fn any(&self) -> bool {
        !self.lock().counts.is_empty()
    }

    /// The faults in order, and how many there are of each kind.
    pub(crate) fn into_parts(self) -> (Vec<Fault>, BTreeMap<FaultKind, u64>) {
        let found = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        (found.kept.into_values().flatten().collect(), found.counts)
    }

    fn lock(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
