//! From one JSON object, in any of the accepted shapes, to a [`Sample`].
//!
//! | shape | keys |
//! | --- | --- |
//! | OpenAI messages | `messages: [{role, content}]`, content a string or a list of parts |
//! | ShareGPT / LLaVA | `conversations: [{from, value}]` |
//! | prompts / captions | `prompts`, `captions`: strings or lists of equal length |
//! | caption only | `caption`, or `captions` without `prompts`; the prompt comes from the configuration |
//!
//! The shape is told per record; keys of both turn styles may be mixed.

mod rounds;
mod turns;

use serde_json::{Map, Value};

use crate::media_list::images_of;
use crate::reason::{Reason, Verdict};
use crate::sample::Sample;
use rounds::{read_caption, read_rounds};
use turns::{Placed, read_turns, top_level_system};

/// The placeholder of an image in stored text.
pub const IMAGE: &str = "<image>";

/// The keys that this module reads; all others are only counted.
const KNOWN_KEYS: [&str; 19] = [
    "id",
    "messages",
    "conversations",
    "prompts",
    "captions",
    "prompt",
    "caption",
    "system",
    "image",
    "images",
    "video",
    "videos",
    "patch_positions",
    "fps",
    "timestamp_decimal",
    "tools",
    "functions",
    "width",
    "height",
];

/// What the reader of records may be told.
#[derive(Debug, Clone, Default)]
pub struct RecordOptions {
    /// Prompt for records that hold only a caption.
    pub caption_prompt: Option<String>,
    /// Keys that are carried into the packed json.
    pub passthrough: Vec<String>,
}

/// A record that was read, whatever came of it.
#[derive(Debug, Clone, PartialEq)]
pub struct ParsedRecord {
    /// The record's id as text, known even where the rest is unusable.
    pub id: Option<String>,
    /// The sample, or why there is none.
    pub sample: Result<Sample, Verdict>,
    /// Width and height that the record states for each image (`width`, `height`), 0 where it does not.
    pub stated_sizes: Vec<(u32, u32)>,
    /// Keys that are neither known nor passed through.
    pub unknown_keys: Vec<String>,
}

/// Reads one record.
///
/// Never panics; whatever is wrong becomes a [`Verdict`] in the result.
pub fn parse_record(line: &[u8], options: &RecordOptions) -> ParsedRecord {
    let failed =
        |verdict| ParsedRecord { id: None, sample: Err(verdict), stated_sizes: vec![], unknown_keys: vec![] };
    let text = match std::str::from_utf8(line) {
        Ok(text) => text,
        Err(error) => {
            let detail = format!("byte {} of the record is not UTF-8", error.valid_up_to());
            return failed(Verdict::new(Reason::InvalidUtf8, detail));
        }
    };
    let record = match serde_json::from_str::<Value>(text) {
        Ok(Value::Object(record)) => record,
        Ok(other) => {
            let detail = format!("the record is {}, not an object", kind(&other));
            return failed(Verdict::new(Reason::NotAnObject, detail));
        }
        Err(error) => return failed(Verdict::new(Reason::JsonSyntax, syntax_detail(text, &error))),
    };
    let passed = |key: &String| options.passthrough.contains(key);
    ParsedRecord {
        id: id_of(&record),
        stated_sizes: stated_sizes(&record),
        unknown_keys: record
            .keys()
            .filter(|key| !KNOWN_KEYS.contains(&key.as_str()) && !passed(key))
            .cloned()
            .collect(),
        sample: sample_of(record, options),
    }
}

/// Python writes numbers that JSON does not have, and many do not know it.
fn syntax_detail(text: &str, error: &serde_json::Error) -> String {
    let at = error.column().saturating_sub(1);
    let rest = text.lines().nth(error.line().saturating_sub(1)).and_then(|line| line.get(at..)).unwrap_or("");
    let python = ["NaN", "Infinity"].into_iter().any(|name| rest.trim_start_matches('-').starts_with(name));
    if python { format!("{error} (NaN and Infinity are not JSON; write null)") } else { error.to_string() }
}

/// A JSON value's kind, in words.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

pub(crate) fn invalid(detail: impl Into<String>) -> Verdict {
    Verdict::new(Reason::InvalidField, detail)
}

fn id_of(record: &Map<String, Value>) -> Option<String> {
    match record.get("id")? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn stated_sizes(record: &Map<String, Value>) -> Vec<(u32, u32)> {
    let numbers = |key| -> Vec<u32> {
        let of = |value: &Value| value.as_u64().and_then(|n| u32::try_from(n).ok());
        match record.get(key) {
            Some(Value::Array(list)) => list.iter().map(|value| of(value).unwrap_or(0)).collect(),
            Some(value) => of(value).into_iter().collect(),
            None => vec![],
        }
    };
    numbers("width").into_iter().zip(numbers("height")).collect()
}

fn sample_of(mut record: Map<String, Value>, options: &RecordOptions) -> Result<Sample, Verdict> {
    refuse_what_cannot_be_stored(&record)?;
    let listed = images_of(&mut record)?;
    let mut sample = Sample { id: id_of(&record), ..Sample::default() };
    let mut placed = Placed::default();
    let has = |record: &Map<String, Value>, key: &str| record.get(key).is_some_and(|value| !value.is_null());
    if has(&record, "messages") || has(&record, "conversations") {
        let key = if has(&record, "messages") { "messages" } else { "conversations" };
        let turns = record.remove(key).unwrap_or_default();
        read_turns(turns, key, &mut sample, &mut placed)?;
    } else if has(&record, "prompts") {
        read_rounds(&mut record, &mut sample)?;
    } else if has(&record, "caption") || has(&record, "captions") {
        read_caption(&mut record, &mut sample, options, listed.len())?;
    } else {
        return Err(Verdict::new(
            Reason::NoTurns,
            "none of `messages`, `conversations`, `prompts`, `caption` holds a turn",
        ));
    }
    top_level_system(&record, &mut sample)?;
    sample.images = placed.in_order(&sample, listed);
    for key in &options.passthrough {
        if let Some(value) = record.remove(key) {
            sample.extra.insert(key.clone(), value);
        }
    }
    Ok(sample)
}

fn refuse_what_cannot_be_stored(record: &Map<String, Value>) -> Result<(), Verdict> {
    let filled = |key: &str| match record.get(key) {
        None | Some(Value::Null) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(list)) => list.iter().any(|item| !item.is_null() && item.as_str() != Some("")),
        Some(Value::Number(number)) => number.as_f64().is_some_and(|n| n > 0.0),
        Some(_) => true,
    };
    for key in ["video", "videos", "patch_positions"] {
        if filled(key) {
            let detail = format!("`{key}`: videos, frames and their positions are not supported yet");
            return Err(Verdict::new(Reason::VideoUnsupported, detail));
        }
    }
    // Without images the trainer ignores fps; with them it fuses all images into timed frames.
    if filled("fps") && (filled("image") || filled("images")) {
        let detail = "`fps` turns images into timed video frames, which are not supported yet";
        return Err(Verdict::new(Reason::VideoUnsupported, detail));
    }
    for key in ["tools", "functions"] {
        if filled(key) {
            return Err(Verdict::new(
                Reason::ToolUnsupported,
                format!("`{key}`: the sample class cannot store tools"),
            ));
        }
    }
    Ok(())
}
