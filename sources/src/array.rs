//! Cuts streamed JSON objects apart: the elements of one array, or objects that span lines.

use packd_contracts::{Reason, Verdict};

use crate::blocks::{BlockBuilder, UnreadableRecord};

/// Splits a JSON array, or pretty-printed objects one after another. Feed it chunks; it fills a block.
///
/// It follows strings and brackets only; whether an element is valid JSON is for the parser to say.
/// Memory is bounded by the longest element.
#[derive(Debug)]
pub struct ArraySplitter {
    max_element: usize,
    bracketed: bool,
    state: State,
    /// Bytes of the element that is open.
    element: Vec<u8>,
    overflow: bool,
    depth: u32,
    in_string: bool,
    escaped: bool,
    element_offset: u64,
    element_line: u64,
    offset: u64,
    line: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the `[`.
    Before,
    /// Between elements.
    Between,
    /// In an element.
    Inside,
    /// After the `]`; only white space may follow.
    After,
    /// Something follows the `]`; it was reported.
    Trailing,
}

impl ArraySplitter {
    /// A splitter for one array; `offset` is where its bytes start (after a byte order mark).
    pub fn array(max_element: usize, offset: u64) -> Self {
        Self::new(max_element, offset, true)
    }

    /// A splitter for objects that span lines, without brackets around them.
    pub fn objects(max_element: usize, offset: u64) -> Self {
        Self::new(max_element, offset, false)
    }

    fn new(max_element: usize, offset: u64, bracketed: bool) -> Self {
        Self {
            max_element,
            bracketed,
            state: if bracketed { State::Before } else { State::Between },
            element: Vec::new(),
            overflow: false,
            depth: 0,
            in_string: false,
            escaped: false,
            element_offset: offset,
            element_line: 1,
            offset,
            line: 1,
        }
    }

    pub(crate) fn position(&self) -> (u64, u64) {
        (self.offset, self.line)
    }

    pub(crate) fn push(&mut self, chunk: &[u8], block: &mut BlockBuilder) {
        for &byte in chunk {
            self.step(byte, block);
            self.offset += 1;
            self.line += u64::from(byte == b'\n');
        }
    }

    /// At the end of the input: what is still open is a reject.
    pub(crate) fn finish(&mut self, block: &mut BlockBuilder) {
        match self.state {
            State::Inside => self.unreadable("the input breaks off inside this element", block),
            State::Before | State::Between if self.bracketed => {
                self.start_element();
                self.unreadable("the array breaks off: its closing bracket is missing", block);
            }
            _ => {}
        }
    }

    fn step(&mut self, byte: u8, block: &mut BlockBuilder) {
        match self.state {
            State::Before if byte == b'[' => self.state = State::Between,
            State::Inside => self.inside(byte, block),
            State::Between if byte == b']' && self.bracketed => self.state = State::After,
            State::Between if byte != b',' && !byte.is_ascii_whitespace() => {
                self.start_element();
                self.state = State::Inside;
                self.inside(byte, block);
            }
            State::After if !byte.is_ascii_whitespace() => {
                self.start_element();
                self.unreadable("bytes after the end of the array", block);
                self.state = State::Trailing;
            }
            State::Before | State::Between | State::After | State::Trailing => {}
        }
    }

    fn start_element(&mut self) {
        self.element.clear();
        self.overflow = false;
        self.depth = 0;
        self.in_string = false;
        self.escaped = false;
        self.element_offset = self.offset;
        self.element_line = self.line;
    }

    fn inside(&mut self, byte: u8, block: &mut BlockBuilder) {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return self.keep(byte);
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b',' | b']' if self.depth == 0 => {
                self.close_element(block);
                self.state = if byte == b']' && self.bracketed { State::After } else { State::Between };
                return;
            }
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.keep(byte);
        if !self.bracketed && self.depth == 0 && byte == b'}' {
            self.close_element(block);
            self.state = State::Between;
        }
    }

    fn keep(&mut self, byte: u8) {
        if self.element.len() < self.max_element {
            self.element.push(byte);
        } else {
            self.overflow = true;
        }
    }

    fn close_element(&mut self, block: &mut BlockBuilder) {
        if self.overflow {
            let detail = format!("an element of more than {} bytes (`max_line_bytes`)", self.max_element);
            let verdict = Verdict::new(Reason::LineTooLong, detail);
            block.unreadable.push(UnreadableRecord {
                offset: self.element_offset,
                line: self.element_line,
                verdict,
            });
        } else {
            block.push(self.element.trim_ascii_end(), self.element_offset, self.element_line);
        }
    }

    fn unreadable(&mut self, what: &str, block: &mut BlockBuilder) {
        let verdict = Verdict::new(Reason::JsonSyntax, what);
        block.unreadable.push(UnreadableRecord {
            offset: self.element_offset,
            line: self.element_line,
            verdict,
        });
    }
}
