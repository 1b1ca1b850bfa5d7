//! What all commands that write a checkpoint take.

use clap::Args;

use super::progress_view::View;
use crate::write_options::WriteOptions;

#[derive(Args)]
pub(super) struct WriteArgs {
    /// Wait until everything is on the disk before the target gets its name: for sources that are deleted afterwards
    #[arg(long)]
    fsync: bool,
}

impl WriteArgs {
    /// Runs what writes, and shows how far it is.
    pub(super) fn run<T>(&self, write: impl FnOnce(&WriteOptions) -> T) -> T {
        let how = WriteOptions { fsync: self.fsync, ..WriteOptions::default() };
        let _view = View::of(&how.progress);
        write(&how)
    }
}
