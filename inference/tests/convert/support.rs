//! Checkpoints that tests read, compare and spoil.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use packd_inference::convert::{ConvertTo, HfOptions, McoreOptions, Report, SourceOptions, convert};
use packd_inference::torch_file::{PyValue, TensorSpec, TorchDtype, TorchFile, TorchFileWriter};
use packd_inference::{ModelError, Result, WriteOptions};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

pub(crate) fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Options of the layouts that the golden files have: rows of the vocabulary are a multiple of 96 on every rank.
pub(crate) fn mcore(tp: usize, pp: usize, ep: usize) -> McoreOptions {
    McoreOptions { tp, pp: Some(pp), ep, vocab_multiple: 96, ..McoreOptions::default() }
}

pub(crate) fn split(tp: usize, split: &[usize], ep: usize) -> McoreOptions {
    McoreOptions { pp: None, pipeline_split: Some(split.to_vec()), ..mcore(tp, 1, ep) }
}

pub(crate) fn to_mcore(source: &Path, target: &Path, options: &McoreOptions) -> Result<Report> {
    let from = SourceOptions { dir: source.to_owned(), ..SourceOptions::default() };
    convert(&from, target, &ConvertTo::Mcore(options.clone()), &WriteOptions::default())
}

pub(crate) fn to_hf(source: &Path, hf: &Path, target: &Path) -> Result<Report> {
    let from = SourceOptions { dir: source.to_owned(), hf: Some(hf.to_owned()), ..SourceOptions::default() };
    from_options(&from, target)
}

pub(crate) fn from_options(from: &SourceOptions, target: &Path) -> Result<Report> {
    convert(from, target, &ConvertTo::Hf(HfOptions::default()), &WriteOptions::default())
}

pub(crate) fn reshard(source: &Path, hf: &Path, target: &Path, options: &McoreOptions) -> Result<Report> {
    let from = SourceOptions { dir: source.to_owned(), hf: Some(hf.to_owned()), ..SourceOptions::default() };
    convert(&from, target, &ConvertTo::Mcore(options.clone()), &WriteOptions::default())
}

/// Every file and folder below a folder, by its path from there; folders end with a slash and hold nothing.
pub(crate) fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut open = vec![dir.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files.insert(path.strip_prefix(dir).unwrap().join(""), Vec::new());
                open.push(path);
            } else {
                files.insert(path.strip_prefix(dir).unwrap().to_owned(), std::fs::read(&path).unwrap());
            }
        }
    }
    files
}

pub(crate) type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

pub(crate) fn read_safetensors(path: &Path) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |(name, view): (String, TensorView<'_>)| {
        (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec()))
    };
    file.tensors().into_iter().map(tensor).collect()
}

/// A copy of a Hugging Face checkpoint with changed tensors.
pub(crate) fn changed_hf(source: &Path, target: &Path, change: impl FnOnce(&mut Tensors)) {
    std::fs::create_dir_all(target).unwrap();
    std::fs::copy(source.join("config.json"), target.join("config.json")).unwrap();
    let mut tensors = read_safetensors(&source.join("model.safetensors"));
    change(&mut tensors);
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, &target.join("model.safetensors")).unwrap();
}

/// Writes a rank's file anew as that of an iteration.
pub(crate) fn set_iteration(path: &Path, iteration: i64) {
    write_rank(path, iteration, PyValue::dict::<&str>([]), |_, _, _, _| ());
}

/// Writes a rank's file anew with changed tensors. A tensor whose name becomes empty is left out.
pub(crate) fn change_rank(path: &Path, change: impl Fn(&mut String, &mut Vec<usize>, &mut Vec<u8>)) {
    write_rank(path, 0, PyValue::dict::<&str>([]), |name, shape, _, bytes| change(name, shape, bytes));
}

/// Writes a rank's file anew with tensors of other dtypes.
pub(crate) fn recast_rank(path: &Path, change: impl Fn(&str, &mut TorchDtype, &mut Vec<u8>)) {
    write_rank(path, 0, PyValue::dict::<&str>([]), |name, _, dtype, bytes| change(name, dtype, bytes));
}

/// Writes a rank's file anew with other `args`.
pub(crate) fn set_args(path: &Path, args: PyValue) {
    write_rank(path, 0, args, |_, _, _, _| ());
}

/// A folder with the configuration of a tiny model with a change.
pub(crate) fn changed_config(model: &str, dir: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    std::fs::create_dir_all(dir).unwrap();
    let text = std::fs::read_to_string(tiny(model).join("config.json")).unwrap();
    let mut config = serde_json::from_str(&text).unwrap();
    change(&mut config);
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
}

fn write_rank(
    path: &Path,
    iteration: i64,
    args: PyValue,
    change: impl Fn(&mut String, &mut Vec<usize>, &mut TorchDtype, &mut Vec<u8>),
) {
    let file = TorchFile::open(path).unwrap();
    let (mut pairs, mut bytes) = (Vec::new(), Vec::new());
    for (_, name, node) in file.model() {
        let info = node.as_tensor().unwrap();
        let (mut name, mut shape, mut dtype) = (name.to_owned(), info.shape.clone(), info.dtype);
        let mut data = file.tensor_bytes(info).unwrap().into_owned();
        change(&mut name, &mut shape, &mut dtype, &mut data);
        if !name.is_empty() {
            pairs.push((name, PyValue::Tensor(TensorSpec { dtype, shape })));
            bytes.push(data);
        }
    }
    drop(file);
    std::fs::remove_file(path).unwrap();
    let root = PyValue::dict([
        ("model", PyValue::dict(pairs)),
        ("checkpoint_version", PyValue::Float(3.0)),
        ("args", args),
        ("iteration", PyValue::Int(iteration)),
    ]);
    let mut writer = TorchFileWriter::create(path, &root).unwrap();
    for data in bytes {
        writer.tensor(&data).unwrap();
    }
    writer.finish().unwrap();
}

/// Writes a rank's file anew as torch saves it when every matrix lies by columns: the transpose of a contiguous tensor.
pub(crate) fn lay_by_columns(path: &Path) {
    let file = TorchFile::open(path).unwrap();
    let text = |text: &str| [&[b'X'][..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let int = |number: usize| [&[b'J'][..], &(number as u32).to_le_bytes()].concat();
    let tuple = |sizes: &[usize]| {
        [b"(".to_vec(), sizes.iter().flat_map(|size| int(*size)).collect(), b"t".to_vec()].concat()
    };
    let (mut pickle, mut storages) = (b"\x80\x02}(".to_vec(), Vec::new());
    pickle.extend(text("model"));
    pickle.extend(b"}(");
    for (_, name, node) in file.model() {
        let info = node.as_tensor().unwrap();
        let (mut bytes, mut strides) =
            (file.tensor_bytes(info).unwrap().into_owned(), vec![1; info.shape.len()]);
        if let [rows, cols] = info.shape[..] {
            let at = |place: usize| bytes[(place % rows * cols + place / rows) * 4..][..4].to_vec();
            bytes = (0..rows * cols).flat_map(at).collect();
            strides = vec![1, rows];
        }
        let class = if info.dtype == TorchDtype::Float { "Float" } else { "Byte" };
        pickle.extend(text(name));
        pickle.extend(b"ctorch._utils\n_rebuild_tensor_v2\n((");
        pickle.extend(text("storage"));
        pickle.extend(format!("ctorch\n{class}Storage\n").into_bytes());
        pickle.extend(
            [text(&storages.len().to_string()), text("cpu"), int(bytes.len() / info.dtype.size())].concat(),
        );
        pickle.extend(b"tQK\x00");
        pickle.extend([tuple(&info.shape), tuple(&strides)].concat());
        pickle.extend(b"\x89ccollections\nOrderedDict\n)RtR");
        storages.push(bytes);
    }
    pickle.push(b'u');
    pickle.extend([text("checkpoint_version"), b"G\x40\x08\0\0\0\0\0\0".to_vec()].concat());
    pickle.extend([text("args"), b"}".to_vec(), text("iteration"), b"K\x00u.".to_vec()].concat());
    drop(file);
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    let entries = storages.into_iter().enumerate().map(|(number, bytes)| (format!("a/data/{number}"), bytes));
    for (name, bytes) in [("a/data.pkl".to_owned(), pickle)].into_iter().chain(entries) {
        zip.start_file(name, stored).unwrap();
        zip.write_all(&bytes).unwrap();
    }
    zip.finish().unwrap();
}

/// The error of a conversion that must leave nothing in the folder of its target.
pub(crate) fn refused(target: &Path, run: impl FnOnce(&Path) -> Result<Report>) -> ModelError {
    let folder = target.parent().unwrap();
    let names = || {
        let mut names: Vec<_> =
            std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = names();
    let error = run(target).unwrap_err();
    assert_eq!(names(), before, "{error}");
    error
}
