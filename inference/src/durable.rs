//! Giving a folder its name when it is whole; also after a power loss, where that is asked for.

use std::fs::File;
use std::io::{ErrorKind, Result};
use std::path::{Path, PathBuf};

/// Renames a folder. With `fsync`, syncs all files and folders in it before, and the folder that `to` is in after.
pub(crate) fn rename(from: &Path, to: &Path, fsync: bool) -> Result<()> {
    if !fsync {
        return std::fs::rename(from, to);
    }
    sync_tree(from)?;
    std::fs::rename(from, to)?;
    let parent = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    sync_folder(parent)
}

/// Folders that were made for a target to lie in. Those that hold nothing are removed when this is dropped.
#[derive(Default)]
pub(crate) struct MadeFolders(Vec<PathBuf>);

impl MadeFolders {
    /// Makes a folder, and those that it lies in, as far as they are not there.
    pub(crate) fn make(folder: &Path) -> Result<Self> {
        let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
        let mut made = Self::default();
        for folder in missing.into_iter().rev() {
            match std::fs::create_dir(folder) {
                Ok(()) => made.0.push(folder.to_owned()),
                // Somebody else made it meanwhile, so it is theirs.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && folder.is_dir() => (),
                Err(error) => return Err(error),
            }
        }
        Ok(made)
    }

    /// Leaves them; with `fsync`, also after a power loss.
    pub(crate) fn keep(mut self, fsync: bool) -> Result<()> {
        let made = std::mem::take(&mut self.0);
        if !fsync {
            return Ok(());
        }
        made.iter().filter_map(|folder| folder.parent()).try_for_each(|parent| {
            match parent.as_os_str().is_empty() {
                true => sync_folder(Path::new(".")),
                false => sync_folder(parent),
            }
        })
    }
}

impl Drop for MadeFolders {
    fn drop(&mut self) {
        // What holds something by now is not removed.
        self.0.iter().rev().for_each(|folder| drop(std::fs::remove_dir(folder)));
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_folders_go_unless_kept_or_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("there")).unwrap();
        drop(MadeFolders::make(&path("there/a/b")).unwrap());
        assert!(path("there").is_dir() && !path("there/a").exists());
        let made = MadeFolders::make(&path("there/a/b")).unwrap();
        std::fs::write(path("there/a/of others"), "").unwrap();
        drop(made);
        assert!(path("there/a").is_dir() && !path("there/a/b").exists());
        MadeFolders::make(&path("kept/a")).unwrap().keep(true).unwrap();
        assert!(path("kept/a").is_dir());
        drop(MadeFolders::make(&path("kept/a")).unwrap());
        assert!(path("kept/a").is_dir());
        // What was made before an error goes too.
        std::fs::write(path("file"), "").unwrap();
        assert!(MadeFolders::make(&path("file/a")).is_err());
        assert!(MadeFolders::make(&path("new").join("x".repeat(300))).is_err());
        assert!(!path("new").exists());
    }
}
