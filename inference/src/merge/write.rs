//! The merged checkpoint on disk: all of it, or nothing.

use std::path::{Path, PathBuf};

use candle_core::DType;
use safetensors::Dtype;
use serde_json::Value as Json;

use super::MergePlan;
use super::carried::Carried;
use crate::durable::{self, MadeFolders};
use crate::error::{ModelError, Result};
use crate::progress::Progress;
use crate::shards::{self, ShardTensor};
use crate::write_options::WriteOptions;

/// Writes a plan without problems into a folder that appears when it is whole.
pub(super) fn write(plan: &MergePlan, out: &Path, how: &WriteOptions) -> Result<()> {
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
    fill(plan, folder.path(), &how.progress)
        .map_err(|error| durable::of_target(error, folder.path(), out))?;
    if how.fsync {
        durable::sync_tree(folder.path(), &how.progress).map_err(failed(out))?;
    }
    refuse_existing(out)?;
    durable::rename(folder.path(), out, how.fsync).map_err(failed(out))?;
    // Its folder has another name now.
    let _ = folder.keep();
    made.keep(how.fsync).map_err(failed(&parent))
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

fn fill(plan: &MergePlan, folder: &Path, progress: &Progress) -> Result<()> {
    for (name, carried) in &plan.carried {
        let to = folder.join(name);
        match carried {
            Carried::Text(text) => put(&to, text)?,
            Carried::Copy(from) => {
                let bytes =
                    std::fs::read(from).map_err(|source| ModelError::Read { path: from.clone(), source })?;
                put(&to, bytes)?;
            }
        }
    }
    put(&folder.join("generation_config.json"), pretty(&plan.settings.generation))?;
    put(&folder.join("config.json"), pretty(&plan.settings.config))?;
    let dtype = match plan.options.dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        _ => Dtype::BF16,
    };
    let tensors =
        plan.tensors.iter().map(|planned| ShardTensor { name: &planned.name, dtype, shape: &planned.shape });
    let tensors: Vec<_> = tensors.collect();
    shards::write(folder, &tensors, plan.options.shard_bytes, progress, |number, file| {
        plan.stream(&plan.tensors[number], plan.options.dtype, |bytes| file.write(bytes))
    })?;
    Ok(())
}

fn put(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    durable::put(path, bytes).map_err(|source| ModelError::Write { path: path.to_owned(), source })
}

/// JSON for people, with a line feed at its end.
pub(super) fn pretty(json: &Json) -> String {
    format!("{json:#}\n")
}
