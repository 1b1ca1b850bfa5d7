//! Stage 4: writes shards, several at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use packd_config::ImageChanged;
use packd_sinks::{
    PackedSample, SampleClass, ShardCommit, ShardIndex, ShardOptions, ShardWriter, SinkError, SubSample,
    pack_key,
};
use packd_sources::{FetchRequest, LoadedImages, RecordFetcher, SpoolReader};
use rayon::prelude::*;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::bridge::internal;
use super::pack::ShardPlan;
use crate::error::Error;
use crate::job::Job;
use crate::progress::{Phase, Progress};
use crate::state::ledger::{FinishedFile, FinishedShard, Ledger, MeasuredUnit};
use crate::state::node::Node;
use crate::state::rows::Row;

/// Writes every shard that is not finished yet.
pub(crate) async fn write(
    job: Arc<Job>,
    ledger: Arc<Ledger>,
    finished: BTreeMap<String, FinishedShard>,
    mut input: Receiver<ShardPlan>,
    cancel: CancellationToken,
) -> Result<(), Error> {
    job.output.create_folder(&job.node.commits())?;
    let at_once = shards_at_once(&job);
    let mut writers = JoinSet::new();
    let result = loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => break Err(Error::Interrupted),
            Some(done) = writers.join_next(), if !writers.is_empty() => match finish_one(done) {
                Ok(()) => {}
                failed => break failed,
            },
            plan = input.recv(), if writers.len() < at_once => match plan {
                Some(plan) => {
                    let (job, ledger) = (Arc::clone(&job), Arc::clone(&ledger));
                    let finished = finished.get(&plan.name).cloned();
                    writers.spawn_blocking(move || {
                        if is_finished(&job, finished.as_ref(), &plan)? {
                            Progress::add(&job.counters().packs_written, plan.packs.end - plan.packs.start);
                            Progress::add(&job.counters().shards_written, 1);
                            return Ok(());
                        }
                        job.counters().enter(Phase::Write);
                        write_shard(&job, &ledger, &plan)
                    });
                }
                None => break Ok(()),
            },
        }
    };
    if result.is_err() {
        // Writers look at the token themselves; none is left running when this returns.
        cancel.cancel();
    }
    let mut first = result;
    while let Some(done) = writers.join_next().await {
        first = first.and(finish_one(done));
    }
    first
}

/// Shards that are written at once; with an object store one is read for while another one is sent.
fn shards_at_once(job: &Job) -> usize {
    let waits = job.output.remote().is_some() || job.tools.images.is_remote();
    job.tools.pool.current_num_threads().max(if waits { 2 } else { 1 })
}

fn finish_one(done: Result<Result<(), Error>, tokio::task::JoinError>) -> Result<(), Error> {
    match done {
        Ok(result) => result,
        Err(error) if error.is_panic() => Err(internal("write", error.into_panic().as_ref())),
        Err(_) => Err(Error::Interrupted),
    }
}

/// Whether the ledger's word about a shard still holds on the disk.
fn is_finished(job: &Job, finished: Option<&FinishedShard>, plan: &ShardPlan) -> Result<bool, Error> {
    let Some(shard) = finished else { return Ok(false) };
    let whole = shard.measurements == plan.measurements && super::are_unchanged(job, &shard.files)?;
    if !whole {
        tracing::warn!(shard = plan.name, "a finished shard was changed or removed; writing it again");
    }
    Ok(whole)
}

/// The record of a finished shard, below the output.
pub(crate) fn commit_name(node: Node, shard: &str) -> String {
    format!("{}/{shard}.json", node.commits())
}

fn write_shard(job: &Job, ledger: &Ledger, plan: &ShardPlan) -> Result<(), Error> {
    // Only a node that has shards has a folder for them: Energon refuses an empty one.
    job.output.create_folder(&job.node.webdataset())?;
    let folder = job.output.path(&job.node.webdataset());
    let class = match job.config.sample_class {
        packd_config::SampleClass::Packed => SampleClass::Packed,
        packd_config::SampleClass::Crude => SampleClass::Crude,
    };
    let options = ShardOptions { class, passthrough: job.config.passthrough.clone() };
    job.output.fetch(plan.units.iter().filter_map(MeasuredUnit::spool))?;
    let spools = plan.units.iter().filter_map(|unit| Some(job.output.path(&unit.spool()?.name)));
    let spools = spools.map(|path| SpoolReader::open(&path)).collect::<Result<Vec<_>, _>>()?;
    let fetcher = RecordFetcher::new(job.tools.inputs.to_vec(), plan.seekable.to_vec(), spools);
    let mut writer = ShardWriter::create(&folder, &plan.name, options)?;
    let budget = job.config.read_budget.0 / (2 * shards_at_once(job) as u64);
    let mut packs = plan.packs.clone();
    let mut written = 0;
    while let Some(gathered) = gather(job, plan, &mut packs, budget.max(1))? {
        let packs = restore(job, &fetcher, gathered)?;
        let images = packs.iter().flat_map(|packed| &packed.sub_samples);
        let images = images.flat_map(|sub| sub.sample.images.iter().map(|image| (image, sub.source_index)));
        let loaded = job.tools.images.load(images);
        for mut packed in packs {
            if job.cancelled() {
                return Err(Error::Interrupted);
            }
            append(job, &mut writer, &mut packed, &loaded)?;
            let counters = job.counters();
            Progress::add(&counters.packs_written, 1);
            Progress::add(&counters.bytes_written, writer.bytes() - written);
            written = writer.bytes();
        }
    }
    let commit = writer.finish()?;
    record(job, ledger, plan.measurements, &commit)?;
    Progress::add(&job.counters().shards_written, 1);
    Ok(())
}

/// Appends a pack; with `image_changed: reject` without the samples whose images are not what was measured.
fn append(
    job: &Job,
    writer: &mut ShardWriter,
    packed: &mut PackedSample,
    loaded: &LoadedImages,
) -> Result<(), Error> {
    while !packed.sub_samples.is_empty() {
        match writer.append(packed, &job.tools.images, loaded) {
            Ok(()) => break,
            Err(error) if job.config.image_changed == ImageChanged::Fail => {
                return Err(with_line(job, packed, error).into());
            }
            Err(error) => {
                let error = with_line(job, packed, error);
                tracing::debug!("{error}");
                writer.leave_out(packed, error)?;
            }
        }
    }
    Ok(())
}

/// A pack's number, and the ordinal and row of each of its samples.
type GatheredPack = (u64, Vec<(u64, Row)>);

/// The packs whose records fit into the read budget together, with their images where those are loaded with them;
/// at least one.
fn gather(
    job: &Job,
    plan: &ShardPlan,
    packs: &mut std::ops::Range<u64>,
    budget: u64,
) -> Result<Option<Vec<GatheredPack>>, Error> {
    let mut gathered = Vec::new();
    let mut bytes = 0;
    while bytes < budget {
        let Some(pack) = packs.next() else { break };
        let rows = plan.part.rows(pack)?;
        let images = |row: &Row| if job.tools.images.is_remote() { 512 * u64::from(row.stored) } else { 0 };
        bytes += rows.iter().map(|(_, row)| u64::from(row.len) + images(row)).sum::<u64>();
        gathered.push((pack, rows));
    }
    Ok((!gathered.is_empty()).then_some(gathered))
}

/// Reads the records of the packs again and makes samples of them.
fn restore(
    job: &Job,
    fetcher: &RecordFetcher,
    gathered: Vec<GatheredPack>,
) -> Result<Vec<PackedSample>, Error> {
    let request = |row: &Row| FetchRequest { source: row.source.into(), offset: row.offset, len: row.len };
    let requests: Vec<_> =
        gathered.iter().flat_map(|(_, rows)| rows.iter().map(|(_, row)| request(row))).collect();
    let mut records = fetcher.fetch(&requests)?.into_iter();
    let packs: Vec<_> = gathered
        .into_iter()
        .map(|(pack, rows)| {
            let records: Vec<_> = records.by_ref().take(rows.len()).collect();
            (pack, rows, records)
        })
        .collect();
    let prefix = &job.prefix();
    job.tools.pool.install(|| {
        packs
            .into_par_iter()
            .map(|(pack, rows, records)| {
                let pairs = rows.into_iter().zip(records);
                let sub_samples =
                    pairs.map(|((ordinal, row), record)| sub_sample(job, ordinal, &row, &record));
                Ok(PackedSample {
                    key: pack_key(prefix, pack),
                    pack,
                    sub_samples: sub_samples.collect::<Result<_, Error>>()?,
                })
            })
            .collect()
    })
}

fn sub_sample(job: &Job, ordinal: u64, row: &Row, record: &[u8]) -> Result<SubSample, Error> {
    let source_index = usize::from(row.source);
    let input = &job.tools.inputs[source_index].name;
    let changed = |message: String| Error::RecordChanged {
        input: input.clone(),
        line: job.line_of(source_index, row.offset, row.line.into()),
        message,
    };
    let sample = job.tools.validator.restore(record, row.rounds.into());
    let sample = sample
        .map_err(|verdict| changed(format!("the record was accepted and is not any more: {verdict}")))?;
    if sample.images.len() != usize::from(row.images) {
        return Err(changed(format!("the record had {} images, now {}", row.images, sample.images.len())));
    }
    Ok(SubSample {
        ordinal,
        source: input.as_str().into(),
        source_index,
        offset: row.offset,
        line: row.line.into(),
        length: row.length,
        patches: row.patches,
        sample,
        image_stamp: Some(row.image_stamp),
    })
}

/// Names the line of the input where the sink knows only that of the part.
fn with_line(job: &Job, packed: &PackedSample, mut error: SinkError) -> SinkError {
    if let SinkError::Image { ordinal, line, .. } | SinkError::ImagesChanged { ordinal, line, .. } =
        &mut error
        && let Some(sub) = packed.sub_samples.iter().find(|sub| sub.ordinal == *ordinal)
    {
        *line = job.line_of(sub.source_index, sub.offset, *line);
    }
    error
}

fn record(job: &Job, ledger: &Ledger, measurements: u64, commit: &ShardCommit) -> Result<(), Error> {
    let name = commit_name(job.node, &commit.index.name);
    let text = serde_json::to_vec(commit)
        .map_err(|error| Error::State { path: job.output.shown(&name), message: error.to_string() })?;
    let [tar, idx] = files_of(job, &commit.index);
    // First the small files: a tar that is there is complete in every way.
    job.output.write(&name, &text)?;
    for file in [&idx, &tar] {
        job.output.publish(&file.name)?;
        job.output.drop_copy(&file.name)?;
    }
    let commit_file = FinishedFile { name, size: text.len() as u64, checksum: hash(&text) };
    ledger.shard(&commit.index.name, FinishedShard { measurements, files: vec![tar, idx, commit_file] })
}

/// A shard and its `.tar.idx`.
pub(crate) fn files_of(job: &Job, index: &ShardIndex) -> [FinishedFile; 2] {
    let name = format!("{}/{}", job.node.webdataset(), index.name);
    let idx = index.tar_idx();
    let tar = FinishedFile { name: name.clone(), size: index.size, checksum: index.checksum.clone() };
    [tar, FinishedFile { name: format!("{name}.idx"), size: idx.len() as u64, checksum: hash(&idx) }]
}

fn hash(bytes: &[u8]) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes))
}
