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
    /// Bytes before the element on its line.
    element_column: u64,
    offset: u64,
    line: u64,
    /// Offset of the line's first byte.
    line_start: u64,
    /// The line has held white space only so far.
    line_is_blank: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the `[`.
    Before,
    /// Between elements.
    Between,
    /// In an element.
    Inside,
    /// After an element that was given up, up to the line on which the next one starts.
    Lost,
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
            element_column: 0,
            offset,
            line: 1,
            line_start: offset,
            line_is_blank: true,
        }
    }

    pub(crate) fn position(&self) -> (u64, u64) {
        (self.offset, self.line)
    }

    pub(crate) fn push(&mut self, chunk: &[u8], block: &mut BlockBuilder) {
        for &byte in chunk {
            self.step(byte, block);
            self.offset += 1;
            if byte == b'\n' {
                self.line += 1;
                self.line_start = self.offset;
                self.line_is_blank = true;
            } else {
                self.line_is_blank &= byte.is_ascii_whitespace();
            }
        }
    }

    /// At the end of the input: what is still open is a reject.
    pub(crate) fn finish(&mut self, block: &mut BlockBuilder) {
        match self.state {
            State::Inside => self.unreadable("the input breaks off inside this element", block),
            State::Before | State::Between | State::Lost if self.bracketed => {
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
            State::Lost => self.look_for_an_element(byte, block),
            State::Between if byte == b']' && self.bracketed => self.state = State::After,
            State::Between if byte != b',' && !byte.is_ascii_whitespace() => self.open_element(byte, block),
            State::After if !byte.is_ascii_whitespace() => {
                self.start_element();
                self.unreadable("bytes after the end of the array", block);
                self.state = State::Trailing;
            }
            State::Before | State::Between | State::After | State::Trailing => {}
        }
    }

    /// A string cannot hold a line break: a quote is missing, and whatever follows is read inside out. The
    /// element is left to the parser, which says so, and the elements on later lines are found again.
    fn give_up_element(&mut self, block: &mut BlockBuilder) {
        self.close_element(block);
        self.state = State::Lost;
    }

    /// Elements start in one column, what they hold stands further in.
    fn look_for_an_element(&mut self, byte: u8, block: &mut BlockBuilder) {
        if !self.line_is_blank || self.offset - self.line_start > self.element_column {
            return;
        }
        match byte {
            b'{' => self.open_element(byte, block),
            b']' if self.bracketed => self.state = State::After,
            _ => {}
        }
    }

    fn open_element(&mut self, byte: u8, block: &mut BlockBuilder) {
        self.start_element();
        self.state = State::Inside;
        self.inside(byte, block);
    }

    fn start_element(&mut self) {
        self.element.clear();
        self.overflow = false;
        self.depth = 0;
        self.in_string = false;
        self.escaped = false;
        self.element_offset = self.offset;
        self.element_line = self.line;
        self.element_column = self.offset - self.line_start;
    }

    fn inside(&mut self, byte: u8, block: &mut BlockBuilder) {
        if self.in_string {
            match byte {
                b'\n' => return self.give_up_element(block),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Line and text.
    type Found = Vec<(u64, String)>;

    /// The records and the unreadable places.
    fn split(mut splitter: ArraySplitter, text: &str) -> (Found, Found) {
        let mut block = BlockBuilder::default();
        text.as_bytes().chunks(3).for_each(|chunk| splitter.push(chunk, &mut block));
        splitter.finish(&mut block);
        let text_of =
            |start: usize, len: usize| String::from_utf8_lossy(&block.bytes[start..start + len]).into();
        let records = block.records.iter().map(|record| (record.line, text_of(record.start, record.len)));
        let unreadable = block.unreadable.iter().map(|record| (record.line, record.verdict.detail.clone()));
        (records.collect(), unreadable.collect())
    }

    fn owned(records: &[(u64, &str)]) -> Found {
        records.iter().map(|(line, text)| (*line, (*text).to_owned())).collect()
    }

    #[test]
    fn elements_are_cut_at_commas_outside_of_strings_and_brackets() {
        let text = r#" [ {"a": "],}{\"", "b": [1, {"c": 2}]} , {"d": "\\"},7 ] "#;
        let (records, unreadable) = split(ArraySplitter::array(100, 0), text);
        let expected = [r#"{"a": "],}{\"", "b": [1, {"c": 2}]}"#, r#"{"d": "\\"}"#, "7"];
        assert_eq!(records, expected.map(|text| (1, text.to_owned())));
        assert_eq!(unreadable, []);
    }

    #[test]
    fn a_missing_quote_costs_its_own_element_only() {
        for (text, good) in [
            ("[\n{\"a\": \"x},\n{\"b\": \"y\"}\n]\n", owned(&[(3, r#"{"b": "y"}"#)])),
            ("[{\"a\": x\"},\n {\"b\": 1},\n {\"c\": 1}]", owned(&[(2, r#"{"b": 1}"#), (3, r#"{"c": 1}"#)])),
            (
                "[\n  {\n    \"a\": \"x,\n    \"l\": [\n      {}\n    ]\n  },\n  {\n    \"b\": 1\n  }\n]",
                owned(&[(8, "{\n    \"b\": 1\n  }")]),
            ),
            ("[\n{\"a\": \"x},\n]", vec![]),
        ] {
            let (records, unreadable) = split(ArraySplitter::array(100, 0), text);
            assert_eq!(records[1..], good, "{text}");
            assert!(serde_json::from_str::<serde_json::Value>(&records[0].1).is_err(), "{text}");
            assert_eq!(unreadable, [], "{text}");
        }
        let (records, unreadable) =
            split(ArraySplitter::objects(100, 0), "{\n \"a\": \"x\n}\n{\n \"b\": 1\n}\n");
        assert_eq!((records.len(), records[1].1.as_str()), (2, "{\n \"b\": 1\n}"));
        assert_eq!(unreadable, []);
    }

    #[test]
    fn what_breaks_off_or_follows_is_told_with_its_line() {
        let told = |text: &str| split(ArraySplitter::array(20, 0), text).1;
        assert_eq!(told("[\n{\"a\": 1"), owned(&[(2, "the input breaks off inside this element")]));
        assert_eq!(
            told("[\n{\"a\": 1},\n"),
            owned(&[(3, "the array breaks off: its closing bracket is missing")])
        );
        assert_eq!(
            told("[\n{\"a\": \"1\n"),
            owned(&[(3, "the array breaks off: its closing bracket is missing")])
        );
        assert_eq!(told("[1]\n{\"a\": 1}\n{}"), owned(&[(2, "bytes after the end of the array")]));
        assert_eq!(
            told("[\"123456789012345678901234567890\", 1]"),
            owned(&[(1, "an element of more than 20 bytes (`max_line_bytes`)")])
        );
    }
}
