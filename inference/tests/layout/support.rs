//! Trees of checkpoints that are made for a test.

use std::path::{Path, PathBuf};

use packd_inference::layout::{AskedDegrees, Checkpoint, Layout, NameStyle, RANK_FILE, Saved, TRACKER};
use packd_inference::torch_file::{ArgsStyle, PyValue, TensorSpec, TorchDtype, TorchFileWriter};

/// A checkpoint to be made.
#[derive(Clone)]
pub(crate) struct Tree {
    pub(crate) tp: usize,
    pub(crate) pp: usize,
    pub(crate) ep: usize,
    pub(crate) layers: Vec<usize>,
    /// Experts of each rank.
    pub(crate) experts: usize,
    /// Parts that an expert is cut into, when it is not that of the tensor parallel degree.
    pub(crate) etp: Option<usize>,
    /// The names' style, when it is not that of the degrees.
    pub(crate) style: NameStyle,
    pub(crate) saved: Saved,
    /// `args` say the degrees.
    pub(crate) args: bool,
    /// Rows of the embedding that are copies of the last token's.
    pub(crate) padding: usize,
    pub(crate) virtual_chunks: usize,
}

pub(crate) fn tree(tp: usize, pp: usize, ep: usize) -> Tree {
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

impl Tree {
    pub(crate) fn model(&self, tp: usize, pp: usize) -> Vec<(String, PyValue)> {
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

    pub(crate) fn file(&self, tp: usize, pp: usize) -> PyValue {
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

    pub(crate) fn write(&self, root: &Path) -> PathBuf {
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

/// Two columns of numbers that differ between rows and ranks, but for `same` rows at the end.
pub(crate) fn filled(rows: usize, seed: usize, same: usize) -> PyValue {
    let value = |row: usize| (seed * 1000 + row.min(rows.saturating_sub(same + 1))) as f32;
    let bytes = (0..rows).flat_map(|row| [value(row).to_le_bytes(); 2]).flatten().collect();
    PyValue::Filled(TensorSpec { dtype: TorchDtype::Float, shape: vec![rows, 2] }, bytes)
}

pub(crate) fn layout(root: &Path, asked: AskedDegrees) -> Layout {
    match Checkpoint::read(root, &asked).unwrap() {
        Checkpoint::Torch(layout) => *layout,
        Checkpoint::Distributed(found) => panic!("{found:?}"),
    }
}

pub(crate) fn read(root: &Path) -> Layout {
    layout(root, AskedDegrees::default())
}

pub(crate) fn check(tree: &Tree) -> Layout {
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

pub(crate) fn distributed(root: &Path) {
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
