//! Rounds and captions: `prompts` with `captions`, or a caption alone.

use serde_json::{Map, Value};

use super::{IMAGE, RecordOptions, invalid, kind};
use crate::reason::{Reason, Verdict};
use crate::sample::Sample;

/// `prompts` and `captions` of equal lengths.
pub(super) fn read_rounds(record: &mut Map<String, Value>, sample: &mut Sample) -> Result<(), Verdict> {
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

pub(super) fn read_caption(
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
