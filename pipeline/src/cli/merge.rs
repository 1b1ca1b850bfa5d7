//! `packd merge`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use packd::config::{Metadataset, Weight};
use packd::{Error, MergeOptions};

use super::output::{print_json, thousands};

#[derive(Args)]
pub(crate) struct MergeArgs {
    /// Finished outputs, or other folders that Energon loads
    #[arg(required = true, value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// The yaml to write; its paths are relative to its own folder
    #[arg(long, short = 'o', value_name = "FILE")]
    output: PathBuf,
    /// Form of the yaml
    #[arg(long, value_name = "FORM", default_value_t = Metadataset::BlendEpochized)]
    metadataset: Metadataset,
    /// What the weight of a folder is, where the form has weights
    #[arg(long, value_name = "COUNT", default_value_t = Weight::Packs)]
    weight: Weight,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &MergeArgs) -> Result<ExitCode, Error> {
    let options = MergeOptions { metadataset: args.metadataset, weight: args.weight };
    let sets = packd::merge(&args.folders, &args.output, &options)?;
    if args.json {
        return print_json(&sets).map(|()| ExitCode::SUCCESS);
    }
    for set in &sets {
        let val = if set.val > 0 { format!(", {} val", thousands(set.val)) } else { String::new() };
        println!("{:>12}{val}  {}", thousands(set.train), set.path);
    }
    println!("next    train with {}", args.output.display());
    Ok(ExitCode::SUCCESS)
}
