//! `packd model convert`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::layout::degree;
use super::say;
use super::write::{WriteArgs, size};
use crate::convert::{
    ConvertError, ConvertTo, Format, HfOptions, McoreOptions, PatchEmbed, SourceOptions, convert,
};
use crate::error::{ModelError, Result};
use crate::layout::AskedDegrees;
use crate::torch_file::{ArgsStyle, ExtraState};

/// Converts a checkpoint: Hugging Face to Megatron, Megatron to Hugging Face, or Megatron to other degrees. What the
/// source is, is seen from its files. Values and dtypes stay as they are, bit for bit. Memory does not grow with the size of
/// tensors. The target appears when all is written, and never in part; the source is only read.
#[derive(Args)]
#[command(after_help = "\
Examples:
  packd model convert model-hf model-tp2 --to mcore --tp 2 --pp 4 --pipeline-split 0,12,12,12
  packd model convert model-tp2 model-hf2 --to hf --hf model-hf
  packd model convert model-tp2 model-tp4 --to mcore --tp 4 --hf model-hf")]
pub(super) struct ConvertArgs {
    /// Checkpoint to convert
    #[arg(required_unless_present = "load_ckpt_path")]
    source: Option<PathBuf>,
    /// Folder to write; it must not be there, or be empty
    #[arg(required_unless_present = "save_ckpt_path")]
    target: Option<PathBuf>,
    /// What to write
    #[arg(long, aliases = ["save-platform", "save_platform"], value_enum)]
    to: FormatChoice,
    /// What the source is [default: by its files]
    #[arg(long, aliases = ["load-platform", "load_platform"], value_enum)]
    from: Option<FormatChoice>,
    /// Hugging Face directory of the model, for a Megatron source: its config.json describes the tensors, and its
    /// configuration, tokenizer and processor files are copied to a Hugging Face target
    #[arg(long, value_name = "DIR")]
    hf: Option<PathBuf>,
    /// The reference converter's name of the source
    #[arg(long, alias = "load_ckpt_path", value_name = "DIR", hide = true, conflicts_with = "source")]
    load_ckpt_path: Option<PathBuf>,
    /// The reference converter's name of the target
    #[arg(long, alias = "save_ckpt_path", value_name = "DIR", hide = true, conflicts_with = "target")]
    save_ckpt_path: Option<PathBuf>,

    /// Tensor parallel degree [default: 1]
    #[arg(long, aliases = ["tensor-model-parallel-size", "tensor_model_parallel_size"], value_name = "N", value_parser = degree, help_heading = "Megatron target")]
    tp: Option<usize>,
    /// Pipeline parallel degree [default: 1, or the stages of --pipeline-split]
    #[arg(long, aliases = ["pipeline-model-parallel-size", "pipeline_model_parallel_size"], value_name = "N", value_parser = degree, help_heading = "Megatron target")]
    pp: Option<usize>,
    /// Expert parallel degree [default: 1]
    #[arg(long, aliases = ["expert-model-parallel-size", "expert-parallel-size", "expert_parallel_size"], value_name = "N", value_parser = degree, help_heading = "Megatron target")]
    ep: Option<usize>,
    /// Tensor parallel degree within an expert [default: that of --tp]
    #[arg(long, aliases = ["expert-tensor-parallel-size", "expert_tensor_parallel_size"], value_name = "N", value_parser = degree, help_heading = "Megatron target")]
    etp: Option<usize>,
    /// Decoder layers of each pipeline stage: 0,12,12,12 [default: the same number in each]
    #[arg(long, aliases = ["custom-pipeline-layers", "custom_pipeline_layers"], value_name = "N,N,…", value_delimiter = ',', help_heading = "Megatron target")]
    pipeline_split: Option<Vec<usize>>,
    /// Form of the patch embedding, which must be that of the training
    #[arg(
        long,
        alias = "patch_embed",
        value_enum,
        default_value = "tp-linear",
        help_heading = "Megatron target"
    )]
    patch_embed: PatchChoice,
    /// Give embedding and head a multiple of this many rows on every rank
    #[arg(
        long,
        alias = "make_vocab_size_divisible_by",
        value_name = "N",
        default_value = "128",
        help_heading = "Megatron target"
    )]
    make_vocab_size_divisible_by: usize,
    /// Form of `args` in the files; only the first loads with weights_only=True
    #[arg(long, value_enum, default_value = "ordered-dict", help_heading = "Megatron target")]
    args: ArgsChoice,
    /// Form of Transformer Engine's _extra_state; the last does not load with weights_only=True
    #[arg(long, value_enum, default_value = "empty", help_heading = "Megatron target")]
    extra_state: ExtraStateChoice,

    /// Bytes of tensors in a file, at most: 5GB, 500MB
    #[arg(long, alias = "max_shard_size", value_name = "SIZE", default_value = "5GB", value_parser = size, help_heading = "Hugging Face target")]
    max_shard_size: u64,

    /// Tensor parallel degree of the source, where it should be checked
    #[arg(long, value_name = "N", value_parser = degree, help_heading = "Megatron source")]
    from_tp: Option<usize>,
    /// Pipeline parallel degree of the source, where it should be checked or its names do not tell
    #[arg(long, value_name = "N", value_parser = degree, help_heading = "Megatron source")]
    from_pp: Option<usize>,
    /// Expert parallel degree of the source, where it should be checked or its names do not tell
    #[arg(long, value_name = "N", value_parser = degree, help_heading = "Megatron source")]
    from_ep: Option<usize>,
    /// Take what several ranks hold from the first, without comparing it with the others
    #[arg(long, help_heading = "Megatron source")]
    trust_replicas: bool,
    #[command(flatten)]
    write: WriteArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum FormatChoice {
    /// Hugging Face
    #[value(alias = "huggingface")]
    Hf,
    /// Megatron
    #[value(alias = "megatron")]
    Mcore,
}

impl From<FormatChoice> for Format {
    fn from(choice: FormatChoice) -> Self {
        match choice {
            FormatChoice::Hf => Self::Hf,
            FormatChoice::Mcore => Self::Mcore,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum PatchChoice {
    /// [D / TP, C·P·P], cut by rows
    #[value(aliases = ["TP_LINEAR", "tp_linear"])]
    TpLinear,
    /// [D, C·P·P] on every rank
    #[value(alias = "LINEAR")]
    Linear,
    /// [D, C, P, P] on every rank
    #[value(alias = "CONV2D")]
    Conv2d,
}

#[derive(Clone, Copy, ValueEnum)]
enum ArgsChoice {
    /// An OrderedDict with the same attributes
    OrderedDict,
    /// argparse.Namespace, as Megatron writes it
    Namespace,
    /// types.SimpleNamespace
    SimpleNamespace,
}

#[derive(Clone, Copy, ValueEnum)]
enum ExtraStateChoice {
    /// A tensor of no elements
    Empty,
    /// A tensor with the pickle of None
    PickledNone,
    /// io.BytesIO, as the reference converter writes it
    BytesIo,
}

impl ConvertArgs {
    /// Without a Megatron target its degrees are the source's, as they are to the reference converter.
    fn degrees_of_source(&self) -> Result<AskedDegrees> {
        let unused = [("--etp", self.etp.is_some()), ("--pipeline-split", self.pipeline_split.is_some())];
        if let Some((flag, _)) = unused.into_iter().find(|(_, is_given)| *is_given) {
            let detail = format!(
                "{flag} is for a Megatron target: that of a source is read from its files, leave it out"
            );
            return Err(ConvertError::Degrees(detail).into());
        }
        Ok(AskedDegrees {
            tp: self.from_tp.or(self.tp),
            pp: self.from_pp.or(self.pp),
            ep: self.from_ep.or(self.ep),
        })
    }

    fn mcore(&self) -> McoreOptions {
        McoreOptions {
            tp: self.tp.unwrap_or(1),
            pp: self.pp,
            ep: self.ep.unwrap_or(1),
            etp: self.etp,
            pipeline_split: self.pipeline_split.clone(),
            patch_embed: match self.patch_embed {
                PatchChoice::TpLinear => PatchEmbed::TpLinear,
                PatchChoice::Linear => PatchEmbed::Linear,
                PatchChoice::Conv2d => PatchEmbed::Conv2d,
            },
            vocab_multiple: self.make_vocab_size_divisible_by,
            args: match self.args {
                ArgsChoice::OrderedDict => ArgsStyle::OrderedDict,
                ArgsChoice::Namespace => ArgsStyle::Namespace,
                ArgsChoice::SimpleNamespace => ArgsStyle::SimpleNamespace,
            },
            extra_state: match self.extra_state {
                ExtraStateChoice::Empty => ExtraState::Empty,
                ExtraStateChoice::PickledNone => ExtraState::PickledNone,
                ExtraStateChoice::BytesIo => ExtraState::BytesIo,
            },
        }
    }
}

pub(super) fn run(args: &ConvertArgs, quiet: bool) -> Result<ExitCode> {
    let path = |one: &Option<PathBuf>, other: &Option<PathBuf>| {
        // Clap asks for one of the two.
        one.clone().or_else(|| other.clone()).unwrap_or_default()
    };
    let source = path(&args.source, &args.load_ckpt_path);
    let target = path(&args.target, &args.save_ckpt_path);
    let asked = match args.to {
        FormatChoice::Mcore => AskedDegrees { tp: args.from_tp, pp: args.from_pp, ep: args.from_ep },
        FormatChoice::Hf => args.degrees_of_source()?,
    };
    let from = SourceOptions {
        dir: source.clone(),
        format: args.from.map(Format::from),
        hf: args.hf.clone(),
        degrees: asked,
        trust_replicas: args.trust_replicas,
    };
    let to = match args.to {
        FormatChoice::Hf => ConvertTo::Hf(HfOptions { shard_bytes: args.max_shard_size }),
        FormatChoice::Mcore => ConvertTo::Mcore(args.mcore()),
    };
    let done = args.write.run(quiet, |how| convert(&from, &target, &to, how));
    let report = done.inspect_err(|error| {
        if matches!(error, ModelError::Convert(ConvertError::Replicas { .. })) {
            eprintln!(
                "hint: --trust-replicas takes what several ranks hold from the first, without comparing"
            );
        }
    })?;
    if args.json {
        say!("{}", serde_json::json!(report));
        return Ok(ExitCode::SUCCESS);
    }
    say!(
        "{} tensors of {} bytes in {} files: {}",
        report.tensors,
        report.bytes,
        report.files,
        Path::display(&target)
    );
    if !report.carried.is_empty() {
        say!("copied: {}", report.carried.join(", "));
    }
    for note in &report.notes {
        say!("note: {note}");
    }
    Ok(ExitCode::SUCCESS)
}
