//! What all commands that write a checkpoint take.

use clap::Args;

use super::progress_view::View;
use crate::write_options::WriteOptions;

#[derive(Args)]
pub(super) struct WriteArgs {
    /// Wait until everything is on the disk before the target gets its name: for a source that is deleted afterwards
    #[arg(long)]
    fsync: bool,
}

impl WriteArgs {
    /// Runs what writes, and shows how far it is unless that should be `quiet`.
    pub(super) fn run<T>(&self, quiet: bool, write: impl FnOnce(&WriteOptions) -> T) -> T {
        let how = WriteOptions { fsync: self.fsync, ..WriteOptions::default() };
        let _view = View::of(&how.progress, quiet);
        write(&how)
    }
}

/// Reads a number of bytes.
pub(super) fn size(text: &str) -> std::result::Result<u64, String> {
    let units = [("KB", 1_000), ("MB", 1_000_000), ("GB", 1_000_000_000), ("TB", 1_000_000_000_000)];
    let upper = text.to_ascii_uppercase();
    let found = units.iter().find_map(|(unit, times)| Some((upper.strip_suffix(unit)?, *times)));
    let (number, times) = found.unwrap_or((&upper, 1));
    let bytes = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(times));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| "a size is a number of bytes, KB, MB, GB or TB".into())
}
