//! `packd-gpu`: the model path on an NVIDIA GPU; `packd model …` runs it where it is installed.

use std::process::ExitCode;

fn main() -> ExitCode {
    packd_inference::cli::main()
}
