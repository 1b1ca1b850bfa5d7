//! Wall-clock times.

use std::time::{Duration, Instant};

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
