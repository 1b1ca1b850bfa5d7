//! Writing a Hugging Face checkpoint.

use std::path::Path;

use safetensors::Dtype;

use super::error::ConvertError;
use super::model::Model;
use super::pieces::Piece;
use super::stream::{HfTensors, PieceReader};
use super::{HfOptions, Report};
use crate::durable;
use crate::error::{ModelError, Result};
use crate::progress::Progress;
use crate::shards::{self, ShardTensor};
use crate::torch_file::TorchDtype;

/// Writes the safetensors and their index below `dir`, and copies all but the weights from `carried`.
pub(super) fn write(
    dir: &Path,
    model: &Model,
    source: &dyn HfTensors,
    carried: &Path,
    options: &HfOptions,
    progress: &Progress,
) -> Result<Report> {
    let tensors = tensors(model, source)?;
    let files = shards::write(dir, &tensors, options.shard_bytes, progress, |number, file| {
        let ShardTensor { name, dtype, shape } = tensors[number];
        let (rows, cols) = (shape[0], shape[1..].iter().product());
        let piece = Piece { part: 0, rows: 0..rows, cols: 0..cols, filler: None };
        let mut reader = PieceReader::new(source, vec![name], vec![piece], dtype.bitsize() / 8);
        while let Some(bytes) = reader.next_block()? {
            file.write(bytes)?;
        }
        Ok(())
    })?;
    Ok(Report {
        files,
        tensors: tensors.len(),
        bytes: tensors.iter().map(|tensor| tensor.bytes() as u64).sum(),
        carried: carry(carried, dir)?,
        notes: Vec::new(),
    })
}

/// The model's tensors in its order.
fn tensors<'a>(model: &'a Model, source: &dyn HfTensors) -> Result<Vec<ShardTensor<'a>>> {
    let of_model = |(name, shape): (&'a str, &'a [usize])| {
        let found = source.dtype(name).ok_or_else(|| ModelError::MissingTensor {
            name: name.to_owned(),
            help: "the source was checked to have it; please report this",
        })?;
        let dtype = st_dtype(found).ok_or_else(|| {
            let (path, detail) = (name.into(), format!("{found} is no dtype of weights in safetensors"));
            ConvertError::Source { path, detail }
        })?;
        Ok(ShardTensor { name, dtype, shape })
    };
    model.hf_tensors().map(of_model).collect()
}

/// The dtype in safetensors of one of torch.
fn st_dtype(dtype: TorchDtype) -> Option<Dtype> {
    Some(match dtype {
        TorchDtype::BFloat16 => Dtype::BF16,
        TorchDtype::Half => Dtype::F16,
        TorchDtype::Float => Dtype::F32,
        TorchDtype::Double => Dtype::F64,
        TorchDtype::Float8E4M3 => Dtype::F8_E4M3,
        TorchDtype::Float8E5M2 => Dtype::F8_E5M2,
        _ => return None,
    })
}

/// Copies configuration, tokenizer, processor and code; their names.
fn carry(from: &Path, to: &Path) -> Result<Vec<String>> {
    let read = |source| ModelError::Read { path: from.to_owned(), source };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(from).map_err(read)? {
        let entry = entry.map_err(read)?;
        // Links are followed: the files of the hub's cache are links.
        if let Ok(name) = entry.file_name().into_string()
            && is_carried(&name)
            && entry.path().is_file()
        {
            names.push(name);
        }
    }
    names.sort_unstable();
    for name in &names {
        let bytes = std::fs::read(from.join(name))
            .map_err(|source| ModelError::Read { path: from.join(name), source })?;
        let path = to.join(name);
        durable::put(&path, bytes).map_err(|source| ModelError::Write { path, source })?;
    }
    Ok(names)
}

fn is_carried(name: &str) -> bool {
    let kinds = ["json", "txt", "model", "tiktoken", "jinja", "py"];
    let kind = name.rsplit_once('.').map(|(_, kind)| kind);
    !name.starts_with('.') && !name.ends_with(".index.json") && kind.is_some_and(|kind| kinds.contains(&kind))
}
