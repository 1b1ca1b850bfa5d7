//! How much memory a piece of work takes at most, as Linux counts it.

use std::fs;
use std::io;
use std::process::{Command, ExitStatus};
use std::time::Duration;

/// Runs `work` and returns the most resident bytes at a time beyond those before, with its result.
/// `None` where the system keeps no such count (it is Linux that does, in `/proc`).
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (Option<u64>, T) {
    // Writing 5 resets the peak to what is resident now.
    let before = fs::write("/proc/self/clear_refs", "5").ok().and_then(|()| peak());
    let result = work();
    let after = peak();
    (before.zip(after).map(|(before, after)| after.saturating_sub(before)), result)
}

/// Runs a program, and returns how it ended with the most anonymous memory in bytes that it was seen to hold: what is
/// its own, without the pages of files that it has mapped. It is looked at every few milliseconds. `None` where the
/// system keeps no such count.
///
/// # Errors
/// When the program cannot be started.
pub fn anonymous_peak_of(command: &mut Command) -> io::Result<(ExitStatus, Option<u64>)> {
    let mut child = command.spawn()?;
    let path = format!("/proc/{}/status", child.id());
    let mut most = None;
    loop {
        most = most.max(fs::read_to_string(&path).ok().and_then(|status| line(&status, "RssAnon:")));
        if let Some(status) = child.try_wait()? {
            return Ok((status, most));
        }
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// The peak of the resident memory, in bytes.
fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    line(&status, "VmHWM:")
}

/// The bytes that a line of a status file tells.
fn line(status: &str, name: &str) -> Option<u64> {
    let kibibytes = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(kibibytes.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
