//! `--force`: a job starts anew, and what was there before is moved aside, never deleted.

use std::path::{Path, PathBuf};

use packd::{Config, Error};

/// Moves an output that exists to the first free of `OUT.1`, `OUT.2`, …
pub(crate) fn move_aside(config: &Config) -> Result<(), Error> {
    let Some(output) = config.output.as_deref().filter(|output| output.exists()) else {
        let in_store =
            config.output.as_deref().is_some_and(|output| output.to_string_lossy().contains("://"));
        let help = "an output in an object store cannot be moved aside: name another one, without --force";
        return if in_store { Err(Error::NotSet { key: "output", help }) } else { Ok(()) };
    };
    let path = output.to_owned();
    // Only what packd wrote, and nobody works on.
    let status = packd::status(output).map_err(|_| Error::NotAnOutput { path: path.clone() })?;
    if status.nodes.iter().any(|node| node.running) {
        return Err(Error::Busy { path });
    }
    let aside = free_name(output);
    std::fs::rename(output, &aside).map_err(|error| Error::State { path, message: error.to_string() })?;
    tracing::warn!("the earlier output was moved to {}", aside.display());
    Ok(())
}

fn free_name(output: &Path) -> PathBuf {
    let name = output.file_name().unwrap_or_default().to_string_lossy();
    let names = (1_u64..).map(|number| output.with_file_name(format!("{name}.{number}")));
    let mut free = names.filter(|path| path.symlink_metadata().is_err());
    free.next().unwrap_or_else(|| output.to_owned())
}
