//! The end of a run: what a node says of its shards; and for all nodes the tables, the top-level
//! dataset.yaml, checksums, the report.
//!
//! Everything is derived from what the nodes committed, so finalizing twice writes the same bytes.

mod whole;

use std::collections::BTreeMap;
use std::time::Instant;

use packd_config::{Scope, Weight};
use packd_contracts::Reason;
use packd_sinks::{
    BinsWriter, Blend, Checksums, EnergonOptions, EnergonSummary, LengthRow, LengthsWriter, MetadatasetEntry,
    Reject, RejectsWriter, SampleType, ShardCommit, ShardIndex, SinkError, SqliteOptions, hash_file,
    write_energon_metadata, write_metadataset,
};
use packd_storage::Traffic;
use serde_json::Value;

use crate::error::Error;
use crate::flow::pack::Packed;
use crate::flow::write::commit_name;
use crate::job::Job;
use crate::output::Output;
use crate::progress::Phase;
use crate::report::{OutputReport, PackingReport, RejectExample, Report, Seconds, Stats, to_yaml};
use crate::state::commits::{Commit, WrittenNode};
use crate::state::ledger::FinishedFile;
use crate::state::node::Node;
use crate::state::unit::fetch_texts;
use whole::Whole;

/// Records from which on `max_reject_rate` is applied.
const RATE_APPLIES_FROM: u64 = 1000;

/// Writes Energon's files about a node's shards, and tells the others that the node is done.
pub(crate) fn finish_node(job: &Job, packed: Packed) -> Result<(), Error> {
    let started = Instant::now();
    let folder = job.node.webdataset();
    let mut written = WrittenNode {
        shards: packed.shards,
        files: Vec::new(),
        measurements: packed.measurements,
        train: 0,
        val: 0,
        sub_samples: [0; 2],
        qualities: packed.qualities,
        seconds: Seconds::default(),
        storage: Traffic::default(),
    };
    let mut parts = 0;
    // Of each shard, by name: packs and sub-samples.
    let mut counts = BTreeMap::new();
    for (shard, commit) in written.shards.iter().zip(read_commits(job, job.node, &written.shards)) {
        let commit = commit?;
        parts += commit.index.parts();
        let sub_samples: usize = commit.packs.iter().map(|pack| pack.sub_samples.len()).sum();
        counts.insert(shard.clone(), (commit.packs.len() as u64, sub_samples as u64));
        written.files.extend(super::flow::write::files_of(job, &commit.index));
    }
    if !written.shards.is_empty() {
        let summary = write_metadata(job, &written.shards, packed.first_shard, parts)?;
        (written.train, written.val) = (summary.train_samples, summary.val_samples);
        let mut packs_before = 0;
        for (packs, sub_samples) in counts.values() {
            // The val split is made of the last shards by name.
            written.sub_samples[usize::from(packs_before >= written.train)] += sub_samples;
            packs_before += packs;
        }
        let names: Vec<String> = summary.files.iter().map(|file| format!("{folder}/{file}")).collect();
        job.output.publish_all(&names)?;
        for name in names {
            written.files.push(finished_file(&job.output, name)?);
        }
    }
    let total = job.started.elapsed().as_secs_f64();
    let (load, pack, finalize) =
        (job.tools.load_seconds(), packed.pack_seconds, started.elapsed().as_secs_f64());
    let measure = ((packed.measured_at - job.started).as_secs_f64() - load).max(0.0);
    let write = (total - load - measure - pack - finalize).max(0.0);
    written.storage = job.tools.stores.take_traffic();
    written.seconds = Seconds { load, measure, pack, write, finalize, total };
    written.write(&job.output, job.node)
}

/// Writes everything that needs all nodes.
pub(crate) fn finalize(job: &Job) -> Result<Report, Error> {
    let started = Instant::now();
    job.counters().enter(Phase::Finalize);
    let output = &job.output;
    let whole = Whole::read(job)?;
    fetch_texts(output, &whole.units)?;
    let examples = write_rejects(job, &whole)?;
    if whole.written.iter().all(|node| node.shards.is_empty()) {
        return Err(Error::NothingAccepted {
            read: whole.stats.read,
            rejects: output.shown("rejects.jsonl"),
        });
    }
    let totals = write_bins(job, &whole)?;
    write_lengths(job, &whole)?;
    let with_shards = job.nodes().zip(&whole.written).filter(|(_, node)| !node.shards.is_empty());
    let entries: Vec<MetadatasetEntry> = with_shards
        .map(|(node, written)| {
            let path = format!("./{}", node.webdataset());
            entry(path, written, job.config.weight, job.config.subflavors.clone())
        })
        .collect();
    write_metadataset(&output.path("dataset.yaml"), &entries, blend(job.config.metadataset))?;
    let mut files: Vec<FinishedFile> =
        whole.written.iter().flat_map(|node| node.files.iter().cloned()).collect();
    output.publish_all(&TOP_LEVEL.map(str::to_owned))?;
    for name in TOP_LEVEL {
        files.push(finished_file(output, name.to_owned())?);
    }
    let mut checksums = Checksums::default();
    files.iter().for_each(|file| checksums.add(file.name.clone(), file.checksum.clone()));
    checksums.write(&output.path(Checksums::FILE_NAME))?;
    output.publish(Checksums::FILE_NAME)?;
    let report = report(job, &whole, &totals, examples, started);
    write_report(output, &report)?;
    write_done(output, &files)?;
    job.counters().enter(Phase::Done);
    Ok(report)
}

/// The files at the top of every output.
const TOP_LEVEL: [&str; 4] = ["bins.parquet", "dataset.yaml", "lengths.parquet", "rejects.jsonl"];
/// Names every file of a finished output.
const DONE: &str = "run/done.json";

fn write_done(output: &Output, files: &[FinishedFile]) -> Result<(), Error> {
    let text = serde_json::to_vec(files)
        .map_err(|error| Error::State { path: output.shown(DONE), message: error.to_string() })?;
    output.write(DONE, &text)
}

/// The files of a finished output; `None` while it is not finished.
pub(crate) fn read_done(output: &Output) -> Result<Option<Vec<FinishedFile>>, Error> {
    let state = |message: String| Error::State { path: output.shown(DONE), message };
    let text = output.read(DONE)?;
    text.map(|text| serde_json::from_slice(&text).map_err(|error| state(error.to_string()))).transpose()
}

fn finished_file(output: &Output, name: String) -> Result<FinishedFile, Error> {
    let path = output.path(&name);
    let checksum = hash_file(&path)?;
    let metadata = std::fs::metadata(&path).map_err(|source| SinkError::Read { path, source })?;
    Ok(FinishedFile { name, size: metadata.len(), checksum })
}

/// What the shards hold together.
struct Totals {
    shards: u64,
    bytes: u64,
    val: u64,
    oversized: Vec<String>,
}

/// What is recorded of a node's shards, in their order. Only some of it is in memory at a time.
fn read_commits<'a>(
    job: &'a Job,
    node: Node,
    shards: &'a [String],
) -> impl Iterator<Item = Result<ShardCommit, Error>> + 'a {
    // A record has some hundred bytes for each sub-sample, tens of megabytes for a shard of short texts. Asking a
    // store for a few at once hides its latency.
    let at_once = if job.output.remote().is_some() { 4 } else { 1 };
    let parse = move |(name, text): (String, Result<Option<Vec<u8>>, Error>)| {
        let state = |message: String| Error::State { path: job.output.shown(&name), message };
        let text = text?.ok_or_else(|| state("no such file".into()))?;
        serde_json::from_slice(&text).map_err(|error| state(error.to_string()))
    };
    let read = move |shards: &[String]| {
        let names: Vec<String> = shards.iter().map(|shard| commit_name(node, shard)).collect();
        let texts: Vec<_> = match job.output.read_many(&names) {
            Ok(texts) => texts.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error)],
        };
        names.into_iter().zip(texts)
    };
    shards.chunks(at_once).flat_map(read).map(parse)
}

fn write_rejects(job: &Job, whole: &Whole) -> Result<Vec<RejectExample>, Error> {
    let mut writer = RejectsWriter::create(&job.output.path("rejects.jsonl"))?;
    let mut examples: Vec<RejectExample> = Vec::new();
    let mut push = |reject: &Reject| {
        if !examples.iter().any(|example| example.reason == reject.reason) {
            let place = format!("{}:{}", reject.source, reject.line);
            examples.push(RejectExample { reason: reject.reason, place, detail: reject.detail.clone() });
        }
        writer.push(reject)
    };
    let source = |reject: &Reject| job.tools.inputs.iter().position(|input| input.name == reject.source);
    let place = |reject: &Reject| (source(reject), reject.byte_offset);
    let mut duplicates = whole.left_out.rejects.iter().peekable();
    for unit in &whole.units {
        for mut reject in unit.read_rejects(&job.output)? {
            reject.line += whole.lines_before(unit.node, source(&reject).unwrap_or(0));
            while let Some(earlier) = duplicates.next_if(|duplicate| place(duplicate) < place(&reject)) {
                push(earlier)?;
            }
            push(&reject)?;
        }
    }
    duplicates.try_for_each(&mut push)?;
    writer.finish()?;
    Ok(examples)
}

fn write_lengths(job: &Job, whole: &Whole) -> Result<(), Error> {
    let mut writer = LengthsWriter::create(&job.output.path("lengths.parquet"))?;
    let mut ordinal = 0;
    for unit in &whole.units {
        for details in unit.read_details(&job.output)? {
            let row = whole.rows.get(ordinal)?;
            let source = usize::from(row.source);
            if whole.left_out.ordinals.binary_search(&ordinal).is_err() {
                writer.push(&LengthRow {
                    ordinal,
                    source: &job.tools.inputs[source].name,
                    line: u64::from(row.line) + whole.lines_before(unit.node, source),
                    byte_offset: row.offset,
                    id: details.id.as_deref(),
                    length: row.length,
                    text_tokens: details.text_tokens,
                    image_tokens: details.image_tokens,
                    images: row.images.into(),
                    patches: row.patches,
                    stored_bytes: 512 * u64::from(row.stored),
                    rounds_dropped: details.rounds_dropped,
                })?;
            }
            ordinal += 1;
        }
    }
    writer.finish()?;
    Ok(())
}

fn write_bins(job: &Job, whole: &Whole) -> Result<Totals, Error> {
    let sources: Vec<&str> = job.tools.inputs.iter().map(|input| input.name.as_str()).collect();
    let mut writer = BinsWriter::create(&job.output.path("bins.parquet"))?;
    let mut totals = Totals { shards: 0, bytes: 0, val: 0, oversized: Vec::new() };
    // A node that packed for itself counted its packs and samples from 0.
    let own = job.config.scope != Scope::Global;
    let mut packs_before = 0;
    for (node, written) in job.nodes().zip(&whole.written) {
        let (first_pack, first_ordinal) =
            if own { (packs_before, whole.first_ordinal(node)) } else { (0, 0) };
        totals.val += written.val;
        packs_before += written.qualities.iter().map(|quality| quality.bins).sum::<u64>();
        for (shard, commit) in written.shards.iter().zip(read_commits(job, node, &written.shards)) {
            let mut commit = commit?;
            for pack in &mut commit.packs {
                pack.pack += first_pack;
                for sub in &mut pack.sub_samples {
                    sub.ordinal += first_ordinal;
                    sub.line += whole.lines_before(whole.node_of(sub.ordinal), sub.source);
                }
            }
            writer.push_shard(&commit, &sources)?;
            totals.shards += 1;
            totals.bytes += commit.index.size;
            if commit.index.size > job.config.max_shard_size.0 {
                totals.oversized.push(shard.clone());
            }
        }
    }
    writer.finish()?;
    Ok(totals)
}

fn write_metadata(
    job: &Job,
    shards: &[String],
    first_shard: u64,
    parts: u64,
) -> Result<EnergonSummary, Error> {
    let sample_type = match job.config.sample_class {
        packd_config::SampleClass::Crude => SampleType::Crude,
        packd_config::SampleClass::Packed => SampleType::Packed {
            module: job.config.sample_module.clone(),
            class: job.config.sample_class_name.clone(),
        },
    };
    let sqlite = (!job.config.no_sqlite)
        .then(|| SqliteOptions { scratch: std::env::temp_dir(), expected_parts: parts });
    let options = EnergonOptions {
        sample_type: Some(sample_type),
        val_fraction: val_share(job, first_shard, shards.len()),
        sqlite,
    };
    // Shard numbers have six digits and more only beyond a million: names sort as they were written.
    let mut names = shards.to_vec();
    names.sort_unstable();
    let shards =
        read_commits(job, job.node, &names).map(|commit| commit.map(|commit| -> ShardIndex { commit.index }));
    write_energon_metadata(&job.output.path(&job.node.webdataset()), shards, &options)
}

/// The share of a node's shards for the `val` split: so many that all nodes together have what was asked for,
/// even where that is less than a shard a node.
fn val_share(job: &Job, first_shard: u64, shards: usize) -> f64 {
    let fraction = job.config.val_fraction;
    if job.config.nodes == 1 || fraction == 0.0 {
        return fraction;
    }
    let before = (first_shard as f64 * fraction).round();
    let with = ((first_shard + shards as u64) as f64 * fraction).round();
    // A node's own `train` split must not be empty.
    (with - before).min(shards as f64 - 1.0) / shards as f64
}

/// What a Metadataset says of a node.
pub(crate) fn entry(
    path: String,
    written: &WrittenNode,
    weight: Weight,
    subflavors: BTreeMap<String, Value>,
) -> MetadatasetEntry {
    let [train_weight, val_weight] = match weight {
        Weight::Packs => [written.train, written.val],
        Weight::Input => written.sub_samples,
    };
    MetadatasetEntry { path, train_weight, val_weight, subflavors }
}

pub(crate) fn blend(form: packd_config::Metadataset) -> Blend {
    match form {
        packd_config::Metadataset::BlendEpochized => Blend::Epochized,
        packd_config::Metadataset::Blend => Blend::Weighted,
        packd_config::Metadataset::V1 => Blend::V1,
    }
}

fn report(
    job: &Job,
    whole: &Whole,
    totals: &Totals,
    reject_examples: Vec<RejectExample>,
    finalizing_since: Instant,
) -> Report {
    let stats = whole.stats.clone();
    let judged = stats.read - stats.rejected.get(&Reason::OverLength).copied().unwrap_or(0);
    let rate = stats.rejected_as_bad() as f64 / judged.max(1) as f64;
    let packing = PackingReport::new(whole.qualities(job), job.limits.seq_len);
    // The slowest node is the one that was waited for.
    let slowest = whole.written.iter().map(|node| node.seconds).max_by(|a, b| a.total.total_cmp(&b.total));
    let finalize = finalizing_since.elapsed().as_secs_f64();
    let seconds = slowest.unwrap_or_default();
    Report {
        // Behind a break nobody knows how many records are missing.
        too_many_rejects: stats.broken_inputs > 0
            || stats.read >= RATE_APPLIES_FROM && rate > job.config.max_reject_rate,
        warnings: warnings(job, &stats, totals, &packing),
        records: stats,
        packing,
        output: OutputReport {
            nodes: job.config.nodes.into(),
            shards: totals.shards,
            bytes: totals.bytes,
            train: whole.written.iter().map(|node| node.train).sum(),
            val: whole.written.iter().map(|node| node.val).sum(),
        },
        counter: serde_json::to_value(job.tools.counter.describe()).unwrap_or_default(),
        seconds: Seconds {
            finalize: seconds.finalize + finalize,
            total: seconds.total + finalize,
            ..seconds
        },
        reject_examples,
        storage: whole.written.iter().fold(job.tools.stores.take_traffic(), |sum, node| sum + node.storage),
        already_done: false,
        folder: Some(job.output.name().to_owned()),
        config: job.config.deciding(),
    }
}

fn warnings(job: &Job, stats: &Stats, totals: &Totals, packing: &PackingReport) -> Vec<String> {
    let mut warnings: Vec<String> = job.tools.counter.describe().notes.clone();
    if stats.broken_inputs > 0 {
        warnings.push(
            "an input breaks off: records behind the break are missing, see `json-syntax` in the rejects"
                .into(),
        );
    }
    if !stats.unknown_keys.is_empty() {
        let keys: Vec<String> =
            stats.unknown_keys.iter().map(|(key, count)| format!("`{key}` ({count})")).collect();
        warnings.push(format!("keys of the records that nothing reads: {}", keys.join(", ")));
    }
    if stats.exif_transposed > 0 {
        warnings.push(format!(
            "{} images are stored turned (EXIF orientation): counted as stored, as the trainer loads them; a loader \
             that turns them sees the same number of tokens in a transposed grid",
            stats.exif_transposed
        ));
    }
    if job.config.val_fraction > 0.0 && totals.val == 0 {
        warnings.push("no node has a shard to spare for the val split: make more, smaller shards".into());
    }
    if !totals.oversized.is_empty() {
        warnings.push(format!("shards over `max_shard_size`: {}", totals.oversized.join(", ")));
    }
    if packing.fill < 0.95 {
        warnings.push(format!(
            "packs are only {:.1} % full: few samples, or long ones for this seq_len",
            100.0 * packing.fill
        ));
    }
    if totals.shards > 10_000 {
        warnings.push(format!(
            "{} shards; Energon works best below 10,000: raise `max_shard_size`",
            totals.shards
        ));
    }
    warnings
}

fn write_report(output: &Output, report: &Report) -> Result<(), Error> {
    let state = |message: String| Error::State { path: output.shown(Report::NAME), message };
    let json = serde_json::to_vec_pretty(report).map_err(|error| state(error.to_string()))?;
    output.write(Report::NAME, &json)?;
    output.write("run/config.resolved.yaml", to_yaml(&report.config)?.as_bytes())
}
