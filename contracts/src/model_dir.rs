//! A Hugging Face model directory: what of it decides a length.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::tokenizer::{Tokenizer, TokenizerError};

/// Why a model directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ModelDirError {
    /// A file that a length depends on is not there.
    #[error("{} holds no {file}; {help}", dir.display())]
    Missing {
        /// The directory.
        dir: PathBuf,
        /// What was looked for.
        file: &'static str,
        /// What to do.
        help: &'static str,
    },
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file does not hold what its name promises.
    #[error("{}: {detail}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        detail: String,
    },
    /// The tokenizer cannot be loaded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// A chat template and the file that it was read from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateSource {
    /// The Jinja source.
    pub text: String,
    /// `chat_template.jinja`, `chat_template.json` or `tokenizer_config.json`.
    pub file: &'static str,
}

/// The image processor's numbers as the directory states them; `None` where it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessorNumbers {
    /// `patch_size`.
    pub patch_size: Option<u32>,
    /// `merge_size`.
    pub merge_size: Option<u32>,
    /// `min_pixels` or `size.shortest_edge`.
    pub min_pixels: Option<u64>,
    /// `max_pixels` or `size.longest_edge`.
    pub max_pixels: Option<u64>,
}

/// A model directory, read.
#[derive(Debug)]
pub struct ModelDir {
    /// Where it is.
    pub path: PathBuf,
    /// `tokenizer.json`.
    pub tokenizer: Tokenizer,
    /// The named special tokens of `tokenizer_config.json` (`bos_token`, `image_token`, …).
    pub special_tokens: BTreeMap<String, String>,
    /// The chat template, if there is one.
    pub template: Option<TemplateSource>,
    /// The image processor, if there is one.
    pub processor: Option<ProcessorNumbers>,
}

impl ModelDir {
    /// Reads a directory. Only `tokenizer.json` must be there; the caller decides what else it needs.
    pub fn read(dir: &Path) -> Result<Self, ModelDirError> {
        let tokenizer_path = dir.join("tokenizer.json");
        if !tokenizer_path.is_file() {
            return Err(ModelDirError::Missing {
                dir: dir.to_owned(),
                file: "tokenizer.json",
                help: "give the folder that the model was downloaded to; a model with only a slow tokenizer \
                       gets the file from AutoTokenizer.from_pretrained(…).save_pretrained(…)",
            });
        }
        let tokenizer_config = read_object(dir, "tokenizer_config.json")?.unwrap_or_default();
        Ok(Self {
            path: dir.to_owned(),
            tokenizer: Tokenizer::from_file(&tokenizer_path)?,
            special_tokens: special_tokens(&tokenizer_config),
            template: read_template(dir, &tokenizer_config)?,
            processor: read_processor(dir)?,
        })
    }

    /// The chat template, or an error that says what to do.
    pub fn require_template(&self) -> Result<&TemplateSource, ModelDirError> {
        self.template.as_ref().ok_or_else(|| ModelDirError::Missing {
            dir: self.path.clone(),
            file: "chat template",
            help: "add chat_template.jinja or chat_template.json from the model's repository",
        })
    }

    /// The image processor, or an error that says what to do.
    pub fn require_processor(&self) -> Result<ProcessorNumbers, ModelDirError> {
        self.processor.ok_or_else(|| ModelDirError::Missing {
            dir: self.path.clone(),
            file: "preprocessor_config.json",
            help: "add it from the model's repository, or use the profile's numbers with override_processor",
        })
    }
}

fn read_text(dir: &Path, file: &str) -> Result<Option<String>, ModelDirError> {
    let path = dir.join(file);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ModelDirError::Read { path, source }),
    }
}

fn read_object(dir: &Path, file: &str) -> Result<Option<Map<String, Value>>, ModelDirError> {
    let Some(text) = read_text(dir, file)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|e| invalid(dir, file, e))
}

fn invalid(dir: &Path, file: &str, detail: impl std::fmt::Display) -> ModelDirError {
    ModelDirError::Invalid { path: dir.join(file), detail: detail.to_string() }
}

/// Every `…_token` of the configuration, written as a string or as `{"content": …}`.
fn special_tokens(config: &Map<String, Value>) -> BTreeMap<String, String> {
    let spelled =
        |value: &Value| value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_owned);
    config
        .iter()
        .filter(|(key, _)| key.ends_with("_token"))
        .filter_map(|(key, value)| Some((key.clone(), spelled(value)?)))
        .collect()
}

/// The template in the order of transformers: the file of its own first, the tokenizer's last.
fn read_template(
    dir: &Path,
    tokenizer_config: &Map<String, Value>,
) -> Result<Option<TemplateSource>, ModelDirError> {
    const JINJA: &str = "chat_template.jinja";
    const JSON: &str = "chat_template.json";
    const CONFIG: &str = "tokenizer_config.json";
    if let Some(text) = read_text(dir, JINJA)? {
        return Ok(Some(TemplateSource { text, file: JINJA }));
    }
    if let Some(object) = read_object(dir, JSON)? {
        let value = object.get("chat_template").ok_or_else(|| invalid(dir, JSON, "no key chat_template"))?;
        return default_template(value)
            .map(|text| Some(TemplateSource { text, file: JSON }))
            .ok_or_else(|| invalid(dir, JSON, "chat_template is neither a string nor holds a default one"));
    }
    match tokenizer_config.get("chat_template") {
        None | Some(Value::Null) => Ok(None),
        Some(value) => default_template(value)
            .map(|text| Some(TemplateSource { text, file: CONFIG }))
            .ok_or_else(|| invalid(dir, CONFIG, "chat_template is neither a string nor holds a default one")),
    }
}

/// A template is a string, or a list of named ones of which `default` is used.
fn default_template(value: &Value) -> Option<String> {
    if let Some(text) = value.as_str() {
        return Some(text.to_owned());
    }
    let default = value.as_array()?.iter().find(|entry| entry["name"] == "default")?;
    default["template"].as_str().map(str::to_owned)
}

/// `preprocessor_config.json`, or the part of `processor_config.json` where transformers 5 keeps it.
fn read_processor(dir: &Path) -> Result<Option<ProcessorNumbers>, ModelDirError> {
    const OWN: &str = "preprocessor_config.json";
    const SHARED: &str = "processor_config.json";
    if let Some(object) = read_object(dir, OWN)? {
        return numbers(dir, OWN, &object).map(Some);
    }
    match read_object(dir, SHARED)?.as_ref().and_then(|shared| shared.get("image_processor")) {
        Some(Value::Object(object)) => numbers(dir, SHARED, object).map(Some),
        _ => Ok(None),
    }
}

fn numbers(dir: &Path, file: &str, config: &Map<String, Value>) -> Result<ProcessorNumbers, ModelDirError> {
    let number = |key: &str, value: Option<&Value>| match value {
        None | Some(Value::Null) => Ok(None),
        Some(value) => match value.as_u64() {
            Some(number) if number > 0 => Ok(Some(number)),
            _ => Err(invalid(dir, file, format!("{key} is {value}, not a positive whole number"))),
        },
    };
    let side = |key: &str| {
        number(key, config.get(key))?
            .map(|value| u32::try_from(value).map_err(|e| invalid(dir, file, format!("{key}: {e}"))))
            .transpose()
    };
    // where both spellings stand, transformers takes the older one
    let limit = |key: &str, in_size: &str| {
        let older = number(key, config.get(key))?;
        let size = config.get("size");
        let newer = size.and_then(|size| size.get(in_size).or_else(|| size.get(key)));
        Ok::<_, ModelDirError>(older.or(number(in_size, newer)?))
    };
    Ok(ProcessorNumbers {
        patch_size: side("patch_size")?,
        merge_size: side("merge_size")?,
        min_pixels: limit("min_pixels", "shortest_edge")?,
        max_pixels: limit("max_pixels", "longest_edge")?,
    })
}
