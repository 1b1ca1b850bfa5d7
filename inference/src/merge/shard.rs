//! A safetensors file whose tensors are never in memory.
//!
//! The `safetensors` crate writes files too, but it asks for each tensor as a whole; an embedding in f32 can have 2 GB.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use candle_core::DType;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use super::{MergePlan, Planned};
use crate::error::{ModelError, Result};

/// Headers end at a multiple of this, so that tensors of 8-byte numbers can be mapped.
const ALIGNMENT: usize = 8;

/// Writes tensors by name, as the library orders those of one dtype.
pub(super) fn write(plan: &MergePlan, shard: &[&Planned], path: &Path) -> Result<()> {
    let failed = |source| ModelError::Write { path: path.to_owned(), source };
    let mut shard = shard.to_vec();
    shard.sort_by(|one, other| one.name.cmp(&other.name));
    let header = header(plan.options.dtype, &shard).map_err(failed)?;
    let mut file = File::create_new(path).map_err(failed)?;
    file.write_all(&header).map_err(failed)?;
    for planned in shard {
        // The chunks are large enough that nothing would be gained by another buffer.
        plan.stream(planned, plan.options.dtype, |bytes| file.write_all(bytes).map_err(failed))?;
    }
    file.flush().map_err(failed)
}

/// The length of the header, and the header.
fn header(dtype: DType, shard: &[&Planned]) -> std::io::Result<Vec<u8>> {
    let kind = match dtype {
        DType::F32 => Dtype::F32,
        DType::F16 => Dtype::F16,
        _ => Dtype::BF16,
    };
    let mut end = 0;
    let tensors = shard.iter().map(|planned| {
        let start = end;
        end += planned.elements() * dtype.size_in_bytes();
        let info = TensorInfo { dtype: kind, shape: planned.shape.clone(), data_offsets: (start, end) };
        (planned.name.clone(), info)
    });
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), tensors.collect()).map_err(std::io::Error::other)?;
    let mut json = serde_json::to_vec(&metadata)?;
    json.resize(json.len().next_multiple_of(ALIGNMENT), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}
