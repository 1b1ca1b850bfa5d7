//! What one rank's file holds, by the names and shapes in it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Stage;
use crate::error::Result;
use crate::torch_file::{Node, TorchDtype, TorchFile};

pub(super) const EMBEDDING: &str = "language_model.embedding.word_embeddings.weight";
const OUTPUT: &str = "language_model.output_layer.weight";
const FINAL_NORM: &str = "language_model.decoder.final_layernorm.weight";
const LAYERS: &str = "language_model.decoder.layers.";
const VISION_LAYERS: &str = "vision_model.decoder.layers.";
const LOCAL_EXPERTS: &str = ".mlp.experts.local_experts.";
/// A layer's experts in one tensor each, as grouped GEMM names them: the expert's number ends the name.
const GROUPED_EXPERTS: &str = ".mlp.experts.linear_fc1.weight";

/// The file of one rank.
#[derive(Debug, Default)]
pub(super) struct RankFile {
    /// Tensors but for `_extra_state`, by part of the virtual pipeline and name.
    pub(super) tensors: BTreeMap<(usize, String), (TorchDtype, Vec<usize>)>,
    pub(super) stage: Stage,
    pub(super) chunks: usize,
    /// The first tensor of an expert, if there is one.
    pub(super) expert: Option<String>,
    pub(super) iteration: Option<i64>,
    pub(super) args: Args,
    /// What is wrong with this file.
    pub(super) problems: Vec<String>,
}

/// What `args` say; nothing in files of a converter that leaves them empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Args {
    pub(super) tp: Option<usize>,
    pub(super) pp: Option<usize>,
    pub(super) ep: Option<usize>,
    pub(super) etp: Option<usize>,
    pub(super) layers: Option<usize>,
    pub(super) vocab_size: Option<usize>,
}

impl RankFile {
    pub(super) fn read(path: &Path) -> Result<Self> {
        let file = TorchFile::open(path)?;
        let root = file.root();
        let mut rank = Self { iteration: root.get("iteration").and_then(Node::as_int), ..Self::default() };
        let mut layers: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let (mut vision_layers, mut experts) = (BTreeSet::new(), BTreeSet::new());
        for (part, name, node) in file.model() {
            rank.chunks = rank.chunks.max(part + 1);
            if name.ends_with("_extra_state") {
                continue;
            }
            let Some(info) = node.as_tensor() else {
                // The root of a bare state dict has only tensors; others have entries of other kinds.
                rank.problems.push(format!("{name} is no tensor but {}", node.describe()));
                continue;
            };
            layers.entry(part).or_default().extend(number_after(name, LAYERS));
            vision_layers.extend(number_after(name, VISION_LAYERS));
            if let Some(expert) = expert(name) {
                experts.insert(expert);
                rank.expert.get_or_insert(name.to_owned());
            }
            rank.stage.embedding |= name == EMBEDDING;
            rank.stage.output_layer |= name == OUTPUT;
            rank.stage.final_norm |= name == FINAL_NORM;
            rank.tensors.insert((part, name.to_owned()), (info.dtype, info.shape.clone()));
        }
        for (part, layers) in &layers {
            if !layers.iter().copied().eq(0..layers.len()) {
                let part = if rank.chunks > 1 { format!("model{part}: ") } else { String::new() };
                rank.problems.push(format!("{part}its decoder layers are not 0, 1, 2, … but {layers:?}"));
            }
        }
        rank.stage.layers = layers.values().map(BTreeSet::len).sum();
        rank.stage.vision_layers = vision_layers.len();
        rank.stage.local_experts = experts.len();
        rank.header(root);
        Ok(rank)
    }

    fn header(&mut self, root: Node<'_>) {
        if root.get("model").is_none() && root.get("model0").is_none() {
            self.problems.push("it has no model".into());
        }
        match root.get("checkpoint_version").map(Node::as_float) {
            Some(Some(3.0)) => (),
            Some(Some(version)) => self.problems.push(format!("its checkpoint_version is {version}, not 3")),
            _ => self.problems.push("it has no checkpoint_version".into()),
        }
        let Some(args) = root.get("args") else {
            self.problems.push("it has no args: the reference converter refuses it".into());
            return;
        };
        let size = |name| args.get(name).and_then(Node::as_int).and_then(|size| usize::try_from(size).ok());
        self.args = Args {
            tp: size("tensor_model_parallel_size"),
            pp: size("pipeline_model_parallel_size"),
            ep: size("expert_model_parallel_size"),
            etp: size("expert_tensor_parallel_size"),
            layers: size("num_layers"),
            vocab_size: size("vocab_size"),
        };
    }
}

fn number_after(name: &str, prefix: &str) -> Option<usize> {
    name.strip_prefix(prefix)?.split_once('.')?.0.parse().ok()
}

/// The number of the expert that a tensor belongs to.
fn expert(name: &str) -> Option<usize> {
    match name.split_once(LOCAL_EXPERTS) {
        Some((_, rest)) => rest.split_once('.')?.0.parse().ok(),
        None => name.split_once(GROUPED_EXPERTS)?.1.parse().ok(),
    }
}
