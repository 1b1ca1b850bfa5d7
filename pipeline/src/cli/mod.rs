//! Arguments, and what is printed. Everything else is the library's.

mod aside;
mod config;
mod deploy;
mod explain;
mod index;
mod inspect;
mod launch;
mod lengths;
mod merge;
mod model;
mod output;
mod progress_view;
mod run;
mod status;
mod summary;
mod verify;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use packd::Config;

const EXIT_CODES: &str = "\
Exit codes:
  0 done · 1 verify found faults · 64 wrong usage · 65 too many rejects · 66 input missing ·
  70 internal error · 73 cannot create the output · 74 I/O error · 75 interrupted, run again ·
  78 wrong configuration · 130 second interrupt";

/// Pack vision-language fine-tuning data into fixed-length sequences for Megatron-Energon
#[derive(Parser)]
#[command(name = "packd", version, after_help = EXIT_CODES, max_term_width = 110)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Options of every command.
#[derive(Args, Clone)]
pub(crate) struct Global {
    /// Print nothing but errors
    #[arg(long, short, global = true, help_heading = "Messages")]
    pub(crate) quiet: bool,
    /// Print more; twice for everything
    #[arg(long, short, global = true, action = clap::ArgAction::Count, help_heading = "Messages")]
    pub(crate) verbose: u8,
    /// When to use colour
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto", help_heading = "Messages")]
    pub(crate) color: Color,
    /// Form of log lines
    #[arg(long, global = true, value_name = "FORM", default_value = "text", help_heading = "Messages")]
    pub(crate) log_format: LogFormat,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Subcommand)]
enum Command {
    /// Pack the inputs into shards; run it again to continue after an interruption
    Run(Box<run::RunArgs>),
    /// Cut the input into slices for --nodes workers, and claim the output folder for the job
    Plan(Box<work::PlanArgs>),
    /// Do one node's part of a job; the last one to finish completes the output
    Work(Box<work::WorkArgs>),
    /// Complete the output of a job whose nodes have all finished
    Finalize(work::FinalizeArgs),
    /// Show the distribution of token lengths and what each seq_len would give
    Lengths(Box<lengths::LengthsArgs>),
    /// Show the token arithmetic of one record
    Explain(Box<explain::ExplainArgs>),
    /// Show how far a run is
    Status(status::StatusArgs),
    /// Print the report of a finished run as JSON
    Report(status::ReportArgs),
    /// Read back everything that was written and check every promise
    Verify(verify::VerifyArgs),
    /// Write Energon's index of a folder of tars
    Index(index::IndexArgs),
    /// Show the shards, or one packed sample
    Inspect(inspect::InspectArgs),
    /// Write one dataset.yaml over several finished outputs
    Merge(merge::MergeArgs),
    /// Print a job as a script or manifests for Slurm or Kubernetes
    Deploy(deploy::DeployCommand),
    /// Run a model on packed sequences, and check that packs do not leak
    #[command(disable_help_flag = true)]
    Model(model::ModelArgs),
    /// Check, show or make a configuration
    Config(config::ConfigCommand),
}

/// The configuration of a command that has one: file, environment, flags.
#[derive(Args)]
pub(crate) struct ConfigArgs {
    /// Configuration file (YAML); flags win over PACKD_… variables, these over the file
    #[arg(
        long,
        short = 'c',
        value_name = "FILE",
        env = "PACKD_CONFIG",
        hide_env = true,
        help_heading = "Input"
    )]
    config: Option<PathBuf>,
    #[command(flatten)]
    options: Config,
    /// The name that the reference scripts have for an input
    #[arg(long, value_name = "FILE", hide = true)]
    jsonl: Vec<String>,
    /// Accepted for the reference scripts' sake: patch positions are never counted from files
    #[arg(long, hide = true)]
    no_npy: bool,
}

impl ConfigArgs {
    /// The layered configuration; `matches` are those of the command that holds the arguments.
    pub(crate) fn load(&self, matches: &ArgMatches) -> Result<Config, packd::Error> {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let mut config = Config::layered(self.config.as_deref(), environment, matches)?;
        config.input.extend(self.jsonl.iter().cloned());
        if self.no_npy {
            tracing::warn!("--no-npy has no effect: patch positions are never counted from files");
        }
        Ok(config)
    }
}

pub(crate) fn main() -> ExitCode {
    let matches = match Cli::command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { packd::exit::USAGE } else { packd::exit::OK });
        }
    };
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    output::start_logging(&cli.global);
    allow_open_files();
    let Some((_, matches)) = matches.subcommand() else { unreachable!("clap requires a command") };
    let result = match cli.command {
        Command::Run(args) => run::run(&args, &cli.global, matches),
        Command::Plan(args) => work::plan(&args, matches),
        Command::Work(args) => work::work(&args, &cli.global, matches),
        Command::Finalize(args) => work::finalize(&args, &cli.global),
        Command::Lengths(args) => lengths::run(&args, &cli.global, matches),
        Command::Explain(args) => explain::run(&args, matches),
        Command::Status(args) => status::run(&args),
        Command::Report(args) => status::report(&args),
        Command::Verify(args) => verify::run(&args, &cli.global),
        Command::Index(args) => index::run(&args, &cli.global),
        Command::Inspect(args) => inspect::run(&args),
        Command::Merge(args) => merge::run(&args),
        Command::Deploy(command) => deploy::run(&command, matches),
        Command::Model(args) => Ok(model::run(&args, &cli.global)),
        Command::Config(command) => config::run(&command, matches),
    };
    result.unwrap_or_else(|error| output::print_error(&error, &cli.global))
}

/// A large run reads from thousands of files at once; the usual limit of 1024 is for programs that call
/// `select`, and every process may raise it.
fn allow_open_files() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, rustix::process::Rlimit { current: limit.maximum, ..limit });
}
