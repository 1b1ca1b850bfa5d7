//! The input files of a run.

use std::collections::HashSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};

use crate::compression::Compression;
use crate::error::SourceError;

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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The name as configured (or as the glob gave it); stands in rejects and tables.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last change, in nanoseconds since 1970.
    pub modified: u64,
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

    fn from_path(path: &Path) -> Result<Self, SourceError> {
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
        })
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
        let fail = |error| SourceError::io(self.path(), error);
        let mut reader = std::fs::File::open(self.path()).map_err(fail)?.take(offset);
        let mut buffer = vec![0; 1 << 20];
        let mut lines = 0;
        loop {
            match reader.read(&mut buffer).map_err(fail)? {
                0 => return Ok(lines),
                read => lines += memchr::memchr_iter(b'\n', &buffer[..read]).count() as u64,
            }
        }
    }

    /// How the records of a plain file stand in it, by its first bytes.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn shape(&self) -> Result<Shape, SourceError> {
        let file = std::fs::File::open(self.path()).map_err(|error| SourceError::io(self.path(), error))?;
        let mut head = Vec::new();
        let limit = crate::reader::CHUNK_BYTES as u64;
        file.take(limit).read_to_end(&mut head).map_err(|error| SourceError::io(self.path(), error))?;
        Ok(crate::reader::shape_of(crate::reader::without_mark(&head)))
    }

    /// How the file is compressed, by its first bytes.
    pub(crate) fn compression(&self) -> Result<Compression, SourceError> {
        let file = std::fs::File::open(self.path()).map_err(|error| SourceError::io(self.path(), error))?;
        let mut head = Vec::new();
        file.take(16).read_to_end(&mut head).map_err(|error| SourceError::io(self.path(), error))?;
        Ok(Compression::of(&head))
    }
}

/// Time of the last change, in nanoseconds since 1970.
pub(crate) fn modified(metadata: &std::fs::Metadata) -> u64 {
    let since = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_nanos() as u64)
}

/// The files that paths and globs name, globs in the order of their names.
///
/// # Errors
/// A pattern that names nothing, a file that two patterns name, a folder.
pub fn expand(patterns: &[String]) -> Result<Vec<Input>, SourceError> {
    let mut seen = HashSet::new();
    let mut inputs = Vec::new();
    for pattern in patterns {
        for path in matching(pattern)? {
            let input = Input::from_path(&path)?;
            let real = path.canonicalize().map_err(|error| SourceError::io(&path, error))?;
            if !seen.insert(real) {
                return Err(SourceError::Repeated { path });
            }
            inputs.push(input);
        }
    }
    Ok(inputs)
}

fn matching(pattern: &str) -> Result<Vec<PathBuf>, SourceError> {
    // A file may be called `a[1].jsonl`: a name that exists is no glob.
    if Path::new(pattern).exists() {
        return Ok(vec![PathBuf::from(pattern)]);
    }
    let missing = || SourceError::Missing { pattern: pattern.to_owned() };
    if !pattern.contains(['*', '?', '[']) {
        return Err(missing());
    }
    let paths = glob::glob(pattern)
        .map_err(|error| SourceError::Pattern { pattern: pattern.to_owned(), message: error.to_string() })?;
    let mut found = Vec::new();
    for path in paths {
        let path = path.map_err(|error| {
            let path = error.path().to_owned();
            SourceError::io(&path, error.into())
        })?;
        if path.is_file() {
            found.push(path);
        }
    }
    if found.is_empty() { Err(missing()) } else { Ok(found) }
}
