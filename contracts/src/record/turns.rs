//! Turns of a conversation: `messages` and `conversations`.

use serde_json::{Map, Value};

use super::{IMAGE, invalid, kind};
use crate::media_list::part_image;
use crate::reason::{Reason, Verdict};
use crate::sample::{ImageRef, Sample};

/// Images that stand in the conversation itself, by the number of the placeholder they belong to.
#[derive(Default)]
pub(super) struct Placed {
    own: Vec<(usize, ImageRef)>,
    placeholders: usize,
}

impl Placed {
    /// All images in the order of their placeholders: each placeholder takes its own image, or the next
    /// of the record's list; what is left of the list follows, for the verdict to count.
    pub(super) fn in_order(self, sample: &Sample, listed: Vec<ImageRef>) -> Vec<ImageRef> {
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

pub(super) fn read_turns(
    turns: Value,
    key: &str,
    sample: &mut Sample,
    placed: &mut Placed,
) -> Result<(), Verdict> {
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

/// A `system` key beside the turns.
pub(super) fn top_level_system(record: &Map<String, Value>, sample: &mut Sample) -> Result<(), Verdict> {
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
