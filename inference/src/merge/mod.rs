//! A vision tower, a decoder and a processor, perhaps with an adapter, as one Hugging Face checkpoint.
//!
//! [`MergePlan::new`] opens the sources and finds the place of every tensor; nothing but headers is read.
//! [`MergePlan::report`] says what would be done and everything that is wrong. [`MergePlan::write`] does it, some
//! hundred kilobytes at a time, into a folder that appears when it is whole. It refuses as long as anything is wrong: a tensor of a source
//! that the model does not have, one of the model that no source has (an adapter may be left out: it then gets first
//! values from a seed), other shapes, integers, one of q, k and v without the others. [`validate`] compares a checkpoint
//! with its sources, by its tensors and by what it computes.

mod carried;
mod cast;
mod compare;
mod file;
mod gather;
mod initial;
mod reference;
mod remap;
mod report;
mod settings;
mod source;
mod stream;
mod target;
mod tokens;
mod validate;
mod write;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use candle_core::DType;

use crate::config::ModelConfig;
use crate::error::{ModelError, Result};
use crate::write_options::WriteOptions;
use carried::Carried;
use gather::{Gather, Piece};
use initial::Initial;
use settings::Settings;
use source::Source;
use tokens::TokenIds;

pub use compare::{Comparison, Difference, TensorHash};
pub use report::{MergeReport, Problem, ProblemKind, SourceReport};
pub use source::Role;
pub use validate::{Generation, OutputPart, ValidateOptions, Validation, validate};

/// Bytes of a file of the merged checkpoint by default: 5 GB.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// Problems of a refusal that are named: with the wrong tower there are thousands.
const SHOWN: usize = 20;

/// Kinds of decoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// Qwen3.
    Dense,
    /// Qwen3-MoE.
    Moe,
}

impl Variant {
    /// `dense` or `moe`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Dense => "dense",
            Self::Moe => "moe",
        }
    }

    fn suffix(self) -> &'static str {
        match self {
            Self::Dense => "",
            Self::Moe => "_moe",
        }
    }

    fn camel(self) -> &'static str {
        match self {
            Self::Dense => "",
            Self::Moe => "Moe",
        }
    }
}

/// What is merged, and into what.
#[derive(Debug, Clone)]
pub struct MergeOptions {
    /// The vision tower: a folder of safetensors, one such file, or a file of `torch.save`. Its `config.json` lies in
    /// the folder; without one the tower has the default configuration.
    pub vit: PathBuf,
    /// The decoder, likewise; its `config.json` must be there.
    pub llm: PathBuf,
    /// The folder of the processor.
    pub processor: PathBuf,
    /// The adapter, likewise; without one the merger gets first values.
    pub adapter: Option<PathBuf>,
    /// What the decoder should be.
    pub variant: Option<Variant>,
    /// Patches merged into one token along each side.
    pub spatial_merge_size: usize,
    /// BF16, F16 or F32: what every tensor is written as.
    pub dtype: DType,
    /// Seed of an adapter's first values.
    pub seed: u64,
    /// Bytes of a file of the checkpoint at most, unless one tensor has more.
    pub shard_bytes: u64,
}

/// A tensor of the merged checkpoint.
struct Planned {
    name: String,
    shape: Vec<usize>,
    recipe: Recipe,
}

enum Recipe {
    /// Pieces of sources, one behind the other.
    Pieces(Vec<Piece>),
    First(Initial),
}

impl Planned {
    fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Open sources, and what is made of them.
pub struct MergePlan {
    options: MergeOptions,
    sources: Vec<Source>,
    settings: Settings,
    config: ModelConfig,
    carried: BTreeMap<String, Carried>,
    tensors: Vec<Planned>,
    report: MergeReport,
}

impl MergePlan {
    /// Opens the sources and finds the place of every tensor. Do not change them meanwhile.
    ///
    /// # Errors
    /// [`ModelError::Read`], [`ModelError::Checkpoint`], [`ModelError::TorchFile`] for a source that cannot be read or is
    /// not whole, [`ModelError::Config`] for a configuration that this crate does not run. Everything about names,
    /// shapes and dtypes is in the [report](Self::report) instead.
    pub fn new(options: &MergeOptions) -> Result<Self> {
        if !matches!(options.dtype, DType::BF16 | DType::F16 | DType::F32) {
            return Err(ModelError::Config {
                name: "the target dtype".into(),
                detail: format!("{} is not bf16, fp16 or fp32", options.dtype.as_str()),
            });
        }
        let mut sources = vec![Source::open(Role::Vit, &options.vit)?];
        if let Some(adapter) = &options.adapter {
            sources.push(Source::open(Role::Adapter, adapter)?);
        }
        sources.push(Source::open(Role::Llm, &options.llm)?);
        let mut notes: Vec<String> =
            sources.iter_mut().flat_map(|source| std::mem::take(&mut source.notes)).collect();
        let tokens = TokenIds::read(&[&options.processor, &options.llm], &mut notes)?;
        let mut settings = Settings::read(options, &tokens)?;
        notes.append(&mut settings.notes);
        // The configuration is read as every command reads it, so what is written runs here.
        let config = ModelConfig::parse("the merged config.json", &settings.config.to_string())?;
        let carried = carried::files(options, settings.variant, config.vision.patch_size, &mut notes)?;
        let (tensors, mut report) = place(options, &sources, &settings, &config);
        report.notes.splice(..0, notes);
        Ok(Self { options: options.clone(), sources, settings, config, carried, tensors, report })
    }

    /// What would be done, and everything that is wrong.
    pub fn report(&self) -> &MergeReport {
        &self.report
    }

    /// Writes the checkpoint, several files at a time. `out` must not exist; it appears when all of it is written, and not
    /// at all otherwise.
    ///
    /// # Errors
    /// [`ModelError::Merge`] when the report has problems, or a finite number is infinite in the target dtype;
    /// [`ModelError::Write`] when `out` exists, lies within a source, or cannot be written.
    pub fn write(&self, out: &Path, how: &WriteOptions) -> Result<()> {
        self.check_target(out)?;
        self.refuse_problems()?;
        write::write(self, out, how)
    }

    fn refuse_problems(&self) -> Result<()> {
        let all = &self.report.problems;
        if all.is_empty() {
            return Ok(());
        }
        let mut problems: Vec<String> = all.iter().take(SHOWN).map(ToString::to_string).collect();
        if all.len() > SHOWN {
            problems.push(format!("and {} more; --dry-run lists them", all.len() - SHOWN));
        }
        Err(ModelError::Merge { problems })
    }

    /// Whether a checkpoint may be written there.
    ///
    /// # Errors
    /// [`ModelError::Write`] when `out` exists or lies within a source.
    pub fn check_target(&self, out: &Path) -> Result<()> {
        write::refuse_existing(out)?;
        let Ok(out_whole) = std::path::absolute(out) else { return Ok(()) };
        let within = out_whole.ancestors().skip(1).find_map(|folder| folder.canonicalize().ok());
        let options = &self.options;
        let sources =
            [Some(&options.vit), Some(&options.llm), Some(&options.processor), options.adapter.as_ref()];
        let holds = |source: &&PathBuf| {
            let source = source.canonicalize().ok().filter(|source| source.is_dir());
            source.zip(within.as_ref()).is_some_and(|(source, within)| within.starts_with(&source))
        };
        match sources.into_iter().flatten().find(holds) {
            Some(source) => {
                let why = format!("it would lie within the source {}", source.display());
                Err(ModelError::Write { path: out.to_owned(), source: std::io::Error::other(why) })
            }
            None => Ok(()),
        }
    }
}

/// The tensors of the model that can be made, and what is to say about the others.
fn place(
    options: &MergeOptions,
    sources: &[Source],
    settings: &Settings,
    config: &ModelConfig,
) -> (Vec<Planned>, MergeReport) {
    let targets = target::tensors(config);
    let mut gather = Gather::new(config, &targets);
    sources.iter().for_each(|source| gather.add(source));
    let mut notes = Vec::new();
    if settings.tied != Some(false) && gather.tie_head() {
        notes.push(format!("{} is a copy of the embedding: the decoder is tied", target::HEAD));
    }
    let uncovered = gather.uncovered();
    let Gather { mut made, mut problems, dropped, .. } = gather;
    let is_first = |name: &String| options.adapter.is_none() && name.starts_with(target::MERGER);
    for name in uncovered.iter().filter(|name| !is_first(name)) {
        let message = format!("uncovered: no source has {name}");
        problems.push(Problem { kind: ProblemKind::Uncovered, source: None, key: name.clone(), message });
    }
    problems.extend(token_problems(config));
    let loaded = |role| made.values().filter(|pieces| pieces.iter().any(|piece| piece.role == role)).count();
    let count = |kind, role| MergeReport::count(&problems, kind, role);
    let of_source = |source: &Source| SourceReport {
        source: source.role,
        loaded: loaded(source.role),
        dropped: dropped.get(&source.role).copied().unwrap_or(0),
        missing_in_model: count(ProblemKind::MissingInModel, Some(source.role)),
        shape_mismatch: count(ProblemKind::ShapeMismatch, Some(source.role)),
    };
    let elements: usize = targets.iter().map(|(_, shape)| shape.iter().product::<usize>()).sum();
    let report = MergeReport {
        variant: settings.variant.name(),
        tensors: targets.len(),
        bytes: (elements * options.dtype.size_in_bytes()) as u64,
        missing_in_model: count(ProblemKind::MissingInModel, None),
        shape_mismatch: count(ProblemKind::ShapeMismatch, None),
        uncovered_model_params: uncovered.len(),
        initialised: uncovered.iter().filter(|name| is_first(name)).cloned().collect(),
        sources: sources.iter().map(of_source).collect(),
        problems,
        notes,
    };
    let block = config.vision.hidden_size * config.vision.spatial_merge_size.pow(2);
    let recipe = |name: &String| match made.remove(name) {
        Some(pieces) => Some(Recipe::Pieces(pieces)),
        None => report.initialised.contains(name).then(|| Recipe::First(initial::of_merger(name, block))),
    };
    let recipes: Vec<_> = targets.iter().map(|(name, _)| name).map(recipe).collect();
    let planned = targets.into_iter().zip(recipes);
    let planned =
        planned.filter_map(|((name, shape), recipe)| Some(Planned { name, shape, recipe: recipe? }));
    (planned.collect(), report)
}

/// Image tokens that the decoder has no embedding for.
fn token_problems(config: &ModelConfig) -> Vec<Problem> {
    let rows = config.text.vocab_size;
    let ids = [
        ("image_token_id", config.image_token_id),
        ("vision_start_token_id", config.vision_start_token_id),
        ("vision_end_token_id", config.vision_end_token_id),
    ];
    let beyond = ids.into_iter().filter(|(_, id)| *id as usize >= rows);
    beyond
        .map(|(key, id)| Problem {
            kind: ProblemKind::Config,
            source: Some(Role::Llm),
            key: key.into(),
            message: format!(
                "[LLM] {key} is {id}, the embedding has {rows} rows; is the processor's tokenizer the decoder's?"
            ),
        })
        .collect()
}
