//! Whole runs over inputs of every kind.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::Write;
use std::path::Path;

use common::{packd, tree, write_dataset};

fn run(folder: &Path, arguments: &[&str]) -> (i32, String) {
    let done = packd(folder).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
    (done.status.code().unwrap_or(-1), said)
}

/// The packed jsons of an output by key, and the rejects.
fn packed(output: &Path) -> (Vec<serde_json::Value>, Vec<serde_json::Value>) {
    let mut jsons = Vec::new();
    for (name, bytes) in tree(output) {
        if name.extension().is_some_and(|extension| extension == "tar") {
            for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
                let mut entry = entry.unwrap();
                if entry.path().unwrap().extension().is_some_and(|extension| extension == "json") {
                    jsons.push(serde_json::from_reader(&mut entry).unwrap());
                }
            }
        }
    }
    let rejects = std::fs::read_to_string(output.join("rejects.jsonl")).unwrap();
    (jsons, rejects.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn ids(jsons: &[serde_json::Value]) -> Vec<String> {
    let all = jsons.iter().flat_map(|json| json["ids"].as_array().unwrap());
    let mut ids: Vec<String> = all.map(|id| id.as_str().unwrap_or("none").to_owned()).collect();
    ids.sort();
    ids
}

#[test]
fn every_record_ends_in_a_pack_or_in_the_rejects() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 500);
    let (status, said) = run(folder.path(), &["run", "data.jsonl", "-o", "out", "--seq-len", "2048"]);
    assert_eq!(status, 0, "{said}");
    let (jsons, rejects) = packed(&folder.path().join("out"));
    assert_eq!(ids(&jsons).len() + rejects.len(), 500);
    assert_eq!(rejects.len(), 5);
    assert!(rejects.iter().all(|reject| reject["reason"] == "image-missing" && reject["line"].as_u64().unwrap() % 100 == 10));
    for json in &jsons {
        let lengths: Vec<u64> =
            json["lengths"].as_array().unwrap().iter().map(|l| l.as_u64().unwrap()).collect();
        let ends: Vec<u64> =
            json["cu_lengths"].as_array().unwrap().iter().map(|l| l.as_u64().unwrap()).collect();
        assert!(lengths.iter().sum::<u64>() <= 2048);
        assert_eq!(ends.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>(), lengths);
    }
    assert!(
        said.contains("packed") && said.contains("image-missing") && said.contains("packd verify out"),
        "{said}"
    );
}

#[test]
fn every_form_of_an_input_gives_the_same_packs() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 300);
    let text = std::fs::read_to_string(folder.path().join("data.jsonl")).unwrap();
    let records: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let form = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    form("crlf-and-mark", format!("\u{feff}{}", text.replace('\n', "\r\n\r\n")).as_bytes());
    form("no-last-newline", text.trim_end().as_bytes());
    form("array.jsonl", serde_json::to_string(&records).unwrap().as_bytes());
    form("pretty", serde_json::to_string_pretty(&records).unwrap().as_bytes());
    let pretty: Vec<_> = records.iter().map(|record| serde_json::to_string_pretty(record).unwrap()).collect();
    form("objects", pretty.join("\n").as_bytes());
    form("zst", &zstd::encode_all(text.as_bytes(), 3).unwrap());
    form(
        "array.zst",
        &zstd::encode_all(serde_json::to_string_pretty(&records).unwrap().as_bytes(), 3).unwrap(),
    );
    for tool in ["gzip", "xz", "bzip2"] {
        let mut child = std::process::Command::new(tool)
            .arg("-c")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{tool}: {error}"));
        let mut input = child.stdin.take().unwrap();
        let bytes = text.clone().into_bytes();
        let feeder = std::thread::spawn(move || input.write_all(&bytes).unwrap());
        let packed = child.wait_with_output().unwrap().stdout;
        feeder.join().unwrap();
        form(tool, &packed);
    }
    let plain = {
        let (status, said) = run(folder.path(), &["run", "data.jsonl", "-o", "plain", "--seq-len", "2048"]);
        assert_eq!(status, 0, "{said}");
        packed(&folder.path().join("plain"))
    };
    let without_sources = |jsons: &[serde_json::Value]| -> Vec<serde_json::Value> {
        let strip = |json: &serde_json::Value| {
            let mut json = json.clone();
            json.as_object_mut().unwrap().remove("sources");
            json
        };
        jsons.iter().map(strip).collect()
    };
    for name in [
        "crlf-and-mark",
        "no-last-newline",
        "array.jsonl",
        "pretty",
        "objects",
        "zst",
        "array.zst",
        "gzip",
        "xz",
        "bzip2",
    ] {
        let output = format!("out-{name}");
        let (status, said) =
            run(folder.path(), &["run", name, "-o", &output, "--seq-len", "2048", "--unit-bytes", "20KB"]);
        assert_eq!(status, 0, "{name}: {said}");
        let (jsons, rejects) = packed(&folder.path().join(&output));
        assert!(without_sources(&plain.0) == without_sources(&jsons), "{name}: other packs");
        assert_eq!(plain.1.len(), rejects.len(), "{name}");
    }
}

#[test]
fn several_inputs_and_globs_are_one_set() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 200);
    let text = std::fs::read_to_string(folder.path().join("data.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    std::fs::write(folder.path().join("part-b.jsonl"), lines[100..].join("\n")).unwrap();
    std::fs::write(folder.path().join("part-a.jsonl"), lines[..100].join("\n")).unwrap();
    let (status, said) = run(folder.path(), &["run", "part-*.jsonl", "-o", "out", "--seq-len", "4096"]);
    assert_eq!(status, 0, "{said}");
    let (_, whole) = run(folder.path(), &["run", "data.jsonl", "-o", "whole", "--seq-len", "4096"]);
    assert_eq!(
        ids(&packed(&folder.path().join("out")).0),
        ids(&packed(&folder.path().join("whole")).0),
        "{whole}"
    );
    let (status, said) =
        run(folder.path(), &["run", "part-a.jsonl", "part-*.jsonl", "-o", "twice", "--seq-len", "4096"]);
    assert_eq!(status, 78, "{said}");
    assert!(said.contains("named twice"), "{said}");
    let (status, said) = run(folder.path(), &["run", "absent.jsonl", "-o", "none", "--seq-len", "4096"]);
    assert_eq!(status, 66, "{said}");
}

#[test]
fn windows_pack_by_themselves_and_lose_nothing() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 500);
    let arguments = ["run", "data.jsonl", "--seq-len", "2048", "--scope", "window", "--window", "64"];
    let (status, said) = run(folder.path(), &[&arguments[..], &["-o", "a", "--unit-bytes", "10KB"]].concat());
    assert_eq!(status, 0, "{said}");
    let (status, said) = run(folder.path(), &[&arguments[..], &["-o", "b"]].concat());
    assert_eq!(status, 0, "{said}");
    common::assert_same_tree(&folder.path().join("a"), &folder.path().join("b"), "units must not matter");
    assert_eq!(ids(&packed(&folder.path().join("a")).0).len(), 495);
}

#[test]
fn too_many_rejects_end_with_65_after_everything_valid_was_written() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 1000);
    let mut text = std::fs::read_to_string(folder.path().join("data.jsonl")).unwrap();
    text.push_str(&"{\"id\": 1}\n".repeat(20));
    std::fs::write(folder.path().join("data.jsonl"), text).unwrap();
    let (status, said) = run(folder.path(), &["run", "data.jsonl", "-o", "out", "--seq-len", "2048"]);
    assert_eq!(status, 65, "{said}");
    assert_eq!(ids(&packed(&folder.path().join("out")).0).len(), 990);
    let (status, said) =
        run(folder.path(), &["run", "data.jsonl", "-o", "fast", "--seq-len", "2048", "--fail-fast"]);
    assert_eq!(status, 65, "{said}");
    assert!(said.contains("data.jsonl:10: image-missing"), "{said}");
}

#[test]
fn duplicate_ids_are_rejected_when_asked() {
    let folder = tempfile::tempdir().unwrap();
    let record = |id: &str, text: &str| {
        format!(
            "{{\"id\": \"{id}\", \"messages\": [{{\"role\": \"user\", \"content\": \"{text}\"}}, {{\"role\": \"assistant\", \"content\": \"a\"}}]}}\n"
        )
    };
    let text = [
        record("a", "first"),
        record("b", "second"),
        record("a", "third"),
        "broken\n".into(),
        record("a", "last"),
    ];
    std::fs::write(folder.path().join("data.jsonl"), text.concat()).unwrap();
    let arguments = ["run", "data.jsonl", "--seq-len", "64"];
    let (status, said) = run(folder.path(), &[&arguments[..], &["-o", "keep"]].concat());
    assert_eq!(status, 0, "{said}");
    assert_eq!(ids(&packed(&folder.path().join("keep")).0), ["a", "a", "a", "b"]);
    let (status, said) =
        run(folder.path(), &[&arguments[..], &["-o", "reject", "--duplicate-id", "reject"]].concat());
    assert_eq!(status, 0, "{said}");
    let (jsons, rejects) = packed(&folder.path().join("reject"));
    assert_eq!(ids(&jsons), ["a", "b"]);
    let lines: Vec<_> =
        rejects.iter().map(|r| (r["line"].as_u64().unwrap(), r["reason"].as_str().unwrap())).collect();
    assert_eq!(lines, [(3, "duplicate-id"), (4, "json-syntax"), (5, "duplicate-id")]);
    assert!(rejects[0]["detail"].as_str().unwrap().contains("data.jsonl:1"));
}

#[test]
fn previous_measurements_are_reused_and_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 300);
    let arguments = ["run", "data.jsonl", "--seq-len", "2048"];
    run(folder.path(), &[&arguments[..], &["-o", "first"]].concat());
    let mut text = std::fs::read_to_string(folder.path().join("data.jsonl")).unwrap();
    text.push_str("{\"id\": \"new\", \"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}\n");
    std::fs::write(folder.path().join("data.jsonl"), text).unwrap();
    let (status, said) =
        run(folder.path(), &[&arguments[..], &["-o", "second", "--previous", "first"]].concat());
    assert_eq!(status, 0, "{said}");
    run(folder.path(), &[&arguments[..], &["-o", "fresh"]].concat());
    common::assert_same_tree(&folder.path().join("fresh"), &folder.path().join("second"), "--previous");
    let report = std::fs::read_to_string(folder.path().join("second/run/report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["records"]["reused"], 297);
}

#[test]
fn truncated_turns_keep_whole_rounds() {
    let folder = tempfile::tempdir().unwrap();
    let round = |n: usize| {
        let words = "word ".repeat(n);
        format!(
            "{{\"role\": \"user\", \"content\": \"q\"}}, {{\"role\": \"assistant\", \"content\": \"{words}\"}}"
        )
    };
    let record = |id: &str, rounds: &[usize]| {
        let turns: Vec<String> = rounds.iter().map(|n| round(*n)).collect();
        format!("{{\"id\": \"{id}\", \"messages\": [{}]}}\n", turns.join(", "))
    };
    let text = [record("fits", &[10]), record("cut", &[50, 50, 500]), record("hopeless", &[500, 1])];
    std::fs::write(folder.path().join("data.jsonl"), text.concat()).unwrap();
    let arguments = ["run", "data.jsonl", "-o", "out", "--seq-len", "256", "--overlong", "truncate-turns"];
    let (status, said) = run(folder.path(), &arguments);
    assert_eq!(status, 0, "{said}");
    let (jsons, rejects) = packed(&folder.path().join("out"));
    assert_eq!(ids(&jsons), ["cut", "fits"]);
    let rounds: usize = jsons
        .iter()
        .flat_map(|json| json["prompts"].as_array().unwrap())
        .map(|p| p.as_array().unwrap().len())
        .sum();
    assert_eq!(rounds, 3);
    assert_eq!(rejects[0]["reason"], "over-length");
    let (status, said) =
        run(folder.path(), &["run", "data.jsonl", "-o", "strict", "--seq-len", "256", "--overlong", "error"]);
    assert_eq!(status, 65, "{said}");
    assert!(said.contains("data.jsonl:2: over-length"), "{said}");
}

#[test]
fn an_input_without_a_good_record_is_an_error_that_names_the_rejects() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("data.jsonl"), "{}\n[1]\n").unwrap();
    let (status, said) = run(folder.path(), &["run", "data.jsonl", "-o", "out", "--seq-len", "256"]);
    assert_eq!(status, 65, "{said}");
    assert!(said.contains("none of 2 records"), "{said}");
    assert_eq!(std::fs::read_to_string(folder.path().join("out/rejects.jsonl")).unwrap().lines().count(), 2);
}

#[test]
fn an_input_that_breaks_off_never_ends_well() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 300);
    let text = std::fs::read_to_string(folder.path().join("data.jsonl")).unwrap();
    let packed = zstd::encode_all(text.as_bytes(), 3).unwrap();
    std::fs::write(folder.path().join("cut.zst"), &packed[..packed.len() / 2]).unwrap();
    let array = format!("[{}]", text.trim_end().replace('\n', ",\n"));
    std::fs::write(folder.path().join("cut.json"), &array[..array.len() / 2]).unwrap();
    for name in ["cut.zst", "cut.json"] {
        let output = format!("out-{name}");
        let (status, said) = run(folder.path(), &["run", name, "-o", &output, "--seq-len", "2048"]);
        assert_eq!(status, 65, "{name}: {said}");
        assert!(said.contains("breaks off"), "{name}: {said}");
    }
}

#[test]
fn a_run_that_measures_again_writes_every_shard_again() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 200);
    let arguments = ["run", "data.jsonl", "-o", "out", "--seq-len", "2048", "--max-samples-per-shard", "5"];
    let (status, said) = run(folder.path(), &arguments);
    assert_eq!(status, 0, "{said}");
    // The missing image appears, and the measurements that said so are lost.
    std::fs::copy(folder.path().join("images/0.jpg"), folder.path().join("images/absent.jpg")).unwrap();
    std::fs::remove_file(folder.path().join("out/run/node_000/measured/000000.rows")).unwrap();
    std::fs::remove_file(folder.path().join("out/dataset.yaml")).unwrap();
    let (status, said) = run(folder.path(), &arguments);
    assert_eq!(status, 0, "{said}");
    run(folder.path(), &[&arguments[..3], &["fresh"], &arguments[4..]].concat());
    common::assert_same_tree(&folder.path().join("fresh"), &folder.path().join("out"), "measured again");
}

/// Rounds that are dropped take their images with them.
#[test]
fn truncated_turns_keep_the_images_of_the_rounds_that_stay() {
    let folder = tempfile::tempdir().unwrap();
    write_dataset(folder.path(), 10);
    let turns: Vec<_> = ["<image> first", "<image> second"]
        .iter()
        .flat_map(|question| {
            let answer = "word ".repeat(60);
            [
                serde_json::json!({"role": "user", "content": question}),
                serde_json::json!({"role": "assistant", "content": answer}),
            ]
        })
        .collect();
    let record =
        serde_json::json!({"id": "two", "messages": turns, "images": ["images/0.jpg", "images/1.png"]});
    std::fs::write(folder.path().join("data.jsonl"), format!("{record}\n")).unwrap();
    let arguments = ["run", "data.jsonl", "-o", "out", "--seq-len", "100", "--overlong", "truncate-turns"];
    let (status, said) = run(folder.path(), &arguments);
    assert_eq!(status, 0, "{said}");
    let (jsons, _) = packed(&folder.path().join("out"));
    assert_eq!(jsons[0]["images"][0].as_array().unwrap().len(), 1);
    let (status, said) = run(folder.path(), &["verify", "out"]);
    assert_eq!(status, 0, "{said}");
}
