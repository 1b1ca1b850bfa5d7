//! A node's rows by class of length: any sample of a global packing is one short read away.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use packd_sinks::{AtomicFile, hash_file};
use packd_stages::bin_pack::Limits;

use super::commits::MeasuredNode;
use super::ledger::FinishedFile;
use super::node::Node;
use super::rows::{ROW_BYTES, Row, RowStore};
use crate::error::Error;
use crate::output::Output;

/// A row, and its number on the node before it.
const ENTRY_BYTES: usize = 8 + ROW_BYTES;
/// What sorting may hold in memory.
const BUDGET: u64 = 256 << 20;

fn name(node: Node) -> String {
    format!("{}/sorted.rows", node.run())
}

/// Writes the rows of a node in the order of (class, place in the input), and counts the classes.
///
/// Reads the rows once to count them, and once for every 256 MiB of them.
pub(crate) fn write_sorted(
    output: &Output,
    node: Node,
    rows: &RowStore,
    limits: &Limits,
) -> Result<(Vec<(u32, u64)>, FinishedFile), Error> {
    let mut counts = std::collections::BTreeMap::new();
    rows.scan(0..rows.len(), |row| *counts.entry(limits.class(row.length)).or_insert(0_u64) += 1)?;
    let counts: Vec<(u32, u64)> = counts.into_iter().collect();
    let path = output.path(&name(node));
    let state = |error: std::io::Error| Error::State { path: path.clone(), message: error.to_string() };
    let mut file = AtomicFile::create(&path)?;
    for classes in groups(&counts) {
        for entry in entries(rows, limits, &counts[classes])? {
            file.write_all(&entry).map_err(state)?;
        }
    }
    file.commit()?;
    output.publish(&name(node))?;
    let size = rows.len() * ENTRY_BYTES as u64;
    Ok((counts, FinishedFile { name: name(node), size, checksum: hash_file(&path)? }))
}

/// Neighbouring classes whose entries fit into the budget together; at least one at a time.
fn groups(counts: &[(u32, u64)]) -> Vec<Range<usize>> {
    let mut groups = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (place, (_, count)) in counts.iter().enumerate() {
        bytes += count * ENTRY_BYTES as u64;
        if bytes > BUDGET && place > start {
            groups.push(start..place);
            (start, bytes) = (place, count * ENTRY_BYTES as u64);
        }
    }
    if start < counts.len() {
        groups.push(start..counts.len());
    }
    groups
}

/// The entries of some classes, in order, as one piece of bytes a class.
fn entries(rows: &RowStore, limits: &Limits, counts: &[(u32, u64)]) -> Result<Vec<Vec<u8>>, Error> {
    let mut entries: Vec<Vec<u8>> =
        counts.iter().map(|(_, count)| Vec::with_capacity(*count as usize * ENTRY_BYTES)).collect();
    let mut number = 0_u64;
    rows.scan(0..rows.len(), |row| {
        if let Ok(place) = counts.binary_search_by_key(&limits.class(row.length), |(class, _)| *class) {
            entries[place].extend_from_slice(&number.to_le_bytes());
            entries[place].extend_from_slice(&row.to_bytes());
        }
        number += 1;
    })?;
    Ok(entries)
}

/// The sorted rows of one node.
#[derive(Debug)]
pub(crate) struct SortedRows {
    path: PathBuf,
    file: File,
    /// The classes that occur, and how many rows stand before each.
    starts: Vec<(u32, u64)>,
    /// Ordinal of the node's first sample in the run.
    first_ordinal: u64,
}

impl SortedRows {
    pub(crate) fn open(
        output: &Output,
        node: Node,
        measured: &MeasuredNode,
        first_ordinal: u64,
    ) -> Result<Self, Error> {
        output.fetch(&measured.sorted)?;
        let path = output.path(&name(node));
        let file = File::open(&path)
            .map_err(|error| Error::State { path: path.clone(), message: error.to_string() })?;
        let mut before = 0;
        let starts = measured.histogram.iter().map(|(class, count)| {
            before += count;
            (*class, before - count)
        });
        Ok(Self { starts: starts.collect(), path, file, first_ordinal })
    }

    /// The sample of a class by its rank: its ordinal in the run, and its row.
    pub(crate) fn get(&self, class: u32, rank: u64) -> Result<(u64, Row), Error> {
        let state = |message: String| Error::State { path: self.path.clone(), message };
        let place = self.starts.binary_search_by_key(&class, |(class, _)| *class);
        let place = place.map_err(|_| state(format!("no sample has class {class}")))?;
        let mut bytes = [0; ENTRY_BYTES];
        let at = (self.starts[place].1 + rank) * ENTRY_BYTES as u64;
        self.file.read_exact_at(&mut bytes, at).map_err(|error| state(error.to_string()))?;
        let (number, row) = bytes.split_first_chunk::<8>().ok_or_else(|| state("cut".into()))?;
        let row: &[u8; ROW_BYTES] = row.try_into().map_err(|_| state("cut".into()))?;
        Ok((self.first_ordinal + u64::from_le_bytes(*number), Row::from_bytes(row)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(length: u32, line: u32) -> Row {
        Row {
            length,
            images: 0,
            rounds: 0,
            patches: 0,
            stored: 0,
            source: 0,
            offset: 0,
            len: 1,
            line,
            image_stamp: 0,
        }
    }

    #[test]
    fn rows_are_found_by_class_and_rank() {
        let folder = tempfile::tempdir().unwrap();
        let lengths = [5, 3, 5, 9, 3, 3, 1];
        let bytes: Vec<u8> =
            (0..).zip(lengths).flat_map(|(line, length)| row(length, line).to_bytes()).collect();
        let rows = folder.path().join("rows");
        std::fs::write(&rows, bytes).unwrap();
        let rows = RowStore::open([(rows, lengths.len() as u64)]).unwrap();
        let output = Output::open_existing(folder.path()).unwrap();
        output.create_folder(&Node(2).run()).unwrap();
        let limits = Limits { pad_to_multiple: 2, ..Limits::new(16) };
        let (histogram, sorted) = write_sorted(&output, Node(2), &rows, &limits).unwrap();
        assert_eq!(histogram, [(1, 1), (2, 3), (3, 2), (5, 1)]);
        let measured = MeasuredNode { units: vec![], histogram, sorted: Some(sorted) };
        let sorted = SortedRows::open(&output, Node(2), &measured, 100).unwrap();
        assert_eq!(sorted.get(2, 0).unwrap(), (101, row(3, 1)));
        assert_eq!(sorted.get(2, 2).unwrap(), (105, row(3, 5)));
        assert_eq!(sorted.get(3, 1).unwrap(), (102, row(5, 2)));
        assert!(sorted.get(4, 0).is_err());
    }

    #[test]
    fn groups_hold_neighbours_within_the_budget() {
        let full = BUDGET / ENTRY_BYTES as u64;
        assert!(groups(&[]).is_empty());
        assert_eq!(groups(&[(1, 5), (2, full - 5), (3, 1)]), [0..2, 2..3]);
        assert_eq!(groups(&[(1, 3 * full), (2, full), (3, 1)]), [0..1, 1..2, 2..3]);
    }
}
