//! A checkpoint of either kind, read under the names of Hugging Face.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;

use super::args::TrainedWith;
use super::error::ConvertError;
use super::hf_source::HfSource;
use super::mcore_source::McoreSource;
use super::model::Model;
use super::stream::HfTensors;
use super::{Format, SourceOptions};
use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use crate::layout::TRACKER;
use crate::progress::Progress;
use crate::torch_file::TorchDtype;

/// The tensors of a checkpoint by their Hugging Face names, whichever kind it is: those of a Megatron checkpoint are put
/// together from its ranks when they are read. Nothing is kept of them.
pub struct Source {
    pub(super) model: Model,
    format: Format,
    tensors: Box<dyn HfTensors>,
    shapes: HashMap<String, Vec<usize>>,
    notes: Vec<String>,
    trained_with: TrainedWith,
}

impl Source {
    /// Opens a checkpoint. All tensors of the model must be there, with the shapes of `config.json`, and no others; on
    /// every rank of a Megatron checkpoint. Experts may be fused as transformers 5 does it.
    ///
    /// # Errors
    /// [`ModelError::Config`] for `config.json`, [`ModelError::Checkpoint`] when there is no checkpoint,
    /// [`ModelError::TorchFile`] for a damaged file, [`ModelError::Convert`] for tensors that are not the model's.
    pub fn open(options: &SourceOptions) -> Result<Self> {
        Self::open_seen(options, &Progress::default())
    }

    /// The same, with somebody looking.
    pub(crate) fn open_seen(options: &SourceOptions, progress: &Progress) -> Result<Self> {
        let dir = &options.dir;
        let format = match options.format {
            Some(format) => format,
            None => look(dir)?,
        };
        let (model, tensors, notes, trained_with): (_, Box<dyn HfTensors>, _, _) = match format {
            Format::Hf => {
                let model = Model::new(ModelConfig::read(dir)?);
                let tensors = HfSource::open(dir, &model)?;
                (model, Box::new(tensors), Vec::new(), TrainedWith::default())
            }
            Format::Mcore => {
                let hf = options.hf.as_deref().ok_or_else(|| ConvertError::Source {
                    path: dir.clone(),
                    detail:
                        "a Megatron checkpoint does not describe its model; give the Hugging Face directory \
                             that has its config.json: --hf DIR"
                            .into(),
                })?;
                let model = Model::new(ModelConfig::read(hf)?);
                let compared = (!options.trust_replicas).then_some(progress);
                let tensors = McoreSource::open(dir, &options.degrees, &model, hf, compared)?;
                let (notes, trained_with) = (tensors.notes(), tensors.trained_with());
                (model, Box::new(tensors), notes, trained_with)
            }
        };
        let shapes = model.hf_tensors().map(|(name, shape)| (name.to_owned(), shape.to_vec())).collect();
        Ok(Self { model, format, tensors, shapes, notes, trained_with })
    }

    /// Which kind it is.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The model by its `config.json`.
    pub fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    /// Where the `args` of a Megatron checkpoint say other things than `config.json` that a training may have had otherwise,
    /// one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What the `args` of a Megatron checkpoint say that its decoder computes with.
    pub(crate) fn trained_with(&self) -> TrainedWith {
        self.trained_with
    }

    /// Names and shapes of all tensors, in the order of the model.
    pub fn names(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.model.hf_tensors()
    }

    /// The dtype of a tensor; none when the model has no such tensor.
    pub fn dtype(&self, name: &str) -> Option<TorchDtype> {
        self.tensors.dtype(name)
    }

    /// The shape of a tensor; none when the model has no such tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.shapes.get(name).map(Vec::as_slice)
    }

    /// The bytes of a tensor in row-major order, little-endian; none when the model has no such tensor.
    ///
    /// # Errors
    /// [`ModelError::TorchFile`].
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(shape) = self.shape(name) else { return Ok(None) };
        let mut bytes = Vec::new();
        self.read_rows(name, 0..shape[0], &mut bytes)?;
        Ok(Some(bytes))
    }

    /// Appends rows of a tensor, little-endian, all columns of each; nothing when the model has no such tensor.
    pub(crate) fn read_rows(&self, name: &str, rows: Range<usize>, out: &mut Vec<u8>) -> Result<()> {
        let Some(shape) = self.shape(name) else { return Ok(()) };
        self.tensors.read(name, rows, 0..shape[1..].iter().product(), out)
    }

    pub(super) fn tensors(&self) -> &dyn HfTensors {
        &*self.tensors
    }
}

/// What a folder is, by its files.
fn look(dir: &Path) -> Result<Format> {
    let mut hf = false;
    let read = |source| ModelError::Read { path: dir.to_owned(), source };
    for entry in std::fs::read_dir(dir).map_err(read)? {
        let name = entry.map_err(read)?.file_name();
        let name = name.to_string_lossy();
        if name == TRACKER || name.starts_with("mp_rank_") || name == "release" || name.starts_with("iter_") {
            return Ok(Format::Mcore);
        }
        hf |= name == "config.json" || name.ends_with(".safetensors");
    }
    if hf {
        return Ok(Format::Hf);
    }
    let detail = "it is neither a Hugging Face checkpoint (config.json and safetensors) nor a Megatron one \
                  (latest_checkpointed_iteration.txt, mp_rank_…)";
    Err(ConvertError::Source { path: dir.to_owned(), detail: detail.into() }.into())
}
