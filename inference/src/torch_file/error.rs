//! What can be wrong with a torch file.

use std::path::PathBuf;

/// An error about one file that `torch.save` writes.
#[derive(Debug, thiserror::Error)]
pub enum TorchFileError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The format that torch wrote before 1.6.
    #[error(
        "{}: this is torch's old format without a zip; load it with torch of a version that you trust it with and \
         save it again: torch.save(torch.load(path, weights_only=True), new_path)",
        path.display()
    )]
    Legacy {
        /// The file.
        path: PathBuf,
    },
    /// Written on a machine of the other byte order.
    #[error(
        "{}: it was written on a big-endian machine; load and save it again with torch on a little-endian one",
        path.display()
    )]
    BigEndian {
        /// The file.
        path: PathBuf,
    },
    /// Not a zip, a damaged one, or one that torch would not write.
    #[error("{}: {detail}", path.display())]
    Container {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The pickle is damaged, or is more than checkpoints hold.
    #[error("{}: data.pkl, byte {offset}: {detail}", path.display())]
    Pickle {
        /// The file.
        path: PathBuf,
        /// Where in `data.pkl`.
        offset: usize,
        /// What is wrong.
        detail: String,
    },
    /// The pickle asks Python to run something.
    #[error(
        "{}: data.pkl, byte {offset}: it asks Python to call {global}; nothing was run here, but do not load this \
         file with torch: it was made to run code",
        path.display()
    )]
    Code {
        /// The file.
        path: PathBuf,
        /// Where in `data.pkl`.
        offset: usize,
        /// The function's module and name.
        global: String,
    },
    /// A tensor that does not fit its storage, or that a caller cannot have.
    #[error("{}: {detail}", path.display())]
    Tensor {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// A file that cannot be written as the caller asks.
    #[error("{}: {detail}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
}

/// The result of reading and writing torch files.
pub type Result<T> = std::result::Result<T, TorchFileError>;
