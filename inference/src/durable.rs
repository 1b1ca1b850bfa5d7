//! Targets that are whole or not there: closing files, giving a folder its name, and syncing both where that is asked for.

use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::path::{Path, PathBuf};

use crate::error::ModelError;
use crate::progress::Progress;
use crate::torch_file::TorchFileError;

/// Writes a small file.
pub(crate) fn put(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes.as_ref())?;
    close(file)
}

/// Closes a file that was written. Network file systems and quotas may only now say that there is no room, and dropping
/// a file tells nobody.
pub(crate) fn close(file: File) -> Result<()> {
    Ok(nix::unistd::close(file)?)
}

/// Syncs all files and folders below one, and the folder.
pub(crate) fn sync_tree(folder: &Path, progress: &Progress) -> Result<()> {
    let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    let (mut at, mut bytes) = (0, 0);
    while let Some(folder) = folders.get(at) {
        for entry in std::fs::read_dir(folder)?.collect::<Result<Vec<_>>>()? {
            match entry.file_type()?.is_dir() {
                true => folders.push(entry.path()),
                false => {
                    let length = entry.metadata()?.len();
                    bytes += length;
                    files.push((entry.path(), length));
                }
            }
        }
        at += 1;
    }
    progress.start("syncing", Some(bytes));
    for (file, length) in files {
        File::open(file)?.sync_all()?;
        progress.add(length);
    }
    // What a folder holds comes before its name.
    folders.iter().rev().try_for_each(|folder| sync_folder(folder))
}

/// Renames a folder; with `fsync`, also syncs the folder that `to` is in.
pub(crate) fn rename(from: &Path, to: &Path, fsync: bool) -> Result<()> {
    std::fs::rename(from, to)?;
    match to.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        _ if !fsync => Ok(()),
        Some(parent) => sync_folder(parent).map_err(written),
        None => sync_folder(Path::new(".")).map_err(written),
    }
}

/// An error after the last rename.
fn written(error: Error) -> Error {
    let detail = format!("it is there and whole, but may not outlast a power loss: {error}");
    Error::new(error.kind(), detail)
}

/// An error of writing a target in a hidden folder as one of the target: the folder is gone when it is read.
pub(crate) fn of_target(error: ModelError, hidden: &Path, target: &Path) -> ModelError {
    let (path, source) = match error {
        ModelError::Write { path, source } => (path, source),
        ModelError::TorchFile(TorchFileError::Write { path, source }) => (path, source),
        other => return other,
    };
    let path = path.strip_prefix(hidden).map(|rest| target.join(rest)).unwrap_or(path);
    ModelError::Write { path, source }
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
            .map_err(written)
        })
    }
}

impl Drop for MadeFolders {
    fn drop(&mut self) {
        // What holds something by now is not removed.
        self.0.iter().rev().for_each(|folder| drop(std::fs::remove_dir(folder)));
    }
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
