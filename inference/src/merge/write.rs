//! The merged checkpoint on disk: all of it, or nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::carried::Carried;
use super::{MergePlan, Planned, shard};
use crate::durable::MadeFolders;
use crate::error::{ModelError, Result};

/// Writes a plan without problems into a folder that appears when it is whole.
pub(super) fn write(plan: &MergePlan, out: &Path) -> Result<()> {
    refuse_existing(out)?;
    let (parent, name) = (parent(out), out.file_name().unwrap_or_default());
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ModelError::Write { path, source }
    };
    let made = MadeFolders::make(&parent).map_err(failed(&parent))?;
    let prefix = format!(".{}.", name.to_string_lossy());
    let mut builder = tempfile::Builder::new();
    // A folder as mkdir makes it, not one for its owner alone.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    let folder = builder.prefix(&prefix).tempdir_in(&parent).map_err(failed(&parent))?;
    fill(plan, folder.path())?;
    refuse_existing(out)?;
    crate::durable::rename(folder.path(), out).map_err(failed(out))?;
    // Its folder has another name now.
    let _ = folder.keep();
    made.keep().map_err(failed(&parent))
}

/// The folder that another lies in.
fn parent(out: &Path) -> PathBuf {
    out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned()
}

/// Nothing is ever written over.
pub(super) fn refuse_existing(out: &Path) -> Result<()> {
    let refuse = |kind: std::io::ErrorKind, why: &str| {
        Err(ModelError::Write { path: out.to_owned(), source: std::io::Error::new(kind, why.to_owned()) })
    };
    if out.file_name().is_none() {
        return refuse(std::io::ErrorKind::InvalidInput, "this is no name for a new folder");
    }
    if out.symlink_metadata().is_ok() {
        return refuse(std::io::ErrorKind::AlreadyExists, "it exists; give the name of a new folder");
    }
    Ok(())
}

fn fill(plan: &MergePlan, folder: &Path) -> Result<()> {
    for (name, carried) in &plan.carried {
        let to = folder.join(name);
        match carried {
            Carried::Text(text) => put(&to, text)?,
            Carried::Copy(from) => {
                std::fs::copy(from, &to).map_err(|source| ModelError::Write { path: to, source })?;
            }
        }
    }
    put(&folder.join("generation_config.json"), &pretty(&plan.settings.generation))?;
    put(&folder.join("config.json"), &pretty(&plan.settings.config))?;
    let shards = shards(plan);
    let mut map = BTreeMap::new();
    for (number, tensors) in (1..).zip(&shards) {
        let name = match shards.len() {
            1 => "model.safetensors".to_owned(),
            all => format!("model-{number:05}-of-{all:05}.safetensors"),
        };
        shard::write(plan, tensors, &folder.join(&name))?;
        map.extend(tensors.iter().map(|planned| (planned.name.as_str(), name.clone())));
    }
    if shards.len() > 1 {
        let elements: usize = plan.tensors.iter().map(Planned::elements).sum();
        let metadata = json!({"total_parameters": elements, "total_size": plan.report.bytes});
        let index = json!({"metadata": metadata, "weight_map": map});
        put(&folder.join("model.safetensors.index.json"), &pretty(&index))?;
    }
    Ok(())
}

fn put(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(|source| ModelError::Write { path: path.to_owned(), source })
}

/// JSON for people, with a line feed at its end.
pub(super) fn pretty(json: &Json) -> String {
    format!("{json:#}\n")
}

/// Tensors in the order of the model, in files of a size; one that is larger has a file of its own.
fn shards(plan: &MergePlan) -> Vec<Vec<&Planned>> {
    let mut shards: Vec<Vec<&Planned>> = vec![Vec::new()];
    let mut size = 0;
    for planned in &plan.tensors {
        let bytes = planned.bytes(plan.options.dtype);
        if let Some(last) = shards.last_mut()
            && (size + bytes <= plan.options.shard_bytes || last.is_empty())
        {
            last.push(planned);
            size += bytes;
            continue;
        }
        shards.push(vec![planned]);
        size = bytes;
    }
    shards
}
