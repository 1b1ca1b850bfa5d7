//! Syncing what was written while more is written.

use std::fs::File;
use std::thread::JoinHandle;

use crate::error::Result;

/// Bytes after which what was written of a file is sent to the disk.
const STEP: u64 = 256 << 20;

/// Runs one thing at a time on another thread, so that the disk is busy while tensors are gathered.
#[derive(Default)]
pub(crate) struct Syncer {
    running: Option<JoinHandle<Result<()>>>,
    unsynced: u64,
}

impl Syncer {
    /// Says that `bytes` were written to a file.
    pub(crate) fn wrote(&mut self, bytes: u64, file: &File) -> Result<()> {
        self.unsynced += bytes;
        let busy = self.running.as_ref().is_some_and(|running| !running.is_finished());
        if self.unsynced < STEP || busy {
            return Ok(());
        }
        let Ok(file) = file.try_clone() else { return Ok(()) };
        // It only starts the writing early: an error is one of the sync that ends the file, too.
        self.run(move || {
            let _ = file.sync_data();
            Ok(())
        })
    }

    /// Runs what ends a file, when what runs has ended.
    pub(crate) fn run(&mut self, end: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        self.wait()?;
        self.unsynced = 0;
        self.running = Some(std::thread::spawn(end));
        Ok(())
    }

    /// Waits for what runs.
    pub(crate) fn wait(&mut self) -> Result<()> {
        match self.running.take().map(JoinHandle::join) {
            Some(Ok(done)) => done,
            // A panic goes on where it would have been without the thread.
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Ok(()),
        }
    }
}

impl Drop for Syncer {
    /// Nothing may write to a folder that is about to be removed.
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            let _ = running.join();
        }
    }
}
