//! The list of checksums: every file that was written is there as it was written.

use std::collections::HashSet;
use std::path::PathBuf;

use packd_sinks::{Checksums, hash_file};
use rayon::prelude::*;

use super::context::Context;
use super::fault::FaultKind;

/// What every output has besides its shards.
const TOP_LEVEL: [&str; 4] = ["bins.parquet", "dataset.yaml", "lengths.parquet", "rejects.jsonl"];

/// Names what no other check has named yet, so it comes last.
pub(super) fn check(context: &Context<'_>) {
    let Some(checksums) = &context.checksums else { return };
    let files: Vec<_> = checksums.iter().collect();
    let read: HashSet<PathBuf> = context.packs().shards.iter().cloned().collect();
    let changed = context.packs().changed.clone();
    let shards = read.iter().filter_map(|path| path.strip_prefix(&context.layout.folder).ok()?.to_str());
    for file in shards.chain(TOP_LEVEL).filter(|file| checksums.get(file).is_none()) {
        let detail = format!("it does not list {file}");
        context.faults.add(FaultKind::FileChanged, Checksums::FILE_NAME, detail);
    }
    files.par_iter().for_each(|(file, written)| {
        if context.faults.has(file) {
            return;
        }
        let path = context.layout.folder.join(file);
        if !path.exists() {
            let detail = format!("{} lists it, and it is not there", Checksums::FILE_NAME);
            return context.faults.add(FaultKind::FileMissing, file, detail);
        }
        // Shards were compared while they were read.
        let same = if read.contains(&path) {
            Ok(!changed.contains(*file))
        } else {
            hash_file(&path).map(|found| found == *written)
        };
        match same {
            Ok(true) => {}
            Ok(false) => {
                context.faults.add(
                    FaultKind::FileChanged,
                    file,
                    "its checksum is not the one that was written",
                );
            }
            Err(error) => context.faults.add(FaultKind::FileChanged, file, error.to_string()),
        }
    });
}
