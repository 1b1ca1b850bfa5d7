//! `packd model leak-check`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::{ModelArgs, exit, say};
use crate::error::{ModelError, Result};
use crate::leak::{self, SubSampleLeak};
use crate::packed_shards::{each_pack, find_shards};

/// Runs each pack with its boundaries and each of its sub-samples alone; the logits must agree. For scale, the pack is
/// also run as one sequence, as training does when the boundaries get lost, and the tokens of one sub-sample are changed
/// to see whether any other moves.
#[derive(Args)]
pub(super) struct LeakCheckArgs {
    /// Shards: a tar, or a folder of them such as the output of packd run
    shards: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    /// Packs to check, spread evenly over the shards; 0 for all
    #[arg(long, value_name = "N", default_value_t = 8)]
    packs: usize,
    /// Largest |Δ logit| that rounding explains [default: 1e-4 for f32, 0.05 for f16, 0.5 for bf16 and on a GPU]
    #[arg(long, value_name = "X")]
    tolerance: Option<f32>,
    /// Run the packs as one sequence each, to see this check fail
    #[arg(long)]
    lose_boundaries: bool,
    /// Print one JSON object a pack
    #[arg(long)]
    json: bool,
}

/// What was found for one pack.
#[derive(Serialize)]
struct PackReport {
    pack: String,
    leaks: bool,
    /// Largest |Δ logit| of the others when the first sub-sample's tokens change; none in a pack of one.
    perturbed: Option<f32>,
    sub_samples: Vec<SubSampleLeak>,
}

pub(super) fn run(args: &LeakCheckArgs) -> Result<ExitCode> {
    let shards = find_shards(&args.shards)?;
    let (model, encoder) = args.model.load()?;
    let tolerance = args.tolerance.unwrap_or(leak::tolerance(model.dtype(), model.device()));
    // One step for all shards, so that packs of everywhere are looked at.
    let step = if args.packs == 0 { 1 } else { count_packs(&shards)?.div_ceil(args.packs).max(1) };
    let mut reports = Vec::new();
    let mut number = 0;
    for shard in &shards {
        each_pack(shard, |raw| {
            number += 1;
            if (number - 1) % step != 0 {
                return Ok(true);
            }
            let subs = raw.sub_samples(&encoder)?;
            let mut sub_samples = leak::check_pack(&model, &subs)?;
            if args.lose_boundaries {
                sub_samples.iter_mut().for_each(|sub| sub.packed_vs_alone = sub.leaky_vs_alone);
            }
            let perturbed = if subs.len() > 1 { Some(leak::perturb(&model, &subs, 0)?) } else { None };
            let perturbed = perturbed.filter(|_| !args.lose_boundaries);
            // Not written as `>`: a value that is no number must not pass.
            let within = |value: f32| value <= tolerance;
            let agrees = sub_samples.iter().all(|sub| within(sub.packed_vs_alone));
            let leaks = !agrees || !perturbed.is_none_or(within);
            let report = PackReport { pack: raw.name.clone(), leaks, perturbed, sub_samples };
            print(&report, args.json);
            reports.push(report);
            Ok(true)
        })?;
    }
    if reports.is_empty() {
        let shard = args.shards.display().to_string();
        return Err(ModelError::Shard { shard, detail: "it holds no packed samples".into() });
    }
    Ok(conclude(&reports, tolerance, args.json))
}

fn count_packs(shards: &[PathBuf]) -> Result<usize> {
    let mut packs = 0;
    for shard in shards {
        each_pack(shard, |_| {
            packs += 1;
            Ok(true)
        })?;
    }
    Ok(packs)
}

fn largest(subs: &[SubSampleLeak], of: impl Fn(&SubSampleLeak) -> f32) -> f32 {
    subs.iter().map(of).fold(0.0, f32::max)
}

fn print(report: &PackReport, json: bool) {
    if json {
        say!("{}", serde_json::json!(report));
        return;
    }
    say!("{}  {}", if report.leaks { "LEAKS" } else { "ok   " }, report.pack);
    for (number, sub) in report.sub_samples.iter().enumerate() {
        say!(
            "       sub-sample {number:>3}  {:>6} tokens  packed vs alone {:.2e}  as one sequence {:.2e}",
            sub.tokens,
            sub.packed_vs_alone,
            sub.leaky_vs_alone
        );
    }
    if let Some(perturbed) = report.perturbed {
        say!("       with other tokens in sub-sample 0 the others move by {perturbed:.2e}");
    }
}

fn conclude(reports: &[PackReport], tolerance: f32, json: bool) -> ExitCode {
    let leaking = reports.iter().filter(|report| report.leaks).count();
    let packed = reports.iter().map(|report| largest(&report.sub_samples, |sub| sub.packed_vs_alone));
    let lost = reports.iter().map(|report| largest(&report.sub_samples, |sub| sub.leaky_vs_alone));
    let (packed, lost) = (packed.fold(0.0, f32::max), lost.fold(0.0, f32::max));
    if !json {
        say!(
            "{} packs: largest |Δ logit| {packed:.2e}, tolerance {tolerance:.0e}; without boundaries {lost:.2e}",
            reports.len()
        );
        if leaking > 0 {
            say!("{leaking} packs leak: sub-samples see each other");
        } else if lost <= tolerance {
            say!("note: without boundaries nothing moved either, so these packs cannot show a leak");
        } else {
            say!("no pack leaks");
        }
    }
    if leaking > 0 { ExitCode::from(exit::FAULTS) } else { ExitCode::SUCCESS }
}
