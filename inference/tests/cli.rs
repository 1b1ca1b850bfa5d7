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

/// As on a full disk, each write over 50 KB fails.
#[test]
fn what_cannot_be_written_is_one_line_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let hf = tiny_model();
    let limited = |args: &[&str]| {
        let script = r#"trap "" XFSZ; ulimit -f 100; exec "$@""#;
        let program = env!("CARGO_BIN_EXE_packd-model");
        Command::new("sh").args(["-c", script, "sh", program]).args(args).output().unwrap()
    };
    let target = folder.path().join("target");
    let ranks = tempfile::tempdir().unwrap();
    let (hf, to) = (hf.to_str().unwrap(), target.to_str().unwrap());
    let mcore = ranks.path().join("mcore");
    let mcore = mcore.to_str().unwrap();
    assert!(packd_model(&["convert", hf, mcore, "--to", "mcore", "--tp", "2"]).status.success());
    for (args, file) in [
        (
            ["convert", hf, to, "--to", "mcore", "--tp", "2"].as_slice(),
            "release/mp_rank_00/model_optim_rng.pt",
        ),
        (&["convert", mcore, to, "--to", "hf", "--hf", hf], "model.safetensors"),
        (&["convert", mcore, to, "--to", "mcore", "--hf", hf], "release/mp_rank_00/model_optim_rng.pt"),
    ] {
        let done = limited(args);
        assert_eq!(done.status.code(), Some(73), "{done:?}");
        let expected = format!("error: cannot write {to}/{file}: File too large (os error 27)\n");
        assert_eq!(String::from_utf8_lossy(&done.stderr), expected);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn convert_takes_its_own_flags_and_those_of_the_reference_converter() {
    let folder = tempfile::tempdir().unwrap();
    let hf = tiny_model();
    let hf = hf.to_str().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let own = path("own");
    let done = packd_model(&["convert", hf, &own, "--to", "mcore", "--tp", "2", "--pipeline-split", "0,1,1"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(stdout(&done).contains("6 files"), "{}", stdout(&done));
    let reference = path("reference");
    let done = packd_model(&[
        "convert",
        "--load_platform=huggingface",
        "--save_platform=mcore",
        "--load_ckpt_path",
        hf,
        "--save_ckpt_path",
        &reference,
        "--tensor_model_parallel_size=2",
        "--pipeline_model_parallel_size=3",
        "--custom_pipeline_layers=0,1,1",
        "--json",
    ]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let report: serde_json::Value = serde_json::from_str(&stdout(&done)).unwrap();
    assert_eq!(report["files"], 6);
    let file = "release/mp_rank_01_002/model_optim_rng.pt";
    let [one, other] = [own.clone(), reference].map(|dir| std::fs::read(Path::new(&dir).join(file)).unwrap());
    assert!(one == other);

    let back = path("back");
    let done = packd_model(&["convert", &own, &back, "--to", "hf", "--hf", hf]);
    assert!(stdout(&done).contains("copied: config.json, generation_config.json"), "{}", stdout(&done));
    for (args, code, said) in [
        (vec!["convert", hf, &back, "--to", "mcore"], 73, "is there already"),
        (vec!["convert", hf, &path("new"), "--to", "mcore", "--tp", "3"], 78, "num_key_value_heads"),
        (vec!["convert", &own, &path("new"), "--to", "hf"], 65, "--hf DIR"),
        (vec!["convert", hf, "--to", "mcore"], 64, "TARGET"),
        // Without a Megatron target they are of the source.
        (
            vec!["convert", &own, &path("new"), "--to", "hf", "--hf", hf, "--tp", "4"],
            65,
            "missing ranks: mp_rank_02_000",
        ),
        (
            vec!["convert", &own, &path("new"), "--to", "hf", "--hf", hf, "--pipeline-split", "1,1"],
            78,
            "is for a Megatron target",
        ),
        (vec!["convert", hf, &path("new"), "--to", "hf", "--max-shard-size", "0GB"], 64, "a size is"),
    ] {
        let done = packd_model(&args);
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(code), "{text}");
        assert!(text.contains(said), "{text}");
    }
    assert!(!Path::new(&path("new")).exists());
}

#[test]
fn consistency_prints_a_table_or_json_and_exits_by_what_it_found() {
    let folder = tempfile::tempdir().unwrap();
    let hf = tiny_model();
    let (hf, scratch) = (hf.to_str().unwrap(), folder.path().to_str().unwrap());
    let args = ["consistency", "--hf", hf, "--fold-ids", "--scratch", scratch, "--tp", "2", "--pp", "2"];
    let good = packd_model(&args);
    let said = stdout(&good);
    assert_eq!(good.status.code(), Some(0), "{said}{}", String::from_utf8_lossy(&good.stderr));
    for line in
        ["1 weights         passed        58        58  1         0        0 ", "6 loading         passed"]
    {
        assert!(said.contains(line), "{said}");
    }
    assert!(said.contains("consistent (Megatron constants on the Megatron side)"), "{said}");
    // The temporary checkpoint is gone.
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);

    let strict = [&args[..], &["--tolerance", "f32", "--skip", "loading,logits"]].concat();
    let bad = packd_model(&strict);
    let said = stdout(&bad);
    assert_eq!(bad.status.code(), Some(1), "{said}");
    assert!(said.contains("  vit.after_pre_layernorm: cosine 1.000000000, relative error 4.6"), "{said}");
    assert!(said.contains("--flavour hf"), "{said}");
    let json = packd_model(&[&strict[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
    assert_eq!((&json["passed"], &json["flavour"]), (&false.into(), &"megatron".into()));
    assert_eq!(json["checks"][1]["check"], "vision_encoder");
    assert_eq!(json["checks"][1]["first_over"], "vit.after_pre_layernorm");
    assert_eq!(json["checks"][4]["outcome"], "skipped");
    let alike = packd_model(&[&strict[..], &["--flavour", "hf"]].concat());
    assert_eq!(alike.status.code(), Some(0), "{}", stdout(&alike));

    // Tensors need no tokenizer that fits, and a reader that goes away leaves nothing behind.
    let tensors = ["consistency", "--hf", hf, "--scratch", scratch, "--checks", "weights"];
    let same = packd_model(&tensors);
    assert!(stdout(&same).contains("the tensors of the two checkpoints are the same"), "{same:?}");
    let closed = Command::new(env!("CARGO_BIN_EXE_packd-model")).args(tensors).stdout(closed_pipe()).status();
    assert_ne!(closed.unwrap().code(), Some(0));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    // An image of any size is looked at as one of 336 by 336.
    let large = folder.path().join("large.png");
    image::RgbImage::new(1200, 30).save(&large).unwrap();
    let looked = [&args[..], &["--json", "--checks", "merger", "--image", large.to_str().unwrap()]].concat();
    let json: serde_json::Value = serde_json::from_str(&stdout(&packd_model(&looked))).unwrap();
    assert_eq!(json["checks"][2]["points"][0]["shape"], serde_json::json!([144, 64]));

    let none = packd_model(&[&args[..], &["--checks", "merger", "--skip", "merger"]].concat());
    assert_eq!(none.status.code(), Some(78));
    let missing = packd_model(&["consistency", "--hf", hf, "--fold-ids", "--mcore", "/nonexistent"]);
    assert_eq!(missing.status.code(), Some(66), "{}", String::from_utf8_lossy(&missing.stderr));
}

/// A pipe that nobody reads.
fn closed_pipe() -> std::io::PipeWriter {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer
}
