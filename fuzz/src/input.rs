//! An input file: lines, an array, objects over many lines, or compressed. Every record lies where its
//! offset says.
#![no_main]

use std::io::Write;

use libfuzzer_sys::fuzz_target;
use packd_sources::{ReadRange, RecordReader, expand};
use packd_storage::Stores;

fuzz_target!(|bytes: &[u8]| {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(bytes).expect("written");
    let path = file.path().to_str().expect("a plain path").to_owned();
    let input = expand(&[path], &Stores::new(Default::default()).expect("threads")).expect("it is there").remove(0);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let Ok(mut reader) = RecordReader::open(&input, 0, ReadRange::default(), 4096).await else { return };
        let seekable = reader.is_seekable();
        let mut last = None;
        while let Ok(Some(block)) = reader.next_block().await {
            for record in &block.records {
                assert!(last < Some(record.offset), "records come in order");
                last = Some(record.offset);
                let start = record.offset as usize;
                assert!(!seekable || &bytes[start..start + record.len] == block.bytes_of(record));
            }
        }
    });
});
