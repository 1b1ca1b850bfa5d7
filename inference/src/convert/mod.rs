//! Converting checkpoints between Hugging Face and Megatron, and Megatron checkpoints to other degrees.
//!
//! A Megatron tensor is described by the blocks of Hugging Face tensors that it consists of, once for each tensor
//! parallel rank. Both directions use that description, so they cannot disagree; cutting a Megatron checkpoint anew reads
//! it under the names of Hugging Face, and nothing in between is written.
//!
//! Sources are memory-mapped and written as a stream, several files at a time: memory holds the list of tensors, and for
//! each thread a few megabytes and the list of its file. The same source and options give the same bytes.
//!
//! What is in which file:
//!
//! * `names`: the names of both sides, and how each tensor is cut; `model`: the tensors of one model;
//! * `sharding`: which rank has what; `pieces`: which rows those are (interleaving, gates, padding);
//! * `hf_source`, `mcore_source` (with `ranks`): tensors by Hugging Face name; `stream`: their bytes in a new order;
//! * `hf_target`, `mcore_target`, `target`: writing; `args`: what they say of the model, and comparing it.

mod args;
mod error;
mod hf_source;
mod hf_target;
mod mcore_source;
mod mcore_target;
mod model;
mod names;
mod pieces;
mod ranks;
mod sharding;
mod source;
mod stream;
mod target;

use std::path::PathBuf;

use serde::Serialize;

use crate::error::Result;
use crate::layout::{AskedDegrees, TRACKER};
use crate::torch_file::{ArgsStyle, ExtraState, TensorSpec};
use crate::write_options::WriteOptions;
use sharding::Sharding;
use target::Target;

pub use error::{Contradiction, ConvertError};
pub use source::Source;

/// A kind of checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A Hugging Face model directory.
    Hf,
    /// A Megatron core checkpoint of one torch file a rank.
    Mcore,
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Hf => "Hugging Face",
            Self::Mcore => "Megatron",
        })
    }
}

/// How the patch embedding is stored; it must be what the training runs with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PatchEmbed {
    /// `TP_LINEAR`: `[D / TP, C·P·P]`, cut by rows.
    #[default]
    TpLinear,
    /// `LINEAR`: `[D, C·P·P]` on every rank.
    Linear,
    /// `CONV2D`: `[D, C, P, P]` on every rank.
    Conv2d,
}

/// A checkpoint to be read.
#[derive(Clone, Debug, Default)]
pub struct SourceOptions {
    /// Its folder.
    pub dir: PathBuf,
    /// What it is; none to look.
    pub format: Option<Format>,
    /// The Hugging Face directory whose `config.json` describes the model: for Megatron checkpoints, which do not say
    /// how many heads the vision tower has. A Hugging Face checkpoint describes itself.
    pub hf: Option<PathBuf>,
    /// Degrees of a Megatron checkpoint, where its names do not tell them.
    pub degrees: AskedDegrees,
    /// Take tensors that several ranks hold from the first, without reading and comparing the others.
    pub trust_replicas: bool,
}

/// How a Megatron checkpoint is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct McoreOptions {
    /// Tensor parallel degree.
    pub tp: usize,
    /// Pipeline parallel degree; none for 1, or for as many stages as `pipeline_split` has.
    pub pp: Option<usize>,
    /// Expert parallel degree.
    pub ep: usize,
    /// Tensor parallel degree within an expert, which divides `tp`; none for `tp`.
    pub etp: Option<usize>,
    /// Decoder layers of each stage; none for the same number in each.
    pub pipeline_split: Option<Vec<usize>>,
    /// Form of the patch embedding.
    pub patch_embed: PatchEmbed,
    /// Embedding and head get a multiple of this many rows on every rank (`--make-vocab-size-divisible-by`).
    pub vocab_multiple: usize,
    /// Form of `args`.
    pub args: ArgsStyle,
    /// Form of `_extra_state`.
    pub extra_state: ExtraState,
}

impl Default for McoreOptions {
    fn default() -> Self {
        Self {
            tp: 1,
            pp: None,
            ep: 1,
            etp: None,
            pipeline_split: None,
            patch_embed: PatchEmbed::default(),
            vocab_multiple: 128,
            args: ArgsStyle::default(),
            extra_state: ExtraState::default(),
        }
    }
}

/// How a Hugging Face checkpoint is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HfOptions {
    /// Bytes of tensors in a file, at most; a larger tensor has a file of its own.
    pub shard_bytes: u64,
}

impl Default for HfOptions {
    /// 5 GB, as transformers had it for years.
    fn default() -> Self {
        Self { shard_bytes: 5_000_000_000 }
    }
}

/// What a checkpoint is converted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConvertTo {
    /// Hugging Face.
    Hf(HfOptions),
    /// Megatron.
    Mcore(McoreOptions),
}

/// What was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Files with tensors.
    pub files: usize,
    /// Tensors in them.
    pub tensors: usize,
    /// Bytes of these tensors.
    pub bytes: u64,
    /// Other files that were copied from the Hugging Face directory.
    pub carried: Vec<String>,
    /// Where the source's `args` say other things than `config.json`: see [`Source::notes`].
    pub notes: Vec<String>,
}

impl Report {
    fn add(&mut self, spec: &TensorSpec) {
        self.tensors += 1;
        self.bytes += spec.bytes().unwrap_or(0) as u64;
    }
}

/// Converts a checkpoint. `target` must not be there, or be an empty folder; it appears when all is written, and never
/// in part.
///
/// A Megatron target is a `release` of iteration 0. Values and dtypes are those of the source, bit for bit; rows that
/// fill up the vocabulary are copies of its last. Optimizer states are not converted.
///
/// # Errors
/// [`ConvertError`] (as [`ModelError::Convert`](crate::ModelError::Convert)) for what cannot be converted, the errors of
/// [`Source::open`], [`ModelError::Write`](crate::ModelError::Write).
pub fn convert(
    from: &SourceOptions,
    target: &std::path::Path,
    to: &ConvertTo,
    how: &WriteOptions,
) -> Result<Report> {
    let config_dir = from.hf.as_deref().unwrap_or(&from.dir);
    // The ranks may be named without the folder of their tracker file.
    let parent = from.dir.canonicalize().ok().and_then(|dir| dir.parent().map(std::path::Path::to_owned));
    let root = parent.filter(|root| root.join(TRACKER).is_file());
    let sources = [from.dir.as_path(), config_dir, root.as_deref().unwrap_or(&from.dir)];
    target::check(target, &sources)?;
    let progress = &*how.progress;
    let source = Source::open_seen(from, progress)?;
    let written = match to {
        ConvertTo::Hf(options) => {
            if source.format() == Format::Hf {
                let detail = "it is a Hugging Face checkpoint already".into();
                return Err(ConvertError::Source { path: from.dir.clone(), detail }.into());
            }
            let dir = Target::start(target, &sources)?;
            let tensors = source.tensors();
            (hf_target::write(dir.dir(), &source.model, tensors, config_dir, options, progress), dir)
        }
        ConvertTo::Mcore(options) => {
            let text = &source.model.config.text;
            let stages =
                sharding::stages(text.num_hidden_layers, options.pp, options.pipeline_split.as_deref())?;
            let sharding = Sharding {
                tp: options.tp,
                stages,
                ep: options.ep,
                etp: options.etp.unwrap_or(options.tp),
                patch: options.patch_embed.into(),
                padded_vocab: sharding::padded(text.vocab_size, options.vocab_multiple, options.tp)?,
            };
            sharding.check(&source.model)?;
            mcore_target::check_dtypes(&source.model, source.tensors())?;
            let dir = Target::start(target, &sources)?;
            (mcore_target::write(dir.dir(), &source, &sharding, options, progress), dir)
        }
    };
    let (report, dir) = written;
    let mut report = report.map_err(|error| dir.named(error))?;
    report.notes = source.notes().to_vec();
    dir.finish(how)?;
    Ok(report)
}
