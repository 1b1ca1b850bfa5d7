//! What can go wrong when a run's output is written.

use std::io;
use std::path::{Path, PathBuf};

use packd_sources::ImageError;

/// An output that could not be written, or an input that changed under the writer.
///
/// Every message names the path or the record. Two things may be wrong: the place that is written to
/// ([`Create`](Self::Create), [`Write`](Self::Write), [`Sqlite`](Self::Sqlite), [`Parquet`](Self::Parquet))
/// or the data ([`Image`](Self::Image), [`ImagesChanged`](Self::ImagesChanged) and the rest).
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// A file or folder of the output cannot be created: a wrong path, no permission, a read-only disk.
    #[error("cannot create {}: {source}", path.display())]
    Create {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Writing, syncing or renaming failed: a full disk, a lost mount.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file, under its final name.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A file of the output cannot be read back.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Scratch space for the SQLite index is short; found before anything was written.
    #[error(
        "the sqlite index needs about {needed} bytes of scratch space in {}, {free} are free: \
         name another scratch folder, or write no sqlite index", path.display()
    )]
    ScratchSpace {
        /// The scratch folder.
        path: PathBuf,
        /// Bytes the index is expected to need.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// SQLite refused.
    #[error("cannot write {}: {source}", path.display())]
    Sqlite {
        /// The database, under its final name.
        path: PathBuf,
        /// SQLite's reason.
        source: rusqlite::Error,
    },
    /// The Parquet encoder refused.
    #[error("cannot write {}: {source}", path.display())]
    Parquet {
        /// The table.
        path: PathBuf,
        /// The encoder's reason.
        source: parquet::errors::ParquetError,
    },
    /// An image that was there when the record was measured cannot be opened any more.
    #[error("{source_name}:{line}: image {image}: {error}")]
    Image {
        /// The sub-sample's ordinal.
        ordinal: u64,
        /// The input, as configured.
        source_name: String,
        /// The record's line, from 1.
        line: u64,
        /// The image's number in the record, from 0.
        image: usize,
        /// Why it cannot be opened.
        error: ImageError,
    },
    /// An image has another size or time of change than when the record was measured.
    #[error(
        "{source_name}:{line}: an image of the record was written to since it was measured: run again \
         into a new folder when nothing writes to the images"
    )]
    ImagesChanged {
        /// The sub-sample's ordinal.
        ordinal: u64,
        /// The input, as configured.
        source_name: String,
        /// The record's line, from 1.
        line: u64,
    },
    /// A packed sample that breaks a rule of the format; a fault of the caller, not of the data.
    #[error("packed sample {key}: {detail}")]
    PackedSample {
        /// The packed sample's key.
        key: String,
        /// Which rule, and how.
        detail: String,
    },
    /// A `passthrough` key that the packed json uses itself.
    #[error("passthrough key `{key}` is one of packd's own keys of the packed json: leave it out")]
    ReservedKey {
        /// The key.
        key: String,
    },
    /// Two packed samples have one key; Energon refuses such an index.
    #[error(
        "{shard}: the key {key} exists already in an earlier sample: keys must be unique over all shards of a folder"
    )]
    DuplicateKey {
        /// The shard that holds the second sample.
        shard: String,
        /// The key.
        key: String,
    },
    /// A tar that cannot be indexed.
    #[error("{}: {detail}", path.display())]
    Tar {
        /// The tar.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The shards of a folder cannot form a data set.
    #[error("{}: {detail}", folder.display())]
    Dataset {
        /// The data set's folder.
        folder: PathBuf,
        /// What is wrong, and what to do.
        detail: String,
    },
}

impl SinkError {
    /// True when the output cannot be created at all, so that running again as it is cannot help.
    pub fn is_cannot_create(&self) -> bool {
        matches!(self, Self::Create { .. } | Self::ScratchSpace { .. })
    }

    /// True when the input is at fault (an image that vanished or changed), not the output.
    pub fn is_input(&self) -> bool {
        matches!(self, Self::Image { .. } | Self::ImagesChanged { .. })
    }

    pub(crate) fn create(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Create { path: path.into(), source }
    }

    pub(crate) fn write(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Write { path: path.into(), source }
    }

    pub(crate) fn read(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Read { path: path.into(), source }
    }

    pub(crate) fn dataset(folder: &Path, detail: impl Into<String>) -> Self {
        Self::Dataset { folder: folder.into(), detail: detail.into() }
    }
}
