//! `packd inspect`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use packd::{Error, InspectedImage, InspectedSample, InspectedSet, inspect_sample, inspect_set};

use super::output::{bytes, print_json, thousands};

/// Characters of a turn that are shown.
const SHOWN: usize = 200;

#[derive(Args)]
pub(crate) struct InspectArgs {
    /// Output folder of a run, or any folder of packed WebDataset shards
    dir: PathBuf,
    /// Key of the packed sample to show [default: list the shards]
    key: Option<String>,
    /// Print JSON, with whole texts
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &InspectArgs) -> Result<ExitCode, Error> {
    match &args.key {
        Some(key) => {
            let sample = inspect_sample(&args.dir, key)?;
            if args.json { print_json(&sample)? } else { print_sample(&sample) }
        }
        None => {
            let set = inspect_set(&args.dir)?;
            if args.json { print_json(&set)? } else { print_set(&set) }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_set(set: &InspectedSet) {
    for shard in &set.shards {
        let packs = shard.packs.map_or_else(|| "?".to_owned(), thousands);
        println!("{}  {packs} packed samples, {}", shard.name, bytes(shard.bytes));
    }
    println!(
        "{} shards, {} packed samples, {}",
        thousands(set.shards.len() as u64),
        thousands(set.packs),
        bytes(set.bytes)
    );
}

fn print_sample(sample: &InspectedSample) {
    let tokens = |length: Option<u64>| {
        length.map_or_else(|| "? tokens".to_owned(), |n| format!("{} tokens", thousands(n)))
    };
    println!(
        "{} in {}: {} sub-samples, {}",
        sample.key,
        sample.shard,
        sample.sub_samples.len(),
        tokens(sample.length)
    );
    if let Some(cu_lengths) = &sample.cu_lengths {
        let numbers: Vec<String> = cu_lengths.iter().map(u64::to_string).collect();
        println!("cu_lengths  {}", numbers.join(" "));
    }
    for problem in &sample.problems {
        println!("problem  {problem}");
    }
    for (s, sub) in sample.sub_samples.iter().enumerate() {
        println!();
        let id = sub.id.as_deref().map_or_else(String::new, |id| format!("  id {}", id.escape_debug()));
        let source = sub.source.as_ref().map_or_else(String::new, |(source, offset)| {
            format!("  {} byte {offset}", source.escape_debug())
        });
        println!("[{s}] {}{id}{source}", tokens(sub.length));
        for image in &sub.images {
            println!("    image      {}", describe(image));
        }
        if let Some(system) = &sub.system {
            println!("    system     {}", shorten(system));
        }
        for turn in 0..sub.prompts.len().max(sub.captions.len()) {
            let text =
                |turns: &[String]| turns.get(turn).map_or_else(|| "(none)".to_owned(), |text| shorten(text));
            println!("    user       {}", text(&sub.prompts));
            println!("    assistant  {}", text(&sub.captions));
        }
    }
}

fn describe(image: &InspectedImage) -> String {
    let size = image.size.map_or_else(String::new, |(width, height)| format!(", {width}x{height} px"));
    let problem = image.problem.as_ref().map_or_else(String::new, |problem| format!(", {problem}"));
    format!(
        "{}: {}{size}, {}{problem}",
        image.part,
        image.media_type.unwrap_or("unknown type"),
        bytes(image.bytes)
    )
}

/// A turn on one line; control characters of the data never reach the terminal.
fn shorten(text: &str) -> String {
    let shown: String = text.chars().take(SHOWN).collect();
    let more = text.chars().count().saturating_sub(SHOWN);
    let shown: String = shown
        .chars()
        .flat_map(|c| if c.is_control() { c.escape_debug().collect() } else { vec![c] })
        .collect();
    if more > 0 { format!("{shown}… ({more} more characters)") } else { shown }
}
