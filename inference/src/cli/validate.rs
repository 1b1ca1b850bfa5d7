//! `packd model validate`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::merge::SourceArgs;
use super::progress_view::View;
use super::{RunArgs, exit, points, read_image, say};
use crate::encoder::Encoder;
use crate::error::Result;
use crate::merge::{Comparison, Generation, MergePlan, OutputPart, ValidateOptions, Validation, validate};
use crate::picture::test_picture;

/// Letters, digits, signs and other scripts, so that many rows of the embedding are looked up.
const TEXT: &str = "The quick brown fox jumps over the lazy dog; 12 × 34 = 408. Zwölf Boxkämpfer jagen Viktor. \
                    今日は良い天気です。 Съешь же ещё этих булок. def f(x): return {\"key\": x ** 2}";
const QUESTION: &str = "Describe this image in detail.";

/// Compares a merged checkpoint with the sources that it was made of, and exits with 1 when any part fails.
#[derive(Args)]
#[command(after_help = "\
Parts:
  weights  configuration and tensors, bit for bit in the checkpoint's dtype
  vit      the vision tower over an image: patches, norm, each layer, merger
  llm      the decoder over a text: embeddings, each layer, norm, logits
  e2e      the tokens of a greedy answer to a question about the image
For the last three the sources are put together to a model in memory, and the
first output is named at which the checkpoint leaves it. One model is in memory
at a time. Exits with 1 when any part fails.

Examples, with SOURCES for --vit encoder --llm Qwen3-4B --processor processor:
  packd model validate SOURCES --ckpt merged
  packd model validate SOURCES --ckpt merged --skip llm,e2e --img cat.jpg
  packd model validate SOURCES --ckpt merged --skip weights,e2e --unrounded")]
pub(super) struct ValidateArgs {
    #[command(flatten)]
    sources: SourceArgs,
    /// The merged checkpoint
    #[arg(long, value_name = "DIR")]
    ckpt: PathBuf,
    /// Parts to leave out; may be given several times
    #[arg(long, aliases = ["validate-skip", "validate_skip"], value_enum, value_name = "PART,…", value_delimiter = ',')]
    skip: Vec<Part>,
    /// Image of vit and e2e [default: a built-in picture of 16 by 12 tokens]
    #[arg(long, alias = "image", value_name = "FILE")]
    img: Option<PathBuf>,
    /// Text of llm [default: a built-in one of several scripts]
    #[arg(long, alias = "sample_text", value_name = "TEXT")]
    sample_text: Option<String>,
    /// Tokens of e2e at most
    #[arg(long, alias = "max_new_tokens", value_name = "N", default_value_t = 50)]
    max_new_tokens: usize,
    /// Do not round the sources to the checkpoint's dtype first: shows what rounding changes, with a threshold for it
    #[arg(long)]
    unrounded: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run: RunArgs,
    /// The reference's name of --tokenizer
    #[arg(long, alias = "qwen_processor", value_name = "DIR", hide = true, conflicts_with = "tokenizer")]
    qwen_processor: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Part {
    Weights,
    Vit,
    Llm,
    E2e,
}

pub(super) fn run(args: &ValidateArgs, quiet: bool) -> Result<ExitCode> {
    let wants = |part| !args.skip.contains(&part);
    if ![Part::Weights, Part::Vit, Part::Llm, Part::E2e].into_iter().any(wants) {
        eprintln!("error: every part is skipped, nothing is left to compare");
        return Ok(ExitCode::from(exit::USAGE));
    }
    let plan = MergePlan::new(&args.sources.options())?;
    let device = args.run.device()?;
    let mut options = ValidateOptions {
        weights: wants(Part::Weights),
        image: None,
        text: None,
        question: None,
        max_new_tokens: args.max_new_tokens,
        unrounded: args.unrounded,
        dtype: args.run.dtype(&device),
        device,
        progress: Arc::default(),
    };
    let mut encoder = None;
    if [Part::Vit, Part::Llm, Part::E2e].into_iter().any(wants) {
        let encoder = encoder.insert(args.encoder(&plan)?);
        args.fill(encoder, &plan, &mut options)?;
    }
    let view = View::of(&options.progress, quiet);
    let done = validate(plan, &args.ckpt, &options)?;
    drop(view);
    let text =
        |ids: &[u32]| encoder.as_ref().and_then(|encoder| encoder.decode(ids).ok()).unwrap_or_default();
    if args.json {
        let mut json = json!(done);
        if let Some(answer) = &done.e2e {
            json["e2e"]["checkpoint_text"] = text(&answer.checkpoint).into();
            json["e2e"]["sources_text"] = text(&answer.sources).into();
        }
        say!("{json}");
    } else {
        print(&done, text);
    }
    Ok(if done.passed { ExitCode::SUCCESS } else { ExitCode::from(exit::FAULTS) })
}

impl ValidateArgs {
    /// Images and texts are those of the sources' model, made with the files beside the checkpoint.
    fn encoder(&self, plan: &MergePlan) -> Result<Encoder> {
        let mut options = self.run.encoder();
        options.tokenizer = options.tokenizer.or_else(|| self.qwen_processor.clone());
        Encoder::new(&self.ckpt, plan.config(), &options)
    }

    fn fill(&self, encoder: &Encoder, plan: &MergePlan, options: &mut ValidateOptions) -> Result<()> {
        let wants = |part| !self.skip.contains(&part);
        let vision = &plan.config().vision;
        if wants(Part::Vit) || wants(Part::E2e) {
            let picture = || Ok(test_picture(vision.patch_size, vision.spatial_merge_size));
            let picture = self.img.as_deref().map_or_else(picture, read_image)?;
            if wants(Part::Vit) {
                options.image = Some(encoder.image(&picture)?);
            }
            if wants(Part::E2e) {
                options.question = Some(encoder.question(QUESTION, &[picture])?);
            }
        }
        if wants(Part::Llm) {
            options.text = Some(encoder.text(self.sample_text.as_deref().unwrap_or(TEXT))?);
        }
        Ok(())
    }
}

fn print(done: &Validation, text: impl Fn(&[u32]) -> String) {
    say!(
        "part     points  worst cosine  worst relative error  threshold                                     result"
    );
    if let Some(weights) = &done.weights {
        let result = match weights.differences.len() {
            0 => "ok".to_owned(),
            differences => format!("FAILS: {differences} differences"),
        };
        row("weights", weights.tensors.len(), [None; 2], "the same bytes", &result);
    }
    for (name, part) in [("vit", &done.vit), ("llm", &done.llm)] {
        let Some(part) = part else { continue };
        let worst = [part.worst_cosine, part.worst_relative_error];
        row(name, part.points.len(), worst, &part.threshold.to_string(), &result_of(part));
    }
    if let Some(answer) = &done.e2e {
        let points = answer.checkpoint.len().max(answer.sources.len());
        row("e2e", points, [None; 2], "the same tokens", &result_of_answer(answer));
    }
    if let Some(weights) = &done.weights {
        print_weights(weights);
    }
    for (name, problem) in problems(done) {
        say!("  {name} {problem}");
    }
    for part in [&done.vit, &done.llm].into_iter().flatten() {
        part.points.iter().filter(|point| !point.passed).for_each(points::print);
    }
    if let Some(answer) = done.e2e.as_ref().filter(|answer| answer.problem.is_none()) {
        say!("  e2e checkpoint: {}", text(&answer.checkpoint).trim());
        if answer.parts_at.is_some() {
            say!("  e2e sources:    {}", text(&answer.sources).trim());
        }
    }
    for note in &done.notes {
        say!("  note: {note}");
    }
    say!("{}", if done.passed { "the checkpoint is what its sources make" } else { "the checkpoint FAILS" });
}

fn row(part: &str, points: usize, [cosine, error]: [Option<f64>; 2], threshold: &str, result: &str) {
    let cosine = cosine.map_or("-".into(), |cosine| format!("{cosine:.9}"));
    let error = error.map_or("-".into(), |error| format!("{error:.2e}"));
    say!("{part:<8} {points:>6}  {cosine:>12}  {error:>20}  {threshold:<44}  {result}");
}

fn result_of(part: &OutputPart) -> String {
    match (&part.problem, &part.first_over) {
        (Some(_), _) => "FAILS: cannot be compared".into(),
        (None, Some(point)) => format!("FAILS from {point} on"),
        (None, None) => "ok".into(),
    }
}

fn result_of_answer(answer: &Generation) -> String {
    match (&answer.problem, answer.parts_at) {
        (Some(_), _) => "FAILS: cannot be compared".into(),
        (None, Some(token)) if answer.passed => format!("ok, parts at token {token}"),
        (None, Some(token)) => format!("FAILS from token {token} on"),
        (None, None) => "ok".into(),
    }
}

/// Each problem with the parts that have it.
fn problems(done: &Validation) -> Vec<(String, &str)> {
    let all = [
        ("vit", done.vit.as_ref().and_then(|part| part.problem.as_deref())),
        ("llm", done.llm.as_ref().and_then(|part| part.problem.as_deref())),
        ("e2e", done.e2e.as_ref().and_then(|part| part.problem.as_deref())),
    ];
    all.into_iter().filter_map(|(name, problem)| Some((format!("{name}:"), problem?))).collect()
}

fn print_weights(weights: &Comparison) {
    for difference in &weights.differences {
        say!("  differs {}: {}", difference.key, difference.detail);
    }
    if weights.unknown > 0 {
        say!("  {} tensors of the merger have no source", weights.unknown);
    }
    let differences = weights.differences.len();
    say!("  {} tensors are those of the sources; {differences} differences", weights.equal);
}
