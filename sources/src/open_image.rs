//! An image that was opened: bytes to be read by place.

use std::fs::File;
use std::io::{BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use packd_contracts::{Reason, Verdict};
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
}

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
    /// What the system said when it opened or read the image called `name`.
    pub(crate) fn io(name: &Path, error: std::io::Error) -> Self {
        if is_of_the_machine(&error) {
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

impl OpenImage {
    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Self::File { size, .. } => *size,
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }

    /// What it means that reading this image failed.
    pub fn fault(&self, error: std::io::Error) -> ImageError {
        match self {
            Self::File { path, .. } => ImageError::io(path, error),
            Self::Inline(_) => ImageError::io(Path::new("the image in the record"), error),
        }
    }

    /// Fills `buffer` with the bytes from `offset` on.
    pub(crate) fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        match self {
            Self::File { file, .. } => file.read_exact_at(buffer, offset),
            Self::Inline(_) => BytesAt { image: self, at: offset }.read_exact(buffer),
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
            OpenImage::Inline(bytes) => {
                let start = self.at.min(bytes.len() as u64) as usize;
                let count = buffer.len().min(bytes.len() - start);
                buffer[..count].copy_from_slice(&bytes[start..start + count]);
                count
            }
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
