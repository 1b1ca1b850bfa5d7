//! Files that come along: tokenizer, processor, Python sources.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value as Json, json};

use super::source::{is_here, read_json, wrong};
use super::{MergeOptions, Variant};
use crate::error::{ModelError, Result};

/// What the trainer's processors are limited to, in pixels of an image.
const MAX_PIXELS: u64 = 4_000_000;
const ENDINGS: [&str; 5] = ["json", "txt", "model", "jinja", "py"];
const OF_TOKENIZERS: [&str; 8] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
];

/// A file of the merged checkpoint.
pub(super) enum Carried {
    Copy(PathBuf),
    Text(String),
}

/// Names and contents of the files.
pub(super) fn files(
    options: &MergeOptions,
    variant: Variant,
    patch_size: usize,
    notes: &mut Vec<String>,
) -> Result<BTreeMap<String, Carried>> {
    let mut files = BTreeMap::new();
    if !is_here(&options.processor)?.is_dir() {
        return Err(wrong(&options.processor, "the processor is a folder with preprocessor_config.json"));
    }
    for (name, path) in listed(&options.processor)? {
        files.insert(name, Carried::Copy(path));
    }
    if !files.contains_key("tokenizer.json") && !files.contains_key("vocab.json") {
        let own = OF_TOKENIZERS.map(|name| (name, options.llm.join(name)));
        let own = own.into_iter().filter(|(_, path)| path.is_file()).collect::<Vec<_>>();
        if own.is_empty() {
            notes.push("neither the processor nor the decoder has a tokenizer".into());
        }
        for (name, path) in own {
            files.entry(name.to_owned()).or_insert(Carried::Copy(path));
        }
    }
    edit_processor(options, patch_size, &mut files)?;
    add_sources(options, variant, notes, &mut files);
    Ok(files)
}

/// The files of a processor's folder, without a model's own.
fn listed(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let read = |source| ModelError::Read { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        let ending = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let is_models =
            ["config.json", "generation_config.json"].contains(&name) || name.ends_with(".index.json");
        if ENDINGS.contains(&ending) && !is_models && path.is_file() {
            found.push((name.to_owned(), path));
        }
    }
    Ok(found)
}

/// One frame a patch, at most 4 million pixels, and the merging and patches of this model.
fn edit_processor(
    options: &MergeOptions,
    patch_size: usize,
    files: &mut BTreeMap<String, Carried>,
) -> Result<()> {
    let mut edited = false;
    // transformers 5 keeps the image processor within the second file.
    for (name, inner) in
        [("preprocessor_config.json", None), ("processor_config.json", Some("image_processor"))]
    {
        let path = options.processor.join(name);
        if !files.contains_key(name) {
            continue;
        }
        let mut json = read_json(&path)?;
        let images = match inner {
            None => Some(&mut json),
            Some(inner) => json.get_mut(inner),
        };
        let Some(Json::Object(images)) = images else { continue };
        images.insert("temporal_patch_size".into(), json!(1));
        images.insert("max_pixels".into(), json!(MAX_PIXELS));
        images.insert("merge_size".into(), json!(options.spatial_merge_size));
        images.insert("patch_size".into(), json!(patch_size));
        // The same limit under its other name.
        if let Some(limit) = images.get_mut("size").and_then(|size| size.get_mut("longest_edge")) {
            *limit = json!(MAX_PIXELS);
        }
        files.insert(name.into(), Carried::Text(super::write::pretty(&json)));
        edited = true;
    }
    if edited {
        return Ok(());
    }
    let help = "neither preprocessor_config.json nor processor_config.json with an image_processor is here";
    Err(wrong(&options.processor, help))
}

/// The model's own Python, which `auto_map` names, from whichever source has it.
fn add_sources(
    options: &MergeOptions,
    variant: Variant,
    notes: &mut Vec<String>,
    files: &mut BTreeMap<String, Carried>,
) {
    let folders =
        [Some(&options.processor), Some(&options.vit), Some(&options.llm), options.adapter.as_ref()];
    for kind in ["configuration", "modeling"] {
        let name = format!("{kind}_llava_onevision2{}.py", variant.suffix());
        match folders.iter().flatten().map(|folder| folder.join(&name)).find(|path| path.is_file()) {
            Some(path) => {
                files.insert(name, Carried::Copy(path));
            }
            None => notes.push(format!("no source has {name}; transformers needs it beside the checkpoint")),
        }
    }
}
