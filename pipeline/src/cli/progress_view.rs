//! Progress for people: one bar a stage on a terminal, a plain line every ten seconds elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use packd::{Phase, Progress, Snapshot};

use super::Global;
use super::output::{bytes, thousands};

/// Shows the counters until it is told to stop.
pub(crate) async fn show(progress: Arc<Progress>, global: Global, stop: tokio_util::sync::CancellationToken) {
    if global.quiet {
        return;
    }
    if std::io::stderr().is_terminal() {
        bars(&progress, &stop).await;
    } else {
        lines(&progress, &stop).await;
    }
}

async fn bars(progress: &Progress, stop: &tokio_util::sync::CancellationToken) {
    let all = MultiProgress::new();
    let bar = |template: &str| {
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        all.add(ProgressBar::new(0).with_style(style.progress_chars("━╸ ")))
    };
    let measure = bar("measure {wide_bar:.cyan} {bytes}/{total_bytes} {bytes_per_sec} eta {eta} · {msg}");
    let write = bar("write   {wide_bar:.green} {pos}/{len} packs {per_sec} eta {eta} · {msg}");
    loop {
        let now = progress.snapshot();
        // Plain bytes of compressed inputs can be more than the files have.
        measure.set_length(now.input_bytes.max(now.input_bytes_read));
        measure.set_position(now.input_bytes_read);
        measure.set_message(format!("{} records, {} rejected", thousands(now.read), thousands(now.rejected)));
        write.set_length(now.packs);
        write.set_position(now.packs_written);
        write.set_message(format!("{} in {} shards", bytes(now.bytes_written), now.shards));
        if stop.is_cancelled() {
            break;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(Duration::from_millis(100)) => {}
        }
    }
    measure.finish_and_clear();
    write.finish_and_clear();
}

async fn lines(progress: &Progress, stop: &tokio_util::sync::CancellationToken) {
    let started = Instant::now();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_secs(10)) => {}
        }
        tracing::info!("{}", line(&progress.snapshot(), started.elapsed()));
    }
}

fn line(now: &Snapshot, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    match now.phase {
        Phase::Measure => format!(
            "{seconds} s: measured {} of {}, {} records, {} rejected",
            bytes(now.input_bytes_read),
            bytes(now.input_bytes),
            thousands(now.read),
            thousands(now.rejected)
        ),
        Phase::Pack => format!("{seconds} s: packing {} samples", thousands(now.accepted)),
        Phase::Write => format!(
            "{seconds} s: wrote {} of {} packs, {} of {} shards, {}",
            thousands(now.packs_written),
            thousands(now.packs),
            now.shards_written,
            now.shards,
            bytes(now.bytes_written)
        ),
        Phase::Finalize | Phase::Done => format!("{seconds} s: writing the index and the tables"),
    }
}
