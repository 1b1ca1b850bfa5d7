//! `packd run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{ArgMatches, Args};
use packd::{Config, Error, Job, Report};
use tokio_util::sync::CancellationToken;

use super::aside::move_other_aside;
use super::launch::launch;
use super::{ConfigArgs, Global, progress_view, summary};

#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(flatten)]
    measure: MeasureArgs,
    /// Start anew where another job's output is: that is moved aside (to DIR.1, DIR.2 …), never deleted
    #[arg(long, help_heading = "Running")]
    force: bool,
}

/// How records are measured, besides the configuration.
#[derive(Args)]
pub(crate) struct MeasureArgs {
    /// Output of an earlier run whose measurements of unchanged records are reused
    #[arg(long, value_name = "DIR", help_heading = "Running")]
    previous: Option<PathBuf>,
    /// Bytes of input that are committed together while measuring
    #[arg(long, value_name = "SIZE", hide = true)]
    unit_bytes: Option<packd::config::ByteSize>,
}

impl MeasureArgs {
    pub(crate) fn apply(&self, mut job: Job) -> Result<Job, Error> {
        if let Some(folder) = &self.previous {
            job = job.with_previous(folder)?;
        }
        if let Some(size) = self.unit_bytes {
            job = job.with_unit_bytes(size.0);
        }
        Ok(job)
    }

    /// The arguments again, for `packd work`.
    fn arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        if let Some(folder) = &self.previous {
            arguments.extend(["--previous".into(), folder.into()]);
        }
        if let Some(size) = self.unit_bytes {
            arguments.extend(["--unit-bytes".into(), size.0.to_string().into()]);
        }
        arguments
    }
}

pub(crate) fn run(args: &RunArgs, global: &Global, matches: &ArgMatches) -> Result<ExitCode, Error> {
    let config = args.config.load(matches)?;
    if args.force {
        move_other_aside(&config)?;
    }
    if config.nodes > 1 {
        return run_nodes(args, config, global);
    }
    let grace = config.grace;
    let job = args.measure.apply(Job::new(config)?)?;
    let report = runtime()?.block_on(async {
        let (progress, cancel, shown) = (job.progress(), job.cancellation(), CancellationToken::new());
        tokio::spawn(stop_on_signal(cancel, grace));
        let view = tokio::spawn(progress_view::show(progress, global.clone(), shown.clone()));
        let report = job.run().await;
        shown.cancel();
        let _ = view.await;
        report
    })?;
    Ok(finished(&report, global))
}

/// A process for each node.
fn run_nodes(args: &RunArgs, config: Config, global: &Global) -> Result<ExitCode, Error> {
    let arguments = [runtime_arguments(&config, global), args.measure.arguments()].concat();
    let grace = config.grace;
    let job = Job::new(config)?;
    let was_done = packd::status(job.output()).is_ok_and(|status| status.state == "done");
    let ended = runtime()?.block_on(async {
        let (progress, cancel, shown) = (job.progress(), job.cancellation(), CancellationToken::new());
        // The workers have as long, and this process has to see them end.
        tokio::spawn(stop_on_signal(cancel.clone(), grace + 5));
        let view = tokio::spawn(progress_view::show(progress.clone(), global.clone(), shown.clone()));
        let ended = launch(&job, arguments, progress, cancel).await;
        shown.cancel();
        let _ = view.await;
        match ended? {
            Ok(()) => job.finalize().await.map(Ok),
            Err(code) => Ok(Err(code)),
        }
    })?;
    match ended {
        // A worker completed the output, so that there was nothing left to do here.
        Ok(report) => Ok(finished(&Report { already_done: was_done, ..report }, global)),
        // The worker has said what is wrong.
        Err(code) => Ok(ExitCode::from(code)),
    }
}

/// What decides how a worker runs; what it does stands in the plan. Threads and memory are shared.
fn runtime_arguments(config: &Config, global: &Global) -> Vec<OsString> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (config.threads.unwrap_or(cores) / config.nodes as usize).max(1);
    let budget = (config.read_budget.0 / u64::from(config.nodes)).max(1);
    let mut arguments: Vec<OsString> = Vec::new();
    if let Some(output) = &config.output {
        arguments.extend(["-o".into(), output.into()]);
    }
    arguments.extend(["--threads".into(), threads.to_string().into()]);
    arguments.extend(["--read-budget".into(), budget.to_string().into()]);
    // The launcher sees whether the other workers are alive: nobody waits in vain.
    arguments.extend(["--wait-timeout".into(), u64::MAX.to_string().into()]);
    if config.verify_resume {
        arguments.push("--verify-resume".into());
    }
    if let Some(scratch) = &config.scratch {
        arguments.extend(["--scratch".into(), scratch.into()]);
    }
    for (flag, value) in [
        ("--store-concurrency", (config.store_concurrency as u64 / u64::from(config.nodes)).max(1)),
        ("--store-retries", config.store_retries as u64),
        ("--io-timeout", config.io_timeout),
        ("--grace", config.grace),
    ] {
        arguments.extend([flag.into(), value.to_string().into()]);
    }
    if global.quiet {
        arguments.push("--quiet".into());
    }
    arguments
}

/// Prints the summary of a finished run.
pub(crate) fn finished(report: &Report, global: &Global) -> ExitCode {
    if !global.quiet {
        summary::print(report, global);
    }
    ExitCode::from(if report.too_many_rejects { packd::exit::DATA } else { packd::exit::OK })
}

/// The runtime of the commands that wait for files.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::Internal { stage: "runtime", message: error.to_string() })
}

/// The first SIGINT or SIGTERM stops the run in order, within so many seconds; the second ends the process at once.
pub(crate) async fn stop_on_signal(cancel: CancellationToken, grace: u64) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    let wait = async |interrupt: &mut tokio::signal::unix::Signal,
                      terminate: &mut tokio::signal::unix::Signal| {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    wait(&mut interrupt, &mut terminate).await;
    tracing::warn!("stopping; a second signal stops at once");
    cancel.cancel();
    tokio::select! {
        () = wait(&mut interrupt, &mut terminate) => std::process::exit(130),
        () = tokio::time::sleep(Duration::from_secs(grace)) => {
            // A disk or a store that does not answer. Nothing half-written is visible, as after a kill.
            tracing::warn!("not stopped within {grace} s; what is finished is kept, run the same command again");
            std::process::exit(packd::exit::TEMPORARY.into());
        }
    }
}
