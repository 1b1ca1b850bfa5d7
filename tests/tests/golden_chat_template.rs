//! Renderings and token counts of real chat templates, as transformers gives them.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::Path;

use packd_contracts::{ChatTemplate, Content, Message, ModelDir, TemplateDate};
use packd_tests::{golden, npm};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<CaseMessage>,
    add_generation_prompt: bool,
    text: Option<String>,
    tokens: Option<usize>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct CaseMessage {
    role: String,
    content: String,
}

fn load(package: &str) -> (ModelDir, ChatTemplate) {
    let models = npm::models_of(package, Path::new(env!("CARGO_TARGET_TMPDIR")));
    let dir = ModelDir::read(&models).unwrap();
    let source = dir.require_template().unwrap();
    let template =
        ChatTemplate::new(&source.text, dir.special_tokens.clone(), TemplateDate::DEFAULT).unwrap();
    (dir, template)
}

#[test]
fn every_rendering_is_transformers() {
    let cases: Vec<Case> = golden::records("chat_template");
    let mut loaded = HashMap::new();
    let mut failed = 0;
    for case in &cases {
        let (dir, template) = loaded.entry(case.template.as_str()).or_insert_with(|| load(&case.template));
        let messages: Vec<_> = case
            .messages
            .iter()
            .map(|m| Message { role: m.role.clone(), content: Content::Text(m.content.clone()) })
            .collect();
        match (template.render(&messages, case.add_generation_prompt), &case.text) {
            (Ok(text), Some(expected)) => {
                assert_eq!(&text, expected, "{}", case.template);
                let tokens = dir.tokenizer.count(&text).unwrap();
                assert_eq!(Some(tokens), case.tokens, "{}: {text:?}", case.template);
            }
            (Err(_), None) => failed += 1,
            (rendered, _) => panic!("{}: {rendered:?}, expected {:?}", case.template, case.error),
        }
    }
    assert_eq!((cases.len(), failed, loaded.len()), (180, 2, 3));
}
