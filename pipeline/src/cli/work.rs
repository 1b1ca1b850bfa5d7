//! `packd plan`, `packd work` and `packd finalize`: the parts of a job, for engines.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{ArgMatches, Args};
use packd::{Config, Error, Job, Progress};
use tokio_util::sync::CancellationToken;

use super::aside::move_other_aside;
use super::output::{bytes, print_json};
use super::run::{MeasureArgs, finished, runtime, stop_on_signal};
use super::{ConfigArgs, Global, progress_view};

/// Where engines say which of several equal workers a process is: Kubernetes Indexed Jobs, Slurm arrays,
/// Slurm steps, Open MPI.
const INDEX_VARIABLES: [&str; 4] =
    ["JOB_COMPLETION_INDEX", "SLURM_ARRAY_TASK_ID", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK"];

#[derive(Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Start anew where another job's output is: that is moved aside (to DIR.1, DIR.2 …), never deleted
    #[arg(long, help_heading = "Running")]
    force: bool,
    /// Print JSON
    #[arg(long, help_heading = "Messages")]
    json: bool,
}

#[derive(Args)]
pub(crate) struct WorkArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    measure: MeasureArgs,
    /// Which node this is, from 0 [default: from JOB_COMPLETION_INDEX, SLURM_ARRAY_TASK_ID, SLURM_PROCID or
    /// OMPI_COMM_WORLD_RANK]
    #[arg(long, value_name = "K", help_heading = "Running")]
    node_index: Option<u32>,
    /// Print the counters as JSON lines, for the process that started this one, and end with it
    #[arg(long, hide = true)]
    launched: bool,
}

#[derive(Args)]
pub(crate) struct FinalizeArgs {
    /// Output folder of the job
    dir: PathBuf,
    /// Seconds to wait for nodes that have not finished
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    wait_timeout: u64,
}

pub(crate) fn plan(args: &PlanArgs, matches: &ArgMatches) -> Result<ExitCode, Error> {
    let config = args.config.load(matches)?;
    if args.force {
        move_other_aside(&config)?;
    }
    let job = Job::new(config)?;
    job.plan()?;
    let slices = job.slices();
    if args.json {
        print_json(&serde_json::json!({ "slices": slices }))?;
        return Ok(ExitCode::SUCCESS);
    }
    for (node, size) in slices.iter().enumerate() {
        println!("node {node:>4}  {}", bytes(*size));
    }
    println!("next    packd work -o {} --node-index K, for each node", job.output().display());
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn work(args: &WorkArgs, global: &Global, matches: &ArgMatches) -> Result<ExitCode, Error> {
    if args.launched {
        end_with_parent();
    }
    let node = match args.node_index {
        Some(node) => node,
        None => index_of_environment()?,
    };
    let config = args.config.load(matches)?;
    let grace = config.grace;
    let job = args.measure.apply(open(config, args.launched)?)?.with_node(node)?;
    let runtime = runtime()?;
    let report = runtime.block_on(async {
        let (progress, cancel, shown) = (job.progress(), job.cancellation(), CancellationToken::new());
        tokio::spawn(stop_on_signal(cancel, grace));
        let view = match args.launched {
            true => tokio::spawn(print_counters(progress, shown.clone())),
            false => tokio::spawn(progress_view::show(progress, global.clone(), shown.clone())),
        };
        let report = job.work().await;
        shown.cancel();
        let _ = view.await;
        report
    })?;
    match report {
        Some(report) if !args.launched => Ok(finished(&report, global)),
        Some(_) => Ok(ExitCode::SUCCESS),
        None => {
            if !args.launched && !global.quiet {
                println!("node {node} has written its part; others have not yet");
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

pub(crate) fn finalize(args: &FinalizeArgs, global: &Global) -> Result<ExitCode, Error> {
    let job = Job::open(&args.dir, &Config { wait_timeout: args.wait_timeout, ..Config::default() })?;
    let report = runtime()?.block_on(job.finalize())?;
    Ok(finished(&report, global))
}

/// With inputs the job is the one that the options describe; without, the one that was planned.
fn open(config: Config, planned: bool) -> Result<Job, Error> {
    match &config.output {
        None if config.input.is_empty() => {
            let help = "pass -o DIR, the folder that `packd plan` claimed";
            Err(Error::NotSet { key: "output", help })
        }
        Some(output) if planned || config.input.is_empty() => Job::open(&output.clone(), &config),
        _ => Job::new(config),
    }
}

fn index_of_environment() -> Result<u32, Error> {
    let given = INDEX_VARIABLES.iter().find_map(|name| Some((name, std::env::var(name).ok()?)));
    let help = "pass --node-index K, or start this from an engine that numbers its workers";
    let Some((name, value)) = given else { return Err(Error::NotSet { key: "node_index", help }) };
    value.parse().map_err(|_| {
        tracing::error!("{name} is {value:?}, not a number");
        Error::NotSet { key: "node_index", help }
    })
}

/// A worker whose launcher was killed would go on unseen.
fn end_with_parent() {
    #[cfg(target_os = "linux")]
    {
        let _ = rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL));
    }
}

/// One line of JSON each time that something may have changed.
async fn print_counters(progress: Arc<Progress>, stop: CancellationToken) {
    loop {
        let last = stop.is_cancelled();
        if let Ok(line) = serde_json::to_string(&progress.snapshot()) {
            // The launcher may be gone: then nobody counts.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
        if last {
            return;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
    }
}
