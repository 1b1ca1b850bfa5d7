//! An input that was opened to be read by place.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use bytes::Bytes;
use packd_storage::Object;

use crate::error::SourceError;
use crate::input::{Input, modified};

/// A file or an object. All calls block.
pub(crate) enum InputFile<'a> {
    Local { path: &'a Path, file: File },
    Object { object: &'a Object, size: u64 },
}

impl<'a> InputFile<'a> {
    pub(crate) fn open(input: &'a Input) -> Result<Self, SourceError> {
        match &input.object {
            Some(object) => Ok(Self::Object { object, size: input.size }),
            None => {
                let path = input.path();
                let file = File::open(path).map_err(|error| SourceError::io(path, error))?;
                Ok(Self::Local { path, file })
            }
        }
    }

    /// Opens an input that is still what it was when it was first seen.
    pub(crate) fn open_unchanged(input: &'a Input) -> Result<Self, SourceError> {
        let opened = Self::open(input)?;
        let (size, changed) = match &opened {
            Self::Local { path, file } => {
                let metadata = file.metadata().map_err(|error| SourceError::io(path, error))?;
                (metadata.len(), modified(&metadata))
            }
            Self::Object { object, .. } => {
                let version = object.version()?;
                (version.size, version.modified)
            }
        };
        let message = if size != input.size {
            format!("it had {} bytes when its records were measured, now {size}", input.size)
        } else if changed != input.modified {
            "it was written to since its records were measured".to_owned()
        } else {
            return Ok(opened);
        };
        Err(SourceError::Changed { path: input.path().to_owned(), message })
    }

    /// Bytes from `offset` on, `limit` or as many as there are; none at the end.
    pub(crate) fn read_some(&self, offset: u64, limit: u64) -> Result<Bytes, SourceError> {
        match self {
            Self::Local { path, file } => {
                let mut bytes = vec![0; limit as usize];
                let mut filled = 0;
                while filled < bytes.len() {
                    let read = file.read_at(&mut bytes[filled..], offset + filled as u64);
                    match read {
                        Ok(0) => break,
                        Ok(read) => filled += read,
                        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(SourceError::io(path, error)),
                    }
                }
                bytes.truncate(filled);
                Ok(bytes.into())
            }
            Self::Object { object, size } => {
                let end = offset.saturating_add(limit).min(*size);
                if offset < end { Ok(object.read_range(offset..end)?) } else { Ok(Bytes::new()) }
            }
        }
    }

    /// The bytes of each range, all of them; from a store many at once.
    pub(crate) fn read_ranges(&self, ranges: Vec<Range<u64>>) -> Result<Vec<Bytes>, SourceError> {
        match self {
            Self::Local { path, file } => {
                let read = |range: Range<u64>| {
                    let mut bytes = vec![0; (range.end - range.start) as usize];
                    let read = file.read_exact_at(&mut bytes, range.start);
                    read.map(|()| Bytes::from(bytes)).map_err(|error| SourceError::io(path, error))
                };
                ranges.into_iter().map(read).collect()
            }
            Self::Object { object, .. } => Ok(object.read_ranges(ranges)?),
        }
    }
}
