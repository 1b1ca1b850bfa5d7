//! Sources, checkpoints, and what both models are given.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use packd_contracts::ImageGrid;
use packd_inference::merge::{MergeOptions, MergePlan, SHARD_BYTES, ValidateOptions, Validation, validate};
use packd_inference::{ImagePatches, SubSample};
use tempfile::TempDir;

pub(crate) type Tensors = HashMap<String, Tensor>;

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/merge").join(name)
}

pub(crate) fn sources(llm: &str) -> MergeOptions {
    MergeOptions {
        vit: fixture("vit"),
        llm: fixture(llm),
        processor: fixture("processor"),
        adapter: Some(fixture("adapter.safetensors")),
        variant: None,
        spatial_merge_size: 2,
        dtype: DType::F32,
        seed: 0,
        shard_bytes: SHARD_BYTES,
    }
}

/// A merged checkpoint in a folder of its own.
pub(crate) fn merged(options: &MergeOptions) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("merged");
    MergePlan::new(options).unwrap().write(&out).unwrap();
    (folder, out)
}

/// All parts in f32 on the CPU: an image of 2 by 4 tokens, some text, a question about the image.
pub(crate) fn all_parts() -> ValidateOptions {
    let grid = ImageGrid { t: 1, h: 4, w: 8 };
    let rows = (0..32 * 12).map(|it| (it as f32 * 0.7).sin()).collect();
    let image = ImagePatches::new(rows, grid, 2).unwrap();
    let ids = [&[3, 52][..], &[50; 8], &[53, 9, 21]].concat();
    ValidateOptions {
        weights: true,
        image: Some(image.clone()),
        text: Some(SubSample::text(vec![3, 17, 8, 41, 0, 29, 5, 63])),
        question: Some(SubSample { images: vec![image], ..SubSample::text(ids) }),
        max_new_tokens: 12,
        unrounded: false,
        dtype: DType::F32,
        device: Device::Cpu,
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
