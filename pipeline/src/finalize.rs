//! The end of a run: tables, Energon metadata, the top-level dataset.yaml, checksums, the report.
//!
//! Everything is derived from what the ledger holds, so finalizing twice writes the same bytes.

use std::path::Path;
use std::time::Instant;

use packd_contracts::Reason;
use packd_sinks::{
    BinsWriter, Blend, Checksums, EnergonOptions, LengthRow, LengthsWriter, MetadatasetEntry, Reject,
    RejectsWriter, SampleType, ShardCommit, ShardIndex, SinkError, SqliteOptions, hash_file,
    write_energon_metadata, write_file, write_metadataset,
};

use crate::error::Error;
use crate::flow::pack::Packed;
use crate::flow::write::{WEBDATASET, commit_path};
use crate::job::Job;
use crate::progress::Phase;
use crate::report::{OutputReport, PackingReport, RejectExample, Report, Seconds, to_yaml};
use crate::state::ledger::{FinishedFile, Ledger};

/// Records from which on `max_reject_rate` is applied.
const RATE_APPLIES_FROM: u64 = 1000;

/// Writes everything that needs the whole run.
pub(crate) fn finalize(job: &Job, ledger: &Ledger, packed: Packed) -> Result<Report, Error> {
    let started = Instant::now();
    job.counters().enter(Phase::Finalize);
    let output = job.output.as_path();
    let examples = write_rejects(job, &packed)?;
    if packed.shards.is_empty() {
        return Err(Error::NothingAccepted {
            read: packed.stats.read,
            rejects: output.join("rejects.jsonl"),
        });
    }
    let mut checksums = Checksums::default();
    let written = write_bins(job, &packed, &mut checksums)?;
    write_lengths(job, &packed)?;
    let summary = write_metadata(job, &packed, &written)?;
    let entry = MetadatasetEntry {
        path: format!("./{WEBDATASET}"),
        train_weight: summary.train_samples,
        val_weight: summary.val_samples,
        subflavors: job.config.subflavors.clone(),
    };
    write_metadataset(&output.join("dataset.yaml"), &[entry], blend(job))?;
    for name in summary.files.iter().map(|file| format!("{WEBDATASET}/{file}")).chain(top_level()) {
        checksums.add(name.clone(), hash_file(&output.join(&name))?);
    }
    checksums.write(&output.join(Checksums::FILE_NAME))?;
    let report = report(job, &packed, &written, &summary, examples, started);
    write_report(output, &report)?;
    ledger.done(finished_files(output, &checksums)?)?;
    job.counters().enter(Phase::Done);
    Ok(report)
}

fn top_level() -> impl Iterator<Item = String> {
    ["bins.parquet", "dataset.yaml", "lengths.parquet", "rejects.jsonl"].into_iter().map(str::to_owned)
}

/// What the shards hold together.
struct Written {
    bytes: u64,
    parts: u64,
    oversized: Vec<String>,
}

fn read_commit(output: &Path, shard: &str) -> Result<ShardCommit, Error> {
    let path = commit_path(output, shard);
    let state = |message: String| Error::State { path: path.clone(), message };
    let text = std::fs::read(&path).map_err(|error| state(error.to_string()))?;
    serde_json::from_slice(&text).map_err(|error| state(error.to_string()))
}

fn write_rejects(job: &Job, packed: &Packed) -> Result<Vec<RejectExample>, Error> {
    let mut writer = RejectsWriter::create(&job.output.join("rejects.jsonl"))?;
    let mut examples: Vec<RejectExample> = Vec::new();
    let mut push = |reject: &Reject| {
        if !examples.iter().any(|example| example.reason == reject.reason) {
            let place = format!("{}:{}", reject.source, reject.line);
            examples.push(RejectExample { reason: reject.reason, place, detail: reject.detail.clone() });
        }
        writer.push(reject)
    };
    let place = |reject: &Reject| {
        let source = job.tools.inputs.iter().position(|input| input.name == reject.source);
        (source, reject.byte_offset)
    };
    let mut duplicates = packed.duplicates.iter().peekable();
    for unit in &*packed.units {
        for reject in unit.read_rejects(&job.output)? {
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

fn write_lengths(job: &Job, packed: &Packed) -> Result<(), Error> {
    let mut writer = LengthsWriter::create(&job.output.join("lengths.parquet"))?;
    let mut ordinal = 0;
    for unit in &*packed.units {
        for details in unit.read_details(&job.output)? {
            let row = packed.rows.get(ordinal)?;
            if packed.left_out.binary_search(&ordinal).is_err() {
                writer.push(&LengthRow {
                    ordinal,
                    source: &job.tools.inputs[usize::from(row.source)].name,
                    line: row.line.into(),
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

fn write_bins(job: &Job, packed: &Packed, checksums: &mut Checksums) -> Result<Written, Error> {
    let sources: Vec<&str> = job.tools.inputs.iter().map(|input| input.name.as_str()).collect();
    let mut writer = BinsWriter::create(&job.output.join("bins.parquet"))?;
    let mut written = Written { bytes: 0, parts: 0, oversized: Vec::new() };
    for shard in &packed.shards {
        let commit = read_commit(&job.output, shard)?;
        writer.push_shard(&commit, &sources)?;
        written.bytes += commit.index.size;
        written.parts += commit.index.parts();
        if commit.index.size > job.config.max_shard_size.0 {
            written.oversized.push(shard.clone());
        }
        let name = format!("{WEBDATASET}/{shard}");
        checksums.add(
            format!("{name}.idx"),
            format!("{:032x}", xxhash_rust::xxh3::xxh3_128(&commit.index.tar_idx())),
        );
        checksums.add(name, commit.index.checksum);
    }
    writer.finish()?;
    Ok(written)
}

fn write_metadata(
    job: &Job,
    packed: &Packed,
    written: &Written,
) -> Result<packd_sinks::EnergonSummary, Error> {
    let sample_type = match job.config.sample_class {
        packd_config::SampleClass::Crude => SampleType::Crude,
        packd_config::SampleClass::Packed => SampleType::Packed {
            module: job.config.sample_module.clone(),
            class: job.config.sample_class_name.clone(),
        },
    };
    let sqlite = (!job.config.no_sqlite)
        .then(|| SqliteOptions { scratch: std::env::temp_dir(), expected_parts: written.parts });
    let options =
        EnergonOptions { sample_type: Some(sample_type), val_fraction: job.config.val_fraction, sqlite };
    // Shard numbers have six digits and more only beyond a million: names sort as they were written.
    let mut names = packed.shards.clone();
    names.sort_unstable();
    let shards = names
        .iter()
        .map(|shard| read_commit(&job.output, shard).map(|commit| -> ShardIndex { commit.index }));
    write_energon_metadata(&job.output.join(WEBDATASET), shards, &options)
}

fn blend(job: &Job) -> Blend {
    match job.config.metadataset {
        packd_config::Metadataset::BlendEpochized => Blend::Epochized,
        packd_config::Metadataset::Blend => Blend::Weighted,
        packd_config::Metadataset::V1 => Blend::V1,
    }
}

fn report(
    job: &Job,
    packed: &Packed,
    written: &Written,
    summary: &packd_sinks::EnergonSummary,
    reject_examples: Vec<RejectExample>,
    finalizing_since: Instant,
) -> Report {
    let stats = packed.stats.clone();
    let judged = stats.read - stats.rejected.get(&Reason::OverLength).copied().unwrap_or(0);
    let rate = stats.rejected_as_bad() as f64 / judged.max(1) as f64;
    let total = job.started.elapsed().as_secs_f64();
    let finalize = finalizing_since.elapsed().as_secs_f64();
    let measure = (packed.measured_at - job.started).as_secs_f64() - job.tools.load_seconds;
    let load = job.tools.load_seconds;
    let packing = PackingReport::new(&packed.qualities, job.limits.seq_len);
    Report {
        // Behind a break nobody knows how many records are missing.
        too_many_rejects: stats.broken_inputs > 0
            || stats.read >= RATE_APPLIES_FROM && rate > job.config.max_reject_rate,
        warnings: warnings(job, packed, written, &packing),
        records: stats,
        packing,
        output: OutputReport {
            shards: packed.shards.len() as u64,
            bytes: written.bytes,
            train: summary.train_samples,
            val: summary.val_samples,
        },
        counter: serde_json::to_value(job.tools.counter.describe()).unwrap_or_default(),
        seconds: Seconds {
            load,
            measure,
            pack: packed.pack_seconds,
            write: (total - load - measure - packed.pack_seconds - finalize).max(0.0),
            finalize,
            total,
        },
        reject_examples,
        already_done: false,
        folder: Some(job.output.clone()),
        config: job.config.deciding(),
    }
}

fn warnings(job: &Job, packed: &Packed, written: &Written, packing: &PackingReport) -> Vec<String> {
    let mut warnings: Vec<String> = job.tools.counter.describe().notes.clone();
    let stats = &packed.stats;
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
    if !written.oversized.is_empty() {
        warnings.push(format!("shards over `max_shard_size`: {}", written.oversized.join(", ")));
    }
    if packing.fill < 0.95 {
        warnings.push(format!(
            "packs are only {:.1} % full: few samples, or long ones for this seq_len",
            100.0 * packing.fill
        ));
    }
    if packed.shards.len() > 10_000 {
        warnings.push(format!(
            "{} shards; Energon works best below 10,000: raise `max_shard_size`",
            packed.shards.len()
        ));
    }
    warnings
}

fn write_report(output: &Path, report: &Report) -> Result<(), Error> {
    let state = |message: String| Error::State { path: output.join(Report::NAME), message };
    let json = serde_json::to_vec_pretty(report).map_err(|error| state(error.to_string()))?;
    write_file(output.join(Report::NAME), &json)?;
    let yaml = to_yaml(&report.config)?;
    Ok(write_file(output.join("run/config.resolved.yaml"), yaml.as_bytes())?)
}

fn finished_files(output: &Path, checksums: &Checksums) -> Result<Vec<FinishedFile>, Error> {
    let file = |(name, checksum): (&str, &str)| {
        let path = output.join(name);
        let metadata = std::fs::metadata(&path).map_err(|source| SinkError::Read { path, source })?;
        Ok(FinishedFile { name: name.to_owned(), size: metadata.len(), checksum: checksum.to_owned() })
    };
    checksums.iter().map(file).collect()
}
