//! `packd config …`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, Args, Subcommand};
use packd::{Config, Error};

use super::ConfigArgs;
use super::output::print_json;

#[derive(Args)]
pub(crate) struct ConfigCommand {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Check a configuration file and everything that it names
    Check {
        /// The file
        file: PathBuf,
    },
    /// Print the JSON Schema of configuration files
    Schema,
    /// Print a commented example file with every default
    Example,
    /// Print the configuration that flags, environment and file give together
    Resolved(Box<ConfigArgs>),
    /// List the model profiles
    Profiles,
}

pub(crate) fn run(command: &ConfigCommand, matches: &ArgMatches) -> Result<ExitCode, Error> {
    match &command.what {
        What::Check { file } => check(file)?,
        What::Schema => print_json(&Config::json_schema())?,
        What::Example => print!("{}", packd::config::EXAMPLE),
        What::Resolved(args) => {
            let Some((_, matches)) = matches.subcommand() else { unreachable!("clap requires a subcommand") };
            print!("{}", packd::to_yaml(&args.load(matches)?)?);
        }
        What::Profiles => profiles(),
    }
    Ok(ExitCode::SUCCESS)
}

fn check(file: &std::path::Path) -> Result<(), Error> {
    let path = file.display().to_string();
    let text = std::fs::read_to_string(file)
        .map_err(|source| packd::config::ConfigError::Read { path: path.clone(), source })?;
    let config = Config::from_yaml(&text, &path)?;
    packd::Job::new(config)?;
    println!("{path}: the configuration, its inputs and its model can be used");
    Ok(())
}

fn profiles() {
    for profile in packd::contracts::PROFILES {
        let default = if profile.name == packd::contracts::DEFAULT_PROFILE { " (default)" } else { "" };
        println!("{:<28} {}{default}", profile.name, profile.contract.name());
    }
}
