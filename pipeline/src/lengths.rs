//! `packd lengths`: what each `seq_len` would give, before anything is written.

use std::sync::Arc;

use packd_config::Config;
use packd_sources::Part;
use packd_stages::TokenLength;
use packd_stages::bin_pack::{Algorithm, Item, Limits, pack};
use serde::Serialize;
use tokio::sync::mpsc::channel;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::flow::{bridge, join_all, measure, read};
use crate::job::{Tools, stores};
use crate::progress::Progress;
use crate::report::Stats;
use crate::state::ledger::Position;

/// The lengths that are tried where the caller names none.
const USUAL_SEQ_LENS: [u32; 7] = [2048, 4096, 8192, 16_384, 32_768, 65_536, 131_072];

/// The distribution of token lengths of some inputs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LengthsReport {
    /// What was read and what became of it; no sample is rejected for its length here.
    pub records: Stats,
    /// The shortest length, the 10th, 50th, 90th and 99th percentile, the longest.
    pub quantiles: [u32; 6],
    /// Samples by length: `[least length of the band, samples]`; bands double.
    pub histogram: Vec<(u32, u64)>,
    /// What each `seq_len` would give.
    pub choices: Vec<SeqLenChoice>,
    /// How samples were counted.
    pub counter: serde_json::Value,
}

/// What one `seq_len` would give.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SeqLenChoice {
    /// Tokens of one pack.
    pub seq_len: u32,
    /// Packs.
    pub bins: u64,
    /// tokens / (bins · seq_len).
    pub fill: f64,
    /// Samples in a pack, on average.
    pub samples_per_bin: f64,
    /// Samples that are longer.
    pub too_long: u64,
    /// Their tokens.
    pub too_long_tokens: u64,
}

/// Measures the inputs and packs their lengths for each `seq_len`: those given, or the usual ones up to
/// the first that holds every sample.
///
/// # Errors
/// The configuration or an input cannot be used.
pub async fn lengths(
    config: Config,
    seq_lens: Vec<u32>,
    progress: Arc<Progress>,
) -> Result<LengthsReport, Error> {
    if config.input.is_empty() {
        return Err(Error::NotSet { key: "input", help: "name the JSONL files to measure" });
    }
    let tools = Tools::new(&config, stores(&config)?)?;
    tools.load()?;
    Progress::add(&progress.input_bytes, tools.inputs.iter().map(|input| input.size).sum());
    let (items, records) = measure_all(&config, &tools, &progress).await?;
    let limits = Limits {
        seq_len: 1,
        max_samples: config.max_samples,
        max_images: config.max_images,
        max_patches: config.max_patches,
        pad_to_multiple: config.pad_to_multiple,
    };
    let pool = Arc::clone(&tools.pool);
    let counter = serde_json::to_value(tools.counter.describe()).unwrap_or_default();
    bridge::on_pool(pool, "lengths", move || {
        let mut sorted: Vec<u32> = items.iter().map(|item| item.length).collect();
        sorted.sort_unstable();
        let at = |share: f64| {
            sorted.get(((sorted.len() as f64 - 1.0) * share).round() as usize).copied().unwrap_or(0)
        };
        let longest = sorted.last().copied().unwrap_or(0);
        let tried = if seq_lens.is_empty() { usual(longest) } else { seq_lens };
        let choices =
            tried.into_iter().map(|seq_len| choice(&items, Limits { seq_len, ..limits }, config.seed));
        Ok(LengthsReport {
            records,
            quantiles: [at(0.0), at(0.1), at(0.5), at(0.9), at(0.99), at(1.0)],
            histogram: histogram(&sorted),
            choices: choices.collect::<Result<_, Error>>()?,
            counter,
        })
    })
    .await?
}

fn usual(longest: u32) -> Vec<u32> {
    let enough =
        USUAL_SEQ_LENS.iter().position(|seq_len| *seq_len >= longest).unwrap_or(USUAL_SEQ_LENS.len() - 1);
    USUAL_SEQ_LENS[..=enough.max(2)].to_vec()
}

async fn measure_all(
    config: &Config,
    tools: &Tools,
    progress: &Arc<Progress>,
) -> Result<(Vec<Item>, Stats), Error> {
    let (to_validate, from_read) = channel(4);
    let (to_measure, from_validate) = channel(4);
    let (to_collect, mut from_measure) = channel(4);
    let cancel = CancellationToken::new();
    let mut stages = JoinSet::new();
    let start = Position::START;
    let max_record = usize::try_from(config.max_line_bytes.0).unwrap_or(usize::MAX);
    let inputs = Arc::clone(&tools.inputs);
    let parts = (0..inputs.len()).map(Part::whole).collect();
    let progress_of_reading = Arc::clone(progress);
    stages.spawn(read::read(
        inputs,
        parts,
        start,
        max_record,
        to_validate,
        progress_of_reading,
        cancel.clone(),
    ));
    let validator = Arc::clone(&tools.validator);
    let validate = move |block| measure::validate(block, &validator, None);
    stages.spawn(bridge::ordered_map(
        Arc::clone(&tools.pool),
        "validate",
        from_read,
        to_measure,
        cancel.clone(),
        validate,
    ));
    let token_length = TokenLength::new(config, Arc::clone(&tools.counter), None);
    let (inputs, fail_fast) = (Arc::clone(&tools.inputs), config.fail_fast);
    let measure = move |block| measure::measure(block, &token_length, &inputs, |_, _, line| line, fail_fast);
    let pool = Arc::clone(&tools.pool);
    stages.spawn(bridge::ordered_map(
        pool,
        "token-length",
        from_validate,
        to_collect,
        cancel.clone(),
        measure,
    ));
    let (mut items, mut stats) = (Vec::new(), Stats::default());
    while let Some(block) = from_measure.recv().await {
        Progress::add(&progress.read, block.stats.read);
        Progress::add(&progress.rejected, block.stats.rejected_total());
        stats.add(&block.stats);
        items.extend(block.rows.iter().map(|row| row.item()));
    }
    join_all(stages, &cancel).await?;
    Ok((items, stats))
}

fn choice(items: &[Item], limits: Limits, seed: u64) -> Result<SeqLenChoice, Error> {
    let (fit, over): (Vec<Item>, Vec<Item>) = items.iter().partition(|item| limits.check(item).is_ok());
    let packing = pack(&fit, &limits, Algorithm::BestFitDecreasing, seed)?;
    let quality = packing.quality();
    Ok(SeqLenChoice {
        seq_len: limits.seq_len,
        bins: quality.bins,
        fill: quality.fill,
        samples_per_bin: quality.samples_per_bin.mean,
        too_long: over.len() as u64,
        too_long_tokens: over.iter().map(|item| u64::from(item.length)).sum(),
    })
}

fn histogram(sorted: &[u32]) -> Vec<(u32, u64)> {
    let mut bands: Vec<(u32, u64)> = Vec::new();
    for length in sorted {
        let from = 1 << length.max(&1).ilog2();
        match bands.last_mut() {
            Some((last, count)) if *last == from => *count += 1,
            _ => bands.push((from, 1)),
        }
    }
    bands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bands_double_and_usual_lengths_end_with_one_that_holds_all() {
        assert_eq!(histogram(&[0, 1, 2, 3, 4, 7, 8]), [(1, 2), (2, 2), (4, 2), (8, 1)]);
        assert_eq!(usual(100), [2048, 4096, 8192]);
        assert_eq!(usual(9000), [2048, 4096, 8192, 16_384]);
        assert_eq!(usual(u32::MAX).len(), USUAL_SEQ_LENS.len());
    }
}
