//! Layouts of Megatron checkpoints, on trees made here.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use packd_inference::layout::{
    AskedDegrees, Checkpoint, Degrees, Layout, NameStyle, RANK_FILE, Saved, TRACKER,
};
use packd_inference::torch_file::{ArgsStyle, PyValue, TensorSpec, TorchDtype, TorchFileWriter};

/// A checkpoint to be made.
#[derive(Clone)]
struct Tree {
    tp: usize,
    pp: usize,
    ep: usize,
    layers: Vec<usize>,
    /// Experts of each rank.
    experts: usize,
    /// Parts that an expert is cut into, when it is not that of the tensor parallel degree.
    etp: Option<usize>,
    /// The names' style, when it is not that of the degrees.
    style: NameStyle,
    saved: Saved,
    /// `args` say the degrees.
    args: bool,
    /// Rows of the embedding that are copies of the last token's.
    padding: usize,
    virtual_chunks: usize,
}

fn tree(tp: usize, pp: usize, ep: usize) -> Tree {
    Tree {
        tp,
        pp,
        ep,
        layers: vec![2; pp],
        experts: if ep > 1 { 2 } else { 0 },
        etp: None,
        style: NameStyle::of(pp, ep),
        saved: Saved::Release,
        args: false,
        padding: 3,
        virtual_chunks: 1,
    }
}

/// Two columns of numbers that differ between rows and ranks, but for `same` rows at the end.
fn filled(rows: usize, seed: usize, same: usize) -> PyValue {
    let value = |row: usize| (seed * 1000 + row.min(rows.saturating_sub(same + 1))) as f32;
    let bytes = (0..rows).flat_map(|row| [value(row).to_le_bytes(); 2]).flatten().collect();
    PyValue::Filled(TensorSpec { dtype: TorchDtype::Float, shape: vec![rows, 2] }, bytes)
}

impl Tree {
    fn model(&self, tp: usize, pp: usize) -> Vec<(String, PyValue)> {
        let mut model = Vec::new();
        let llm = "language_model";
        if pp == 0 {
            let same = if tp + 1 == self.tp { self.padding } else { 0 };
            model.push((format!("{llm}.embedding.word_embeddings.weight"), filled(128, tp + 1, same)));
            for layer in 0..2 {
                model.push((
                    format!("vision_model.decoder.layers.{layer}.mlp.linear_fc1.weight"),
                    filled(2, 0, 0),
                ));
            }
            let norm = PyValue::Filled(TensorSpec { dtype: TorchDtype::Float, shape: vec![0] }, vec![]);
            model.push(("vision_model.pre_layernorm._extra_state".into(), norm));
        }
        for layer in 0..self.layers[pp] / self.virtual_chunks {
            let layer = format!("{llm}.decoder.layers.{layer}");
            model.push((format!("{layer}.self_attention.linear_qkv.weight"), filled(4, tp, 0)));
            for expert in 0..self.experts {
                let seed = tp % self.etp.unwrap_or(self.tp);
                let name = format!("{layer}.mlp.experts.local_experts.{expert}.linear_fc1.weight");
                model.push((name, filled(4, seed, 0)));
            }
        }
        if pp + 1 == self.pp {
            model.push((format!("{llm}.decoder.final_layernorm.weight"), filled(1, 0, 0)));
            model.push((format!("{llm}.output_layer.weight"), filled(128, tp, 0)));
        }
        model
    }

    fn file(&self, tp: usize, pp: usize) -> PyValue {
        let size = |name: &str, size: usize| (name.to_owned(), PyValue::Int(size as i64));
        let args = vec![
            size("tensor_model_parallel_size", self.tp),
            size("pipeline_model_parallel_size", self.pp),
            size("expert_model_parallel_size", self.ep),
            size("num_layers", self.layers.iter().sum()),
        ];
        let etp = self.etp.map(|etp| size("expert_tensor_parallel_size", etp));
        let args = if self.args { args.into_iter().chain(etp).collect() } else { Vec::new() };
        let iteration = if let Saved::Iteration(number) = self.saved { number as i64 } else { 0 };
        let mut file = vec![
            ("args".to_owned(), PyValue::Attributes(ArgsStyle::Namespace, args)),
            ("checkpoint_version".to_owned(), PyValue::Float(3.0)),
            ("iteration".to_owned(), PyValue::Int(iteration)),
        ];
        for chunk in 0..self.virtual_chunks {
            let name = if self.virtual_chunks == 1 { "model".into() } else { format!("model{chunk}") };
            file.push((name, PyValue::dict(self.model(tp, pp))));
        }
        PyValue::dict(file)
    }

    fn write(&self, root: &Path) -> PathBuf {
        let folder = self.saved.folder().unwrap();
        let dir = root.join(&folder);
        for tp in 0..self.tp {
            for pp in 0..self.pp {
                for ep in 0..self.ep {
                    let rank = dir.join(self.style.name(tp, pp, ep));
                    std::fs::create_dir_all(&rank).unwrap();
                    let writer = TorchFileWriter::create(&rank.join(RANK_FILE), &self.file(tp, pp)).unwrap();
                    writer.finish().unwrap();
                }
            }
        }
        let tracked = folder
            .strip_prefix("iter_")
            .map_or("release\n".into(), |it| it.trim_start_matches('0').to_owned());
        std::fs::write(root.join(TRACKER), tracked).unwrap();
        dir
    }
}

fn layout(root: &Path, asked: AskedDegrees) -> Layout {
    match Checkpoint::read(root, &asked).unwrap() {
        Checkpoint::Torch(layout) => *layout,
        Checkpoint::Distributed(found) => panic!("{found:?}"),
    }
}

fn read(root: &Path) -> Layout {
    layout(root, AskedDegrees::default())
}

fn check(tree: &Tree) -> Layout {
    let root = tempfile::tempdir().unwrap();
    let dir = tree.write(root.path());
    let found = read(root.path());
    assert_eq!(found.problems, [""; 0]);
    assert_eq!(
        (found.root.as_path(), found.dir.as_path(), found.saved),
        (root.path(), dir.as_path(), tree.saved)
    );
    assert_eq!(found.style, tree.style);
    assert_eq!((found.degrees.tp, found.degrees.pp, found.degrees.ep), (tree.tp, tree.pp, tree.ep));
    assert_eq!(found.layers_per_stage(), Some(tree.layers.clone()));
    let vocabulary = found.vocabulary.unwrap();
    assert_eq!((vocabulary.padded, vocabulary.per_rank), (128 * tree.tp, 128));
    assert_eq!(vocabulary.copied_rows, tree.padding);
    assert_eq!(found.dtypes.keys().collect::<Vec<_>>(), [&TorchDtype::Float]);
    for (tp, pp, ep) in [(0, 0, 0), (tree.tp - 1, tree.pp - 1, tree.ep - 1)] {
        assert!(found.rank_path(tp, pp, ep).is_file());
    }
    found
}

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

fn distributed(root: &Path) {
    let dir = root.join("iter_0000100");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(root.join(TRACKER), "100").unwrap();
    for name in [".metadata", "common.pt", "__0_0.distcp", "__0_1.distcp"] {
        std::fs::write(dir.join(name), "12345").unwrap();
    }
    std::fs::write(
        dir.join("metadata.json"),
        r#"{"sharded_backend": "torch_dist", "common_backend": "torch"}"#,
    )
    .unwrap();
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
