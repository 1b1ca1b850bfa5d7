//! Blocks of raw records: what a reader hands to the first stage.

use bytes::Bytes;

/// Where one record lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawRecord {
    /// Its first byte in [`RecordBlock::bytes`].
    pub start: usize,
    /// Its length in bytes.
    pub len: usize,
    /// Its first byte in the plain (unpacked) input.
    pub offset: u64,
    /// Its line in the input, from 1.
    pub line: u64,
}

/// A record that could not even be cut out: longer than the limit, or an array that breaks off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableRecord {
    /// Its first byte in the plain input.
    pub offset: u64,
    /// Its line in the input, from 1.
    pub line: u64,
    /// Why.
    pub verdict: packd_contracts::Verdict,
}

/// Some consecutive records of one input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordBlock {
    /// Position of the input in the run's list.
    pub source: usize,
    /// The bytes that the records lie in.
    pub bytes: Bytes,
    /// The records, in order.
    pub records: Vec<RawRecord>,
    /// Records that could not be cut out.
    pub unreadable: Vec<UnreadableRecord>,
    /// Blank lines that were skipped.
    pub blank_lines: u64,
    /// Where the next block starts in the plain input.
    pub end_offset: u64,
    /// The line that the next block starts on.
    pub end_line: u64,
    /// Whether this is the last block of its input.
    pub end_of_source: bool,
}

impl RecordBlock {
    /// The bytes of one record of this block.
    pub fn bytes_of(&self, record: &RawRecord) -> &[u8] {
        &self.bytes[record.start..record.start + record.len]
    }
}

/// Collects records until a block is full.
#[derive(Debug, Default)]
pub(crate) struct BlockBuilder {
    pub(crate) bytes: Vec<u8>,
    pub(crate) records: Vec<RawRecord>,
    pub(crate) unreadable: Vec<UnreadableRecord>,
    pub(crate) blank_lines: u64,
}

impl BlockBuilder {
    pub(crate) fn push(&mut self, record: &[u8], offset: u64, line: u64) {
        self.records.push(RawRecord { start: self.bytes.len(), len: record.len(), offset, line });
        self.bytes.extend_from_slice(record);
    }

    pub(crate) fn finish(
        &mut self,
        source: usize,
        end_offset: u64,
        end_line: u64,
        end_of_source: bool,
    ) -> RecordBlock {
        let done = std::mem::take(self);
        RecordBlock {
            source,
            bytes: done.bytes.into(),
            records: done.records,
            unreadable: done.unreadable,
            blank_lines: done.blank_lines,
            end_offset,
            end_line,
            end_of_source,
        }
    }
}
