//! Progress for people: a bar on a terminal, a plain line every ten seconds elsewhere.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{DecimalBytes, ProgressBar, ProgressStyle};

use crate::progress::{Progress, ProgressNow};

const KNOWN: &str =
    "{msg} {wide_bar:.cyan} {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} eta {eta}";
const UNKNOWN: &str = "{spinner:.cyan} {msg} {elapsed}";
const COUNTED: &str = "{spinner:.cyan} {msg} {decimal_bytes} {elapsed}";

/// Shows how far work is, until it is dropped.
pub(super) struct View {
    stop: Option<Sender<()>>,
    shown: Option<JoinHandle<()>>,
}

impl View {
    /// Shows nothing when `quiet`, or where no thread can be started for it.
    pub(super) fn of(progress: &Arc<Progress>, quiet: bool) -> Self {
        if quiet {
            return Self { stop: None, shown: None };
        }
        let (stop, stopped) = channel();
        let progress = progress.clone();
        let show = move || match std::io::stderr().is_terminal() {
            true => bar(&progress, &stopped),
            false => lines(&progress, &stopped),
        };
        Self { stop: Some(stop), shown: std::thread::Builder::new().spawn(show).ok() }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(shown) = self.shown.take() {
            let _ = shown.join();
        }
    }
}

/// Waits; false when there is nothing more to show.
fn goes_on(stopped: &Receiver<()>, time: Duration) -> bool {
    matches!(stopped.recv_timeout(time), Err(RecvTimeoutError::Timeout))
}

fn bar(progress: &Progress, stopped: &Receiver<()>) {
    let bar = ProgressBar::new(0);
    let mut what = "";
    while goes_on(stopped, Duration::from_millis(100)) {
        let now = progress.now();
        if now.what.is_empty() {
            continue;
        }
        if now.what != what {
            what = now.what;
            bar.reset();
            bar.set_message(what);
        }
        let template = match (now.total, now.done) {
            (Some(_), _) => KNOWN,
            (None, 0) => UNKNOWN,
            (None, _) => COUNTED,
        };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style.progress_chars("━╸ "));
        bar.set_length(now.total.unwrap_or(now.done));
        bar.set_position(now.done);
        bar.tick();
    }
    bar.finish_and_clear();
}

fn lines(progress: &Progress, stopped: &Receiver<()>) {
    let started = Instant::now();
    while goes_on(stopped, Duration::from_secs(10)) {
        let now = progress.now();
        if !now.what.is_empty() {
            eprintln!("{}", line(&now, started.elapsed()));
        }
    }
}

fn line(now: &ProgressNow, elapsed: Duration) -> String {
    let (seconds, what, done) = (elapsed.as_secs(), now.what, DecimalBytes(now.done));
    match (now.total, now.done) {
        (Some(total), _) => format!("{seconds} s: {what}, {done} of {}", DecimalBytes(total)),
        (None, 0) => format!("{seconds} s: {what}"),
        (None, _) => format!("{seconds} s: {what}, {done}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_what_is_known() {
        let line =
            |what, done, total| line(&ProgressNow { what, done, total }, Duration::from_millis(20_700));
        assert_eq!(line("writing", 1_500_000, Some(3_000_000_000)), "20 s: writing, 1.50 MB of 3.00 GB");
        assert_eq!(line("comparing copies", 2_000, None), "20 s: comparing copies, 2.00 kB");
        assert_eq!(line("syncing", 0, None), "20 s: syncing");
    }
}
