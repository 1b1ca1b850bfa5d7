//! Sources, checkpoints, and what both models are given.

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use packd_contracts::ImageGrid;
use packd_inference::merge::{MergeOptions, MergePlan, ValidateOptions, Validation, validate};
use packd_inference::{ImagePatches, SubSample};

use crate::support::PROMPT;
pub(crate) use crate::support::{Tensors, fixture, merge as merged, options as sources};

/// All parts in f32 on the CPU: an image of 2 by 4 tokens, some text, a question about the image.
pub(crate) fn all_parts() -> ValidateOptions {
    let grid = ImageGrid { t: 1, h: 4, w: 8 };
    let rows = (0..32 * 12).map(|it| (it as f32 * 0.7).sin()).collect();
    let image = ImagePatches::new(rows, grid, 2).unwrap();
    let ids = [&[3, 52][..], &[50; 8], &[53, 9, 21]].concat();
    ValidateOptions {
        weights: true,
        image: Some(image.clone()),
        text: Some(SubSample::text(PROMPT.to_vec())),
        question: Some(SubSample { images: vec![image], ..SubSample::text(ids) }),
        max_new_tokens: 12,
        unrounded: false,
        dtype: DType::F32,
        device: Device::Cpu,
        progress: Arc::default(),
    }
}

/// The parts that compare outputs.
pub(crate) fn outputs() -> ValidateOptions {
    ValidateOptions { weights: false, ..all_parts() }
}

pub(crate) fn check(sources: &MergeOptions, checkpoint: &Path, options: &ValidateOptions) -> Validation {
    validate(MergePlan::new(sources).unwrap(), checkpoint, options).unwrap()
}

/// Changes the tensors of a checkpoint of one file.
pub(crate) fn change_tensors(checkpoint: &Path, change: impl FnOnce(&mut Tensors)) {
    let path = checkpoint.join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    change(&mut tensors);
    candle_core::safetensors::save(&tensors, &path).unwrap();
}

/// Changes one of them.
pub(crate) fn change_tensor(checkpoint: &Path, name: &str, change: impl FnOnce(&Tensor) -> Tensor) {
    change_tensors(checkpoint, |all| {
        let changed = change(&all[name]);
        all.insert(name.to_owned(), changed);
    });
}

/// Changes config.json by its text; the text must be there.
pub(crate) fn change_config(checkpoint: &Path, from: &str, to: &str) {
    let path = checkpoint.join("config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.contains(from), "{from}");
    std::fs::write(path, text.replace(from, to)).unwrap();
}

/// Rows `a` and `b` exchanged.
pub(crate) fn exchange_rows(tensor: &Tensor, a: u32, b: u32) -> Tensor {
    let mut rows: Vec<u32> = (0..tensor.dim(0).unwrap() as u32).collect();
    rows.swap(a as usize, b as usize);
    tensor.index_select(&Tensor::new(rows, &Device::Cpu).unwrap(), 0).unwrap()
}

/// The numbers of the transposed matrix, in the shape of the matrix.
pub(crate) fn transposed(tensor: &Tensor) -> Tensor {
    tensor.t().unwrap().contiguous().unwrap().reshape(tensor.dims()).unwrap()
}
