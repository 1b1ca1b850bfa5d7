//! A model's chat template: messages in, one string out.

use std::collections::BTreeMap;

use minijinja::{Value, context};

use crate::jinja::{CompiledTemplate, TemplateDate, TemplateSyntaxError};
use crate::record::IMAGE;
use crate::tokenizer::hash_of;
use crate::{Reason, Sample, Verdict};

/// One message of a conversation, as templates see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The content.
    pub content: Content,
}

/// The content of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A string: a turn without images.
    Text(String),
    /// A list of parts: a turn with images.
    Parts(Vec<Part>),
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// `{"type": "image"}`
    Image,
    /// `{"type": "text", "text": …}`
    Text(String),
}

/// A compiled chat template with the special tokens that it sees as variables.
pub struct ChatTemplate {
    compiled: CompiledTemplate,
    special_tokens: BTreeMap<String, String>,
    date: TemplateDate,
    uses_date: bool,
    hash: String,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// `special_tokens` are its variables (`bos_token`, `eos_token`, …); `date` is what
    /// `strftime_now` returns.
    pub fn new(
        source: &str,
        special_tokens: BTreeMap<String, String>,
        date: TemplateDate,
    ) -> Result<Self, TemplateSyntaxError> {
        Ok(Self {
            compiled: CompiledTemplate::new(source, date)?,
            special_tokens,
            date,
            uses_date: source.contains("strftime_now"),
            hash: hash_of(source.as_bytes()),
        })
    }

    /// Renders a conversation. Fails with `template-error` where the template does.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, Verdict> {
        let messages: Value = messages.iter().map(message_value).collect();
        let special_tokens = Value::from(self.special_tokens.clone());
        let variables = context! {
            messages,
            add_generation_prompt,
            tools => Value::from(()),
            documents => Value::from(()),
            ..special_tokens
        };
        self.compiled.render(variables).map_err(|detail| Verdict::new(Reason::TemplateError, detail))
    }

    /// XXH3-128 of the template source, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// The date that the template prints, if it asks for one.
    pub fn date(&self) -> Option<TemplateDate> {
        self.uses_date.then_some(self.date)
    }
}

/// The first `rounds` rounds of a sample as messages: text with `<image>` becomes parts.
pub fn messages_of(sample: &Sample, rounds: usize) -> Vec<Message> {
    let message = |role: &str, text: &str| Message { role: role.to_owned(), content: content_of(text) };
    let system = sample.system.iter().map(|text| message("system", text));
    let turns = sample
        .prompts
        .iter()
        .zip(&sample.captions)
        .take(rounds)
        .flat_map(|(prompt, caption)| [message("user", prompt), message("assistant", caption)]);
    system.chain(turns).collect()
}

fn content_of(text: &str) -> Content {
    if !text.contains(IMAGE) {
        return Content::Text(text.to_owned());
    }
    let mut parts = Vec::new();
    for (number, piece) in text.split(IMAGE).enumerate() {
        if number > 0 {
            parts.push(Part::Image);
        }
        if !piece.is_empty() {
            parts.push(Part::Text(piece.to_owned()));
        }
    }
    Content::Parts(parts)
}

fn message_value(message: &Message) -> Value {
    let content = match &message.content {
        Content::Text(text) => Value::from(text.as_str()),
        Content::Parts(parts) => parts.iter().map(part_value).collect(),
    };
    context! { role => message.role.as_str(), content }
}

fn part_value(part: &Part) -> Value {
    match part {
        Part::Image => context! { type => "image" },
        Part::Text(text) => context! { type => "text", text => text.as_str() },
    }
}
