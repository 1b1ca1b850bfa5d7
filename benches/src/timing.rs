//! Wall-clock and processor times.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Runs `work` `runs` times (at least once) and returns the shortest time with the last result. Other
/// programs only ever make a run longer, so the shortest is the least disturbed.
pub fn best_of<T>(runs: usize, mut work: impl FnMut() -> T) -> (Duration, T) {
    let mut timed = || {
        let start = Instant::now();
        let result = work();
        (start.elapsed(), result)
    };
    let (mut best, mut result) = timed();
    for _ in 1..runs {
        // One result at a time: a second would double the memory.
        drop(result);
        let (time, latest) = timed();
        best = best.min(time);
        result = latest;
    }
    (best, result)
}

/// The processor time that `work` takes on this thread, with its result: what a comparison on one core
/// wants on a machine that others use. Work handed to other threads is not counted.
pub fn processor_time<T>(work: impl FnOnce() -> T) -> (Duration, T) {
    let now = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    };
    let start = now();
    let result = work();
    (now().saturating_sub(start), result)
}

/// A time in milliseconds, with three digits or more.
pub fn milliseconds(time: Duration) -> String {
    let milliseconds = time.as_secs_f64() * 1e3;
    let decimals = if milliseconds < 10.0 {
        2
    } else if milliseconds < 100.0 {
        1
    } else {
        0
    };
    format!("{milliseconds:.decimals$} ms")
}

/// How many times as long as the floor something took.
pub fn ratio(time: Duration, floor: Duration) -> String {
    format!("{:.2} ×", time.as_secs_f64() / floor.as_secs_f64())
}
