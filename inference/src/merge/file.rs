//! A safetensors file that is read in parts.
//!
//! Reading some hundred kilobytes at a time is faster than copying out of a mapping, and a file that somebody cuts
//! meanwhile is an error, not the end of the process.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use candle_core::DType;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde_json::Value as Json;

use super::source::wrong;
use crate::error::{ModelError, Result};

/// Bytes of the length that a file begins with.
const LENGTH: u64 = 8;
/// Bytes of a header at most, as in the library.
const LARGEST_HEADER: u64 = 100_000_000;

/// An open file.
pub(super) struct SafetensorsFile {
    path: PathBuf,
    file: File,
}

/// A tensor in it.
pub(super) struct Found {
    pub(super) dtype: std::result::Result<DType, String>,
    pub(super) shape: Vec<usize>,
    /// Its first byte.
    pub(super) start: u64,
}

impl SafetensorsFile {
    /// Opens a file: its tensors in no order. The header must describe the file to its last byte.
    pub(super) fn open(path: &Path) -> Result<(Self, Vec<(String, Found)>)> {
        let read = |source| ModelError::Read { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(read)?;
        let all = file.metadata().map_err(read)?.len();
        let mut length = [0; LENGTH as usize];
        if all < LENGTH {
            return Err(wrong(path, &format!("this is no safetensors file: it has {all} bytes")));
        }
        file.read_exact(&mut length).map_err(read)?;
        let length = u64::from_le_bytes(length);
        if length > LARGEST_HEADER {
            return Err(wrong(path, "this is no safetensors file: its header would be larger than 100 MB"));
        }
        let start = LENGTH + length;
        if start > all {
            return Err(wrong(path, "the file was cut short: not even its header is whole"));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(read)?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| wrong(path, &format!("this is no whole safetensors file: {error}")))?;
        let end = metadata.tensors().values().map(|info| info.data_offsets.1 as u64).max().unwrap_or(0);
        if end > all - start {
            return Err(wrong(path, &cut(&header, all - start)));
        }
        if end < all - start {
            let detail = format!("{} bytes after its last tensor belong to nothing", all - start - end);
            return Err(wrong(path, &detail));
        }
        let tensors = metadata.tensors().into_iter().map(|(name, info)| {
            let dtype = match info.dtype {
                Dtype::F64 => Ok(DType::F64),
                Dtype::F32 => Ok(DType::F32),
                Dtype::F16 => Ok(DType::F16),
                Dtype::BF16 => Ok(DType::BF16),
                other => Err(other.to_string()),
            };
            let start = start + info.data_offsets.0 as u64;
            (name, Found { dtype, shape: info.shape.clone(), start })
        });
        Ok((Self { path: path.to_owned(), file }, tensors.collect()))
    }

    /// Fills `bytes` with those of the file from `start`.
    pub(super) fn read(&self, start: u64, bytes: &mut [u8]) -> Result<()> {
        // Several threads read one file: none may move the place at which another does.
        self.file
            .read_exact_at(bytes, start)
            .map_err(|source| ModelError::Read { path: self.path.clone(), source })
    }
}

/// That a file of which `here` bytes of tensors are left was cut, and where.
fn cut(header: &[u8], here: u64) -> String {
    let header: serde_json::Map<String, Json> = serde_json::from_slice(header).unwrap_or_default();
    let ends =
        header.iter().filter_map(|(name, info)| Some((info.get("data_offsets")?.get(1)?.as_u64()?, name)));
    match ends.filter(|(end, _)| *end > here).min() {
        Some((end, name)) => {
            format!("the file was cut short: {name} ends at byte {end} of the tensors, {here} are here")
        }
        None => "the file was cut short".into(),
    }
}
