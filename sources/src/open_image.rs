//! An image that was opened: bytes to be read by place.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use std::sync::OnceLock;

use bytes::Bytes;
use packd_contracts::{Reason, Verdict};
use packd_storage::{Object, ObjectVersion, StorageError};
use rustix::io::Errno;

use crate::error::SourceError;

/// An image that was opened for reading.
#[derive(Debug)]
pub enum OpenImage {
    /// A file, positioned at its start.
    File {
        /// The open handle.
        file: File,
        /// Its size in bytes when it was opened.
        size: u64,
        /// When it was last changed, in nanoseconds since 1970.
        modified: u64,
        /// The path that was opened, for messages.
        path: PathBuf,
    },
    /// Bytes that stood in the record itself.
    Inline(Vec<u8>),
    /// An object in a store.
    Object(ObjectImage),
}

/// An image in an object store. Its first bytes came when it was opened, the others come when they are needed.
#[derive(Debug, Clone)]
pub struct ObjectImage {
    object: Object,
    pub(crate) version: ObjectVersion,
    head: Bytes,
    whole: OnceLock<Bytes>,
}

/// Headers end within this, and small images as well.
const HEAD: u64 = 64 << 10;

/// Why an image cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The data is at fault: a verdict on the record.
    #[error("{0}")]
    Verdict(Verdict),
    /// The machine is at fault, and would be for other images as well: no verdict on any record.
    #[error(transparent)]
    System(#[from] SourceError),
}

impl From<Verdict> for ImageError {
    fn from(verdict: Verdict) -> Self {
        Self::Verdict(verdict)
    }
}

impl ImageError {
    /// What the store said of an image: that it is not there is a verdict on the record, anything else may be the
    /// same for all images.
    pub(crate) fn storage(error: StorageError) -> Self {
        match error {
            StorageError::Missing { .. } => Verdict::new(Reason::ImageMissing, error.to_string()).into(),
            error => Self::System(error.into()),
        }
    }

    /// What the system said when it opened or read the image called `name`.
    pub(crate) fn io(name: &Path, error: std::io::Error) -> Self {
        let of_store = error.get_ref().and_then(|inner| inner.downcast_ref::<StorageError>());
        if of_store.is_some_and(|error| !matches!(error, StorageError::Missing { .. }))
            || is_of_the_machine(&error)
        {
            return SourceError::io(name, error).into();
        }
        let name = name.display();
        Self::Verdict(match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                Verdict::new(Reason::ImageMissing, format!("{name}: no such file"))
            }
            _ => Verdict::new(Reason::ImageUnreadable, format!("{name}: {error}")),
        })
    }
}

/// Descriptors or memory ran out, or a disk or file server failed: rejecting the record would lose a good
/// sample for it.
fn is_of_the_machine(error: &std::io::Error) -> bool {
    let machine = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::IO, Errno::STALE, Errno::TIMEDOUT];
    Errno::from_io_error(error).is_some_and(|errno| machine.contains(&errno))
}

impl ObjectImage {
    pub(crate) fn whole(object: Object, version: ObjectVersion, bytes: Bytes) -> Self {
        Self { object, version, head: bytes.clone(), whole: bytes.into() }
    }

    /// All of its bytes.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn bytes(&self) -> std::io::Result<Bytes> {
        if let Some(bytes) = self.whole.get() {
            return Ok(bytes.clone());
        }
        let bytes = match self.head.len() as u64 == self.version.size {
            true => self.head.clone(),
            false => self.object.read_range(0..self.version.size)?,
        };
        Ok(self.whole.get_or_init(|| bytes).clone())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        let end = offset + buffer.len() as u64;
        let known = self.whole.get().unwrap_or(&self.head);
        if end <= known.len() as u64 {
            buffer.copy_from_slice(&known[offset as usize..end as usize]);
        } else if end <= self.version.size {
            buffer.copy_from_slice(&self.object.read_range(offset..end)?);
        } else {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// For whoever reads on and on: the first bytes, then all of them.
    fn read_at(&self, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
        if at < self.head.len() as u64 || at >= self.version.size {
            return Ok(copy_from(&self.head, buffer, at));
        }
        Ok(copy_from(&self.bytes()?, buffer, at))
    }
}

fn copy_from(bytes: &[u8], buffer: &mut [u8], at: u64) -> usize {
    let start = at.min(bytes.len() as u64) as usize;
    let count = buffer.len().min(bytes.len() - start);
    buffer[..count].copy_from_slice(&bytes[start..start + count]);
    count
}

impl OpenImage {
    pub(crate) fn open_object(object: Object) -> Result<Self, ImageError> {
        let (version, head) = object.read_start(HEAD).map_err(ImageError::storage)?;
        Ok(Self::Object(ObjectImage { object, version, head, whole: OnceLock::new() }))
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::File { size, .. } => *size,
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Object(image) => image.version.size,
        }
    }

    /// What it means that reading this image failed.
    pub fn fault(&self, error: std::io::Error) -> ImageError {
        match self {
            Self::File { path, .. } => ImageError::io(path, error),
            Self::Inline(_) => ImageError::io(Path::new("the image in the record"), error),
            Self::Object(image) => ImageError::io(Path::new(image.object.url()), error),
        }
    }

    /// Fills `buffer` with the bytes from `offset` on.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        match self {
            Self::File { file, .. } => file.read_exact_at(buffer, offset),
            Self::Inline(_) => BytesAt { image: self, at: offset }.read_exact(buffer),
            Self::Object(image) => image.read_exact_at(buffer, offset),
        }
    }

    /// Reads from the start; the handle's own position does not move.
    pub fn reader(&self) -> BufReader<impl Read + Seek> {
        BufReader::new(BytesAt { image: self, at: 0 })
    }
}

struct BytesAt<'a> {
    image: &'a OpenImage,
    at: u64,
}

impl Read for BytesAt<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = match self.image {
            OpenImage::File { file, .. } => file.read_at(buffer, self.at)?,
            OpenImage::Inline(bytes) => copy_from(bytes, buffer, self.at),
            OpenImage::Object(image) => image.read_at(buffer, self.at)?,
        };
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for BytesAt<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.image.size().checked_add_signed(by),
        };
        self.at = at.ok_or(ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_of_the_machine_is_no_verdict() {
        let judge = |errno: Errno| ImageError::io(Path::new("a.jpg"), errno.into());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::IO, Errno::STALE] {
            assert!(matches!(judge(errno), ImageError::System(_)), "{errno}");
        }
        for (errno, reason) in
            [(Errno::NOENT, Reason::ImageMissing), (Errno::ACCESS, Reason::ImageUnreadable)]
        {
            let ImageError::Verdict(verdict) = judge(errno) else { panic!("{errno}") };
            assert_eq!(verdict.reason, reason);
        }
    }

    #[test]
    fn inline_bytes_read_like_a_file() {
        let image = OpenImage::Inline((0..100).collect());
        let mut all = Vec::new();
        image.reader().read_to_end(&mut all).unwrap();
        assert_eq!(all, (0..100).collect::<Vec<u8>>());
        let mut reader = image.reader();
        reader.seek(SeekFrom::End(-3)).unwrap();
        let mut end = Vec::new();
        reader.read_to_end(&mut end).unwrap();
        assert_eq!(end, [97, 98, 99]);
        assert_eq!(reader.seek(SeekFrom::Start(500)).unwrap(), 500);
        assert_eq!(reader.read(&mut [0; 4]).unwrap(), 0);
        assert!(image.read_exact_at(&mut [0; 2], 99).is_err());
    }
}
