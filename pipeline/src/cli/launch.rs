//! `packd run --nodes N` on one machine: a process for each node, their progress shown as one.

use std::ffi::OsString;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use packd::{Error, Job, Progress, Snapshot};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How often a worker that was killed, or that waited too long, is started again.
const RESTARTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);

/// The latest counters of every worker.
type Counters = Arc<Mutex<Vec<Option<Snapshot>>>>;

/// Starts a worker for every node and waits until all are done. `arguments` are those of `packd work`.
///
/// # Errors
/// The first worker's exit code that no restart can mend; [`Error::Interrupted`] after a signal.
pub(crate) async fn launch(
    job: &Job,
    arguments: Vec<OsString>,
    progress: Arc<Progress>,
    cancel: CancellationToken,
) -> Result<Result<(), u8>, Error> {
    job.plan()?;
    let nodes = job.slices().len();
    let counters: Counters = Arc::new(Mutex::new(vec![None; nodes]));
    let mut workers = JoinSet::new();
    for node in 0..nodes {
        let (arguments, counters) = (arguments.clone(), Arc::clone(&counters));
        let (progress, cancel) = (Arc::clone(&progress), cancel.clone());
        workers.spawn(async move { keep_running(node, &arguments, &counters, &progress, &cancel).await });
    }
    let mut outcome = Ok(());
    while let Some(ended) = workers.join_next().await {
        let ended = ended
            .unwrap_or_else(|error| Err(Error::Internal { stage: "launcher", message: error.to_string() }));
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(code)) => {
                cancel.cancel();
                outcome = outcome.and(Err(code));
            }
            Err(error) => {
                cancel.cancel();
                // A worker's own error says more than that the others were interrupted.
                if !matches!(error, Error::Interrupted) || outcome.is_ok() {
                    while workers.join_next().await.is_some() {}
                    return Err(error);
                }
            }
        }
    }
    Ok(outcome)
}

/// One worker, started again when something outside of it ended it.
async fn keep_running(
    node: usize,
    arguments: &[OsString],
    counters: &Counters,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<Result<(), u8>, Error> {
    let mut restarts = 0;
    loop {
        if cancel.is_cancelled() {
            return Err(Error::Interrupted);
        }
        let child = start(node, arguments)?;
        let status = watch(node, child, counters, progress, cancel).await?;
        if cancel.is_cancelled() {
            return Err(Error::Interrupted);
        }
        match status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(packd::exit::OK) => return Ok(Ok(())),
            Some(code) if code != packd::exit::TEMPORARY => return Ok(Err(code)),
            code if restarts == RESTARTS => {
                tracing::error!(node, "the worker ended {restarts} times ({status}); giving up");
                return Ok(Err(code.unwrap_or(packd::exit::TEMPORARY)));
            }
            _ => {
                restarts += 1;
                tracing::warn!(node, "the worker ended ({status}); starting it again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn start(node: usize, arguments: &[OsString]) -> Result<Child, Error> {
    let failed = |error: std::io::Error| Error::Internal { stage: "launcher", message: error.to_string() };
    let program = std::env::current_exe().map_err(failed)?;
    let mut command = Command::new(program);
    command
        .arg("work")
        .args(["--launched", "--node-index", &node.to_string()])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // Ctrl-C reaches the launcher, which passes it on: a worker must not take it for a second one.
        .process_group(0)
        .kill_on_drop(true);
    // What the job is stands in the plan, whatever the environment says.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("PACKD_") && name != "PACKD_LOG") {
            command.env_remove(name);
        }
    }
    command.spawn().map_err(failed)
}

/// Adds up what the worker counts until it ends; passes a cancellation on to it.
async fn watch(
    node: usize,
    mut child: Child,
    counters: &Counters,
    progress: &Progress,
    cancel: &CancellationToken,
) -> Result<ExitStatus, Error> {
    let failed = |error: std::io::Error| Error::Internal { stage: "launcher", message: error.to_string() };
    let Some(stdout) = child.stdout.take() else { return child.wait().await.map_err(failed) };
    let mut lines = BufReader::new(stdout).lines();
    let mut stopping = false;
    loop {
        tokio::select! {
            () = cancel.cancelled(), if !stopping => {
                stopping = true;
                terminate(&child);
            }
            line = lines.next_line() => match line {
                Ok(Some(line)) => {
                    if let Ok(snapshot) = serde_json::from_str::<Snapshot>(&line) {
                        let mut counters = counters.lock().unwrap_or_else(PoisonError::into_inner);
                        counters[node] = Some(snapshot);
                        progress.show_sum(&counters);
                    }
                }
                _ => return child.wait().await.map_err(failed),
            },
        }
    }
}

fn terminate(child: &Child) {
    use rustix::process::{Pid, Signal, kill_process};
    if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
        // It may have ended just now.
        let _ = kill_process(pid, Signal::TERM);
    }
}
