//! What a tree is, and why.

use packd_inference::layout::{AskedDegrees, Checkpoint, Degrees, NameStyle, RANK_FILE, Saved};
use packd_inference::torch_file::TorchFileWriter;

use crate::support::*;

#[test]
fn every_combination_of_degrees_is_recognised() {
    // 8 trees.
    for (tp, pp, ep) in
        [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 1, 2), (2, 1, 2), (1, 2, 2), (2, 2, 2)]
    {
        let found = check(&tree(tp, pp, ep));
        let etp = if ep > 1 { Some(tp) } else { None };
        assert_eq!(found.degrees, Degrees { tp, pp, ep, etp });
        let reason = match (pp > 1, ep > 1) {
            (false, false) => "one number",
            (true, true) => "three numbers",
            (true, false) => "the second numbers share the model",
            (false, true) => "experts of its own",
        };
        assert!(found.reason.contains(reason), "{}", found.reason);
    }
}

#[test]
fn custom_splits_virtual_pipelines_and_iterations_are_recognised() {
    let split = Tree { layers: vec![0, 3, 3, 2], saved: Saved::Iteration(500), ..tree(1, 4, 1) };
    let found = check(&split);
    assert!(found.has_custom_split());
    assert_eq!(found.stages[0].as_ref().unwrap().vision_layers, 2);
    let found = check(&Tree { layers: vec![4, 4], virtual_chunks: 2, ..tree(1, 2, 1) });
    assert_eq!(found.virtual_chunks, 2);
    assert!(!found.has_custom_split());
}

#[test]
fn experts_that_are_not_cut_have_etp_1_and_args_are_heard() {
    let found = check(&Tree { etp: Some(1), args: true, ..tree(2, 1, 2) });
    assert_eq!(found.degrees.etp, Some(1));
    // Between 1 and the tensor parallel degree.
    for (tp, etp) in [(4, 1), (4, 2), (4, 4), (6, 2), (6, 3), (8, 2), (8, 4)] {
        for args in [false, true] {
            let found = check(&Tree { etp: Some(etp), args, ..tree(tp, 1, 2) });
            assert_eq!(found.degrees.etp, Some(etp), "{tp}");
        }
    }
    // Files that say another degree than they have.
    let root = tempfile::tempdir().unwrap();
    let dir = Tree { etp: Some(2), args: true, ..tree(4, 1, 2) }.write(root.path());
    let cut = Tree { etp: Some(4), args: true, ..tree(4, 1, 2) };
    for rank in ["mp_rank_02_000", "mp_rank_03_000"] {
        let file = dir.join(rank).join(RANK_FILE);
        std::fs::remove_file(&file).unwrap();
        let tp = if rank.contains("02") { 2 } else { 3 };
        TorchFileWriter::create(&file, &cut.file(tp, 0)).unwrap().finish().unwrap();
    }
    let found = read(root.path());
    assert_eq!(found.degrees.etp, Some(4));
    assert!(found.problems[0].contains("expert_tensor_parallel_size 2, but by"), "{:?}", found.problems);
    // Of ranks that are missing nobody knows what they hold: args are believed.
    std::fs::remove_dir_all(dir.join("mp_rank_02_000")).unwrap();
    std::fs::remove_dir_all(dir.join("mp_rank_03_000")).unwrap();
    assert_eq!(read(root.path()).degrees.etp, Some(2));
    // A vocabulary whose padding goes over more than one rank.
    let root = tempfile::tempdir().unwrap();
    Tree { padding: 127, ..tree(2, 1, 1) }.write(root.path());
    assert_eq!(read(root.path()).vocabulary.unwrap().copied_rows, 127);
}

#[test]
fn ambiguous_names_go_by_the_caller_first() {
    let root = tempfile::tempdir().unwrap();
    tree(1, 2, 1).write(root.path());
    let by = |pp, ep| layout(root.path(), AskedDegrees { tp: None, pp, ep });
    let found = by(Some(2), None);
    assert_eq!((found.style, found.reason.as_str()), (NameStyle::TpPp, "the caller gave --pp 2"));
    assert!(found.problems.is_empty());
    let found = by(None, Some(1));
    assert_eq!((found.style, found.degrees.pp), (NameStyle::TpPp, 2));
    // The caller is followed, and told that the files say another thing.
    let found = by(None, Some(2));
    assert_eq!((found.style, found.degrees.ep), (NameStyle::TpEp, 2));
    assert!(found.problems[0].contains("which speaks for 2D (tp, pp)"), "{:?}", found.problems);
    // A rank of each stage tells nothing when a stage has everything: args decide.
    let root = tempfile::tempdir().unwrap();
    Tree { args: true, experts: 0, ..tree(1, 1, 2) }.write(root.path());
    let found = read(root.path());
    assert_eq!(found.style, NameStyle::TpEp);
    assert!(found.reason.starts_with("args say"), "{}", found.reason);
    // And nothing decides without them.
    let root = tempfile::tempdir().unwrap();
    Tree { experts: 0, ..tree(1, 1, 2) }.write(root.path());
    assert!(read(root.path()).problems[0].contains("give --pp or --ep"));
}

#[test]
fn distributed_checkpoints_are_recognised_and_named() {
    let root = tempfile::tempdir().unwrap();
    distributed(root.path());
    let found = Checkpoint::read(root.path(), &AskedDegrees::default()).unwrap();
    let Checkpoint::Distributed(found) = found else { panic!("{found:?}") };
    assert_eq!((found.saved, found.shards, found.bytes), (Saved::Iteration(100), 2, 10));
    assert_eq!((found.backend.as_str(), found.problems.as_slice()), ("torch_dist", &[][..]));
    std::fs::remove_file(root.path().join("iter_0000100/.metadata")).unwrap();
    let found = Checkpoint::read(root.path(), &AskedDegrees::default()).unwrap();
    assert!(matches!(found, Checkpoint::Distributed(it) if it.problems == [".metadata is missing"]));
}
