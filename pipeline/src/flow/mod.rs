//! The four stages, joined by bounded channels.
//!
//! ```text
//! read ─▶ validate ─▶ token-length ─▶ bin-pack ─▶ write
//! ```
//!
//! Back-pressure is the bound of a channel and nothing else. A stage that fails drops its ends of the
//! channels and cancels the run; the others then end by themselves, and the first real error is returned.

pub(crate) mod bridge;
mod duplicates;
pub(crate) mod measure;
pub(crate) mod pack;
pub(crate) mod read;
pub(crate) mod write;

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};

use tokio::sync::mpsc::channel;
use tokio::task::JoinSet;

use crate::error::Error;
use crate::finalize::finalize;
use crate::job::Job;
use crate::report::Report;
use crate::state::ledger::{Finished, FinishedFile, Ledger, MeasuredUnit, Position};
use pack::Packed;

/// Blocks that may wait between two stages.
const BLOCKS: usize = 4;
/// Shard plans that may wait for a writer.
const PLANS: usize = 64;

/// Every folder that a run writes to, where a killed process may have left temporary files.
const FOLDERS: [&str; 6] =
    ["", "run", "run/measured", "run/shards", "node_000/webdataset", "node_000/webdataset/.nv-meta"];

/// Runs a job from where the ledger says it stopped.
pub(crate) async fn run(job: Arc<Job>) -> Result<Report, Error> {
    let job_file = job.job_file()?;
    job_file.check(&job.output)?;
    packd_sinks::create_folder(&job.output.join("run"))?;
    let _lock = lock(&job.output)?;
    job_file.claim(&job.output)?;
    for folder in FOLDERS {
        let folder = job.output.join(folder);
        if folder.is_dir() {
            packd_sinks::remove_temporaries(&folder)?;
        }
    }
    let (ledger, mut finished) = Ledger::open(&job.output.join("run/ledger.jsonl"))?;
    if let Some(files) = &finished.done
        && let Some(report) = finished_report(&job, files)
    {
        return Ok(report);
    }
    drop_damaged_units(&job, &ledger, &mut finished)?;
    let ledger = Arc::new(ledger);
    let packed = run_stages(&job, &ledger, finished).await?;
    let (job, ledger) = (Arc::clone(&job), Arc::clone(&ledger));
    let done = tokio::task::spawn_blocking(move || finalize(&job, &ledger, packed)).await;
    match done {
        Ok(report) => report,
        Err(error) => Err(bridge::internal("finalize", error.into_panic().as_ref())),
    }
}

/// The report of a run that was done before, if everything that it wrote is still there.
fn finished_report(job: &Job, files: &[FinishedFile]) -> Option<Report> {
    let same = |file: &FinishedFile| is_unchanged(job, file);
    if !files.iter().all(same) {
        tracing::warn!("the output is not what the finished run left; completing it again");
        return None;
    }
    Report::read(&job.output).ok().map(|report| Report { already_done: true, ..report })
}

/// Whether a finished file is as the ledger has it: its size, and with `verify_resume` its checksum.
fn is_unchanged(job: &Job, file: &FinishedFile) -> bool {
    let path = job.output.join(&file.name);
    let same_size = std::fs::metadata(&path).is_ok_and(|metadata| metadata.len() == file.size);
    same_size
        && (!job.config.verify_resume
            || packd_sinks::hash_file(&path).is_ok_and(|hash| hash == file.checksum))
}

fn lock(output: &Path) -> Result<File, Error> {
    let path = output.join("run/lock");
    let state = |error: std::io::Error| Error::State { path: path.clone(), message: error.to_string() };
    let file = File::create(&path).map_err(state)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::Busy { path: output.to_owned() }),
        // A file system without locks: two processes would still write the same bytes.
        Err(std::fs::TryLockError::Error(_)) => Ok(file),
    }
}

/// A unit whose files are gone is measured again, with all that follow it.
fn drop_damaged_units(job: &Job, ledger: &Ledger, finished: &mut Finished) -> Result<(), Error> {
    let whole = |unit: &MeasuredUnit| unit.files.iter().all(|file| is_unchanged(job, file));
    let good = finished.units.iter().take_while(|unit| whole(unit)).count();
    if good < finished.units.len() {
        tracing::warn!(unit = good, "measurements were changed or removed; measuring from there again");
        ledger.remeasure(good as u64)?;
        finished.drop_units_from(good as u64);
    }
    Ok(())
}

async fn run_stages(job: &Arc<Job>, ledger: &Arc<Ledger>, finished: Finished) -> Result<Packed, Error> {
    let Finished { units, shards, .. } = finished;
    let start = units.last().map_or(Position::START, |unit| unit.next);
    count_finished(job, &units);
    let seekable = seekable_inputs(job).await?;
    let (to_validate, from_read) = channel(BLOCKS);
    let (to_measure, from_validate) = channel(BLOCKS);
    let (to_pack, from_measure) = channel(BLOCKS);
    let (to_write, from_pack) = channel(PLANS);
    let packed: Arc<Mutex<Option<Packed>>> = Arc::default();
    let cancel = job.cancellation();
    let tools = &job.tools;
    let mut stages = JoinSet::new();

    let max_record = usize::try_from(job.config.max_line_bytes.0).unwrap_or(usize::MAX);
    stages.spawn(read::read(
        Arc::clone(&tools.inputs),
        start,
        max_record,
        to_validate,
        job.progress(),
        cancel.clone(),
    ));

    let (validator, previous) = (Arc::clone(&tools.validator), job.previous.clone());
    let validate = move |block| measure::validate(block, &validator, previous.as_deref());
    let pool = || Arc::clone(&tools.pool);
    stages.spawn(bridge::ordered_map(pool(), "validate", from_read, to_measure, cancel.clone(), validate));

    let (token_length, inputs, fail_fast) =
        (job.token_length(), Arc::clone(&tools.inputs), job.config.fail_fast);
    let measure = move |block| measure::measure(block, &token_length, &inputs, fail_fast);
    stages.spawn(bridge::ordered_map(
        pool(),
        "token-length",
        from_validate,
        to_pack,
        cancel.clone(),
        measure,
    ));

    let (pack_job, pack_ledger, result) = (Arc::clone(job), Arc::clone(ledger), Arc::clone(&packed));
    stages.spawn_blocking(move || {
        let outcome = pack::bin_pack(&pack_job, &pack_ledger, units, seekable, from_measure, &to_write)?;
        *result.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = outcome;
        Ok(())
    });
    stages.spawn(write::write(Arc::clone(job), Arc::clone(ledger), shards, from_pack, cancel.clone()));

    join_all(stages, &cancel).await?;
    let packed = packed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    packed.ok_or(Error::Interrupted)
}

/// Waits for every stage. The first error cancels the others; being cancelled is no error of its own.
pub(crate) async fn join_all(
    mut stages: JoinSet<Result<(), Error>>,
    cancel: &tokio_util::sync::CancellationToken,
) -> Result<(), Error> {
    let mut first: Option<Error> = None;
    while let Some(joined) = stages.join_next().await {
        let result = match joined {
            Ok(result) => result,
            Err(error) if error.is_panic() => Err(bridge::internal("stage", error.into_panic().as_ref())),
            Err(_) => Err(Error::Interrupted),
        };
        if let Err(error) = result {
            cancel.cancel();
            let replaces = first.as_ref().is_none_or(|first| matches!(first, Error::Interrupted));
            if replaces {
                first = Some(error);
            }
        }
    }
    first.map_or(Ok(()), Err)
}

fn count_finished(job: &Job, units: &[MeasuredUnit]) {
    use crate::progress::Progress;
    let counters = job.counters();
    for unit in units {
        Progress::add(&counters.read, unit.stats.read);
        Progress::add(&counters.accepted, unit.stats.accepted);
        Progress::add(&counters.rejected, unit.stats.rejected_total());
        Progress::add(&counters.input_bytes_read, unit.stats.record_bytes);
    }
}

/// Which inputs the writer reads by offset: known before the first record, so that a resumed run need
/// not open finished inputs again.
async fn seekable_inputs(job: &Job) -> Result<Vec<bool>, Error> {
    job.tools.inputs.iter().map(|input| Ok(input.is_seekable()?)).collect()
}
