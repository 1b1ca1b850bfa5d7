//! A Hugging Face model directory, and what a counter makes of it.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use packd_contracts::{
    Contract, Counter, CounterError, CounterOptions, ImageRef, ImageSize, ModelDir, ModelDirError, Reason,
    Sample,
};
use serde_json::{Value, json};

/// A tokenizer of words, which the fast encoder cannot load.
fn tokenizer() -> Value {
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "normalized": false,
               "single_word": false, "lstrip": false, "rstrip": false})
    };
    json!({
        "version": "1.0", "truncation": {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": null, "normalizer": null, "post_processor": null, "decoder": null,
        "added_tokens": [special(3, "<img>"), special(4, "<end>")],
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "a": 1, "b": 2}, "unk_token": "[UNK]"}
    })
}

fn write(dir: &Path, file: &str, value: &Value) {
    std::fs::write(dir.join(file), value.to_string()).unwrap();
}

const TEMPLATE: &str = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}\
    {{ image_token if p.type == 'image' else p.text }}{% endfor %}{% endif %}{{ eos_token }}{% endfor %}";

/// A directory with a template in `tokenizer_config.json` and the older spelling of the limits.
fn model() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "tokenizer.json", &tokenizer());
    write(
        dir.path(),
        "tokenizer_config.json",
        &json!({
            "chat_template": TEMPLATE, "image_token": "<img>", "eos_token": {"content": "<end>"}, "pad_token": null
        }),
    );
    write(
        dir.path(),
        "preprocessor_config.json",
        &json!({
            "patch_size": 14, "merge_size": 2, "min_pixels": 3136, "max_pixels": 1_003_520
        }),
    );
    dir
}

fn options(dir: &tempfile::TempDir, profile: &str) -> CounterOptions {
    CounterOptions {
        model: Some(dir.path().to_owned()),
        profile: Some(profile.to_owned()),
        ..CounterOptions::default()
    }
}

fn sample() -> Sample {
    Sample {
        system: Some("b".into()),
        prompts: vec!["<image> a b".into(), "a".into()],
        captions: vec!["b".into(), "a a <image>".into()],
        images: vec![ImageRef::Path("1".into()), ImageRef::Path("2".into())],
        ..Sample::default()
    }
}

#[test]
fn a_sample_is_counted_with_the_models_template() {
    let dir = model();
    let counter = Counter::new(&options(&dir, "qwen2-vl")).unwrap();
    let sizes = [ImageSize::new(280, 280), ImageSize::new(560, 280)];
    let count = counter.count(&sample(), &sizes).unwrap();
    // b, a b, b, a, a a and five <end>, then 100 and 200 tokens of images
    assert_eq!((count.text_tokens, count.image_tokens, count.patches), (12, 300, 1200));
    assert_eq!(count.length, 312);

    let fit = counter.max_rounds_that_fit(&sample(), &sizes, 311).unwrap().unwrap();
    assert_eq!((fit.rounds, fit.images, fit.count.length), (1, 1, 107));
    assert_eq!(counter.max_rounds_that_fit(&sample(), &sizes, 106).unwrap(), None);

    let mismatch = counter.count(&sample(), &sizes[..1]).unwrap_err();
    assert_eq!(mismatch.reason, Reason::PlaceholderMismatch);

    let description = counter.describe();
    assert_eq!(description.contract, Contract::HfChatTemplate);
    assert_eq!(description.image_token, "<img>");
    assert_eq!(description.template.as_deref(), Some("tokenizer_config.json"));
    assert_eq!(description.template_date, None, "the template asks for no date");
    assert!(description.notes[0].contains("0.23"), "{:?}", description.notes);
}

#[test]
fn a_template_that_drops_images_is_refused() {
    let dir = model();
    std::fs::write(dir.path().join("chat_template.jinja"), "{{ messages|length }}").unwrap();
    let counter = Counter::new(&options(&dir, "qwen2-vl")).unwrap();
    let verdict = counter.count(&sample(), &[ImageSize::new(280, 280); 2]).unwrap_err();
    assert_eq!(verdict.reason, Reason::TemplateError);
}

#[test]
fn the_templates_own_file_comes_first() {
    let dir = model();
    let template = |dir: &tempfile::TempDir| {
        let read = ModelDir::read(dir.path()).unwrap();
        let source = read.require_template().unwrap().clone();
        (source.file, source.text)
    };
    assert_eq!(template(&dir).0, "tokenizer_config.json");
    write(dir.path(), "chat_template.json", &json!({"chat_template": "json"}));
    assert_eq!(template(&dir), ("chat_template.json", "json".to_owned()));
    std::fs::write(dir.path().join("chat_template.jinja"), "jinja").unwrap();
    assert_eq!(template(&dir), ("chat_template.jinja", "jinja".to_owned()));

    let named = json!([{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]);
    std::fs::remove_file(dir.path().join("chat_template.jinja")).unwrap();
    write(dir.path(), "chat_template.json", &json!({"chat_template": named}));
    assert_eq!(template(&dir), ("chat_template.json", "d".to_owned()));
}

#[test]
fn limits_have_two_spellings_and_two_files() {
    let dir = model();
    let limits = |dir: &tempfile::TempDir| {
        let numbers = ModelDir::read(dir.path()).unwrap().require_processor().unwrap();
        (numbers.patch_size, numbers.min_pixels, numbers.max_pixels)
    };
    let file = "preprocessor_config.json";
    write(dir.path(), file, &json!({"size": {"shortest_edge": 1, "longest_edge": 2}}));
    assert_eq!(limits(&dir), (None, Some(1), Some(2)));
    write(dir.path(), file, &json!({"max_pixels": 9, "size": {"shortest_edge": 1, "longest_edge": 2}}));
    assert_eq!(limits(&dir), (None, Some(1), Some(9)));
    write(dir.path(), file, &json!({"patch_size": 16, "size": {"min_pixels": 3, "max_pixels": 4}}));
    assert_eq!(limits(&dir), (Some(16), Some(3), Some(4)));
    std::fs::remove_file(dir.path().join(file)).unwrap();
    write(
        dir.path(),
        "processor_config.json",
        &json!({"image_processor": {"min_pixels": 5, "max_pixels": 6}}),
    );
    assert_eq!(limits(&dir), (None, Some(5), Some(6)));
    for wrong in [json!({"patch_size": {"height": 14}}), json!({"min_pixels": -1}), json!({"merge_size": 0})]
    {
        write(dir.path(), file, &wrong);
        assert!(matches!(ModelDir::read(dir.path()), Err(ModelDirError::Invalid { .. })), "{wrong}");
    }
}

#[test]
fn missing_files_are_named() {
    let empty = tempfile::tempdir().unwrap();
    let message = ModelDir::read(empty.path()).unwrap_err().to_string();
    assert!(message.contains("holds no tokenizer.json"), "{message}");

    let dir = model();
    std::fs::remove_file(dir.path().join("preprocessor_config.json")).unwrap();
    let message = Counter::new(&options(&dir, "qwen2-vl")).err().unwrap().to_string();
    assert!(message.contains("holds no preprocessor_config.json"), "{message}");
    let overridden = CounterOptions { override_processor: true, ..options(&dir, "qwen2-vl") };
    assert_eq!(Counter::new(&overridden).unwrap().images().max_pixels, 12_845_056);

    let dir = model();
    write(dir.path(), "tokenizer_config.json", &json!({}));
    let message = Counter::new(&options(&dir, "qwen2-vl")).err().unwrap().to_string();
    assert!(message.contains("holds no chat template"), "{message}");

    write(dir.path(), "tokenizer_config.json", &json!([]));
    assert!(matches!(ModelDir::read(dir.path()), Err(ModelDirError::Invalid { .. })));
    write(dir.path(), "tokenizer_config.json", &json!({}));
    std::fs::write(dir.path().join("tokenizer.json"), "{").unwrap();
    assert!(matches!(ModelDir::read(dir.path()), Err(ModelDirError::Tokenizer(_))));
}

#[test]
fn limits_that_disagree_are_refused() {
    let dir = model();
    let disagreeing = CounterOptions { max_pixels: Some(4_000_000), ..options(&dir, "qwen2-vl") };
    let error = Counter::new(&disagreeing).err().unwrap();
    assert!(matches!(
        error,
        CounterError::Disagrees { key: "max_pixels", given: 4_000_000, found: 1_003_520 }
    ));
    let overridden = CounterOptions { override_processor: true, ..disagreeing };
    assert_eq!(Counter::new(&overridden).unwrap().images().max_pixels, 4_000_000);
    let agreeing = CounterOptions { max_pixels: Some(1_003_520), ..options(&dir, "qwen2-vl") };
    assert!(Counter::new(&agreeing).is_ok());
    let crossed = CounterOptions { min_pixels: Some(5_000_000), ..CounterOptions::default() };
    assert!(matches!(Counter::new(&crossed), Err(CounterError::Limits { .. })));
}

#[test]
fn a_profile_that_names_its_patches_must_agree() {
    let dir = model();
    let error = Counter::new(&options(&dir, "llava-onevision-2-p16m2")).err().unwrap();
    assert!(matches!(error, CounterError::Disagrees { key: "patch_size", given: 16, found: 14 }));
    // the tokenizer of these tests is of no model family
    let error = Counter::new(&options(&dir, "llava-onevision-2")).err().unwrap();
    assert!(matches!(error, CounterError::MissingToken { token } if token == "<|im_start|>"));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let named = |name: &str| CounterOptions { profile: Some(name.into()), ..CounterOptions::default() };
    let message = Counter::new(&named("llava")).err().unwrap().to_string();
    assert!(message.contains("llava-onevision-2-p14m2"), "{message}");
    assert!(matches!(Counter::new(&named("qwen3-vl")), Err(CounterError::NeedsModel { .. })));
    let resized = CounterOptions { first_resize: Some(28), ..CounterOptions::default() };
    assert!(matches!(Counter::new(&resized), Err(CounterError::FirstResize { .. })));
}
