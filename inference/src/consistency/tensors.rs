//! The tensors of two checkpoints, block by block.

use std::ops::Range;

use candle_core::{DType, Device, Tensor};

use super::report::Check;
use super::{CheckKind, ConsistencyOptions, Tolerance, hint};
use crate::agreement::{Agreement, Point, Sums};
use crate::convert::Source;
use crate::error::Result;
use crate::torch_file::TorchDtype;
use crate::weights::{Weights, candle_dtype};

/// Bytes of a block.
const BLOCK: usize = 4 << 20;

/// Tensors that an explanation is looked for, which reads others.
const EXPLAINED: usize = 8;

/// All tensors of the model in both checkpoints. Those of one dtype must be the same to the bit; of two dtypes, once both
/// are rounded to the coarser, and not within f32 tolerance.
pub(super) fn compare(hf: &Source, mcore: &Source, options: &ConsistencyOptions) -> Result<Check> {
    let (tolerance, progress) = (options.tolerance, &options.progress);
    let bytes = |name, shape: &[usize]| {
        let elements: usize = shape.iter().product();
        (elements * hf.dtype(name).map_or(0, TorchDtype::size)) as u64
    };
    progress.start("comparing tensors", Some(hf.names().map(|(name, shape)| bytes(name, shape)).sum()));
    let mut check = Check::new(CheckKind::Weights);
    for (name, shape) in hf.names() {
        let mut point = compare_one(hf, mcore, name, shape, tolerance)?;
        if !point.passed && point.hint.is_none() && check.points.len() < EXPLAINED {
            point.hint = hint::of(hf, mcore, name, shape, point.agreement.as_ref())?;
        }
        check.add(point, false);
        progress.add(bytes(name, shape));
    }
    Ok(check)
}

fn compare_one(
    hf: &Source,
    mcore: &Source,
    name: &str,
    shape: &[usize],
    tolerance: Tolerance,
) -> Result<Point> {
    let threshold = tolerance.threshold(CheckKind::Weights, name);
    if is_same([hf, mcore], [name, name], shape)? {
        return Ok(Point::new(name, shape, Agreement::SAME, threshold));
    }
    let dtypes = [hf, mcore].map(|source| source.dtype(name));
    let [Some(ours), Some(theirs)] = dtypes else {
        return Ok(Point::not_compared(name, shape, threshold, "one side does not have it".into()));
    };
    for dtype in [ours, theirs] {
        if candle_dtype(name, dtype).is_err() {
            let why = format!("it is {theirs}, in Hugging Face {ours}, and {dtype} is not computed with");
            return Ok(Point::not_compared(name, shape, threshold, why));
        }
    }
    let coarser = if bits(ours) <= bits(theirs) { ours } else { theirs };
    let mut sums = Sums::default();
    for rows in blocks(hf, name, shape) {
        let [ours, theirs] = [hf, mcore].map(|source| values(source, name, rows.clone(), coarser));
        sums.add(&ours?, &theirs?);
    }
    let mut point = Point::new(name, shape, sums.agreement(), threshold);
    point.identical = false;
    if ours == theirs {
        // Their bits differ, if by less than f32 holds.
        point.passed = false;
    } else {
        point.passed &= tolerance != Tolerance::F32;
        point.hint = (!point.passed).then(|| format!("it is {theirs}, in Hugging Face {ours}"));
    }
    Ok(point)
}

/// Bits of the significand of a dtype, and below that of its exponent.
fn bits(dtype: TorchDtype) -> (u32, u32) {
    match dtype {
        TorchDtype::Float8E4M3 => (4, 4),
        TorchDtype::BFloat16 => (8, 8),
        TorchDtype::Half => (11, 5),
        TorchDtype::Float => (24, 8),
        _ => (53, 11),
    }
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
        let mut is_same = true;
        for rows in blocks(hf, name, shape) {
            let width = width(shape);
            let theirs = loaded.narrow(0, rows.start * width, rows.len() * width)?.to_vec1()?;
            let ours = values(hf, name, rows, TorchDtype::Float)?;
            is_same &= ours.iter().zip(&theirs).all(|(a, b): (&f32, &f32)| a.to_bits() == b.to_bits());
            sums.add(&ours, &theirs);
        }
        let threshold = tolerance.threshold(check.check, name);
        let agreement = if is_same { Agreement::SAME } else { sums.agreement() };
        check.add(Point::new(name, shape, agreement, threshold), false);
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

/// Rows of a tensor, rounded to a dtype, as f32.
fn values(source: &Source, name: &str, rows: Range<usize>, rounded: TorchDtype) -> Result<Vec<f32>> {
    let Some(dtype) = source.dtype(name) else { return Ok(Vec::new()) };
    let mut bytes = Vec::new();
    source.read_rows(name, rows, &mut bytes)?;
    let count = bytes.len() / dtype.size();
    let values = Tensor::from_raw_buffer(&bytes, candle_dtype(name, dtype)?, &[count], &Device::Cpu)?;
    Ok(values.to_dtype(candle_dtype(name, rounded)?)?.to_dtype(DType::F32)?.to_vec1()?)
}
