//! What the checks share.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use packd_sinks::{Checksums, hash_file};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::fault::{FaultKind, Faults};
use super::rules::Rules;
use crate::packed_set::{Layout, PackedJson};

/// Everything a check needs, and where it leaves what it finds; shared by all threads.
pub(super) struct Context<'a> {
    pub(super) layout: &'a Layout,
    pub(super) rules: Rules,
    pub(super) faults: Faults,
    /// What was written, if the output says it.
    pub(super) checksums: Option<Checksums>,
    /// Which shard has a checksum.
    shard_of: HashMap<String, String>,
    totals: Mutex<Totals>,
    packs: Mutex<Packs>,
    warnings: Mutex<BTreeSet<String>>,
}

/// Sums over the packs.
#[derive(Debug, Clone, Default)]
pub(super) struct Totals {
    pub(super) shards: u64,
    pub(super) bytes: u64,
    pub(super) packs: u64,
    pub(super) sub_samples: u64,
    pub(super) images: u64,
    /// Packs that hold one sub-sample.
    pub(super) single: u64,
    /// Packs whose lengths were counted again.
    pub(super) recounted: u64,
    /// Packs whose lengths are known, and their tokens.
    pub(super) measured: u64,
    pub(super) tokens: u64,
    /// Packs with other lengths under the model that was asked for.
    pub(super) differing: u64,
    /// Packs with video frames, whose lengths could not be counted again.
    pub(super) frames: u64,
}

/// Where every pack was found.
#[derive(Default)]
pub(super) struct Packs {
    pub(super) shards: Vec<PathBuf>,
    pub(super) by_key: HashMap<u128, FoundPack>,
    /// Shards of which no pack could be read.
    pub(super) unread: HashSet<String>,
    /// Shards that are not as they were written, relative to the folder that is verified. Whether that
    /// needs a fault of its own is known when all shards were read.
    pub(super) changed: HashSet<String>,
}

/// A pack in a tar.
#[derive(Debug, Clone, Copy)]
pub(super) struct FoundPack {
    /// Position in [`Packs::shards`].
    pub(super) shard: u32,
    pub(super) offset: u64,
    /// Of its sub-samples ([`Digest`]); `None` when it has a fault of its own.
    pub(super) digest: Option<u64>,
    /// The tables know it.
    pub(super) listed: bool,
}

/// Whether a shard's bytes are those that were written.
#[derive(Debug, PartialEq)]
pub(super) enum Identity {
    /// They are, or nothing says what was written.
    Same,
    /// They are those of another shard.
    Of(String),
    /// They are not.
    Changed,
}

impl<'a> Context<'a> {
    pub(super) fn new(layout: &'a Layout, rules: Rules) -> Self {
        let faults = Faults::default();
        let path = layout.folder.join(Checksums::FILE_NAME);
        let checksums = if !layout.is_output {
            None
        } else if path.exists() {
            let read = Checksums::read(&path);
            read.map_err(|error| faults.add(FaultKind::FileChanged, Checksums::FILE_NAME, error.to_string()))
                .ok()
        } else if layout.run_of.is_some() {
            faults.add(
                FaultKind::Unfinished,
                Checksums::FILE_NAME,
                "the run has not finished: run `packd run` again",
            );
            None
        } else {
            None
        };
        let shard_of = checksums.iter().flat_map(Checksums::iter).filter(|(file, _)| file.ends_with(".tar"));
        let shard_of = shard_of.map(|(file, checksum)| (checksum.to_owned(), file.to_owned())).collect();
        let warnings = rules.warnings.iter().cloned().collect();
        Self {
            layout,
            rules,
            faults,
            checksums,
            shard_of,
            totals: Mutex::default(),
            packs: Mutex::default(),
            warnings: Mutex::new(warnings),
        }
    }

    pub(super) fn totals(&self) -> MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn packs(&self) -> MutexGuard<'_, Packs> {
        self.packs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn warn(&self, warning: impl Into<String>) {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).insert(warning.into());
    }

    pub(super) fn warnings(&self) -> Vec<String> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    pub(super) fn identity(&self, file: &str, checksum: &str) -> Identity {
        let Some(written) = self.checksums.as_ref().and_then(|list| list.get(file)) else {
            return Identity::Same;
        };
        if written == checksum {
            return Identity::Same;
        }
        self.shard_of.get(checksum).map_or(Identity::Changed, |other| Identity::Of(other.clone()))
    }

    /// Whether a file of the output is there and has the checksum that was written (if one was).
    pub(super) fn is_intact(&self, file: &str) -> bool {
        let Ok(found) = hash_file(&self.layout.folder.join(file)) else { return false };
        self.checksums.as_ref().and_then(|list| list.get(file)).is_none_or(|written| written == found)
    }

    /// Notes where a pack stands, and finds a second one with its key.
    pub(super) fn register(&self, shard: u32, file: &str, key: &str, offset: u64, digest: Option<u64>) {
        let found = FoundPack { shard, offset, digest, listed: false };
        let mut packs = self.packs();
        let Some(other) = packs.by_key.insert(xxh3_128(key.as_bytes()), found) else { return };
        // Which of the two the tables mean cannot be told.
        if let Some(found) = packs.by_key.get_mut(&xxh3_128(key.as_bytes())) {
            found.digest = None;
        }
        let other = packs.shards[other.shard as usize].clone();
        drop(packs);
        // Which of the two is found first depends on the threads: the message must not.
        let other = other.strip_prefix(&self.layout.folder).unwrap_or(&other).display().to_string();
        let (first, second) =
            if other.as_str() <= file { (other.as_str(), file) } else { (file, other.as_str()) };
        let detail =
            format!("the key stands in {first} as well: Energon needs keys that are unique over all shards");
        self.faults.add_for_key(FaultKind::DuplicateKey, second, key, detail);
    }
}

/// What tables and tars must agree on about the sub-samples of a pack.
pub(super) struct Digest(Xxh3);

impl Digest {
    pub(super) fn new() -> Self {
        Self(Xxh3::new())
    }

    pub(super) fn add(&mut self, id: Option<&str>, source: &str, offset: u64, length: u64, images: u64) {
        for text in [id.map_or("-", |_| "+"), id.unwrap_or(""), source] {
            self.0.update(&(text.len() as u64).to_le_bytes());
            self.0.update(text.as_bytes());
        }
        for number in [offset, length, images] {
            self.0.update(&number.to_le_bytes());
        }
    }

    pub(super) fn finish(self) -> u64 {
        self.0.digest()
    }

    /// Of a packed json; `None` without packd's keys.
    pub(super) fn of(packed: &PackedJson) -> Option<u64> {
        let mut digest = Self::new();
        for sub in &packed.sub_samples {
            let (source, offset) = sub.source.as_ref()?;
            digest.add(sub.id.as_deref(), source, *offset, sub.length?, sub.images as u64);
        }
        Some(digest.finish())
    }
}
