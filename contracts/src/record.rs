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

use serde_json::{Map, Value};

use crate::media_list::{images_of, part_image};
use crate::reason::{Reason, Verdict};
use crate::sample::{ImageRef, Sample};

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
        Err(error) => return failed(Verdict::new(Reason::JsonSyntax, error.to_string())),
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

/// Images that stand in the conversation itself, by the number of the placeholder they belong to.
#[derive(Default)]
struct Placed {
    own: Vec<(usize, ImageRef)>,
    placeholders: usize,
}

impl Placed {
    /// All images in the order of their placeholders: each placeholder takes its own image, or the next
    /// of the record's list; what is left of the list follows, for the verdict to count.
    fn in_order(self, sample: &Sample, listed: Vec<ImageRef>) -> Vec<ImageRef> {
        if self.own.is_empty() {
            return listed;
        }
        let texts =
            sample.prompts.iter().zip(&sample.captions).flat_map(|(prompt, caption)| [prompt, caption]);
        let placeholders = texts.map(|text| text.matches(IMAGE).count()).sum();
        let mut listed = listed.into_iter();
        let mut own = self.own.into_iter().peekable();
        let mut images = Vec::new();
        for number in 0..placeholders {
            match own.next_if(|(of, _)| *of == number) {
                Some((_, image)) => images.push(image),
                None => images.extend(listed.next()),
            }
        }
        images.extend(own.map(|(_, image)| image));
        images.extend(listed);
        images
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Role {
    System,
    User,
    Assistant,
}

fn role_of(turn: &Map<String, Value>, number: usize) -> Result<Role, Verdict> {
    let role = turn.get("role").or_else(|| turn.get("from"));
    match role.and_then(Value::as_str) {
        Some("user" | "human") => Ok(Role::User),
        Some("assistant" | "gpt" | "model") => Ok(Role::Assistant),
        Some("system") => Ok(Role::System),
        Some(
            role @ ("tool" | "function" | "function_call" | "observation" | "tool_call" | "tool_response"
            | "ipython"),
        ) => Err(Verdict::new(Reason::ToolUnsupported, format!("turn {number} has role `{role}`"))),
        Some(role) => Err(Verdict::new(Reason::UnknownRole, format!("turn {number} has role `{role}`"))),
        None => Err(Verdict::new(Reason::UnknownRole, format!("turn {number} has no role"))),
    }
}

fn read_turns(turns: Value, key: &str, sample: &mut Sample, placed: &mut Placed) -> Result<(), Verdict> {
    let Value::Array(turns) = turns else {
        return Err(invalid(format!("`{key}` is {}, not a list of turns", kind(&turns))));
    };
    if turns.is_empty() {
        return Err(Verdict::new(Reason::NoTurns, format!("`{key}` is empty")));
    }
    let count = turns.len();
    let mut expected = Role::User;
    for (number, turn) in turns.into_iter().enumerate() {
        let Value::Object(mut turn) = turn else {
            return Err(invalid(format!("turn {number} is {}, not an object", kind(&turn))));
        };
        let role = role_of(&turn, number)?;
        if turn
            .get("tool_calls")
            .is_some_and(|calls| !calls.is_null() && calls.as_array().is_none_or(|c| !c.is_empty()))
        {
            return Err(Verdict::new(Reason::ToolUnsupported, format!("turn {number} holds tool calls")));
        }
        let content = turn.remove("content").or_else(|| turn.remove("value"));
        let text = content_text(content.unwrap_or_default(), number, placed)?;
        if role == Role::System {
            if number != 0 {
                return Err(Verdict::new(
                    Reason::TurnOrder,
                    format!("turn {number} is a system turn; only the first may be"),
                ));
            }
            sample.system = Some(text);
            continue;
        }
        if role != expected {
            let detail = format!("turn {number} of {count} is {role:?}, expected {expected:?}");
            return Err(Verdict::new(Reason::TurnOrder, detail.to_lowercase()));
        }
        if text.is_empty() {
            return Err(Verdict::new(Reason::EmptyContent, format!("turn {number} is empty")));
        }
        match role {
            Role::User => sample.prompts.push(text),
            _ => sample.captions.push(text),
        }
        expected = if role == Role::User { Role::Assistant } else { Role::User };
    }
    if sample.prompts.is_empty() {
        return Err(Verdict::new(Reason::NoTurns, "there is only a system turn"));
    }
    if expected == Role::Assistant {
        return Err(Verdict::new(
            Reason::TurnOrder,
            "the last turn is the user's; it must be the assistant's",
        ));
    }
    Ok(())
}

/// The text of a turn's content; parts are joined with nothing between them.
fn content_text(content: Value, number: usize, placed: &mut Placed) -> Result<String, Verdict> {
    let parts = match content {
        Value::String(text) => {
            placed.placeholders += text.matches(IMAGE).count();
            return Ok(text);
        }
        Value::Array(parts) => parts,
        Value::Null => {
            return Err(Verdict::new(Reason::EmptyContent, format!("turn {number} has no content")));
        }
        other => return Err(invalid(format!("the content of turn {number} is {}", kind(&other)))),
    };
    let mut text = String::new();
    for part in parts {
        match read_part(part, number)? {
            Part::Text(piece) => {
                placed.placeholders += piece.matches(IMAGE).count();
                text.push_str(&piece);
            }
            Part::Image(image) => {
                placed.own.extend(image.map(|image| (placed.placeholders, image)));
                placed.placeholders += 1;
                text.push_str(IMAGE);
            }
        }
    }
    Ok(text)
}

enum Part {
    Text(String),
    /// With an image of its own, or the next of the record's list.
    Image(Option<ImageRef>),
}

fn read_part(part: Value, number: usize) -> Result<Part, Verdict> {
    let mut part = match part {
        Value::String(text) => return Ok(Part::Text(text)),
        Value::Object(part) => part,
        other => return Err(invalid(format!("a content part of turn {number} is {}", kind(&other)))),
    };
    let named = part.get("type").and_then(Value::as_str).map(str::to_owned);
    let guessed = ["text", "image", "image_url", "video"].into_iter().find(|key| part.contains_key(*key));
    match named.as_deref().or(guessed) {
        Some("text" | "input_text" | "output_text") => {
            match part.remove("text").or_else(|| part.remove("content")) {
                Some(Value::String(text)) => Ok(Part::Text(text)),
                _ => Err(invalid(format!("a text part of turn {number} has no `text`"))),
            }
        }
        Some("image" | "image_url" | "input_image") => Ok(Part::Image(part_image(&mut part)?)),
        Some("video" | "video_url" | "audio" | "input_audio") => {
            Err(Verdict::new(Reason::VideoUnsupported, format!("turn {number} holds a video or audio part")))
        }
        Some("tool_use" | "tool_result" | "tool_call") => {
            Err(Verdict::new(Reason::ToolUnsupported, format!("turn {number} holds a tool part")))
        }
        Some(other) => Err(invalid(format!("turn {number} has a content part of type `{other}`"))),
        None => Err(invalid(format!("a content part of turn {number} has no `type`"))),
    }
}

/// `prompts` and `captions` of equal lengths.
fn read_rounds(record: &mut Map<String, Value>, sample: &mut Sample) -> Result<(), Verdict> {
    sample.prompts = round_texts(record.remove("prompts").unwrap_or_default(), "prompts")?;
    sample.captions = round_texts(record.remove("captions").unwrap_or_default(), "captions")?;
    let (prompts, captions) = (sample.prompts.len(), sample.captions.len());
    if prompts != captions {
        return Err(Verdict::new(Reason::TurnOrder, format!("{prompts} prompts and {captions} captions")));
    }
    if prompts == 0 {
        return Err(Verdict::new(Reason::NoTurns, "`prompts` is empty"));
    }
    no_empty_round(sample)
}

fn no_empty_round(sample: &Sample) -> Result<(), Verdict> {
    let empty = |texts: &[String]| texts.iter().position(String::is_empty);
    match (empty(&sample.prompts), empty(&sample.captions)) {
        (Some(round), _) => Err(Verdict::new(Reason::EmptyContent, format!("prompt {round} is empty"))),
        (_, Some(round)) => Err(Verdict::new(Reason::EmptyContent, format!("caption {round} is empty"))),
        _ => Ok(()),
    }
}

fn round_texts(value: Value, key: &str) -> Result<Vec<String>, Verdict> {
    let list = match value {
        Value::String(text) => return Ok(vec![text]),
        Value::Array(list) => list,
        other => return Err(invalid(format!("`{key}` is {}, not a list of texts", kind(&other)))),
    };
    if let [Value::Array(_)] = list.as_slice() {
        let inner = list.into_iter().next().unwrap_or_default();
        return round_texts(inner, key);
    }
    list.into_iter()
        .map(|item| match item {
            Value::String(text) => Ok(text),
            Value::Object(mut turn) => match turn.remove("content").or_else(|| turn.remove("value")) {
                Some(Value::String(text)) => Ok(text),
                _ => Err(invalid(format!("an entry of `{key}` has no text in `content`"))),
            },
            Value::Array(_) => Err(invalid(format!("`{key}` holds several samples; a record must hold one"))),
            other => Err(invalid(format!("an entry of `{key}` is {}", kind(&other)))),
        })
        .collect()
}

fn read_caption(
    record: &mut Map<String, Value>,
    sample: &mut Sample,
    options: &RecordOptions,
    images: usize,
) -> Result<(), Verdict> {
    let value =
        record.remove("caption").filter(|value| !value.is_null()).or_else(|| record.remove("captions"));
    sample.captions = round_texts(value.unwrap_or_default(), "caption")?;
    if sample.captions.len() != 1 {
        let detail =
            format!("{} captions and no prompts; a caption-only record holds one", sample.captions.len());
        return Err(Verdict::new(Reason::TurnOrder, detail));
    }
    let own = match record.remove("prompt") {
        Some(Value::String(text)) if !text.is_empty() => Some(text),
        _ => options.caption_prompt.clone(),
    };
    let Some(prompt) = own else {
        return Err(Verdict::new(Reason::NoTurns, "the record holds only a caption; set `caption_prompt`"));
    };
    // The prompt of a configuration knows nothing of the record's images: they go in front.
    let prompt = if images > 0 && !prompt.contains(IMAGE) {
        format!("{}\n{prompt}", vec![IMAGE; images].join("\n"))
    } else {
        prompt
    };
    sample.prompts = vec![prompt];
    no_empty_round(sample)
}

fn top_level_system(record: &Map<String, Value>, sample: &mut Sample) -> Result<(), Verdict> {
    match record.get("system") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(text)) if text.is_empty() => Ok(()),
        Some(Value::String(_)) if sample.system.is_some() => {
            Err(Verdict::new(Reason::TurnOrder, "a `system` key and a system turn"))
        }
        Some(Value::String(text)) => {
            sample.system = Some(text.clone());
            Ok(())
        }
        Some(other) => Err(invalid(format!("`system` is {}, not a string", kind(other)))),
    }
}
