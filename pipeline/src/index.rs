//! `packd index`: Energon's files for a folder of tars that exists already.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use packd_sinks::{
    EnergonOptions, EnergonSummary, METADATA_FOLDER, SampleType, ShardIndex, SinkError, SqliteOptions,
    scan_shard, write_energon_metadata,
};
use rayon::prelude::*;
use tempfile::TempDir;
use xxhash_rust::xxh3::xxh3_128;

use crate::error::Error;
use crate::packed_set::find_tars;

/// Repeated keys that are named.
const NAMED: usize = 10;

/// What is indexed, and how.
#[derive(Debug, Clone)]
pub struct IndexOptions {
    /// The folder of tars, also in subfolders.
    pub folder: PathBuf,
    /// What `dataset.yaml` names. `None` keeps a `dataset.yaml` that exists; without one it is told by
    /// the parts: the trainer's packed class for packed samples, `CrudeWebdataset` for others.
    pub sample_type: Option<SampleType>,
    /// The part of the shards, from the end, that goes to the `val` split.
    pub val_fraction: f64,
    /// Write no `index.sqlite`.
    pub no_sqlite: bool,
    /// CPU threads; `None` for all.
    pub threads: Option<usize>,
}

impl IndexOptions {
    /// Indexes a folder and keeps its `dataset.yaml`.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), sample_type: None, val_fraction: 0.0, no_sqlite: false, threads: None }
    }
}

/// (Re)writes `.tar.idx`, `index.sqlite`, `.info.json`, `.info.yaml` and `split.yaml` of a folder of tars.
/// The tars are read, never written.
///
/// # Errors
/// [`Error::DataSet`] for a folder without tars or with keys that repeat: nothing is written then.
/// [`Error::Sink`] for a tar that is damaged, and when a file cannot be written.
pub fn index(options: &IndexOptions) -> Result<EnergonSummary, Error> {
    let folder = options.folder.as_path();
    let wrong = |message: &str, help| Error::DataSet { path: folder.into(), message: message.into(), help };
    if folder.join("node_000").is_dir() {
        let help = "name the folder of the shards itself: node_000/webdataset in it";
        return Err(wrong("it is the output of a run", help));
    }
    let names = find_tars(folder);
    if names.is_empty() {
        return Err(wrong("it holds no tars", "name a folder that holds WebDataset tars"));
    }
    let scanned = crate::job::pool(options.threads)?.install(|| scan(folder, &names))?;
    let sample_type = match &options.sample_type {
        Some(sample_type) => Some(sample_type.clone()),
        None if folder.join(METADATA_FOLDER).join("dataset.yaml").exists() => None,
        None => Some(scanned.sample_type.clone()),
    };
    for name in &names {
        let shard = scanned.read(name)?;
        shard.write_tar_idx(folder)?;
    }
    let sqlite = (!options.no_sqlite)
        .then(|| SqliteOptions { scratch: std::env::temp_dir(), expected_parts: scanned.parts });
    let energon = EnergonOptions { sample_type, val_fraction: options.val_fraction, sqlite };
    write_energon_metadata(folder, names.iter().map(|name| scanned.read(name)), &energon)
}

/// The indexes of all shards, set aside on the disk: together they may not fit into memory.
struct Scanned {
    scratch: TempDir,
    parts: u64,
    sample_type: SampleType,
}

impl Scanned {
    fn path(scratch: &Path, name: &str) -> PathBuf {
        scratch.join(format!("{:032x}.json", xxh3_128(name.as_bytes())))
    }

    fn read(&self, name: &str) -> Result<ShardIndex, Error> {
        let path = Self::path(self.scratch.path(), name);
        let state = |message: String| Error::State { path: path.clone(), message };
        let file = File::open(&path).map_err(|error| state(error.to_string()))?;
        serde_json::from_reader(BufReader::new(file)).map_err(|error| state(error.to_string()))
    }
}

/// What is gathered over all shards.
#[derive(Default)]
struct Gathered {
    parts: u64,
    is_crude: bool,
    shard_of: HashMap<u128, u32>,
    repeated: Vec<String>,
    repeats: u64,
}

/// Reads every tar before anything is written.
fn scan(folder: &Path, names: &[String]) -> Result<Scanned, Error> {
    let scratch = tempfile::Builder::new().prefix("packd-index-").tempdir();
    let scratch = scratch.map_err(|source| SinkError::Create { path: std::env::temp_dir(), source })?;
    let gathered = Mutex::new(Gathered::default());
    names.par_iter().enumerate().try_for_each(|(number, name)| -> Result<(), Error> {
        let mut shard = scan_shard(&folder.join(name))?;
        shard.name.clone_from(name);
        write_aside(&Scanned::path(scratch.path(), name), &shard)?;
        let mut gathered = gathered.lock().unwrap_or_else(PoisonError::into_inner);
        gathered.add(number as u32, &shard, names);
        Ok(())
    })?;
    let mut gathered = gathered.into_inner().unwrap_or_else(PoisonError::into_inner);
    if gathered.repeats > 0 {
        gathered.repeated.sort_unstable();
        return Err(Error::DataSet {
            path: folder.to_owned(),
            message: format!(
                "{} keys stand more than once, and Energon refuses such a set: {}",
                gathered.repeats,
                gathered.repeated.join("; ")
            ),
            help: "give every packed sample a key of its own: nothing was written",
        });
    }
    let sample_type = if gathered.is_crude { SampleType::Crude } else { SampleType::default() };
    Ok(Scanned { scratch, parts: gathered.parts, sample_type })
}

fn write_aside(path: &Path, shard: &ShardIndex) -> Result<(), Error> {
    let write = |source: std::io::Error| SinkError::Write { path: path.to_owned(), source };
    let mut file = BufWriter::new(File::create(path).map_err(write)?);
    serde_json::to_writer(&mut file, shard).map_err(|error| write(error.into()))?;
    Ok(file.flush().map_err(write)?)
}

impl Gathered {
    fn add(&mut self, number: u32, shard: &ShardIndex, names: &[String]) {
        self.parts += shard.parts();
        for sample in &shard.samples {
            self.is_crude |= !is_packed(sample.parts.iter().map(|part| part.name.as_str()));
            let Some(other) = self.shard_of.insert(xxh3_128(sample.key.as_bytes()), number) else { continue };
            self.repeats += 1;
            if self.repeated.len() < NAMED {
                let (mut first, mut second) = (other, number);
                if first > second {
                    std::mem::swap(&mut first, &mut second);
                }
                let (first, second) = (&names[first as usize], &names[second as usize]);
                self.repeated.push(format!("{} in {first} and {second}", sample.key));
            }
        }
    }
}

/// Whether the parts are those of a packed sample: a json, and images named by sub-sample.
fn is_packed<'a>(mut parts: impl Iterator<Item = &'a str>) -> bool {
    let mut has_json = false;
    let all_known = parts.all(|part| {
        has_json |= part == "json";
        let numbers = part.strip_prefix("img").and_then(|rest| rest.rsplit_once('.'));
        part == "json"
            || numbers.is_some_and(|(numbers, suffix)| {
                let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                matches!(suffix, "jpg" | "npy")
                    && numbers.split_once('_').is_some_and(|(s, j)| is_number(s) && is_number(j))
            })
    });
    all_known && has_json
}

#[cfg(test)]
mod tests {
    use super::is_packed;

    #[test]
    fn packed_samples_are_told_by_their_parts() {
        assert!(is_packed(["img0_0.jpg", "img0_0.npy", "img12_3.jpg", "json"].into_iter()));
        assert!(!is_packed(["img0_0.jpg"].into_iter()));
        assert!(!is_packed(["json", "jpg"].into_iter()));
        assert!(!is_packed(["json", "img_0.jpg"].into_iter()));
    }
}
