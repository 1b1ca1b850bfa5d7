//! The ids of the tokens around images, which the tokenizer says.

use std::path::Path;

use serde_json::Value as Json;

use super::source::read_json;
use crate::error::Result;

/// Ids of special tokens; at first those of Qwen's tokenizers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TokenIds {
    pub(super) image: u32,
    pub(super) video: u32,
    pub(super) vision_start: u32,
    pub(super) vision_end: u32,
}

impl TokenIds {
    /// Those of the tokenizer in one of these folders: the first that has one.
    pub(super) fn read(folders: &[&Path], notes: &mut Vec<String>) -> Result<Self> {
        let mut ids = Self { image: 151_655, video: 151_656, vision_start: 151_652, vision_end: 151_653 };
        for folder in folders {
            let found = added_tokens(folder)?;
            if found.is_empty() {
                continue;
            }
            for (name, id) in [
                ("<|image_pad|>", &mut ids.image),
                ("<|video_pad|>", &mut ids.video),
                ("<|vision_start|>", &mut ids.vision_start),
                ("<|vision_end|>", &mut ids.vision_end),
            ] {
                match found.iter().find(|(content, _)| content == name) {
                    Some((_, found)) => *id = *found,
                    None => notes.push(format!("the tokenizer in {} has no {name}: {id}", folder.display())),
                }
            }
            return Ok(ids);
        }
        notes.push("no tokenizer tells the ids of the image tokens: they are those of Qwen's".into());
        Ok(ids)
    }
}

/// Contents and ids of the tokens that were added to a vocabulary.
fn added_tokens(folder: &Path) -> Result<Vec<(String, u32)>> {
    let id = |value: &Json| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let whole = folder.join("tokenizer.json");
    if whole.is_file() {
        let json = read_json(&whole)?;
        let tokens = json["added_tokens"].as_array().into_iter().flatten();
        let found: Vec<_> = tokens
            .filter_map(|token| Some((token["content"].as_str()?.to_owned(), id(&token["id"])?)))
            .collect();
        return Ok(found);
    }
    let config = folder.join("tokenizer_config.json");
    if config.is_file() {
        let json = read_json(&config)?;
        let tokens = json["added_tokens_decoder"].as_object().into_iter().flatten();
        let found: Vec<_> = tokens
            .filter_map(|(id, token)| Some((token["content"].as_str()?.to_owned(), id.parse().ok()?)))
            .collect();
        return Ok(found);
    }
    Ok(Vec::new())
}
