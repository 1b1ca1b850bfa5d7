//! What was counted while records were measured.

use std::collections::BTreeMap;

use packd_contracts::Reason;
use serde::{Deserialize, Serialize};

/// Counts over some records; sums of two parts are the counts of both.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// Records that were read.
    pub read: u64,
    /// Records that were accepted.
    pub accepted: u64,
    /// Records that were rejected, by reason.
    pub rejected: BTreeMap<Reason, u64>,
    /// Places where an input breaks off, so that records behind it could not even be counted.
    pub broken_inputs: u64,
    /// Blank lines, which are no records.
    pub blank_lines: u64,
    /// Keys that no one reads, with the number of records that have them.
    pub unknown_keys: BTreeMap<String, u64>,
    /// Tokens of the accepted samples.
    pub tokens: u64,
    /// Of these, tokens of text.
    pub text_tokens: u64,
    /// Of these, tokens of images.
    pub image_tokens: u64,
    /// Images of the accepted samples.
    pub images: u64,
    /// Vision patches of the accepted samples.
    pub patches: u64,
    /// Bytes of the accepted records.
    pub record_bytes: u64,
    /// 512-byte tar blocks of their images.
    pub image_blocks: u64,
    /// Accepted samples that lost rounds (`overlong: truncate-turns`).
    pub truncated: u64,
    /// Images whose EXIF orientation swaps their sides in a loader that applies it.
    pub exif_transposed: u64,
    /// Samples whose measurements came from an earlier output (`--previous`).
    pub reused: u64,
}

impl Stats {
    /// Adds the counts of another part.
    pub fn add(&mut self, other: &Self) {
        self.read += other.read;
        self.accepted += other.accepted;
        for (reason, count) in &other.rejected {
            *self.rejected.entry(*reason).or_default() += count;
        }
        self.broken_inputs += other.broken_inputs;
        self.blank_lines += other.blank_lines;
        for (key, count) in &other.unknown_keys {
            self.count_unknown_key(key, *count);
        }
        self.tokens += other.tokens;
        self.text_tokens += other.text_tokens;
        self.image_tokens += other.image_tokens;
        self.images += other.images;
        self.patches += other.patches;
        self.record_bytes += other.record_bytes;
        self.image_blocks += other.image_blocks;
        self.truncated += other.truncated;
        self.exif_transposed += other.exif_transposed;
        self.reused += other.reused;
    }

    /// Counts a key that no one reads; only so many different ones are kept by name.
    pub(crate) fn count_unknown_key(&mut self, key: &str, count: u64) {
        const KEPT: usize = 100;
        let short: String = key.chars().take(64).collect();
        let full = self.unknown_keys.len() >= KEPT && !self.unknown_keys.contains_key(&short);
        *self.unknown_keys.entry(if full { "(others)".to_owned() } else { short }).or_default() += count;
    }

    /// All rejected records.
    pub fn rejected_total(&self) -> u64 {
        self.rejected.values().sum()
    }

    /// Rejected records that speak of broken data: all but those that are only too long.
    pub fn rejected_as_bad(&self) -> u64 {
        self.rejected
            .iter()
            .filter(|(reason, _)| **reason != Reason::OverLength)
            .map(|(_, count)| count)
            .sum()
    }
}
