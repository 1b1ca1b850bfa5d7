//! What can keep a checkpoint from being converted.

use std::path::PathBuf;

use super::Format;
use crate::torch_file::TorchDtype;

/// An error of converting a checkpoint. Nothing is left of the target.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// The target is there and holds something.
    #[error("{} is there already; give another name, or move it away first", path.display())]
    TargetExists {
        /// The target.
        path: PathBuf,
    },
    /// The target is a folder that another device is mounted at.
    #[error(
        "{} is a mount point; a target gets its name when it is whole, and a mount point keeps its own. Give a folder in it: {}",
        path.display(),
        path.join("NAME").display()
    )]
    MountPoint {
        /// The target.
        path: PathBuf,
    },
    /// The target lies in the source.
    #[error("{} lies in the source {}; give a folder outside of it", path.display(), source_dir.display())]
    TargetInSource {
        /// The target.
        path: PathBuf,
        /// The source.
        source_dir: PathBuf,
    },
    /// A size of the model that cannot be split evenly.
    #[error("{what} ({size}) cannot be split into {parts} equal parts; {help}")]
    Uneven {
        /// The size, by its name in `config.json`.
        what: &'static str,
        /// What it is.
        size: usize,
        /// How many parts there should be.
        parts: usize,
        /// What to do.
        help: &'static str,
    },
    /// Degrees that contradict each other or the model.
    #[error("{0}")]
    Degrees(String),
    /// A source that cannot be read as what it is.
    #[error("{}: {detail}", path.display())]
    Source {
        /// The folder or file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A tensor that the model needs is not in the source.
    #[error("{} holds no tensor {name}, which config.json asks for; is it the {format} checkpoint of this model?", path.display())]
    MissingTensor {
        /// Its name.
        name: String,
        /// The folder or file.
        path: PathBuf,
        /// What the source is taken for.
        format: Format,
    },
    /// A tensor of the source that the model has no place for.
    #[error("{} holds a tensor {name} that the model of config.json has no place for; it would be lost", path.display())]
    UnknownTensor {
        /// Its name.
        name: String,
        /// The folder or file.
        path: PathBuf,
    },
    /// A tensor of another shape than the model's.
    #[error("{}: {name} has shape {found:?}, by config.json it should be {expected:?}", path.display())]
    Shape {
        /// Its name.
        name: String,
        /// The folder or file.
        path: PathBuf,
        /// The shape there.
        found: Vec<usize>,
        /// The shape that the configuration asks for.
        expected: Vec<usize>,
    },
    /// `args` of a rank and `config.json` that speak of different models.
    #[error(transparent)]
    Contradiction(#[from] Box<Contradiction>),
    /// Parts of one tensor that differ in their dtype.
    #[error(
        "{name} is {found}, but {other} is {expected}, and they are parts of one tensor; save both as the same dtype"
    )]
    Dtypes {
        /// One part.
        name: String,
        /// Its dtype.
        found: TorchDtype,
        /// Another part.
        other: String,
        /// Its dtype.
        expected: TorchDtype,
    },
    /// Ranks that should hold the same tensor, and do not.
    #[error(
        "{name} is not the same in {} and {}, which should both hold all of it; they may be of two checkpoints",
        one.display(),
        other.display()
    )]
    Replicas {
        /// The tensor's name in Megatron.
        name: String,
        /// A rank's file.
        one: PathBuf,
        /// Another's.
        other: PathBuf,
    },
}

/// What `args` of a rank and `config.json` say differently.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{}: args say {arg} {found}, {} says {key} {expected}; give the directory of the model that the checkpoint was saved \
     of (--hf). What is to be otherwise can be changed in config.json afterwards",
    path.display(),
    config.display()
)]
pub struct Contradiction {
    /// The rank's file.
    pub path: PathBuf,
    /// The key in `args`.
    pub arg: String,
    /// What it says.
    pub found: String,
    /// The configuration.
    pub config: PathBuf,
    /// The key in it.
    pub key: &'static str,
    /// What that says.
    pub expected: String,
}
