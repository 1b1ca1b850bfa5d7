//! Writing a Hugging Face checkpoint.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::json;

use super::error::ConvertError;
use super::model::Model;
use super::pieces::Piece;
use super::stream::{HfTensors, PieceReader};
use super::sync::Syncer;
use super::{HfOptions, Report};
use crate::error::{ModelError, Result};
use crate::torch_file::{TensorSpec, TorchDtype};
use crate::weights;

type Tensor<'a> = (&'a str, TensorSpec);

/// Writes the safetensors and their index below `dir`, and copies all but the weights from `carried`.
pub(super) fn write(
    dir: &Path,
    model: &Model,
    source: &dyn HfTensors,
    carried: &Path,
    options: &HfOptions,
) -> Result<Report> {
    let (mut report, mut syncer) = (Report::default(), Syncer::default());
    let shards = shards(model, source, options.shard_bytes)?;
    let mut map = BTreeMap::new();
    let count = shards.len();
    for (number, mut shard) in shards.into_iter().enumerate() {
        let name = match count {
            1 => weights::ONE_FILE.to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        // As the safetensors library orders a file: large elements first, then by name.
        shard.sort_by(|(one, first), (other, second)| {
            second.dtype.size().cmp(&first.dtype.size()).then(one.cmp(other))
        });
        let path = dir.join(&name);
        write_shard(&path, &shard, source, &mut report, &mut syncer)?;
        map.extend(shard.iter().map(|(tensor, _)| ((*tensor).to_owned(), name.clone())));
    }
    syncer.wait()?;
    if count > 1 {
        let index = json!({ "metadata": { "total_size": report.bytes }, "weight_map": map });
        let path = dir.join(weights::INDEX);
        let failed = |source| ModelError::Write { path: path.clone(), source };
        let text = serde_json::to_string_pretty(&index).map_err(|error| failed(error.into()))?;
        std::fs::write(&path, text + "\n").map_err(failed)?;
    }
    report.carried = carry(carried, dir)?;
    Ok(report)
}

/// The model's tensors in its order, in files of at most `limit` bytes, or of one tensor.
fn shards<'a>(model: &'a Model, source: &dyn HfTensors, limit: u64) -> Result<Vec<Vec<Tensor<'a>>>> {
    let mut shards: Vec<Vec<Tensor<'_>>> = vec![Vec::new()];
    let mut filled = 0;
    for (name, shape) in model.hf_tensors() {
        let dtype = source.dtype(name).ok_or_else(|| ModelError::MissingTensor {
            name: name.to_owned(),
            help: "the source was checked to have it; please report this",
        })?;
        if st_name(dtype).is_none() {
            let (path, detail) = (name.into(), format!("{dtype} is no dtype of weights in safetensors"));
            return Err(ConvertError::Source { path, detail }.into());
        }
        let spec = TensorSpec { dtype, shape: shape.to_vec() };
        let bytes = spec.bytes().unwrap_or(usize::MAX) as u64;
        let last = shards.len() - 1;
        if filled > 0 && filled + bytes > limit {
            shards.push(vec![(name, spec)]);
            filled = bytes;
        } else {
            shards[last].push((name, spec));
            filled += bytes;
        }
    }
    Ok(shards)
}

/// 8 bytes with the length of the header, the header as JSON, the tensors.
fn write_shard(
    path: &Path,
    shard: &[Tensor<'_>],
    source: &dyn HfTensors,
    report: &mut Report,
    syncer: &mut Syncer,
) -> Result<()> {
    let failed = |source| ModelError::Write { path: path.to_owned(), source };
    let json = |error: serde_json::Error| failed(error.into());
    let mut header = String::from(r#"{"__metadata__":{"format":"pt"}"#);
    let mut end = 0;
    for (name, spec) in shard {
        let start = end;
        end += spec.bytes().unwrap_or(usize::MAX);
        let info = TensorHeader {
            dtype: st_name(spec.dtype).unwrap_or_default(),
            shape: &spec.shape,
            data_offsets: [start, end],
        };
        header += &format!(
            ",{}:{}",
            serde_json::to_string(name).map_err(json)?,
            serde_json::to_string(&info).map_err(json)?
        );
        report.add(spec);
    }
    header.push('}');
    // The tensors start at a multiple of 8 bytes.
    let length = header.len().next_multiple_of(8);
    let mut out = BufWriter::with_capacity(1 << 20, File::create_new(path).map_err(failed)?);
    out.write_all(&(length as u64).to_le_bytes()).map_err(failed)?;
    header.extend(std::iter::repeat_n(' ', length - header.len()));
    out.write_all(header.as_bytes()).map_err(failed)?;
    for (name, spec) in shard {
        let (rows, cols) = (spec.shape[0], spec.shape[1..].iter().product());
        let piece = Piece { part: 0, rows: 0..rows, cols: 0..cols, filler: None };
        let mut reader = PieceReader::new(source, vec![*name], vec![piece], spec.dtype.size());
        let written = std::io::copy(&mut reader, &mut out).map_err(failed)?;
        syncer.wrote(written, out.get_ref())?;
    }
    let file = out.into_inner().map_err(|error| failed(error.into_error()))?;
    let written = file.metadata().map_err(failed)?.len();
    if written != (8 + length + end) as u64 {
        let detail = format!("{written} bytes were written, not {}", 8 + length + end);
        return Err(failed(std::io::Error::other(detail)));
    }
    report.files += 1;
    let path = path.to_owned();
    syncer.run(move || file.sync_all().map_err(|source| ModelError::Write { path, source }))
}

#[derive(serde::Serialize)]
struct TensorHeader<'a> {
    dtype: &'static str,
    shape: &'a [usize],
    data_offsets: [usize; 2],
}

/// The name of a dtype in safetensors.
fn st_name(dtype: TorchDtype) -> Option<&'static str> {
    Some(match dtype {
        TorchDtype::BFloat16 => "BF16",
        TorchDtype::Half => "F16",
        TorchDtype::Float => "F32",
        TorchDtype::Double => "F64",
        TorchDtype::Float8E4M3 => "F8_E4M3",
        TorchDtype::Float8E5M2 => "F8_E5M2",
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
        std::fs::write(&path, bytes).map_err(|source| ModelError::Write { path, source })?;
    }
    Ok(names)
}

fn is_carried(name: &str) -> bool {
    let kinds = ["json", "txt", "model", "tiktoken", "jinja", "py"];
    let kind = name.rsplit_once('.').map(|(_, kind)| kind);
    !name.starts_with('.') && !name.ends_with(".index.json") && kind.is_some_and(|kind| kinds.contains(&kind))
}
