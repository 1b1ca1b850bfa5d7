//! A tar that is to be verified or indexed.
#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use packd_sinks::scan_shard;

fuzz_target!(|bytes: &[u8]| {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("written");
    if let Ok(index) = scan_shard(file.path()) {
        assert_eq!(index.size, bytes.len() as u64);
        assert!(index.samples.windows(2).all(|pair| pair[0].offset + pair[0].size <= pair[1].offset));
    }
});
