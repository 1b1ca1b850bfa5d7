//! `packd model layout`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{exit, say};
use crate::error::Result;
use crate::layout::{AskedDegrees, Checkpoint, Distributed, Layout, Saved};

/// Says what a Megatron checkpoint directory holds: the names of its ranks and why they are read so, parallel degrees,
/// layers of each stage, vocabulary, dtypes, and everything that is wrong. Only names and shapes are read, so it is
/// quick on any size. Exits with 1 when something is wrong.
#[derive(Args)]
pub(super) struct LayoutArgs {
    /// The folder with latest_checkpointed_iteration.txt, or one of its release and iter_… folders
    checkpoint: PathBuf,
    /// Tensor parallel degree that it should have
    #[arg(long, aliases = ["tensor_model_parallel_size", "tensor-model-parallel-size"], value_name = "N", value_parser = degree)]
    tp: Option<usize>,
    /// Pipeline parallel degree that it should have
    #[arg(long, aliases = ["pipeline_model_parallel_size", "pipeline-model-parallel-size"], value_name = "N", value_parser = degree)]
    pp: Option<usize>,
    /// Expert parallel degree that it should have
    #[arg(long, aliases = ["expert_parallel_size", "expert-model-parallel-size"], value_name = "N", value_parser = degree)]
    ep: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn degree(text: &str) -> std::result::Result<usize, String> {
    let degree = text.parse().ok().filter(|degree| (1..=1000).contains(degree));
    degree.ok_or_else(|| "a degree is a number from 1 to 1000".into())
}

pub(super) fn run(args: &LayoutArgs) -> Result<ExitCode> {
    let asked = AskedDegrees { tp: args.tp, pp: args.pp, ep: args.ep };
    let found = Checkpoint::read(&args.checkpoint, &asked)?;
    let problems = match &found {
        Checkpoint::Torch(layout) => &layout.problems,
        Checkpoint::Distributed(found) => &found.problems,
    };
    if args.json {
        say!("{}", serde_json::json!(found));
    } else {
        match &found {
            Checkpoint::Torch(layout) => print_layout(layout),
            Checkpoint::Distributed(found) => print_distributed(found),
        }
        for problem in problems {
            say!("problem     {problem}");
        }
        if problems.is_empty() {
            say!("no problems found");
        }
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(exit::FAULTS) })
}

fn saved(saved: Saved) -> String {
    match saved {
        Saved::Release => "release".into(),
        Saved::Iteration(number) => format!("iteration {number}"),
        Saved::Unnamed => "a folder of ranks".into(),
    }
}

fn print_layout(layout: &Layout) {
    say!("checkpoint  {} in {}", saved(layout.saved), layout.dir.display());
    say!("layout      {}: {}", layout.style, layout.reason);
    let degrees = layout.degrees;
    let etp = degrees.etp.map_or(String::new(), |etp| format!(", ETP {etp}"));
    say!("degrees     TP {}, PP {}, EP {}{etp}", degrees.tp, degrees.pp, degrees.ep);
    let layers: Vec<String> = layout
        .stages
        .iter()
        .map(|stage| stage.as_ref().map_or("?".into(), |stage| stage.layers.to_string()))
        .collect();
    let split = if layout.has_custom_split() { " (custom split)" } else { "" };
    say!("layers      {}{split}", layers.join(","));
    if layout.virtual_chunks > 1 {
        say!("            in {} chunks a stage (virtual pipeline)", layout.virtual_chunks);
    }
    let first = layout.stages.first().and_then(Option::as_ref);
    if let Some(first) = first.filter(|first| first.vision_layers > 0) {
        say!("vision      {} layers", first.vision_layers);
    }
    let experts = layout.stages.iter().flatten().map(|stage| stage.local_experts).max().unwrap_or(0);
    if experts > 0 {
        say!("experts     {}, {experts} a rank", experts * degrees.ep);
    }
    if let Some(vocabulary) = layout.vocabulary {
        let multiple = if vocabulary.is_default_multiple { "a" } else { "not a" };
        let copies = match vocabulary.copied_rows {
            0 => String::new(),
            copies => format!("; the last {copies} are copies of one before"),
        };
        let said = vocabulary.vocab_size.map_or(String::new(), |size| format!("; args say {size}"));
        say!(
            "vocabulary  {} rows, {} a rank, {multiple} multiple of {}{copies}{said}",
            vocabulary.padded,
            vocabulary.per_rank,
            128 * degrees.tp
        );
    }
    let dtypes: Vec<String> =
        layout.dtypes.iter().map(|(dtype, count)| format!("{dtype} ({count} tensors)")).collect();
    say!("dtype       {}", dtypes.join(", "));
}

fn print_distributed(found: &Distributed) {
    say!("checkpoint  {} in {}", saved(found.saved), found.dir.display());
    say!("layout      distributed ({}): {}", found.backend, found.reason);
    say!("shards      {} of {} bytes", found.shards, found.bytes);
    say!("help        load it in Megatron and save it with --ckpt-format torch to convert it");
}
