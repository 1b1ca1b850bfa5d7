//! The images that a record names, in every spelling.

use base64::Engine;
use serde_json::{Map, Value};

use crate::reason::{Reason, Verdict};
use crate::record::{invalid, kind};
use crate::sample::ImageRef;

/// The images of the record's `images` or `image` key, taken out of it.
pub(crate) fn images_of(record: &mut Map<String, Value>) -> Result<Vec<ImageRef>, Verdict> {
    let many = list(record.remove("images"), "images")?;
    let one = list(record.remove("image"), "image")?;
    match (many.is_empty(), one.is_empty()) {
        (_, true) => Ok(many),
        (true, false) => Ok(one),
        _ if many == one => Ok(many),
        _ => Err(invalid("`image` and `images` name different images")),
    }
}

/// The image that a content part names itself, if it does.
pub(crate) fn part_image(part: &mut Map<String, Value>) -> Result<Option<ImageRef>, Verdict> {
    for key in ["image", "image_url", "url", "path"] {
        match part.remove(key) {
            None | Some(Value::Null) => {}
            Some(value) => return entry(value, key).map(Some),
        }
    }
    Ok(None)
}

fn list(value: Option<Value>, key: &str) -> Result<Vec<ImageRef>, Verdict> {
    match value {
        None | Some(Value::Null) => Ok(vec![]),
        Some(Value::String(text)) if text.is_empty() => Ok(vec![]),
        Some(Value::Array(items)) => items.into_iter().map(|item| entry(item, key)).collect(),
        Some(other) => Ok(vec![entry(other, key)?]),
    }
}

/// A path, a URL, a `data:` URI, or an object that holds one (`{"path": …}`, `{"url": …}`).
fn entry(value: Value, key: &str) -> Result<ImageRef, Verdict> {
    match value {
        Value::String(text) if text.is_empty() => Err(invalid(format!("an entry of `{key}` is empty"))),
        Value::String(text) => match text.strip_prefix("data:") {
            Some(uri) => decode_data_uri(uri).map(ImageRef::Inline),
            None => Ok(ImageRef::Path(text)),
        },
        Value::Object(mut object) => match object.remove("url").or_else(|| object.remove("path")) {
            Some(text @ Value::String(_)) => entry(text, key),
            _ => Err(invalid(format!("an entry of `{key}` is an object without `path` or `url`"))),
        },
        other => Err(invalid(format!("an entry of `{key}` is {}, not a path", kind(&other)))),
    }
}

fn decode_data_uri(uri: &str) -> Result<Vec<u8>, Verdict> {
    let unreadable = |detail: String| Verdict::new(Reason::ImageUnreadable, detail);
    let (header, body) =
        uri.split_once(',').ok_or_else(|| unreadable("a data: URI without a comma".into()))?;
    if !header.ends_with(";base64") {
        return Err(unreadable("a data: URI that is not base64".into()));
    }
    let body: String = body.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    base64::engine::general_purpose::STANDARD
        .decode(body)
        .map_err(|error| unreadable(format!("a data: URI with broken base64: {error}")))
}
