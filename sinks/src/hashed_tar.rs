//! A tar file that is hashed while it is written.
//!
//! Everything goes through one buffer that fits into a core's L2 cache: an image is read into it, hashed
//! there and written from there. That costs one system call a member or less, against three for a copy
//! in the kernel, which would have to read the bytes a second time for the checksums anyway.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};

use xxhash_rust::xxh3::Xxh3;

use crate::ustar::BLOCK;
use crate::{AtomicFile, SinkError};

const BUFFER: usize = 256 << 10;
const HEAD: usize = 16;
/// How much is written before the disk is told to begin with it.
const WRITEBACK: u64 = 32 << 20;

/// The first bytes of a file: enough to tell an image format.
pub(crate) type Head = [u8; HEAD];

/// Writes blocks to a file, with a checksum of the whole and one of every span ("sample") in it.
pub(crate) struct HashedTar {
    file: AtomicFile,
    buffer: Box<[u8]>,
    /// Bytes in the buffer.
    filled: usize,
    /// Bytes before the buffer, all written.
    written: u64,
    /// Bytes that the disk was told to begin with.
    submitted: u64,
    file_hash: Xxh3,
    sample_hash: Xxh3,
    /// Where the open sample's bytes start in the buffer (0 once the buffer was flushed within it).
    sample_start: usize,
    /// The state at the open sample's start, once bytes of it are in the file.
    checkpoint: Option<(u64, Box<Xxh3>)>,
}

impl HashedTar {
    pub(crate) fn new(file: AtomicFile) -> Self {
        Self {
            file,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            filled: 0,
            written: 0,
            submitted: 0,
            file_hash: Xxh3::new(),
            sample_hash: Xxh3::new(),
            sample_start: 0,
            checkpoint: None,
        }
    }

    /// Bytes so far.
    pub(crate) fn position(&self) -> u64 {
        self.written + self.filled as u64
    }

    /// Begins a sample at the current position.
    pub(crate) fn begin_sample(&mut self) {
        self.sample_hash.reset();
        self.sample_start = self.filled;
        self.checkpoint = None;
    }

    /// Ends the sample that was begun; the XXH3-64 of its bytes.
    pub(crate) fn end_sample(&mut self) -> u64 {
        self.sample_hash.update(&self.buffer[self.sample_start..self.filled]);
        self.sample_start = self.filled;
        self.sample_hash.digest()
    }

    /// Takes back every byte since the sample was begun.
    pub(crate) fn rollback_sample(&mut self) -> Result<(), SinkError> {
        let Some((start, hash)) = self.checkpoint.take() else {
            self.filled = self.sample_start;
            return Ok(());
        };
        let file = self.file.file();
        let truncated = file.set_len(start).and_then(|()| file.seek(SeekFrom::Start(start)));
        truncated.map_err(SinkError::write(self.file.target()))?;
        self.file_hash = *hash;
        self.written = start;
        self.filled = 0;
        self.sample_start = 0;
        Ok(())
    }

    pub(crate) fn put(&mut self, mut bytes: &[u8]) -> Result<(), SinkError> {
        while !bytes.is_empty() {
            if self.filled == BUFFER {
                self.flush()?;
            }
            let n = bytes.len().min(BUFFER - self.filled);
            self.buffer[self.filled..self.filled + n].copy_from_slice(&bytes[..n]);
            self.filled += n;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Reads exactly `size` bytes of `from` into the tar and returns the first of them (zeros after a
    /// shorter file), or says what went wrong.
    pub(crate) fn put_file(
        &mut self,
        from: &mut File,
        size: u64,
    ) -> Result<Result<Head, FileEnd>, SinkError> {
        if BUFFER - self.filled < HEAD {
            self.flush()?;
        }
        let mut head = None;
        let mut start = self.filled;
        let mut left = size;
        while left > 0 {
            if self.filled == BUFFER {
                head = head.or(Some(self.head(start)));
                self.flush()?;
                start = 0;
            }
            let n = left.min((BUFFER - self.filled) as u64) as usize;
            match from.read(&mut self.buffer[self.filled..self.filled + n]) {
                Ok(0) => return Ok(Err(FileEnd::Short)),
                Ok(n) => {
                    self.filled += n;
                    left -= n as u64;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Ok(Err(FileEnd::Failed(e))),
            }
        }
        Ok(Ok(head.unwrap_or_else(|| self.head(start))))
    }

    fn head(&self, start: usize) -> Head {
        let mut head = [0; HEAD];
        let n = HEAD.min(self.filled - start);
        head[..n].copy_from_slice(&self.buffer[start..start + n]);
        head
    }

    /// Zeros up to the next multiple of `unit`.
    pub(crate) fn pad(&mut self, unit: u64) -> Result<(), SinkError> {
        const ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
        let mut left = (self.position().next_multiple_of(unit) - self.position()) as usize;
        while left > 0 {
            let n = left.min(ZEROS.len());
            self.put(&ZEROS[..n])?;
            left -= n;
        }
        Ok(())
    }

    /// Writes the rest; the file (not yet committed), its size and its XXH3-128.
    pub(crate) fn finish(mut self) -> Result<(AtomicFile, u64, u128), SinkError> {
        self.begin_sample();
        self.flush()?;
        Ok((self.file, self.written, self.file_hash.digest128()))
    }

    fn flush(&mut self) -> Result<(), SinkError> {
        let (before, sample) = self.buffer[..self.filled].split_at(self.sample_start);
        self.file_hash.update(before);
        if self.checkpoint.is_none() {
            self.checkpoint = Some((self.written + before.len() as u64, Box::new(self.file_hash.clone())));
        }
        self.file_hash.update(sample);
        self.sample_hash.update(sample);
        self.file
            .file()
            .write_all(&self.buffer[..self.filled])
            .map_err(SinkError::write(self.file.target()))?;
        self.written += self.filled as u64;
        self.filled = 0;
        self.sample_start = 0;
        self.begin_writeback();
        Ok(())
    }

    /// Keeps the disk busy while the shard is written, so that the sync at its end has little left to do.
    fn begin_writeback(&mut self) {
        // A rollback may have gone back behind what was submitted.
        self.submitted = self.submitted.min(self.written);
        let span = self.written - self.submitted;
        if span >= WRITEBACK {
            // On dirty pages "don't need" means "write now". Advice only: a refusal changes nothing.
            #[cfg(target_os = "linux")]
            let _ = rustix::fs::fadvise(
                self.file.file(),
                self.submitted,
                std::num::NonZeroU64::new(span),
                rustix::fs::Advice::DontNeed,
            );
            self.submitted = self.written;
        }
    }
}

/// A file that did not give the bytes it promised.
pub(crate) enum FileEnd {
    /// It ended early.
    Short,
    /// The system failed to read it.
    Failed(std::io::Error),
}

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

    use super::*;

    /// Pseudo-random bytes.
    fn noise(n: usize, seed: u64) -> Vec<u8> {
        let mut x = seed | 1;
        (0..n)
            .map(|_| {
                x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (x >> 56) as u8
            })
            .collect()
    }

    #[test]
    fn hashes_and_rollback_at_any_place_of_the_buffer() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("x");
        let mut tar = HashedTar::new(AtomicFile::create(&target).unwrap());
        let mut want = Vec::new();
        for (i, size) in
            [100, BUFFER - 100, 1, BUFFER, 3 * BUFFER + 7, 0, 513, 2 * BUFFER].into_iter().enumerate()
        {
            for lost in [0, 10, BUFFER, 2 * BUFFER + 1] {
                tar.begin_sample();
                tar.put(&noise(lost, 99)).unwrap();
                tar.rollback_sample().unwrap();
                assert_eq!(tar.position(), want.len() as u64);
            }
            let bytes = noise(size, i as u64);
            tar.begin_sample();
            tar.put(&bytes).unwrap();
            assert_eq!(tar.end_sample(), xxh3_64(&bytes), "size {size}");
            want.extend(bytes);
        }
        tar.begin_sample();
        tar.pad(10_240).unwrap();
        want.resize(want.len().next_multiple_of(10_240), 0);
        let (file, size, digest) = tar.finish().unwrap();
        file.commit().unwrap();
        assert_eq!(size, want.len() as u64);
        assert_eq!(digest, xxh3_128(&want));
        assert!(std::fs::read(&target).unwrap() == want);
    }

    #[test]
    fn a_short_file_is_told_and_rolled_back() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::write(&image, noise(BUFFER + 5, 1)).unwrap();
        let mut tar = HashedTar::new(AtomicFile::create(folder.path().join("x")).unwrap());
        tar.begin_sample();
        let end = tar.put_file(&mut File::open(&image).unwrap(), BUFFER as u64 + 6).unwrap();
        assert!(matches!(end, Err(FileEnd::Short)));
        tar.rollback_sample().unwrap();
        assert_eq!(tar.position(), 0);
        for offset in [0, BUFFER - 3] {
            tar.begin_sample();
            tar.put(&noise(offset, 7)).unwrap();
            let head = tar.put_file(&mut File::open(&image).unwrap(), BUFFER as u64 + 5).unwrap();
            assert!(head.is_ok_and(|head| head[..] == noise(HEAD, 1)));
            tar.rollback_sample().unwrap();
        }
        assert!(tar.put_file(&mut File::open(&image).unwrap(), BUFFER as u64 + 5).unwrap().is_ok());
        assert_eq!(tar.finish().unwrap().1, BUFFER as u64 + 5);
    }
}
