//! Goes back to the inputs for the bytes of chosen records.
//!
//! Packs are shuffled, so the records of one shard lie all over the input. Asking for them one by one
//! would drown a network file system: requests are sorted by place, and near ones become one read.

use std::fs::File;
use std::ops::Range;

use bytes::Bytes;

use crate::error::SourceError;
use crate::input::Input;
use crate::input_file::InputFile;
use crate::spool::SpoolReader;

/// One record to be read again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FetchRequest {
    /// Position of the input in the run's list.
    pub source: usize,
    /// Offset in the plain input.
    pub offset: u64,
    /// Length in bytes.
    pub len: u32,
}

/// Two reads become one when the bytes between them are at most this many …
const LARGEST_GAP: u64 = 64 << 10;
/// … and one read is not longer than this.
const LARGEST_READ: u64 = 4 << 20;

/// Reads records by their place.
#[derive(Debug)]
pub struct RecordFetcher {
    inputs: Vec<Input>,
    /// Whether an input is read from its own file; if not, from the spools.
    seekable: Vec<bool>,
    spools: Vec<SpoolReader>,
}

impl RecordFetcher {
    /// A fetcher for the inputs of a run. `seekable[i]` tells whether input `i` is read by offset;
    /// records of the others are looked up in the spools.
    pub fn new(inputs: Vec<Input>, seekable: Vec<bool>, spools: Vec<SpoolReader>) -> Self {
        Self { inputs, seekable, spools }
    }

    /// The bytes of each request, in the order of the requests.
    ///
    /// # Errors
    /// An input that cannot be read, or that is not the file it was when its records were measured.
    pub fn fetch(&self, requests: &[FetchRequest]) -> Result<Vec<Bytes>, SourceError> {
        let mut order: Vec<usize> = (0..requests.len()).collect();
        order.sort_unstable_by_key(|index| requests[*index]);
        let mut found = vec![Bytes::new(); requests.len()];
        for same_source in order.chunk_by(|a, b| requests[*a].source == requests[*b].source) {
            let source = requests[same_source[0]].source;
            if self.seekable[source] {
                self.fetch_from_file(source, requests, same_source, &mut found)?;
            } else {
                self.fetch_from_spools(source, requests, same_source, &mut found)?;
            }
        }
        Ok(found)
    }

    fn fetch_from_file(
        &self,
        source: usize,
        requests: &[FetchRequest],
        order: &[usize],
        found: &mut [Bytes],
    ) -> Result<(), SourceError> {
        let file = InputFile::open_unchanged(&self.inputs[source])?;
        let mut runs: Vec<&[usize]> = Vec::new();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        let mut rest = order;
        while let [first, ..] = rest {
            let start = requests[*first].offset;
            let taken = together(rest.iter().map(|index| requests[*index]));
            let (run, after) = rest.split_at(taken);
            rest = after;
            let end = run.iter().map(|index| requests[*index].offset + u64::from(requests[*index].len)).max();
            runs.push(run);
            ranges.push(start..end.unwrap_or(start));
        }
        let starts: Vec<u64> = ranges.iter().map(|range| range.start).collect();
        for ((run, start), bytes) in runs.into_iter().zip(starts).zip(file.read_ranges(ranges)?) {
            for index in run {
                let from = (requests[*index].offset - start) as usize;
                found[*index] = bytes.slice(from..from + requests[*index].len as usize);
            }
        }
        Ok(())
    }

    fn fetch_from_spools(
        &self,
        source: usize,
        requests: &[FetchRequest],
        order: &[usize],
        found: &mut [Bytes],
    ) -> Result<(), SourceError> {
        let path = self.inputs[source].path();
        let lost =
            || SourceError::Changed { path: path.to_owned(), message: "a spooled record is missing".into() };
        let mut open: Option<(usize, File)> = None;
        let mut frame: Option<((usize, usize), crate::spool::SpoolFrame)> = None;
        for index in order {
            let offset = requests[*index].offset;
            let holds = |spool: &SpoolReader| spool.frame_of(source, offset);
            // Spools come in order of input and offset: the last that starts before the record has it.
            let place = self
                .spools
                .iter()
                .enumerate()
                .rev()
                .find_map(|(number, spool)| Some((number, holds(spool)?)));
            let place = place.ok_or_else(lost)?;
            if frame.as_ref().is_none_or(|(loaded, _)| *loaded != place) {
                let spool = &self.spools[place.0];
                if open.as_ref().is_none_or(|(number, _)| *number != place.0) {
                    open = Some((place.0, spool.open_file()?));
                }
                let (_, file) = open.as_ref().ok_or_else(lost)?;
                frame = Some((place, spool.read_frame(file, place.1)?));
            }
            let record = frame.as_ref().and_then(|(_, frame)| frame.record(offset)).ok_or_else(lost)?;
            found[*index] = Bytes::copy_from_slice(record);
        }
        Ok(())
    }
}

/// How many of the sorted requests one read should cover: gaps are small, and no more bytes are read
/// for nothing than are wanted.
fn together(mut requests: impl Iterator<Item = FetchRequest>) -> usize {
    let Some(first) = requests.next() else { return 0 };
    let mut end = first.offset + u64::from(first.len);
    let (mut wanted, mut wasted, mut count) = (u64::from(first.len), 0, 1);
    for request in requests {
        let gap = request.offset.saturating_sub(end);
        let too_long = request.offset + u64::from(request.len) - first.offset > LARGEST_READ;
        if gap > LARGEST_GAP || too_long || wasted + gap > wanted + u64::from(request.len) {
            break;
        }
        wasted += gap;
        wanted += u64::from(request.len);
        end = end.max(request.offset + u64::from(request.len));
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_requests_become_one_read_and_far_ones_do_not() {
        let at = |offset, len| FetchRequest { source: 0, offset, len };
        assert_eq!(together([].into_iter()), 0);
        assert_eq!(together([at(0, 10), at(10, 10), at(25, 10)].into_iter()), 3);
        assert_eq!(together([at(0, 10), at(100, 10)].into_iter()), 1, "more waste than bytes wanted");
        assert_eq!(
            together([at(0, 1 << 20), at((1 << 20) + (65 << 10), 1 << 20)].into_iter()),
            1,
            "gap over 64 KiB"
        );
        assert_eq!(together([at(0, 3 << 20), at(3 << 20, 3 << 20)].into_iter()), 1, "read over 4 MiB");
    }
}
