//! A target folder that is there whole or not at all.

use std::path::{Component, Path, PathBuf};

use tempfile::TempDir;

use super::error::ConvertError;
use crate::durable;
use crate::error::{ModelError, Result};

/// A folder beside the target, which becomes it when all is written. Dropped before, it is removed.
pub(super) struct Target {
    path: PathBuf,
    dir: TempDir,
}

impl Target {
    /// Starts a target, making the folders that it lies in.
    pub(super) fn start(path: &Path, sources: &[&Path]) -> Result<Self> {
        let failed = |source| ModelError::Write { path: path.to_owned(), source };
        let (full, parent) = check(path, sources)?;
        std::fs::create_dir_all(&parent).map_err(failed)?;
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
        Ok(Self { path: full, dir })
    }

    /// Where to write.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Gives the folder its name. If something has taken it in the meantime, that stays and this goes.
    pub(super) fn finish(self) -> Result<()> {
        let failed = |source| ModelError::Write { path: self.path.clone(), source };
        // A folder replaces an empty one, and nothing else.
        durable::rename(self.dir.path(), &self.path).map_err(failed)?;
        // Its temporary name is gone, so there is nothing left to remove.
        let _ = self.dir.keep();
        Ok(())
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
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            if path.symlink_metadata().is_ok() {
                return Err(taken().into());
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => return Err(taken().into()),
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
