//! Lengths of the `hf-chat-template` contract: rendered text and image sizes through
//! `qwen_vl_utils.fetch_image` and transformers' Qwen2-VL processor.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, HashMap};

use packd_contracts::{
    ChatTemplate, Counter, CounterParts, EMBEDDED_TOKENIZER, ImageProcessor, ImageSize, Profile, Reason,
    TemplateDate, fetch_image_resize, qwen3_tokenizer,
};
use packd_tests::golden;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    id: String,
    patch_size: u32,
    merge_size: u32,
    min_pixels: u64,
    max_pixels: u64,
    first_resize: u32,
    text: String,
    image_sizes: Vec<(u32, u32)>,
    image_tokens: Option<Vec<u32>>,
    text_tokens: usize,
    token_length: Option<u32>,
    error: Option<String>,
}

fn counter(case: &Case) -> Counter {
    let profile = Profile::named("qwen2-vl").unwrap();
    let images = ImageProcessor {
        patch_size: case.patch_size,
        merge_size: case.merge_size,
        min_pixels: case.min_pixels,
        max_pixels: case.max_pixels,
        first_resize: Some(fetch_image_resize(case.first_resize, Some((case.min_pixels, case.max_pixels)))),
        ..profile.images
    };
    // the text of these cases is rendered already
    let template = ChatTemplate::new("", BTreeMap::new(), TemplateDate::DEFAULT).unwrap();
    Counter::from_parts(CounterParts {
        profile,
        images,
        tokenizer: (qwen3_tokenizer().unwrap(), EMBEDDED_TOKENIZER.to_owned()),
        template: Some((template, "none")),
        image_token: None,
    })
    .unwrap()
}

#[test]
fn every_length_is_the_processors() {
    let cases: Vec<Case> = golden::records("hf_lengths");
    let mut counters = HashMap::new();
    let mut failed = 0;
    for case in &cases {
        let counter = counters.entry((case.patch_size, case.max_pixels)).or_insert_with(|| counter(case));
        assert_eq!(counter.tokenizer().count(&case.text).unwrap(), case.text_tokens, "{}", case.id);
        let sizes: Vec<_> = case.image_sizes.iter().map(|&(w, h)| ImageSize::new(w, h)).collect();
        let counted = counter.count_rendered(&case.text, &sizes);
        match (&counted, case.token_length) {
            (Ok(count), Some(length)) => {
                let tokens: Vec<_> = count.grids.iter().map(|grid| grid.tokens(case.merge_size)).collect();
                assert_eq!((count.length, Some(tokens)), (length, case.image_tokens.clone()), "{}", case.id);
            }
            (Err(verdict), None) => {
                assert_eq!(verdict.reason, Reason::ImageAspectRatio, "{}", case.id);
                failed += 1;
            }
            _ => panic!("{}: {counted:?}, expected {:?} or {:?}", case.id, case.token_length, case.error),
        }
    }
    assert_eq!((cases.len(), failed), (976, 38));
}
