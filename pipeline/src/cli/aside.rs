//! `--force`: a job starts anew where another one was, which is moved aside and never deleted.

use std::path::{Path, PathBuf};

use packd::storage::is_url;
use packd::{Config, Error, Job};

/// Moves the output of another job to the first free of `OUT.1`, `OUT.2`, …; one of this job is continued.
pub(crate) fn move_other_aside(config: &Config) -> Result<(), Error> {
    // First everything that may be wrong with the new job.
    let job = Job::new(config.clone())?;
    if !matches!(job.plan(), Err(Error::OtherJob { .. })) {
        return Ok(());
    }
    let output = job.output();
    if is_url(&output.to_string_lossy()) {
        let help = "an output in an object store cannot be moved aside: name another one, without --force";
        return Err(Error::NotSet { key: "output", help });
    }
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
