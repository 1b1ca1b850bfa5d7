//! The command `layout`.

use std::process::Command;

use packd_inference::layout::TRACKER;

use crate::support::*;

fn packd_model(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_packd-model")).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_command_prints_text_and_json_and_tells_problems_by_its_exit_code() {
    let root = tempfile::tempdir().unwrap();
    let dir = Tree { layers: vec![0, 4], ..tree(2, 2, 2) }.write(root.path());
    let path = root.path().to_str().unwrap();
    let (code, out, _) = packd_model(&["layout", path]);
    assert_eq!(code, Some(0), "{out}");
    for line in [
        "layout      3D (tp, pp, ep): the names have three numbers",
        "degrees     TP 2, PP 2, EP 2, ETP 2",
        "layers      0,4 (custom split)",
        "experts     4, 2 a rank",
        "vocabulary  256 rows, 128 a rank, a multiple of 256; the last 3 are copies of one before",
        "no problems found",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    std::fs::remove_dir_all(dir.join("mp_rank_00_001_001")).unwrap();
    let (code, out, _) = packd_model(&["layout", path, "--json", "--tp", "2", "--expert_parallel_size", "2"]);
    assert_eq!(code, Some(1), "{out}");
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["format"], "torch");
    assert_eq!(json["style"], "3D (tp, pp, ep)");
    assert_eq!(json["degrees"], serde_json::json!({"tp": 2, "pp": 2, "ep": 2, "etp": 2}));
    assert_eq!(json["missing"], serde_json::json!(["mp_rank_00_001_001"]));
    assert_eq!(json["dtypes"]["float32"].as_u64().unwrap() % 2, 0);
    let (code, _, error) = packd_model(&["layout", "/no/such/folder"]);
    assert_eq!(code, Some(66), "{error}");
    std::fs::write(root.path().join(TRACKER), "x").unwrap();
    assert_eq!(packd_model(&["layout", path]).0, Some(65));
    assert_eq!(packd_model(&["layout", path, "--tp", "0"]).0, Some(64));
    let root = tempfile::tempdir().unwrap();
    distributed(root.path());
    let (code, out, _) = packd_model(&["layout", root.path().to_str().unwrap()]);
    assert_eq!(code, Some(0));
    assert!(out.contains("distributed (torch_dist): it has .metadata"), "{out}");
}
