//! How much memory a piece of work takes at most, as Linux counts it.

use std::fs;

/// Runs `work` and returns the most resident bytes at a time beyond those before, with its result.
/// `None` where the system keeps no such count (it is Linux that does, in `/proc`).
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (Option<u64>, T) {
    // Writing 5 resets the peak to what is resident now.
    let before = fs::write("/proc/self/clear_refs", "5").ok().and_then(|()| peak());
    let result = work();
    let after = peak();
    (before.zip(after).map(|(before, after)| after.saturating_sub(before)), result)
}

/// The peak of the resident memory, in bytes.
fn peak() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kibibytes = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(kibibytes.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}
