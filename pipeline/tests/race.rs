//! Two processes on one slice of the input: it is committed once, and the output is that of one process.
//!
//! `RACES=1000` races so often; `RACE_FOLDERS=A:B` names one folder by two paths, say of two mounts of a network
//! file system, for one process each.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use common::{assert_same_tree, packd, write_dataset, write_tiny_model};

const DATA: [&str; 11] = [
    "data.jsonl",
    "--model",
    "tiny",
    "--seq-len",
    "2048",
    "--max-reject-rate",
    "0.1",
    "--max-samples-per-shard",
    "7",
    "--threads",
    "1",
];

fn start(folder: &Path, output: &Path) -> Child {
    let mut command = packd(folder);
    command
        .arg("work")
        .args(DATA)
        .args(["--node-index", "0", "--unit-bytes", "8KB", "--quiet", "-o"])
        .arg(output);
    command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn two_processes_on_one_slice_commit_once() {
    let races: u64 = std::env::var("RACES").map_or(40, |races| races.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write_dataset(folder, 20);
    write_tiny_model(folder);
    let expected = folder.join("expected");
    let done = packd(folder).arg("run").args(DATA).args(["--quiet", "-o"]).arg(&expected).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let own = folder.join("races");
    std::fs::create_dir(&own).unwrap();
    let [first, second]: [PathBuf; 2] = match std::env::var("RACE_FOLDERS") {
        Ok(folders) => {
            let (first, second) = folders.split_once(':').unwrap();
            [first.into(), second.into()]
        }
        Err(_) => [own.clone(), own],
    };
    let mut turned_away = 0;
    for race in 0..races {
        let name = format!("race{race}");
        let one = start(folder, &first.join(&name));
        // From the same moment to after the end of the other.
        std::thread::sleep(Duration::from_micros(race * 7919 % 60_000));
        let other = start(folder, &second.join(&name));
        let mut finished = 0;
        for ended in [one, other].map(|child| child.wait_with_output().unwrap()) {
            match ended.status.code() {
                Some(0) => finished += 1,
                Some(75) => turned_away += 1,
                code => panic!("race {race}: {code:?} {}", String::from_utf8_lossy(&ended.stderr)),
            }
        }
        assert!(finished > 0, "race {race}: nobody finished");
        assert_same_tree(&expected, &first.join(&name), &name);
        let ledger = std::fs::read_to_string(first.join(&name).join("run/node_000/ledger.jsonl")).unwrap();
        let mut entries: Vec<String> = ledger.lines().map(what).collect();
        let all = entries.len();
        entries.sort();
        entries.dedup();
        assert_eq!(entries.len(), all, "race {race}: something was committed twice:\n{ledger}");
        std::fs::remove_dir_all(first.join(&name)).unwrap();
    }
    println!(
        "{races} races of two processes: {turned_away} were turned away, every slice was committed once"
    );
    assert!(turned_away > races / 10, "hardly ever did two processes meet");
}

/// What a line of the ledger commits.
fn what(line: &str) -> String {
    let entry: serde_json::Value = serde_json::from_str(line).unwrap();
    match (&entry["measured"]["unit"], &entry["shard"]["shard"]) {
        (serde_json::Value::Null, shard) => shard.to_string(),
        (unit, _) => format!("unit {unit}"),
    }
}
