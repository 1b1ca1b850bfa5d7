//! Sources that tests merge, spoil and compare.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use candle_core::{DType, Device, Tensor};
use packd_inference::WriteOptions;
use packd_inference::merge::{MergeOptions, MergePlan, SHARD_BYTES};
use tempfile::TempDir;

/// The text whose logits transformers has computed.
pub(crate) const PROMPT: [u32; 8] = [3, 17, 8, 41, 0, 29, 5, 63];
pub(crate) const DECODERS: [&str; 4] = ["dense", "dense_tied", "moe", "moe_fused"];

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/merge").join(name)
}

pub(crate) fn options(llm: &str) -> MergeOptions {
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

pub(crate) fn merge(options: &MergeOptions) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("merged");
    MergePlan::new(options).unwrap().write(&out, &WriteOptions::default()).unwrap();
    (folder, out)
}

/// In a pool of so many threads.
pub(crate) fn in_threads<T: Send>(count: usize, run: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(count).build().unwrap().install(run)
}

pub(crate) type Tensors = HashMap<String, Tensor>;

pub(crate) fn load(path: &Path) -> Tensors {
    candle_core::safetensors::load(path, &Device::Cpu).unwrap()
}

/// All safetensors of a folder.
pub(crate) fn load_all(folder: &Path) -> Tensors {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|it| it == "safetensors"))
        .flat_map(|it| load(&it))
        .collect()
}

pub(crate) fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

pub(crate) fn assert_equal(name: &str, ours: &Tensor, theirs: &Tensor) {
    assert_eq!(ours.dims(), theirs.dims(), "{name}");
    assert!(values(ours) == values(theirs), "{name} differs");
}

/// Files of a folder and their bytes.
pub(crate) fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())).collect()
}

/// A copy of the tower, the adapter or a decoder that was changed.
pub(crate) fn changed(name: &str, change: impl FnOnce(&mut Tensors)) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let source = fixture(name);
    let copy = folder.path().join(name);
    let mut tensors = if source.is_dir() { load_all(&source) } else { load(&source) };
    change(&mut tensors);
    if source.is_dir() {
        std::fs::create_dir(&copy).unwrap();
        std::fs::copy(source.join("config.json"), copy.join("config.json")).unwrap();
        candle_core::safetensors::save(&tensors, copy.join("model.safetensors")).unwrap();
    } else {
        candle_core::safetensors::save(&tensors, &copy).unwrap();
    }
    (folder, copy)
}

pub(crate) fn packd_model(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_packd-model")).args(args).output().unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

pub(crate) fn rename(tensors: &mut Tensors, from: &str, to: &str) {
    let tensor = tensors.remove(from).unwrap();
    tensors.insert(to.into(), tensor);
}

/// Arguments of the command line for the tiny sources.
pub(crate) fn arguments<'a>(paths: &'a [String; 3], more: &[&'a str]) -> Vec<&'a str> {
    let [vit, llm, processor] = paths;
    [&["--vit", vit, "--llm", llm, "--processor", processor], more].concat()
}
