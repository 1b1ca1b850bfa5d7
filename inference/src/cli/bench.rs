//! `packd model bench`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::{ModelArgs, say};
use crate::batch::{IGNORE, ImagePatches, PackedBatch, SubSample};
use crate::error::{ModelError, Result};
use crate::model::LlavaOnevision2;
use crate::packed_shards::{each_pack, find_shards};
use crate::probe::NoProbe;

/// Runs the same sub-samples forward in three ways: as they are packed, padded to the longest of a batch, and one at a
/// time. Only real tokens are counted. The head is not run: training needs it for trained tokens alone.
#[derive(Args)]
pub(super) struct BenchArgs {
    /// Shards: a tar, or a folder of them such as the output of packd run
    shards: PathBuf,
    #[command(flatten)]
    model: ModelArgs,
    /// Packs to run
    #[arg(long, value_name = "N", default_value_t = 8)]
    packs: usize,
    /// Times to run them; the fastest counts
    #[arg(long, value_name = "N", default_value_t = 3)]
    repeat: usize,
    /// Write the lengths and image grids of the packs to this file, for other implementations
    #[arg(long, value_name = "FILE")]
    work: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One way of running the sub-samples.
#[derive(Serialize)]
struct Way {
    name: &'static str,
    batches: usize,
    /// Rows that the decoder computed, padding included.
    rows: u64,
    /// Rows that are tokens.
    tokens: u64,
    seconds: f64,
    tokens_per_second: f64,
}

pub(super) fn run(args: &BenchArgs) -> Result<ExitCode> {
    let (model, encoder) = args.model.load()?;
    let mut packs: Vec<Vec<SubSample>> = Vec::new();
    for shard in find_shards(&args.shards)? {
        let goes_on = each_pack(&shard, |raw| {
            packs.push(raw.sub_samples(&encoder)?);
            Ok(packs.len() < args.packs)
        })?;
        if !goes_on {
            break;
        }
    }
    if let Some(path) = &args.work {
        std::fs::write(path, describe(&packs).to_string())
            .map_err(|source| ModelError::Write { path: path.clone(), source })?;
    }
    let ways = [
        measure("packed", &model, packs.clone(), args.repeat)?,
        measure("padded", &model, padded(&packs), args.repeat)?,
        measure("one at a time", &model, one_at_a_time(&packs), args.repeat)?,
    ];
    if args.json {
        say!("{}", serde_json::json!(ways));
        return Ok(ExitCode::SUCCESS);
    }
    let best = ways[0].tokens_per_second;
    say!("way              batches       rows  real tokens    seconds    tokens/s  of packed");
    for way in &ways {
        say!(
            "{:<15} {:>8} {:>10} {:>12} {:>10.3} {:>11.0} {:>9.2}x",
            way.name,
            way.batches,
            way.rows,
            way.tokens,
            way.seconds,
            way.tokens_per_second,
            way.tokens_per_second / best
        );
    }
    let waste = 100.0 * (1.0 - ways[1].tokens as f64 / ways[1].rows as f64);
    say!(
        "padded, {waste:.1} % of the rows are padding; one at a time, {} calls of {:.0} tokens on average",
        ways[2].batches,
        ways[2].tokens as f64 / ways[2].batches as f64
    );
    Ok(ExitCode::SUCCESS)
}

/// What `inference/gpu/torch_forward.py` reads.
fn describe(packs: &[Vec<SubSample>]) -> serde_json::Value {
    let grid = |image: &ImagePatches| [image.grid().t, image.grid().h, image.grid().w];
    let pack = |subs: &Vec<SubSample>| {
        let lengths: Vec<usize> = subs.iter().map(|sub| sub.input_ids.len()).collect();
        let grids: Vec<[u32; 3]> = subs.iter().flat_map(|sub| &sub.images).map(grid).collect();
        serde_json::json!({ "lengths": lengths, "grids": grids })
    };
    packs.iter().map(pack).collect()
}

fn one_at_a_time(packs: &[Vec<SubSample>]) -> Vec<Vec<SubSample>> {
    packs.iter().flatten().map(|sub| vec![sub.clone()]).collect()
}

/// Batches of sub-samples in their order, all as long as the longest, and together no longer than the longest pack: the
/// memory that packing has.
fn padded(packs: &[Vec<SubSample>]) -> Vec<Vec<SubSample>> {
    let tokens = |subs: &[SubSample]| subs.iter().map(|sub| sub.input_ids.len()).sum::<usize>();
    let room = packs.iter().map(|pack| tokens(pack)).max().unwrap_or(0);
    let mut batches: Vec<Vec<SubSample>> = Vec::new();
    let mut longest = 0;
    for sub in packs.iter().flatten() {
        let with = longest.max(sub.input_ids.len());
        match batches.last_mut() {
            Some(batch) if with * (batch.len() + 1) <= room => {
                batch.push(sub.clone());
                longest = with;
            }
            _ => {
                batches.push(vec![sub.clone()]);
                longest = sub.input_ids.len();
            }
        }
    }
    for batch in &mut batches {
        let longest = batch.iter().map(|sub| sub.input_ids.len()).max().unwrap_or(0);
        for sub in batch {
            // Any token of text will do: what is computed for padding is thrown away.
            let pad = sub.input_ids.first().copied().unwrap_or(0);
            sub.input_ids.resize(longest, pad);
            sub.labels.resize(longest, PADDING);
        }
    }
    batches
}

/// The label of padding, which is told from [`IGNORE`] only to be counted.
const PADDING: i64 = IGNORE - 1;

fn measure(
    name: &'static str,
    model: &LlavaOnevision2,
    batches: Vec<Vec<SubSample>>,
    repeat: usize,
) -> Result<Way> {
    let count = batches.len();
    let batches = batches.iter().map(|subs| PackedBatch::pack(subs)).collect::<Result<Vec<_>>>()?;
    let Some(first) = batches.first() else {
        return Err(ModelError::Batch("there are no packs".into()));
    };
    let rows = batches.iter().map(|batch| batch.labels().len() as u64).sum();
    let padding = batches.iter().flat_map(PackedBatch::labels).filter(|&&label| label == PADDING).count();
    let forward = |batch: &PackedBatch| model.hidden_states(batch, &mut NoProbe);
    forward(first)?;
    let mut fastest = Duration::MAX;
    for _ in 0..repeat.max(1) {
        model.device().synchronize()?;
        let started = Instant::now();
        for batch in &batches {
            forward(batch)?;
        }
        model.device().synchronize()?;
        fastest = fastest.min(started.elapsed());
    }
    let (tokens, seconds) = (rows - padding as u64, fastest.as_secs_f64());
    Ok(Way { name, batches: count, rows, tokens, seconds, tokens_per_second: tokens as f64 / seconds })
}
