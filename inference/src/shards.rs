//! Writing the weights of a Hugging Face checkpoint: safetensors files of a size, and their index.
//!
//! The `safetensors` crate writes files too, but it asks for each tensor as a whole, and an embedding in f32 can have
//! 2 GB. Here the bytes of a tensor come in blocks, and several files are written at a time.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::json;

use crate::durable;
use crate::error::{ModelError, Result};
use crate::progress::Progress;
use crate::turns::{self, Turn};
use crate::weights::{INDEX, ONE_FILE};

/// Headers end at a multiple of this, so that tensors of 8-byte numbers can be mapped.
const ALIGNMENT: usize = 8;
const BUFFER: usize = 1 << 20;

/// A tensor to be written.
pub(crate) struct ShardTensor<'a> {
    pub(crate) name: &'a str,
    pub(crate) dtype: Dtype,
    pub(crate) shape: &'a [usize],
}

impl ShardTensor<'_> {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.elements() * self.dtype.bitsize() / 8
    }
}

/// A file that tensors are written to.
pub(crate) struct ShardFile<'a> {
    path: PathBuf,
    out: BufWriter<File>,
    turn: &'a Turn<'a>,
}

impl ShardFile<'_> {
    /// Writes the next bytes of a tensor.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.out.write_all(bytes).and_then(|()| self.turn.done(bytes.len()));
        written.map_err(|source| ModelError::Write { path: self.path.clone(), source })
    }
}

/// Writes tensors to files in `dir` of at most `limit` bytes each, or of one tensor; and an index when there are several.
/// `fill` writes the bytes of the tensor with a number. Returns the number of files.
pub(crate) fn write(
    dir: &Path,
    tensors: &[ShardTensor<'_>],
    limit: u64,
    progress: &Progress,
    fill: impl Fn(usize, &mut ShardFile<'_>) -> Result<()> + Sync,
) -> Result<usize> {
    let files = files(tensors, limit);
    let name = |number: usize| match files.len() {
        1 => ONE_FILE.to_owned(),
        all => format!("model-{:05}-of-{all:05}.safetensors", number + 1),
    };
    let bytes: usize = tensors.iter().map(ShardTensor::bytes).sum();
    progress.start("writing", Some(bytes as u64));
    turns::each(files.len(), progress, |number, turn| {
        write_file(dir.join(name(number)), tensors, &files[number], turn, &fill)
    })?;
    if files.len() > 1 {
        let of_file = |(number, numbers): (usize, &Vec<usize>)| {
            let name = name(number);
            numbers.iter().map(move |number| (tensors[*number].name, name.clone())).collect::<Vec<_>>()
        };
        let map: BTreeMap<_, _> = files.iter().enumerate().flat_map(of_file).collect();
        let elements: usize = tensors.iter().map(ShardTensor::elements).sum();
        let metadata = json!({ "total_parameters": elements, "total_size": bytes });
        let index = json!({ "metadata": metadata, "weight_map": map });
        let path = dir.join(INDEX);
        durable::put(&path, format!("{index:#}\n")).map_err(|source| ModelError::Write { path, source })?;
    }
    Ok(files.len())
}

/// The numbers of the tensors of each file, in the order of the model.
fn files(tensors: &[ShardTensor<'_>], limit: u64) -> Vec<Vec<usize>> {
    let mut files: Vec<Vec<usize>> = vec![Vec::new()];
    let mut filled = 0;
    for (number, tensor) in tensors.iter().enumerate() {
        let bytes = tensor.bytes() as u64;
        if let Some(last) = files.last_mut()
            && (filled + bytes <= limit || last.is_empty())
        {
            last.push(number);
            filled += bytes;
            continue;
        }
        files.push(vec![number]);
        filled = bytes;
    }
    files
}

fn write_file(
    path: PathBuf,
    tensors: &[ShardTensor<'_>],
    numbers: &[usize],
    turn: &Turn<'_>,
    fill: &impl Fn(usize, &mut ShardFile<'_>) -> Result<()>,
) -> Result<()> {
    let failed = |source| ModelError::Write { path: path.clone(), source };
    // As the safetensors library orders a file: large elements first, then by name.
    let mut numbers = numbers.to_vec();
    numbers.sort_by_key(|number| {
        let ShardTensor { name, dtype, .. } = tensors[*number];
        (std::cmp::Reverse(dtype.bitsize()), name)
    });
    let (header, end) = header(tensors, &numbers).map_err(failed)?;
    let mut out = BufWriter::with_capacity(BUFFER, File::create_new(&path).map_err(failed)?);
    out.write_all(&header).map_err(failed)?;
    let mut file = ShardFile { path: path.clone(), out, turn };
    for number in numbers {
        fill(number, &mut file)?;
    }
    let file = file.out.into_inner().map_err(|error| failed(error.into_error()))?;
    let (written, expected) = (file.metadata().map_err(failed)?.len(), (header.len() + end) as u64);
    if written != expected {
        return Err(failed(std::io::Error::other(format!("{written} bytes were written, not {expected}"))));
    }
    durable::close(file).map_err(failed)
}

/// The length of the header and the header, and the bytes of the tensors after it.
fn header(tensors: &[ShardTensor<'_>], numbers: &[usize]) -> std::io::Result<(Vec<u8>, usize)> {
    let mut end = 0;
    let of_tensor = |number: &usize| {
        let tensor = &tensors[*number];
        let start = end;
        end += tensor.bytes();
        let info =
            TensorInfo { dtype: tensor.dtype, shape: tensor.shape.to_vec(), data_offsets: (start, end) };
        (tensor.name.to_owned(), info)
    };
    let infos = numbers.iter().map(of_tensor).collect();
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), infos).map_err(std::io::Error::other)?;
    let mut json = serde_json::to_vec(&metadata)?;
    json.resize(json.len().next_multiple_of(ALIGNMENT), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok((header, end))
}
