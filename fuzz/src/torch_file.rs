//! A torch file that is to be read: bytes of a zip, or of the pickle in one.
#![no_main]

// The reader itself, not its crate, which would bring all of the model path along.
#[allow(dead_code, unused_imports)]
#[path = "../../inference/src/torch_file/mod.rs"]
mod torch_file;

use std::io::Write;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use torch_file::{ReadOptions, TorchFile};

/// A torch file of this pickle, with storages that it may name.
fn around(pickle: &[u8]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in [("a/data.pkl", pickle), ("a/data/0", &[1; 16]), ("a/data/1", &[])] {
        zip.start_file(name, stored).expect("started");
        zip.write_all(bytes).expect("written");
    }
    zip.finish().expect("finished").into_inner()
}

fuzz_target!(|bytes: &[u8]| {
    let file = if bytes.starts_with(b"PK") { bytes.to_vec() } else { around(bytes) };
    let refuse_code = bytes.len() % 2 == 0;
    let options = ReadOptions { pickle_bytes: 1 << 16, values: 10_000, depth: 50, refuse_code };
    let Ok(file) = TorchFile::from_bytes(file, Path::new("fuzzed"), &options) else { return };
    file.damaged_entries();
    file.model();
    for node in file.root().walk() {
        assert!(node.describe().len() < 2000);
        if let Some(info) = node.as_tensor() {
            // Repeated elements may be copied up to a limit of their own; that would be slow here.
            if info.bytes() < 1 << 16 {
                let bytes = file.tensor_bytes(info).expect("checked when it was opened");
                assert_eq!(bytes.len(), info.bytes());
            }
        }
    }
});
