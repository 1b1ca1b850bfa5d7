//! The tensors of two checkpoints, block by block.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use super::report::{Check, Point};
use super::{CheckKind, Tolerance, hint};
use crate::agreement::{Agreement, Sums};
use crate::convert::Source;
use crate::error::Result;
use crate::torch_file::TorchDtype;
use crate::weights::{Weights, candle_dtype};

/// Bytes of a block.
const BLOCK: usize = 4 << 20;

/// Tensors that an explanation is looked for, which reads others.
const EXPLAINED: usize = 8;

/// All tensors of the model in both checkpoints.
pub(super) fn compare(hf: &Source, mcore: &Source, tolerance: Tolerance) -> Result<Check> {
    let mut check = Check::new(CheckKind::Weights);
    for (name, shape) in hf.names() {
        let threshold = tolerance.threshold(check.check, name);
        let agreement = if is_same([hf, mcore], [name, name], shape)? {
            Agreement::SAME
        } else {
            agreement([hf, mcore], name, shape)?
        };
        let mut point = Point::new(name, shape, agreement, threshold);
        if !point.passed && check.points.len() < EXPLAINED {
            point.hint = hint::of(hf, mcore, name, shape, &agreement)?;
        }
        check.add(point, false);
    }
    Ok(check)
}

/// The tensors of a Hugging Face checkpoint as the converter reads them and as models do.
pub(super) fn compare_loaded(hf: &Source, files: &Weights, tolerance: Tolerance) -> Result<Check> {
    let mut check = Check::new(CheckKind::Loading);
    let mut fused = 0;
    for (name, shape) in hf.names() {
        if !files.is_in_files(name) {
            // An expert of a layer whose experts are one tensor; the model's outputs are compared too.
            fused += 1;
            continue;
        }
        let loaded = files.get(name, shape)?.flatten_all()?;
        let mut sums = Sums::default();
        for rows in blocks(hf, name, shape) {
            let width = width(shape);
            let theirs = loaded.narrow(0, rows.start * width, rows.len() * width)?.to_vec1()?;
            sums.add(&values(hf, name, rows)?, &theirs);
        }
        let threshold = tolerance.threshold(check.check, name);
        check.add(Point::new(name, shape, sums.agreement(), threshold), false);
    }
    if fused > 0 {
        check.detail = Some(format!("{fused} tensors of fused experts were compared by outputs only"));
    }
    Ok(check)
}

/// Elements of a row.
fn width(shape: &[usize]) -> usize {
    shape[1..].iter().product()
}

/// Rows of a tensor, some megabytes at a time.
fn blocks(source: &Source, name: &str, shape: &[usize]) -> impl Iterator<Item = Range<usize>> + use<> {
    let row = width(shape) * source.dtype(name).map_or(1, TorchDtype::size);
    let (all, step) = (shape[0], (BLOCK / row.max(1)).max(1));
    (0..all).step_by(step).map(move |start| start..all.min(start + step))
}

/// Whether two tensors of one shape are the same to the bit. A row decides most cases.
pub(super) fn is_same(sources: [&Source; 2], names: [&str; 2], shape: &[usize]) -> Result<bool> {
    if sources[0].dtype(names[0]) != sources[1].dtype(names[1]) {
        return Ok(false);
    }
    let mut bytes = [Vec::new(), Vec::new()];
    for rows in std::iter::once(0..1).chain(blocks(sources[0], names[0], shape)) {
        for side in 0..2 {
            bytes[side].clear();
            sources[side].read_rows(names[side], rows.clone(), &mut bytes[side])?;
        }
        if bytes[0] != bytes[1] {
            return Ok(false);
        }
    }
    Ok(true)
}

fn agreement(sources: [&Source; 2], name: &str, shape: &[usize]) -> Result<Agreement> {
    let mut sums = Sums::default();
    for rows in blocks(sources[0], name, shape) {
        sums.add(&values(sources[0], name, rows.clone())?, &values(sources[1], name, rows)?);
    }
    Ok(sums.agreement())
}

/// Rows of a tensor as f32.
fn values(source: &Source, name: &str, rows: Range<usize>) -> Result<Vec<f32>> {
    let Some(dtype) = source.dtype(name) else { return Ok(Vec::new()) };
    let mut bytes = Vec::new();
    source.read_rows(name, rows, &mut bytes)?;
    let count = bytes.len() / dtype.size();
    let values = Tensor::from_raw_buffer(&bytes, candle_dtype(dtype)?, &[count], &Device::Cpu)?;
    Ok(values.to_dtype(DType::F32)?.to_vec1()?)
}
