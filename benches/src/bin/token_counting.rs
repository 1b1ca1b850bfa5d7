//! Token counting: samples through the counter beside its floor, the raw encoder on the same text.
//!
//! `token_counting DATA.jsonl [--runs N]`: turns of the records are counted on one core; images are
//! taken to be 640 x 480, their headers are another benchmark.

use std::{process::ExitCode, time::Instant};

use packd_benches::{Table, best_of, milliseconds, ratio, scaled};
use packd_contracts::{Counter, CounterOptions, ImageSize, RecordOptions, Sample, parse_record};

fn main() -> ExitCode {
    let mut path = None;
    let mut runs = 5;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--runs" => match arguments.next().and_then(|value| value.parse().ok()) {
                Some(value) => runs = value,
                None => return usage(),
            },
            _ if path.is_none() => path = Some(argument),
            _ => return usage(),
        }
    }
    let Some(path) = path else { return usage() };
    match bench(&path, runs) {
        Ok(table) => {
            println!("{table}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: token_counting DATA.jsonl [--runs N]");
    ExitCode::from(64)
}

fn bench(path: &str, runs: usize) -> Result<Table, Box<dyn std::error::Error>> {
    let samples = read_samples(path)?;
    let start = Instant::now();
    let counter = Counter::new(&CounterOptions::default())?;
    let loading = start.elapsed();
    let texts = || samples.iter().flat_map(|(sample, _)| sample.prompts.iter().chain(&sample.captions));
    let bytes: usize = texts().map(String::len).sum();

    let tokenizer = counter.tokenizer();
    let (raw_time, raw_tokens) =
        best_of(runs, || texts().filter_map(|text| tokenizer.count(text).ok()).sum::<usize>());
    let (count_time, (tokens, counted)) = best_of(runs, || {
        let counts = samples.iter().filter_map(|(sample, sizes)| counter.count(sample, sizes).ok());
        counts.fold((0u64, 0u64), |(tokens, counted), count| {
            (tokens + u64::from(count.text_tokens), counted + 1)
        })
    });

    let title = format!(
        "Token counting on one core: {} samples, {:.1} MB of text; tokenizer loaded in {}",
        scaled(counted),
        bytes as f64 / 1e6,
        milliseconds(loading)
    );
    let mut table = Table::new(&title, ["what", "time", "MB/s", "tokens", "to the floor"]);
    for (what, time, tokens) in
        [("encoder, turn by turn (floor)", raw_time, raw_tokens as u64), ("counter", count_time, tokens)]
    {
        table.row([
            what.to_owned(),
            milliseconds(time),
            format!("{:.1}", bytes as f64 / 1e6 / time.as_secs_f64()),
            scaled(tokens),
            ratio(time, raw_time),
        ]);
    }
    Ok(table)
}

/// The usable records with a size for each image.
fn read_samples(path: &str) -> Result<Vec<(Sample, Vec<ImageSize>)>, std::io::Error> {
    let options = RecordOptions::default();
    let data = std::fs::read(path).map_err(|e| std::io::Error::other(format!("{path}: {e}")))?;
    let lines = data.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let samples = lines.filter_map(|line| parse_record(line, &options).sample.ok());
    Ok(samples
        .map(|sample| {
            let sizes = vec![ImageSize::new(640, 480); sample.images.len()];
            (sample, sizes)
        })
        .collect())
}
