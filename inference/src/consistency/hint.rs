//! What would explain that a tensor is another: the usual faults of converters.

use super::tensors::is_same;
use crate::agreement::Agreement;
use crate::convert::Source;
use crate::error::Result;

/// Tensors of more bytes are only compared with others.
const WHOLE: usize = 1 << 28;

/// What would explain that a tensor of the Megatron checkpoint is not the one of Hugging Face.
pub(super) fn of(
    hf: &Source,
    mcore: &Source,
    name: &str,
    shape: &[usize],
    agreement: Option<&Agreement>,
) -> Result<Option<String>> {
    if is_constant(mcore, name, shape)? {
        return Ok(Some("all its elements are the same".into()));
    }
    for (other, other_shape) in hf.names() {
        if other != name && other_shape == shape && is_same([hf, mcore], [other, name], shape)? {
            return Ok(Some(format!("it is {other}")));
        }
    }
    if agreement.is_some_and(|it| it.cosine > 0.999_999_9 && it.relative_error > 1e-3) {
        return Ok(Some("it is the same but for a factor".into()));
    }
    let Some(dtype) = hf.dtype(name).filter(|dtype| mcore.dtype(name) == Some(*dtype)) else {
        return Ok(None);
    };
    let (rows, cols) = (shape[0], shape[1..].iter().product::<usize>());
    if rows * cols == 0 || rows * cols * dtype.size() > WHOLE {
        return Ok(None);
    }
    let (Some(ours), Some(theirs)) = (hf.bytes(name)?, mcore.bytes(name)?) else { return Ok(None) };
    let size = dtype.size();
    if is_transposed(&ours, &theirs, [rows, cols], size) {
        return Ok(Some("it is transposed".into()));
    }
    let mut both = [&ours, &theirs].map(|bytes| bytes.chunks(cols * size).collect::<Vec<_>>());
    both.iter_mut().for_each(|rows| rows.sort_unstable());
    Ok((both[0] == both[1]).then(|| "it has the same rows in another order".into()))
}

/// Whether all elements are one, so that it is the same as many others.
fn is_constant(source: &Source, name: &str, shape: &[usize]) -> Result<bool> {
    let Some(dtype) = source.dtype(name) else { return Ok(false) };
    let (mut first, mut row) = (Vec::new(), Vec::new());
    for number in 0..shape[0] {
        row.clear();
        source.read_rows(name, number..number + 1, &mut row)?;
        if first.is_empty() {
            first.extend_from_slice(&row[..dtype.size().min(row.len())]);
        }
        if first.is_empty() || row.chunks(first.len()).any(|element| element != first) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether the second lists the elements of the first column by column.
fn is_transposed(ours: &[u8], theirs: &[u8], [rows, cols]: [usize; 2], size: usize) -> bool {
    let element = |bytes: &[u8], at: usize| -> Option<[u8; 8]> {
        let mut padded = [0; 8];
        padded.get_mut(..size)?.copy_from_slice(bytes.get(at * size..(at + 1) * size)?);
        Some(padded)
    };
    (0..rows * cols).all(|at| element(theirs, at) == element(ours, at % rows * cols + at / rows))
}
