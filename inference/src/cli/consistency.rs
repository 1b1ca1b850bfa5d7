//! `packd model consistency`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use candle_core::Device;
use clap::{Args, ValueEnum};
use image::imageops::{FilterType, resize};
use tempfile::TempDir;

use super::layout::degree;
use super::progress_view::View;
use super::{RunArgs, exit, points, read_image, say};
use crate::batch::PackedBatch;
use crate::config::ModelConfig;
use crate::consistency::{Check, CheckKind, ConsistencyOptions, Outcome, Point, Report, Tolerance, check};
use crate::convert::{ConvertError, ConvertTo, Format, McoreOptions, SourceOptions, convert};
use crate::encoder::Encoder;
use crate::error::{ModelError, Result};
use crate::flavour::Flavour;
use crate::layout::AskedDegrees;
use crate::picture::test_picture;
use crate::progress::Progress;
use crate::write_options::WriteOptions;

/// Compares a Megatron checkpoint with the Hugging Face checkpoint that it should be: all tensors, and what both compute
/// of an image and a question, with the constants of Megatron's code on its side. Exits with 1 when a check fails.
#[derive(Args)]
#[command(after_help = "\
Checks:
  weights         every tensor of the model, put together from all ranks
  vision-encoder  the vision tower after patch embedding and first norm, its rotary angles, and before the adapter
  merger          after the adapter
  layers          after each layer of the vision tower
  logits          what the decoder gets, after each of its layers, and the logits
  loading         the Hugging Face checkpoint read in two ways

Examples:
  packd model consistency --hf model-hf --mcore model-tp2
  packd model consistency --hf model-hf --mcore model-tp2 --tolerance f32 --flavour hf
  packd model consistency --hf model-hf --tp 2 --pp 4")]
pub(super) struct ConsistencyArgs {
    /// Hugging Face checkpoint
    #[arg(long, env = "HF_MODEL_PATH", value_name = "DIR")]
    hf: PathBuf,
    /// Megatron checkpoint [default: --hf is converted into a temporary folder, to the degrees given]
    #[arg(long, env = "MCORE_CHECKPOINT_PATH", value_name = "DIR")]
    mcore: Option<PathBuf>,
    /// Tensor parallel degree of the Megatron checkpoint
    #[arg(long, aliases = ["tensor-model-parallel-size", "tensor_model_parallel_size"], env = "CONSISTENCY_TEST_TP", value_name = "N", value_parser = degree)]
    tp: Option<usize>,
    /// Pipeline parallel degree
    #[arg(long, aliases = ["pipeline-model-parallel-size", "pipeline_model_parallel_size"], env = "CONSISTENCY_TEST_PP", value_name = "N", value_parser = degree)]
    pp: Option<usize>,
    /// Expert parallel degree
    #[arg(long, aliases = ["expert-model-parallel-size", "expert_parallel_size"], value_name = "N", value_parser = degree)]
    ep: Option<usize>,
    /// Where the temporary folder is made; it takes as much room as the model
    #[arg(long, value_name = "DIR", env = "TMPDIR", hide_env = true, default_value = "/tmp")]
    scratch: PathBuf,

    /// Make these checks only
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CHECK,…")]
    checks: Vec<CheckChoice>,
    /// Leave out these checks
    #[arg(long, value_enum, value_delimiter = ',', value_name = "CHECK,…")]
    skip: Vec<CheckChoice>,
    /// bf16: what bf16 and Megatron's constants explain; f32: the same weights in the same arithmetic
    #[arg(long, value_enum, default_value = "bf16")]
    tolerance: ToleranceChoice,
    /// Constants that the Megatron weights are run with: those of Megatron's code, or those of config.json
    #[arg(long, value_enum, default_value = "megatron")]
    flavour: FlavourChoice,
    /// Image to look at, resized to 336 by 336 [default: a built-in picture of 16 by 12 tokens]
    #[arg(long, alias = "img", env = "TEST_IMAGE_PATH", value_name = "FILE")]
    image: Option<PathBuf>,
    /// Question about it
    #[arg(long, alias = "sample-text", value_name = "TEXT", default_value = "Describe this image.")]
    text: String,
    #[command(flatten)]
    run: RunArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The side of an image that is given, as in the reference suite.
const SIDE: u32 = 336;

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum CheckChoice {
    Weights,
    #[value(alias = "vision_encoder")]
    VisionEncoder,
    Merger,
    Layers,
    Logits,
    Loading,
}

impl From<CheckChoice> for CheckKind {
    fn from(choice: CheckChoice) -> Self {
        match choice {
            CheckChoice::Weights => Self::Weights,
            CheckChoice::VisionEncoder => Self::VisionEncoder,
            CheckChoice::Merger => Self::Merger,
            CheckChoice::Layers => Self::Layers,
            CheckChoice::Logits => Self::Logits,
            CheckChoice::Loading => Self::Loading,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum ToleranceChoice {
    Bf16,
    F32,
}

#[derive(Clone, Copy, ValueEnum)]
enum FlavourChoice {
    Megatron,
    Hf,
}

impl ConsistencyArgs {
    fn checks(&self) -> Result<BTreeSet<CheckKind>> {
        let given = self.checks.iter().copied().map(CheckKind::from);
        let mut checks: BTreeSet<CheckKind> =
            if self.checks.is_empty() { CheckKind::ALL.into() } else { given.collect() };
        for left_out in self.skip.iter().copied().map(CheckKind::from) {
            checks.remove(&left_out);
        }
        if checks.is_empty() {
            let detail = "no check is left to make".into();
            return Err(ModelError::Config { name: "--checks and --skip".into(), detail });
        }
        Ok(checks)
    }

    fn options(&self, checks: BTreeSet<CheckKind>, device: &Device) -> ConsistencyOptions {
        ConsistencyOptions {
            hf: self.hf.clone(),
            mcore: self.mcore.clone().unwrap_or_default(),
            degrees: AskedDegrees { tp: self.tp, pp: self.pp, ep: self.ep },
            tolerance: match self.tolerance {
                ToleranceChoice::Bf16 => Tolerance::Bf16,
                ToleranceChoice::F32 => Tolerance::F32,
            },
            flavour: match self.flavour {
                FlavourChoice::Megatron => Flavour::Megatron,
                FlavourChoice::Hf => Flavour::HuggingFace,
            },
            checks,
            dtype: self.run.dtype(device),
            device: device.clone(),
            progress: Arc::default(),
        }
    }

    /// The question about the image.
    fn batch(&self) -> Result<PackedBatch> {
        let config = ModelConfig::read(&self.hf)?;
        let mut options = self.run.encoder();
        options.tokenizer =
            options.tokenizer.or_else(|| std::env::var_os("PREPROCESSOR_PATH").map(PathBuf::from));
        let encoder = Encoder::new(&self.hf, &config, &options)?;
        let picture = match &self.image {
            None => test_picture(config.vision.patch_size, config.vision.spatial_merge_size),
            // Large ones would take as long as a training step, and show nothing more.
            Some(path) => resize(&read_image(path)?, SIDE, SIDE, FilterType::CatmullRom),
        };
        PackedBatch::pack(&[encoder.question(&self.text, &[picture])?])
    }

    /// A folder for a conversion of `--hf`, outside of it.
    fn scratch(&self) -> Result<TempDir> {
        let read = |path: &Path| {
            path.canonicalize().map_err(|source| ModelError::Read { path: path.to_owned(), source })
        };
        if read(&self.scratch)?.starts_with(read(&self.hf)?) {
            let (path, source_dir) = (self.scratch.clone(), self.hf.clone());
            return Err(ConvertError::TargetInSource { path, source_dir }.into());
        }
        let folder = tempfile::Builder::new().prefix("packd-consistency-").tempdir_in(&self.scratch);
        folder.map_err(|source| ModelError::Write { path: self.scratch.clone(), source })
    }

    /// Converts `--hf` into `target`.
    fn convert(&self, target: &Path, progress: &Arc<Progress>) -> Result<()> {
        let from =
            SourceOptions { dir: self.hf.clone(), format: Some(Format::Hf), ..SourceOptions::default() };
        let to = McoreOptions {
            tp: self.tp.unwrap_or(1),
            pp: self.pp,
            ep: self.ep.unwrap_or(1),
            ..McoreOptions::default()
        };
        let how = WriteOptions { progress: progress.clone(), ..WriteOptions::default() };
        convert(&from, target, &ConvertTo::Mcore(to), &how).map(|_| ())
    }
}

pub(super) fn run(args: &ConsistencyArgs, quiet: bool) -> Result<ExitCode> {
    let checks = args.checks()?;
    let device = args.run.device()?;
    let mut options = args.options(checks, &device);
    let batch = if options.needs_batch() { Some(args.batch()?) } else { None };
    let view = View::of(&options.progress, quiet);
    // A conversion of --hf for this comparison only.
    let mut scratch = None;
    if args.mcore.is_none() && options.needs_mcore() {
        let folder = scratch.insert(args.scratch()?);
        options.mcore = folder.path().join("mcore");
        args.convert(&options.mcore, &options.progress)?;
    }
    let report = check(&options, batch.as_ref())?;
    drop(view);
    // Before anything is printed: a reader that has gone away ends the program.
    drop(scratch);
    if args.json {
        say!("{}", serde_json::json!(report));
    } else {
        print(&report);
    }
    Ok(if report.passed { ExitCode::SUCCESS } else { ExitCode::from(exit::FAULTS) })
}

fn print(report: &Report) {
    say!(
        "{:<17} {:<7} {:>8} {:>9}  {:<9} {:<8} {:<8} worst",
        "check",
        "result",
        "compared",
        "identical",
        "cosine",
        "error",
        "allowed"
    );
    for (number, check) in report.checks.iter().enumerate() {
        print_check(number + 1, check);
    }
    let failed = report.checks.iter().filter(|check| check.outcome == Outcome::Failed);
    for check in failed.clone() {
        say!();
        say!(
            "{} failed{}",
            check.check.name(),
            check.detail.as_ref().map_or(String::new(), |it| format!(": {it}"))
        );
        let over: Vec<&Point> = check.points.iter().filter(|point| !point.passed).collect();
        over.iter().take(SHOWN).for_each(|point| points::print(point));
        if over.len() > SHOWN {
            say!("  … and {} more; --json has them all", over.len() - SHOWN);
        }
    }
    say!();
    say!("{}", verdict(report, failed.count()));
    for note in &report.notes {
        say!("note: {note}");
    }
    if !report.passed && report.tolerance == Tolerance::F32 && report.flavour == Flavour::Megatron {
        say!(
            "note: Megatron's constants are not within f32 tolerance; --flavour hf compares in one arithmetic"
        );
    }
}

fn verdict(report: &Report, failed: usize) -> String {
    let passed = |kind: CheckKind| {
        report.checks.iter().any(|check| check.check == kind && check.outcome == Outcome::Passed)
    };
    let of_mcore = CheckKind::ALL.into_iter().filter(|kind| *kind != CheckKind::Loading && passed(*kind));
    match (failed, of_mcore.count()) {
        (0, 0) => "the Hugging Face checkpoint reads the same in two ways; no other was compared".into(),
        (0, 1) if passed(CheckKind::Weights) => "the tensors of the two checkpoints are the same".into(),
        (0, _) => {
            format!("the two checkpoints are consistent ({} constants on the Megatron side)", report.flavour)
        }
        (1, _) => "a check failed: the checkpoints are not consistent".into(),
        (failed, _) => format!("{failed} checks failed: the checkpoints are not consistent"),
    }
}

/// Points of a check that are shown.
const SHOWN: usize = 5;

fn print_check(number: usize, check: &Check) {
    let outcome = match check.outcome {
        Outcome::Passed => "passed",
        Outcome::Failed => "FAILED",
        Outcome::Skipped => "skipped",
    };
    let name = format!("{number} {}", check.check.name());
    let Some(worst) = &check.worst else {
        let why = if check.outcome == Outcome::Skipped { check.detail.as_deref() } else { None };
        say!("{name:<17} {outcome:<7} {}", why.unwrap_or_default());
        return;
    };
    let (compared, identical) = (check.compared, check.identical);
    let allowed = match worst.threshold.relative_error {
        0.0 => "0".into(),
        error => format!("{error:.2e}"),
    };
    let (cosine, error, at) = match &worst.agreement {
        Some(_) if compared == identical => ("1".into(), "0".into(), "all are the same to the bit"),
        Some(it) => (format!("{:.7}", it.cosine), format!("{:.2e}", it.relative_error), worst.name.as_str()),
        None => ("-".into(), "-".into(), worst.name.as_str()),
    };
    say!("{name:<17} {outcome:<7} {compared:>8} {identical:>9}  {cosine:<9} {error:<8} {allowed:<8} {at}");
    if let Some(detail) = check.detail.as_ref().filter(|_| check.outcome == Outcome::Passed) {
        say!("{:<17} note: {detail}", "");
    }
}
