//! Counting with the embedded tokenizer: what must hold for any sample.

#![allow(clippy::unwrap_used)]

use std::sync::LazyLock;

use packd_contracts::{
    Counter, CounterOptions, ImageRef, ImageSize, Reason, Sample, count_placeholders, keep_rounds,
    repair_placeholders,
};
use proptest::prelude::*;

static COUNTER: LazyLock<Counter> = LazyLock::new(|| Counter::new(&CounterOptions::default()).unwrap());

/// Text made of what counting treats in a special way, and of anything else.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("<image>".to_owned()),
        Just("<video>".to_owned()),
        Just("<im".to_owned()),
        Just("age>".to_owned()),
        Just("{{idx}}".to_owned()),
        Just("\n".to_owned()),
        Just("<|im_end|>".to_owned()),
        Just("<|vision_start|>".to_owned()),
        Just("<|image_pad|>".to_owned()),
        "[a-z ]{0,6}",
        "\\PC{0,4}",
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

fn sample() -> impl Strategy<Value = (Sample, Vec<ImageSize>)> {
    let rounds = prop::collection::vec((text(), text()), 0..5);
    let sizes = prop::collection::vec((1u32..3000, 1u32..3000), 0..4);
    (rounds, sizes).prop_map(|(rounds, sizes)| {
        let (prompts, captions) = rounds.into_iter().unzip();
        let images = vec![ImageRef::Path("image".into()); sizes.len()];
        let sizes = sizes.into_iter().map(|(width, height)| ImageSize::new(width, height)).collect();
        (Sample { prompts, captions, images, ..Sample::default() }, sizes)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Counting, explaining and repairing agree, and none of them panics.
    #[test]
    fn the_ways_to_a_length_agree((sample, sizes) in sample()) {
        let counted = COUNTER.count(&sample, &sizes);
        let mut repaired = sample.clone();
        let repair = repair_placeholders(&mut repaired);
        prop_assert_eq!(counted.is_ok(), repair.is_ok());
        let explained = COUNTER.explain(&sample, &sizes);
        let Ok(count) = counted else {
            prop_assert!(explained.is_err());
            return Ok(());
        };
        prop_assert_eq!(count_placeholders(&repaired), sizes.len());
        prop_assert_eq!(&COUNTER.count(&repaired, &sizes).unwrap(), &count);
        let total: u64 = explained
            .unwrap()
            .iter()
            .filter_map(|line| Some(line.text_tokens? + line.image_tokens.unwrap_or(0)))
            .sum();
        prop_assert_eq!(total, u64::from(count.length));
    }

    /// What is said to fit does fit, as it will be stored.
    #[test]
    fn the_rounds_that_fit_are_counted_right((sample, sizes) in sample(), seq_len in 1u32..3000) {
        let Ok(Some(fit)) = COUNTER.max_rounds_that_fit(&sample, &sizes, seq_len) else { return Ok(()) };
        prop_assert!(fit.count.length <= seq_len);
        let mut kept = sample.clone();
        if fit.rounds < sample.prompts.len() {
            keep_rounds(&mut kept, fit.rounds);
        }
        prop_assert_eq!(kept.images.len(), fit.images);
        prop_assert_eq!(COUNTER.count(&kept, &sizes[..fit.images]).unwrap(), fit.count);
    }
}

#[test]
fn special_tokens_are_found_where_they_stand() {
    let tokenizer = COUNTER.tokenizer();
    assert!(tokenizer.special_tokens().iter().any(|token| token == "<|image_pad|>"));
    assert_eq!(tokenizer.find_special("é <|im_end|> <|im_start|>"), Some((3, "<|im_end|>")));
    assert_eq!(tokenizer.find_all_special("<|im_end|>é<|im_start|>").count(), 2);
    assert_eq!(tokenizer.find_special("<image> <|im_end> |>"), None);
}

#[test]
fn threads_count_alike() {
    let text = "Grüße 你好 مرحبا <|im_end|> 🎉 ".repeat(50);
    let expected = COUNTER.tokenizer().count(&text).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..20).for_each(|_| assert_eq!(COUNTER.tokenizer().count(&text), Ok(expected))));
        }
    });
}

#[test]
fn the_tokens_spell_what_the_trainer_sees() {
    let counter = &*COUNTER;
    let sample = Sample {
        prompts: vec!["<image>\nWhat is it?".into(), "Sure?".into()],
        captions: vec!["A cat.".into(), "Yes.".into()],
        images: vec![ImageRef::Path("a.png".into())],
        ..Sample::default()
    };
    let encoded = counter.encode(&sample, &[ImageSize::new(56, 56)], None).unwrap();
    let text = counter.tokenizer().decode(&encoded.input_ids).unwrap();
    let pads = "<|image_pad|>".repeat(4);
    let expected = format!(
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n<|vision_start|>{pads}\
         <|vision_end|>\nWhat is it?<|im_end|>\n<|im_start|>assistant\nA cat.<|im_end|>\n<|im_start|>user\nSure?\
         <|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>"
    );
    assert_eq!(text, expected);
    let ids = encoded.input_ids.iter().zip(&encoded.is_trained);
    let trained: Vec<u32> = ids.filter_map(|(&id, &is_trained)| is_trained.then_some(id)).collect();
    assert_eq!(counter.tokenizer().decode(&trained).unwrap(), "A cat.<|im_end|>Yes.<|im_end|>");
}

#[test]
fn image_tokens_that_the_text_spells_are_not_encoded() {
    let counter = &*COUNTER;
    let sample = Sample {
        prompts: vec!["What is <|image_pad|>?".into()],
        captions: vec!["A token.".into()],
        ..Sample::default()
    };
    let verdict = counter.encode(&sample, &[], None).unwrap_err();
    assert_eq!(verdict.reason, Reason::SpecialTokensInText);
}
