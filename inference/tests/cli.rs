//! The command line, on a shard that is made here.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn tiny_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tiny_dense")
}

fn packd_model(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_packd-model")).args(args).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// One packed sample of two sub-samples of text, as packd writes it.
fn write_shard(path: &Path, lengths: &str) {
    let json = format!(
        r#"{{"images": [[], []], "prompts": [["What is red?"], ["And blue?", "Why?"]],
            "captions": [["A colour."], ["A colour too.", "Because."]], "lengths": {lengths}}}"#
    );
    let mut tar = tar::Builder::new(std::fs::File::create(path).unwrap());
    let mut header = tar::Header::new_ustar();
    header.set_size(json.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    tar.append_data(&mut header, "ps_000000000.json", json.as_bytes()).unwrap();
    tar.finish().unwrap();
}

#[test]
fn leak_check_passes_on_packs_and_fails_without_boundaries() {
    let folder = tempfile::tempdir().unwrap();
    let shard = folder.path().join("a.tar");
    write_shard(&shard, "null");
    let (shard, model) = (shard.to_str().unwrap().to_owned(), tiny_model());
    let args = ["leak-check", &shard, "--model", model.to_str().unwrap(), "--fold-ids"];
    let good = packd_model(&args);
    assert_eq!(good.status.code(), Some(0), "{good:?}");
    assert!(stdout(&good).contains("no pack leaks"), "{}", stdout(&good));
    let lost = packd_model(&[&args[..], &["--lose-boundaries"]].concat());
    assert_eq!(lost.status.code(), Some(1));
    assert!(stdout(&lost).contains("1 packs leak"), "{}", stdout(&lost));
}

#[test]
fn lengths_of_another_tokenizer_are_an_error_that_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let shard = folder.path().join("a.tar");
    write_shard(&shard, "[5, 6]");
    let model = tiny_model();
    let args = ["forward", shard.to_str().unwrap(), "--model", model.to_str().unwrap(), "--fold-ids"];
    let output = packd_model(&args);
    assert_eq!(output.status.code(), Some(65));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("sub-sample 0 was packed as 5 tokens and has"), "{error}");
}

#[test]
fn forward_tells_the_loss_of_each_sub_sample() {
    let folder = tempfile::tempdir().unwrap();
    let shard = folder.path().join("a.tar");
    write_shard(&shard, "null");
    let model = tiny_model();
    let args = ["forward", shard.to_str().unwrap(), "--model", model.to_str().unwrap(), "--fold-ids"];
    let output = packd_model(&[&args[..], &["--per-token"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let lines: Vec<serde_json::Value> =
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    // "A colour." and the token that ends it.
    assert_eq!(lines[0]["trained"], 4);
    let losses = lines[0]["token_losses"].as_array().unwrap();
    assert_eq!(losses.len() as u64, lines[0]["tokens"].as_u64().unwrap());
    let trained: Vec<f64> = losses.iter().filter_map(serde_json::Value::as_f64).collect();
    let mean = trained.iter().sum::<f64>() / trained.len() as f64;
    assert!((mean - lines[0]["loss"].as_f64().unwrap()).abs() < 1e-4);
    let own = packd_model(&["forward", shard.to_str().unwrap(), "--model", model.to_str().unwrap()]);
    assert_eq!(own.status.code(), Some(78), "the tokenizer is another's");
}

#[test]
fn wrong_usage_has_its_own_status() {
    assert_eq!(packd_model(&["leak-check"]).status.code(), Some(64));
    assert_eq!(packd_model(&["--help"]).status.code(), Some(0));
    let missing = packd_model(&["leak-check", "x.tar", "--model", "/nonexistent"]);
    assert_eq!(missing.status.code(), Some(66), "{missing:?}");
}
