//! A target folder that is there whole or not at all.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use tempfile::TempDir;

use super::error::ConvertError;
use crate::durable::{self, MadeFolders};
use crate::error::{ModelError, Result};
use crate::write_options::WriteOptions;

/// A folder beside the target, which becomes it when all is written. Dropped before, it is removed.
pub(super) struct Target {
    path: PathBuf,
    // Dropped in this order.
    dir: TempDir,
    made: MadeFolders,
}

impl Target {
    /// Starts a target, making the folders that it lies in.
    pub(super) fn start(path: &Path, sources: &[&Path]) -> Result<Self> {
        let failed = |source| ModelError::Write { path: path.to_owned(), source };
        let (full, parent) = check(path, sources)?;
        let made = MadeFolders::make(&parent).map_err(failed)?;
        let mut builder = tempfile::Builder::new();
        let name = full.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let prefix = format!(".{name}.");
        builder.prefix(&prefix).suffix(".tmp");
        #[cfg(unix)]
        {
            // Readable by others, less the umask, as folders are that programs make.
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(std::fs::Permissions::from_mode(0o777));
        }
        let dir = builder.tempdir_in(parent).map_err(failed)?;
        Ok(Self { path: full, dir, made })
    }

    /// An error of writing it, under its name.
    pub(super) fn named(&self, error: ModelError) -> ModelError {
        durable::of_target(error, self.dir.path(), &self.path)
    }

    /// Where to write.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Gives the folder its name, when all of it is on the disk if that is asked for. If something has taken the name in
    /// the meantime, that stays and this goes.
    pub(super) fn finish(self, how: &WriteOptions) -> Result<()> {
        let path = self.path.clone();
        if how.fsync {
            let failed = |source| ModelError::Write { path: path.clone(), source };
            durable::sync_tree(self.dir.path(), &how.progress).map_err(failed)?;
        }
        // A folder replaces an empty one, and nothing else.
        durable::rename(self.dir.path(), &path, how.fsync).map_err(|source| match source.kind() {
            // A part of the same device that is mounted here.
            ErrorKind::ResourceBusy | ErrorKind::CrossesDevices => {
                ConvertError::MountPoint { path: path.clone() }.into()
            }
            _ => ModelError::Write { path: path.clone(), source },
        })?;
        // Its temporary name is gone, so there is nothing left to remove.
        let _ = self.dir.keep();
        self.made.keep(how.fsync).map_err(|source| ModelError::Write { path, source })
    }
}

/// Refuses a target that is there and not empty, or that lies in a source. Its full path and the folder it lies in.
pub(super) fn check(path: &Path, sources: &[&Path]) -> Result<(PathBuf, PathBuf)> {
    let failed = |source| ModelError::Write { path: path.to_owned(), source };
    let taken = || ConvertError::TargetExists { path: path.to_owned() };
    match std::fs::read_dir(path) {
        Ok(mut entries) => {
            if entries.next().is_some() {
                return Err(taken().into());
            }
            if is_mount_point(path).map_err(failed)? {
                return Err(ConvertError::MountPoint { path: path.to_owned() }.into());
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if path.symlink_metadata().is_ok() {
                return Err(taken().into());
            }
        }
        Err(error) if error.kind() == ErrorKind::NotADirectory => return Err(taken().into()),
        Err(error) => return Err(failed(error)),
    }
    let full = resolved(path).map_err(failed)?;
    let parent = full.parent().ok_or_else(taken)?;
    check_outside(path, parent, sources)?;
    let parent = parent.to_owned();
    Ok((full, parent))
}

/// The full path without links and `..`, as far as it is there. Nothing is made before it is known to be outside the
/// sources.
fn resolved(path: &Path) -> std::io::Result<PathBuf> {
    let mut full = PathBuf::new();
    for component in std::path::absolute(path)?.components() {
        match component {
            // What is before it has no links any more.
            Component::ParentDir => drop(full.pop()),
            _ => full.push(component),
        }
        if let Ok(real) = full.canonicalize() {
            full = real;
        }
    }
    Ok(full)
}

/// Whether a folder lies on another device than the folder that it is in, so that no other can be renamed to it.
#[cfg(unix)]
fn is_mount_point(folder: &Path) -> std::io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let full = folder.canonicalize()?;
    match full.parent() {
        Some(parent) => Ok(full.metadata()?.dev() != parent.metadata()?.dev()),
        None => Ok(true),
    }
}

#[cfg(not(unix))]
fn is_mount_point(_: &Path) -> std::io::Result<bool> {
    Ok(false)
}

fn check_outside(target: &Path, parent: &Path, sources: &[&Path]) -> Result<()> {
    for source in sources {
        let full = source.canonicalize().unwrap_or(source.to_path_buf());
        if parent.starts_with(&full) {
            let (path, source_dir) = (target.to_owned(), source.to_path_buf());
            return Err(ConvertError::TargetInSource { path, source_dir }.into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_on_the_way_go_with_a_target_that_is_not_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/deeper/target");
        let target = Target::start(&path, &[]).unwrap();
        std::fs::write(target.dir().join("part"), "").unwrap();
        assert!(path.parent().unwrap().is_dir());
        drop(target);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let target = Target::start(&path, &[]).unwrap();
        std::fs::write(target.dir().join("whole"), "").unwrap();
        target.finish(&WriteOptions { fsync: true, ..WriteOptions::default() }).unwrap();
        assert!(path.join("whole").is_file());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn mount_points_are_known() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!is_mount_point(folder.path()).unwrap());
        assert!(is_mount_point(Path::new("/proc")).unwrap());
        assert!(is_mount_point(Path::new("/")).unwrap());
        assert!(!is_mount_point(Path::new("/proc/self")).unwrap());
    }
}
