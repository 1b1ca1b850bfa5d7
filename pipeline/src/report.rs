//! What a run says of itself when it is done.

use std::path::{Path, PathBuf};

use packd_contracts::Reason;
use packd_stages::bin_pack::Quality;
use packd_storage::Traffic;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Error;
use crate::output::Output;
pub use crate::state::stats::Stats;

/// The report of a finished run; also `run/report.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What was read and what became of it.
    pub records: Stats,
    /// How good the packing is.
    pub packing: PackingReport,
    /// What was written.
    pub output: OutputReport,
    /// How samples were counted: contract, tokenizer, image processor.
    pub counter: Value,
    /// Seconds of each phase of this process; a resumed run counts only what was left to do.
    pub seconds: Seconds,
    /// What was exchanged with object stores, by the processes that finished each node and the whole.
    #[serde(default)]
    pub storage: Traffic,
    /// The first rejects of each reason.
    pub reject_examples: Vec<RejectExample>,
    /// Things worth knowing, one sentence each.
    pub warnings: Vec<String>,
    /// Whether more records were rejected than `max_reject_rate` allows.
    pub too_many_rejects: bool,
    /// The output was complete before this process started.
    #[serde(skip)]
    pub already_done: bool,
    /// The output folder.
    #[serde(skip)]
    pub folder: Option<PathBuf>,
    /// The options that decided the output.
    pub config: Map<String, Value>,
}

/// The quality of the packing, over all windows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PackingReport {
    /// Tokens of one pack.
    pub seq_len: u64,
    /// Packs.
    pub bins: u64,
    /// No packing has fewer: ⌈tokens / seq_len⌉, summed over the windows.
    pub lower_bound: u64,
    /// A stronger bound, see [`Quality::strong_lower_bound`].
    pub strong_lower_bound: u64,
    /// Packs that only image and patch limits cost.
    pub extra_bins: u64,
    /// tokens / (bins · seq_len).
    pub fill: f64,
    /// Least, mean and most sub-samples of a pack.
    pub samples_per_bin: [f64; 3],
    /// Packs by fill: `[from per mille, packs]`.
    pub fill_histogram: Vec<[u64; 2]>,
    /// Tokens of padding that are left.
    pub padding: u64,
    /// Tokens of padding that batches padded to their longest sample would have.
    pub padding_to_longest: u64,
}

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputReport {
    /// Nodes that shared the job.
    pub nodes: u64,
    /// Shards.
    pub shards: u64,
    /// Bytes of all shards.
    pub bytes: u64,
    /// Packed samples of the `train` split.
    pub train: u64,
    /// Packed samples of the `val` split.
    pub val: u64,
}

/// Where the time went. Loading, measuring and writing overlap with nothing of the same name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Loading the tokenizer.
    pub load: f64,
    /// Reading, validating, counting.
    pub measure: f64,
    /// Packing.
    pub pack: f64,
    /// Writing shards.
    pub write: f64,
    /// Index, tables, report.
    pub finalize: f64,
    /// All of it.
    pub total: f64,
}

/// One rejected record of each reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RejectExample {
    /// The reason code.
    pub reason: Reason,
    /// `input:line`.
    pub place: String,
    /// What was found.
    pub detail: String,
}

impl Report {
    /// The report's path below an output folder.
    pub const NAME: &str = "run/report.json";

    /// Reads the report of a finished run.
    ///
    /// # Errors
    /// The folder holds no finished run.
    pub fn read(output: &Path) -> Result<Self, Error> {
        Self::of(&Output::open_existing(output)?)
    }

    pub(crate) fn of(output: &Output) -> Result<Self, Error> {
        let state = |message: String| Error::State { path: output.shown(Self::NAME), message };
        let text = output
            .read(Self::NAME)?
            .ok_or_else(|| state("no such file: no run was finished there".into()))?;
        let report: Self = serde_json::from_slice(&text).map_err(|error| state(error.to_string()))?;
        Ok(Self { folder: Some(output.name().to_owned()), ..report })
    }
}

/// A configuration as YAML, as `packd config resolved` prints it.
///
/// # Errors
/// [`Error::Internal`]; plain values can always be written.
pub fn to_yaml(value: &impl Serialize) -> Result<String, Error> {
    serde_saphyr::to_string(value)
        .map_err(|error| Error::Internal { stage: "yaml", message: error.to_string() })
}

impl PackingReport {
    pub(crate) fn new(parts: Vec<&Quality>, seq_len: u32) -> Self {
        let sum = |of: fn(&Quality) -> u64| parts.iter().map(|part| of(part)).sum::<u64>();
        let (bins, tokens, samples) = (sum(|q| q.bins), sum(|q| q.tokens), sum(|q| q.samples));
        let mut histogram = std::collections::BTreeMap::new();
        for band in parts.iter().flat_map(|part| &part.fill_histogram) {
            *histogram.entry(u64::from(band.from_per_mille)).or_insert(0) += band.bins;
        }
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        Self {
            seq_len: seq_len.into(),
            bins,
            lower_bound: sum(|q| q.lower_bound),
            strong_lower_bound: sum(|q| q.strong_lower_bound),
            extra_bins: sum(|q| q.extra_bins),
            fill: ratio(tokens as f64, bins as f64 * f64::from(seq_len)),
            samples_per_bin: [
                parts.iter().map(|q| q.samples_per_bin.min).min().unwrap_or(0) as f64,
                ratio(samples as f64, bins as f64),
                parts.iter().map(|q| q.samples_per_bin.max).max().unwrap_or(0) as f64,
            ],
            fill_histogram: histogram.into_iter().map(|(from, bins)| [from, bins]).collect(),
            padding: sum(|q| q.padding),
            padding_to_longest: sum(|q| q.padding_to_longest),
        }
    }
}
