//! `packd explain`.

use std::process::ExitCode;

use clap::{ArgMatches, Args};
use packd::{Error, Explanation, RecordChoice};

use super::output::{print_json, thousands};
use super::{ConfigArgs, run};

#[derive(Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Line of the record, from 1
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "id")]
    line: u64,
    /// Id of the record
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &ExplainArgs, matches: &ArgMatches) -> Result<ExitCode, Error> {
    let config = args.config.load(matches)?;
    let choice = args.id.clone().map_or(RecordChoice::Line(args.line), RecordChoice::Id);
    match run::runtime()?.block_on(packd::explain(&config, &choice))? {
        None => {
            eprintln!(
                "error: no record {}",
                args.id.as_ref().map_or(format!("on line {}", args.line), |id| format!("with id {id}"))
            );
            Ok(ExitCode::from(packd::exit::NO_INPUT))
        }
        Some(explanation) if args.json => print_json(&explanation).map(|()| ExitCode::SUCCESS),
        Some(explanation) => {
            print(&explanation);
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn print(explanation: &Explanation) {
    let id = explanation.id.as_ref().map_or_else(String::new, |id| format!(" (id {id})"));
    println!("{}:{}{id}\n", explanation.input, explanation.line);
    for line in &explanation.lines {
        let tokens = |tokens: Option<u64>| tokens.map_or_else(String::new, thousands);
        println!(
            "{:>8} {:>8}  {:<12} {}",
            tokens(line.text_tokens),
            tokens(line.image_tokens),
            line.what,
            line.detail
        );
    }
    if let Some(count) = &explanation.count {
        println!(
            "{:>8} {:>8}  text and image tokens",
            thousands(count.text_tokens.into()),
            thousands(count.image_tokens.into())
        );
        println!(
            "{:>17}  in all; {} vision patches",
            thousands(count.length.into()),
            thousands(count.patches.into())
        );
    }
    if let Some(verdict) = &explanation.verdict {
        println!("rejected: {verdict}");
    }
}
