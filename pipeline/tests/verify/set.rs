//! A small output, copies of it, and ways to break them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use packd::sinks::{Checksums, hash_file, scan_shard};
use packd::{Config, Fault, IndexOptions, Job, VerifyOptions, VerifyReport, verify};
use serde_json::Value;
use tempfile::TempDir;

use crate::common::write_dataset;

pub(crate) const SEQ_LEN: u32 = 1024;

/// An output of a finished run, made once for all tests.
pub(crate) fn finished() -> &'static Path {
    static MADE: OnceLock<TempDir> = OnceLock::new();
    let folder = MADE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        write_dataset(folder.path(), 60);
        let config = Config {
            input: vec![folder.path().join("data.jsonl").display().to_string()],
            output: Some(folder.path().join("out")),
            seq_len: Some(SEQ_LEN),
            max_samples_per_shard: 6,
            ..Config::default()
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        runtime.block_on(Job::new(config).unwrap().run()).unwrap();
        folder
    });
    static OUTPUT: OnceLock<PathBuf> = OnceLock::new();
    OUTPUT.get_or_init(|| folder.path().join("out"))
}

/// A copy of the output that may be broken.
pub(crate) struct Copied(TempDir);

impl Copied {
    pub(crate) fn new() -> Self {
        let copy = Self(tempfile::tempdir().unwrap());
        copy_folder(finished(), copy.0.path());
        copy
    }

    pub(crate) fn root(&self) -> &Path {
        self.0.path()
    }

    /// The folder of the shards.
    pub(crate) fn shards(&self) -> PathBuf {
        self.root().join("node_000/webdataset")
    }

    pub(crate) fn shard(&self, number: usize) -> PathBuf {
        self.shards().join(format!("ps-{number:06}.tar"))
    }

    pub(crate) fn meta(&self, name: &str) -> PathBuf {
        self.shards().join(".nv-meta").join(name)
    }

    pub(crate) fn edit(&self, path: &Path, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = std::fs::read(path).unwrap();
        edit(&mut bytes);
        std::fs::write(path, bytes).unwrap();
    }

    pub(crate) fn replace(&self, path: &Path, from: &str, to: &str) {
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(from), "{} does not hold {from:?}", path.display());
        std::fs::write(path, text.replacen(from, to, 1)).unwrap();
    }

    /// Writes one packed sample anew and brings index, checksums and notes into line with it, so that only
    /// its content can tell. `edit` sees the members as `(part, bytes)`, the json last.
    pub(crate) fn rewrite(&self, shard: usize, key: &str, edit: impl Fn(&mut Vec<(String, Vec<u8>)>)) {
        rewrite_tar(&self.shard(shard), key, edit);
        packd::index(&IndexOptions::new(self.shards())).unwrap();
        std::fs::remove_dir_all(self.root().join("run/node_000/shards")).unwrap();
        self.renew_checksums();
    }

    /// As [`rewrite`](Self::rewrite), for the json alone.
    pub(crate) fn rewrite_json(&self, shard: usize, key: &str, edit: impl Fn(&mut Value)) {
        self.rewrite(shard, key, |members| {
            let (name, bytes) = members.last_mut().unwrap();
            assert_eq!(name, "json");
            let mut json: Value = serde_json::from_slice(bytes).unwrap();
            edit(&mut json);
            *bytes = serde_json::to_vec(&json).unwrap();
        });
    }

    pub(crate) fn renew_checksums(&self) {
        let path = self.root().join(Checksums::FILE_NAME);
        let mut renewed = Checksums::default();
        for (file, _) in Checksums::read(&path).unwrap().iter() {
            renewed.add(file, hash_file(&self.root().join(file)).unwrap());
        }
        renewed.write(&path).unwrap();
    }

    pub(crate) fn verify(&self) -> VerifyReport {
        verify(&VerifyOptions::new(self.root())).unwrap()
    }

    /// Asserts that exactly one fault is found.
    pub(crate) fn assert_fault(&self, kind: &str, file: &str, key: Option<&str>) -> Fault {
        let report = self.verify();
        let said: Vec<String> = report.faults.iter().map(Fault::to_string).collect();
        assert_eq!(report.fault_count, 1, "{said:#?}");
        let fault = report.faults[0].clone();
        assert_eq!((fault.kind.code(), fault.key.as_deref()), (kind, key), "{fault}");
        assert!(fault.file.ends_with(file), "{fault}");
        assert!(!report.passed());
        fault
    }
}

/// The packed samples of the output that a test may choose from.
pub(crate) struct Pack {
    pub(crate) shard: usize,
    pub(crate) key: String,
    pub(crate) parts: BTreeMap<String, (u64, u64)>,
    pub(crate) json: Value,
}

impl Pack {
    pub(crate) fn total(&self) -> u64 {
        self.json["cu_lengths"].as_array().unwrap().last().unwrap().as_u64().unwrap()
    }

    pub(crate) fn has_images(&self) -> bool {
        self.parts.len() > 1
    }
}

pub(crate) fn packs() -> Vec<Pack> {
    let mut packs = Vec::new();
    for shard in 0.. {
        let path = finished().join(format!("node_000/webdataset/ps-{shard:06}.tar"));
        if !path.exists() {
            break;
        }
        let bytes = std::fs::read(&path).unwrap();
        for sample in scan_shard(&path).unwrap().samples {
            let parts: BTreeMap<String, (u64, u64)> =
                sample.parts.iter().map(|part| (part.name.clone(), (part.offset, part.size))).collect();
            let (offset, size) = parts["json"];
            let json = serde_json::from_slice(&bytes[offset as usize..(offset + size) as usize]).unwrap();
            packs.push(Pack { shard, key: sample.key, parts, json });
        }
    }
    assert!(packs.last().unwrap().shard >= 1, "the tests need more than one shard");
    packs
}

/// The first pack of which something holds.
pub(crate) fn pack_where(choose: impl Fn(&Pack) -> bool) -> Pack {
    packs().into_iter().find(choose).expect("the test set has such a pack")
}

/// Writes a tar anew with the members of one key changed.
pub(crate) fn rewrite_tar(path: &Path, key: &str, edit: impl Fn(&mut Vec<(String, Vec<u8>)>)) {
    rewrite_all(path, |found, members| {
        if found == key {
            edit(members);
        }
    });
}

/// Writes a tar anew with the members of every key changed.
pub(crate) fn rewrite_all(path: &Path, edit: impl Fn(&str, &mut Vec<(String, Vec<u8>)>)) {
    let bytes = std::fs::read(path).unwrap();
    let mut tar = tar::Builder::new(Vec::new());
    for sample in scan_shard(path).unwrap().samples {
        let content = |offset: u64, size: u64| bytes[offset as usize..(offset + size) as usize].to_vec();
        let mut members =
            sample.parts.iter().map(|part| (part.name.clone(), content(part.offset, part.size))).collect();
        edit(&sample.key, &mut members);
        for (part, bytes) in members {
            let mut header = tar::Header::new_ustar();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, format!("{}.{part}", sample.key), bytes.as_slice()).unwrap();
        }
    }
    std::fs::write(path, tar.into_inner().unwrap()).unwrap();
}

pub(crate) fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}
