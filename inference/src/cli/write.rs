//! What all commands that write a checkpoint take.

use clap::Args;

use crate::write_options::WriteOptions;

#[derive(Args)]
pub(super) struct WriteArgs {
    /// Wait until everything is on the disk before the target gets its name: for sources that are deleted afterwards
    #[arg(long)]
    fsync: bool,
}

impl WriteArgs {
    /// Runs what writes.
    pub(super) fn run<T>(&self, write: impl FnOnce(&WriteOptions) -> T) -> T {
        let how = WriteOptions { fsync: self.fsync, ..WriteOptions::default() };
        write(&how)
    }
}
