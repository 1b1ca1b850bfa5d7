//! `packd model merge`.

use std::path::PathBuf;
use std::process::ExitCode;

use candle_core::DType;
use clap::{Args, ValueEnum};

use super::write::{WriteArgs, size};
use super::{exit, say};
use crate::error::Result;
use crate::merge::{MergeOptions, MergePlan, MergeReport, ProblemKind, Role, SHARD_BYTES, Variant};

/// The parts of a model.
#[derive(Args)]
pub(super) struct SourceArgs {
    /// Vision tower: a folder of safetensors with config.json, one such file, or a file of torch.save
    #[arg(long, value_name = "PATH")]
    vit: PathBuf,
    /// Decoder (Qwen3 or Qwen3-MoE), likewise
    #[arg(long, value_name = "PATH")]
    llm: PathBuf,
    /// Folder with the image processor, and the tokenizer if the decoder's is not taken
    #[arg(long, value_name = "DIR")]
    processor: PathBuf,
    /// Adapter, likewise [default: none, the merger gets first values from --seed]
    #[arg(long, value_name = "PATH", default_value = "", hide_default_value = true)]
    adapter: String,
    /// What the decoder must be [default: what its config.json says]
    #[arg(long, value_enum)]
    variant: Option<VariantChoice>,
    /// Patches merged into one token along each side
    #[arg(long, alias = "spatial_merge_size", value_name = "N", default_value_t = 2, value_parser = merge_size)]
    spatial_merge_size: usize,
}

/// Merges a vision tower, a decoder and a processor (and an adapter) into one Hugging Face checkpoint. Everything is
/// checked before anything is written: each tensor of the sources must have a place in the model, and each of the model
/// a source. Nothing is left on failure.
#[derive(Args)]
pub(super) struct MergeArgs {
    #[command(flatten)]
    sources: SourceArgs,
    /// Folder to write; it must not exist
    #[arg(long, value_name = "DIR", required_unless_present = "dry_run")]
    out: Option<PathBuf>,
    /// What tensors are written as
    #[arg(long, alias = "target_dtype", value_enum, default_value = "bf16")]
    target_dtype: TargetChoice,
    /// Seed of the merger's first values without --adapter
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Bytes of tensors in a file, at most: 5GB, 500MB
    #[arg(long, alias = "max_shard_size", value_name = "SIZE", default_value = "5GB", value_parser = size)]
    max_shard_size: u64,
    /// Only check; exits with 1 when anything is wrong
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    write: WriteArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum VariantChoice {
    Dense,
    Moe,
}

#[derive(Clone, Copy, ValueEnum)]
enum TargetChoice {
    #[value(alias = "bfloat16")]
    Bf16,
    #[value(alias = "float16", alias = "f16")]
    Fp16,
    #[value(alias = "float32", alias = "f32")]
    Fp32,
}

fn merge_size(text: &str) -> std::result::Result<usize, String> {
    text.parse().ok().filter(|size| (1..=3).contains(size)).ok_or_else(|| "it is 1, 2 or 3".into())
}

impl SourceArgs {
    pub(super) fn options(&self) -> MergeOptions {
        MergeOptions {
            vit: self.vit.clone(),
            llm: self.llm.clone(),
            processor: self.processor.clone(),
            adapter: Some(&self.adapter).filter(|path| !path.is_empty()).map(PathBuf::from),
            variant: self.variant.map(|variant| match variant {
                VariantChoice::Dense => Variant::Dense,
                VariantChoice::Moe => Variant::Moe,
            }),
            spatial_merge_size: self.spatial_merge_size,
            dtype: DType::BF16,
            seed: 0,
            shard_bytes: SHARD_BYTES,
        }
    }
}

pub(super) fn run(args: &MergeArgs, quiet: bool) -> Result<ExitCode> {
    let options = MergeOptions {
        dtype: match args.target_dtype {
            TargetChoice::Bf16 => DType::BF16,
            TargetChoice::Fp16 => DType::F16,
            TargetChoice::Fp32 => DType::F32,
        },
        seed: args.seed,
        shard_bytes: args.max_shard_size,
        ..args.sources.options()
    };
    let plan = MergePlan::new(&options)?;
    if let Some(out) = &args.out {
        plan.check_target(out)?;
    }
    let report = plan.report();
    if args.dry_run {
        if args.json {
            say!("{}", serde_json::json!(report));
        } else {
            print_counts(report, &options);
        }
        let good = report.problems.is_empty();
        return Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(exit::FAULTS) });
    }
    let Some(out) = &args.out else { return Ok(ExitCode::from(exit::USAGE)) };
    args.write.run(quiet, |how| plan.write(out, how))?;
    if args.json {
        say!("{}", serde_json::json!(report));
        return Ok(ExitCode::SUCCESS);
    }
    for source in &report.sources {
        say!("[{}] {} tensors of the model, {} left out", source.source, source.loaded, source.dropped);
    }
    print_notes(report, &options);
    say!("{}: {} tensors, {} bytes ({})", out.display(), report.tensors, report.bytes, report.variant);
    Ok(ExitCode::SUCCESS)
}

fn print_counts(report: &MergeReport, options: &MergeOptions) {
    say!("missing_in_model: {}", report.missing_in_model);
    say!("shape_mismatch: {}", report.shape_mismatch);
    say!("uncovered_model_params: {}", report.uncovered_model_params);
    for source in &report.sources {
        say!(
            "[{}] loaded={} missing_in_model={} shape_mismatch={}",
            source.source,
            source.loaded,
            source.missing_in_model,
            source.shape_mismatch
        );
    }
    for problem in &report.problems {
        let kind = match problem.kind {
            ProblemKind::MissingInModel => "missing",
            ProblemKind::ShapeMismatch => "shape",
            ProblemKind::Uncovered => "uncovered",
            ProblemKind::Incomplete => "incomplete",
            ProblemKind::Dtype => "dtype",
            ProblemKind::Duplicate => "duplicate",
            ProblemKind::Config => "config",
        };
        say!("  {kind:<10} {problem}");
    }
    print_notes(report, options);
    let verdict = match report.problems.len() {
        0 => "these parts make a model".to_owned(),
        problems => format!("{problems} problems: these parts do not make a model"),
    };
    say!("{verdict}");
}

fn print_notes(report: &MergeReport, options: &MergeOptions) {
    for name in &report.initialised {
        say!("  initialised {name} (no {}, seed {})", Role::Adapter, options.seed);
    }
    for note in &report.notes {
        say!("  note: {note}");
    }
}
