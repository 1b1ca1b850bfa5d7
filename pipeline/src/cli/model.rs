//! `packd model`: hands over to the program of the model path, which is installed apart so that packd stays small.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::Args;

use super::Global;

/// The first one that lies beside packd is run: who installed the one for GPUs has a GPU.
const PROGRAMS: [&str; 2] = ["packd-gpu", "packd-model"];

#[derive(Args)]
pub(crate) struct ModelArgs {
    /// Arguments of packd-model; `packd model --help` lists them
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

pub(crate) fn run(args: &ModelArgs, global: &Global) -> ExitCode {
    let folder = std::env::current_exe().ok().and_then(|path| Some(path.parent()?.to_owned()));
    let folder = folder.unwrap_or_else(|| PathBuf::from("."));
    let Some(program) = PROGRAMS.iter().map(|name| folder.join(name)).find(|path| path.is_file()) else {
        eprintln!("error: neither packd-model nor packd-gpu is installed in {}", folder.display());
        eprintln!("help: cargo build --release -p packd-inference --bin packd-model, and put it there");
        return ExitCode::from(packd::exit::CONFIG);
    };
    // Only returns when the program cannot be started.
    let error = Command::new(&program).args(global.quiet.then_some("--quiet")).args(&args.args).exec();
    eprintln!("error: cannot run {}: {error}", program.display());
    ExitCode::from(packd::exit::CONFIG)
}
