//! Which folders a path means: an output of packd, or one data set of Energon.

use std::io;
use std::path::{Path, PathBuf};

use packd_sinks::{Checksums, METADATA_FOLDER};

use crate::error::Error;
use crate::state::job_file::JobFile;

/// Folders below a data set that are searched for tars; more would be a loop.
const MAX_DEPTH: usize = 16;

/// One folder of shards.
#[derive(Debug, Clone)]
pub(crate) struct DataSet {
    pub(crate) path: PathBuf,
    /// What its files' names start with in messages: empty, or `node_000/webdataset/`.
    pub(crate) prefix: String,
}

/// A packed data set.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    /// The folder that was named.
    pub(crate) folder: PathBuf,
    /// Whether it is an output of packd, with tables, checksums and a top-level dataset.yaml.
    pub(crate) is_output: bool,
    /// The output whose `run/` says how the set was made: the folder itself, or the one it lies in.
    pub(crate) run_of: Option<PathBuf>,
    pub(crate) sets: Vec<DataSet>,
}

impl Layout {
    /// Looks at a folder.
    pub(crate) fn find(folder: &Path) -> Result<Self, Error> {
        let wrong = |message: &str, help| Error::DataSet {
            path: folder.to_owned(),
            message: message.to_owned(),
            help,
        };
        if !folder.is_dir() {
            return Err(wrong(
                "there is no such folder",
                "name the output folder of a run, or a folder of tars",
            ));
        }
        let nodes =
            nodes(folder).map_err(|error| wrong(&error.to_string(), "name a folder that can be read"))?;
        let has_run = folder.join(JobFile::NAME).exists();
        if !nodes.is_empty() || has_run || folder.join(Checksums::FILE_NAME).exists() {
            let run_of = has_run.then(|| folder.to_owned());
            return Ok(Self { folder: folder.to_owned(), is_output: true, run_of, sets: nodes });
        }
        if !folder.join(METADATA_FOLDER).is_dir() && find_tars(folder).is_empty() {
            let help = "name the output folder of a run, or a folder that holds WebDataset tars";
            return Err(wrong("it holds no tars and no .nv-meta", help));
        }
        // OUT/node_000/webdataset: its run is two folders up.
        let above = folder.canonicalize().ok().and_then(|path| Some(path.parent()?.parent()?.to_owned()));
        let run_of = above.filter(|output| output.join(JobFile::NAME).exists());
        let set = DataSet { path: folder.to_owned(), prefix: String::new() };
        Ok(Self { folder: folder.to_owned(), is_output: false, run_of, sets: vec![set] })
    }
}

/// `node_*/webdataset` below an output, sorted.
fn nodes(output: &Path) -> io::Result<Vec<DataSet>> {
    let mut sets = Vec::new();
    for entry in std::fs::read_dir(output)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let path = output.join(&name).join("webdataset");
        if name.starts_with("node_") && path.is_dir() {
            sets.push(DataSet { path, prefix: format!("{name}/webdataset/") });
        }
    }
    sets.sort_by(|a, b| a.prefix.cmp(&b.prefix));
    Ok(sets)
}

/// The tars of a data set, as sorted paths relative to it; hidden folders are left out.
pub(crate) fn find_tars(folder: &Path) -> Vec<String> {
    let mut tars = Vec::new();
    collect(folder, "", MAX_DEPTH, &mut tars);
    tars.sort_unstable();
    tars
}

fn collect(folder: &Path, prefix: &str, depth: usize, tars: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if name.starts_with('.') {
            continue;
        }
        let path = entry.path();
        if path.is_dir() {
            if depth > 0 {
                collect(&path, &format!("{prefix}{name}/"), depth - 1, tars);
            }
        } else if name.ends_with(".tar") {
            tars.push(format!("{prefix}{name}"));
        }
    }
}
