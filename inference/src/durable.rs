//! Giving a folder its name when everything in it is on the disk, so that a target is whole also after a power loss.

use std::fs::File;
use std::io::Result;
use std::path::Path;

/// Syncs all files and folders below `from`, renames it to `to`, and syncs the folder that `to` is in.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    sync_tree(from)?;
    std::fs::rename(from, to)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync_folder(parent)
}

/// Files that were synced before cost next to nothing here.
fn sync_tree(folder: &Path) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => sync_tree(&entry.path())?,
            false => File::open(entry.path())?.sync_all()?,
        }
    }
    sync_folder(folder)
}

/// Elsewhere folders cannot be opened.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_: &Path) -> Result<()> {
    Ok(())
}
