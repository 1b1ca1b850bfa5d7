//! Stages 1 and 2 over blocks of records: validate, then token-length.

use std::panic::{AssertUnwindSafe, catch_unwind};

use packd_contracts::{Reason, Verdict};
use packd_sinks::Reject;
use packd_sources::{Input, RawRecord, RecordBlock, SourceError};
use packd_stages::{Measured, TokenLength, Unmeasured, ValidSample, Validation, Validator};
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

use super::read::ReadBlock;
use crate::error::Error;
use crate::state::previous::Previous;
use crate::state::rows::Row;
use crate::state::stats::Stats;
use crate::state::unit::Details;

/// A block whose records were judged.
pub(crate) struct ValidatedBlock {
    block: RecordBlock,
    part: usize,
    seekable: bool,
    records: Vec<Judged>,
}

struct Judged {
    record: RawRecord,
    hash: u128,
    validation: Validation,
    /// Measurements of an earlier run.
    known: Option<Measured>,
}

/// A block whose samples were measured.
pub(crate) struct MeasuredBlock {
    pub(crate) block: RecordBlock,
    pub(crate) part: usize,
    pub(crate) seekable: bool,
    pub(crate) rows: Vec<Row>,
    pub(crate) details: Vec<Details>,
    pub(crate) rejects: Vec<Reject>,
    pub(crate) stats: Stats,
}

/// Judges every record of a block.
///
/// # Errors
/// The system cannot read images.
pub(crate) fn validate(
    read: ReadBlock,
    validator: &Validator,
    previous: Option<&Previous>,
) -> Result<ValidatedBlock, Error> {
    let ReadBlock { block, part, seekable } = read;
    let judge = |record: &RawRecord| {
        let bytes = block.bytes_of(record);
        let hash = xxh3_128(bytes);
        let validation = validate_one(validator, bytes, block.source)?;
        let stamp = || validation.outcome.as_ref().ok().map(|valid| valid.image_stamp(valid.sizes.len()));
        let known = previous.and_then(|previous| previous.get(hash, stamp));
        Ok(Judged { record: *record, hash, validation, known })
    };
    let records = block.records.par_iter().map(judge).collect::<Result<_, Error>>()?;
    Ok(ValidatedBlock { block, part, seekable, records })
}

/// A hostile image may find a fault in a decoder: that is a verdict on its record, not the end of the run.
fn validate_one(validator: &Validator, record: &[u8], source: usize) -> Result<Validation, SourceError> {
    let judged = catch_unwind(AssertUnwindSafe(|| validator.validate(record, source)));
    judged.unwrap_or_else(|_| {
        let verdict = Verdict::new(Reason::ImageUnreadable, "the decoder failed on the record's images");
        Ok(Validation { id: None, unknown_keys: Vec::new(), outcome: Err(verdict) })
    })
}

/// Measures every sample of a block. `line_of` gives the line in the input for messages, from the input's
/// number, the record's offset and its line in the part that is read.
///
/// # Errors
/// [`Error::Stopped`] with `fail_fast` or `overlong: error`.
pub(crate) fn measure(
    validated: ValidatedBlock,
    token_length: &TokenLength,
    inputs: &[Input],
    line_of: impl Fn(usize, u64, u64) -> u64,
    fail_fast: bool,
) -> Result<MeasuredBlock, Error> {
    let ValidatedBlock { block, part, seekable, records } = validated;
    let input = &inputs[block.source].name;
    let mut measured = MeasuredBlock {
        rows: Vec::with_capacity(records.len()),
        details: Vec::with_capacity(records.len()),
        rejects: Vec::new(),
        stats: Stats { blank_lines: block.blank_lines, ..Stats::default() },
        part,
        seekable,
        block,
    };
    for unreadable in std::mem::take(&mut measured.block.unreadable) {
        measured.stats.broken_inputs += u64::from(unreadable.verdict.reason == Reason::JsonSyntax);
        measured.reject(input, unreadable.line, unreadable.offset, None, unreadable.verdict);
    }
    for judged in records {
        let Judged { record, hash, validation, known } = judged;
        for key in validation.unknown_keys {
            measured.stats.count_unknown_key(&key, 1);
        }
        let stopped = |verdict| Error::Stopped {
            input: input.clone(),
            line: line_of(measured.block.source, record.offset, record.line),
            verdict,
        };
        let result = validation.outcome.map_err(Unmeasured::Rejected).and_then(|valid| {
            let lengths = token_length.measure_known(&valid, known)?;
            Ok((valid, lengths))
        });
        match result {
            Ok((valid, lengths)) => {
                measured.accept(&record, hash, validation.id, &valid, &lengths, known.is_some())
            }
            Err(Unmeasured::Rejected(verdict)) => {
                measured.reject(input, record.line, record.offset, validation.id, verdict);
            }
            Err(Unmeasured::Stop(verdict)) => return Err(stopped(verdict)),
        }
    }
    measured.rejects.sort_by_key(|reject| reject.byte_offset);
    match measured.rejects.first() {
        Some(first) if fail_fast => {
            let verdict = Verdict::new(first.reason, first.detail.clone());
            let line = line_of(measured.block.source, first.byte_offset, first.line);
            Err(Error::Stopped { input: input.clone(), line, verdict })
        }
        _ => Ok(measured),
    }
}

impl MeasuredBlock {
    fn reject(&mut self, input: &str, line: u64, byte_offset: u64, id: Option<String>, verdict: Verdict) {
        self.stats.read += 1;
        *self.stats.rejected.entry(verdict.reason).or_default() += 1;
        let Verdict { reason, detail } = verdict;
        self.rejects.push(Reject { source: input.to_owned(), line, byte_offset, id, reason, detail });
    }

    fn accept(
        &mut self,
        record: &RawRecord,
        record_hash: u128,
        id: Option<String>,
        valid: &ValidSample,
        lengths: &Measured,
        reused: bool,
    ) {
        let item = &lengths.item;
        self.stats.read += 1;
        self.stats.accepted += 1;
        self.stats.tokens += u64::from(item.length);
        self.stats.text_tokens += u64::from(lengths.text_tokens);
        self.stats.image_tokens += u64::from(lengths.image_tokens);
        self.stats.images += u64::from(item.images);
        self.stats.patches += u64::from(item.patches);
        self.stats.record_bytes += record.len as u64;
        self.stats.image_blocks += u64::from(item.stored);
        self.stats.truncated += u64::from(lengths.rounds_dropped > 0);
        self.stats.exif_transposed += u64::from(valid.exif_transposed);
        self.stats.reused += u64::from(reused);
        self.rows.push(Row {
            length: item.length,
            images: item.images as u16,
            rounds: lengths.rounds,
            patches: item.patches,
            stored: item.stored,
            source: self.block.source as u16,
            offset: record.offset,
            len: record.len as u32,
            line: u32::try_from(record.line).unwrap_or(u32::MAX),
            // Rounds are dropped from the end, and their images with them.
            image_stamp: valid.image_stamp(item.images as usize),
        });
        self.details.push(Details {
            id,
            text_tokens: lengths.text_tokens,
            image_tokens: lengths.image_tokens,
            rounds_dropped: lengths.rounds_dropped,
            record_hash,
        });
    }
}
