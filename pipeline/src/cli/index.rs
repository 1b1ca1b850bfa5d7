//! `packd index`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use packd::sinks::SampleType;
use packd::{Config, Error, IndexOptions, config};

use super::Global;
use super::output::thousands;

#[derive(Args)]
pub(crate) struct IndexArgs {
    /// Folder of WebDataset tars
    dir: PathBuf,
    /// Write a dataset.yaml for this class [default: keep the one that is there]
    #[arg(long, value_name = "NAME")]
    sample_class: Option<config::SampleClass>,
    /// Python module of the sample class (with `--sample-class packed`)
    #[arg(long, value_name = "MODULE", requires = "sample_class")]
    sample_module: Option<String>,
    /// Name of the sample class in that module
    #[arg(long, value_name = "CLASS", requires = "sample_class")]
    sample_class_name: Option<String>,
    /// Share of the shards that becomes the `val` split
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    val_fraction: f64,
    /// Write no index.sqlite (plain loading works without it)
    #[arg(long)]
    no_sqlite: bool,
    /// CPU threads [default: all]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

pub(crate) fn run(args: &IndexArgs, global: &Global) -> Result<ExitCode, Error> {
    let defaults = Config::default();
    let sample_type = args.sample_class.map(|class| match class {
        config::SampleClass::Crude => SampleType::Crude,
        config::SampleClass::Packed => SampleType::Packed {
            module: args.sample_module.clone().unwrap_or(defaults.sample_module),
            class: args.sample_class_name.clone().unwrap_or(defaults.sample_class_name),
        },
    });
    let summary = packd::index(&IndexOptions {
        folder: args.dir.clone(),
        sample_type,
        val_fraction: args.val_fraction,
        no_sqlite: args.no_sqlite,
        threads: args.threads,
    })?;
    if !global.quiet {
        println!(
            "indexed {} shards: {} packed samples train, {} val",
            thousands(summary.shards),
            thousands(summary.train_samples),
            thousands(summary.val_samples)
        );
        println!("wrote   a .tar.idx beside each shard, {}", summary.files.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}
