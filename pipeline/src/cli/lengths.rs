//! `packd lengths`.

use std::process::ExitCode;
use std::sync::Arc;

use clap::{ArgMatches, Args};
use packd::{Error, LengthsReport, Progress};
use tokio_util::sync::CancellationToken;

use super::output::{print_json, thousands};
use super::{ConfigArgs, Global, progress_view, run};

#[derive(Args)]
pub(crate) struct LengthsArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Sequence lengths to try, separated by commas [default: powers of two]
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', help_heading = "Packing")]
    seq_lens: Vec<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &LengthsArgs, global: &Global, matches: &ArgMatches) -> Result<ExitCode, Error> {
    let config = args.config.load(matches)?;
    let mut seq_lens = args.seq_lens.clone();
    seq_lens.extend(config.seq_len);
    let report = run::runtime()?.block_on(async {
        let (progress, shown) = (Arc::new(Progress::default()), CancellationToken::new());
        let view = tokio::spawn(progress_view::show(Arc::clone(&progress), global.clone(), shown.clone()));
        let report = packd::lengths(config, seq_lens, progress).await;
        shown.cancel();
        let _ = view.await;
        report
    })?;
    if args.json {
        print_json(&report)?;
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &LengthsReport) {
    let records = &report.records;
    println!(
        "{} records, {} rejected; {} tokens ({} text, {} image)",
        thousands(records.read),
        thousands(records.rejected_total()),
        thousands(records.tokens),
        thousands(records.text_tokens),
        thousands(records.image_tokens)
    );
    for (reason, count) in &records.rejected {
        println!("  {:>9}  {reason}", thousands(*count));
    }
    let [least, p10, p50, p90, p99, most] = report.quantiles;
    println!("\nlength: least {least}, 10 % {p10}, median {p50}, 90 % {p90}, 99 % {p99}, most {most}\n");
    let tallest = report.histogram.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
    for (from, count) in &report.histogram {
        let bar = "█".repeat((40 * count).div_ceil(tallest) as usize);
        println!("{from:>8} … {:<8} {bar} {}", 2 * u64::from(*from) - 1, thousands(*count));
    }
    println!(
        "\n{:>9} {:>12} {:>8} {:>14} {:>12} {:>8}",
        "seq_len", "packs", "fill", "samples/pack", "too long", "lost"
    );
    for choice in &report.choices {
        println!(
            "{:>9} {:>12} {:>7.2}% {:>14.1} {:>12} {:>7.2}%",
            choice.seq_len,
            thousands(choice.bins),
            100.0 * choice.fill,
            choice.samples_per_bin,
            thousands(choice.too_long),
            100.0 * choice.too_long_tokens as f64 / records.tokens.max(1) as f64
        );
    }
    println!("\nlost: share of all tokens in samples that are too long");
}
