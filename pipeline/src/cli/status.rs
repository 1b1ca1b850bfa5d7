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
    println!("{}", status.state);
    for node in &status.nodes {
        println!(
            "node {:>3}  {}: {} records ({} rejected), {} of {} inputs, {} units; {} shards, {}{}",
            node.node,
            node.state,
            thousands(node.records.read),
            thousands(node.records.rejected_total()),
            node.parts_done,
            node.parts,
            node.units,
            node.shards,
            bytes(node.shard_bytes),
            if node.running { "; a process works on it" } else { "" }
        );
    }
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
