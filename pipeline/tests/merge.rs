//! One dataset.yaml over several outputs.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::{packd, write_dataset, write_tiny_model};

fn pack(folder: &Path, output: &str, more: &[&str]) {
    let arguments =
        ["run", "data.jsonl", "--model", "tiny", "--max-reject-rate", "1", "--quiet", "-o", output];
    let done = packd(folder).args(arguments).args(more).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn outputs_of_one_seq_len_are_merged() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_dataset(folder, 200);
    write_tiny_model(folder);
    pack(folder, "sets/a", &["-L", "2048", "--nodes", "2", "--max-samples-per-shard", "9"]);
    pack(folder, "sets/b", &["-L", "2048", "--max-samples-per-shard", "9", "--val-fraction", "0.3"]);
    pack(folder, "sets/c", &["-L", "1500"]);
    std::fs::create_dir(folder.join("mix")).unwrap();
    let merge = |arguments: &[&str]| packd(folder).arg("merge").args(arguments).output().unwrap();

    let done = merge(&[
        "sets/a",
        "sets/b",
        "-o",
        "mix/all.yaml",
        "--metadataset",
        "blend",
        "--weight",
        "input",
        "--json",
    ]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let sets: Vec<serde_json::Value> = serde_json::from_slice(&done.stdout).unwrap();
    let of = |key: &str| sets.iter().map(|set| set[key].as_u64().unwrap()).collect::<Vec<_>>();
    let accepted = |output: &str| {
        let report = std::fs::read(folder.join(output).join("run/report.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
        report["records"]["accepted"].as_u64().unwrap()
    };
    let (train, val) = (of("train"), of("val"));
    assert_eq!(train[0] + train[1], accepted("sets/a"));
    assert_eq!(train[2] + val[2], accepted("sets/b"));
    assert!(val[2] > 0 && val[..2] == [0, 0]);
    let yaml = std::fs::read_to_string(folder.join("mix/all.yaml")).unwrap();
    for path in
        ["../sets/a/node_000/webdataset", "../sets/a/node_001/webdataset", "../sets/b/node_000/webdataset"]
    {
        assert!(yaml.contains(&format!("path: \"{path}\"\n")), "{yaml}");
    }

    // A folder of its own counts by Energon's own files.
    let done = merge(&["sets/b/node_000/webdataset", "sets/a", "-o", "mix/plain.yaml"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));

    let refused = |arguments: &[&str], said: &str| {
        let done = merge(arguments);
        let error = String::from_utf8(done.stderr).unwrap();
        assert!(!done.status.success() && error.contains(said) && error.contains("help"), "{error}");
    };
    refused(&["sets/a", "-o", "mix/all.yaml"], "exists");
    refused(&["sets/a", "sets/c", "-o", "mix/two.yaml"], "1500 and of 2048");
    refused(&["sets/a", "sets/b", "sets/a", "-o", "mix/twice.yaml"], "named twice");
    refused(&["images", "-o", "mix/none.yaml"], "no tars");
    std::fs::remove_file(folder.join("sets/a/run/done.json")).unwrap();
    refused(&["sets/a", "-o", "mix/unfinished.yaml"], "not finished");
}
