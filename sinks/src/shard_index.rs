//! What is known of a shard once it is written: enough to index it, never its contents.

use std::path::Path;

use packd_contracts::Verdict;
use serde::{Deserialize, Serialize};

use crate::{SinkError, write_file};

/// A member of a packed sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// The member's name after the key and the dot, as `img0_1.jpg`.
    pub name: String,
    /// Where its content starts in the tar, in bytes.
    pub offset: u64,
    /// Bytes of content.
    pub size: u64,
}

/// A sample that was to be packed, and whose images are not what was measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostSample {
    /// What was known of it.
    pub sub_sample: CommittedSubSample,
    /// What is wrong with its images.
    pub verdict: Verdict,
}

/// One packed sample in a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexedSample {
    /// The key: what stands before the first dot of its members' names.
    pub key: String,
    /// Where the header of its first member starts in the tar, in bytes.
    pub offset: u64,
    /// Bytes up to the next sample (for the last: up to the end of its content in whole blocks).
    pub size: u64,
    /// XXH3-64 of those bytes.
    pub checksum: u64,
    /// Its members, in the order of the tar.
    pub parts: Vec<Part>,
}

/// The index of one shard, from the writer or from [`scan_shard`](crate::scan_shard).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardIndex {
    /// The file name.
    pub name: String,
    /// Bytes of the whole file.
    pub size: u64,
    /// XXH3-128 of the whole file, 32 hexadecimal digits.
    pub checksum: String,
    /// Where the last member ends, in whole blocks: what follows is padding.
    pub content_end: u64,
    /// The packed samples in the order of the tar; never empty.
    pub samples: Vec<IndexedSample>,
}

impl ShardIndex {
    /// The bytes of `<shard>.tar.idx`: little-endian u64 offsets of all samples, then the end of the last.
    pub fn tar_idx(&self) -> Vec<u8> {
        let offsets = self.samples.iter().map(|s| s.offset).chain([self.content_end]);
        offsets.flat_map(u64::to_le_bytes).collect()
    }

    /// Writes the `.tar.idx` beside the shard in `folder`.
    ///
    /// # Errors
    /// [`SinkError::Create`] or [`SinkError::Write`].
    pub fn write_tar_idx(&self, folder: &Path) -> Result<(), SinkError> {
        write_file(folder.join(format!("{}.idx", self.name)), &self.tar_idx())
    }

    /// The members of all samples.
    pub fn parts(&self) -> u64 {
        self.samples.iter().map(|s| s.parts.len() as u64).sum()
    }
}

/// Where a sub-sample of a written pack came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommittedSubSample {
    /// The sample's ordinal in the run.
    pub ordinal: u64,
    /// The record's `id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The input's number in the configuration, from 0.
    pub source: usize,
    /// Where the record starts in the (decompressed) input, in bytes.
    pub offset: u64,
    /// The record's line, from 1.
    pub line: u64,
    /// Tokens.
    pub length: u32,
    /// Images.
    pub images: u32,
    /// Image patches before merging.
    pub patches: u32,
}

/// The sub-samples of one packed sample, in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommittedPack {
    /// The pack's number.
    pub pack: u64,
    /// Its sub-samples.
    pub sub_samples: Vec<CommittedSubSample>,
}

/// A shard that is on the disk under its name: what the ledger records and finalize reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardCommit {
    /// Its index.
    pub index: ShardIndex,
    /// `packs[i]` is what `index.samples[i]` holds.
    pub packs: Vec<CommittedPack>,
    /// Samples that were left out of it, see [`ShardWriter::leave_out`](crate::ShardWriter::leave_out).
    #[serde(default)]
    pub lost: Vec<LostSample>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_idx_is_all_offsets_and_the_end() {
        let sample = |offset| IndexedSample { key: "k".into(), offset, size: 0, checksum: 0, parts: vec![] };
        let index = ShardIndex {
            name: "a.tar".into(),
            size: 10_240,
            checksum: String::new(),
            content_end: 0x0102_0304_0506,
            samples: vec![sample(0), sample(1024)],
        };
        let want = [[0; 8], [0, 4, 0, 0, 0, 0, 0, 0], [6, 5, 4, 3, 2, 1, 0, 0]].concat();
        assert_eq!(index.tar_idx(), want);
    }
}
