//! Where a model's tensors come from: a Hugging Face checkpoint, or chance.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use candle_core::safetensors::MmapedSafetensors;
use candle_core::{DType, Device, Tensor};
use serde::Deserialize;

use crate::error::{ModelError, Result};
use crate::torch_file::TorchDtype;

pub(crate) const ONE_FILE: &str = "model.safetensors";
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// The tensors of a model, read when they are asked for, as `dtype` on `device`.
pub struct Weights {
    source: Source,
    dtype: DType,
    device: Device,
}

enum Source {
    Files(MmapedSafetensors),
    Checkpoint(Box<crate::convert::Source>),
    Made(Box<dyn Maker>),
    /// Standard deviation of every matrix.
    Random(f64),
}

/// Makes tensors when they are asked for.
pub(crate) trait Maker: Send + Sync {
    /// A tensor by its name in the checkpoint, in whatever dtype it has; `None` if there is none of that name.
    fn make(&self, name: &str, device: &Device) -> Result<Option<Tensor>>;
}

#[derive(Deserialize)]
struct Index {
    weight_map: std::collections::BTreeMap<String, String>,
}

impl Weights {
    /// The safetensors of a Hugging Face model directory: `model.safetensors`, or the files of
    /// `model.safetensors.index.json`. They are memory-mapped, so they must not change while the model is loaded.
    ///
    /// # Errors
    /// [`ModelError::Read`] or [`ModelError::Tensor`] when a file is missing or damaged.
    pub fn read(dir: &Path, dtype: DType, device: &Device) -> Result<Self> {
        let files = files(dir)?;
        for path in &files {
            // Mapping says neither which file it was nor why.
            std::fs::File::open(path).map_err(|source| ModelError::Read { path: path.clone(), source })?;
        }
        // SAFETY: the mapping is only read. Someone who cuts a checkpoint while it is loaded gets a bus error, as with
        // every program that maps safetensors; that is said above.
        #[allow(unsafe_code)]
        let mapped = unsafe { MmapedSafetensors::multi(&files) }?;
        Ok(Self { source: Source::Files(mapped), dtype, device: device.clone() })
    }

    /// The tensors of a checkpoint of either kind: a Megatron one is put together from its ranks, tensor by tensor.
    pub fn of_source(source: crate::convert::Source, dtype: DType, device: &Device) -> Self {
        Self { source: Source::Checkpoint(Box::new(source)), dtype, device: device.clone() }
    }

    /// Tensors that are made one at a time, under the per-expert names.
    pub(crate) fn of_maker(maker: Box<dyn Maker>, dtype: DType, device: &Device) -> Self {
        Self { source: Source::Made(maker), dtype, device: device.clone() }
    }

    /// Random matrices of standard deviation 0.02 and norms of one, for measuring speed without a checkpoint.
    pub fn random(dtype: DType, device: &Device) -> Self {
        Self { source: Source::Random(0.02), dtype, device: device.clone() }
    }

    /// The dtype that tensors are handed out in.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device that tensors lie on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Whether the files have this tensor; what is put together has the per-expert form only.
    pub(crate) fn is_in_files(&self, name: &str) -> bool {
        match &self.source {
            Source::Files(files) => files.get(name).is_ok(),
            // It has the per-expert names, whatever is in its files.
            Source::Checkpoint(_) | Source::Made(_) | Source::Random(_) => false,
        }
    }

    /// A tensor by its name in the checkpoint.
    ///
    /// # Errors
    /// [`ModelError::MissingTensor`], [`ModelError::TensorShape`].
    pub fn get(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let help = "is this a merged LLaVA-OneVision-2 checkpoint?";
        let missing = || ModelError::MissingTensor { name: name.to_owned(), help };
        let tensor = match &self.source {
            Source::Files(files) => {
                if files.get(name).is_err() {
                    return Err(missing());
                }
                files.load(name, &self.device)?
            }
            Source::Made(maker) => maker.make(name, &self.device)?.ok_or_else(missing)?,
            Source::Checkpoint(source) => {
                let (dtype, shape) = source.dtype(name).zip(source.shape(name)).ok_or_else(missing)?;
                let bytes = source.bytes(name)?.ok_or_else(missing)?;
                Tensor::from_raw_buffer(&bytes, candle_dtype(name, dtype)?, shape, &self.device)?
            }
            Source::Random(deviation) => match shape {
                [_] if name.ends_with("bias") => Tensor::zeros(shape, self.dtype, &self.device)?,
                [_] => Tensor::ones(shape, self.dtype, &self.device)?,
                _ => {
                    let values = Tensor::randn(0.0_f32, *deviation as f32, shape, &self.device)?;
                    values.to_dtype(self.dtype)?
                }
            },
        };
        if tensor.dims() != shape {
            return Err(ModelError::TensorShape {
                name: name.to_owned(),
                found: tensor.dims().to_vec(),
                expected: shape.to_vec(),
            });
        }
        Ok(tensor.to_dtype(self.dtype)?)
    }
}

pub(crate) fn candle_dtype(name: &str, dtype: TorchDtype) -> Result<DType> {
    Ok(match dtype {
        TorchDtype::BFloat16 => DType::BF16,
        TorchDtype::Half => DType::F16,
        TorchDtype::Float => DType::F32,
        TorchDtype::Double => DType::F64,
        TorchDtype::Float8E4M3 => DType::F8E4M3,
        other => {
            let detail = format!("it is {other}, which is not computed with");
            return Err(ModelError::Config { name: name.to_owned(), detail });
        }
    })
}

/// The safetensors files of a Hugging Face model directory.
pub(crate) fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let one = dir.join(ONE_FILE);
    if one.is_file() {
        return Ok(vec![one]);
    }
    let path = dir.join(INDEX);
    let text =
        std::fs::read_to_string(&path).map_err(|source| ModelError::Read { path: path.clone(), source })?;
    let index: Index = serde_json::from_str(&text).map_err(|error| ModelError::Config {
        name: path.display().to_string(),
        detail: error.to_string(),
    })?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}
