//! What the packer and the writer need of a sample, in 40 bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use packd_stages::bin_pack::Item;

use super::ledger::MeasuredUnit;
use crate::error::Error;
use crate::output::Output;

/// One measured sample: 16 bytes for the packer, 24 for the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Row {
    /// Tokens.
    pub(crate) length: u32,
    /// Images that stay.
    pub(crate) images: u16,
    /// Rounds that stay, 0 for all.
    pub(crate) rounds: u16,
    /// Vision patches.
    pub(crate) patches: u32,
    /// 512-byte tar blocks of its images.
    pub(crate) stored: u32,
    /// Position of the input in the run's list.
    pub(crate) source: u16,
    /// Offset of the record in the plain input; 48 bits are 256 TiB.
    pub(crate) offset: u64,
    /// Bytes of the record.
    pub(crate) len: u32,
    /// Line of the record; stays at the largest value beyond it.
    pub(crate) line: u32,
    /// See [`packd_sources::ImageStamp`].
    pub(crate) image_stamp: u64,
}

pub(crate) const ROW_BYTES: usize = 40;

impl Row {
    pub(crate) fn to_bytes(self) -> [u8; ROW_BYTES] {
        let mut bytes = [0; ROW_BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.images.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.rounds.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.patches.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.stored.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.source.to_le_bytes());
        bytes[18..24].copy_from_slice(&self.offset.to_le_bytes()[..6]);
        bytes[24..28].copy_from_slice(&self.len.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.line.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.image_stamp.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; ROW_BYTES]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Self {
            length: u32_at(0),
            images: u16_at(4),
            rounds: u16_at(6),
            patches: u32_at(8),
            stored: u32_at(12),
            source: u16_at(16),
            offset: u64::from(u32_at(18)) | u64::from(u16_at(22)) << 32,
            len: u32_at(24),
            line: u32_at(28),
            image_stamp: u64::from(u32_at(32)) | u64::from(u32_at(36)) << 32,
        }
    }

    pub(crate) fn item(&self) -> Item {
        Item { length: self.length, images: self.images.into(), patches: self.patches, stored: self.stored }
    }
}

/// The rows of all units, read by ordinal.
#[derive(Debug)]
pub(crate) struct RowStore {
    units: Vec<UnitRows>,
}

#[derive(Debug)]
struct UnitRows {
    first: u64,
    rows: u64,
    path: PathBuf,
    file: File,
}

impl RowStore {
    /// Opens the rows of units, in their order.
    pub(crate) fn of_units(output: &Output, units: &[MeasuredUnit]) -> Result<Self, Error> {
        output.fetch(units.iter().filter_map(MeasuredUnit::rows))?;
        let files = units.iter().filter_map(|unit| Some((output.path(&unit.rows()?.name), unit.samples)));
        Self::open(files)
    }

    /// Opens row files, given in order with the number of rows of each.
    pub(crate) fn open(files: impl IntoIterator<Item = (PathBuf, u64)>) -> Result<Self, Error> {
        let mut units = Vec::new();
        let mut first = 0;
        for (path, rows) in files {
            let file = File::open(&path).map_err(|error| state(&path, &error))?;
            units.push(UnitRows { first, rows, path, file });
            first += rows;
        }
        Ok(Self { units })
    }

    pub(crate) fn len(&self) -> u64 {
        self.units.last().map_or(0, |unit| unit.first + unit.rows)
    }

    /// One row.
    pub(crate) fn get(&self, ordinal: u64) -> Result<Row, Error> {
        let after = self.units.partition_point(|unit| unit.first <= ordinal);
        let unit = &self.units[after - 1];
        let mut bytes = [0; ROW_BYTES];
        let at = (ordinal - unit.first) * ROW_BYTES as u64;
        unit.file.read_exact_at(&mut bytes, at).map_err(|error| state(&unit.path, &error))?;
        Ok(Row::from_bytes(&bytes))
    }

    /// Calls `each` with every row of `ordinals`, in order.
    pub(crate) fn scan(
        &self,
        ordinals: std::ops::Range<u64>,
        mut each: impl FnMut(Row),
    ) -> Result<(), Error> {
        const ROWS_AT_ONCE: u64 = 8192;
        for unit in &self.units {
            let from = ordinals.start.max(unit.first);
            let to = ordinals.end.min(unit.first + unit.rows);
            let mut at = from;
            while at < to {
                let count = ROWS_AT_ONCE.min(to - at);
                let mut bytes = vec![0; count as usize * ROW_BYTES];
                let place = (at - unit.first) * ROW_BYTES as u64;
                unit.file.read_exact_at(&mut bytes, place).map_err(|error| state(&unit.path, &error))?;
                bytes.as_chunks().0.iter().for_each(|row| each(Row::from_bytes(row)));
                at += count;
            }
        }
        Ok(())
    }
}

fn state(path: &std::path::Path, error: &std::io::Error) -> Error {
    Error::State { path: path.to_owned(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_keep_every_bit() {
        let row = Row {
            length: 0x0102_0304,
            images: 0x0506,
            rounds: 0x0708,
            patches: 0x090a_0b0c,
            stored: 0x0d0e_0f10,
            source: 0x1112,
            offset: 0x1314_1516_1718,
            len: 0x191a_1b1c,
            line: 0x1d1e_1f20,
            image_stamp: 0x2122_2324_2526_2728,
        };
        assert_eq!(Row::from_bytes(&row.to_bytes()), row);
    }

    #[test]
    fn rows_are_found_over_unit_borders() {
        let folder = tempfile::tempdir().unwrap();
        let row = |n: u32| Row {
            length: n,
            images: 0,
            rounds: 0,
            patches: 0,
            stored: 0,
            source: 0,
            offset: n.into(),
            len: 1,
            line: n,
            image_stamp: 0,
        };
        let mut files = Vec::new();
        for (unit, range) in [0..3_u32, 3..3, 3..10].into_iter().enumerate() {
            let path = folder.path().join(unit.to_string());
            let bytes: Vec<u8> = range.clone().flat_map(|n| row(n).to_bytes()).collect();
            std::fs::write(&path, bytes).unwrap();
            files.push((path, u64::from(range.end - range.start)));
        }
        let store = RowStore::open(files).unwrap();
        assert_eq!(store.len(), 10);
        assert!((0..10).all(|n| store.get(n).unwrap() == row(n as u32)));
        let mut seen = Vec::new();
        store.scan(2..9, |row| seen.push(row.length)).unwrap();
        assert_eq!(seen, [2, 3, 4, 5, 6, 7, 8]);
    }
}
