//! What is wrong with a tree.

use packd_inference::layout::{AskedDegrees, Checkpoint, RANK_FILE, Saved, TRACKER};
use packd_inference::torch_file::TorchFileWriter;

use crate::support::*;

#[test]
fn missing_and_extra_ranks_are_named() {
    let root = tempfile::tempdir().unwrap();
    let dir = tree(2, 2, 2).write(root.path());
    std::fs::remove_dir_all(dir.join("mp_rank_01_000_001")).unwrap();
    std::fs::remove_file(dir.join("mp_rank_00_001_000").join(RANK_FILE)).unwrap();
    std::fs::create_dir(dir.join("mp_rank_00_1")).unwrap();
    let found = read(root.path());
    assert_eq!(found.missing, ["mp_rank_00_001_000", "mp_rank_01_000_001"]);
    assert_eq!(found.extra, ["mp_rank_00_1"]);
    assert!(found.problems.contains(&"missing ranks: mp_rank_00_001_000, mp_rank_01_000_001".into()));
    assert!(found.problems.contains(&"mp_rank_00_001_000 has no model_optim_rng.pt".into()));
    // A whole stage.
    let root = tempfile::tempdir().unwrap();
    let dir = tree(1, 3, 1).write(root.path());
    std::fs::remove_dir_all(dir.join("mp_rank_00_001")).unwrap();
    let found = read(root.path());
    assert_eq!((found.layers_per_stage(), found.missing), (None, vec!["mp_rank_00_001".to_owned()]));
    // The last, which only the caller or args can know of.
    std::fs::remove_dir_all(dir.join("mp_rank_00_002")).unwrap();
    let found = layout(root.path(), AskedDegrees { pp: Some(3), ..AskedDegrees::default() });
    assert_eq!(found.missing, ["mp_rank_00_001", "mp_rank_00_002"]);
    assert!(found.problems[0].contains("--pp 3 was given, the names say 1"), "{:?}", found.problems);
    // A rank of another layout.
    let root = tempfile::tempdir().unwrap();
    let dir = tree(2, 1, 1).write(root.path());
    std::fs::create_dir(dir.join("mp_rank_00_000")).unwrap();
    std::fs::copy(dir.join("mp_rank_00").join(RANK_FILE), dir.join("mp_rank_00_000").join(RANK_FILE))
        .unwrap();
    assert_eq!(read(root.path()).extra, ["mp_rank_00_000"]);
}

#[test]
fn degrees_of_the_caller_that_do_not_fit_are_problems() {
    let root = tempfile::tempdir().unwrap();
    Tree { args: true, ..tree(2, 2, 1) }.write(root.path());
    let found = layout(root.path(), AskedDegrees { tp: Some(4), pp: Some(2), ep: Some(2) });
    assert!(found.problems.contains(&"--tp 4 was given, the names say 2".into()), "{:?}", found.problems);
    assert!(found.problems.contains(&"--ep 2 was given, the names say 1".into()));
    assert_eq!(found.missing.len(), 4);
    assert!(layout(root.path(), AskedDegrees { tp: Some(2), pp: Some(2), ep: Some(1) }).problems.is_empty());
}

#[test]
fn ranks_that_do_not_belong_together_are_problems() {
    let root = tempfile::tempdir().unwrap();
    let dir = tree(2, 1, 1).write(root.path());
    let other = Tree { layers: vec![3], saved: Saved::Iteration(7), ..tree(2, 1, 1) };
    let file = dir.join("mp_rank_01").join(RANK_FILE);
    std::fs::remove_file(&file).unwrap();
    TorchFileWriter::create(&file, &other.file(1, 0)).unwrap().finish().unwrap();
    let problems = read(root.path()).problems;
    assert!(problems.iter().any(|it| it.contains("its iteration is 7, the folder says 0")), "{problems:?}");
    let differs = "mp_rank_01 differs from mp_rank_00: it has also \
        language_model.decoder.layers.2.self_attention.linear_qkv.weight";
    assert!(problems.contains(&differs.into()), "{problems:?}");
}

#[test]
fn trackers_that_are_wrong_or_missing_are_told() {
    let root = tempfile::tempdir().unwrap();
    let dir = tree(1, 1, 1).write(root.path());
    let error = || Checkpoint::read(root.path(), &AskedDegrees::default()).unwrap_err().to_string();
    for text in ["", "latest", "0", "-5", "1.5", "release 2"] {
        std::fs::write(root.path().join(TRACKER), text).unwrap();
        assert!(error().contains("neither \"release\" nor an iteration"), "{text}: {}", error());
    }
    std::fs::write(root.path().join(TRACKER), " 12\n").unwrap();
    assert!(error().contains("iter_0000012, which is not there"), "{}", error());
    std::fs::remove_file(root.path().join(TRACKER)).unwrap();
    assert!(read(root.path()).problems[0].contains("is missing"));
    // The folder itself needs no tracker.
    assert_eq!((read(&dir).saved, read(&dir).problems), (Saved::Release, vec![]));
    std::fs::create_dir(root.path().join("iter_0000005")).unwrap();
    assert!(error().contains("name one of iter_0000005, release"), "{}", error());
    let empty = tempfile::tempdir().unwrap();
    let error = Checkpoint::read(empty.path(), &AskedDegrees::default()).unwrap_err().to_string();
    assert!(error.contains("this is no Megatron checkpoint"), "{error}");
}
