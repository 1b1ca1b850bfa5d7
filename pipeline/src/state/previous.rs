//! `--previous OUT`: measurements of records that did not change since an earlier run.

use std::collections::HashMap;
use std::path::Path;

use packd_stages::Measured;

use super::job_file::JobFile;
use super::ledger::Ledger;
use super::node::Node;
use super::rows::RowStore;
use super::unit::fetch_texts;
use crate::error::Error;
use crate::output::Output;

/// Options that do not change what is measured; all others must be as they were.
const FREE_KEYS: [&str; 28] = [
    "input",
    "seq_len",
    "algorithm",
    "scope",
    "window",
    "max_samples",
    "max_images",
    "max_patches",
    "pad_to_multiple",
    "overlong",
    "seed",
    "duplicate_id",
    "image_changed",
    "max_reject_rate",
    "fail_fast",
    "sample_class",
    "sample_module",
    "sample_class_name",
    "shard_prefix",
    "max_samples_per_shard",
    "max_shard_size",
    "shards_multiple",
    "val_fraction",
    "metadataset",
    "weight",
    "subflavors",
    "no_sqlite",
    "nodes",
];

/// What an earlier run measured, by the hash of the record's bytes.
pub(crate) struct Previous(HashMap<u128, Remembered>);

#[derive(Clone, Copy)]
struct Remembered {
    measured: Measured,
    image_stamp: u64,
}

impl Previous {
    /// Reads the measurements of the output in `folder`.
    ///
    /// # Errors
    /// The folder holds no run, or one that measured by other rules (named in the error).
    pub(crate) fn read(folder: &Path, job: &JobFile) -> Result<Self, Error> {
        let output = Output::open_existing(folder)?;
        let earlier = JobFile::read(&output)?;
        let other = |what: String| Error::OtherJob { path: folder.to_owned(), what };
        for (key, value) in &job.config {
            if !FREE_KEYS.contains(&key.as_str()) && earlier.config.get(key) != Some(value) {
                return Err(other(format!("it measured with another `{key}`; leave --previous out")));
            }
        }
        if earlier.counter != job.counter {
            return Err(other("it counted with another model or profile; leave --previous out".into()));
        }
        let mut units = Vec::new();
        for node in (0..earlier.slices.len() as u32).map(Node) {
            units.extend(Ledger::peek(&output, node)?.units);
        }
        let rows = RowStore::of_units(&output, &units)?;
        fetch_texts(&output, &units)?;
        let mut known = HashMap::with_capacity(rows.len() as usize);
        let mut ordinal = 0;
        for unit in &units {
            for details in unit.read_details(&output)? {
                let row = rows.get(ordinal)?;
                ordinal += 1;
                // A sample that was cut to an earlier seq_len is measured again.
                if row.rounds != 0 {
                    continue;
                }
                let measured = Measured {
                    item: row.item(),
                    text_tokens: details.text_tokens,
                    image_tokens: details.image_tokens,
                    rounds: 0,
                    rounds_dropped: 0,
                };
                known.insert(details.record_hash, Remembered { measured, image_stamp: row.image_stamp });
            }
        }
        Ok(Self(known))
    }

    /// The measurements of a record, if its images are the same files.
    pub(crate) fn get(
        &self,
        record_hash: u128,
        image_stamp: impl FnOnce() -> Option<u64>,
    ) -> Option<Measured> {
        let remembered = self.0.get(&record_hash)?;
        (image_stamp()? == remembered.image_stamp).then_some(remembered.measured)
    }

    /// How many records are known.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
