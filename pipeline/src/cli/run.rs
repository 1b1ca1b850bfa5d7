//! `packd run`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, Args};
use packd::{Error, Job};
use tokio_util::sync::CancellationToken;

use super::{ConfigArgs, Global, progress_view, summary};

#[derive(Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Output of an earlier run whose measurements of unchanged records are reused
    #[arg(long, value_name = "DIR", help_heading = "Running")]
    previous: Option<PathBuf>,
    /// Bytes of input that are committed together while measuring
    #[arg(long, value_name = "SIZE", hide = true)]
    unit_bytes: Option<packd::config::ByteSize>,
}

pub(crate) fn run(args: &RunArgs, global: &Global, matches: &ArgMatches) -> Result<ExitCode, Error> {
    let mut job = Job::new(args.config.load(matches)?)?;
    if let Some(folder) = &args.previous {
        job = job.with_previous(folder)?;
    }
    if let Some(size) = args.unit_bytes {
        job = job.with_unit_bytes(size.0);
    }
    let runtime = runtime()?;
    let report = runtime.block_on(async {
        let (progress, cancel, shown) = (job.progress(), job.cancellation(), CancellationToken::new());
        tokio::spawn(stop_on_signal(cancel));
        let view = tokio::spawn(progress_view::show(progress, global.clone(), shown.clone()));
        let report = job.run().await;
        shown.cancel();
        let _ = view.await;
        report
    })?;
    if !global.quiet {
        summary::print(&report, global);
    }
    Ok(ExitCode::from(if report.too_many_rejects { packd::exit::DATA } else { packd::exit::OK }))
}

/// The runtime of the commands that wait for files.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Error> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::Internal { stage: "runtime", message: error.to_string() })
}

/// The first SIGINT or SIGTERM stops the run in order; the second ends the process at once.
async fn stop_on_signal(cancel: CancellationToken) {
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
    wait(&mut interrupt, &mut terminate).await;
    std::process::exit(130);
}
