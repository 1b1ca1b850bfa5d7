//! A mapped safetensors file.

use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::DType;
use memmap2::Mmap;
use safetensors::{Dtype, SafeTensorError, SafeTensors};

use super::source::wrong;
use crate::error::{ModelError, Result};

/// Bytes of the length that a file begins with.
const LENGTH: usize = 8;

/// An open file. It must not be cut while it is open.
pub(super) struct MappedFile {
    path: PathBuf,
    map: Mmap,
}

/// A tensor in it.
pub(super) struct Found {
    pub(super) dtype: std::result::Result<DType, String>,
    pub(super) shape: Vec<usize>,
    pub(super) place: Range<usize>,
}

impl MappedFile {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let read = |source| ModelError::Read { path: path.to_owned(), source };
        let file = std::fs::File::open(path).map_err(read)?;
        // SAFETY: the mapping is only read. Someone who cuts a checkpoint while it is open gets a bus error, as with
        // every program that maps safetensors; that is said above and in docs/checkpoints.md.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.map_err(read)?;
        Ok(Self { path: path.to_owned(), map })
    }

    /// Names and tensors in no order. The header must describe the file to its last byte.
    pub(super) fn tensors(&self) -> Result<Vec<(String, Found)>> {
        let (header, metadata) = SafeTensors::read_metadata(&self.map)
            .map_err(|error| wrong(&self.path, &self.explain(&error)))?;
        let start = LENGTH + header;
        let found = metadata.tensors().into_iter().map(|(name, info)| {
            let (from, to) = info.data_offsets;
            let dtype = match info.dtype {
                Dtype::F64 => Ok(DType::F64),
                Dtype::F32 => Ok(DType::F32),
                Dtype::F16 => Ok(DType::F16),
                Dtype::BF16 => Ok(DType::BF16),
                other => Err(other.to_string()),
            };
            (name, Found { dtype, shape: info.shape.clone(), place: start + from..start + to })
        });
        Ok(found.collect())
    }

    pub(super) fn bytes(&self, place: &Range<usize>) -> &[u8] {
        // The header was checked against the file's length.
        &self.map[place.clone()]
    }

    /// What is wrong with the file, with the first tensor that is not all there when it was cut.
    fn explain(&self, error: &SafeTensorError) -> String {
        self.first_cut().unwrap_or_else(|| format!("this is no whole safetensors file: {error}"))
    }

    fn first_cut(&self) -> Option<String> {
        let length = u64::from_le_bytes(self.map.get(..LENGTH)?.try_into().ok()?);
        let end = usize::try_from(length).ok()?.checked_add(LENGTH)?;
        let Some(header) = self.map.get(LENGTH..end) else {
            return Some("the file was cut short: not even its header is whole".into());
        };
        let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).ok()?;
        let here = (self.map.len() - end) as u64;
        let ends = header
            .iter()
            .filter_map(|(name, info)| Some((info.get("data_offsets")?.get(1)?.as_u64()?, name)));
        let (end, name) = ends.filter(|(end, _)| *end > here).min()?;
        Some(format!("the file was cut short: {name} ends at byte {end} of the tensors, {here} are here"))
    }
}
