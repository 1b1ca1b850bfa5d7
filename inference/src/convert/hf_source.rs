//! The tensors of a Hugging Face checkpoint.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};

use super::error::ConvertError;
use super::model::Model;
use super::stream::HfTensors;
use super::{Format, names};
use crate::error::Result;
use crate::torch_file::{Bytes, TorchDtype};
use crate::weights;

/// Between the name of a layer and those of its experts.
const EXPERTS: &str = ".mlp.experts.";

/// Where a tensor lies.
struct Place {
    file: usize,
    /// First byte.
    start: usize,
    dtype: TorchDtype,
    cols: usize,
}

/// Where a tensor lies, and its shape.
type Shaped = (Place, Vec<usize>);

/// Mapped safetensors.
pub(super) struct HfSource {
    files: Vec<Bytes>,
    tensors: HashMap<String, Place>,
}

impl HfSource {
    /// Opens a checkpoint, which must have all tensors of the model and no others.
    pub(super) fn open(dir: &Path, model: &Model) -> Result<Self> {
        let mut found = Found { files: Vec::new(), tensors: HashMap::new() };
        for path in weights::files(dir)? {
            found.add(path)?;
        }
        found.refuse_two_forms()?;
        let experts = model.config.text.moe.as_ref().map_or(0, |moe| moe.num_experts);
        let mut tensors = HashMap::new();
        let mut fused = HashSet::new();
        for (name, shape) in model.hf_tensors() {
            let mut whole = found.take(name);
            if whole.is_none()
                && let Some((place, fused_name)) = found.expert(name, shape, experts)?
            {
                fused.insert(fused_name);
                whole = Some(place);
            }
            let Some((at, found_shape)) = whole else {
                let (name, path) = (name.to_owned(), dir.to_owned());
                return Err(ConvertError::MissingTensor { name, path, format: Format::Hf }.into());
            };
            if found_shape != shape {
                return Err(ConvertError::Shape {
                    name: name.to_owned(),
                    path: found.files[at.file].0.clone(),
                    found: found_shape,
                    expected: shape.to_vec(),
                }
                .into());
            }
            tensors.insert(name.to_owned(), at);
        }
        let left = found.tensors.keys().filter(|name| !fused.contains(*name));
        if let Some(name) = left.min() {
            let path = found.files[found.tensors[name].0.file].0.clone();
            return Err(ConvertError::UnknownTensor { name: name.clone(), path }.into());
        }
        Ok(Self { files: found.files.into_iter().map(|(_, bytes)| bytes).collect(), tensors })
    }
}

impl HfTensors for HfSource {
    fn dtype(&self, name: &str) -> Option<TorchDtype> {
        self.tensors.get(name).map(|place| place.dtype)
    }

    fn read(&self, name: &str, rows: Range<usize>, cols: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        // The names and ranges are those of the model, which were compared with the files on opening.
        let Some(place) = self.tensors.get(name) else { return Ok(()) };
        let size = place.dtype.size();
        let bytes = &self.files[place.file][place.start..];
        if cols == (0..place.cols) {
            out.extend_from_slice(&bytes[rows.start * place.cols * size..rows.end * place.cols * size]);
            return Ok(());
        }
        for row in rows {
            let start = row * place.cols;
            out.extend_from_slice(&bytes[(start + cols.start) * size..(start + cols.end) * size]);
        }
        Ok(())
    }
}

/// What the files hold.
struct Found {
    files: Vec<(PathBuf, Bytes)>,
    tensors: HashMap<String, Shaped>,
}

impl Found {
    fn add(&mut self, path: PathBuf) -> Result<()> {
        let wrong = |detail: String| ConvertError::Source { path: path.clone(), detail };
        let bytes = Bytes::map(&path)?;
        let file = self.files.len();
        let damaged = |error| wrong(format!("the safetensors file is damaged or cut short: {error}"));
        // The second checks that the tensors fill the file.
        let (header, metadata) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
        SafeTensors::deserialize(&bytes).map_err(damaged)?;
        for (name, info) in metadata.tensors() {
            if names::is_computed(&name) {
                continue;
            }
            let dtype = torch_dtype(info.dtype)
                .ok_or_else(|| wrong(format!("{name} is {:?}, which is not converted", info.dtype)))?;
            // A tensor without elements may have sizes of any product; it is none of the model.
            let cols = info.shape.iter().skip(1).fold(1, |cols: usize, size| cols.saturating_mul(*size));
            // 8 bytes before the header say how long it is.
            let start = 8 + header + info.data_offsets.0;
            let place = Place { file, start, dtype, cols };
            if let Some((other, _)) = self.tensors.insert(name.clone(), (place, info.shape.clone())) {
                let other = self.files[other.file].0.display();
                return Err(wrong(format!("{name} is also in {other}")).into());
            }
        }
        self.files.push((path, bytes));
        Ok(())
    }

    /// Refuses layers that have an expert of its own beside all experts in one tensor: one of the two would be lost.
    fn refuse_two_forms(&self) -> Result<()> {
        let of_experts = |name: &'_ String| {
            let (layer, rest) = name.split_once(EXPERTS)?;
            Some((layer.to_owned(), rest.starts_with(|first: char| first.is_ascii_digit())))
        };
        let all = self.tensors.keys().filter_map(|name| Some((of_experts(name)?, name)));
        let (single, fused): (Vec<_>, Vec<_>) = all.partition(|((_, is_single), _)| *is_single);
        let fused: HashMap<String, &String> =
            fused.into_iter().map(|((layer, _), name)| (layer, name)).collect();
        let both = single.iter().filter_map(|((layer, _), name)| Some((*name, *fused.get(layer)?)));
        let Some((single, fused)) = both.min() else { return Ok(()) };
        let path = self.files[self.tensors[fused].0.file].0.clone();
        let detail =
            format!("{fused} is of all experts of a layer, and {single} of one of them; keep one of the two");
        Err(ConvertError::Source { path, detail }.into())
    }

    fn take(&mut self, name: &str) -> Option<Shaped> {
        self.tensors.remove(name)
    }

    /// An expert's tensor in those that transformers 5 keeps for all experts of a layer: `down_proj` [E, H, F] and
    /// `gate_up_proj` [E, 2F, H], gate rows first. Also the name of that tensor. None when there is no such tensor.
    fn expert(&self, name: &str, shape: &[usize], experts: usize) -> Result<Option<(Shaped, String)>> {
        let Some((layer, expert, matrix)) = expert_name(name) else { return Ok(None) };
        let (fused, below, times) = match matrix {
            "gate_proj" => ("gate_up_proj", 0, 2),
            "up_proj" => ("gate_up_proj", 1, 2),
            _ => (matrix, 0, 1),
        };
        let fused = format!("{layer}.mlp.experts.{fused}");
        let (Some((place, all)), &[rows, cols]) = (self.tensors.get(&fused), shape) else { return Ok(None) };
        let expected = vec![experts, times * rows, cols];
        if *all != expected {
            let (path, found) = (self.files[place.file].0.clone(), all.clone());
            return Err(ConvertError::Shape { name: fused, path, found, expected }.into());
        }
        let before = (expert * times * rows + below * rows) * cols * place.dtype.size();
        let at = Place { file: place.file, start: place.start + before, dtype: place.dtype, cols };
        Ok(Some(((at, vec![rows, cols]), fused)))
    }
}

/// Layer, number and matrix of an expert's tensor.
fn expert_name(name: &str) -> Option<(&str, usize, &str)> {
    let (layer, rest) = name.split_once(EXPERTS)?;
    let (expert, matrix) = rest.strip_suffix(".weight")?.split_once('.')?;
    Some((layer, expert.parse().ok()?, matrix))
}

/// The torch dtype of one of safetensors.
fn torch_dtype(dtype: Dtype) -> Option<TorchDtype> {
    Some(match dtype {
        Dtype::BF16 => TorchDtype::BFloat16,
        Dtype::F16 => TorchDtype::Half,
        Dtype::F32 => TorchDtype::Float,
        Dtype::F64 => TorchDtype::Double,
        Dtype::F8_E4M3 => TorchDtype::Float8E4M3,
        Dtype::F8_E5M2 => TorchDtype::Float8E5M2,
        _ => return None,
    })
}
