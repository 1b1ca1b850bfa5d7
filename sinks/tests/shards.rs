//! A shard as it lies on the disk: read back with another reader, and what failures leave behind.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::Read;
use std::path::Path;

use common::{image_bytes, options, packed, store, sub_sample, write_shard};
use packd_contracts::ImageRef;
use packd_sinks::{
    PackedSample, SampleClass, ShardOptions, ShardWriter, SinkError, hash_file, member_bytes, scan_shard,
};
use packd_sources::LoadedImages;

fn visible(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| !name.ends_with(".jpg")).collect();
    names.sort();
    names
}

#[test]
fn the_tar_crate_reads_back_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let commit = write_shard(folder.path(), 0, 12);
    let path = folder.path().join("p-000000.tar");
    let bytes = fs::read(&path).unwrap();
    assert_eq!(bytes.len() % 10_240, 0);
    assert_eq!(commit.index.size, bytes.len() as u64);
    assert_eq!(commit.index.checksum, hash_file(&path).unwrap());
    assert!(bytes[commit.index.content_end as usize..].iter().all(|&b| b == 0));
    assert!(bytes.len() as u64 - commit.index.content_end >= 1024);

    let mut names = Vec::new();
    let mut archive = tar::Archive::new(&bytes[..]);
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let header = entry.header().clone();
        assert!(header.as_ustar().is_some());
        assert_eq!((header.mode().unwrap(), header.mtime().unwrap()), (0o644, 0));
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        if let Some(n) = name.strip_prefix("p_").and_then(|name| name.strip_suffix(".img1_0.jpg")) {
            let n: u64 = n.parse().unwrap();
            assert!(content == image_bytes(n as usize * 40_000 + 1, n), "{name}");
        }
        names.push(name);
    }
    let of_first =
        ["img1_0.jpg", "img2_0.jpg", "img2_1.jpg", "json"].map(|part| format!("p_000000000.{part}"));
    assert_eq!(names[..4], of_first);
    assert_eq!(names.len(), 4 * 12);

    let sample = &commit.index.samples[11];
    let stored: u64 = sample.parts.iter().map(|part| member_bytes(part.size)).sum();
    assert_eq!(sample.size, stored);
    let json = &sample.parts[3];
    let json: serde_json::Value =
        serde_json::from_slice(&bytes[json.offset as usize..(json.offset + json.size) as usize]).unwrap();
    assert_eq!(json["cu_lengths"], serde_json::json!([0, 10, 30, 35]));
    assert_eq!(json["media_types"], serde_json::json!([[], ["image/jpeg"], ["image/png", "image/jpeg"]]));
    assert_eq!(json["sources"][1], serde_json::json!(["d.jsonl", 3400]));
    assert_eq!(commit.packs[11].sub_samples[1].ordinal, 34);
}

#[test]
fn a_scan_finds_what_the_writer_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let commit = write_shard(folder.path(), 3, 9);
    assert_eq!(scan_shard(&folder.path().join("p-000003.tar")).unwrap(), commit.index);
    assert_eq!(fs::read(folder.path().join("p-000003.tar.idx")).unwrap(), commit.index.tar_idx());
}

#[test]
fn the_same_packs_give_the_same_bytes() {
    let [a, b] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    assert_eq!(write_shard(a.path(), 0, 5), write_shard(b.path(), 0, 5));
    for name in ["p-000000.tar", "p-000000.tar.idx"] {
        assert!(fs::read(a.path().join(name)).unwrap() == fs::read(b.path().join(name)).unwrap(), "{name}");
    }
}

#[test]
fn nothing_is_visible_before_the_end_or_after_an_interruption() {
    let folder = tempfile::tempdir().unwrap();
    let mut shard = ShardWriter::create(folder.path(), "p-000000.tar", options()).unwrap();
    shard.append(&packed(folder.path(), 20), &store(folder.path()), &LoadedImages::default()).unwrap();
    assert!(visible(folder.path()).iter().all(|name| packd_sinks::is_temporary(name)));
    drop(shard);
    assert!(visible(folder.path()).is_empty());

    let empty = ShardWriter::create(folder.path(), "p-000000.tar", options()).unwrap();
    assert!(empty.finish().unwrap_err().to_string().contains("no samples"));
    assert!(visible(folder.path()).is_empty());
}

#[test]
fn a_sample_that_fails_leaves_no_trace_in_the_shard() {
    let [clean, faulty] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let want = write_shard(clean.path(), 0, 4);
    let images = store(faulty.path());
    let mut shard = ShardWriter::create(faulty.path(), "p-000000.tar", options()).unwrap();
    for n in 0..4 {
        let good = packed(faulty.path(), n);

        let mut missing = packed(faulty.path(), 30);
        missing.sub_samples[2].sample.images.push(ImageRef::Path("no.jpg".into()));
        let error = shard.append(&missing, &images, &LoadedImages::default()).unwrap_err();
        assert!(
            error.is_input() && error.to_string().starts_with("d.jsonl:93: image 2: image-missing"),
            "{error}"
        );

        let mut changed = packed(faulty.path(), 30);
        changed.sub_samples[1].image_stamp = Some(7);
        let error = shard.append(&changed, &images, &LoadedImages::default()).unwrap_err();
        assert!(matches!(error, SinkError::ImagesChanged { ordinal: 91, .. }), "{error}");
        shard.append(&good, &images, &LoadedImages::default()).unwrap();
    }
    assert_eq!(shard.finish().unwrap(), want);
    let name = "p-000000.tar";
    assert!(fs::read(clean.path().join(name)).unwrap() == fs::read(faulty.path().join(name)).unwrap());
}

#[test]
fn rules_of_the_format_are_errors_that_name_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let images = store(folder.path());
    let mut shard = ShardWriter::create(folder.path(), "p-000000.tar", options()).unwrap();
    let mut refuse = |change: fn(&mut PackedSample), why: &str| {
        let mut sample = packed(folder.path(), 0);
        change(&mut sample);
        let error = shard.append(&sample, &images, &LoadedImages::default()).unwrap_err().to_string();
        assert!(error.contains(&sample.key) && error.contains(why), "{error}");
    };
    refuse(|p| p.key = "a.b".into(), "A-Z");
    refuse(|p| p.key = "k".repeat(100), "longer than 100");
    refuse(|p| p.sub_samples.clear(), "no sub-samples");
    refuse(|p| p.sub_samples[0].sample.captions.clear(), "1 prompts and 0 captions");

    let reserved = ShardOptions { class: SampleClass::Crude, passthrough: vec!["lengths".into()] };
    let error = ShardWriter::create(folder.path(), "q.tar", reserved).err().unwrap();
    assert!(error.to_string().contains("`lengths`"), "{error}");
}

#[test]
fn a_folder_that_is_missing_is_a_create_error() {
    let error = ShardWriter::create(Path::new("/no/such/folder"), "p.tar", options()).err().unwrap();
    assert!(error.is_cannot_create() && error.to_string().contains("/no/such/folder/p.tar"), "{error}");
}

#[test]
fn a_text_only_pack_has_one_member() {
    let folder = tempfile::tempdir().unwrap();
    let mut shard = ShardWriter::create(folder.path(), "p-000000.tar", options()).unwrap();
    let pack = PackedSample { key: "k".into(), pack: 0, sub_samples: vec![sub_sample(0, 3, vec![])] };
    shard.append(&pack, &store(folder.path()), &LoadedImages::default()).unwrap();
    let commit = shard.finish().unwrap();
    assert_eq!(commit.index.parts(), 1);
    assert_eq!(commit.index.size, 10_240);
}
