//! What can go wrong on the model path.

use std::path::PathBuf;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// `config.json` does not describe a model that this crate runs.
    #[error("{name}: {detail}")]
    Config {
        /// The file.
        name: String,
        /// What is wrong.
        detail: String,
    },
    /// A tensor of the checkpoint is not there.
    #[error("the checkpoint holds no tensor {name}; {help}")]
    MissingTensor {
        /// Its name.
        name: String,
        /// What to do.
        help: &'static str,
    },
    /// A tensor of the checkpoint has another shape than `config.json` says.
    #[error("{name} has shape {found:?}, by config.json it should be {expected:?}")]
    TensorShape {
        /// Its name.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that the configuration asks for.
        expected: Vec<usize>,
    },
    /// Boundaries of sub-samples that cannot be.
    #[error("{0}")]
    Domains(String),
    /// Token ids, images and grids that do not belong together.
    #[error("{0}")]
    Batch(String),
    /// An image that cannot be made into patches.
    #[error("{0}")]
    Image(String),
    /// An input of records that cannot be read.
    #[error("{0}")]
    Input(String),
    /// A packed sample that cannot be read, or that says other things than this crate finds.
    #[error("{shard}: {detail}")]
    Shard {
        /// The tar, and where in it.
        shard: String,
        /// What is wrong.
        detail: String,
    },
    /// The tokenizer or the image processor of the model directory.
    #[error(transparent)]
    Counter(#[from] packd_contracts::CounterError),
    /// A sample that the training process would refuse.
    #[error("{0}")]
    Verdict(#[from] packd_contracts::Verdict),
    /// A directory that is no Megatron checkpoint, or whose parts contradict each other.
    #[error("{}: {detail}", path.display())]
    Checkpoint {
        /// The directory or file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A checkpoint that cannot be converted.
    #[error(transparent)]
    Convert(#[from] crate::convert::ConvertError),
    /// Parts that do not make a whole model.
    #[error("the parts do not make a model, nothing was written:\n  {}", problems.join("\n  "))]
    Merge {
        /// Everything that is wrong, with the names of the tensors.
        problems: Vec<String>,
    },
    /// A file of `torch.save`.
    #[error(transparent)]
    TorchFile(#[from] crate::torch_file::TorchFileError),
    /// Arithmetic on tensors.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
}

/// The result of this crate's functions.
pub type Result<T> = std::result::Result<T, ModelError>;
