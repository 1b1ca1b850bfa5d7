//! The input files of a run.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use packd_storage::Object;
use serde::{Deserialize, Serialize};

use crate::compression::Compression;
use crate::error::SourceError;
use crate::input_file::InputFile;

/// How the records of a file stand in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// One record a line.
    Lines,
    /// One JSON array of records.
    Array,
    /// One record over many lines.
    Object,
}

/// One input file, and what tells this version of it from another.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Input {
    /// The name as configured (or as the glob gave it), a path or a URL; stands in rejects and tables.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change, in nanoseconds since 1970.
    pub modified: u64,
    /// Where it lies, if that is an object store.
    #[serde(skip)]
    pub(crate) object: Option<Object>,
}

impl PartialEq for Input {
    fn eq(&self, other: &Self) -> bool {
        (&self.name, self.size, self.modified) == (&other.name, other.size, other.modified)
    }
}

impl Input {
    /// The file's path.
    pub fn path(&self) -> &Path {
        Path::new(&self.name)
    }

    /// The folder that the file's relative image paths start from.
    pub fn folder(&self) -> PathBuf {
        match self.path().parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        }
    }

    pub(crate) fn from_path(path: &Path) -> Result<Self, SourceError> {
        let metadata = std::fs::metadata(path).map_err(|error| SourceError::io(path, error))?;
        if metadata.is_dir() {
            let error =
                std::io::Error::new(std::io::ErrorKind::IsADirectory, "is a folder; name files or a glob");
            return Err(SourceError::io(path, error));
        }
        if !metadata.is_file() {
            let error = std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "is not a regular file; an input is read twice, so write it to a file first",
            );
            return Err(SourceError::io(path, error));
        }
        Ok(Self {
            name: path.to_string_lossy().into_owned(),
            size: metadata.len(),
            modified: modified(&metadata),
            object: None,
        })
    }

    pub(crate) fn from_object(object: Object) -> Result<Self, SourceError> {
        let version = object.version()?;
        let name = object.url().to_owned();
        Ok(Self { name, size: version.size, modified: version.modified, object: Some(object) })
    }

    /// Whether the input lies in an object store.
    pub fn is_object(&self) -> bool {
        self.object.is_some()
    }

    /// Whether records can be read again by their offset: the file is not compressed.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn is_seekable(&self) -> Result<bool, SourceError> {
        Ok(self.compression()? == Compression::None)
    }

    /// How many lines of a plain file end before `offset`. Reads all of them.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn lines_before(&self, offset: u64) -> Result<u64, SourceError> {
        const STEP: u64 = 8 << 20;
        let file = InputFile::open(self)?;
        let (mut at, mut lines) = (0, 0);
        while at < offset {
            let bytes = file.read_some(at, STEP.min(offset - at))?;
            if bytes.is_empty() {
                break;
            }
            lines += memchr::memchr_iter(b'\n', &bytes).count() as u64;
            at += bytes.len() as u64;
        }
        Ok(lines)
    }

    /// How the records of a plain file stand in it, by its first bytes.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn shape(&self) -> Result<Shape, SourceError> {
        let head = self.head(crate::reader::CHUNK_BYTES as u64)?;
        Ok(crate::reader::shape_of(crate::reader::without_mark(&head)))
    }

    /// How the file is compressed, by its first bytes.
    pub(crate) fn compression(&self) -> Result<Compression, SourceError> {
        Ok(Compression::of(&self.head(16)?))
    }

    fn head(&self, limit: u64) -> Result<Bytes, SourceError> {
        InputFile::open(self)?.read_some(0, limit)
    }
}

/// Time of the last change, in nanoseconds since 1970.
pub(crate) fn modified(metadata: &std::fs::Metadata) -> u64 {
    let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_nanos() as u64)
}
