//! What a Megatron checkpoint directory holds: its layout, degrees and stages, and what is wrong with it.
//!
//! ```text
//! ROOT/latest_checkpointed_iteration.txt      "release", or an iteration
//! ROOT/release/ or ROOT/iter_0000500/
//!     mp_rank_TT/model_optim_rng.pt           1D: tensor parallel rank
//!     mp_rank_TT_PPP/…                        2D: with more than one pipeline stage
//!     mp_rank_TT_EEE/…                        2D: with experts in more than one part, and one stage
//!     mp_rank_TT_PPP_EEE/…                    3D: both
//! ```
//!
//! The two kinds of 2D names look alike. Which it is, is decided by the caller's degrees, else by what the files hold;
//! [`Layout::reason`] says how.

mod decide;
mod distributed;
mod etp;
mod rank;
mod read;
mod tree;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::Result;
use crate::torch_file::TorchDtype;

pub use distributed::Distributed;
pub use tree::{NameStyle, RANK_FILE, Saved, TRACKER};

/// Parallel degrees that the caller knows.
#[derive(Clone, Copy, Debug, Default)]
pub struct AskedDegrees {
    /// Tensor parallel.
    pub tp: Option<usize>,
    /// Pipeline parallel.
    pub pp: Option<usize>,
    /// Expert parallel.
    pub ep: Option<usize>,
}

/// Parallel degrees of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Degrees {
    /// Tensor parallel.
    pub tp: usize,
    /// Pipeline parallel.
    pub pp: usize,
    /// Expert parallel.
    pub ep: usize,
    /// Tensor parallel within an expert: a divisor of the tensor parallel degree. None without experts.
    pub etp: Option<usize>,
}

/// What one pipeline stage holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stage {
    /// Decoder layers, of all chunks of a virtual pipeline.
    pub layers: usize,
    /// Layers of the vision tower.
    pub vision_layers: usize,
    /// Whether it has the token embedding.
    pub embedding: bool,
    /// Whether it has the final norm.
    pub final_norm: bool,
    /// Whether it has an output layer of its own; a tied one is the embedding.
    pub output_layer: bool,
    /// Experts of each rank, 0 in a dense model.
    pub local_experts: usize,
}

/// Sizes of the vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Vocabulary {
    /// Rows of the embedding over all tensor parallel ranks.
    pub padded: usize,
    /// Rows of one rank.
    pub per_rank: usize,
    /// Whether `padded` is a multiple of 128 times the tensor parallel degree, as Megatron pads by default.
    pub is_default_multiple: bool,
    /// Rows at the end that are bit for bit copies of the row before them: so the reference converter pads. The
    /// vocabulary has at least `padded - copied_rows` tokens.
    pub copied_rows: usize,
    /// `args.vocab_size`, if the files say it.
    pub vocab_size: Option<usize>,
}

/// A checkpoint of one file a rank.
#[derive(Clone, Debug, Serialize)]
pub struct Layout {
    /// The folder with the tracker file, or `dir` when there is none.
    pub root: PathBuf,
    /// The folder with the rank directories.
    pub dir: PathBuf,
    /// Release or iteration, by the name of `dir`.
    pub saved: Saved,
    /// The names of the rank directories.
    pub style: NameStyle,
    /// Why `style` is what it is.
    pub reason: String,
    /// The degrees: the caller's where given, else those that the files' `args` say, else by the names.
    pub degrees: Degrees,
    /// What each stage holds, first to last; none for a stage all of whose ranks are missing.
    pub stages: Vec<Option<Stage>>,
    /// Chunks of each stage in a virtual pipeline; 1 without.
    pub virtual_chunks: usize,
    /// Sizes of the vocabulary; none when the first stage is missing.
    pub vocabulary: Option<Vocabulary>,
    /// Tensors of the model by their dtype, `_extra_state` not counted.
    pub dtypes: BTreeMap<TorchDtype, usize>,
    /// Ranks that should be there: `mp_rank_00_001`.
    pub missing: Vec<String>,
    /// Rank directories of no rank.
    pub extra: Vec<String>,
    /// Of the problems those of ranks that may not be of one save, or of a version that orders tensors otherwise.
    #[serde(skip)]
    pub unsafe_to_join: Vec<String>,
    /// All that is wrong, one sentence each; missing and extra ranks are among them.
    pub problems: Vec<String>,
}

/// What a directory turned out to be.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "format", rename_all = "snake_case")]
pub enum Checkpoint {
    /// One torch file a rank (`--ckpt-format torch`).
    Torch(Box<Layout>),
    /// A distributed checkpoint, which has no ranks (`--ckpt-format torch_dist`).
    Distributed(Distributed),
}

impl Checkpoint {
    /// Reads a checkpoint directory: the one with the tracker file, or `release` or `iter_…` itself.
    ///
    /// # Errors
    /// [`ModelError::Checkpoint`](crate::ModelError::Checkpoint) when there is none or the tracker file is wrong,
    /// [`ModelError::TorchFile`](crate::ModelError::TorchFile) when a rank's file cannot be read. What is merely not as
    /// it should be is in [`Layout::problems`].
    pub fn read(dir: &Path, asked: &AskedDegrees) -> Result<Self> {
        read::read(dir, asked)
    }
}

impl Layout {
    /// The directory name of a rank. `pp` or `ep` is left out where the names have none.
    pub fn rank_name(&self, tp: usize, pp: usize, ep: usize) -> String {
        self.style.name(tp, pp, ep)
    }

    /// The file of a rank.
    pub fn rank_path(&self, tp: usize, pp: usize, ep: usize) -> PathBuf {
        self.dir.join(self.rank_name(tp, pp, ep)).join(RANK_FILE)
    }

    /// Decoder layers of each stage, first to last; none when a stage is missing.
    pub fn layers_per_stage(&self) -> Option<Vec<usize>> {
        self.stages.iter().map(|stage| stage.as_ref().map(|stage| stage.layers)).collect()
    }

    /// Whether the stages hold other numbers of layers than an even split gives.
    pub fn has_custom_split(&self) -> bool {
        self.layers_per_stage().is_some_and(|layers| layers.windows(2).any(|pair| pair[0] != pair[1]))
    }
}
