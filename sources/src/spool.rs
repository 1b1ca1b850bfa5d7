//! A seekable copy of records whose file cannot be read by offset (a compressed input).
//!
//! A spool is a sequence of independent zstd frames, one a block. A frame holds the block's records with
//! their offsets in the plain input; a table at the end of the file tells which frame holds which offset.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::blocks::RecordBlock;
use crate::error::SourceError;

/// Fast and still small: a spool is written once and read once.
const LEVEL: i32 = 1;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Frame {
    source: usize,
    /// Offset of the frame's first record in the plain input.
    first: u64,
    /// Place of the frame in the spool file.
    at: u64,
    len: u64,
    plain_len: u64,
}

/// Writes a spool to an open file.
#[derive(Debug)]
pub struct SpoolWriter<W: Write> {
    file: W,
    at: u64,
    frames: Vec<Frame>,
}

impl<W: Write> SpoolWriter<W> {
    /// A spool that is written to `file` from its start.
    pub fn new(file: W) -> Self {
        Self { file, at: 0, frames: Vec::new() }
    }

    /// Adds the records of one block. Blocks of an input must come in order.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, block: &RecordBlock) -> std::io::Result<()> {
        let Some(first) = block.records.first() else { return Ok(()) };
        let mut plain = Vec::with_capacity(block.bytes.len() + 12 * block.records.len() + 4);
        plain.extend((block.records.len() as u32).to_le_bytes());
        for record in &block.records {
            plain.extend(record.offset.to_le_bytes());
            plain.extend((record.len as u32).to_le_bytes());
        }
        for record in &block.records {
            plain.extend_from_slice(block.bytes_of(record));
        }
        let packed = zstd::bulk::compress(&plain, LEVEL)?;
        self.file.write_all(&packed)?;
        self.frames.push(Frame {
            source: block.source,
            first: first.offset,
            at: self.at,
            len: packed.len() as u64,
            plain_len: plain.len() as u64,
        });
        self.at += packed.len() as u64;
        Ok(())
    }

    /// Writes the table and gives the file back.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> std::io::Result<W> {
        let table = serde_json::to_vec(&self.frames)?;
        self.file.write_all(&table)?;
        self.file.write_all(&(table.len() as u64).to_le_bytes())?;
        Ok(self.file)
    }
}

/// Reads records out of a finished spool.
#[derive(Debug)]
pub struct SpoolReader {
    path: PathBuf,
    frames: Vec<Frame>,
}

impl SpoolReader {
    /// Opens a spool and reads its table.
    ///
    /// # Errors
    /// The file cannot be read or is no finished spool.
    pub fn open(path: &Path) -> Result<Self, SourceError> {
        let fail = |error| SourceError::io(path, error);
        let mut file = File::open(path).map_err(fail)?;
        let mut length = [0; 8];
        let end = file.seek(SeekFrom::End(-8)).map_err(fail)?;
        file.read_exact(&mut length).map_err(fail)?;
        let length = u64::from_le_bytes(length).min(end);
        file.seek(SeekFrom::Start(end - length)).map_err(fail)?;
        let mut table = vec![0; length as usize];
        file.read_exact(&mut table).map_err(fail)?;
        let frames = serde_json::from_slice(&table).map_err(|error| fail(error.into()))?;
        Ok(Self { path: path.to_owned(), frames })
    }

    /// The frame that would hold the record of `source` at `offset`.
    pub(crate) fn frame_of(&self, source: usize, offset: u64) -> Option<usize> {
        let after = self.frames.partition_point(|frame| (frame.source, frame.first) <= (source, offset));
        after.checked_sub(1).filter(|frame| self.frames[*frame].source == source)
    }

    /// Unpacks one frame.
    pub(crate) fn read_frame(&self, file: &File, frame: usize) -> Result<SpoolFrame, SourceError> {
        let frame = &self.frames[frame];
        let mut packed = vec![0; frame.len as usize];
        std::os::unix::fs::FileExt::read_exact_at(file, &mut packed, frame.at)
            .and_then(|()| zstd::bulk::decompress(&packed, frame.plain_len as usize))
            .map_err(|error| SourceError::io(&self.path, error))
            .and_then(|plain| SpoolFrame::parse(plain, &self.path))
    }

    pub(crate) fn open_file(&self) -> Result<File, SourceError> {
        File::open(&self.path).map_err(|error| SourceError::io(&self.path, error))
    }
}

/// The records of one unpacked frame.
pub(crate) struct SpoolFrame {
    plain: Vec<u8>,
    /// Offset in the input, place in `plain`, length.
    records: Vec<(u64, usize, usize)>,
}

impl SpoolFrame {
    fn parse(plain: Vec<u8>, path: &Path) -> Result<Self, SourceError> {
        let broken = || SourceError::io(path, std::io::Error::other("a frame of the spool is broken"));
        let (count, table) = plain.split_first_chunk::<4>().ok_or_else(broken)?;
        let count = u32::from_le_bytes(*count) as usize;
        let mut at = 4 + 12 * count;
        let mut records = Vec::with_capacity(count);
        for entry in table.get(..12 * count).ok_or_else(broken)?.chunks_exact(12) {
            let (offset, len) = entry.split_first_chunk::<8>().ok_or_else(broken)?;
            let len = u32::from_le_bytes(len.try_into().map_err(|_| broken())?) as usize;
            records.push((u64::from_le_bytes(*offset), at, len));
            at += len;
        }
        if at == plain.len() { Ok(Self { plain, records }) } else { Err(broken()) }
    }

    pub(crate) fn record(&self, offset: u64) -> Option<&[u8]> {
        let found = self.records.binary_search_by_key(&offset, |record| record.0).ok()?;
        let (_, at, len) = self.records[found];
        self.plain.get(at..at + len)
    }
}
