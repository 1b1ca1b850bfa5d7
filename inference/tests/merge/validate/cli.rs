//! The command line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use candle_core::DType;
use packd_inference::merge::MergeOptions;
use tempfile::TempDir;

use super::support::{change_tensor, fixture, merged, sources, transposed};

/// A merged checkpoint, and the arguments that say what it was made of.
struct Case {
    folder: TempDir,
    checkpoint: PathBuf,
    arguments: Vec<String>,
}

impl Case {
    /// The processor's tokenizer gets the token that prompts begin with.
    fn new(dtype: DType) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let processor = folder.path().join("processor");
        std::fs::create_dir(&processor).unwrap();
        for file in std::fs::read_dir(fixture("processor")).unwrap().map(Result::unwrap) {
            std::fs::copy(file.path(), processor.join(file.file_name())).unwrap();
        }
        let path = processor.join("tokenizer.json");
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let mut added = json["added_tokens"][0].clone();
        (added["id"], added["content"]) = (56.into(), "<|im_start|>".into());
        json["added_tokens"].as_array_mut().unwrap().push(added);
        json["model"]["vocab"]["<|im_start|>"] = 56.into();
        std::fs::write(&path, json.to_string()).unwrap();

        let sources = MergeOptions { processor: processor.clone(), dtype, ..sources("dense") };
        let (out, merged) = merged(&sources);
        let checkpoint = folder.path().join("merged");
        std::fs::rename(merged, &checkpoint).unwrap();
        drop(out);
        let paths = [
            ("--vit", &sources.vit),
            ("--llm", &sources.llm),
            ("--processor", &processor),
            ("--adapter", sources.adapter.as_ref().unwrap()),
            ("--ckpt", &checkpoint),
        ];
        let arguments =
            paths.iter().flat_map(|(flag, path)| [(*flag).to_owned(), path.display().to_string()]);
        let arguments = ["validate".to_owned()].into_iter().chain(arguments).collect();
        Self { folder, checkpoint, arguments }
    }

    fn run(&self, more: &[&str]) -> Output {
        let fixed = ["--profile", "llava-onevision-2", "--max-new-tokens", "4"];
        let mut command = Command::new(env!("CARGO_BIN_EXE_packd-model"));
        command.args(&self.arguments).args(fixed).args(more).output().unwrap()
    }

    fn json(&self, more: &[&str]) -> (Option<i32>, serde_json::Value) {
        let output = self.run(&[more, &["--json"]].concat());
        (
            output.status.code(),
            serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}")),
        )
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The row of a part in the table.
fn row<'a>(table: &'a str, part: &str) -> &'a str {
    table.lines().find(|line| line.starts_with(part)).unwrap_or_else(|| panic!("{part}: {table}"))
}

#[test]
fn a_right_checkpoint_and_a_wrong_one() {
    let case = Case::new(DType::BF16);
    let good = case.run(&[]);
    assert_eq!(good.status.code(), Some(0), "{good:?}");
    let table = text(&good.stdout);
    for (part, points) in [("weights", "47"), ("vit", "6"), ("llm", "4"), ("e2e", "4")] {
        let row = row(&table, part);
        assert!(row.ends_with("ok") && row.split_whitespace().nth(1) == Some(points), "{table}");
    }
    assert!(row(&table, "vit").contains("1.000000000") && row(&table, "vit").contains("0.00e0"), "{table}");
    assert!(table.contains("the checkpoint is what its sources make"), "{table}");
    assert!(table.contains("  e2e checkpoint: "), "{table}");

    change_tensor(&case.checkpoint, "model.visual.encoder.layers.1.self_attn.proj.weight", transposed);
    let bad = case.run(&["--skip", "weights,e2e"]);
    assert_eq!(bad.status.code(), Some(1), "{bad:?}");
    let table = text(&bad.stdout);
    assert!(row(&table, "vit").ends_with("FAILS from vit.layer1.out on"), "{table}");
    assert!(row(&table, "llm").ends_with("ok"), "{table}");
    assert!(table.contains("  vit.before_adapter: cosine 0."), "{table}");
    assert!(!table.lines().any(|line| line.starts_with("weights") || line.starts_with("e2e")), "{table}");
    // What is skipped is not looked at.
    assert_eq!(case.run(&["--skip", "weights,vit,e2e"]).status.code(), Some(0));
    let weights = case.run(&["--skip", "vit,llm,e2e"]);
    assert_eq!(weights.status.code(), Some(1));
    let said = "  differs model.visual.encoder.layers.1.self_attn.proj.weight: ";
    assert!(text(&weights.stdout).contains(said), "{weights:?}");
}

#[test]
fn json_holds_everything() {
    let case = Case::new(DType::F32);
    let (status, json) = case.json(&[]);
    assert_eq!((status, &json["passed"]), (Some(0), &true.into()), "{json}");
    assert_eq!(json["weights"]["equal"], 47);
    let hash = json["weights"]["tensors"][0]["checkpoint"].as_str().unwrap();
    assert_eq!(json["weights"]["tensors"][0]["sources"], hash);
    assert_eq!(hash.len(), 32);
    for part in ["vit", "llm", "e2e"] {
        assert_eq!(json[part]["passed"], true, "{part}");
    }
    let point = &json["vit"]["points"][1];
    assert_eq!((&point["passed"], &point["identical"]), (&true.into(), &true.into()));
    assert_eq!(point["name"], "vit.after_pre_layernorm");
    assert_eq!(point["agreement"]["relative_error"], 0.0);
    // 64 x 48 pixels are fewer than the processor's least: 68 x 52.
    assert_eq!(point["shape"], serde_json::json!([34 * 26, 32]));
    assert_eq!(json["llm"]["threshold"]["relative_error"], 1e-6);
    assert_eq!(json["llm"]["first_over"], serde_json::Value::Null);
    assert_eq!(json["e2e"]["checkpoint"].as_array().unwrap().len(), 4);
    assert_eq!(json["e2e"]["checkpoint_text"], json["e2e"]["sources_text"]);
    assert!(json["notes"][0].as_str().unwrap().contains("rounded"));

    let (status, json) = case.json(&["--dtype", "bf16", "--skip", "llm"]);
    assert_eq!((status, &json["llm"]), (Some(0), &serde_json::Value::Null));
    assert_eq!(json["vit"]["threshold"]["relative_error"], 2e-4);
}

#[test]
fn inputs_and_names_of_the_reference_are_taken() {
    let case = Case::new(DType::F32);
    let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pixels/444.jpg");
    let (image, processor) = (image.display().to_string(), case.folder.path().join("processor"));
    let processor = processor.display().to_string();
    // The processor's own patches are of another size; the checkpoint's have the model's.
    let (status, json) = case.json(&["--validate-skip", "llm", "--validate_skip", "e2e", "--img", &image]);
    assert_eq!(status, Some(0), "{json}");
    assert_eq!([json["llm"].is_null(), json["e2e"].is_null(), json["vit"].is_null()], [true, true, false]);
    let built_in = 34 * 26;
    assert_ne!(json["vit"]["points"][0]["shape"][0], built_in);
    let (status, json) = case.json(&["--skip", "weights,vit,e2e", "--sample-text", "w3 w17 w8"]);
    assert_eq!((status, &json["llm"]["points"][0]["shape"]), (Some(0), &serde_json::json!([3, 24])));

    for (more, status, said) in [
        (vec!["--skip", "weights,vit", "--skip", "llm,e2e"], 64, "nothing is left"),
        (vec!["--skip", "logits"], 64, "possible values"),
        (vec!["--img", "/nonexistent.png"], 66, "/nonexistent.png"),
        (vec!["--qwen-processor", &processor], 78, "patches of 14 merged by 2, the model takes 2 by 2"),
        (vec!["--qwen-processor", &processor, "--tokenizer", &processor], 64, "cannot be used with"),
        (vec!["--sample-text", ""], 65, "without tokens"),
        (vec!["--device", "cuda"], 78, "packd-gpu"),
    ] {
        let output = case.run(&more);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{more:?}: {error}");
        assert!(error.contains(said), "{more:?}: {error}");
    }
}
