//! Counting tokens: one type over two encoders that count alike.
//!
//! The pipeline encoder of tokenizers 1.0 is some twenty times faster than 0.23 but reads fewer
//! files (BPE models whose pre-tokenizer it knows); what it cannot load is loaded by 0.23.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use aho_corasick::AhoCorasick;
use serde::Deserialize;
use tokenizers::pipeline::{EncodeOptions, Override, PipelineToken, PipelineTokenizer};

use crate::{Reason, Verdict};

/// Why a tokenizer could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file cannot be read.
    #[error("cannot read the tokenizer {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The bytes are not a `tokenizer.json`.
    #[error("{name} is not a tokenizer.json: {detail}")]
    Invalid {
        /// The file, or what was embedded.
        name: String,
        /// What the libraries said.
        detail: String,
    },
}

/// A loaded `tokenizer.json`; counting is thread-safe and needs no lock of the caller's.
pub struct Tokenizer {
    name: String,
    encoder: OnceLock<Encoder>,
    /// What the encoder is made of, while it is not made yet.
    canonical: Mutex<Option<String>>,
    special_tokens: Vec<String>,
    special_search: AhoCorasick,
    hash: String,
    note: Option<String>,
}

/// The two encoders.
enum Encoder {
    Pipeline(PipelineTokenizer),
    Classic(Box<tokenizers_023::Tokenizer>),
}

/// The part of a `tokenizer.json` that is read here; the rest is the encoders' business.
#[derive(Deserialize)]
struct AddedTokens {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
}

#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    special: bool,
}

impl Tokenizer {
    /// Loads a `tokenizer.json`.
    pub fn from_file(path: &Path) -> Result<Self, TokenizerError> {
        let bytes =
            std::fs::read(path).map_err(|source| TokenizerError::Read { path: path.to_owned(), source })?;
        Self::named(&path.display().to_string(), &bytes)
    }

    /// Loads a `tokenizer.json` from its bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, TokenizerError> {
        Self::named("the given file", bytes)
    }

    /// Loads with the encoder of tokenizers 0.23 even where 1.0 could: the second opinion of tests.
    pub fn from_bytes_classic(bytes: &[u8]) -> Result<Self, TokenizerError> {
        let text = utf8("the given file", bytes)?;
        let encoder = classic(text).map_err(|detail| invalid("the given file", detail))?;
        Self::assemble("the given file", Some(encoder), text, hash_of(bytes), None)
    }

    /// Loads a file that is in the canonical form already; `hash` is that of the original file. The encoder is made
    /// when it is needed, or with [`load`](Self::load).
    pub(crate) fn from_canonical(name: &str, text: String, hash: &str) -> Result<Self, TokenizerError> {
        let tokenizer = Self::assemble(name, None, &text, hash.to_owned(), None)?;
        Ok(Self { canonical: Mutex::new(Some(text)), ..tokenizer })
    }

    /// Makes the encoder, if it is not made yet: that takes a second for a large vocabulary.
    pub fn load(&self) -> Result<(), TokenizerError> {
        self.encoder().map(|_| ())
    }

    fn encoder(&self) -> Result<&Encoder, TokenizerError> {
        if let Some(encoder) = self.encoder.get() {
            return Ok(encoder);
        }
        // Others wait here for whoever came first.
        let mut canonical = self.canonical.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = canonical.as_deref() {
            let encoder = tokenizers::from_json(text).map_err(|e| invalid(&self.name, e))?;
            let _ = self.encoder.set(Encoder::Pipeline(encoder));
            *canonical = None;
        }
        self.encoder.get().ok_or_else(|| invalid(&self.name, "it was not loaded"))
    }

    fn named(name: &str, bytes: &[u8]) -> Result<Self, TokenizerError> {
        let text = utf8(name, bytes)?;
        let hash = hash_of(bytes);
        match pipeline(text) {
            Ok(encoder) => Self::assemble(name, Some(Encoder::Pipeline(encoder)), text, hash, None),
            Err(refusal) => {
                let encoder = classic(text).map_err(|detail| invalid(name, detail))?;
                let note =
                    format!("{name} is counted by the slower tokenizers 0.23, because 1.0 says: {refusal}");
                Self::assemble(name, Some(encoder), text, hash, Some(note))
            }
        }
    }

    fn assemble(
        name: &str,
        encoder: Option<Encoder>,
        text: &str,
        hash: String,
        note: Option<String>,
    ) -> Result<Self, TokenizerError> {
        let parsed: AddedTokens = serde_json::from_str(text).map_err(|e| invalid(name, e))?;
        let special_tokens: Vec<String> =
            parsed.added_tokens.into_iter().filter(|t| t.special).map(|t| t.content).collect();
        let special_search = AhoCorasick::new(&special_tokens).map_err(|e| invalid(name, e))?;
        let encoder = encoder.map_or_else(OnceLock::new, OnceLock::from);
        let (name, canonical) = (name.to_owned(), Mutex::new(None));
        Ok(Self { name, encoder, canonical, special_tokens, special_search, hash, note })
    }

    /// Tokens of `text` by itself: special tokens spelled in it count one each, none is added.
    ///
    /// Fails with `template-error` where the tokenizer refuses the text; a byte-level tokenizer
    /// refuses none.
    pub fn count(&self, text: &str) -> Result<usize, Verdict> {
        self.with_ids(text, <[u32]>::len)
    }

    /// The token ids of `text` by itself, as many as [`count`](Self::count) says.
    ///
    /// # Errors
    /// Those of [`count`](Self::count).
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Verdict> {
        self.with_ids(text, <[u32]>::to_vec)
    }

    /// The text of token ids, special tokens spelled out.
    ///
    /// # Errors
    /// An id is unknown, or the tokenizer cannot be loaded.
    pub fn decode(&self, ids: &[u32]) -> Result<String, TokenizerError> {
        let text = match self.encoder()? {
            Encoder::Pipeline(encoder) => encoder.decode(ids, false),
            Encoder::Classic(encoder) => encoder.decode(ids, false),
        };
        text.map_err(|e| invalid(&self.name, e))
    }

    fn with_ids<T>(&self, text: &str, use_ids: impl FnOnce(&[u32]) -> T) -> Result<T, Verdict> {
        if text.is_empty() {
            return Ok(use_ids(&[]));
        }
        let refused =
            |e: String| Verdict::new(Reason::TemplateError, format!("the tokenizer refused the text: {e}"));
        let used = match self.encoder().map_err(|e| refused(e.to_string()))? {
            Encoder::Pipeline(encoder) => with_pipeline_ids(encoder, text, use_ids),
            Encoder::Classic(encoder) => {
                encoder.encode_fast(text, false).map(|encoding| use_ids(encoding.get_ids()))
            }
        };
        used.map_err(|e| refused(e.to_string()))
    }

    /// The spellings of the special tokens, in the order of their ids.
    pub fn special_tokens(&self) -> &[String] {
        &self.special_tokens
    }

    /// The first special token spelled in `text`: its byte offset and spelling.
    pub fn find_special(&self, text: &str) -> Option<(usize, &str)> {
        let found = self.special_search.find(text)?;
        Some((found.start(), &self.special_tokens[found.pattern().as_usize()]))
    }

    /// Every special token spelled in `text`, as byte offset and spelling.
    pub fn find_all_special<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
        self.special_search
            .find_iter(text)
            .map(|found| (found.start(), self.special_tokens[found.pattern().as_usize()].as_str()))
    }

    /// XXH3-128 of the `tokenizer.json`, in hexadecimal.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// A sentence for the log when the slower encoder is in use.
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("hash", &self.hash)
            .field("note", &self.note)
            .finish_non_exhaustive()
    }
}

/// Ids beyond this many are given back after a count, so that one huge text does not stay resident.
const KEPT_IDS: usize = 1 << 18;

thread_local! {
    static IDS: RefCell<Vec<PipelineToken>> = const { RefCell::new(Vec::new()) };
}

fn with_pipeline_ids<T>(
    encoder: &PipelineTokenizer,
    text: &str,
    use_ids: impl FnOnce(&[u32]) -> T,
) -> tokenizers::Result<T> {
    let options = EncodeOptions {
        add_special_tokens: false,
        encode_special_tokens: false,
        padding: Override::Off,
        truncation: Override::Off,
    };
    IDS.with_borrow_mut(|ids| {
        ids.clear();
        encoder.encode_into(text, &options, ids)?;
        let used = use_ids(PipelineToken::cast_slice(ids));
        ids.shrink_to(KEPT_IDS);
        Ok(used)
    })
}

fn pipeline(text: &str) -> Result<PipelineTokenizer, String> {
    let canonical = tokenizers::canonicalize_str(text).map_err(|e| e.to_string())?;
    tokenizers::from_json(&canonical).map_err(|e| e.to_string())
}

fn classic(text: &str) -> Result<Encoder, String> {
    let mut encoder: tokenizers_023::Tokenizer =
        text.parse().map_err(|e: tokenizers_023::Error| e.to_string())?;
    encoder.with_padding(None);
    encoder.with_truncation(None).map_err(|e| e.to_string())?;
    Ok(Encoder::Classic(Box::new(encoder)))
}

fn utf8<'a>(name: &str, bytes: &'a [u8]) -> Result<&'a str, TokenizerError> {
    std::str::from_utf8(bytes).map_err(|e| invalid(name, e))
}

fn invalid(name: &str, detail: impl std::fmt::Display) -> TokenizerError {
    TokenizerError::Invalid { name: name.to_owned(), detail: detail.to_string() }
}

/// XXH3-128 in hexadecimal: how files that decide lengths are named in the report.
pub(crate) fn hash_of(bytes: &[u8]) -> String {
    format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes))
}
