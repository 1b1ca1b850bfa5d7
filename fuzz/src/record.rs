//! One record, whatever its shape: it is a sample or a verdict, and a sample keeps its own rules.
#![no_main]

use libfuzzer_sys::fuzz_target;
use packd_contracts::{RecordOptions, parse_record};

fuzz_target!(|line: &[u8]| {
    let options = RecordOptions { caption_prompt: Some("Describe.".into()), passthrough: vec!["tag".into()] };
    if let Ok(sample) = parse_record(line, &options).sample {
        assert_eq!(sample.prompts.len(), sample.captions.len());
        assert!(!sample.prompts.is_empty());
        assert!(sample.prompts.iter().chain(&sample.captions).all(|text| !text.is_empty()));
    }
});
