//! Tensors under their Hugging Face names, wherever they lie, and the bytes of a cut tensor as a stream.

use std::io::Read;
use std::ops::Range;

use super::pieces::Piece;
use crate::error::Result;
use crate::torch_file::TorchDtype;

/// Bytes that are gathered at a time: few enough to stay in a processor's cache until they are written.
const BUFFER: usize = 256 << 10;

/// A model's tensors by their Hugging Face names. Every tensor is a matrix of its first size by the product of the
/// others.
pub(super) trait HfTensors: Send + Sync {
    /// The dtype; none when there is no such tensor.
    fn dtype(&self, name: &str) -> Option<TorchDtype>;

    /// Appends a block of a tensor, row by row.
    fn read(&self, name: &str, rows: Range<usize>, cols: Range<usize>, out: &mut Vec<u8>) -> Result<()>;
}

/// The bytes of pieces below each other.
pub(super) struct PieceReader<'a> {
    source: &'a dyn HfTensors,
    names: Vec<&'a str>,
    pieces: std::vec::IntoIter<Piece>,
    current: Option<Piece>,
    element: usize,
    buffer: Vec<u8>,
    taken: usize,
}

impl<'a> PieceReader<'a> {
    /// `names` are those of the pieces' parts, `element` the bytes of an element.
    pub(super) fn new(
        source: &'a dyn HfTensors,
        names: Vec<&'a str>,
        pieces: Vec<Piece>,
        element: usize,
    ) -> Self {
        let pieces = pieces.into_iter();
        Self { source, names, pieces, current: None, element, buffer: Vec::new(), taken: 0 }
    }

    /// The next bytes, some hundred kilobytes of them; none at the end.
    pub(super) fn next_block(&mut self) -> Result<Option<&[u8]>> {
        self.fill()?;
        self.taken = self.buffer.len();
        Ok(Some(self.buffer.as_slice()).filter(|block| !block.is_empty()))
    }

    fn fill(&mut self) -> Result<()> {
        self.buffer.clear();
        self.taken = 0;
        while self.buffer.len() < BUFFER {
            let next = self.current.take().or_else(|| self.pieces.next());
            let Some(mut piece) = next else { break };
            let name = self.names[piece.part];
            let room = (BUFFER - self.buffer.len()) / (piece.cols.len() * self.element).max(1);
            if let Some(times) = piece.filler {
                let (row, now) = (self.buffer.len(), times.min(room.max(1)));
                self.source.read(name, piece.rows.clone(), piece.cols.clone(), &mut self.buffer)?;
                let bytes = row..self.buffer.len();
                (1..now).for_each(|_| self.buffer.extend_from_within(bytes.clone()));
                piece.filler = Some(times - now);
            } else {
                let end = piece.rows.end.min(piece.rows.start + room.max(1));
                self.source.read(name, piece.rows.start..end, piece.cols.clone(), &mut self.buffer)?;
                piece.rows.start = end;
            }
            self.current = Some(piece).filter(|piece| piece.height() > 0);
        }
        Ok(())
    }
}

impl Read for PieceReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.taken == self.buffer.len() {
            self.fill().map_err(std::io::Error::other)?;
        }
        let count = into.len().min(self.buffer.len() - self.taken);
        into[..count].copy_from_slice(&self.buffer[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}

/// The part that two ranges have in common.
pub(super) fn overlap(one: &Range<usize>, other: &Range<usize>) -> Range<usize> {
    let start = one.start.max(other.start);
    start..one.end.min(other.end).max(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Elements of 4 bytes, each its place in a matrix.
    struct Counted(usize);

    impl HfTensors for Counted {
        fn dtype(&self, _: &str) -> Option<TorchDtype> {
            Some(TorchDtype::Int)
        }

        fn read(&self, _: &str, rows: Range<usize>, cols: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
            for row in rows {
                cols.clone().for_each(|col| out.extend(((row * self.0 + col) as u32).to_le_bytes()));
            }
            Ok(())
        }
    }

    #[test]
    fn pieces_of_any_size_come_in_order_through_one_buffer() {
        let width = 3000;
        // A few rows, many buffers, a column, half of all columns.
        let blocks = [(0..2, 0..width), (5..1505, 0..width), (7..9, 10..11), (0..3000, 1500..width)];
        let piece = |(rows, cols): &(Range<usize>, Range<usize>)| Piece {
            part: 0,
            rows: rows.clone(),
            cols: cols.clone(),
            filler: None,
        };
        let source = Counted(width);
        let mut expected = Vec::new();
        for (rows, cols) in &blocks {
            source.read("", rows.clone(), cols.clone(), &mut expected).unwrap();
        }
        // Rows that fill up a vocabulary, more than a buffer of them.
        let filler = Piece { filler: Some(1000), ..piece(&(9..10, 0..width)) };
        (0..1000).for_each(|_| source.read("", 9..10, 0..width, &mut expected).unwrap());
        let pieces = blocks.iter().map(piece).chain([filler]).collect();
        let mut reader = PieceReader::new(&source, vec![""], pieces, 4);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert!(bytes == expected);
        assert!(reader.buffer.capacity() <= 2 * BUFFER, "{}", reader.buffer.capacity());
    }
}
