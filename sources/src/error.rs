//! What can go wrong with an input as a whole. Bad records are verdicts, not errors.

use std::path::PathBuf;

/// An input that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// No file of that name, or no file that the glob matches.
    #[error("no input file matches {pattern:?}")]
    Missing {
        /// The path or glob as configured.
        pattern: String,
    },
    /// Two patterns name one file: its samples would be packed twice.
    #[error("input {path} is named twice")]
    Repeated {
        /// The file.
        path: PathBuf,
    },
    /// A glob that is none.
    #[error("{pattern:?} is not a glob: {message}")]
    Pattern {
        /// The glob as configured.
        pattern: String,
        /// What is wrong with it.
        message: String,
    },
    /// The system could not read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// An object store could not be read.
    #[error("cannot read {0}")]
    Storage(#[from] packd_storage::StorageError),
    /// Bytes that were there when records were measured are not there any more.
    #[error("{path} changed while it was read: {message}")]
    Changed {
        /// The file.
        path: PathBuf,
        /// What differs.
        message: String,
    },
}

impl SourceError {
    /// Wraps an I/O error with its path.
    pub(crate) fn io(path: &std::path::Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }
}
