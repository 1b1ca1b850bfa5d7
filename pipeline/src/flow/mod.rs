//! The four stages, joined by bounded channels.
//!
//! ```text
//! read ─▶ validate ─▶ token-length ─▶ bin-pack ─▶ write
//! ```
//!
//! Back-pressure is the bound of a channel and nothing else. A stage that fails drops its ends of the
//! channels and cancels the run; the others then end by themselves, and the first real error is returned.

pub(crate) mod bridge;
mod complete;
mod full_disk;
pub(crate) mod left_out;
pub(crate) mod measure;
pub(crate) mod pack;
mod packed_part;
pub(crate) mod read;
pub(crate) mod write;

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::channel;
use tokio::task::JoinSet;

use crate::error::Error;
use crate::finalize::{finalize, finish_node};
use crate::job::Job;
use crate::output::Output;
use crate::report::Report;
use crate::state::commits::{Commit, MeasuredNode, WrittenNode};
use crate::state::ledger::{Finished, FinishedFile, Ledger, MeasuredUnit, Position};
use crate::state::node::Node;
use complete::{are_unchanged, finished_report, has_written, incomplete, measurements};
use pack::Packed;

/// Blocks that may wait between two stages.
const BLOCKS: usize = 4;
/// Shard plans that may wait for a writer.
const PLANS: usize = 64;

/// Runs every node of a job in this process, from where their ledgers say that they stopped.
pub(crate) async fn run(job: Job) -> Result<Report, Error> {
    if job.config.nodes > MOST_NODES {
        let help =
            "each node holds threads of the process: run at most 64, or start `packd work` for each node";
        return Err(Error::NotSet { key: "nodes", help });
    }
    let mut nodes = JoinSet::new();
    for node in job.nodes() {
        nodes.spawn(work(Arc::new(job.clone().on(node))));
    }
    let mut report: Option<Report> = None;
    let mut first = Ok(());
    while let Some(joined) = nodes.join_next().await {
        match joined {
            // The node that finished the whole says what was done; others find it done.
            Ok(Ok(found)) => {
                report = match (report, found) {
                    (Some(report), Some(found)) if !report.already_done || found.already_done => Some(report),
                    (report, found) => found.or(report),
                };
            }
            Ok(Err(error)) => first = first_error(first, error, &job),
            Err(error) => {
                let error = bridge::internal("node", error.into_panic().as_ref());
                first = first_error(first, error, &job);
            }
        }
    }
    first?;
    match report {
        Some(report) => Ok(report),
        None => finish(Arc::new(job)).await,
    }
}

/// Nodes in one process.
const MOST_NODES: u32 = 64;

/// Keeps the error that came before the others were cancelled because of it.
fn first_error(first: Result<(), Error>, error: Error, job: &Job) -> Result<(), Error> {
    job.cancellation().cancel();
    match first {
        Err(Error::Interrupted) | Ok(()) => Err(error),
        first => first,
    }
}

/// Does one node's part of a job, and what follows when it was the last.
pub(crate) async fn work(job: Arc<Job>) -> Result<Option<Report>, Error> {
    let worked = work_on_node(Arc::clone(&job)).await;
    worked.map_err(|error| full_disk::explain(&job, error))
}

async fn work_on_node(job: Arc<Job>) -> Result<Option<Report>, Error> {
    job.plan()?;
    if let Some(report) = finished_report(&job)? {
        return Ok(Some(report));
    }
    let mut was_done = true;
    for _ in 0..MOST_ROUNDS {
        was_done &= complete_node(&job).await?;
        if !unfinished::<WrittenNode>(&job)?.is_empty() {
            return Ok(None);
        }
        match finish(Arc::clone(&job)).await {
            // A node that has lost files is at it, or will be when it is started. If it measures them again, what
            // this node wrote may hold no longer: one packing is that of all nodes.
            Err(Error::Waiting { nodes, .. }) if nodes.contains(&job.node.0) => {}
            Err(Error::Waiting { .. }) => return Ok(None),
            finished => {
                let done_before = |report: &Report| report.already_done && was_done;
                return finished.map(|report| Some(Report { already_done: done_before(&report), ..report }));
            }
        }
    }
    Err(Error::Waiting { nodes: vec![job.node.0], phase: "written" })
}

/// How often a node completes its part again because others found that they had lost something. Each loses
/// nothing on a store that works.
const MOST_ROUNDS: usize = 5;

/// Does what one node has not written yet; whether there was nothing to do.
async fn complete_node(job: &Arc<Job>) -> Result<bool, Error> {
    let starting = Arc::clone(job);
    let lock = blocking("lock", move || {
        starting.output.create_folder(&starting.node.run())?;
        lock(&starting.output, &starting.node.lock())
    })
    .await?;
    if has_written(job, job.node)? {
        return Ok(true);
    }
    WrittenNode::remove(&job.output, job.node)?;
    if lock.is_held() {
        for folder in [job.node.run(), job.node.measured(), job.node.commits(), job.node.webdataset()] {
            remove_temporaries(&job.output.path(&folder))?;
        }
        remove_temporaries(&job.output.path(&job.node.webdataset()).join(packd_sinks::METADATA_FOLDER))?;
    }
    abort_uploads(&job.output, &job.node.webdataset());
    let (ledger, mut finished) = Ledger::open(&job.output, job.node)?;
    drop_damaged_units(job, &ledger, &mut finished)?;
    let tools = job.tools.clone();
    blocking("tokenizer", move || tools.load()).await?;
    let packed = run_stages(job, &Arc::new(ledger), finished).await?;
    let of_node = Arc::clone(job);
    blocking("finish", move || finish_node(&of_node, packed)).await?;
    drop(lock);
    Ok(false)
}

/// Writes what needs all nodes. A process that finds another one at it waits, and takes what that one made.
pub(crate) async fn finish(job: Arc<Job>) -> Result<Report, Error> {
    let finished = finish_whole(Arc::clone(&job)).await;
    finished.map_err(|error| full_disk::explain(&job, error))
}

async fn finish_whole(job: Arc<Job>) -> Result<Report, Error> {
    job.file().check(&job.output)?;
    if let Some(report) = finished_report(&job)? {
        return Ok(report);
    }
    blocking("finalize", move || {
        wait_for::<WrittenNode>(&job, job.config.wait_timeout, "written")?;
        job.output.create_folder("run")?;
        let path = job.output.path(FINALIZE_LOCK);
        let state = |error: std::io::Error| Error::State { path: path.clone(), message: error.to_string() };
        let lock = packd_sinks::open_shared(&path).map_err(state)?;
        // Without locks two processes write the same bytes.
        let alone = lock.lock().is_ok() && job.output.remote().is_none();
        if let Some(report) = finished_report(&job)? {
            return Ok(report);
        }
        // What a node has lost since, only that node can make again.
        let nodes: Vec<Node> = job.nodes().collect();
        let lost: Vec<u32> = incomplete(&job, &nodes)?.into_iter().map(|node| node.0).collect();
        if !lost.is_empty() {
            return Err(Error::Waiting { nodes: lost, phase: "written" });
        }
        if alone {
            remove_temporaries(job.output.folder())?;
            remove_temporaries(&job.output.path("run"))?;
        }
        abort_uploads(&job.output, "");
        finalize(&job)
    })
    .await
}

/// Held by the process that writes what needs all nodes.
const FINALIZE_LOCK: &str = "run/finalize.lock";

async fn blocking<T: Send + 'static>(
    stage: &'static str,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(bridge::internal(stage, error.into_panic().as_ref())),
    }
}

/// Waits until every node has committed a phase; at most `seconds`.
///
/// There is nothing to be told by: the folder may lie on any file system. One file is asked for at a time, and
/// the less often the longer it takes.
pub(crate) fn wait_for<C: Commit>(job: &Job, seconds: u64, phase: &'static str) -> Result<(), Error> {
    let started = Instant::now();
    for node in job.nodes() {
        while !job.output.exists(&C::name(node))? {
            if started.elapsed().as_secs() >= seconds {
                return Err(Error::Waiting { nodes: unfinished::<C>(job)?, phase });
            }
            if job.cancelled() {
                return Err(Error::Interrupted);
            }
            std::thread::sleep((started.elapsed() / 10).clamp(SHORTEST_PAUSE, LONGEST_PAUSE));
        }
    }
    Ok(())
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The nodes whose commit is not there yet.
fn unfinished<C: Commit>(job: &Job) -> Result<Vec<u32>, Error> {
    let names: Vec<String> = job.nodes().map(C::name).collect();
    let missing = job.nodes().zip(job.output.sizes(&names)?).filter(|(_, size)| size.is_none());
    Ok(missing.map(|(node, _)| node.0).collect())
}

/// Parts of uploads that were broken off.
///
/// They only cost money: that they cannot be listed or removed is no reason to stop.
fn abort_uploads(output: &Output, folder: &str) {
    let below = output.remote().map(|prefix| prefix.join(folder));
    let Some(Ok(Some(below))) = below else { return };
    match below.abort_uploads() {
        Ok(0) => {}
        Ok(aborted) => tracing::info!("{aborted} uploads that were broken off are removed"),
        Err(error) => tracing::warn!("uploads that were broken off stay there: {error}"),
    }
}

fn remove_temporaries(folder: &Path) -> Result<(), Error> {
    if folder.is_dir() {
        packd_sinks::remove_temporaries(folder)?;
    }
    Ok(())
}

/// The lock of a node. Where the file system knows none, two processes may work on one node: they write the
/// same bytes, and neither may tidy up after the other.
struct Lock(Option<File>);

impl Lock {
    fn is_held(&self) -> bool {
        self.0.is_some()
    }
}

fn lock(output: &Output, name: &str) -> Result<Lock, Error> {
    if output.remote().is_some() {
        return Ok(Lock(None));
    }
    let path = output.path(name);
    let state = |error: std::io::Error| Error::State { path: path.clone(), message: error.to_string() };
    let file = packd_sinks::open_shared(&path).map_err(state)?;
    match file.try_lock() {
        Ok(()) => Ok(Lock(Some(file))),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::Busy { path: output.name().to_owned() }),
        Err(std::fs::TryLockError::Error(_)) => Ok(Lock(None)),
    }
}

/// A unit whose files are gone is measured again, with all that follow it.
fn drop_damaged_units(job: &Job, ledger: &Ledger, finished: &mut Finished) -> Result<(), Error> {
    let files: Vec<&FinishedFile> = finished.units.iter().flat_map(|unit| &unit.files).collect();
    let mut whole = job.output.are_whole(&files, job.config.verify_resume)?.into_iter();
    let mut is_whole = |unit: &&MeasuredUnit| whole.by_ref().take(unit.files.len()).all(|whole| whole);
    let good = finished.units.iter().take_while(|unit| is_whole(unit)).count();
    let committed = MeasuredNode::read(&job.output, job.node)?;
    if committed.is_some_and(|measured| measured.units != finished.units[..good]) {
        // The others must not pack by it while its files are written again.
        MeasuredNode::remove(&job.output, job.node)?;
    }
    if good < finished.units.len() {
        tracing::warn!(unit = good, "measurements were changed or removed; measuring from there again");
        ledger.remeasure(good as u64)?;
        finished.drop_units_from(good as u64);
    }
    Ok(())
}

/// Measures the slice, packs, and writes the node's shards.
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
        Arc::clone(&job.parts),
        start,
        max_record,
        to_validate,
        job.progress(),
        cancel.clone(),
    ));

    let (validator, previous) = (Arc::clone(&tools.validator), job.previous.clone());
    let validate = move |block| measure::validate(block, &validator, previous.as_deref());
    let pool = || Arc::clone(&tools.pool);
    let image_pool = Arc::clone(&tools.image_pool);
    stages.spawn(bridge::ordered_map(
        image_pool,
        "validate",
        from_read,
        to_measure,
        cancel.clone(),
        validate,
    ));

    let (token_length, inputs, fail_fast) =
        (job.token_length(), Arc::clone(&tools.inputs), job.config.fail_fast);
    let lines_of = Arc::clone(job);
    let line_of = move |source, offset, line| lines_of.line_of(source, offset, line);
    let measure = move |block| measure::measure(block, &token_length, &inputs, &line_of, fail_fast);
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
