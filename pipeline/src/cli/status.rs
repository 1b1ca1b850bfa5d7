//! `packd status` and `packd report`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use packd::{Error, Report};

use super::output::{bytes, print_json, thousands};

#[derive(Args)]
pub(crate) struct StatusArgs {
    /// Output folder of the run
    dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode, Error> {
    let status = packd::status(&args.dir)?;
    if args.json {
        return print_json(&status).map(|()| ExitCode::SUCCESS);
    }
    println!("{}{}", status.state, if status.running { ", a process works on it" } else { "" });
    println!(
        "measured  {} records ({} rejected) of {} of {} inputs, {} units",
        thousands(status.records.read),
        thousands(status.records.rejected_total()),
        status.inputs_done,
        status.inputs,
        status.units
    );
    println!("written   {} shards, {}", status.shards, bytes(status.shard_bytes));
    Ok(ExitCode::SUCCESS)
}

#[derive(Args)]
pub(crate) struct ReportArgs {
    /// Output folder of the run
    dir: PathBuf,
}

pub(crate) fn report(args: &ReportArgs) -> Result<ExitCode, Error> {
    print_json(&Report::read(&args.dir)?).map(|()| ExitCode::SUCCESS)
}
