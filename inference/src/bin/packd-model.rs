//! `packd-model`: the model path on the CPU; `packd model …` runs it.

use std::process::ExitCode;

fn main() -> ExitCode {
    packd_inference::cli::main()
}
