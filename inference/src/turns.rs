//! The files of a target, several at a time.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use rayon::prelude::*;

use crate::error::{ModelError, Result};
use crate::progress::Progress;

/// Does a thing of each number below `count`, in order as far as threads are free. An error stops all things of larger
/// numbers; of several errors the one of the smallest number is returned, so that faults of the input are the same each
/// time, whatever the threads.
pub(crate) fn each(
    count: usize,
    progress: &Progress,
    work: impl Fn(usize, &Turn<'_>) -> Result<()> + Sync,
) -> Result<()> {
    let failed = AtomicUsize::new(usize::MAX);
    let first: Mutex<Option<ModelError>> = Mutex::new(None);
    // A bridge hands the numbers out one by one. Halves of the range would leave small numbers to the end.
    (0..count).par_bridge().for_each(|number| {
        let turn = Turn { number, failed: &failed, progress };
        if turn.is_stopped() {
            return;
        }
        if let Err(error) = work(number, &turn) {
            let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
            if !turn.is_stopped() {
                failed.store(number, Ordering::Relaxed);
                *first = Some(error);
            }
        }
    });
    match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// One of several things that are done at a time.
pub(crate) struct Turn<'a> {
    number: usize,
    failed: &'a AtomicUsize,
    progress: &'a Progress,
}

impl Turn<'_> {
    /// Counts bytes that are done.
    ///
    /// # Errors
    /// That it may stop, since a thing of a smaller number has failed.
    pub(crate) fn done(&self, bytes: usize) -> std::io::Result<()> {
        self.progress.add(bytes as u64);
        match self.is_stopped() {
            true => Err(std::io::Error::other("another file failed")),
            false => Ok(()),
        }
    }

    fn is_stopped(&self) -> bool {
        self.failed.load(Ordering::Relaxed) < self.number
    }
}

/// A reader of what is written in a turn.
pub(crate) struct Counted<'a, R> {
    pub(crate) reader: R,
    pub(crate) turn: &'a Turn<'a>,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.reader.read(into)?;
        self.turn.done(count)?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn in_threads<T: Send>(count: usize, run: impl FnOnce() -> T + Send) -> T {
        rayon::ThreadPoolBuilder::new().num_threads(count).build().unwrap().install(run)
    }

    fn error(number: usize) -> ModelError {
        ModelError::Batch(number.to_string())
    }

    #[test]
    fn the_error_of_the_smallest_number_is_returned_and_larger_ones_stop() {
        let (late, started) = (AtomicBool::new(false), AtomicUsize::new(0));
        let work = |number, turn: &Turn<'_>| {
            started.fetch_add(1, Ordering::Relaxed);
            match number {
                0 => return Ok(()),
                // Fails when all that come after it have been told to stop.
                1 => {
                    while !late.load(Ordering::Relaxed) {
                        std::thread::yield_now();
                    }
                }
                // Fails when all that are looked at have begun.
                2 => {
                    while started.load(Ordering::Relaxed) < 4 {
                        std::thread::yield_now();
                    }
                }
                _ => {
                    while turn.done(1).is_ok() {
                        std::thread::yield_now();
                    }
                    late.store(true, Ordering::Relaxed);
                }
            }
            Err(error(number))
        };
        let done = in_threads(4, || each(1000, &Progress::default(), work));
        assert!(matches!(done, Err(ModelError::Batch(number)) if number == "1"));
        assert!(started.into_inner() < 10);
    }

    #[test]
    fn everything_is_done_once_and_counted() {
        let (progress, sum) = (Progress::default(), AtomicUsize::new(0));
        let work = |number, turn: &Turn<'_>| {
            sum.fetch_add(number, Ordering::Relaxed);
            let mut read = Counted { reader: &[0; 10][..], turn };
            std::io::copy(&mut read, &mut std::io::sink()).unwrap();
            Ok(())
        };
        in_threads(3, || each(100, &progress, work)).unwrap();
        assert_eq!((sum.into_inner(), progress.now().done), (4950, 1000));
    }
}
