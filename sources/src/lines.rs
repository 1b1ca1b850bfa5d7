//! Cuts a stream of bytes into lines, with offset and line number, in bounded memory.

use packd_contracts::{Reason, Verdict};

use crate::blocks::{BlockBuilder, UnreadableRecord};

/// Splits JSONL. Feed it chunks; it fills a block.
#[derive(Debug)]
pub struct LineSplitter {
    max_line: usize,
    /// The line that the last chunk broke off in.
    partial: Vec<u8>,
    /// The partial line is over the limit: its bytes are dropped until its end.
    overflow: bool,
    /// Offset of the partial line's first byte.
    offset: u64,
    /// Number of the partial line.
    line: u64,
    /// Bytes of the partial line so far, dropped ones included.
    seen: u64,
}

impl LineSplitter {
    /// Starts at an offset, on a line.
    pub fn new(max_line: usize, offset: u64, line: u64) -> Self {
        Self { max_line, partial: Vec::new(), overflow: false, offset, line, seen: 0 }
    }

    /// Offset of the first byte that no finished line holds, and its line number.
    pub(crate) fn position(&self) -> (u64, u64) {
        (self.offset, self.line)
    }

    pub(crate) fn push(&mut self, chunk: &[u8], block: &mut BlockBuilder) {
        let mut start = 0;
        for end in memchr::memchr_iter(b'\n', chunk) {
            self.extend(&chunk[start..end], block, true);
            start = end + 1;
        }
        self.extend(&chunk[start..], block, false);
    }

    /// The last line may lack its newline.
    pub(crate) fn finish(&mut self, block: &mut BlockBuilder) {
        if self.seen > 0 {
            self.extend(&[], block, true);
            // There was no newline to step over.
            self.offset -= 1;
        }
    }

    fn extend(&mut self, piece: &[u8], block: &mut BlockBuilder, ends: bool) {
        self.seen += piece.len() as u64;
        self.overflow |= self.seen > self.max_line as u64;
        if !ends {
            if self.overflow {
                self.partial = Vec::new();
            } else {
                self.partial.extend_from_slice(piece);
            }
            return;
        }
        if self.overflow {
            let detail = format!("{} bytes; `max_line_bytes` is {}", self.seen, self.max_line);
            let verdict = Verdict::new(Reason::LineTooLong, detail);
            block.unreadable.push(UnreadableRecord { offset: self.offset, line: self.line, verdict });
        } else if self.partial.is_empty() {
            push_line(piece, self.offset, self.line, block);
        } else {
            self.partial.extend_from_slice(piece);
            push_line(&self.partial, self.offset, self.line, block);
        }
        self.partial.clear();
        self.overflow = false;
        self.offset += self.seen + 1;
        self.line += 1;
        self.seen = 0;
    }
}

fn push_line(line: &[u8], offset: u64, number: u64, block: &mut BlockBuilder) {
    let trimmed = line.trim_ascii();
    if trimmed.is_empty() {
        block.blank_lines += 1;
        return;
    }
    let lead = line.len() - line.trim_ascii_start().len();
    block.push(trimmed, offset + lead as u64, number);
}
