//! Streams the records of one input in blocks.

use packd_contracts::{Reason, Verdict};
use tokio::io::AsyncReadExt;

use crate::array::ArraySplitter;
use crate::blocks::{BlockBuilder, RecordBlock, UnreadableRecord};
use crate::compression::{Compression, PlainBytes};
use crate::error::SourceError;
use crate::input::{Input, Shape};
use crate::lines::LineSplitter;

/// Where to start reading an input, and where to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRange {
    /// Offset in the plain (unpacked) bytes.
    pub offset: u64,
    /// The line that this offset stands on, from 1.
    pub line: u64,
    /// Where to stop, behind a line break; only for plain files of lines. `None`: at the end.
    pub end: Option<u64>,
}

impl Default for ReadRange {
    fn default() -> Self {
        Self { offset: 0, line: 1, end: None }
    }
}

/// Blocks end with the last record that ends before a multiple of this offset in the plain input. So they hold
/// about so many bytes, and the same records wherever reading began.
const BLOCK_BYTES: usize = 256 << 10;
/// How many bytes are asked of the system at once, and looked at to tell the shape.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads one input, block by block.
pub struct RecordReader {
    input: Input,
    source: usize,
    compression: Compression,
    shape: Shape,
    plain: PlainBytes,
    splitter: Splitter,
    block: BlockBuilder,
    /// Bytes that were read and not split yet, and their offset in the plain input.
    pending: Vec<u8>,
    pending_offset: u64,
    /// Records that end at or before this offset were read by an earlier run.
    skip_to: u64,
    /// Why a compressed stream could not be read further.
    broken: Option<std::io::Error>,
    ended: bool,
}

enum Splitter {
    Lines(LineSplitter),
    Array(ArraySplitter),
}

impl RecordReader {
    /// Opens an input. `source` is its position in the run's list, `max_record` the longest record in
    /// bytes.
    ///
    /// # Errors
    /// The file cannot be opened or its first bytes cannot be read.
    pub async fn open(
        input: &Input,
        source: usize,
        range: ReadRange,
        max_record: usize,
    ) -> Result<Self, SourceError> {
        let compression = input.compression()?;
        let mut plain = compression.open(input, 0, None).await?;
        let (mut head, mut broken) = read_chunk(&mut plain).await;
        let mark = head.len() - without_mark(&head).len();
        head.drain(..mark);
        let shape = shape_of(&head);
        let start = mark as u64;
        let (mut skip_to, mut pending_offset) = (0, start);
        let splitter = match shape {
            Shape::Lines if range.offset > start || range.end.is_some() => {
                let offset = range.offset.max(start);
                plain = compression.open(input, offset, range.end).await?;
                head.clear();
                broken = None;
                pending_offset = offset;
                Splitter::Lines(LineSplitter::new(max_record, offset, range.line))
            }
            Shape::Lines => Splitter::Lines(LineSplitter::new(max_record, start, 1)),
            // An array has no line to start on: it is split again from its start.
            Shape::Array | Shape::Object => {
                skip_to = range.offset;
                Splitter::Array(match shape {
                    Shape::Array => ArraySplitter::array(max_record, start),
                    _ => ArraySplitter::objects(max_record, start),
                })
            }
        };
        Ok(Self {
            input: input.clone(),
            source,
            compression,
            shape,
            plain,
            splitter,
            block: BlockBuilder::default(),
            pending: head,
            pending_offset,
            skip_to,
            broken,
            ended: false,
        })
    }

    /// Whether the records can be read again by their offset in the file itself.
    pub fn is_seekable(&self) -> bool {
        self.compression == Compression::None
    }

    /// How the records stand in the file.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The next block, or `None` after the block that ended the input.
    ///
    /// # Errors
    /// The file cannot be read. A compressed stream that is cut or broken is not an error: what was
    /// unpacked counts, and the break is an [`UnreadableRecord`].
    pub async fn next_block(&mut self) -> Result<Option<RecordBlock>, SourceError> {
        if self.ended {
            return Ok(None);
        }
        loop {
            if self.pending.is_empty() && self.broken.is_none() {
                (self.pending, self.broken) = read_chunk(&mut self.plain).await;
            }
            if self.pending.is_empty() {
                return self.last_block().map(Some);
            }
            let to_border = BLOCK_BYTES - (self.pending_offset % BLOCK_BYTES as u64) as usize;
            let step = self.pending.len().min(to_border);
            let chunk: Vec<u8> = self.pending.drain(..step).collect();
            self.pending_offset += step as u64;
            match &mut self.splitter {
                Splitter::Lines(lines) => lines.push(&chunk, &mut self.block),
                Splitter::Array(array) => array.push(&chunk, &mut self.block),
            }
            self.drop_known();
            let holds_some = !self.block.records.is_empty() || !self.block.unreadable.is_empty();
            if step == to_border && holds_some {
                return Ok(Some(self.finish_block(false)));
            }
        }
    }

    fn last_block(&mut self) -> Result<RecordBlock, SourceError> {
        self.ended = true;
        let broken = self.broken.take();
        if let Some(error) = broken.as_ref().filter(|error| !self.is_broken_data(error)) {
            let error = std::io::Error::new(error.kind(), error.to_string());
            return Err(SourceError::io(self.input.path(), error));
        }
        match &mut self.splitter {
            Splitter::Lines(lines) => lines.finish(&mut self.block),
            Splitter::Array(array) => array.finish(&mut self.block),
        }
        self.drop_known();
        if let Some(error) = broken {
            let (offset, line) = self.position();
            let verdict =
                Verdict::new(Reason::JsonSyntax, format!("the compressed input breaks off: {error}"));
            self.block.unreadable.push(UnreadableRecord { offset, line, verdict });
        }
        Ok(self.finish_block(true))
    }

    /// Whether a read failed because of what the file holds, and not because the system could not read.
    fn is_broken_data(&self, error: &std::io::Error) -> bool {
        use std::io::ErrorKind::{InvalidData, InvalidInput, Other, UnexpectedEof};
        self.compression != Compression::None
            && matches!(error.kind(), UnexpectedEof | InvalidData | InvalidInput | Other)
    }

    fn position(&self) -> (u64, u64) {
        match &self.splitter {
            Splitter::Lines(lines) => lines.position(),
            Splitter::Array(array) => array.position(),
        }
    }

    fn finish_block(&mut self, last: bool) -> RecordBlock {
        let (mut offset, line) = self.position();
        // An array may be inside an element: the next block starts after the last whole one.
        if let (Splitter::Array(_), false) = (&self.splitter, last) {
            let record = self.block.records.last().map_or(0, |record| record.offset + record.len as u64);
            let unreadable = self.block.unreadable.last().map_or(0, |record| record.offset + 1);
            offset = record.max(unreadable).max(self.skip_to);
        }
        self.block.finish(self.source, offset, line, last)
    }

    fn drop_known(&mut self) {
        let skip_to = self.skip_to;
        if skip_to > 0 {
            self.block.records.retain(|record| record.offset >= skip_to);
            self.block.unreadable.retain(|record| record.offset >= skip_to);
        }
    }
}

pub(crate) fn without_mark(head: &[u8]) -> &[u8] {
    head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head)
}

/// What could be read, and the error that ended it, if one did.
async fn read_chunk(plain: &mut PlainBytes) -> (Vec<u8>, Option<std::io::Error>) {
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    while chunk.len() < CHUNK_BYTES {
        match plain.take((CHUNK_BYTES - chunk.len()) as u64).read_buf(&mut chunk).await {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => return (chunk, Some(error)),
        }
    }
    (chunk, None)
}

/// Tells the shape from the first bytes: an array starts with `[` and an object (a line `[1, 2]` is a
/// broken record); an object that goes on over a line break without a mistake is pretty-printed.
pub(crate) fn shape_of(head: &[u8]) -> Shape {
    let start = head.trim_ascii_start();
    let first_line = start.iter().position(|byte| *byte == b'\n').unwrap_or(start.len());
    if let Some(rest) = start.strip_prefix(b"[") {
        let rest = rest.trim_ascii_start();
        let whole = serde_json::from_slice::<serde::de::IgnoredAny>(&start[..first_line]).is_ok();
        if whole && !start[first_line..].trim_ascii().is_empty() {
            return Shape::Lines;
        }
        return if rest.is_empty() || rest.starts_with(b"{") || rest == b"]" {
            Shape::Array
        } else {
            Shape::Lines
        };
    }
    if !start.starts_with(b"{") || first_line == start.len() {
        return Shape::Lines;
    }
    let mut values = serde_json::Deserializer::from_slice(start).into_iter::<serde::de::IgnoredAny>();
    match values.next() {
        Some(Ok(_)) if values.byte_offset() > first_line => Shape::Object,
        Some(Err(error)) if error.is_eof() => Shape::Object,
        _ => Shape::Lines,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_told_by_content() {
        for (head, shape) in [
            ("", Shape::Lines),
            ("\n\n", Shape::Lines),
            ("{\"a\": 1}\n{\"a\": 2}\n", Shape::Lines),
            ("{\"a\": 1}", Shape::Lines),
            ("{\"a\": \"cut\n{\"a\": 2}\n", Shape::Lines),
            ("[1, 2, 3]\n{\"a\": 2}\n", Shape::Lines),
            ("[{\"a\": 1}]", Shape::Array),
            ("[{\"a\": 1}]\n{\"a\": 2}\n", Shape::Lines),
            (" [\n  {\"a\": 1}", Shape::Array),
            ("[", Shape::Array),
            ("{\n \"a\": [\n  {\"b\": 1}\n ]\n}\n", Shape::Object),
            ("{\"messages\": [\n{\"b\": 1},", Shape::Object),
        ] {
            assert_eq!(shape_of(head.as_bytes()), shape, "{head:?}");
        }
    }
}
