//! The bytes of a tensor of the merged checkpoint, some hundred kilobytes at a time.

use candle_core::DType;

use super::cast::cast;
use super::gather::Piece;
use super::{MergePlan, Planned, Recipe};
use crate::error::{ModelError, Result};

/// Elements that are made at a time: few enough to stay in a processor's cache.
const CHUNK: usize = 1 << 16;

impl MergePlan {
    /// Hands the bytes of a tensor as `dtype` to `each`, in order.
    pub(super) fn stream(
        &self,
        planned: &Planned,
        dtype: DType,
        mut each: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        match &planned.recipe {
            Recipe::Pieces(pieces) => {
                pieces.iter().try_for_each(|piece| self.stream_piece(piece, dtype, &mut each))
            }
            Recipe::First(first) => {
                let mut values = first.values(self.options.seed);
                let mut left = planned.elements();
                while left > 0 {
                    let count = left.min(CHUNK);
                    let bytes: Vec<u8> = values.by_ref().take(count).flat_map(f32::to_le_bytes).collect();
                    each(&cast(&bytes, DType::F32, dtype).0)?;
                    left -= count;
                }
                Ok(())
            }
        }
    }

    fn stream_piece(
        &self,
        piece: &Piece,
        dtype: DType,
        each: &mut impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let source = self.sources.iter().find(|source| source.role == piece.role);
        let tensor = source.and_then(|source| Some((source, source.tensors.get(&piece.key)?)));
        // A plan is made of tensors that are there; those of other kinds are problems, with which nothing is written.
        let Some((source, tensor)) = tensor else { return Ok(()) };
        let Ok(from) = tensor.dtype else { return Ok(()) };
        let size = from.size_in_bytes();
        let Some(reader) = source.reader(tensor) else { return Ok(()) };
        let all = 0..tensor.shape.iter().product();
        let elements = piece.elements.as_ref().unwrap_or(&all);
        let mut buffer = Vec::new();
        let mut lost = 0;
        for start in elements.clone().step_by(CHUNK) {
            buffer.resize((elements.end - start).min(CHUNK) * size, 0);
            reader.read(start * size, &mut buffer)?;
            if from == dtype {
                each(&buffer)?;
            } else {
                let (chunk, infinite) = cast(&buffer, from, dtype);
                lost += infinite;
                each(&chunk)?;
            }
        }
        if lost == 0 {
            return Ok(());
        }
        let problem = format!(
            "[{}] {lost} numbers of {} are too large for {}; choose bf16 or fp32",
            piece.role,
            piece.key,
            dtype.as_str()
        );
        Err(ModelError::Merge { problems: vec![problem] })
    }
}
