//! Sets that packd did not write: no keys of its own, no tables, no run.

use std::path::PathBuf;

use packd::sinks::SampleType;
use packd::{Error, IndexOptions, VerifyOptions, index, verify};
use serde_json::Value;
use tempfile::TempDir;

use crate::set::{SEQ_LEN, finished, packs, rewrite_all};

/// The shards with only the keys that the reference scripts write.
fn foreign() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    for shard in 0..=packs().last().unwrap().shard {
        let name = format!("ps-{shard:06}.tar");
        std::fs::copy(finished().join("node_000/webdataset").join(&name), root.join(&name)).unwrap();
        rewrite_all(&root.join(&name), |_, members| {
            let bytes = &mut members.last_mut().unwrap().1;
            let mut json: Value = serde_json::from_slice(bytes).unwrap();
            let known =
                ["images", "prompts", "captions", "sample_count", "patch_positions", "timestamp_decimal"];
            json.as_object_mut().unwrap().retain(|key, _| known.contains(&key.as_str()));
            *bytes = serde_json::to_vec(&json).unwrap();
        });
    }
    (folder, root)
}

#[test]
fn seq_len_must_be_given_and_is_checked() {
    let (_keep, root) = foreign();
    index(&IndexOptions::new(&root)).unwrap();
    let error = verify(&VerifyOptions::new(&root)).unwrap_err();
    assert!(matches!(error, Error::NotSet { key: "seq_len", .. }), "{error}");
    assert!(error.help().unwrap().contains("--seq-len"));
    let at = |seq_len| VerifyOptions { seq_len: Some(seq_len), ..VerifyOptions::new(&root) };
    let report = verify(&at(SEQ_LEN)).unwrap();
    assert!(report.passed(), "{:#?}", report.faults);
    assert_eq!(
        (report.recounted, report.tokens),
        (report.packs, packs().iter().map(|pack| pack.total()).sum())
    );
    let longest = packs().iter().map(|pack| pack.total()).max().unwrap();
    let report = verify(&at(longest as u32 - 1)).unwrap();
    let over: Vec<String> =
        packs().into_iter().filter(|pack| pack.total() == longest).map(|pack| pack.key).collect();
    assert_eq!(report.faults.iter().filter_map(|fault| fault.key.clone()).collect::<Vec<_>>(), over);
    // Another processor's limits make images larger than they were packed for.
    let report = verify(&VerifyOptions { min_pixels: Some(1_000_000), ..at(SEQ_LEN) }).unwrap();
    let with_images: Vec<String> =
        packs().into_iter().filter(|pack| pack.has_images()).map(|pack| pack.key).collect();
    assert_eq!(report.faults.iter().filter_map(|fault| fault.key.clone()).collect::<Vec<_>>(), with_images);
    assert!(report.faults.iter().all(|fault| fault.kind.code() == "over-seq-len"));
}

#[test]
fn without_an_index_it_says_how_to_make_one() {
    let (_keep, root) = foreign();
    let report = verify(&VerifyOptions { seq_len: Some(SEQ_LEN), ..VerifyOptions::new(&root) }).unwrap();
    assert!(report.faults[0].detail.contains("packd index"), "{:?}", report.faults);
    assert!(report.faults.iter().skip(1).all(|fault| fault.kind.code() == "tar-idx"));
    assert_eq!(report.packs, packs().len() as u64);
}

#[test]
fn repeated_keys_are_found_by_verify_and_refused_by_index() {
    let (_keep, root) = foreign();
    index(&IndexOptions { no_sqlite: true, ..IndexOptions::new(&root) }).unwrap();
    std::fs::copy(root.join("ps-000000.tar"), root.join("ps-000001.tar")).unwrap();
    std::fs::copy(root.join("ps-000000.tar.idx"), root.join("ps-000001.tar.idx")).unwrap();
    let report = verify(&VerifyOptions { seq_len: Some(SEQ_LEN), ..VerifyOptions::new(&root) }).unwrap();
    let repeated: Vec<String> =
        packs().into_iter().filter(|pack| pack.shard == 0).map(|pack| pack.key).collect();
    let found: Vec<String> = (report.faults.iter().filter(|fault| fault.kind.code() == "duplicate-key"))
        .filter_map(|fault| fault.key.clone())
        .collect();
    assert_eq!(found, repeated);
    let error = index(&IndexOptions::new(&root)).unwrap_err().to_string();
    assert!(error.contains(&format!("{} in ps-000000.tar and ps-000001.tar", repeated[0])), "{error}");
}

#[test]
fn the_loader_of_the_reference_scripts_passes() {
    let (_keep, root) = foreign();
    index(&IndexOptions::new(&root)).unwrap();
    let loader = root.join(".nv-meta/sample_loader.py");
    let text = "import re\n\ndef part_filter(part: str) -> bool:\n    return True\n\ndef sample_loader(sample: dict) -> dict:\n    \
                data = sample[\"json\"]\n    return dict(\n        __key__=sample[\"__key__\"],\n        \
                __restore_key__=sample[\"__restore_key__\"],\n        images=[sample[f\"img{i}\"] for i in data],\n        \
                prompts=data[\"prompts\"],\n        captions=data[\"captions\"],\n    )\n";
    std::fs::write(&loader, text).unwrap();
    let options = VerifyOptions { seq_len: Some(SEQ_LEN), ..VerifyOptions::new(&root) };
    assert!(verify(&options).unwrap().passed());
    // Indexing again keeps the loader; asking for a class replaces it.
    index(&IndexOptions::new(&root)).unwrap();
    assert_eq!(std::fs::read_to_string(&loader).unwrap(), text);
    std::fs::write(&loader, text.replace("captions=", "answers=")).unwrap();
    let report = verify(&options).unwrap();
    assert_eq!(report.fault_count, 1, "{:#?}", report.faults);
    assert!(report.faults[0].detail.contains("returns answers"));
    index(&IndexOptions { sample_type: Some(SampleType::default()), ..IndexOptions::new(&root) }).unwrap();
    assert!(verify(&options).unwrap().passed());
}
