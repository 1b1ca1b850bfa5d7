//! `packd model` hands over to the program that lies beside packd.

#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// packd alone in a folder.
fn install(folder: &Path) -> PathBuf {
    let packd = folder.join("packd");
    std::fs::copy(env!("CARGO_BIN_EXE_packd"), &packd).unwrap();
    packd
}

fn model(packd: &Path) -> Output {
    Command::new(packd).args(["model", "leak-check", "--help", "out"]).output().unwrap()
}

fn write_program(path: &Path) {
    std::fs::write(path, "#!/bin/sh\necho \"$(basename \"$0\"): $*\"\nexit 7\n").unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn without_it_the_error_says_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    let output = model(&install(folder.path()));
    assert_eq!(output.status.code(), Some(78));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("packd-model") && error.contains("help: cargo build"), "{error}");
}

#[test]
fn arguments_and_status_pass_through_and_the_gpu_goes_first() {
    let folder = tempfile::tempdir().unwrap();
    let packd = install(folder.path());
    for name in ["packd-model", "packd-gpu"] {
        write_program(&folder.path().join(name));
        let output = model(&packd);
        assert_eq!(output.status.code(), Some(7));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{name}: leak-check --help out\n"));
    }
}
