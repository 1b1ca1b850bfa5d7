//! Files that tests read.

use std::path::{Path, PathBuf};

use packd_inference::torch_file::TorchFile;

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/torch_file").join(name)
}

pub(crate) fn open(name: &str) -> TorchFile {
    TorchFile::open(&fixture(name)).unwrap()
}

pub(crate) fn refusal(name: &str) -> String {
    TorchFile::open(&fixture(name)).unwrap_err().to_string()
}
